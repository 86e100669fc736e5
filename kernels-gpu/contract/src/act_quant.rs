//! Per-token int8 quantisation of activations, alone or fused behind what produces them.
//!
//! | tensor    | element      | shape               | layout                          |
//! |-----------|--------------|---------------------|---------------------------------|
//! | source    | `f32`        | `[M, K]`            | see the kernels                 |
//! | `acts`    | `i8`         | `[M, act_bytes(K)]` | permuted by [`crate::w2a8::act_index`], zero padded |
//! | `stats`   | [`ActStats`] | `[M]`               | scale and sum                   |
//!
//! ```text
//! m     = max_k |v[k]|                             num::abs_bits: NaN is the largest
//! scale = 127 / max(m, 1e-5)                     num::act_scale
//! q[k]  = clamp(round_even(v[k] * scale), -128, 127)   num::quantise
//! sum   = sum_k q[k]
//! ```
//! where `v` is, by kernel:
//!
//! * `act_quant`: the source itself.
//! * `act_quant_rmsnorm`: RMSNorm of the source, with its optional residual add
//!   ([`crate::rmsnorm`], same arithmetic, same in-place update).
//! * `act_quant_layernorm`: LayerNorm of the source, the same way ([`crate::layernorm`]).
//! * `act_quant_relu2`, `act_quant_silu`: the gated product `f` of [`crate::activation`], which
//!   is also written out, normalised when a weight is given.
//!
//! One block of 256 threads per row.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::ActStats;

/// Threads of a block: one per partial sum.
pub const THREADS: u32 = 256;

/// Items of 128 elements that a warp has of short rows.
pub const SHORT_ITEMS: u32 = 8;

/// Most elements of a short row.
pub const SHORT: u32 = 128 * SHORT_ITEMS;

/// Short rows of `k` elements that a warp has at once.
#[inline(always)]
pub const fn short_rows(k: u32) -> u32 {
    match k {
        0..=128 => 8,
        129..=256 => 4,
        257..=512 => 2,
        _ => 1,
    }
}

/// Blocks of a launch over `m` short rows of `k` elements.
pub const fn short_grid(m: u32, k: u32) -> u32 {
    m.div_ceil(THREADS / 32 * short_rows(k))
}

/// Threads of a block that has one row of up to [`MIDDLE`] elements.
pub const MIDDLE_THREADS: u32 = 64;

/// Items of four elements that its threads keep in registers.
pub const MIDDLE_ITEMS: u32 = 12;

/// Most elements of its row.
pub const MIDDLE: u32 = 256 * MIDDLE_ITEMS;

/// Items of four elements that a thread of a block of [`THREADS`] keeps in registers of a row of up to [`LONG`] elements.
pub const LONG_ITEMS: u32 = 8;

/// Most elements of such a row: what is not in registers is in shared memory.
pub const LONG: u32 = 28_672;

/// Groups of 256 elements of a row of `k` that each 64 of a block's threads have, `subs` times as many being there.
#[inline(always)]
pub const fn row_groups(k: u32, subs: u32) -> u32 {
    2 * k.div_ceil(512).div_ceil(subs)
}

/// Shared memory in bytes of such blocks, beside what is not in registers: two times 256 partials, and two words of each warp.
pub const ROW_SCRATCH_BYTES: u32 = 4 * (2 * 256 + 8 + 8);

/// The same with what is not in registers of a row of `k` elements.
pub const fn long_smem_bytes(k: u32) -> u32 {
    let groups = row_groups(if k < LONG { k } else { LONG }, 4);
    ROW_SCRATCH_BYTES + 16 * THREADS * groups.saturating_sub(LONG_ITEMS)
}

/// Shared memory in bytes: the 256 partials, then a word of each warp for the maximum and one for
/// the sum.
pub const SMEM_BYTES: u32 = 4 * (THREADS + 8 + 8);

/// Parameter of `act_quant`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Input rows `[M, K]`.
    pub x: DevPtr<u8>,
    /// Quantised rows, four values a word.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Elements of a row.
    pub k: u32,
    /// Rows.
    pub m: u32,
}

/// Parameter of `act_quant_rmsnorm`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmsNormArgs {
    /// Input rows `[M, K]`; updated in place when `delta` is given.
    pub x: DevPtr<f32>,
    /// Rows added to `x`, or null.
    pub delta: DevPtr<f32>,
    /// Gain `[K]`.
    pub weight: DevPtr<f32>,
    /// Quantised rows, four values a word.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Elements of a row.
    pub k: u32,
    /// Rows.
    pub m: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Parameter of `act_quant_layernorm`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LayerNormArgs {
    /// Input rows `[M, K]`; updated in place when `delta` is given.
    pub x: DevPtr<f32>,
    /// Rows added to `x`, or null.
    pub delta: DevPtr<f32>,
    /// Gain `[K]`, or null.
    pub weight: DevPtr<f32>,
    /// Offset `[K]`, or null.
    pub bias: DevPtr<f32>,
    /// Quantised rows, four values a word.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Elements of a row.
    pub k: u32,
    /// Rows.
    pub m: u32,
    /// Added to the variance.
    pub eps: f32,
}

