//! Pieces that kernels over tiles share: products of slices in shared memory, and how a grid walks
//! over the tiles of a matrix.

pub mod simt;
#[cfg(level_sm_90a)]
pub mod hopper;
pub mod walk;
