//! Short rows in shared memory.

use contract::softmax::{Args, SMALL, closing, score, shift, small as of, visible};

use super::of_type;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::thread::opaque;
use crate::float::Float;
use crate::row::small::pairs::{Halves, Pairs, Words};
use crate::row::small::{self, Make, Small, Values};

/// What is made of rows.
struct Rows<'a, E> {
    args: &'a Args,
    element: core::marker::PhantomData<E>,
}

impl<E: Float> Make for Rows<'_, E> {
    const MOST: usize = SMALL.lane as usize;
    const WORDS: usize = SMALL.words as usize;
    const APART: bool = true;

    #[inline(always)]
    unsafe fn make<const N: usize>(&self, row: Small<N>, x: &Values) -> Values {
        let args = self.args;
        let mut v = *x;
        let each = |v: &mut Values, f: &dyn Fn(usize, f32) -> f32| {
            let mut i = 0;
            while i < N {
                v[i] = f(i, v[i]);
                i += 1;
            }
        };
        if !args.mask.is_null() {
            // SAFETY: there is a mask.
            each(&mut v, &|i, v| score(v, args.scale, unsafe { row.beside::<E>(i) }));
        } else if args.scale != 1.0 {
            each(&mut v, &|_, v| score(v, args.scale, -0.0));
        }
        each(&mut v, &|i, v| if row.has(i) { v } else { f32::NEG_INFINITY });
        if args.queries > 0 {
            let seen = visible(row.m, args.k, args.queries);
            each(&mut v, &|i, v| if row.element(i) < seen { v } else { f32::NEG_INFINITY });
        }
        let top = row.max(&v);
        let (shift, log) = (shift(top), args.log == 1);
        let mut e = v;
        each(&mut e, &|_, v| of_type::<E>(v, shift));
        let closing = closing(row.sum::<true>(|i| e[i], |acc, e| acc + e), top, log);
        each(&mut e, &|i, e| if log { (v[i] - shift) - closing } else { e * closing });
        e
    }

    #[inline(always)]
    unsafe fn make_pairs<const W: usize>(&self, row: Pairs<W>, mut x: Words) -> Words {
        let args = self.args;
        // What is none of the row's has minus infinity for a score then, as it has for an element.
        row.fill(&mut x, E::LOWEST);
        let widen = |word| {
            let v = E::widen([word, 0, 0, 0]);
            [v[0], v[1]]
        };
        let top = row.max_raw::<E>(&x);
        let (shift, log) = (shift(top), args.log == 1);
        let mut e = x.map(widen);
        each::<W>(&mut e, &|v| of_type::<E>(v, shift));
        let closing = closing(row.sum::<true>(|i| e[i], |acc, e| acc + e), top, log);
        if log {
            // Anew: there are no registers for scores and terms.
            e = x.map(|word| widen(opaque(word)));
            each::<W>(&mut e, &|v| (v - shift) - closing);
        } else {
            each::<W>(&mut e, &|e| e * closing);
        }
        e.map(|[low, high]| E::narrow([low, high, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0])
    }
}

/// Changes the first `W` words of a lane.
#[inline(always)]
fn each<const W: usize>(v: &mut Halves, f: &dyn Fn(f32) -> f32) {
    let mut i = 0;
    while i < W {
        v[i] = v[i].map(f);
        i += 1;
    }
}

/// The rows of a block.
///
/// # Safety
///
/// As for [`super::short`]; the tensors start on boundaries of 16 bytes.
#[inline(always)]
pub(super) unsafe fn rows<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let [x, mask, y] = [args.x, args.mask, args.y].map(|p| p.cast::<E>().as_ptr());
    let tensors = small::Tensors {
        x,
        delta: core::ptr::null(),
        mask: mask.cast_const(),
        mask_rows: args.mask_rows,
        y,
    };
    let make = Rows::<E> { args, element: core::marker::PhantomData };
    // SAFETY: handed on.
    unsafe {
        let (shape, of) = ([args.m, args.k], of(args));
        if E::PIECE == 8 && of.paired(args.k, 2) {
            small::rows::<E, _, true>(shape, of, tensors, |x, _| x, &make);
        } else {
            small::rows::<E, _, false>(shape, of, tensors, |x, _| x, &make);
        }
    }
}