/// Parameter of `act_quant_relu2` and `act_quant_silu`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedArgs {
    /// Rows of `2 * K`: the gate, then the up projection.
    pub gate_up: DevPtr<f32>,
    /// The gated product `[M, K]`, before the norm: an output.
    pub f: DevPtr<f32>,
    /// Gain `[K]`; null when there is no norm.
    pub weight: DevPtr<f32>,
    /// Quantised rows, four values a word.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Elements of a row of `f`.
    pub k: u32,
    /// Rows.
    pub m: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Quantises rows as they are.
pub enum ActQuant {}
/// Those of f16.
pub enum ActQuantF16 {}
/// Those of bf16.
pub enum ActQuantBf16 {}
/// Residual add, RMSNorm, quantise.
pub enum ActQuantRmsNorm {}
/// Residual add, LayerNorm, quantise.
pub enum ActQuantLayerNorm {}
/// `relu(gate)^2 * up`, optional RMSNorm, quantise.
pub enum ActQuantRelu2 {}
/// `silu(gate) * up`, optional RMSNorm, quantise.
pub enum ActQuantSilu {}

impl Kernel for ActQuant {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant", THREADS).with_smem(SMEM_BYTES);
}

impl Kernel for ActQuantF16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_f16", THREADS).with_smem(SMEM_BYTES);
}

impl Kernel for ActQuantBf16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_bf16", THREADS).with_smem(SMEM_BYTES);
}

impl Kernel for ActQuantRmsNorm {
    type Args = RmsNormArgs;
    // As attention over pages has it: a multiprocessor that changes the division waits until it is empty.
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_rmsnorm", THREADS)
        .with_smem(SMEM_BYTES)
        .with_all_shared();
}

impl Kernel for ActQuantLayerNorm {
    type Args = LayerNormArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_layernorm", THREADS).with_smem(SMEM_BYTES);
}

impl Kernel for ActQuantRelu2 {
    type Args = GatedArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_relu2", THREADS).with_smem(SMEM_BYTES);
}

impl Kernel for ActQuantSilu {
    type Args = GatedArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_silu", THREADS).with_smem(SMEM_BYTES);
}

/// Most elements of a row that a block of [`Form::Row`] keeps in its registers.
pub const ROW: u32 = 28 * THREADS;

/// Who has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A block of [`THREADS`], whatever its length.
    Row,
    /// A warp, with others.
    Short,
    /// A block of [`MIDDLE_THREADS`].
    Middle,
    /// A block of [`THREADS`], which has room for all of it.
    Long,
}

/// What is quantised, as [`form`] asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Rows as they are.
    Plain,
    /// RMSNorm.
    RmsNorm,
    /// LayerNorm.
    LayerNorm,
    /// A gated product.
    Gated,
}

/// Who has `m` rows of `k` elements.
pub const fn form(front: Front, m: u32, k: u32) -> Form {
    let many = match (front, k) {
        (_, ..=2048) | (Front::LayerNorm, ..=MIDDLE) => 512,
        (Front::Plain | Front::RmsNorm, ..=MIDDLE) => 1024,
        // A row of such a block is in its registers, and is not slower anywhere.
        (Front::RmsNorm | Front::Gated, ..=ROW) => u32::MAX,
        _ => 0,
    };
    if m < many && !(matches!(front, Front::LayerNorm) && k > SHORT) || k > LONG {
        return Form::Row;
    }
    match k {
        ..=SHORT => Form::Short,
        ..=MIDDLE if m >= many => Form::Middle,
        _ => Form::Long,
    }
}

/// The kernels of a source.
pub trait Kernels<A> {
    /// A block a row of any length.
    type Row: Kernel<Args = A>;
    /// Of many short rows.
    type Short: Kernel<Args = A>;
    /// Of many rows of up to [`MIDDLE`] elements.
    type Middle: Kernel<Args = A>;
    /// Of many rows of up to [`LONG`].
    type Long: Kernel<Args = A>;
}

impl<A, R, S, M, L> Kernels<A> for (R, S, M, L)
where
    R: Kernel<Args = A>,
    S: Kernel<Args = A>,
    M: Kernel<Args = A>,
    L: Kernel<Args = A>,
{
    type Row = R;
    type Short = S;
    type Middle = M;
    type Long = L;
}

/// Those of plain rows.
pub type Plain = (ActQuant, Short, Middle, Long);
/// Those of f16.
pub type PlainF16 = (ActQuantF16, ShortF16, MiddleF16, LongF16);
/// Those of bf16.
pub type PlainBf16 = (ActQuantBf16, ShortBf16, MiddleBf16, LongBf16);
/// Those of RMSNorm.
pub type RmsNorm = (ActQuantRmsNorm, ShortRmsNorm, MiddleRmsNorm, LongRmsNorm);
/// Those of LayerNorm.
pub type LayerNorm = (ActQuantLayerNorm, ShortLayerNorm, MiddleLayerNorm, LongLayerNorm);
/// Those of `relu(gate)^2 * up`.
pub type Relu2 = (ActQuantRelu2, ShortRelu2, MiddleRelu2, LongRelu2);
/// Those of `silu(gate) * up`.
pub type Silu = (ActQuantSilu, ShortSilu, MiddleSilu, LongSilu);

