//! Images from planes to channels last, or back: see [`contract::conv2d::turn`].

use contract::conv2d::Conv2dTurn;
use contract::conv2d::turn::{PITCH, SIDE, THREADS, TurnArgs};
use contract::launch::Kernel;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_u16_if, st_u16};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`TurnArgs::blocks`] blocks; `from` and `to` hold all images, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn conv2d_turn(args: TurnArgs) {
    const DOWN: u32 = THREADS / SIDE;
    const EACH: usize = (SIDE / DOWN) as usize;
    let (rest, across) = args.by_squares[0].div_rem(block_idx_x());
    let (image, down) = args.by_squares[1].div_rem(rest);
    let first = u64::from(image) * (u64::from(args.rows) * u64::from(args.columns));
    let (row0, column0) = (down * SIDE, across * SIDE);
    let square: Shared<u16> = dynamic_shared_mem();
    let (along, start) = (thread_idx_x() % SIDE, thread_idx_x() / SIDE);
    launch_dependents();
    dependency_wait();
    let from = args.from.as_ptr().cast_const().wrapping_add(first as usize);
    // All are asked for before one is kept.
    let values: [u16; EACH] = core::array::from_fn(|i| {
        let (row, column) = (row0 + start + DOWN * i as u32, column0 + along);
        let at = u64::from(row) * u64::from(args.columns) + u64::from(column);
        let there = row < args.rows && column < args.columns;
        // SAFETY: an element of the image, where it is there.
        unsafe { ld_u16_if(there, from.wrapping_add(at as usize)) }
    });
    for (i, value) in values.into_iter().enumerate() {
        let row = start + DOWN * i as u32;
        // SAFETY: this thread's element of the square.
        unsafe { square.add(row * PITCH + along).write_u16(value) };
    }
    sync_threads();
    let to = args.to.as_ptr().wrapping_add(first as usize);
    let mut i = 0;
    while i < EACH {
        let column = start + DOWN * i as u32;
        // SAFETY: written before the barrier.
        let value = unsafe { square.add(along * PITCH + column).read_u16() };
        let (row, column) = (row0 + along, column0 + column);
        if row < args.rows && column < args.columns {
            let at = u64::from(column) * u64::from(args.rows) + u64::from(row);
            // SAFETY: an element of the turned image, which belongs to this thread.
            unsafe { st_u16(to.wrapping_add(at as usize), value) };
        }
        i += 1;
    }
}

const _: unsafe extern "ptx-kernel" fn(<Conv2dTurn as Kernel>::Args) = conv2d_turn;
