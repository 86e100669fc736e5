//! CPU side of [`contract::rmsnorm`].

use contract::num::sum_squares;
use contract::rmsnorm::{inv_rms, normalise};

use super::simd::vectorised;
use super::threads::RowsMut;
use super::{Simd, Threads};

/// Adds `delta` to a row, if there is one, and returns the factor of its norm.
#[inline(always)]
pub(super) fn residual(x: &mut [f32], delta: Option<&[f32]>, eps: f32) -> f32 {
    if let Some(delta) = delta {
        for (x, d) in x.iter_mut().zip(delta) {
            *x += *d;
        }
    }
    inv_rms(sum_squares(x), x.len() as u32, eps)
}

vectorised! {
    /// One row.
    fn norm_row(x: &mut [f32], delta: Option<&[f32]>, weight: &[f32], y: &mut [f32], eps: f32) {
        let r = residual(x, delta, eps);
        for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
            *y = normalise(*x, r, *w);
        }
    }
}

/// `y = rmsnorm(x + delta) * weight` for rows of `weight.len()` elements, as many as `y` holds;
/// `x` keeps the sum.
pub fn rmsnorm(
    threads: &Threads,
    simd: Simd,
    x: &mut [f32],
    delta: Option<&[f32]>,
    weight: &[f32],
    y: &mut [f32],
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
    use crate::cpu::tests::{bits, every_backend, upload};
    use crate::ops::{Backend, rmsnorm::RmsNorm};
    use crate::reference::rmsnorm::{self as reference, Case, TEST_SHAPES};
    use proptest::prelude::*;

    fn check(case: &Case) {
        let (sum, want) = reference::rmsnorm(case);
        let &Case { m, k, eps, .. } = case;
        every_backend(|backend| {
            let mut x = upload(backend, &case.x);
            let delta = case.delta.as_ref().map(|d| upload(backend, d));
            let weight = upload(backend, &case.weight);
            let mut y = upload(backend, &vec![f32::NAN; m * k]);
            let (delta, weight) = (delta.as_ref(), &weight);
            backend
                .rmsnorm(RmsNorm { x: &mut x, delta, weight, y: &mut y, m, k, eps })
                .expect("fits");
            assert_eq!(bits(y.as_slice()), bits(&want), "{m} {k}");
            assert_eq!(bits(x.as_slice()), bits(&sum), "{m} {k}");
        });
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &(m, k) in TEST_SHAPES {
            check(&Case::new(m, k, true, 1));
            check(&Case::new(m, k, false, 2));
        }
    }

    #[test]
    fn broken_rows_stay_broken_and_alone() {
        let mut case = Case::new(4, 300, true, 3);
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
            check(&Case::new(m, k, delta, seed));
        }
    }
}
