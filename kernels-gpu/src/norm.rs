//! What [`crate::rmsnorm`] and [`crate::layernorm`] share: a row with its residual add, and its output.

use contract::launch::DevPtr;

use crate::arch::mem::{X4, st_x4};
use crate::float::{Float, Piece};
use crate::row::{Row, map, piece_if};

/// The tensors of a norm, at the row of this warp or block.
pub struct Norm<E, const T: u32> {
    /// The row.
    pub row: Row<T>,
    /// `x[m, 0]`; the sum with `delta` is written back.
    x: *mut E,
    /// `delta[m, 0]`, or null.
    delta: *const E,
    /// Gain, or null.
    weight: *const E,
    /// Offset, or null.
    bias: *const E,
    /// `y[m, 0]`.
    y: *mut E,
}

/// Addresses of the tensors `x`, `delta`, `weight`, `bias` and `y`; of the first row.
pub type Tensors = [DevPtr<u8>; 5];

impl<E: Float, const T: u32> Norm<E, T> {
    /// The row of `k` elements of this warp or block, unless there are only `rows`.
    #[inline(always)]
    pub fn new(tensors: Tensors, rows: u32, k: u32) -> Option<Self> {
        let row = Row::new::<E>(rows, k, &tensors.map(DevPtr::addr))?;
        let [x, delta, weight, bias, y] = tensors;
        let at = |p: DevPtr<u8>| p.cast::<E>().as_ptr().wrapping_add(row.start());
        let delta = if delta.is_null() { core::ptr::null() } else { at(delta).cast_const() };
        let (weight, bias) = (weight.cast().as_ptr(), bias.cast().as_ptr());
        Some(Self { row, x: at(x), delta, weight, bias, y: at(y) })
    }

    /// Loads the held elements, with `delta` added and the sums written back when there is one.
    ///
    /// *Convergence*: every thread of the warp or block calls it.
    ///
    /// # Safety
    ///
    /// The block has `contract::row::SMEM_BYTES` of shared memory; the pointers are those of a row of the
    /// contract's table.
    #[inline(always)]
    pub unsafe fn fill(&self) {
        let add = !self.delta.is_null(); // the same for every thread
        let x = self.x.cast_const();
        // SAFETY: pieces and elements of x[m] and delta[m]; those of x[m] belong to this thread.
        unsafe {
            if !self.row.in_pieces() {
                self.row.fill_ones(|i| {
                    let value = self.sum(true, i);
                    if add {
                        E::store(self.x.wrapping_add(i as usize), value);
                    }
                    value
                });
            } else if add {
                let raw = |inside: bool, first: u32| {
                    [piece_if(inside, x, first), piece_if(inside, self.delta, first)]
                };
                self.row.fill::<E, _, 2>([[0; 4]; 2], raw, |first, [x, delta]: [X4<u32>; 2]| {
                    let delta = E::widen(delta);
                    let sum = map::<E>(0, E::widen(x), |i, x| x + delta[i as usize]);
                    let sum = E::narrow(sum);
                    st_x4(self.x.wrapping_add(first as usize).cast(), sum);
                    E::widen(sum)
                });
            } else {
                let raw = |inside: bool, first: u32| piece_if(inside, x, first);
                self.row.fill::<E, _, 4>([0; 4], raw, |_, x: X4<u32>| E::widen(x));
            }
        }
        self.row.wait();
    }

    /// `x[m, i] + delta[m, i]`, rounded; 0 when `inside` does not hold.
    #[inline(always)]
    unsafe fn sum(&self, inside: bool, i: u32) -> f32 {
        let add = !self.delta.is_null();
        // SAFETY: i < K.
        let (x, delta) = unsafe {
            (
                E::load_if(inside, self.x.cast_const().wrapping_add(i as usize)),
                E::load_if(inside && add, self.delta.wrapping_add(i as usize)),
            )
        };
        if add { E::rounded(x + delta) } else { x }
    }

    /// The far elements for the first time: adds `delta` and writes back.
    ///
    /// # Safety
    ///
    /// As for [`Norm::fill`].
    #[inline(always)]
    pub unsafe fn far_first(&self, mut each: impl FnMut(f32)) {
        let add = !self.delta.is_null();
        // SAFETY: x[m, i] and delta[m, i] with i < K; x[m, i] belongs to this thread.
        unsafe {
            self.row.far(
                |inside, i| self.sum(inside, i),
                |i, v| {
                    if add {
                        E::store(self.x.wrapping_add(i as usize), v);
                    }
                    each(v);
                },
            );
        }
    }

    /// The far elements again.
    ///
    /// # Safety
    ///
    /// After [`Norm::far_first`].
    #[inline(always)]
    pub unsafe fn far_again(&self, each: impl FnMut(u32, f32)) {
        let x = self.x.cast_const();
        // SAFETY: x[m, i] with i < K; this thread wrote it itself, if anyone did.
        self.row.far(|inside, i| unsafe { E::load_if(inside, x.wrapping_add(i as usize)) }, each);
    }

    /// Writes `value(x, weight, bias)` for all elements; weight 1 and bias -0.0 where there are none.
    ///
    /// # Safety
    ///
    /// After [`Norm::far_first`].
    #[inline(always)]
    pub unsafe fn write(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let (gain, offset) = (!self.weight.is_null(), !self.bias.is_null());
        let piece = |first: u32, x: Piece| {
            // SAFETY: pieces of the weight and the bias.
            let [w, b] =
                unsafe { [piece_if(gain, self.weight, first), piece_if(offset, self.bias, first)] };
            let (w, b) = (E::widen(w), E::widen(b));
            map::<E>(0, x, |i, x| {
                let w = if gain { w[i as usize] } else { 1.0 };
                let b = if offset { b[i as usize] } else { -0.0 };
                value(x, w, b)
            })
        };
        let one = |i: u32, x: f32| {
            // SAFETY: weight[i] and bias[i] with i < K.
            let [w, b] = unsafe {
                [
                    E::load_if(gain, self.weight.wrapping_add(i as usize)),
                    E::load_if(offset, self.bias.wrapping_add(i as usize)),
                ]
            };
            value(x, if gain { w } else { 1.0 }, if offset { b } else { -0.0 })
        };
        // SAFETY: the row's elements are there; y[m] belongs to this warp or block.
        unsafe {
            self.row.drain(self.y, piece, one);
            self.far_again(|i, x| E::store(self.y.wrapping_add(i as usize), one(i, x)));
        }
    }
}
