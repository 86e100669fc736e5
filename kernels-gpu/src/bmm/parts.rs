//! Adds up sums that parts of k left in scratch memory, first to last: a thread an output. Or several fours, where there is one
//! part: sums of f32 that become a `C` of another type.

use contract::bmm::{Args, INTEGERS, PARTS_THREADS, parts_dense, parts_each};

use super::source::Float;
use super::target::{Int32, Target};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, rolled};
use crate::arch::mem::{ld, ld_x4};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::arch::warp::Register;

/// Parts of an output that are asked for at a time.
const AT_ONCE: usize = 16;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`contract::bmm::parts_blocks`]; `A` of `args` is sums, `k` of them for
/// each output, one batch of matrices behind the other; `C` covers what the contract says, and does not overlap them.
#[inline(always)]
pub(super) unsafe fn parts(args: &Args) {
    // SAFETY: the caller's promise.
    unsafe {
        if args.element == INTEGERS {
            add(args, Int32, i32::wrapping_add);
        } else {
            add(args, Float::<false>(args.element), |a, b| a + b);
        }
    }
}

/// Quotient and rest, by words where they suffice.
#[inline(always)]
fn divide(a: u64, b: u64) -> (u64, u64) {
    match (u32::try_from(a), u32::try_from(b)) {
        (Ok(a), Ok(b)) => (u64::from(a / b), u64::from(a % b)),
        _ => (a / b, a % b),
    }
}

/// # Safety
///
/// As for [`parts`].
#[inline(always)]
unsafe fn add<C: Target>(args: &Args, element: C, sum: impl Fn(C::Sum, C::Sum) -> C::Sum) {
    let each = parts_each(args);
    let area = u64::from(args.m) * u64::from(args.n);
    let all = area * u64::from(args.batch);
    let first = u64::from(block_idx_x()) * u64::from(PARTS_THREADS * each);
    let index = first + u64::from(thread_idx_x() * each.min(4));
    launch_dependents();
    if index >= all {
        return;
    }
    let (dense, bytes) = (parts_dense(args), u64::from(element.width()));
    let place = |index: u64| {
        let at = if dense {
            index
        } else {
            let (batch, at) = divide(index, area);
            let (row, column) = divide(at, args.n.into());
            batch * args.c.stride + row * args.c.ld + column
        };
        args.c.addr.as_ptr().wrapping_add((at * bytes) as usize)
    };
    let from = args.a.addr.cast::<C::Sum>().as_ptr().cast_const().wrapping_add(index as usize);
    let zero = C::Sum::from_word(0);
    dependency_wait();
    // SAFETY: the caller's promise; sums are in fours, `C` is for all but perhaps the last.
    unsafe {
        if each > 1 {
            let mut i = opaque(0);
            while i < each / 4 {
                rolled();
                let next = u64::from(4 * PARTS_THREADS * i);
                let count = all.saturating_sub(index + next).min(4) as i32;
                if count > 0 {
                    let (c, whole) = (place(index + next), count == 4);
                    let (mut old, totals) =
                        ([zero; 4], ld_x4(from.wrapping_add(next as usize).cast()));
                    if C::reads(args.beta) {
                        old = element.load4(c.cast_const(), count, whole);
                    }
                    let out = core::array::from_fn(|j| {
                        C::finish(args.alpha, totals[j], args.beta, old[j])
                    });
                    element.store4(c, count, whole, out);
                }
                i = opaque(i + 1);
            }
            return;
        }
        let c = place(index);
        let mut total = ld(from);
        let mut i = opaque(1);
        while i < args.k {
            let parts: [C::Sum; AT_ONCE] = core::array::from_fn(|j| {
                let part = (i + j as u32).min(args.k - 1);
                ld(from.wrapping_add((u64::from(part) * args.a.stride) as usize))
            });
            let mut j = 0;
            while j < AT_ONCE {
                if i + (j as u32) < args.k {
                    total = sum(total, parts[j]);
                }
                j += 1;
            }
            i = opaque(i + AT_ONCE as u32);
        }
        let mut old = zero;
        if C::reads(args.beta) {
            old = element.load4(c.cast_const(), 1, false)[0];
        }
        let out = C::finish(args.alpha, total, args.beta, old);
        element.store4(c, 1, false, [out; 4]);
    }
}
