//! The device prelude: everything the kernels need from PTX that Rust does not spell.
//!
//! This folder holds the only `asm!` of the program, one file per facility, named after
//! `cuda_std`. Each function gives its PTX line, the lowest `sm` it needs (53 unless said) and
//! what the caller must ensure.
//!
//! Two rules decide how an instruction is written here:
//!
//! * An instruction that several threads execute together (barrier, shuffle, vote, `redux`,
//!   `mma`) is an LLVM intrinsic. LLVM knows those as `convergent` and neither copies them nor
//!   moves them under a branch; it does not know that of `asm!`.
//! * An instruction of one thread (`dp4a`, a load with a cache hint, a conversion) is `asm!`, with
//!   `pure` and `nomem`/`readonly` where that is true, so that it can be moved and merged.
//!
//! Convergent functions are safe to name, as in `cuda_std`, and say under *Convergence* which
//! threads must arrive together. The PTX audit counts them against the source.

#[cfg(level_sm_80)]
pub mod async_copy;
pub mod atomic;
pub mod bitmap;
pub mod block;
#[cfg(level_sm_90)]
pub mod cluster;
pub mod dot;
pub mod fence;
pub mod float;
pub mod grid;
pub mod half;
pub mod hint;
#[cfg(level_sm_90)]
pub mod mbarrier;
pub mod mem;
#[cfg(level_sm_80)]
mod stream;
pub mod mem_if;
pub mod mem_or;
#[cfg(level_sm_80)]
pub mod mma;
pub mod shared;
#[cfg(level_sm_90)]
pub mod tensor;
pub mod thread;
pub mod warp;
#[cfg(level_sm_90a)]
pub mod wgmma;
