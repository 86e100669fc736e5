//! Device side of [`contract::elementwise`]: pieces of 16 bytes, one decision on the function for each.

use contract::elementwise::{Args, ElementwiseBf16, ElementwiseF16, ElementwiseF32, Function};
use contract::launch::Kernel;
use contract::num;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};
use crate::stream::{NOTHING, Rows, batches, map};

const ADD: u32 = Function::Add as u32;
const MUL: u32 = Function::Mul as u32;
const AXPBY: u32 = Function::Axpby as u32;

/// `Function::apply` of a piece, by its number.
#[inline(always)]
fn apply<E: Float>(args: &Args, a: Piece, b: Piece) -> Piece {
    let (alpha, beta) = (args.alpha, args.beta);
    match args.function {
        ADD => map::<E>(a, |i, a| Function::Add.apply(a, b[i], alpha, beta)),
        MUL => map::<E>(a, |i, a| Function::Mul.apply(a, b[i], alpha, beta)),
        AXPBY => map::<E>(a, |i, a| Function::Axpby.apply(a, b[i], alpha, beta)),
        _ => map::<E>(a, |i, a| Function::Affine.apply(a, b[i], alpha, beta)),
    }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn elementwise<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let two = !args.b.is_null(); // the same for every thread
    let first = Rows { start: args.a.cast::<E>().as_ptr().cast_const(), stride: args.k };
    let second = Rows { start: args.b.cast::<E>().as_ptr().cast_const(), stride: args.b_stride };
    batches::<E>(args.rows, args.k, args.aligned == 1, |pieces| {
        // SAFETY: the launch contract, handed on; `b` is not null.
        let (a, b) =
            unsafe { (pieces.load(first), if two { pieces.load(second) } else { NOTHING }) };
        let value = |i: usize| {
            let y = apply::<E>(args, E::widen(a[i]), E::widen(b[i]));
            if args.relu == 1 { map::<E>(y, |_, v| num::relu(v)) } else { y }
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
