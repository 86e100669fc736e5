//! Copies pages of all layers.

use contract::attention_paged::{COPY_THREADS, CopyArgs};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{X4, ld, ld_x4_if, st_x4};
use crate::arch::thread::{block_idx_x, block_idx_y, thread_idx_x};

/// Pieces of 16 bytes that a thread has on their way.
const AT_ONCE: usize = 4;

/// Block `(pair, side)` copies a page.
///
/// # Safety
///
/// The pointers of `args` cover the contract's tables; block and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn copy(args: &CopyArgs) {
    launch_dependents();
    dependency_wait();
    let pair = args.pairs.as_ptr().cast_const().wrapping_add(2 * block_idx_x() as usize);
    let side = args.sides.as_ptr().cast_const().wrapping_add(2 * block_idx_y() as usize);
    // SAFETY: the words of a pair and of an address, there by the contract.
    let [from, to, low, high] =
        unsafe { [ld(pair), ld(pair.wrapping_add(1)), ld(side), ld(side.wrapping_add(1))] };
    if from >= args.pages || to >= args.pages || from == to {
        return; // the whole block
    }
    let base = (u64::from(low) | u64::from(high) << 32) as *mut u8;
    let bytes = args.page_bytes;
    let from = base.cast_const().wrapping_add((u64::from(from) * bytes) as usize);
    let to = base.wrapping_add((u64::from(to) * bytes) as usize);
    let mut at = 16 * u64::from(thread_idx_x());
    while at < bytes {
        let place = |i: usize| at + 16 * u64::from(COPY_THREADS) * i as u64;
        let pieces: [X4<u32>; AT_ONCE] = core::array::from_fn(|i| {
            // SAFETY: 16 bytes of the page that is read, where they are in it.
            unsafe { ld_x4_if(place(i) < bytes, from.wrapping_add(place(i) as usize).cast()) }
        });
        let mut i = 0;
        while i < AT_ONCE {
            if place(i) < bytes {
                // SAFETY: 16 bytes of the page that is written, which belong to this thread.
                unsafe { st_x4(to.wrapping_add(place(i) as usize).cast(), pieces[i]) };
            }
            i += 1;
        }
        at = place(AT_ONCE);
    }
}
