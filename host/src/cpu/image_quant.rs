//! CPU side of [`contract::image_quant`].

use contract::num::{abs_bits, act_scale, quantise};

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::Float;

/// Elements of a task.
const PIECE: usize = 1 << 14;

vectorised! {
    /// The largest magnitude, as bits.
    fn top<T: Float>(x: &[T]) -> u32 {
        x.iter().fold(0, |top, v| top.max(abs_bits(v.widen())))
    }
}

vectorised! {
    /// Numbers of elements.
    fn numbers<T: Float>(x: &[T], scale: f32, q: &mut [i8]) {
        for (q, v) in q.iter_mut().zip(x) {
            *q = quantise(v.widen(), scale);
        }
    }
}

/// Quantises images of `len` elements.
pub fn image_quant<T: Float>(
    threads: &Threads,
    simd: Simd,
    x: &[T],
    q: &mut [i8],
    scales: &mut [f32],
    len: usize,
) {
    for ((x, q), scale) in x.chunks_exact(len).zip(q.chunks_exact_mut(len)).zip(scales) {
        let mut tops = vec![0u32; len.div_ceil(PIECE)];
        threads.run_pieces(&mut tops, 1, |i, top_of| {
            top_of[0] = top(simd, &x[i * PIECE..(i * PIECE + PIECE).min(len)]);
        });
        *scale = act_scale(f32::from_bits(tops.into_iter().max().unwrap_or(0)));
        let scale = *scale;
        threads.run_pieces(q, PIECE, |i, q| {
            numbers(simd, &x[i * PIECE..][..q.len()], scale, q);
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::check_everywhere;
    use crate::reference::ELEMENTS;
    use crate::reference::image_quant::{Case, TEST_SHAPES};

    #[test]
    fn equals_the_reference() {
        for &(n, len) in TEST_SHAPES.iter().filter(|(n, len)| n * len < 50_000) {
            for element in ELEMENTS {
                let case = Case::new(element, n, len, 1);
                check_everywhere(&case, &case.expected());
            }
        }
    }
}
