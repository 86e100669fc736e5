//! Short rows of norms that start anywhere, in shared memory.

use core::cell::Cell;

use contract::launch::DevPtr;

use super::{Family, Held, Norm, Shape, Tensors};
use crate::float::Float;
use crate::row::small::pairs::{self, Halves, Pairs, Words};
use crate::row::small::{self, Make, Small, Values, element};

/// Most elements of a lane: there are registers for the gain and the offset of so many.
const MOST: usize = 16;

/// Most words of a lane.
const WORDS: usize = 9;

/// Gain or offset beside as many elements of a lane.
type Beside<const LEN: usize> = [f32; LEN];

/// A row.
struct Row<'a, const N: usize, const LEN: usize> {
    row: Small<N>,
    x: &'a Values,
    /// Gain and offset beside this lane's elements, which are the same of every row.
    beside: &'a [Beside<LEN>; 2],
    y: &'a Cell<Values>,
}

impl<E: Float, const N: usize, const LEN: usize> Held<E> for Row<'_, N, LEN> {
    #[inline(always)]
    unsafe fn sum(&mut self, _which: u32, step: impl Fn(f32, f32) -> f32) -> f32 {
        self.row.sum::<false>(|i| self.x[i], step)
    }

    #[inline(always)]
    unsafe fn write<const AT_ONCE: usize>(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let ([w, b], mut y) = (self.beside, *self.x);
        let mut i = 0;
        while i < N {
            y[i] = value(self.x[i], w[i], b[i]);
            i += 1;
        }
        self.y.set(y);
    }
}

/// A row in words; what is beside its elements lies as they do.
struct InWords<'a, const LEAST: usize, const W: usize, const LEN: usize> {
    row: Pairs<LEAST, W>,
    x: &'a Halves,
    beside: &'a [Beside<LEN>; 2],
    y: &'a Cell<Halves>,
}

impl<E: Float, const LEAST: usize, const W: usize, const LEN: usize> Held<E>
    for InWords<'_, LEAST, W, LEN>
{
    #[inline(always)]
    unsafe fn sum(&mut self, _which: u32, step: impl Fn(f32, f32) -> f32) -> f32 {
        self.row.sum::<false>(|i| self.x[i], step)
    }

    #[inline(always)]
    unsafe fn write<const AT_ONCE: usize>(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let ([w, b], mut y) = (self.beside, *self.x);
        let mut i = 0;
        while i < W {
            y[i] = core::array::from_fn(|half| {
                value(self.x[i][half], w[2 * i + half], b[2 * i + half])
            });
            i += 1;
        }
        self.y.set(y);
    }
}

/// What is made of rows.
struct Rows<'a, F: Family, E, const LEN: usize> {
    args: &'a F::Args,
    beside: [Beside<LEN>; 2],
    element: core::marker::PhantomData<E>,
}

impl<F: Family, E: Float, const LEN: usize> Make for Rows<'_, F, E, LEN> {
    const MOST: usize = MOST;
    const WORDS: usize = WORDS;
    const NOTHING: u32 = 0;
    const APART: bool = false;

    #[inline(always)]
    unsafe fn make<const N: usize>(&self, row: Small<N>, x: &Values) -> Values {
        let y = Cell::new(*x);
        // SAFETY: handed on.
        unsafe { F::make::<E>(self.args, Row { row, x, beside: &self.beside, y: &y }) };
        y.get()
    }

    #[inline(always)]
    unsafe fn make_pairs<const LEAST: usize, const W: usize>(
        &self,
        row: Pairs<LEAST, W>,
        x: Words,
    ) -> Words {
        let x = x.map(|word| {
            let v = E::widen([word, 0, 0, 0]);
            [v[0], v[1]]
        });
        let y = Cell::new(x);
        // SAFETY: handed on.
        unsafe {
            F::make::<E>(self.args, InWords { row, x: &x, beside: &self.beside, y: &y });
        }
        y.get().map(|[low, high]| E::narrow([low, high, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0])
    }
}

/// Gain or offset beside the elements of this lane, or `nothing`, of rows of `k` elements, which may go in words.
#[inline(always)]
unsafe fn own<E: Float, const LEN: usize, const IN_WORDS: bool>(
    p: *const E,
    nothing: f32,
    (k, of): (u32, contract::row::Small),
) -> Beside<LEN> {
    let mut v = [nothing; LEN];
    if p.is_null() {
        return v;
    }
    let mut i = 0;
    while i < LEN {
        let element =
            if IN_WORDS { pairs::element(k, of, i / 2, i % 2) } else { element::<E>(k, of, i) };
        // SAFETY: an element of it.
        v[i] = unsafe { E::load_if(element < k, p.wrapping_add(element as usize)) };
        i += 1;
    }
    v
}

/// The rows of a block.
///
/// # Safety
///
/// The tensors are those of the contract for elements `E`, and but for gain and offset start on boundaries of 16 bytes; block, grid and shared memory are its.
#[inline(always)]
pub unsafe fn rows<F: Family, E: Float>(
    args: &F::Args,
    tensors: Tensors,
    shape: Shape,
    of: contract::row::Small,
) {
    // SAFETY: handed on.
    unsafe {
        if E::PIECE == 8 && of.paired(shape[1], 2) {
            rows_of::<F, E, { 2 * WORDS }, true>(args, tensors, shape, of);
        } else {
            rows_of::<F, E, MOST, false>(args, tensors, shape, of);
        }
    }
}

/// Those with so many elements in a lane.
///
/// # Safety
///
/// As for [`rows`].
#[inline(always)]
unsafe fn rows_of<F: Family, E: Float, const LEN: usize, const IN_WORDS: bool>(
    args: &F::Args,
    tensors: Tensors,
    shape: Shape,
    of: contract::row::Small,
) {
    let [x, delta, weight, bias, y] = tensors.map(|p: DevPtr<u8>| p.cast::<E>().as_ptr());
    // SAFETY: handed on.
    unsafe {
        let with = (shape[1], of);
        let beside = [(weight, 1.0), (bias, -0.0)]
            .map(|(p, nothing)| own::<E, LEN, IN_WORDS>(p, nothing, with));
        let make = Rows::<F, E, LEN> { args, beside, element: core::marker::PhantomData };
        let (delta, mask) = (delta.cast_const(), core::ptr::null());
        let tensors = small::Tensors { x, delta, mask, mask_rows: 1, y };
        small::rows::<E, _, IN_WORDS>(shape, of, tensors, Norm::<E, true>::sum, &make);
    }
}
