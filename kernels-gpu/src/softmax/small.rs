//! Short rows in shared memory.

use contract::row;
use contract::softmax::{Args, SMALL, closing, score, shift, small as of, visible};

use super::of_type;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::thread::opaque;
use crate::arch::warp::sync_warp;
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
    /// As its elements, with minus infinity for a score.
    const NOTHING: u32 = E::LOWEST;
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
    unsafe fn make_pairs<const LEAST: usize, const W: usize>(
        &self,
        row: Pairs<LEAST, W>,
        x: Words,
    ) -> Words {
        let args = self.args;
        let widen = |word| {
            let v = E::widen([word, 0, 0, 0]);
            [v[0], v[1]]
        };
        let top = row.max_raw::<E>(&x);
        let (shift, log) = (shift(top), args.log == 1);
        let mut e = [[0.0; 2]; _];
        let mut term = |i: usize, word: u32| {
            e[i] = widen(word).map(|v| of_type::<E>(v, shift));
        };
        // Those behind branches first: what is between branches would wait in registers, half done.
        let mut i = LEAST;
        while i < W {
            if row.there(i) {
                // All lanes take the branch together; without this the assembler would do what is behind it for none.
                sync_warp();
                term(i, opaque(x[i]));
            }
            i += 1;
        }
        let mut i = 0;
        while i < LEAST {
            term(i, x[i]);
            i += 1;
        }
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

/// The rows of a block, where they do not go in words; on GPUs with a kernel for those, no others come.
///
/// # Safety
///
/// As for [`super::short`]; the tensors start on boundaries of 16 bytes.
#[inline(always)]
pub(super) unsafe fn rows<E: Float>(args: &Args) {
    // SAFETY: handed on.
    unsafe { block::<E, false>(args, of(args)) }
}

/// Those that do.
///
/// # Safety
///
/// As for [`rows`]; they are such ones.
#[inline(always)]
pub(super) unsafe fn words<E: Float>(args: &Args) {
    // SAFETY: the caller's promise.
    unsafe {
        core::hint::assert_unchecked(SMALL.paired(args.k, 2));
        block::<E, true>(args, SMALL);
    }
}

/// Either of them.
///
/// # Safety
///
/// As for these.
#[inline(always)]
unsafe fn block<E: Float, const IN_WORDS: bool>(args: &Args, of: row::Small) {
    launch_dependents();
    dependency_wait();
    let [x, mask, y] = [args.x, args.mask, args.y].map(|p| p.cast::<E>().as_ptr());
    let tensors = small::Tensors {
        x,
        delta: core::ptr::null(),
        mask: if IN_WORDS { core::ptr::null() } else { mask.cast_const() },
        mask_rows: args.mask_rows,
        y,
    };
    let make = Rows::<E> { args, element: core::marker::PhantomData };
    // SAFETY: handed on.
    unsafe { small::rows::<E, _, IN_WORDS>([args.m, args.k], of, tensors, |x, _| x, &make) }
}
