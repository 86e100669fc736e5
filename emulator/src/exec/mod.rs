//! Runs a kernel: its blocks, their warps, what they share.
//!
//! Blocks that can see each other (of a cluster, or all of a cooperative launch) take turns, on one thread; other
//! blocks run one after another, or on other threads. Everything that the hardware may do late is done as late as it
//! may be: copies of `cp.async` and products of `wgmma` when they are waited for; bulk copies and remote
//! stores when nothing else can run. So a wait that is missing gives wrong results, not right ones by
//! luck.
//! Accesses to shared memory that no barrier orders are faults (`race`).

mod access;
mod alu;
mod collective;
mod group;
mod late;
mod race;
mod step;
#[cfg(test)]
mod tests;
mod warp;

use crate::memory::Memory;
use crate::ptx::Kernel;

/// A launch whose numbers were checked.
pub(crate) struct Launch<'a> {
    /// What runs.
    pub(crate) kernel: &'a Kernel,
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of each.
    pub(crate) block: [u32; 3],
    /// Blocks of a cluster; at least one along each side.
    pub(crate) cluster: [u32; 3],
    /// All blocks at once.
    pub(crate) cooperative: bool,
    /// Bytes.
    pub(crate) dynamic_shared: u32,
    /// The parameters, laid out as the kernel declares them.
    pub(crate) params: &'a [u8],
}

/// Why a kernel was ended.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The driver's code.
    pub(crate) code: i32,
    /// What, where, by whom.
    pub(crate) message: String,
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
/// `CUDA_ERROR_LAUNCH_TIMEOUT`: it waits for what never comes.
pub(crate) const TIMEOUT: i32 = 702;
/// `CUDA_ERROR_MISALIGNED_ADDRESS`.
pub(crate) const MISALIGNED: i32 = 716;
/// `CUDA_ERROR_LAUNCH_FAILED`.
pub(crate) const FAILED: i32 = 719;

/// Runs `launch` to its end.
///
/// # Errors
/// An access outside of what is allocated, a trap, a barrier that never opens.
pub(crate) fn launch(launch: &Launch, memory: &Memory) -> Result<(), Fault> {
    let Some(floor) = trace() else { return group::run(launch, memory).map(drop) };
    if floor == 0 {
        eprintln!("emulating {} {:?}x{:?}", launch.kernel.name, launch.grid, launch.block);
    }
    let start = std::time::Instant::now();
    let ran = group::run(launch, memory)?;
    let millis = start.elapsed().as_millis();
    if millis >= floor {
        eprintln!(
            "emulated {} {:?}x{:?}: {ran} instructions, {millis} ms",
            launch.kernel.name, launch.grid, launch.block
        );
    }
    Ok(())
}

/// `BITNET_EMULATOR_TRACE=N`: launches of N ms and more are listed.
fn trace() -> Option<u128> {
    static FLOOR: std::sync::OnceLock<Option<u128>> = std::sync::OnceLock::new();
    *FLOOR.get_or_init(|| std::env::var("BITNET_EMULATOR_TRACE").ok()?.parse().ok())
}
