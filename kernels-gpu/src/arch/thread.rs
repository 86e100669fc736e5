//! Where a thread stands in its block and its block in the grid, and the block barrier.
//!
//! Every kernel of this crate is launched with a block of one row (`block[1] == block[2] == 1`);
//! grids use all three axes.

use core::arch::nvptx;

/// Index of the thread in its block. `mov.u32 %tid.x`
#[inline(always)]
pub fn thread_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_x() as u32 }
}

/// Threads of a block. `mov.u32 %ntid.x`
#[inline(always)]
pub fn block_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_dim_x() as u32 }
}

/// Index of the block on the first axis of the grid. `mov.u32 %ctaid.x`
#[inline(always)]
pub fn block_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_x() as u32 }
}

/// Index of the block on the second axis of the grid. `mov.u32 %ctaid.y`
#[inline(always)]
pub fn block_idx_y() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_y() as u32 }
}

/// Index of the block on the third axis of the grid. `mov.u32 %ctaid.z`
#[inline(always)]
pub fn block_idx_z() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_z() as u32 }
}

/// Blocks on the first axis of the grid. `mov.u32 %nctaid.x`
#[inline(always)]
pub fn grid_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_x() as u32 }
}

/// [`grid_dim_x`], read where this is called.
#[inline(always)]
pub fn opaque_grid_dim_x() -> u32 {
    let blocks: u32;
    // SAFETY: reads a special register. Not `pure`, so that it is not one with another.
    unsafe {
        core::arch::asm!("mov.u32 {}, %nctaid.x;", out(reg32) blocks, options(nomem, nostack))
    };
    blocks
}

/// Blocks on the second axis of the grid. `mov.u32 %nctaid.y`
#[inline(always)]
pub fn grid_dim_y() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_y() as u32 }
}

/// Blocks on the third axis of the grid. `mov.u32 %nctaid.z`
#[inline(always)]
pub fn grid_dim_z() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_z() as u32 }
}

/// Waits for all threads of the block; what they wrote to shared and global memory before is
/// then visible to all of them. `bar.sync 0`
///
/// *Convergence*: every thread of the block calls it, from the same place.
#[inline(always)]
pub fn sync_threads() {
    // SAFETY: a barrier touches no memory of its own; see the convergence rule above.
    unsafe { nvptx::_syncthreads() }
}

/// The same number, about which the compiler knows nothing: a loop that steps by way of this is not
/// unrolled any further. No instruction remains of it.
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let same: u32;
    // SAFETY: a move between registers. Not `pure`, so that nothing is concluded from it.
    unsafe {
        core::arch::asm!(
            "mov.u32 {same}, {value};",
            same = out(reg32) same, value = in(reg32) value,
            options(nomem, nostack),
        );
    }
    same
}

/// [`opaque`] of 64 bits.
#[inline(always)]
pub fn opaque_u64(value: u64) -> u64 {
    let same: u64;
    // SAFETY: as in `opaque`.
    unsafe {
        core::arch::asm!(
            "mov.u64 {same}, {value};",
            same = out(reg64) same, value = in(reg64) value,
            options(nomem, nostack),
        );
    }
    same
}

/// Waits for `threads` threads of the block, whole warps, at barrier `id` (1 to 15), as
/// [`sync_threads`] does for all. `barrier.sync id, threads`
///
/// *Convergence*: those threads call it, those of a warp from the same place. Who comes to `id` with another
/// number of `threads`, while some still wait there, ends the launch with an illegal instruction.
#[inline(always)]
pub fn sync_some(id: u32, threads: u32) {
    // SAFETY: as for `sync_threads`.
    unsafe { sync_count(id, threads) }
}

/// Counts this warp at barrier `id` of [`sync_some`] without waiting. `barrier.arrive id, threads`
///
/// *Convergence*: as for [`sync_some`].
#[cfg(level_sm_90a)]
#[inline(always)]
pub fn arrive_some(id: u32, threads: u32) {
    // SAFETY: as for `sync_threads`.
    unsafe { arrive_count(id, threads) }
}

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn sync_count(id: u32, threads: u32);
    #[cfg(level_sm_90a)]
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    fn arrive_count(id: u32, threads: u32);
}
