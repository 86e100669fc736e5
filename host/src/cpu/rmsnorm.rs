//! CPU side of [`contract::rmsnorm`].

use contract::num::sum_squares;
use contract::rmsnorm::{inv_rms, normalise};

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
        simd.with(|| {
            let r = residual(x, delta.map(|d| &d[i * k..][..k]), eps);
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y = normalise(*x, r, *w);
            }
        });
    });
}
