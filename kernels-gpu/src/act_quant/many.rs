//! Kernels of many rows.

use core::marker::PhantomData;

use contract::act_quant::{
    Args, GatedArgs, LONG_ITEMS, LayerNormArgs, Long, LongBf16, LongF16, LongLayerNorm, LongRelu2,
    LongRmsNorm, LongSilu, MIDDLE_ITEMS, MIDDLE_THREADS, Middle, MiddleBf16, MiddleF16,
    MiddleLayerNorm, MiddleRelu2, MiddleRmsNorm, MiddleSilu, RmsNormArgs, Short, ShortBf16,
    ShortF16, ShortLayerNorm, ShortRelu2, ShortRmsNorm, ShortSilu, THREADS,
};
use contract::launch::Kernel;

use super::source::{Gated, Plain};
use super::{rows, short};
use crate::element::{Bf16, F16};

macro_rules! entries {
    ($($args:ident $of:expr;
        $short:ident $short_symbol:ident $middle:ident $middle_symbol:ident $long:ident $long_symbol:ident;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with `8 * short_rows(k)` rows a block; the pointers of `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $short_symbol(args: $args) {
            // SAFETY: the launch contract, handed on.
            unsafe { short::rows($of(args)) }
        }

        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with one block per row; the pointers of `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $middle_symbol(args: $args) {
            // SAFETY: the launch contract, handed on.
            unsafe { rows::row::<_, { MIDDLE_THREADS / 64 }, { MIDDLE_ITEMS as usize }>($of(args)) }
        }

        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with one block per row; the pointers of `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $long_symbol(args: $args) {
            // SAFETY: the launch contract, handed on.
            unsafe { rows::row::<_, { THREADS / 64 }, { LONG_ITEMS as usize }>($of(args)) }
        }

        const _: [unsafe extern "ptx-kernel" fn(<$short as Kernel>::Args); 1] = [$short_symbol];
        const _: [unsafe extern "ptx-kernel" fn(<$middle as Kernel>::Args); 1] = [$middle_symbol];
        const _: [unsafe extern "ptx-kernel" fn(<$long as Kernel>::Args); 1] = [$long_symbol];
    )*};
}

entries! {
    Args (|args| Plain::<f32>(args, PhantomData));
        Short act_quant_short Middle act_quant_middle Long act_quant_long;
    Args (|args| Plain::<F16>(args, PhantomData));
        ShortF16 act_quant_short_f16 MiddleF16 act_quant_middle_f16 LongF16 act_quant_long_f16;
    Args (|args| Plain::<Bf16>(args, PhantomData));
        ShortBf16 act_quant_short_bf16 MiddleBf16 act_quant_middle_bf16 LongBf16 act_quant_long_bf16;
    RmsNormArgs (|args: RmsNormArgs| args);
        ShortRmsNorm act_quant_short_rmsnorm MiddleRmsNorm act_quant_middle_rmsnorm LongRmsNorm act_quant_long_rmsnorm;
    LayerNormArgs (|args: LayerNormArgs| args);
        ShortLayerNorm act_quant_short_layernorm MiddleLayerNorm act_quant_middle_layernorm LongLayerNorm act_quant_long_layernorm;
    GatedArgs Gated::<false>;
        ShortRelu2 act_quant_short_relu2 MiddleRelu2 act_quant_middle_relu2 LongRelu2 act_quant_long_relu2;
    GatedArgs Gated::<true>;
        ShortSilu act_quant_short_silu MiddleSilu act_quant_middle_silu LongSilu act_quant_long_silu;
}
