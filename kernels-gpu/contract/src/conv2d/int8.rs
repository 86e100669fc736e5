//! Integer and ternary weights on int8 activations.
//!
//! | tensor     | element | shape                            | layout                                  |
//! |------------|---------|----------------------------------|-----------------------------------------|
//! | `x`        | `i8`    | `[N, H, W, C]` or `[N, C, H, W]` | contiguous                              |
//! | `w`, int8  | `i8`    | `[K, row]`                       | packed, see [`PackedRows`]              |
//! | `w`, ternary | 2 bits | `[K, row]`                      | packed, as codes in [`crate::w2a8::code_place`] |
//! | `scales`   | `f32`   | `[N]`                            | one quantisation multiplier an image    |
//! | `bias`     | `f32`   | `[K]`                            | or absent                               |
//! | `residual` | as `y`  | as `y`                           | or absent                               |
//! | `y`        | `i32` (int8 weights); `f32`, `f16` or `bf16` (ternary) | as the float one | contiguous |
//!
//! ```text
//! acc[n, p, q, k] = sum over (r, s, c) of x * w                  exact in i32, in any order
//! y (int8)        = acc
//! y (ternary)     = act((((f32(acc) / scales[n]) * g[segment of k]) + bias[k]) + residual)     rounded once to its type
//! ```
//!
//! The ternary numbers are those of the W2A8 linear layer ([`crate::w2a8`]): the scales of the weights are
//! by segments of output channels, and the division comes first. A weight is two bits, in two's
//! complement: moved to the top of their byte they are 64 times the weight, by one shift and one mask.
//! Padding outside of the image is the integer 0 (or a pixel, by [`super::PadMode`]).

use super::{Activation, Geometry, Tile};
use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num::RowType;
use crate::w2a8::Segments;

/// Channels of a tap are padded to a multiple of this: 16 bytes of activations.
pub const CHANNELS: usize = 16;
/// Most terms of an int8 sum (padding not counted): `i32` holds them at any values.
pub const MAX_TERMS_I8: usize = (1 << 17) - 1;
/// Words behind packed ternary rows, of any value: a step of 128 terms may end half of it past the last row, where its activations
/// are zeros.
pub const PAST_WORDS: usize = 4;
/// Most terms of a ternary sum.
pub const MAX_TERMS_TERNARY: usize = 1 << 24;

/// Shape of packed rows: for each tap (r, s) in order, the channels of the group padded with zeros to
/// a multiple of [`CHANNELS`]; the row is padded to a multiple of 64 terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRows {
    /// Channels of a tap with padding.
    pub tap: usize,
    /// Terms of a row, with padding.
    pub terms: usize,
}

impl PackedRows {
    /// For windows of `taps` taps and `c` channels of a group.
    pub const fn new(taps: usize, c: usize) -> Self {
        let tap = c.next_multiple_of(CHANNELS);
        Self { tap, terms: (tap * taps).next_multiple_of(64) }
    }

    /// 32-bit words of a row of int8 weights.
    pub const fn words_i8(&self) -> usize {
        self.terms / 4
    }

    /// 32-bit words of a row of ternary weights.
    pub const fn words_ternary(&self) -> usize {
        self.terms / 16
    }

    /// Where channel `c` of tap `tap` stands in a row.
    pub const fn index(&self, tap: usize, c: usize) -> usize {
        tap * self.tap + c
    }
}

/// The top two bits of each byte.
pub const TOP_BITS: u32 = 0xc0c0_c0c0;

/// Four ternaries as bytes, from the low two bits of each byte of `pairs`.
#[inline(always)]
pub const fn ternary_bytes(pairs: u32) -> u32 {
    // The upper bit, 126 times, fills the six above it.
    (pairs & 0x0303_0303) + (pairs & 0x0202_0202) * 126
}

/// The same, 64 times, of the terms of a lane `16 * part` further on (`part` below 4) in its word.
#[inline(always)]
pub const fn ternary_bytes_64(word: u32, part: u32, mask: u32) -> u32 {
    (word << (6 - 2 * part)) & mask
}

