//! Adds up sums that parts of k left in scratch memory, first to last: a thread an output.

use contract::bmm::{Args, PARTS_THREADS};

use super::source::{Float, Source};
use super::target::Target;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::ld;
use crate::arch::thread::{block_idx_x, thread_idx_x};

/// Parts of an output that are asked for at a time.
const AT_ONCE: usize = 16;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`contract::bmm::parts_blocks`]; `A` of `args` is sums of f32, `k` of them for
/// each output, one batch of matrices behind the other; `C` covers what the contract says, and does not overlap them.
#[inline(always)]
pub(super) unsafe fn parts(args: &Args) {
    let element = Float::<false>(args.element);
    let index = u64::from(block_idx_x()) * u64::from(PARTS_THREADS) + u64::from(thread_idx_x());
    let area = u64::from(args.m) * u64::from(args.n);
    launch_dependents();
    if index >= area * u64::from(args.batch) {
        return;
    }
    let (batch, at) = (index / area, index % area);
    let (row, column) = (at / u64::from(args.n), at % u64::from(args.n));
    let at = batch * args.c.stride + row * args.c.ld + column;
    let c = args.c.addr.as_ptr().wrapping_add((at * u64::from(element.bytes())) as usize);
    let from = args.a.addr.cast::<f32>().as_ptr().cast_const().wrapping_add(index as usize);
    dependency_wait();
    // SAFETY: the caller's promise.
    unsafe {
        let mut total = ld(from);
        let mut i = opaque(1);
        while i < args.k {
            let parts: [f32; AT_ONCE] = core::array::from_fn(|j| {
                let part = (i + j as u32).min(args.k - 1);
                ld(from.wrapping_add((u64::from(part) * args.a.stride) as usize))
            });
            let mut j = 0;
            while j < AT_ONCE {
                if i + (j as u32) < args.k {
                    total += parts[j];
                }
                j += 1;
            }
            i = opaque(i + AT_ONCE as u32);
        }
        let mut old = 0.0;
        if Float::<false>::reads(args.beta) {
            old = element.load4(c.cast_const(), 1, false)[0];
        }
        let out = Float::<false>::finish(args.alpha, total, args.beta, old);
        element.store4(c, 1, false, [out; 4]);
    }
}
