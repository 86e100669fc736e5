//! The copy engine of a Hopper GPU: boxes of a tensor to shared memory, by maps that the driver made. From
//! sm_90.
//!
//! A copy ends a phase of an [`super::mbarrier`] together with an arrival that said how many bytes to
//! expect. What it writes is seen by the async proxy without a fence.

use core::arch::asm;

use super::mbarrier::Barrier;
use super::shared::Shared;

/// The generic address of a kernel's parameter, given its symbol: only in the entry itself, in `unsafe` code.
/// `mov.u64 p, SYMBOL_param_0; cvta.param.u64 p, p`
#[cfg(level_sm_90a)]
macro_rules! parameter_address {
    ($symbol:ident) => {{
        let address: u64;
        core::arch::asm!(
            concat!("mov.u64 {p}, ", stringify!($symbol), "_param_0; cvta.param.u64 {p}, {p};"),
            p = out(reg64) address,
            options(pure, nomem, nostack),
        );
        address
    }};
}
#[cfg(level_sm_90a)]
pub(crate) use parameter_address;

/// Starts the copy of a tile: the box of the map at these coordinates, innermost first; zeros outside of
/// the tensor. `cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes`
///
/// # Safety
///
/// `map` is the address of a map of a tensor of four dimensions; `to` starts a box of shared memory, swizzled
/// as the map says, that nobody accesses until the phase of `barrier` ends.
#[inline(always)]
pub unsafe fn copy_tile(to: Shared<u8>, map: u64, at: [u32; 4], barrier: Barrier) {
    let [a, b, c, d] = at;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
             [{to}], [{map}, {{{a}, {b}, {c}, {d}}}], [{barrier}];",
            to = in(reg32) to.addr(), map = in(reg64) map, barrier = in(reg32) barrier.addr(),
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack),
        );
    }
}

/// [`copy_tile`] of what nobody reads again soon: the first to leave the second-level cache.
///
/// # Safety
///
/// As for [`copy_tile`].
#[cfg(level_sm_90a)]
#[inline(always)]
pub unsafe fn copy_tile_stream(to: Shared<u8>, map: u64, at: [u32; 4], barrier: Barrier) {
    let [a, b, c, d] = at;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .b64 policy;",
            "createpolicy.fractional.L2::evict_first.b64 policy;",
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint \
             [{to}], [{map}, {{{a}, {b}, {c}, {d}}}], [{barrier}], policy;",
            "}}",
            to = in(reg32) to.addr(), map = in(reg64) map, barrier = in(reg32) barrier.addr(),
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack),
        );
    }
}

/// Asks for a map, which the first copy by it would wait for. `prefetch.tensormap`
///
/// # Safety
///
/// `map` is the address of a map.
#[cfg(level_sm_90a)]
#[inline(always)]
pub unsafe fn prefetch_map(map: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("prefetch.tensormap [{map}];", map = in(reg64) map, options(nostack)) }
}

/// Starts the copy of pixels that follow one another in the map's bounding box, from these coordinates on
/// (channel, column, row, image), each `further` columns and rows on; zeros outside of the image.
/// `cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes`
///
/// # Safety
///
/// As for [`copy_tile`], with a map of pixels.
#[inline(always)]
pub unsafe fn copy_pixels(
    to: Shared<u8>,
    map: u64,
    at: [u32; 4],
    further: [u16; 2],
    barrier: Barrier,
) {
    let ([a, b, c, d], [s, r]) = (at, further);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes \
             [{to}], [{map}, {{{a}, {b}, {c}, {d}}}], [{barrier}], {{{s}, {r}}};",
            to = in(reg32) to.addr(), map = in(reg64) map, barrier = in(reg32) barrier.addr(),
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            s = in(reg16) s, r = in(reg16) r,
            options(nostack),
        );
    }
}

/// Starts the copy of a box from shared memory to the tensor, at these coordinates, innermost first; what is outside of
/// the tensor is not written. [`commit_stores`] closes a group of such copies of this thread.
/// `cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group`
///
/// # Safety
///
/// `map` is the address of a map of a tensor of four dimensions, whose box nobody else writes meanwhile; `from` starts a
/// box of shared memory, swizzled as the map says, that was shown to the async proxy and that nobody writes until
/// [`wait_stores_read`] has come back.
#[cfg(level_sm_90a)]
#[inline(always)]
pub unsafe fn store_tile(from: Shared<u8>, map: u64, at: [u32; 4]) {
    let [a, b, c, d] = at;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group \
             [{map}, {{{a}, {b}, {c}, {d}}}], [{from}];",
            from = in(reg32) from.addr(), map = in(reg64) map,
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack),
        );
    }
}

/// Closes the group of this thread's [`store_tile`]s so far. `cp.async.bulk.commit_group`
#[cfg(level_sm_90a)]
#[inline(always)]
pub fn commit_stores() {
    // SAFETY: counts copies.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack)) }
}

/// Waits until the copies of this thread's groups have read their shared memory. `cp.async.bulk.wait_group.read 0`
#[cfg(level_sm_90a)]
#[inline(always)]
pub fn wait_stores_read() {
    // SAFETY: only waits.
    unsafe { asm!("cp.async.bulk.wait_group.read 0;", options(nostack)) }
}
