//! Device side of [`contract::softmax`]: a warp or a block per row.
//!
//! Scores become terms in the registers that hold them. Of rows that do not fit, the rest is read three
//! times: for the maximum, the sum, and the output.

use contract::launch::Kernel;
use contract::num;
use contract::row::SHORT;
use contract::softmax::{
    Args, SoftmaxBf16, SoftmaxF16, SoftmaxF32, closing, score, shift, term, visible,
};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::element::{Bf16, F16};
use crate::float::Float;
use crate::row::{
    self, BLOCK, HELD_BY_WARP, HELD_FEW, HELD_MANY, Partials, WARP, element, far, is_few,
};

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn softmax<E: Float>(args: &Args) {
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
/// As for [`softmax`].
#[inline(always)]
unsafe fn body<E: Float, const T: u32, const HELD: usize>(args: &Args) {
    let (m, k) = (row::row::<T>(), args.k);
    if m >= args.m {
        return; // the whole warp
    }
    let start = m as usize * k as usize;
    let x = args.x.cast::<E>().as_ptr().cast_const().wrapping_add(start);
    let y = args.y.cast::<E>().as_ptr().wrapping_add(start);
    let masked = !args.mask.is_null(); // the same for every thread
    let mask = args.mask.cast::<E>().as_ptr().cast_const();
    let mask = mask.wrapping_add((m % args.mask_rows) as usize * k as usize);
    let seen = visible(m, k, args.queries);
    let load = |inside: bool, i: u32| {
        let inside = inside && i < seen;
        // SAFETY: x[m, i] and mask[m % MASK_ROWS, i] with i < K.
        let (x, add) = unsafe {
            let add = E::load_if(inside && masked, mask.wrapping_add(i as usize));
            (E::load_if(inside, x.wrapping_add(i as usize)), if masked { add } else { -0.0 })
        };
        if inside { score(x, args.scale, add) } else { f32::NEG_INFINITY }
    };

    let mut held = [0.0; HELD];
    let mut j = 0;
    while j < HELD {
        let i = element::<T>(j);
        held[j] = load(i < k, i);
        j += 1;
    }
    let mut top = f32::NEG_INFINITY;
    let mut j = 0;
    while j < HELD {
        top = num::max(top, held[j]);
        j += 1;
    }
    if T == BLOCK {
        far::<T>(HELD, k, load, |_, _, v| top = num::max(top, v));
    }
    // SAFETY: the launch has the shared memory, used by this call alone.
    let shift = shift(unsafe { row::max::<T>(top) });

    let log = args.log == 1; // the same for every thread
    let mut partials = Partials::<T>::new();
    let mut j = 0;
    while j < HELD {
        let e = term(held[j], shift);
        // Past the end, and where nothing is seen, this adds zero to a sum that is not below zero.
        partials.take(j, |acc| acc + e);
        held[j] = if log { held[j] - shift } else { e };
        j += 1;
    }
    if T == BLOCK {
        far::<T>(HELD, k, load, |j, _, v| partials.take(j, |acc| acc + term(v, shift)));
    }
    // SAFETY: as above.
    let closing = closing(unsafe { partials.sum(0) }, log);

    let put = |i: u32, value: f32| {
        let value = if log { value - closing } else { value * closing };
        // SAFETY: y[m, i] with i < K belongs to this thread.
        unsafe { E::store(y.wrapping_add(i as usize), value) };
    };
    let mut j = 0;
    while j < HELD {
        let i = element::<T>(j);
        if i < k {
            put(i, held[j]);
        }
        j += 1;
    }
    if T == BLOCK {
        far::<T>(HELD, k, load, |_, i, v| {
            put(i, if log { v - shift } else { term(v, shift) });
        });
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
            unsafe { softmax::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    softmax_f32 SoftmaxF32 f32;
    softmax_f16 SoftmaxF16 F16;
    softmax_bf16 SoftmaxBf16 Bf16;
}
