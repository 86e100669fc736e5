//! CPU side of [`contract::rmsnorm`].

use contract::num::{PARTIALS, fma, take_into, tree};
use contract::rmsnorm::{inv_rms, normalise};

use super::simd::vectorised;
use super::threads::RowsMut;
use super::{Simd, Threads};
use crate::ops::Float;

/// Adds `delta` to a row, if there is one.
#[inline(always)]
pub(super) fn add_rounded<T: Float>(x: &mut [T], delta: Option<&[T]>) {
    if let Some(delta) = delta {
        for (x, d) in x.iter_mut().zip(delta) {
            *x = T::round(x.widen() + d.widen());
        }
    }
}

/// Adds `delta` to a row, if there is one, and returns the factor of its norm.
#[inline(always)]
pub(super) fn residual<T: Float>(x: &mut [T], delta: Option<&[T]>, eps: f32) -> f32 {
    add_rounded(x, delta);
    let mut partials = [0.0; PARTIALS];
    take_into(&mut partials, x, |acc, v: T| fma(v.widen(), v.widen(), acc));
    inv_rms(tree(&mut partials), x.len() as u32, eps)
}

vectorised! {
    /// One row.
    fn norm_row<T: Float>(x: &mut [T], delta: Option<&[T]>, weight: &[T], y: &mut [T], eps: f32) {
        let r = residual(x, delta, eps);
        for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
            *y = T::round(normalise(x.widen(), r, w.widen()));
        }
    }
}

/// `y = rmsnorm(x + delta) * weight` for rows of `weight.len()` elements, as many as `y` holds;
/// `x` keeps the sum.
pub fn rmsnorm<T: Float>(
    threads: &Threads,
    simd: Simd,
    x: &mut [T],
    delta: Option<&[T]>,
    weight: &[T],
    y: &mut [T],
    eps: f32,
) {
    let k = weight.len();
    let rows = (RowsMut::new(x, k), RowsMut::new(y, k));
    let m = rows.1.rows();
    threads.run_rows(m, rows, |i, (x, y)| {
        norm_row(simd, x, delta.map(|d| &d[i * k..][..k]), weight, y, eps);
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::check_everywhere;
    use crate::reference::ELEMENTS;
    use crate::reference::rmsnorm::{Case, TEST_SHAPES, rmsnorm};
    use crate::selftest::Output;
    use proptest::prelude::*;

    fn check(case: &Case) {
        let ((x, y), dims) = (rmsnorm(case), [case.m, case.k]);
        check_everywhere(case, &[Output::floats("x", &dims, &x), Output::floats("y", &dims, &y)]);
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &(m, k) in TEST_SHAPES.iter().filter(|(m, k)| m * k < 4000) {
            for (i, element) in ELEMENTS.into_iter().enumerate() {
                check(&Case::new(element, m, k, (m + i) % 2 == 0, 1));
            }
        }
    }

    #[test]
    fn broken_rows_stay_broken_and_alone() {
        let mut case = Case::new(ELEMENTS[0], 4, 300, true, 3);
        case.x[7] = f32::NAN;
        case.x[300] = f32::INFINITY;
        case.x[600..900].fill(0.0);
        case.delta = None;
        check(&case);
        case.eps = 0.0;
        check(&case);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn equals_the_reference_on_any_shape(m in 1usize..5, k in 1usize..1200, delta: bool, seed: u64) {
            check(&Case::new(ELEMENTS[seed as usize % 3], m, k, delta, seed));
        }
    }
}
