//! CPU side of [`contract::layernorm`].

use contract::layernorm::{inv_deviation, normalise};

use super::rmsnorm::{add_rounded, sums};
use super::simd::vectorised;
use super::threads::RowsMut;
use super::{Simd, Threads};
use crate::ops::Float;

/// Gain and offset, where there are any.
#[derive(Clone, Copy)]
pub struct Affine<'a, T> {
    /// Gain.
    pub weight: Option<&'a [T]>,
    /// Offset.
    pub bias: Option<&'a [T]>,
}

vectorised! {
    /// One row.
    pub(super) fn norm_row<T: Float>(x: &mut [T], delta: Option<&[T]>, affine: Affine<'_, T>, y: &mut [T], eps: f32) {
        add_rounded(x, delta);
        let x = &*x;
        let k = x.len();
        let sums = sums(x, true);
        let mean = sums.sum / k as f32;
        let r = inv_deviation(sums.squares, k as u32, eps);
        // Where there is no gain or offset the neutral numbers take their place.
        let one = |y: &mut T, x: &T, w: f32, b: f32| *y = T::round(normalise(x.widen() - mean, r, w, b));
        match (affine.weight, affine.bias) {
            (Some(weight), Some(bias)) => {
                for (((y, x), w), b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                    one(y, x, w.widen(), b.widen());
                }
            }
            (Some(weight), None) => {
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    one(y, x, w.widen(), -0.0);
                }
            }
            (None, Some(bias)) => {
                for ((y, x), b) in y.iter_mut().zip(x).zip(bias) {
                    one(y, x, 1.0, b.widen());
                }
            }
            (None, None) => {
                for (y, x) in y.iter_mut().zip(x) {
                    one(y, x, 1.0, -0.0);
                }
            }
        }
    }
}

/// `y = layernorm(x + delta)` for the rows of `k` elements that `y` holds; `x` keeps the sum.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn layernorm<T: Float>(
    threads: &Threads,
    simd: Simd,
    x: &mut [T],
    delta: Option<&[T]>,
    affine: Affine<'_, T>,
    y: &mut [T],
    k: usize,
    eps: f32,
) {
    let rows = (RowsMut::new(x, k), RowsMut::new(y, k));
    let m = rows.1.rows();
    threads.run_rows(m, rows, |i, (x, y)| {
        norm_row(simd, x, delta.map(|d| &d[i * k..][..k]), affine, y, eps);
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::check_everywhere;
    use crate::reference::ELEMENTS;
    use crate::reference::layernorm::{Case, TEST_SHAPES, layernorm};
    use crate::selftest::Output;

    #[test]
    fn rows_with_sums_for_each_segment() {
        for (i, k) in [28_672, 28_673, 33_001, 270_001].into_iter().enumerate() {
            let case = Case::new(ELEMENTS[i % 3], 2, k, 7 - i, 4);
            let (x, y) = layernorm(&case);
            let expected = [Output::floats("x", &[2, k], &x), Output::floats("y", &[2, k], &y)];
            check_everywhere(&case, &expected);
        }
    }

    #[test]
    fn equals_the_reference_with_and_without_each_tensor() {
        for (i, &(m, k)) in TEST_SHAPES.iter().filter(|(m, k)| m * k < 4000).enumerate() {
            for (j, element) in ELEMENTS.into_iter().enumerate() {
                let case = Case::new(element, m, k, i + 3 * j, 1);
                let (x, y) = layernorm(&case);
                let dims = [m, k];
                let expected = [Output::floats("x", &dims, &x), Output::floats("y", &dims, &y)];
                check_everywhere(&case, &expected);
            }
        }
    }
}
