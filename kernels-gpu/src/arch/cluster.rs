//! The blocks of a cluster: their barrier, and each other's shared memory. From sm_90.
//!
//! A kernel runs in clusters when its `LaunchSpec` says so. A block may read the shared memory of
//! another one between a barrier after that one wrote it and a barrier before that one ends.

use core::arch::asm;

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

/// The same, without showing what was written before: no fence, which would wait for all of the thread's accesses.
/// `barrier.cluster.arrive.relaxed.aligned`
///
/// *Convergence*: every thread of the cluster calls it, from the same place.
#[inline(always)]
pub fn arrive_cluster_relaxed() {
    // SAFETY: as in `sync_cluster`.
    unsafe { arrive_relaxed() };
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
