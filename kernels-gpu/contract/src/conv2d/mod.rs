//! Two-dimensional convolution (cross-correlation, as every framework has it), with its epilogue.
//!
//! | tensor     | element        | shape                                  | layout                        |
//! |------------|----------------|----------------------------------------|-------------------------------|
//! | `x`        | f32, f16, bf16 | `[N, H, W, C]` or `[N, C, H, W]`       | contiguous, see [`Layout`]    |
//! | `w`        | as `x`         | `[groups, rows(R S C/g), columns(K/g)]`| packed, see [`weights`]       |
//! | `bias`     | `f32`          | `[K]`                                  | or absent                     |
//! | `residual` | as `x`         | as `y`                                 | or absent                     |
//! | `y`        | as `x`         | `[N, P, Q, K]` or `[N, K, P, Q]`       | contiguous, the layout of `x` |
//!
//! ```text
//! sum[n, p, q, k] = sum over (r, s, c) of x[n, h, w, c] * w[k, r, s, c]
//!                   h = p * stride_h + r * dilation_h - pad_top,  w likewise,  c in the group of k
//! y               = act((sum + bias[k]) + residual)               what is absent is not added
//! ```
//!
//! **Exact kernels.** Elements are widened to `f32`. The terms of one sum are taken in the order
//! (r, s, c), c fastest, by a chain of fused multiply-adds that starts from +0; after every
//! [`CHUNK`] terms a new chain starts. The chain sums are added first to last, the first one as it
//! is. The result is rounded once to the element of `y`, after the epilogue. A tap that falls
//! outside of the image is a term like any other: with zero padding its factor is `x = +0`, so a
//! weight of NaN or infinity there gives NaN, as on an image that was padded beforehand.
//!
//! **Tensor-core kernels** (f16, bf16; asked for by name): products are exact in `f32`, their order
//! and the rounding of partial sums are the hardware's. [`tensor_core_bound`] bounds the distance.
//!
//! Integer and ternary weights on int8 activations are exact; see [`int8`].

mod geometry;
pub mod int8;
pub mod kernels;
pub mod bulk_lines;
pub mod lines;
mod number;
pub mod planes;
pub mod points;
pub mod runs;
pub mod strips;
pub mod tiles;
pub mod turn;
pub mod weights;
pub mod whole;

pub use int8::{
    Conv2dI8, Conv2dI8Mma, Conv2dTernary, Conv2dTernaryMma,
};
pub use geometry::{Divisor, Edge, Geometry, Layout, PadMode};
pub use kernels::*;
pub use bulk_lines::{
    Conv2dLinesBf16, Conv2dLinesF16, Conv2dLinesPairBf16, Conv2dLinesPairF16, Conv2dLinesSplitBf16,
    Conv2dLinesSplitF16, Conv2dTernaryPoints,
};
pub use lines::{Conv2dTernaryHopper, Conv2dTernaryHopperSplit};
pub use whole::{
    Conv2dTernaryWhole32, Conv2dTernaryWhole48, Conv2dTernaryWhole64, Conv2dTernaryWhole96, Conv2dTernaryWhole128,
};
pub use strips::{Conv2dTernaryStrips, Conv2dTernaryStrips96};
pub use planes::{
    Conv2dPlanes3Bf16, Conv2dPlanes3F16, Conv2dPlanes3F32, Conv2dPlanes5Bf16, Conv2dPlanes5F16,
    Conv2dPlanes5F32, Conv2dPlanes7Bf16, Conv2dPlanes7F16, Conv2dPlanes7F32, Conv2dTaps5F32, PLANES_FOUR,
    PLANES_THREADS, PlanesArgs, planes,
};
pub use tiles::{
    Conv2dTiles3Bf16, Conv2dTiles3F16, Conv2dTiles3F32, Conv2dTiles5Bf16, Conv2dTiles5F16, Conv2dTiles5F32,
    Conv2dTiles7Bf16, Conv2dTiles7F16, Conv2dTiles7F32, TILES_CHANNELS, TILES_OUTPUTS, TILES_THREADS, TilesArgs,
    tiles, tiles_of, tiles_pay,
};
pub use runs::Conv2dRuns;
pub use turn::Conv2dTurn;
pub use points::{
    Conv2dPointsBf16, Conv2dPointsF16, Conv2dPointsNarrowBf16, Conv2dPointsNarrowF16,
    Conv2dPointsWholeBf16, Conv2dPointsWholeF16,
};
pub use number::{ABSENT, Activation, CHUNK, finish, finish_cheap, tensor_core_bound};
