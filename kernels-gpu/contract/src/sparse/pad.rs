//! Inputs whose rows do not start at multiples of sixteen bytes, in rows that do.

use super::THREADS;
use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Columns of a row that tensor-core kernels read at a time.
pub const PIECE: u32 = 8;

/// The parameter of the kernel that copies 16-bit rows `[m, k]` to rows of [`PadArgs::pitch`] columns, +0 behind the last one,
/// passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PadArgs {
    /// Rows `[m, k]`.
    pub x: DevPtr<u16>,
    /// Rows `[m, pitch]`.
    pub padded: DevPtr<u16>,
    /// Columns.
    pub k: u32,
    /// Rows.
    pub m: u32,
}

impl PadArgs {
    /// Columns of a padded row: whole pieces.
    pub const fn pitch(k: u32) -> u32 {
        k.next_multiple_of(PIECE)
    }

    /// Blocks: a thread for each piece of a row; a block walks further rows in steps of the grid's height.
    pub const fn grid(&self) -> [u32; 3] {
        let across = self.k.div_ceil(PIECE * THREADS);
        [across, if self.m < 65_535 { self.m } else { 65_535 }, 1]
    }
}

/// Rows in whole pieces, for the tensor-core kernels behind it.
pub enum SparsePad {}

impl Kernel for SparsePad {
    type Args = PadArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("sparse_pad", THREADS).with_min_sm(80);
}
