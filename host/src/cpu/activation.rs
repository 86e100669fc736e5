//! CPU side of [`contract::activation`].

use contract::activation::Activation as Kind;
use contract::num::{gelu, gelu_half, gelu_tanh, relu, relu2, silu};

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::Float;

/// Elements of a task.
const PIECE: usize = 1 << 13;

/// Applies `f` to each element, times `up` where there is one.
#[inline(always)]
fn map<T: Float>(x: &[T], up: Option<&[T]>, y: &mut [T], f: impl Fn(f32) -> f32) {
    match up {
        None => {
            for (y, x) in y.iter_mut().zip(x) {
                *y = T::round(f(x.widen()));
            }
        }
        Some(up) => {
            for ((y, x), up) in y.iter_mut().zip(x).zip(up) {
                *y = T::round(f(x.widen()) * up.widen());
            }
        }
    }
}

vectorised! {
    /// Elements side by side.
    pub(super) fn elements<T: Float>(kind: Kind, x: &[T], up: Option<&[T]>, y: &mut [T]) {
        match kind {
            Kind::Relu => map(x, up, y, relu),
            Kind::Relu2 => map(x, up, y, relu2),
            Kind::Silu => map(x, up, y, silu),
            Kind::Gelu if size_of::<T>() == 2 => map(x, up, y, gelu_half),
            Kind::Gelu => map(x, up, y, gelu),
            Kind::GeluTanh => map(x, up, y, gelu_tanh),
        }
    }
}

/// `y = act(x)`, times `up` where there is one.
pub fn activation<T: Float>(
    threads: &Threads,
    simd: Simd,
    kind: Kind,
    x: &[T],
    up: Option<&[T]>,
    y: &mut [T],
) {
    threads.run_pieces(y, PIECE, |i, y| {
        let part = |t| -> &[T] { &<[T]>::as_ref(t)[i * PIECE..][..y.len()] };
        elements(simd, kind, part(x), up.map(part), y);
    });
}

/// `y = act(gate) * up` for rows of `gate_up` that hold `k` gates, then `k` ups.
pub fn fused<T: Float>(
    threads: &Threads,
    simd: Simd,
    kind: Kind,
    gate_up: &[T],
    y: &mut [T],
    k: usize,
) {
    threads.run_pieces(y, k, |i, y| {
        let (gate, up) = gate_up[2 * k * i..][..2 * k].split_at(k);
        elements(simd, kind, gate, Some(up), y);
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::check_everywhere;
    use crate::ops::activation::Kind;
    use crate::reference::ELEMENTS;
    use crate::reference::activation::{Case, TEST_SHAPES, activation};
    use crate::selftest::Output;

    #[test]
    fn equals_the_reference_in_every_form() {
        for (i, &(m, k)) in TEST_SHAPES.iter().filter(|(m, k)| m * k < 4000).enumerate() {
            for (j, kind) in Kind::ALL.into_iter().enumerate() {
                let mut case = Case::new(ELEMENTS[(i + j) % 3], kind, m, k, i + 2 * j, 1);
                case.x[m * k / 2] = f32::NAN;
                case.x[m * k / 3] = f32::NEG_INFINITY;
                check_everywhere(&case, &[Output::floats("y", &[m, k], &activation(&case))]);
            }
        }
    }
}