/// The only parameter of every kernel here, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Images.
    pub x: DevPtr<u8>,
    /// Packed weights; [`PAST_WORDS`] behind ternary ones.
    pub w: DevPtr<u32>,
    /// Quantisation multipliers of the images (ternary).
    pub scales: DevPtr<f32>,
    /// One number for each output channel, or null (ternary).
    pub bias: DevPtr<f32>,
    /// Added before the activation, in the layout and type of `y`; or null (ternary).
    pub residual: DevPtr<u8>,
    /// Output: `i32`, or of type `element`.
    pub y: DevPtr<u8>,
    /// Shapes; `terms` counts the padding of taps, and `by_c` divides by a padded tap.
    pub geometry: Geometry,
    /// Words of a row of `w`.
    pub row_words: u32,
    /// Last step (ternary).
    pub activation: Activation,
    /// Whether 16 channels of a group stand side by side in `x`, aligned, and padding is zeros.
    pub vectors: u32,
    /// Type of `y` and of the residual (ternary).
    pub element: RowType,
    /// Tiles of output channels of a group.
    pub column_tiles: u32,
    /// Tiles of output pixels.
    pub pixel_tiles: u32,
    /// Scales of the weights by output channel (ternary).
    pub segments: Segments,
}

/// Terms of a step of the kernels without tensor cores.
pub const DOT_STEP: u32 = 64;
/// Words from one word of terms to the next in a step of those.
pub const DOT_PITCH: u32 = 64 + 4;
/// Terms of a step of the tensor-core kernels: a row of 128 bytes.
pub const MMA_STEP: u32 = 128;
/// Steps in the shared memory of those.
pub const MMA_STAGES: u32 = 3;

const SMALL: Tile = Tile { pixels: 64, channels: 64 };

const fn larger(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

const fn dot(symbol: &'static str) -> LaunchSpec {
    let steps = 2 * (DOT_STEP / 4) * DOT_PITCH * 4 * 2;
    LaunchSpec::new(symbol, 256).with_smem(larger(steps, 64 * (64 + 4) * 4)).with_min_blocks(2)
}

const fn mma(symbol: &'static str) -> LaunchSpec {
    let (steps, staging) = (MMA_STAGES * MMA_STEP * (64 + 64), 64 * (64 + 4) * 4);
    LaunchSpec::new(symbol, 128).with_smem(larger(steps, staging)).with_min_blocks(3).with_min_sm(80)
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $tile:ident $spec:expr;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl $name {
            /// What a block computes.
            pub const TILE: Tile = $tile;
        }

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = $spec;
        }
    )* };
}

kernels! {
    /// int8 weights, dp4a.
    Conv2dI8 SMALL dot("conv2d_i8");
    /// Ternary weights, dp4a.
    Conv2dTernary SMALL dot("conv2d_ternary");
    /// int8 weights, tensor cores.
    Conv2dI8Mma SMALL mma("conv2d_i8_mma");
    /// Ternary weights, tensor cores.
    Conv2dTernaryMma SMALL mma("conv2d_ternary_mma");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_bits_become_bytes() {
        for weights in [[0i8, 1, -1, 1], [-1, -1, 0, 0], [1, 0, 1, -1]] {
            let pairs = u32::from_le_bytes(weights.map(|t| t as u8 & 3));
            assert_eq!(ternary_bytes(pairs).to_le_bytes().map(|b| b as i8), weights);
            let top = ternary_bytes_64(pairs, 0, TOP_BITS).to_le_bytes();
            assert_eq!(top.map(|b| b as i8), weights.map(|t| 64 * t));
            assert_eq!(ternary_bytes_64(pairs << 4, 2, TOP_BITS).to_le_bytes(), top);
        }
        assert_eq!(ternary_bytes(0xfcfc_fcfc), 0, "other bits play no part");
    }

    #[test]
    fn rows_are_whole_pieces() {
        for (taps, c) in [(1, 1), (9, 3), (9, 16), (49, 3), (6, 17), (1, 64)] {
            let rows = PackedRows::new(taps, c);
            assert!(rows.terms.is_multiple_of(64) && rows.tap.is_multiple_of(CHANNELS));
            assert!(rows.index(taps - 1, c - 1) < rows.terms);
        }
    }
}
