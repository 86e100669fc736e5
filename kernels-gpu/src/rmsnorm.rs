//! Device side of [`contract::rmsnorm`]: a warp or a block per row, read once where registers hold it.

use contract::launch::{DevPtr, Kernel};
use contract::num::fma;
use contract::rmsnorm::{Args, RmsNormBf16, RmsNormF16, RmsNormF32, inv_rms, normalise};
use contract::row::SHORT;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::element::{Bf16, F16};
use crate::float::Float;
use crate::norm::{Norm, own_row};
use crate::row::{BLOCK, HELD_BY_WARP, HELD_FEW, HELD_MANY, Partials, WARP, is_few};

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn rmsnorm<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    unsafe {
        if args.k <= SHORT {
            body::<E, WARP, HELD_BY_WARP>(args);
        } else if is_few(args.k) {
            body::<E, BLOCK, HELD_FEW>(args);
        } else {
            body::<E, BLOCK, HELD_MANY>(args);
        }
    }
}

/// # Safety
///
/// As for [`rmsnorm`].
#[inline(always)]
unsafe fn body<E: Float, const T: u32, const HELD: usize>(args: &Args) {
    let Some(m) = own_row::<T>(args.m) else { return };
    let k = args.k;
    let norm = Norm::<E>::new([args.x, args.delta, args.weight, DevPtr::NULL, args.y], m, k);
    let mut partials = Partials::<T>::new();
    // SAFETY: row m of the contract's table; the sum has the shared memory for itself.
    unsafe {
        let held: [f32; HELD] = norm.read(&mut partials, |acc, v| fma(v, v, acc));
        let early = norm.affine_early::<T, HELD>();
        let r = inv_rms(partials.sum(0), k, args.eps);
        norm.write::<T, HELD>(held, early, 0.0, |x, w, _| normalise(x, r, w));
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
