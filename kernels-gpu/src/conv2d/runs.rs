//! Runs of 16-bit elements to places of another length: see [`contract::conv2d::runs`].

use contract::conv2d::Conv2dRuns;
use contract::conv2d::runs::{EACH, RunsArgs, THREADS};
use contract::launch::Kernel;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_u16_if, st_u16, st_x4};
use crate::arch::thread::{block_idx_x, thread_idx_x};

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`RunsArgs::blocks`] blocks; `from` holds all rows and `to` all places, and they do
/// not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn conv2d_runs(args: RunsArgs) {
    let first = (block_idx_x() * THREADS + thread_idx_x()) * EACH;
    let (run, mut at) = args.by_place.div_rem(first);
    let (row, mut run) = args.by_runs.div_rem(run);
    let mut from = args.from.as_ptr().cast_const();
    from = from.wrapping_add((u64::from(row) * u64::from(args.row)) as usize);
    let mut words = [0u32; EACH as usize / 2];
    launch_dependents();
    dependency_wait();
    let mut i = 0;
    while i < EACH {
        // In front of the row this is above all that a row has.
        let of_row = (run * args.step + at).wrapping_sub(args.lead);
        let there = first + i < args.count && at < args.take && of_row < args.row;
        // SAFETY: an element of the row, where it is there.
        let value = unsafe { ld_u16_if(there, from.wrapping_add(of_row as usize)) };
        words[i as usize / 2] |= u32::from(value) << (16 * (i % 2));
        at += 1;
        if at == args.place {
            (at, run) = (0, run + 1);
        }
        if run == args.by_runs.divisor() {
            run = 0;
            from = from.wrapping_add(args.row as usize);
        }
        i += 1;
    }
    let to = args.to.as_ptr().wrapping_add(first as usize);
    if first + EACH <= args.count {
        // SAFETY: eight elements of the places, which are this thread's, at a multiple of 16 bytes.
        return unsafe { st_x4(to.cast(), words) };
    }
    let mut i = 0;
    while i < EACH {
        if first + i < args.count {
            let value = (words[i as usize / 2] >> (16 * (i % 2))) as u16;
            // SAFETY: an element of the places, which is this thread's.
            unsafe { st_u16(to.wrapping_add(i as usize), value) };
        }
        i += 1;
    }
}

const _: unsafe extern "ptx-kernel" fn(<Conv2dRuns as Kernel>::Args) = conv2d_runs;
