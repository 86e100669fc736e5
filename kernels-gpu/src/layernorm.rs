//! Device side of [`contract::layernorm`]: a warp or a block per row, the variance from the centred
//! elements in the shared memory that holds them.

use contract::launch::Kernel;
use contract::layernorm::{
    Args, LayerNormBf16, LayerNormF16, LayerNormF32, inv_deviation, normalise,
};
use contract::num::fma;
use contract::row::SHORT;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::element::{Bf16, F16};
use crate::float::Float;
use crate::norm::Norm;
use crate::row::{BLOCK, Partials, WARP};

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn layernorm<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    unsafe { if args.k <= SHORT { body::<E, WARP>(args) } else { body::<E, BLOCK>(args) } }
}

/// # Safety
///
/// As for [`layernorm`].
#[inline(always)]
unsafe fn body<E: Float, const T: u32>(args: &Args) {
    let tensors = [args.x, args.delta, args.weight, args.bias, args.y];
    let Some(norm) = Norm::<E, T>::new(tensors, args.m, args.k) else { return };
    // SAFETY: a row of the contract's table; the launch has the shared memory.
    unsafe {
        norm.fill();
        let mut partials = Partials::<T>::new();
        norm.row.walk(|turn, v, _| partials.take(turn, |acc| acc + v));
        norm.far_first(|v| partials.take(0, |acc| acc + v));
        let mean = partials.sum(0) / args.k as f32;

        let mut partials = Partials::<T>::new();
        let square = |v: f32| move |acc: f32| fma(v - mean, v - mean, acc);
        norm.row.walk(|turn, v, _| partials.take(turn, square(v)));
        norm.far_again(|_, v| partials.take(0, square(v)));
        let r = inv_deviation(partials.sum(1), args.k, args.eps);
        norm.write(|x, w, b| normalise(x - mean, r, w, b));
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { layernorm::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    layernorm_f32 LayerNormF32 f32;
    layernorm_f16 LayerNormF16 F16;
    layernorm_bf16 LayerNormBf16 Bf16;
}
