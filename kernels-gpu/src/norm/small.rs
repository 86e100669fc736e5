//! The shortest rows of norms, in shared memory.

use contract::launch::DevPtr;

use super::{Family, Held, Norm, Shape, Tensors};
use crate::float::{Float, Piece};
use crate::row::small::{self, Small, element};

/// A row.
struct Row<'a, E, const N: usize> {
    row: Small<E, N>,
    x: Piece,
    /// Gain and offset beside this lane's elements, which are the same of every row.
    beside: &'a [Piece; 2],
}

impl<E: Float, const N: usize> Held<E> for Row<'_, E, N> {
    #[inline(always)]
    unsafe fn sum(&mut self, _which: u32, step: impl Fn(f32, f32) -> f32) -> f32 {
        let one = |i| if i < N && self.row.has(i) { step(0.0, self.x[i]) } else { 0.0 };
        self.row.tree(core::array::from_fn(one))
    }

    #[inline(always)]
    unsafe fn write<const AT_ONCE: usize>(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let [w, b] = self.beside;
        // SAFETY: this row.
        unsafe {
            self.row.put(core::array::from_fn(|i| {
                if i < N { value(self.x[i], w[i], b[i]) } else { 0.0 }
            }));
        }
    }
}

/// The rows of a block.
///
/// # Safety
///
/// The tensors are those of the contract for elements `E`; block, grid and shared memory are its.
#[inline(always)]
pub unsafe fn rows<F: Family, E: Float>(args: &F::Args, tensors: Tensors, shape: Shape) {
    // SAFETY: handed on.
    unsafe {
        match shape[1] {
            ..=4 => rows_of::<F, E, 4>(args, tensors, shape),
            _ => rows_of::<F, E, 8>(args, tensors, shape),
        }
    }
}

/// Those with so many elements in a lane at most.
///
/// # Safety
///
/// As for [`rows`].
#[inline(always)]
unsafe fn rows_of<F: Family, E: Float, const N: usize>(
    args: &F::Args,
    tensors: Tensors,
    shape: Shape,
) {
    let [x, delta, weight, bias, y] = tensors.map(|p: DevPtr<u8>| p.cast::<E>().as_ptr());
    let own = |p: *mut E, nothing: f32| -> Piece {
        core::array::from_fn(|i| {
            let element = element(shape[1], i);
            let there = i < N && !p.is_null() && element < shape[1];
            // SAFETY: an element of it.
            let v = unsafe { E::load_if(there, p.wrapping_add(element as usize).cast_const()) };
            if p.is_null() { nothing } else { v }
        })
    };
    let beside = [own(weight, 1.0), own(bias, -0.0)];
    let make = |row, x| {
        // SAFETY: handed on.
        unsafe { F::make(args, Row { row, x, beside: &beside }) };
    };
    // SAFETY: handed on.
    unsafe { small::rows::<E, N>(shape, (x, delta.cast_const(), y), Norm::<E, true>::sum, make) };
}
