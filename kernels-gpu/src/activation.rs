//! Device side of [`contract::activation`]: pieces of 16 bytes, one decision on the function for each.

use contract::activation::{Activation, ActivationBf16, ActivationF16, ActivationF32, Args};
use contract::launch::{DevPtr, Kernel};
use contract::num;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};
use crate::stream::{Function, Rows, Tensors, map};

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

/// The function of a launch.
struct Gate {
    kind: u32,
    /// Whether it is a factor of the second tensor.
    gated: bool,
}

impl Function for Gate {
    #[inline(always)]
    fn apply<E: Float>(&self, x: Piece, up: Piece) -> Piece {
        let y = apply::<E>(self.kind, x);
        if self.gated { map::<E>(y, |i, v| v * up[i]) } else { y }
    }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn activation<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let rows =
        |p: DevPtr<u8>, stride: u64| Rows { start: p.cast::<E>().as_ptr().cast_const(), stride };
    let tensors = Tensors {
        rows: args.rows,
        k: args.k,
        aligned: args.aligned == 1,
        a: rows(args.x, args.x_stride),
        b: rows(args.up, args.up_stride),
        y: args.y.cast::<E>().as_ptr(),
    };
    // SAFETY: the launch contract, handed on.
    unsafe { tensors.each(&Gate { kind: args.kind, gated: !args.up.is_null() }) };
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
