//! CPU side of [`contract::elementwise`].

use contract::elementwise::Function;
use contract::num::relu;

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::Float;

/// Elements of a task, at least.
const PIECE: usize = 1 << 13;

/// A function of the contract with its factors.
#[derive(Clone, Copy)]
pub struct Form {
    /// Which one.
    pub function: Function,
    /// Factor of the first operand.
    pub alpha: f32,
    /// Factor of the second, or what is added.
    pub beta: f32,
    /// Whether a relu follows.
    pub relu: bool,
}

/// Applies `f` to each pair; an absent `b` is zeros.
#[inline(always)]
fn map<T: Float>(a: &[T], b: Option<&[T]>, y: &mut [T], f: impl Fn(f32, f32) -> f32) {
    match b {
        None => {
            for (y, a) in y.iter_mut().zip(a) {
                *y = T::round(f(a.widen(), 0.0));
            }
        }
        Some(b) => {
            for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                *y = T::round(f(a.widen(), b.widen()));
            }
        }
    }
}

vectorised! {
    /// Elements side by side.
    fn elements<T: Float>(form: Form, a: &[T], b: Option<&[T]>, y: &mut [T]) {
        let Form { alpha, beta, .. } = form;
        let last = |v: f32| if form.relu { relu(v) } else { v };
        match form.function {
            Function::Add => map(a, b, y, |a, b| last(Function::Add.apply(a, b, alpha, beta))),
            Function::Mul => map(a, b, y, |a, b| last(Function::Mul.apply(a, b, alpha, beta))),
            Function::Axpby => map(a, b, y, |a, b| last(Function::Axpby.apply(a, b, alpha, beta))),
            Function::Affine => map(a, b, y, |a, b| last(Function::Affine.apply(a, b, alpha, beta))),
        }
    }
}

/// `y = form(a, b)`; `b` is as long as `y`, or one row of `k` elements for all, or absent.
pub fn elementwise<T: Float>(
    threads: &Threads,
    simd: Simd,
    form: Form,
    a: &[T],
    b: Option<&[T]>,
    y: &mut [T],
    k: usize,
) {
    let len = y.len();
    match b {
        Some(row) if row.len() == k && k < len => {
            let rows = PIECE.div_ceil(k);
            threads.run_pieces(y, rows * k, |i, y| {
                for (j, y) in y.chunks_mut(k).enumerate() {
                    elements(simd, form, &a[(i * rows + j) * k..][..k], Some(row), y);
                }
            });
        }
        _ => threads.run_pieces(y, PIECE, |i, y| {
            let b = b.map(|b| &b[i * PIECE..][..y.len()]);
            elements(simd, form, &a[i * PIECE..][..y.len()], b, y);
        }),
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::check_everywhere;
    use crate::reference::ELEMENTS;
    use crate::reference::elementwise::{Case, TEST_SHAPES, elementwise};
    use crate::selftest::Output;

    #[test]
    fn equals_the_reference_in_every_form() {
        for (i, &(m, k)) in TEST_SHAPES.iter().filter(|(m, k)| m * k < 4000).enumerate() {
            for kind in 0..16 {
                let case = Case::new(ELEMENTS[(i + kind) % 3], m, k, kind, 1);
                check_everywhere(&case, &[Output::floats("y", &[m, k], &elementwise(&case))]);
            }
        }
    }
}
