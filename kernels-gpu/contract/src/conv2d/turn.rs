//! Images of 16-bit elements from planes to channels last, or back.
//!
//! The kernels for tensor cores want channels side by side. Images in planes are turned before one of them runs, and its
//! outputs after it. A block turns a square of rows and columns of an image, through shared memory.

use super::Divisor;
use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Rows and columns of a block's square.
pub const SIDE: u32 = 64;
/// Threads of a block.
pub const THREADS: u32 = 256;
/// Elements from one row of the square to the next in shared memory: an odd number of words, so that those of a column
/// are in banks of their own.
pub const PITCH: u32 = SIDE + 2;

/// The parameter of the kernel, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TurnArgs {
    /// `[image][row][column]`.
    pub from: DevPtr<u16>,
    /// `[image][column][row]`.
    pub to: DevPtr<u16>,
    /// Rows of an image.
    pub rows: u32,
    /// Columns of an image.
    pub columns: u32,
    /// By squares of a row of them, and by rows of squares.
    pub by_squares: [Divisor; 2],
}

impl TurnArgs {
    /// For images of so many rows and columns.
    pub const fn new(from: DevPtr<u16>, to: DevPtr<u16>, [rows, columns]: [u32; 2]) -> Self {
        let by_squares = [Divisor::new(columns.div_ceil(SIDE)), Divisor::new(rows.div_ceil(SIDE))];
        Self { from, to, rows, columns, by_squares }
    }

    /// Blocks for so many images: squares.
    pub const fn blocks(&self, images: u32) -> u64 {
        let squares = self.rows.div_ceil(SIDE) as u64 * self.columns.div_ceil(SIDE) as u64;
        squares.saturating_mul(images as u64)
    }
}

/// Turns images of 16-bit elements.
pub enum Conv2dTurn {}

impl Kernel for Conv2dTurn {
    type Args = TurnArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("conv2d_turn", THREADS)
        .with_smem(2 * SIDE * PITCH)
        .with_min_blocks(4)
        .with_min_sm(80);
}
