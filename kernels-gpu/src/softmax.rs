//! Device side of [`contract::softmax`]: a warp or a block per row.
//!
//! Scores become terms in the shared memory that holds them. Of rows that do not fit, the rest is read
//! three times: for the maximum, the sum, and the output.

use contract::launch::Kernel;
use contract::row::SHORT;
use contract::softmax::{
    Args, SoftmaxBf16, SoftmaxF16, SoftmaxF32, closing, larger, score, shift, term, visible,
};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::X4;
use crate::element::{Bf16, F16};
use crate::float::Float;
use crate::row::{self, BLOCK, Partials, Row, WARP, map, piece_if};

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn softmax<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    unsafe { if args.k <= SHORT { body::<E, WARP>(args) } else { body::<E, BLOCK>(args) } }
}

/// # Safety
///
/// As for [`softmax`].
#[inline(always)]
unsafe fn body<E: Float, const T: u32>(args: &Args) {
    let tensors = [args.x.addr(), args.mask.addr(), args.y.addr()];
    let Some(row) = Row::<T>::new::<E>(args.m, args.k, &tensors) else { return };
    let (start, k) = (row.start(), args.k as usize);
    let x = args.x.cast::<E>().as_ptr().cast_const().wrapping_add(start);
    let y = args.y.cast::<E>().as_ptr().wrapping_add(start);
    let masked = !args.mask.is_null(); // the same for every thread
    let mask = args.mask.cast::<E>().as_ptr().cast_const();
    let mask = mask.wrapping_add((row.m % args.mask_rows) as usize * k);
    let seen = visible(row.m, args.k, args.queries);
    let load = |inside: bool, i: u32| {
        let inside = inside && i < seen;
        // SAFETY: x[m, i] and mask[m % MASK_ROWS, i] with i < K.
        let (x, add) = unsafe {
            let add = E::load_if(inside && masked, mask.wrapping_add(i as usize));
            (E::load_if(inside, x.wrapping_add(i as usize)), if masked { add } else { -0.0 })
        };
        if inside { score(x, args.scale, add) } else { f32::NEG_INFINITY }
    };
    let mut top = f32::NEG_INFINITY;
    // SAFETY: the launch has the shared memory; the pieces are those of x[m] and mask[m % MASK_ROWS].
    unsafe {
        if !row.in_pieces() {
            row.fill_ones(|i| {
                let v = load(true, i);
                top = larger(top, v);
                v
            });
        } else if masked || args.queries != 0 {
            let raw = |inside: bool, first: u32| {
                let inside = inside && first < seen; // what is hidden as a whole is not read
                [piece_if(inside, x, first), piece_if(inside && masked, mask, first)]
            };
            row.fill::<E, _, 2>([[0; 4]; 2], raw, |first, [x, add]: [X4<u32>; 2]| {
                let add = E::widen(add);
                map::<E>(first, E::widen(x), |i, x| {
                    let add = if masked { add[(i - first) as usize] } else { -0.0 };
                    let v = if i < seen { score(x, args.scale, add) } else { f32::NEG_INFINITY };
                    top = larger(top, v);
                    v
                })
            });
        } else {
            let raw = |inside: bool, first: u32| piece_if(inside, x, first);
            row.fill::<E, _, 4>([0; 4], raw, |first, x: X4<u32>| {
                map::<E>(first, E::widen(x), |_, x| {
                    let v = score(x, args.scale, -0.0);
                    top = larger(top, v);
                    v
                })
            });
        }
    }
    row.wait();
    row.far(load, |_, v| top = larger(top, v));
    // SAFETY: as above; called once.
    let shift = shift(unsafe { row::max::<T>(top) });

    let log = args.log == 1; // the same for every thread
    let mut partials = Partials::<T>::new();
    // SAFETY: after `fill`; each place is visited by one thread.
    unsafe {
        row.walk(|turn, v, place| {
            let e = term(v, shift);
            partials.take(turn, |acc| acc + e);
            if !log {
                place.write(e);
            }
        });
    }
    row.far(load, |_, v| partials.take(0, |acc| acc + term(v, shift)));
    // SAFETY: as above; the first sum.
    let closing = closing(unsafe { partials.sum(0) }, log);
    row.wait();

    let value = |_: u32, held: f32| if log { (held - shift) - closing } else { held * closing };
    // SAFETY: the terms are there; y[m] belongs to this warp or block.
    unsafe { row.drain(y, |first, values| map::<E>(first, values, value), value) };
    row.far(load, |i, v| {
        let v = if log { v } else { term(v, shift) };
        // SAFETY: y[m, i] with i < K belongs to this thread.
        unsafe { E::store(y.wrapping_add(i as usize), value(i, v)) };
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
