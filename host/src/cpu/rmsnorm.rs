//! CPU side of [`contract::rmsnorm`].

use contract::norm::around;
use contract::num::{PARTIALS, fma, strided_sum, take_into, tree, tree8};
use contract::parts::{Parts, SEGMENT};
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

/// What [`contract::norm`] states of a segment, a part or a row.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) sum: f32,
    pub(super) squares: f32,
}

/// The sums of a row, around its mean where they are `centred`; of one with more elements than `WHOLE` of the norm, from those of its segments.
#[inline(always)]
pub(super) fn sums<T: Float>(x: &[T], centred: bool) -> Sums {
    let whole = if centred { contract::layernorm::WHOLE } else { contract::rmsnorm::WHOLE };
    if x.len() > whole as usize { long_sums(x, centred) } else { whole_sums(x, centred) }
}

#[inline(always)]
fn whole_sums<T: Float>(x: &[T], centred: bool) -> Sums {
    let mut partials = [0.0; PARTIALS];
    if !centred {
        take_into(&mut partials, x, |acc, v: T| fma(v.widen(), v.widen(), acc));
        return Sums { sum: 0.0, squares: tree(&mut partials) };
    }
    take_into(&mut partials, x, |acc, v: T| acc + v.widen());
    let sum = tree(&mut partials);
    let mean = sum / x.len() as f32;
    let mut partials = [0.0; PARTIALS];
    take_into(&mut partials, x, |acc, v: T| {
        let d = v.widen() - mean;
        fma(d, d, acc)
    });
    Sums { sum, squares: tree(&mut partials) }
}

#[inline(always)]
fn long_sums<T: Float>(x: &[T], centred: bool) -> Sums {
    let k = x.len() as u32;
    let parts = Parts::new(k);
    // The squares of what has so many elements, around another mean.
    let around = |own: Sums, len: u32, mean: f32| {
        if centred { around(own.squares, own.sum, len, mean) } else { own.squares }
    };
    let mut of_parts = Vec::with_capacity(parts.count as usize);
    for part in 0..parts.count {
        let (first, len) = parts.segments(part);
        let elements = parts.elements(part, k);
        let own = &x[(first * SEGMENT) as usize..][..elements as usize];
        let (mut terms, mut squares) = ([0.0; 8], [0.0; 8]);
        let mut segments = [Sums { sum: 0.0, squares: 0.0 }; 8];
        for (i, x) in own.chunks(SEGMENT as usize).enumerate() {
            segments[i] = whole_sums(x, centred);
            terms[i] = segments[i].sum;
        }
        let sum = tree8(terms);
        for (i, x) in own.chunks(SEGMENT as usize).enumerate() {
            squares[i] = around(segments[i], x.len() as u32, sum / elements as f32);
        }
        debug_assert_eq!(own.len().div_ceil(SEGMENT as usize), len as usize);
        of_parts.push(Sums { sum, squares: tree8(squares) });
    }
    let sum = strided_sum(of_parts.len(), |acc, i| acc + of_parts[i].sum);
    let mean = sum / k as f32;
    let squares = strided_sum(of_parts.len(), |acc, i| {
        acc + around(of_parts[i], parts.elements(i as u32, k), mean)
    });
    Sums { sum, squares }
}

/// Adds `delta` to a row, if there is one, and returns the factor of its norm.
#[inline(always)]
pub(super) fn residual<T: Float>(x: &mut [T], delta: Option<&[T]>, eps: f32) -> f32 {
    add_rounded(x, delta);
    inv_rms(sums(x, false).squares, x.len() as u32, eps)
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
    fn rows_with_sums_for_each_segment() {
        for (i, k) in [65_536, 65_537, 70_001, 270_001].into_iter().enumerate() {
            check(&Case::new(ELEMENTS[i % 3], 2, k, i % 2 == 0, 4));
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