/// The kernels of many rows: short ones, of a block of 64 threads each, and longer ones.
macro_rules! many {
    ($($args:ty, $front:literal, [$short_blocks:literal $middle_blocks:literal $older:literal $long_blocks:literal]:
        $short:ident $short_symbol:literal, $middle:ident $middle_symbol:literal, $long:ident $long_symbol:literal;)*) => {$(
        #[doc = concat!("Many short rows, ", $front, ".")]
        pub enum $short {}

        impl Kernel for $short {
            type Args = $args;
            const SPEC: LaunchSpec = LaunchSpec::new($short_symbol, THREADS)
                .with_min_sm(80)
                .with_min_blocks($short_blocks);
        }

        #[doc = concat!("Many rows of up to [`MIDDLE`] elements, ", $front, ".")]
        pub enum $middle {}

        impl Kernel for $middle {
            type Args = $args;
            const SPEC: LaunchSpec = LaunchSpec::new($middle_symbol, MIDDLE_THREADS)
                .with_smem(ROW_SCRATCH_BYTES)
                .with_min_sm(80)
                .with_min_blocks($middle_blocks);
        }

        #[doc = concat!("Many rows of up to [`LONG`] elements, ", $front, ".")]
        pub enum $long {}

        impl Kernel for $long {
            type Args = $args;
            const SPEC: LaunchSpec = LaunchSpec::new($long_symbol, THREADS)
                .with_smem(long_smem_bytes(LONG))
                .with_min_sm(80)
                // Older assemblers spill where as many are asked for.
                .with_min_blocks($older)
                .with_min_blocks_from(900, $long_blocks);

            fn smem_bytes(args: &$args) -> u32 {
                long_smem_bytes(args.k)
            }
        }
    )*};
}

many! {
    Args, "as they are", [0 12 3 4]:
        Short "act_quant_short", Middle "act_quant_middle", Long "act_quant_long";
    Args, "as they are, of f16", [0 12 3 4]:
        ShortF16 "act_quant_short_f16", MiddleF16 "act_quant_middle_f16", LongF16 "act_quant_long_f16";
    Args, "as they are, of bf16", [0 12 3 4]:
        ShortBf16 "act_quant_short_bf16", MiddleBf16 "act_quant_middle_bf16", LongBf16 "act_quant_long_bf16";
    RmsNormArgs, "RMSNorm", [0 8 2 2]:
        ShortRmsNorm "act_quant_short_rmsnorm", MiddleRmsNorm "act_quant_middle_rmsnorm", LongRmsNorm "act_quant_long_rmsnorm";
    LayerNormArgs, "LayerNorm", [1 8 2 2]:
        ShortLayerNorm "act_quant_short_layernorm", MiddleLayerNorm "act_quant_middle_layernorm", LongLayerNorm "act_quant_long_layernorm";
    GatedArgs, "`relu(gate)^2 * up`, optional RMSNorm", [0 8 2 2]:
        ShortRelu2 "act_quant_short_relu2", MiddleRelu2 "act_quant_middle_relu2", LongRelu2 "act_quant_long_relu2";
    GatedArgs, "`silu(gate) * up`, optional RMSNorm", [0 8 2 2]:
        ShortSilu "act_quant_short_silu", MiddleSilu "act_quant_middle_silu", LongSilu "act_quant_long_silu";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_blocks() {
        let all =
            [Front::Plain, Front::RmsNorm, Front::LayerNorm, Front::Gated];
        let of = |m, k| all.map(|front| form(front, m, k));
        use Form::{Long as L, Middle as M, Row as R, Short as S};
        assert_eq!(of(511, 1024), [R; 4]);
        assert_eq!(of(512, 1), [S; 4]);
        assert_eq!(of(1, 2560), [R, R, L, R]);
        assert_eq!(of(512, 2048), [M; 4]);
        assert_eq!(of(512, 2560), [R, R, M, R]);
        assert_eq!(of(1024, 2560), [M, M, M, R]);
        assert_eq!(of(1, 6912), [L, R, L, R]);
        assert_eq!(of(1024, 6912), [L, R, L, R]);
        assert_eq!(of(1, 7169), [L; 4]);
        assert_eq!(of(1 << 24, LONG + 1), [R; 4]);
        // All of a row has a place.
        for k in 1..=LONG {
            if k <= MIDDLE {
                assert!(row_groups(k, 1) <= MIDDLE_ITEMS && 256 * row_groups(k, 1) >= k);
            }
            let groups = row_groups(k, 4);
            let room = long_smem_bytes(k) - ROW_SCRATCH_BYTES;
            assert!(1024 * groups >= k && 16 * THREADS * groups.saturating_sub(LONG_ITEMS) <= room);
        }
        assert_eq!([(9, 128), (9, 129), (8, 1024)].map(|(m, k)| short_grid(m, k)), [1, 1, 1]);
        assert_eq!([(65, 128), (33, 129), (9, 1024)].map(|(m, k)| short_grid(m, k)), [2, 2, 2]);
    }
}
