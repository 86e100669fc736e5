//! Integer and ternary weights on int8 activations.
//!
//! | tensor     | element | shape                            | layout                                  |
//! |------------|---------|----------------------------------|-----------------------------------------|
//! | `x`        | `i8`    | `[N, H, W, C]` or `[N, C, H, W]` | contiguous                              |
//! | `w`, int8  | `i8`    | `[K, row]`                       | packed, see [`PackedRows`]              |
//! | `w`, ternary | 2 bits | `[K, row]`                      | packed, 16 codes a word                 |
//! | `scales`   | `f32`   | `[N]`                            | one quantisation multiplier an image    |
//! | `bias`     | `f32`   | `[K]`                            | or absent                               |
//! | `residual` | `f32`   | as `y`                           | or absent                               |
//! | `y`        | `i32` (int8 weights), `f32` (ternary) | as the float one  | contiguous             |
//!
//! ```text
//! acc[n, p, q, k] = sum over (r, s, c) of x * w                  exact in i32, in any order
//! y (int8)        = acc
//! y (ternary)     = act((((f32(acc) / scales[n]) * g[segment of k]) + bias[k]) + residual)
//! ```
//!
//! The ternary numbers are those of the W2A8 linear layer ([`crate::w2a8`]): codes are `t + 1`, the
//! scales of the weights are by segments of output channels, and the division comes first. Padding
//! outside of the image is the integer 0 (or a pixel, by [`super::PadMode`]).

use super::{Activation, Geometry, Tile};
use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::Segments;

/// Channels of a tap are padded to a multiple of this: 16 bytes of activations.
pub const CHANNELS: usize = 16;
/// Most terms of an int8 sum (padding not counted): `i32` holds them at any values.
pub const MAX_TERMS_I8: usize = (1 << 17) - 1;
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

/// Four ternaries as bytes, from the codes in the low two bits of each byte of `codes`.
#[inline(always)]
pub const fn ternary_bytes(codes: u32) -> u32 {
    // 0x80 + code - 1 never borrows from its neighbour.
    (((codes & 0x0303_0303) | 0x8080_8080) - 0x0101_0101) ^ 0x8080_8080
}

/// The only parameter of every kernel here, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Images.
    pub x: DevPtr<u8>,
    /// Packed weights.
    pub w: DevPtr<u32>,
    /// Quantisation multipliers of the images (ternary).
    pub scales: DevPtr<f32>,
    /// One number for each output channel, or null (ternary).
    pub bias: DevPtr<f32>,
    /// Added before the activation, in the layout of `y`; or null (ternary).
    pub residual: DevPtr<f32>,
    /// Output: `i32` or `f32`.
    pub y: DevPtr<u32>,
    /// Shapes; `terms` counts the padding of taps, and `by_c` divides by a padded tap.
    pub geometry: Geometry,
    /// Words of a row of `w`.
    pub row_words: u32,
    /// Last step (ternary).
    pub activation: Activation,
    /// Whether 16 channels of a group stand side by side in `x`, aligned, and padding is zeros.
    pub vectors: u32,
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

/// Steps in the shared memory of the Hopper kernels.
pub const HOPPER_STAGES: u32 = 5;

const WIDE: Tile = Tile { pixels: 128, channels: 128 };
const NARROW: Tile = Tile { pixels: 128, channels: 64 };

const fn hopper(symbol: &'static str, tile: Tile) -> LaunchSpec {
    // The codes of a step stand behind it; the steps start at a multiple of 1,024.
    let step = MMA_STEP * (tile.pixels + tile.channels) + MMA_STEP / 4 * tile.channels;
    LaunchSpec::new(symbol, 256)
        .with_smem(HOPPER_STAGES * step + 1024)
        .with_min_blocks(1)
        .only_on(90)
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
    /// Ternary weights, a Hopper GPU's tensor cores.
    Conv2dTernaryHopper WIDE hopper("conv2d_ternary_hopper", WIDE);
    /// Ternary weights, a Hopper GPU's tensor cores, fewer channels.
    Conv2dTernaryHopperNarrow NARROW hopper("conv2d_ternary_hopper_narrow", NARROW);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_bytes() {
        for codes in [[0u8, 1, 2, 1], [2, 2, 0, 0], [1, 0, 1, 2]] {
            let bytes = ternary_bytes(u32::from_le_bytes(codes)).to_le_bytes();
            assert_eq!(bytes.map(|b| b as i8), codes.map(|c| c as i8 - 1));
        }
        assert_eq!(ternary_bytes(0xfdfd_fdfd), 0, "other bits play no part");
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
