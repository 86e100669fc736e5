//! Rotary position embedding, half-split pairs, in place.
//!
//! | tensor       | element | shape                   | layout                            |
//! |--------------|---------|-------------------------|-----------------------------------|
//! | `x`          | `f32`   | `[M, heads, head_dim]`  | rows of `row_stride` elements     |
//! | `cos`, `sin` | `f32`   | `[positions, head_dim/2]` | made on the host in f64         |
//! | `start`      | `u32`   | `[1]`                   | position of row 0                 |
//!
//! With `h = head_dim / 2`, `d < h`, and `c`, `s` taken at position `start + m`:
//!
//! ```text
//! x'[d]     = fma(x[d],     c, -(x[d + h] * s))
//! x'[d + h] = fma(x[d + h], c,   x[d]     * s)
//! ```
//! `head_dim` is even. One thread per pair.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;

/// Threads of a block; grid is `(M, pairs / THREADS)`.
pub const THREADS: u32 = 128;

/// Rotates one pair.
#[inline(always)]
pub fn rotate(lo: f32, hi: f32, cos: f32, sin: f32) -> (f32, f32) {
    (num::fma(lo, cos, -(hi * sin)), num::fma(hi, cos, lo * sin))
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// First head of row 0.
    pub x: DevPtr<f32>,
    /// Cosines.
    pub cos: DevPtr<f32>,
    /// Sines.
    pub sin: DevPtr<f32>,
    /// Position of row 0.
    pub start: DevPtr<u32>,
    /// Rows.
    pub m: u32,
    /// Heads to rotate.
    pub heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Elements between two rows of `x`.
    pub row_stride: u32,
    /// Rows of the tables; rows of `x` at or past this position stay as they are.
    pub positions: u32,
}

/// Names this kernel in `KernelHandle<Rope>`.
pub enum Rope {}

impl Kernel for Rope {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("rope", THREADS);
}
