//! Device side of [`contract::elementwise`]: pieces of 16 bytes, one decision on the function for each.

use contract::elementwise::{Args, ElementwiseBf16, ElementwiseF16, ElementwiseF32, Function};
use contract::launch::{DevPtr, Kernel};
use contract::num;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};
use crate::stream::{self, Rows, Tensors, map};

const ADD: u32 = Function::Add as u32;
const MUL: u32 = Function::Mul as u32;
const AXPBY: u32 = Function::Axpby as u32;

impl stream::Function for Args {
    #[inline(always)]
    fn apply<E: Float>(&self, a: Piece, b: Piece) -> Piece {
        let (alpha, beta) = (self.alpha, self.beta);
        let y = match self.function {
            ADD => map::<E>(a, |i, a| Function::Add.apply(a, b[i], alpha, beta)),
            MUL => map::<E>(a, |i, a| Function::Mul.apply(a, b[i], alpha, beta)),
            AXPBY => map::<E>(a, |i, a| Function::Axpby.apply(a, b[i], alpha, beta)),
            _ => map::<E>(a, |i, a| Function::Affine.apply(a, b[i], alpha, beta)),
        };
        if self.relu == 1 { map::<E>(y, |_, v| num::relu(v)) } else { y }
    }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn elementwise<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let rows =
        |p: DevPtr<u8>, stride: u64| Rows { start: p.cast::<E>().as_ptr().cast_const(), stride };
    let tensors = Tensors {
        rows: args.rows,
        k: args.k,
        aligned: args.aligned == 1,
        a: rows(args.a, args.k),
        b: rows(args.b, args.b_stride),
        y: args.y.cast::<E>().as_ptr(),
    };
    // SAFETY: the launch contract, handed on.
    unsafe { tensors.each(args) };
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { elementwise::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    elementwise_f32 ElementwiseF32 f32;
    elementwise_f16 ElementwiseF16 F16;
    elementwise_bf16 ElementwiseBf16 Bf16;
}
