//! Device side of [`contract::rmsnorm`]: a warp or a block per row, read once where shared memory holds it.

use contract::launch::{DevPtr, Kernel};
use contract::num::fma;
use contract::rmsnorm::{Args, RmsNormBf16, RmsNormF16, RmsNormF32, inv_rms, normalise};
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
unsafe fn rmsnorm<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    unsafe { if args.k <= SHORT { body::<E, WARP>(args) } else { body::<E, BLOCK>(args) } }
}

/// # Safety
///
/// As for [`rmsnorm`].
#[inline(always)]
unsafe fn body<E: Float, const T: u32>(args: &Args) {
    let tensors = [args.x, args.delta, args.weight, DevPtr::NULL, args.y];
    let Some(norm) = Norm::<E, T>::new(tensors, args.m, args.k) else { return };
    // SAFETY: a row of the contract's table; the launch has the shared memory.
    unsafe {
        norm.fill();
        let mut partials = Partials::<T>::new();
        norm.row.walk(|turn, v, _| partials.take(turn, |acc| fma(v, v, acc)));
        norm.far_first(|v| partials.take(0, |acc| fma(v, v, acc)));
        let r = inv_rms(partials.sum(0), args.k, args.eps);
        norm.write(|x, w, _| normalise(x, r, w));
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
            unsafe { rmsnorm::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    rmsnorm_f32 RmsNormF32 f32;
    rmsnorm_f16 RmsNormF16 F16;
    rmsnorm_bf16 RmsNormBf16 Bf16;
}
