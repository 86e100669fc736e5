//! Quantises images to int8, one multiplier an image: what the int8 convolutions take.
//!
//! | tensor   | element          | shape          | meaning                                              |
//! |----------|------------------|----------------|------------------------------------------------------|
//! | `x`      | f32, f16 or bf16 | `[N, len]`     | images, contiguous, their dimensions in any order    |
//! | `q`      | `i8`             | `[N, len]`     | in the same order                                    |
//! | `scales` | `f32`            | `[N]`          | multipliers: `q` is about `scales * x`               |
//!
//! ```text
//! top      = max_i |x[n, i]|                            num::abs_bits: NaN is the largest
//! scale[n] = 127 / max(top, 1e-5)                       num::act_scale
//! q[n, i]  = clamp(round_even(x[n, i] * scale[n]), -128, 127)     num::quantise
//! ```
//! Elements are widened to `f32`, which is exact. A maximum does not depend on its order.
//!
//! Two kernels: each block of the first makes the largest magnitude of a part of an image, each block of the
//! second that of its image's parts, and then the numbers of its part.

use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Elements that a thread takes at a time: 16 bytes of `q`.
pub const PIECE: u64 = 16;
/// Most parts of an image: a thread each.
pub const MOST_PARTS: u32 = THREADS;
/// Elements of a part, at least, where an image has more.
pub const LEAST_PART: u64 = 2 * THREADS as u64 * PIECE;
/// Most elements of an image.
pub const MAX_LEN: usize = (1 << 31) - 1;
/// Most images.
pub const MAX_IMAGES: usize = 1 << 22;
/// Shared memory: a word of each warp.
pub const SMEM_BYTES: u32 = 4 * (THREADS / 32);

/// Parts of an image of `len` elements.
pub const fn parts(len: u64) -> u32 {
    let parts = len.div_ceil(LEAST_PART);
    if parts < MOST_PARTS as u64 { parts as u32 } else { MOST_PARTS }
}

/// Elements of each part but the last: whole pieces.
pub const fn part_len(len: u64) -> u64 {
    len.div_ceil(parts(len) as u64).next_multiple_of(PIECE)
}

/// The only parameter of either kernel, passed by value. A block for each part of each image, parts fastest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Images.
    pub x: DevPtr<u8>,
    /// Quantised.
    pub q: DevPtr<u8>,
    /// Multipliers.
    pub scales: DevPtr<f32>,
    /// Largest magnitudes `[N, parts]`, as bits.
    pub tops: DevPtr<u32>,
    /// Elements of an image.
    pub len: u64,
    /// [`part_len`].
    pub part_len: u64,
    /// [`parts`].
    pub parts: u32,
    /// 1 when every image of `x` and `q` starts on a boundary of 16 bytes and is whole pieces, else 0.
    pub aligned: u32,
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS).with_smem(SMEM_BYTES);
        }
    )*};
}

kernels! {
    ImageTopF32 "image_quant_top_f32" "Largest magnitudes of parts, `f32`.";
    ImageTopF16 "image_quant_top_f16" "Largest magnitudes of parts, f16.";
    ImageTopBf16 "image_quant_top_bf16" "Largest magnitudes of parts, bf16.";
    ImageQuantF32 "image_quant_f32" "Scales and numbers, `f32`.";
    ImageQuantF16 "image_quant_f16" "Scales and numbers, f16.";
    ImageQuantBf16 "image_quant_bf16" "Scales and numbers, bf16.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_an_image() {
        for len in [1, 15, 16, 17, LEAST_PART, LEAST_PART + 1, 1 << 20, (1 << 21) + 5, MAX_LEN as u64] {
            let (parts, part) = (u64::from(parts(len)), part_len(len));
            assert!(parts * part >= len && parts <= u64::from(MOST_PARTS), "{len}");
            assert!(part.is_multiple_of(PIECE));
        }
    }
}
