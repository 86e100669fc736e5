//! Programmatic dependent launch: a kernel may start while the one before it still runs.
//!
//! Such a kernel may touch what its predecessor writes, or reads, only after
//! [`dependency_wait`]. Both functions are nothing below sm_90 and in a launch without the
//! attribute, where the whole kernel runs after its predecessor anyway.
//!
//! Every kernel of this crate calls both, in every thread. A kernel that left out the wait could
//! end before the one in front of it has, and would let the one behind it start too early.

/// Lets the next kernel of the stream start once every block of this one has called it or ended.
/// `griddepcontrol.launch_dependents` (sm_90)
#[inline(always)]
pub fn launch_dependents() {
    #[cfg(level_sm_90)]
    // SAFETY: a scheduling hint; the dependent still waits for this grid's memory.
    unsafe {
        core::arch::asm!("griddepcontrol.launch_dependents;", options(nostack));
    }
}

/// Waits until the kernels before this one have ended and their writes are visible.
/// `griddepcontrol.wait` (sm_90)
#[inline(always)]
pub fn dependency_wait() {
    #[cfg(level_sm_90)]
    // SAFETY: only waits. Without `nomem`, no access moves across it.
    unsafe {
        core::arch::asm!("griddepcontrol.wait;", options(nostack));
    }
}
