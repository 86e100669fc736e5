//! Orders this thread's memory accesses for other blocks and for the host.

use core::arch::asm;

/// Writes before it are seen by every thread of the device before writes after it.
/// `fence.acq_rel.gpu` (sm_70; `membar.gl` below)
#[inline(always)]
pub fn device_fence() {
    // SAFETY: orders memory accesses, makes none.
    unsafe {
        #[cfg(level_sm_70)]
        asm!("fence.acq_rel.gpu;", options(nostack));
        #[cfg(not(level_sm_70))]
        asm!("membar.gl;", options(nostack));
    }
}

/// The same for threads of the host, which read memory that is mapped into the device. `fence.acq_rel.sys` (sm_70; `membar.sys` below)
#[inline(always)]
pub fn system_fence() {
    // SAFETY: orders memory accesses, makes none.
    unsafe {
        #[cfg(level_sm_70)]
        asm!("fence.acq_rel.sys;", options(nostack));
        #[cfg(not(level_sm_70))]
        asm!("membar.sys;", options(nostack));
    }
}
