//! Device side of [`contract::activation`]: pieces of 16 bytes, one decision on the function for each.

use contract::activation::{Activation, ActivationBf16, ActivationF16, ActivationF32, Args};
use contract::launch::Kernel;
use contract::num;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};
use crate::stream::{NOTHING, Rows, batches, map};

const RELU: u32 = Activation::Relu as u32;
const RELU2: u32 = Activation::Relu2 as u32;
const SILU: u32 = Activation::Silu as u32;
const GELU: u32 = Activation::Gelu as u32;

/// The function of this number, of a piece.
#[inline(always)]
fn apply<E: Float>(kind: u32, x: Piece) -> Piece {
    match kind {
        RELU => map::<E>(x, |_, v| num::relu(v)),
        RELU2 => map::<E>(x, |_, v| num::relu2(v)),
        SILU => map::<E>(x, |_, v| num::silu(v)),
        GELU if E::PIECE == 8 => map::<E>(x, |_, v| num::gelu_half(v)),
        GELU => map::<E>(x, |_, v| num::gelu(v)),
        _ => map::<E>(x, |_, v| num::gelu_tanh(v)),
    }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn activation<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let gated = !args.up.is_null(); // the same for every thread
    let from = Rows { start: args.x.cast::<E>().as_ptr().cast_const(), stride: args.x_stride };
    let factor = Rows { start: args.up.cast::<E>().as_ptr().cast_const(), stride: args.up_stride };
    batches::<E>(args.rows, args.k, args.aligned == 1, |pieces| {
        // SAFETY: the launch contract, handed on; `up` is not null.
        let (x, up) =
            unsafe { (pieces.load(from), if gated { pieces.load(factor) } else { NOTHING }) };
        let value = |i: usize| {
            let y = apply::<E>(args.kind, E::widen(x[i]));
            let up = E::widen(up[i]);
            if gated { map::<E>(y, |j, v| v * up[j]) } else { y }
        };
        // SAFETY: the launch contract, handed on.
        unsafe { pieces.store(args.y.cast::<E>().as_ptr(), args.k, value) };
    });
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { activation::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    activation_f32 ActivationF32 f32;
    activation_f16 ActivationF16 F16;
    activation_bf16 ActivationBf16 Bf16;
}
