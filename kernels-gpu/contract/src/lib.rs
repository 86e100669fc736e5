//! What the GPU kernels and the host agree on.
//!
//! Each kernel family has one module with its formula, its tensor table, its constants, its
//! argument struct and its launch rules. [`num`] holds the one arithmetic: the same Rust functions
//! are compiled into the PTX and into the CPU backend, so both give the same bits.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(core_intrinsics, link_llvm_intrinsics),
    allow(internal_features)
)]

// `f32::mul_add` and `f32::sqrt` live in `std` on the host; the device uses intrinsics.
#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

pub mod launch;
pub mod norm;
pub mod num;
pub mod parts;
pub mod ring;
pub mod row;
pub mod stream;
pub mod w2a8;

use launch::KernelInfo;

/// Declares the families and lists their kernels: the one list that loader, audit and tests walk.
macro_rules! families {
    ($($family:ident: $($kernel:ident),*;)*) => {
        $(pub mod $family;)*

        /// Kernel families: one name, six rooms each.
        pub const FAMILIES: &[&str] = &[$(stringify!($family)),*];

        /// Every kernel of every family.
        pub const KERNELS: &[KernelInfo] =
            &[$($(KernelInfo::of::<$family::$kernel>(stringify!($family))),*),*];

        /// Calls a macro with `family Kernel;` for every kernel, in the order of [`KERNELS`].
        #[macro_export]
        macro_rules! for_each_kernel {
            ($mac:ident) => { $mac! { $($($family $kernel;)*)* } };
        }
    };
}

/// Families that a BitNet model runs: compiled side by side when a device is opened. Any other kernel is
/// compiled when it is first used.
pub const MODEL_FAMILIES: &[&str] = &[
    "act_quant",
    "attention",
    "attention_paged",
    "attention_step",
    "bit_linear",
    "decode_layers",
    "embed",
    "kv_append",
    "lm_head",
    "rmsnorm",
    "rope",
    "sample",
    "w2a8_gemm",
    "w2a8_gemv",
];

/// The family of the kernel `symbol`.
pub fn family_of(symbol: &str) -> Option<&'static str> {
    KERNELS.iter().find(|kernel| kernel.spec.symbol == symbol).map(|kernel| kernel.family)
}

