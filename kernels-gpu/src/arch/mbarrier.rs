//! Barriers in shared memory that some threads arrive at and others wait for (`mbarrier`). From
//! sm_90.
//!
//! A barrier counts arrivals; when as many have come as [`init`] said, its phase ends and the next one
//! begins with the same count. Phases are told apart by their parity: the first one has 0. What a
//! thread did before it arrived is seen by those whose wait came back.

use core::arch::asm;

use super::shared::Shared;

/// A barrier: eight bytes, aligned to 8.
pub type Barrier = Shared<u64>;

/// Makes a barrier of `count` arrivals a phase; other threads use it after a block barrier.
/// `mbarrier.init.shared.b64`
///
/// # Safety
///
/// The eight bytes are the block's, and nobody uses them yet.
#[inline(always)]
pub unsafe fn init(barrier: Barrier, count: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "mbarrier.init.shared.b64 [{barrier}], {count};",
            barrier = in(reg32) barrier.addr(), count = in(reg32) count,
            options(nostack),
        );
    }
}

/// Makes plain memory of a barrier again. `mbarrier.inval.shared.b64`
///
/// # Safety
///
/// The barrier was made; nobody uses it any more.
#[inline(always)]
pub unsafe fn end(barrier: Barrier) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("mbarrier.inval.shared.b64 [{barrier}];", barrier = in(reg32) barrier.addr(), options(nostack));
    }
}

/// Arrives. `mbarrier.arrive.shared.b64`
///
/// # Safety
///
/// The barrier was made; this thread is one of those that its phase counts.
#[inline(always)]
pub unsafe fn arrive(barrier: Barrier) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [{barrier}]; }}",
            barrier = in(reg32) barrier.addr(),
            options(nostack),
        );
    }
}

/// Arrives once all copies that this thread has asked for so far are there.
/// `cp.async.mbarrier.arrive.noinc.shared.b64`
///
/// # Safety
///
/// As for [`arrive`].
#[inline(always)]
pub unsafe fn arrive_after_copies(barrier: Barrier) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.mbarrier.arrive.noinc.shared.b64 [{barrier}];",
            barrier = in(reg32) barrier.addr(),
            options(nostack),
        );
    }
}

/// Arrives, and lets the phase end only after copies of `bytes` bytes more have.
/// `mbarrier.arrive.expect_tx.shared.b64`
///
/// # Safety
///
/// As for [`arrive`]; those copies name this barrier.
#[inline(always)]
pub unsafe fn arrive_expecting(barrier: Barrier, bytes: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [{barrier}], {bytes}; }}",
            barrier = in(reg32) barrier.addr(), bytes = in(reg32) bytes,
            options(nostack),
        );
    }
}

/// Shows new barriers to the async proxy. `fence.mbarrier_init.release.cluster`
#[inline(always)]
pub fn show_new() {
    // SAFETY: orders memory accesses, makes none.
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) }
}

/// Copies `bytes` from global to shared memory beside this thread; the phase of `barrier` that was told to wait for them
/// ends when they are there.
/// `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes` (sm_90, PTX 8.0)
///
/// # Safety
///
/// `to` and `from` are aligned to 16, `bytes` is a multiple of 16, not 0; they are readable and nobody writes them meanwhile;
/// nobody uses the destination before the wait, and what was done with it before stands before a proxy fence and a barrier.
#[cfg(level_sm_90a)]
#[inline(always)]
pub unsafe fn copy_bulk<T, U>(to: Shared<T>, from: *const U, bytes: u32, barrier: Barrier) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
            to = in(reg32) to.addr(), from = in(reg64) from, bytes = in(reg32) bytes,
            barrier = in(reg32) barrier.addr(),
            options(nostack),
        );
    }
}

/// [`copy_bulk`] of what nobody reads again soon: the first to leave the second-level cache.
///
/// # Safety
///
/// As for [`copy_bulk`].
#[cfg(level_sm_90a)]
#[inline(always)]
pub unsafe fn copy_bulk_stream<T, U>(to: Shared<T>, from: *const U, bytes: u32, barrier: Barrier) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .b64 policy;",
            "createpolicy.fractional.L2::evict_first.b64 policy;",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [{to}], [{from}], {bytes}, [{barrier}], policy;",
            "}}",
            to = in(reg32) to.addr(), from = in(reg64) from, bytes = in(reg32) bytes,
            barrier = in(reg32) barrier.addr(),
            options(nostack),
        );
    }
}

/// Waits for the end of the phase of this parity: comes back at once when it has ended and the one
/// after it has not. `mbarrier.try_wait.parity.shared.b64`, again until it says so
///
/// # Safety
///
/// The barrier was made; its phase is that of `parity` or the one after it.
#[inline(always)]
#[allow(named_asm_labels)] // a label of PTX, local to its braces
pub unsafe fn wait(barrier: Barrier, parity: u32) {
    // SAFETY: the caller's promise. Without `nomem`, no access moves across it. The loop is inside,
    // so that nothing is copied into it.
    unsafe {
        asm!(
            "{{",
            ".reg .pred done;",
            "again: mbarrier.try_wait.parity.shared.b64 done, [{barrier}], {parity};",
            "@!done bra again;",
            "}}",
            barrier = in(reg32) barrier.addr(), parity = in(reg32) parity,
            options(nostack),
        );
    }
}
