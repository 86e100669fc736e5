//! What [`crate::rmsnorm`] and [`crate::layernorm`] share: a row with its residual add, and its output.

use contract::launch::DevPtr;

use crate::float::Float;
use crate::row::{self, BLOCK, HELD_FEW, Partials, element, far};

/// The tensors of a norm, at the row of this warp or block.
pub struct Norm<E> {
    /// `x[m, 0]`; the sum with `delta` is written back.
    pub x: *mut E,
    /// `delta[m, 0]`, or null.
    pub delta: *const E,
    /// Gain, or null.
    pub weight: *const E,
    /// Offset, or null.
    pub bias: *const E,
    /// `y[m, 0]`.
    pub y: *mut E,
    /// Elements of the row.
    pub k: u32,
}

/// Addresses of the tensors `x`, `delta`, `weight`, `bias` and `y`; of the first row.
pub type Tensors = [DevPtr<u8>; 5];

/// Gain and offset of the held elements.
type Affine<const HELD: usize> = [[f32; HELD]; 2];

impl<E: Float> Norm<E> {
    /// Row `m` of `k` elements.
    #[inline(always)]
    pub fn new([x, delta, weight, bias, y]: Tensors, m: u32, k: u32) -> Self {
        let start = m as usize * k as usize;
        let row = |p: DevPtr<u8>| p.cast::<E>().as_ptr().wrapping_add(start);
        Self {
            x: row(x),
            delta: if delta.is_null() { core::ptr::null() } else { row(delta) },
            weight: weight.cast().as_ptr(),
            bias: bias.cast().as_ptr(),
            y: row(y),
            k,
        }
    }

    /// Reads the held elements (zeros past the end), adds `delta` and writes the sums back when there is
    /// one; so does it with the far ones. All are taken into `partials` by `step`.
    ///
    /// # Safety
    ///
    /// The pointers are those of a row of `k`; its elements are this thread's own.
    #[inline(always)]
    pub unsafe fn read<const T: u32, const HELD: usize>(
        &self,
        partials: &mut Partials<T>,
        step: impl Fn(f32, f32) -> f32,
    ) -> [f32; HELD] {
        let (k, add) = (self.k, !self.delta.is_null());
        let sum = |x: f32, delta: f32| if add { E::rounded(x + delta) } else { x };
        let mut held = [0.0; HELD];
        let mut deltas = [0.0; HELD];
        let mut j = 0;
        while j < HELD {
            let i = element::<T>(j);
            // SAFETY: x[m, i] and delta[m, i] with i < K.
            unsafe {
                held[j] = E::load_if(i < k, self.x.cast_const().wrapping_add(i as usize));
                deltas[j] = E::load_if(i < k && add, self.delta.wrapping_add(i as usize));
            }
            j += 1;
        }
        let mut j = 0;
        while j < HELD {
            let i = element::<T>(j);
            held[j] = sum(held[j], deltas[j]);
            if add && i < k {
                // SAFETY: x[m, i] belongs to this thread.
                unsafe { E::store(self.x.wrapping_add(i as usize), held[j]) };
            }
            partials.take(j, |acc| step(acc, held[j]));
            j += 1;
        }
        if T == BLOCK {
            let load = |inside: bool, i: u32| {
                // SAFETY: x[m, i] and delta[m, i] with i < K.
                unsafe {
                    let delta = E::load_if(inside && add, self.delta.wrapping_add(i as usize));
                    sum(E::load_if(inside, self.x.cast_const().wrapping_add(i as usize)), delta)
                }
            };
            far::<T>(HELD, k, load, |j, i, v| {
                if add {
                    // SAFETY: x[m, i] belongs to this thread.
                    unsafe { E::store(self.x.wrapping_add(i as usize), v) };
                }
                partials.take(j, |acc| step(acc, v));
            });
        }
        held
    }

    /// A far element again, after [`Norm::read`]; 0 past the end.
    ///
    /// # Safety
    ///
    /// As for [`Norm::read`].
    #[inline(always)]
    pub unsafe fn again(&self, inside: bool, i: u32) -> f32 {
        // SAFETY: x[m, i] with i < K; this thread wrote it itself, if anyone did.
        unsafe { E::load_if(inside, self.x.cast_const().wrapping_add(i as usize)) }
    }

    /// Gain and offset of the held elements where few are held: their loads then overlap the sums.
    ///
    /// # Safety
    ///
    /// As for [`Norm::read`].
    #[inline(always)]
    pub unsafe fn affine_early<const T: u32, const HELD: usize>(&self) -> Affine<HELD> {
        let mut both = [[0.0; HELD]; 2];
        let mut j = 0;
        while j < HELD && HELD == HELD_FEW {
            let i = element::<T>(j);
            // SAFETY: handed on.
            [both[0][j], both[1][j]] = unsafe { self.affine(i < self.k, i) };
            j += 1;
        }
        both
    }

    /// Gain and offset of element `i`: 1 and -0.0 where there is no tensor.
    #[inline(always)]
    unsafe fn affine(&self, inside: bool, i: u32) -> [f32; 2] {
        let (gain, offset) = (!self.weight.is_null(), !self.bias.is_null());
        // SAFETY: weight[i] and bias[i] with i < K.
        let [weight, bias] = unsafe {
            [
                E::load_if(inside && gain, self.weight.wrapping_add(i as usize)),
                E::load_if(inside && offset, self.bias.wrapping_add(i as usize)),
            ]
        };
        [if gain { weight } else { 1.0 }, if offset { bias } else { -0.0 }]
    }

    /// Writes `value(x, weight, bias)` for the held elements, which are centred, and the far ones, from
    /// which `mean` is taken.
    ///
    /// # Safety
    ///
    /// As for [`Norm::read`]; `held` and `early` are of this row.
    #[inline(always)]
    pub unsafe fn write<const T: u32, const HELD: usize>(
        &self,
        held: [f32; HELD],
        early: Affine<HELD>,
        mean: f32,
        value: impl Fn(f32, f32, f32) -> f32,
    ) {
        let mut j = 0;
        while j < HELD {
            let i = element::<T>(j);
            if i < self.k {
                // SAFETY: i < K; y[m, i] belongs to this thread.
                unsafe {
                    let [w, b] = if HELD == HELD_FEW {
                        [early[0][j], early[1][j]]
                    } else {
                        self.affine(true, i)
                    };
                    E::store(self.y.wrapping_add(i as usize), value(held[j], w, b));
                }
            }
            j += 1;
        }
        if T == BLOCK {
            // SAFETY: handed on.
            far::<T>(
                HELD,
                self.k,
                |inside, i| unsafe { self.again(inside, i) },
                |_, i, v| {
                    // SAFETY: i < K; y[m, i] belongs to this thread.
                    unsafe {
                        let [w, b] = self.affine(true, i);
                        E::store(self.y.wrapping_add(i as usize), value(v - mean, w, b));
                    }
                },
            );
        }
    }
}

/// The row of this warp or block, unless there is none for the warp.
#[inline(always)]
pub fn own_row<const T: u32>(m: u32) -> Option<u32> {
    let row = row::row::<T>();
    if row < m { Some(row) } else { None }
}