/// The place of the kernel `symbol` in [`KERNELS`].
///
/// # Panics
/// When there is none. Meant for constants: then it is an error of the build.
pub const fn kernel_index(symbol: &str) -> usize {
    let mut index = 0;
    while index < KERNELS.len() {
        if equal(KERNELS[index].spec.symbol.as_bytes(), symbol.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("the kernel is not in the list of families")
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

families! {
    act_quant: ActQuant, ActQuantF16, ActQuantBf16, ActQuantRmsNorm, ActQuantLayerNorm, ActQuantRelu2, ActQuantSilu,
        Short, Middle, Long, ShortF16, MiddleF16, LongF16, ShortBf16, MiddleBf16, LongBf16,
        ShortRmsNorm, MiddleRmsNorm, LongRmsNorm, ShortLayerNorm, MiddleLayerNorm, LongLayerNorm,
        ShortRelu2, MiddleRelu2, LongRelu2, ShortSilu, MiddleSilu, LongSilu;
    activation: ActivationF32, ActivationF16, ActivationBf16;
    attention: AttentionBf16, AttentionF32, AttentionRowsBf16D64, AttentionRowsBf16D128, AttentionRowsF32D64,
        AttentionRowsF32D128, AttentionFastD64, AttentionFastD128, AttentionFastD256;
    attention_paged: AppendBf16, AppendF32, AppendInt8, RowsBf16, RowsF32, RowsInt8, StepBf16, SplitBf16, WalkBf16, FastBf16, FastInt8, Gather, GatherInt8, CopyPages;
    attention_step: AttentionStepBf16, AttentionStepF32;
    bit_linear: BitLinearShort, BitLinearLong;
    bmm: BmmFloatAny, BmmF32Copy, BmmF32Widen, BmmI8Lines, BmmI8Side16, BmmI8Side64, BmmI8Side128, BmmI8Long32, BmmI8Mma32, BmmI8Wgmma128, BmmF32Side128, BmmF32Side64, BmmF32Side64Hopper, BmmF32Ring64, BmmF32Whole64, BmmF32Group32, BmmF32Group64, BmmF32Flow32, BmmF32Flow64, BmmF32Pack, BmmF32Quick, BmmParts, BmmF32Stream80, BmmF32Ring32, BmmF32Chain32, BmmF32Fed, BmmF32Fed16, BmmF32Fed32, BmmF32Fed8, BmmF32Side32, BmmF32Side16, BmmF32ThinLong, BmmF32Thin, BmmBf16Mma32, BmmF16Mma32, BmmTf32Mma32, BmmBf16Long32, BmmF16Long32, BmmBf16Whole32, BmmBf16Whole64, BmmBf16Quick, BmmF16Whole32, BmmF16Whole64, BmmF16Quick, BmmBf16Gather64, BmmF16Gather64, BmmBf16Gather128, BmmF16Gather128, BmmBf16Wgmma64, BmmBf16Wgmma128, BmmBf16Wgmma192, BmmBf16Wgmma256, BmmF16Wgmma64, BmmF16Wgmma128, BmmF16Wgmma192, BmmF16Wgmma256, BmmBf16Bulk192, BmmBf16Bulk256, BmmBf16BulkSquare, BmmF16Bulk192, BmmF16Bulk256, BmmF16BulkSquare;
    conv2d: Conv2dF32, Conv2dF32Small, Conv2dHalf, Conv2dTapsF32, Conv2dTapsHalf, Conv2dTaps3F32,
        Conv2dTaps3F16, Conv2dTaps3Bf16, Conv2dPlanes3F32, Conv2dPlanes3F16, Conv2dPlanes3Bf16, Conv2dPlanes5F32,
        Conv2dPlanes5F16, Conv2dPlanes5Bf16, Conv2dPlanes7F32, Conv2dPlanes7F16, Conv2dPlanes7Bf16, Conv2dMmaBf16, Conv2dMmaF16, Conv2dHopperBf16, Conv2dHopperNarrowBf16,
        Conv2dHopperF16, Conv2dHopperNarrowF16, Conv2dJoinF32, Conv2dJoinHalf, Conv2dTurn, Conv2dRuns, Conv2dI8, Conv2dTernary,
        Conv2dI8Mma, Conv2dTernaryMma, Conv2dTernaryHopper, Conv2dTernaryHopperSplit,
        Conv2dTernaryPoints, Conv2dPointsBf16, Conv2dPointsF16, Conv2dPointsNarrowBf16, Conv2dPointsNarrowF16,
        Conv2dPointsWholeBf16, Conv2dPointsWholeF16,
        Conv2dLinesBf16, Conv2dLinesPairBf16, Conv2dLinesSplitBf16, Conv2dLinesF16, Conv2dLinesPairF16,
        Conv2dLinesSplitF16, Conv2dTernaryWhole32, Conv2dTernaryWhole48, Conv2dTernaryWhole64, Conv2dTernaryWhole96, Conv2dTernaryWhole128,
        Conv2dTernaryStrips, Conv2dTernaryStrips96, Conv2dTaps5F32, Conv2dTiles3F32, Conv2dTiles3F16, Conv2dTiles3Bf16, Conv2dTiles5F32, Conv2dTiles5F16,
        Conv2dTiles5Bf16, Conv2dTiles7F32, Conv2dTiles7F16, Conv2dTiles7Bf16;
    decode_layers: DecodeLayers, DecodeLayersFast, DecodeLayersPaged, DecodeLayersPagedFast, DecodeLayersRows,
        DecodeLayersRows16;
    elementwise: ElementwiseF32, ElementwiseF16, ElementwiseBf16;
    embed: EmbedBf16, EmbedF16, EmbedF32;
    kv_append: KvAppendBf16, KvAppendF32, KvAppendRopeBf16, KvAppendRopeF32;
    layernorm: SmallF32, SmallF16, SmallBf16, ShortF32, ShortF16, ShortBf16, MiddleF32, MiddleF16, MiddleBf16, LongF32, LongF16, LongBf16, RingF32, RingF16, RingBf16, LongTurnedF32, PartsF32, PartsF16, PartsBf16;
    lm_head: LmHeadBf16, LmHeadF16, LmHeadF32, LmHeadManyBf16, LmHeadManyF16, LmHeadManyF32, LmHeadTileBf16, LmHeadTileF16, LmHeadTileF32;
    lm_head_int8: PackBf16, PackF16, PackF32, Input, Scan, ScanFew, ScanSome, ScanMany, ScanWide, ScanWideSome, RescoreBf16, RescoreF16, RescoreF32, PickBf16, PickF16, PickF32;
    logprobs: Groups, Tell;
    lut_matmul: Tl1W8, Tl1W16, Tl2W8, Tl2W16, LossyTables, LossyB1, LossyB2, LossyB3, LossyB4;
    pool2d: AxesF32, AxesF16, AxesBf16, AxesLastF32, AxesLastF16, AxesLastBf16, StripsMaxF32, StripsMaxF16, StripsMaxBf16, StripsAvgF32, StripsAvgF16, StripsAvgBf16, PlanesMaxF32, PlanesMaxF16, PlanesMaxBf16, TilesF32, TilesF16, TilesBf16, WindowF32, WindowF16, WindowBf16, PiecesF32, PiecesF16, PiecesBf16, LinesF32, LinesF16, LinesBf16, GlobalF32, GlobalF16, GlobalBf16, WholeF32, WholeF16, WholeBf16;
    rmsnorm: SmallF32, SmallF16, SmallBf16, ShortF32, ShortF16, ShortBf16, MiddleF32, MiddleF16, MiddleBf16, LongF32, LongF16, LongBf16, RingF32, RingF16, RingBf16, LongTurnedF32, LongTurnedF16, LongTurnedBf16, PartsF32, PartsF16, PartsBf16;
    rope: Rope;
    image_quant: ImageTopF32, ImageTopF16, ImageTopBf16, ImageQuantF32, ImageQuantF16, ImageQuantBf16;
    sample: SamplePrepare, SamplePick, SamplePickWide, SampleAllow;
    softmax: SmallF32, SmallF16, SmallBf16, WordsF16, WordsBf16, ShortF32, ShortF16, ShortBf16, MiddleF32, MiddleF16, MiddleBf16, LongF32, LongF16, LongBf16, TurnedF32, TurnedF16, TurnedBf16, LongTurnedF32, LongTurnedF16, LongTurnedBf16, PartsF32, PartsF16, PartsBf16;
    sparse: SparseBf16M1, SparseF16M1, SparseBf16M4, SparseF16M4, SparseF32M1, SparseF32M4,
        SparseBf16Mma8, SparseBf16Mma16, SparseBf16Few8, SparseBf16Few16,
        SparseBf16Bulk8, SparseBf16Bulk8Short, SparseBf16Bulk16, SparseBf16Bulk16Short, SparseBf16Bulk16Wide, SparseBf16Held8, SparseBf16Held16, SparseBf16Held8Pair, SparseBf16Held16Pair, SparseCsrBf16, SparseCsrF16, SparseCsrF32,
        SparseConv2dBf16, SparseConv2dF16, SparseConv2dF32, SparseConv2dMma, SparsePad, SparseExpand, SparseConv2dLines, SparseConv2dLinesPair, SparseConv2dLinesSplit, SparseTernary;
    w2a8_gemm: W2a8Gemm, T8A, T8B, T8C, T16A, T16B, T16C, T32A, T32B, T8X3, T32X2, H32, H64, H64S, H128;
    w2a8_gemv: L16R1U4, L16R4U1, L32R2U2, L32R2U4, L32R4U1, L32R4U2, L32R4U2P2;
    w2a8_trits: W2a8TritsUnpack, L16R2U1, L16R4U2, L32R2U1, L32R2U3, L32R4U1, L32R4U2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_unique_and_start_with_their_family() {
        for (i, kernel) in KERNELS.iter().enumerate() {
            let symbol = kernel.spec.symbol;
            assert!(KERNELS[..i].iter().all(|k| k.spec.symbol != symbol), "{symbol} stands twice");
            assert!(symbol.starts_with(kernel.family), "{symbol} has no family");
            assert_eq!(kernel_index(symbol), i);
            assert!(kernel.spec.threads() <= 1024 && kernel.spec.threads() % 32 == 0, "{symbol}");
        }
    }

    #[test]
    fn the_families_of_a_model_exist() {
        for family in MODEL_FAMILIES {
            assert!(FAMILIES.contains(family), "{family}");
        }
    }

    #[test]
    fn every_gemv_variant_is_listed() {
        for variant in w2a8_gemv::VARIANTS {
            assert!(KERNELS.iter().any(|k| k.spec == variant.spec), "{}", variant.spec.symbol);
        }
        for variant in w2a8_trits::VARIANTS {
            assert!(KERNELS.iter().any(|k| k.spec == variant.spec), "{}", variant.spec.symbol);
        }
    }
}
