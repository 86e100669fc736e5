//! The shortest rows, in shared memory.

use contract::softmax::{Args, closing, score, shift, visible};

use super::of_type;
use crate::float::Float;
use crate::row::small;

/// The rows of a block.
///
/// # Safety
///
/// As for [`super::short`].
#[inline(always)]
pub(super) unsafe fn rows<E: Float>(args: &Args) {
    // SAFETY: handed on.
    unsafe {
        match args.k {
            ..=4 => rows_of::<E, 4>(args),
            _ => rows_of::<E, 8>(args),
        }
    }
}

/// Those with so many elements in a lane at most.
///
/// # Safety
///
/// As for [`rows`].
#[inline(always)]
unsafe fn rows_of<E: Float, const N: usize>(args: &Args) {
    let [x, mask, y] = [args.x, args.mask, args.y].map(|p| p.cast::<E>().as_ptr());
    let tensors = (x, core::ptr::null(), y);
    let make = |row: small::Small<E, N>, x: [f32; 8]| {
        let seen = if row.k == 0 { 0 } else { visible(row.m, args.k, args.queries) };
        let mask_row = row.m % args.mask_rows * args.k;
        let v = core::array::from_fn(|i| {
            if i >= N {
                return f32::NEG_INFINITY;
            }
            let element = row.element(i);
            let mut added = -0.0;
            if !args.mask.is_null() {
                let at = mask.wrapping_add(mask_row as usize + element as usize);
                // SAFETY: an element of the mask.
                added = unsafe { E::load_if(element < seen, at.cast_const()) };
            }
            if element < seen { score(x[i], args.scale, added) } else { f32::NEG_INFINITY }
        });
        let top = row.max(v);
        let shift = shift(top);
        let terms = core::array::from_fn(|i| if i < N { of_type::<E>(v[i], shift) } else { 0.0 });
        let log = args.log == 1;
        let closing = closing(row.tree(terms), top, log);
        let out = core::array::from_fn(|i| {
            if i >= N {
                0.0
            } else if log {
                (v[i] - shift) - closing
            } else {
                terms[i] * closing
            }
        });
        // SAFETY: this row.
        unsafe { row.put(out) };
    };
    // SAFETY: handed on.
    unsafe { small::rows::<E, N>([args.m, args.k], tensors, |x, _| x, make) };
}
