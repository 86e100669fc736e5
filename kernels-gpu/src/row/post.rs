//! What the blocks of a cluster tell each other about a row. From sm_90.
//!
//! From sm_90a words go with their signal, and who waits for them waits for nothing else. A barrier of the cluster, as before, first waits
//! until all stores of the block are seen everywhere.

use contract::num::PARTIALS;

#[cfg(not(level_sm_90a))]
use crate::arch::cluster::{arrive_cluster, sync_cluster, wait_cluster, write_to};
#[cfg(level_sm_90a)]
use crate::arch::cluster::{arrive_cluster_relaxed, send_to, wait_cluster};
#[cfg(level_sm_90a)]
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::shared::Shared;
#[cfg(level_sm_90a)]
use crate::arch::shared::dynamic_shared_mem;
#[cfg(level_sm_90a)]
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::Register;

/// What is told: the partials of two sums, and the maxima of warps.
pub(super) const MAXIMA: u32 = 2;

/// The barrier of what is told, behind the words.
#[cfg(level_sm_90a)]
fn barrier(what: u32) -> Barrier {
    dynamic_shared_mem::<u32>().add(2 * PARTIALS as u32 + 64 + 2 * what).cast()
}

/// Is there, and ready to be told partials and so many `maxima`.
///
/// *Convergence*: every thread of the cluster calls it, once, and [`meet`] later.
#[inline(always)]
pub(super) fn enter(maxima: u32) {
    #[cfg(level_sm_90a)]
    {
        if thread_idx_x() == 0 {
            let mut what = 0;
            while what < 3 {
                let words = if what == MAXIMA { maxima } else { PARTIALS as u32 };
                // SAFETY: eight bytes of the block's, which others know by `meet`.
                unsafe {
                    mbarrier::init(barrier(what), 1);
                    mbarrier::arrive_expecting(barrier(what), 4 * words);
                }
                what += 1;
            }
            mbarrier::show_new();
        }
        arrive_cluster_relaxed();
    }
    #[cfg(not(level_sm_90a))]
    {
        let _ = (maxima, PARTIALS);
        arrive_cluster();
    }
}

/// Waits until all blocks of the cluster are there.
///
/// *Convergence*: every thread of the cluster calls it, once.
#[inline(always)]
pub(super) fn meet() {
    wait_cluster();
}

/// Tells block `rank` a word, at the place of `here`.
///
/// # Safety
///
/// After [`meet`]; it expects the word, from this thread, and has [`heard`] of none of its kind.
#[inline(always)]
pub(super) unsafe fn tell<T: Register>(what: u32, rank: u32, here: Shared<T>, value: T) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(level_sm_90a)]
        send_to(rank, here, value, barrier(what));
        #[cfg(not(level_sm_90a))]
        {
            let _ = what;
            write_to(rank, here, value);
        }
    }
}

/// Waits until all blocks have told it.
///
/// *Convergence*: every thread of the cluster calls it, once for each `what`.
///
/// # Safety
///
/// After [`meet`].
#[inline(always)]
pub(super) unsafe fn heard(what: u32) {
    #[cfg(level_sm_90a)]
    // SAFETY: the barrier was made, and has one phase.
    unsafe {
        mbarrier::wait(barrier(what), 0);
    }
    #[cfg(not(level_sm_90a))]
    {
        let _ = what;
        sync_cluster();
    }
}
