//! Device side of [`contract::rope`]: one pair per thread, in place.

use contract::launch::Kernel;
use contract::rope::{Args, Rope, THREADS, rotate};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_nc, st};
use crate::arch::thread::{block_idx_x, block_idx_y, thread_idx_x};

/// # Safety
///
/// The launch obeys `Rope::SPEC` with grid `(M, heads * head_dim / 2 / THREADS rounded up)`; the
/// pointers of `args` cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn rope(args: Args) {
    launch_dependents();
    dependency_wait();
    let (pair, m) = (block_idx_y() * THREADS + thread_idx_x(), block_idx_x());
    let half = args.head_dim / 2;
    // SAFETY: one element, there by the contract.
    let pos = unsafe { ld(args.start.as_ptr().cast_const()) }.saturating_add(m);
    if pair < args.heads * half && pos < args.positions {
        let (head, d) = (pair / half, pair % half);
        let lo = (args.x.as_ptr())
            .wrapping_add(m as usize * args.row_stride as usize) // x[m]
            .wrapping_add((head * args.head_dim + d) as usize); // x[m, head, d]
        let hi = lo.wrapping_add(half as usize);
        let at = pos as usize * half as usize + d as usize; // cos[pos, d]
        // SAFETY: pos < positions and d < head_dim / 2; the tables never change.
        let cos = unsafe { ld_nc(args.cos.as_ptr().cast_const().wrapping_add(at)) };
        // SAFETY: as above.
        let sin = unsafe { ld_nc(args.sin.as_ptr().cast_const().wrapping_add(at)) };
        // SAFETY: both elements of the pair belong to this thread.
        unsafe {
            let (new_lo, new_hi) = rotate(ld(lo), ld(hi), cos, sin);
            st(lo, new_lo);
            st(hi, new_hi);
        }
    }
}

const _: unsafe extern "ptx-kernel" fn(<Rope as Kernel>::Args) = rope;
