//! Short rows of norms that start anywhere, in shared memory.

use core::cell::Cell;

use contract::launch::DevPtr;

use super::{Family, Held, Norm, Shape, Tensors};
use crate::float::Float;
use crate::row::small::{self, Make, Small, Values, element};

/// Most elements of a lane: there are registers for the gain and the offset of so many.
const MOST: usize = 16;

/// A row.
struct Row<'a, const N: usize> {
    row: Small<N>,
    x: &'a Values,
    /// Gain and offset beside this lane's elements, which are the same of every row.
    beside: &'a [Values; 2],
    y: &'a Cell<Values>,
}

impl<E: Float, const N: usize> Held<E> for Row<'_, N> {
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

/// What is made of rows.
struct Rows<'a, F: Family, E> {
    args: &'a F::Args,
    beside: [Values; 2],
    element: core::marker::PhantomData<E>,
}

impl<F: Family, E: Float> Make for Rows<'_, F, E> {
    const MOST: usize = MOST;

    #[inline(always)]
    unsafe fn make<const N: usize>(&self, row: Small<N>, x: &Values) -> Values {
        let y = Cell::new(*x);
        // SAFETY: handed on.
        unsafe { F::make::<E>(self.args, Row { row, x, beside: &self.beside, y: &y }) };
        y.get()
    }
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
    let [x, delta, weight, bias, y] = tensors.map(|p: DevPtr<u8>| p.cast::<E>().as_ptr());
    let own = |p: *mut E, nothing: f32| -> Values {
        core::array::from_fn(|i| {
            let element = element::<E>(shape[1], of, i);
            let there = i < MOST && !p.is_null() && element < shape[1];
            // SAFETY: an element of it.
            let v = unsafe { E::load_if(there, p.wrapping_add(element as usize).cast_const()) };
            if p.is_null() { nothing } else { v }
        })
    };
    let beside = [own(weight, 1.0), own(bias, -0.0)];
    let make = Rows::<F, E> { args, beside, element: core::marker::PhantomData };
    // SAFETY: handed on.
    unsafe {
        let (delta, mask) = (delta.cast_const(), core::ptr::null());
        let tensors = small::Tensors { x, delta, mask, mask_rows: 1, y };
        small::rows::<E, _>(shape, of, tensors, Norm::<E, true>::sum, &make);
    }
}
