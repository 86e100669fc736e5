//! Copies factors of f32 to lines of whole pieces of 16 bytes: a warp a line.

use contract::bmm::{COPY_WARPS, Copied, CopyArgs};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_if, st};
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{LANES, lane_id, warp_id};

/// Elements of a lane at a time.
const AT_ONCE: usize = 8;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`CopyArgs::blocks`]; factors and copies cover what `args` says, and no
/// copy overlaps anything.
#[inline(always)]
pub(super) unsafe fn copy(args: &CopyArgs) {
    let line = u64::from(block_idx_x()) * u64::from(COPY_WARPS) + u64::from(warp_id());
    let first = args.a.all_lines();
    dependency_wait();
    // SAFETY: the caller's promise.
    unsafe {
        if line < first {
            copy_line(&args.a, line);
        } else if line - first < args.b.all_lines() {
            copy_line(&args.b, line - first);
        }
    }
    // Not before: while copies run, the blocks of the product would crowd where there is room already.
    launch_dependents();
}

/// # Safety
///
/// As for [`copy`]; a line of the copy.
#[inline(always)]
unsafe fn copy_line(factor: &Copied, line: u64) {
    let (matrix, here) = (line / u64::from(factor.to_lines), line % u64::from(factor.to_lines));
    let from = factor.from.as_ptr().cast_const();
    let from = from.wrapping_add((matrix * factor.stride + here * factor.ld) as usize);
    let to = factor.to.as_ptr().wrapping_add((line * u64::from(factor.to_len)) as usize);
    let len = if here < u64::from(factor.lines) { factor.len } else { 0 };
    let mut first = lane_id();
    while first < factor.to_len {
        let at = |i: usize| first + LANES * i as u32;
        // SAFETY: an element of the factor, and of the copy.
        unsafe {
            let values: [f32; AT_ONCE] = core::array::from_fn(|i| {
                let there = at(i) < len;
                let value: f32 = ld_if(there, from.wrapping_add(at(i) as usize));
                if there { value } else { f32::from_bits(factor.fill) }
            });
            let mut i = 0;
            while i < AT_ONCE {
                if at(i) < factor.to_len {
                    st(to.wrapping_add(at(i) as usize), values[i]);
                }
                i += 1;
            }
        }
        first += LANES * AT_ONCE as u32;
    }
}
