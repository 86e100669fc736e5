//! Device side of [`contract::layernorm`]: a warp or a block per row, the variance from the centred
//! elements in the registers that hold them.

use contract::launch::Kernel;
use contract::layernorm::{
    Args, LayerNormBf16, LayerNormF16, LayerNormF32, inv_deviation, normalise,
};
use contract::num::fma;
use contract::row::SHORT;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::element::{Bf16, F16};
use crate::float::Float;
use crate::norm::{Norm, own_row};
use crate::row::{BLOCK, HELD_BY_WARP, HELD_FEW, HELD_MANY, Partials, WARP, element, far, is_few};

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn layernorm<E: Float>(args: &Args) {
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
/// As for [`layernorm`].
#[inline(always)]
unsafe fn body<E: Float, const T: u32, const HELD: usize>(args: &Args) {
    let Some(m) = own_row::<T>(args.m) else { return };
    let k = args.k;
    let norm = Norm::<E>::new([args.x, args.delta, args.weight, args.bias, args.y], m, k);
    let mut partials = Partials::<T>::new();
    // SAFETY: row m of the contract's table; each sum has its half of the shared memory.
    unsafe {
        let mut held: [f32; HELD] = norm.read(&mut partials, |acc, v| acc + v);
        let early = norm.affine_early::<T, HELD>();
        let mean = partials.sum(0) / k as f32;

        let mut partials = Partials::<T>::new();
        let mut j = 0;
        while j < HELD {
            held[j] -= mean;
            if element::<T>(j) < k {
                partials.take(j, |acc| fma(held[j], held[j], acc));
            }
            j += 1;
        }
        if T == BLOCK {
            far::<T>(
                HELD,
                k,
                |inside, i| norm.again(inside, i),
                |j, _, v| {
                    partials.take(j, |acc| fma(v - mean, v - mean, acc));
                },
            );
        }
        let r = inv_deviation(partials.sum(1), k, args.eps);
        norm.write::<T, HELD>(held, early, mean, |d, w, b| normalise(d, r, w, b));
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
