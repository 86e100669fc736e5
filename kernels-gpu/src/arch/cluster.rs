//! The blocks of a cluster: their barrier, and each other's shared memory. From sm_90.
//!
//! A kernel runs in clusters when its `LaunchSpec` says so. A block may read the shared memory of
//! another one between a barrier after that one wrote it and a barrier before that one ends.

use core::arch::asm;

#[cfg(level_sm_90a)]
use super::mbarrier::Barrier;
use super::shared::Shared;
use super::warp::Register;

macro_rules! special {
    ($($(#[$doc:meta])* $name:ident $register:literal;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            let value: u32;
            // SAFETY: reads a special register.
            unsafe {
                asm!(
                    concat!("mov.u32 {value}, %", $register, ";"),
                    value = out(reg32) value,
                    options(pure, nomem, nostack),
                );
            }
            value
        }
    )* };
}

special! {
    /// Number of the cluster along x; of the block where blocks are alone. `%clusterid.x`
    cluster_idx_x "clusterid.x";
    /// Clusters along x; blocks where these are alone. `%nclusterid.x`
    cluster_dim_x "nclusterid.x";
    /// Number of the block in its cluster. `%cluster_ctarank`
    cluster_rank "cluster_ctarank";
}

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.aligned"]
    fn arrive();
    #[cfg(level_sm_90a)]
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned"]
    fn arrive_relaxed();
    #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
    fn wait();
}

/// Says that this thread is there; [`wait_cluster`] waits for all of the cluster. `barrier.cluster.arrive.aligned`
///
/// *Convergence*: every thread of the cluster calls it, from the same place.
#[inline(always)]
pub fn arrive_cluster() {
    // SAFETY: as in `sync_cluster`.
    unsafe { arrive() };
}

/// [`arrive_cluster`] that shows nothing that was written before, but for [`super::mbarrier::show_new`]'s barriers: no fence, which would
/// wait for all of the thread's accesses. Below sm_90a, whose PTX version has it, the same as [`arrive_cluster`].
/// `barrier.cluster.arrive.relaxed.aligned` (PTX 8.0)
///
/// *Convergence*: every thread of the cluster calls it, from the same place.
#[inline(always)]
pub fn arrive_cluster_relaxed() {
    // SAFETY: as in `sync_cluster`.
    unsafe {
        #[cfg(level_sm_90a)]
        arrive_relaxed();
        #[cfg(not(level_sm_90a))]
        arrive();
    }
}

/// The second half of a barrier. `barrier.cluster.wait.aligned`
///
/// *Convergence*: every thread of the cluster calls it, from the same place.
#[inline(always)]
pub fn wait_cluster() {
    // SAFETY: as in `sync_cluster`.
    unsafe { wait() };
}

/// Waits for all threads of the cluster; what they wrote to shared and global memory before is then
/// visible to all of them. `barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned`
///
/// *Convergence*: every thread of the cluster calls it, from the same place.
#[inline(always)]
pub fn sync_cluster() {
    // SAFETY: a barrier touches no memory of its own; see the convergence rule.
    unsafe {
        arrive();
        wait();
    }
}

/// Waits for all threads of the cluster, whose writes it does not show: for a block that ends when nobody
/// reads its shared memory any more. The writes of the thread are not waited for, as they are by [`sync_cluster`].
/// `barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned`
///
/// *Convergence*: every thread of the cluster calls it, from the same place.
#[inline(always)]
pub fn leave_cluster() {
    arrive_cluster_relaxed();
    wait_cluster();
}

/// Four neighbours at the place of `here` in the shared memory of block `rank` of the cluster.
/// `mapa.shared::cluster.u32; ld.shared::cluster.v4.b32`
///
/// # Safety
///
/// As for [`Shared::read_x4`] in that block, which is in the cluster and stays until a barrier after
/// this.
#[inline(always)]
pub unsafe fn read_x4_of<T: Register>(rank: u32, here: Shared<T>) -> [T; 4] {
    let (a, b, c, d): (i32, i32, i32, i32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .b32 there;",
            "mapa.shared::cluster.u32 there, {here}, {rank};",
            "ld.shared::cluster.v4.b32 {{{a}, {b}, {c}, {d}}}, [there];",
            "}}",
            a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
            here = in(reg32) here.addr(), rank = in(reg32) rank,
            options(pure, readonly, nostack),
        );
    }
    [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
}

/// The word at the place of `here` in the shared memory of block `rank` of the cluster.
/// `mapa.shared::cluster.u32; ld.shared::cluster.b32`
///
/// # Safety
///
/// As for [`read_x4_of`].
#[inline(always)]
pub unsafe fn read_of<T: Register>(rank: u32, here: Shared<T>) -> T {
    let word: i32;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .b32 there;",
            "mapa.shared::cluster.u32 there, {here}, {rank};",
            "ld.shared::cluster.b32 {word}, [there];",
            "}}",
            word = out(reg32) word, here = in(reg32) here.addr(), rank = in(reg32) rank,
            options(readonly, nostack),
        );
    }
    T::from_word(word)
}

/// Writes `value` at the place of `here` in the shared memory of block `rank` of the cluster.
/// `mapa.shared::cluster.u32; st.shared::cluster.b32`
///
/// # Safety
///
/// As for [`Shared::write`] in that block, which is in the cluster, has started, and stays until a barrier after this.
#[inline(always)]
pub unsafe fn write_to<T: Register>(rank: u32, here: Shared<T>, value: T) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .b32 there;",
            "mapa.shared::cluster.u32 there, {here}, {rank};",
            "st.shared::cluster.b32 [there], {value};",
            "}}",
            here = in(reg32) here.addr(), rank = in(reg32) rank, value = in(reg32) value.to_word(),
            options(nostack),
        );
    }
}

/// [`write_to`] that tells the place of `barrier` in that block when the four bytes are there: no fence, no barrier of the cluster.
/// `mapa.shared::cluster.u32; st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32` (PTX 8.1)
///
/// # Safety
///
/// As for [`write_to`]; that block has made the barrier, as this one knows by a barrier of the cluster, expects the bytes in its present phase, and
/// stays until they are there. Nobody reads them before the phase has ended.
#[cfg(level_sm_90a)]
#[inline(always)]
pub unsafe fn send_to<T: Register>(rank: u32, here: Shared<T>, value: T, barrier: Barrier) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .b32 there, bar;",
            "mapa.shared::cluster.u32 there, {here}, {rank};",
            "mapa.shared::cluster.u32 bar, {barrier}, {rank};",
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], {value}, [bar];",
            "}}",
            here = in(reg32) here.addr(), rank = in(reg32) rank, value = in(reg32) value.to_word(),
            barrier = in(reg32) barrier.addr(),
            options(nostack),
        );
    }
}
