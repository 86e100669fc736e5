//! CPU side of [`contract::softmax`]: a row a task, its scores made anew for each pass, in pieces of 256 that stay in L1: three passes, or
//! two where segments have their own sums.

use contract::num::{PARTIALS, fma, strided_sum, tree, tree8};
use contract::softmax::{
    Parts, SEGMENT, WHOLE, closing, factor, larger, score, segments, shift, term, term_half,
    visible,
};

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::Float;

/// Pieces of a segment.
const PIECES: usize = SEGMENT as usize / PARTIALS;

/// What is added to the scores, or hides them.
#[derive(Clone, Copy)]
pub enum Mask<'a, T> {
    /// Nothing.
    None,
    /// Rows of `k` elements, taken in turn.
    Added(&'a [T]),
    /// Queries of one matrix.
    Causal(usize),
}

/// The tensors and numbers of one row.
#[derive(Clone, Copy)]
struct Row<'a, T> {
    x: &'a [T],
    mask: Option<&'a [T]>,
    /// Elements from here on are hidden.
    seen: usize,
    scale: f32,
}

impl<T: Float> Row<'_, T> {
    /// The scores from `at` on, minus infinity past the last one that is seen.
    #[inline(always)]
    fn scores(self, at: usize) -> [f32; PARTIALS] {
        let mut scores = [f32::NEG_INFINITY; PARTIALS];
        let end = self.seen.min(at + PARTIALS);
        if at >= end {
            return scores;
        }
        match self.mask {
            None => {
                for (v, x) in scores.iter_mut().zip(&self.x[at..end]) {
                    *v = score(x.widen(), self.scale, -0.0);
                }
            }
            Some(mask) => {
                for ((v, x), add) in scores.iter_mut().zip(&self.x[at..end]).zip(&mask[at..end]) {
                    *v = score(x.widen(), self.scale, add.widen());
                }
            }
        }
        scores
    }
}

/// The maximum of some scores and the sum of their terms.
#[derive(Clone, Copy)]
struct Sum {
    top: f32,
    sum: f32,
}

/// The larger of all.
#[inline(always)]
fn largest(tops: impl IntoIterator<Item = f32>) -> f32 {
    tops.into_iter().fold(f32::NEG_INFINITY, larger)
}

/// Maximum and sum of a row from those of its segments.
fn combined(k: usize, segments: &[Sum]) -> Sum {
    let parts = Parts::new(k as u32);
    let part = |part: u32| {
        let (first, len) = parts.segments(part);
        let own = &segments[first as usize..][..len as usize];
        let top = largest(own.iter().map(|sum| sum.top));
        let mut p = [0.0; 8];
        for (p, sum) in p.iter_mut().zip(own) {
            *p = sum.sum * factor(sum.top, top);
        }
        Sum { top, sum: tree8(p) }
    };
    let parts: Vec<Sum> = (0..parts.count).map(part).collect();
    let top = largest(parts.iter().map(|sum| sum.top));
    let sum = strided_sum(parts.len(), |acc, i| fma(parts[i].sum, factor(parts[i].top, top), acc));
    Sum { top, sum }
}

vectorised! {
    /// Maximum and sum of each segment of a row.
    fn sums<T: Float>(row: Row<'_, T>, sums: &mut [Sum]) {
        let half = size_of::<T>() == 2;
        for (i, sum) in sums.iter_mut().enumerate() {
            let scores: [_; PIECES] =
                std::array::from_fn(|piece| row.scores(SEGMENT as usize * i + PARTIALS * piece));
            let mut tops = scores[0];
            for scores in &scores[1..] {
                for (top, v) in tops.iter_mut().zip(scores) {
                    *top = larger(*top, *v);
                }
            }
            let mut top = f32::NEG_INFINITY;
            for t in tops {
                top = larger(top, t);
            }
            let shift = shift(top);
            let mut partials = [0.0; PARTIALS];
            for scores in &scores {
                for (acc, v) in partials.iter_mut().zip(scores) {
                    *acc += if half { term_half(*v, shift) } else { term(*v, shift) };
                }
            }
            *sum = Sum { top, sum: tree(&mut partials) };
        }
    }
}

vectorised! {
    /// The output of a row that has a sum for each segment.
    fn output<T: Float>(row: Row<'_, T>, log: bool, sums: &[Sum], all: Sum, y: &mut [T]) {
        let half = size_of::<T>() == 2;
        let closing = closing(all.sum, all.top, log);
        let shift_of_all = shift(all.top);
        for ((i, y), sum) in y.chunks_mut(SEGMENT as usize).enumerate().zip(sums) {
            let (shift, times) = (shift(sum.top), factor(sum.top, all.top) * closing);
            for (j, y) in y.chunks_mut(PARTIALS).enumerate() {
                let scores = row.scores(SEGMENT as usize * i + PARTIALS * j);
                if log {
                    for (y, v) in y.iter_mut().zip(scores) {
                        *y = T::round((v - shift_of_all) - closing);
                    }
                } else {
                    for (y, v) in y.iter_mut().zip(scores) {
                        let term = if half { term_half(v, shift) } else { term(v, shift) };
                        *y = T::round(term * times);
                    }
                }
            }
        }
    }
}

/// A row of more than [`WHOLE`] elements.
fn long_row<T: Float>(simd: Simd, row: Row<'_, T>, log: bool, y: &mut [T]) {
    let mut segments =
        vec![Sum { top: f32::NEG_INFINITY, sum: 0.0 }; segments(y.len() as u32) as usize];
    sums(simd, row, &mut segments);
    let all = combined(y.len(), &segments);
    output(simd, row, log, &segments, all, y);
}

vectorised! {
    /// One row.
    fn row<T: Float>(row: Row<'_, T>, log: bool, y: &mut [T]) {
        let mut tops = [f32::NEG_INFINITY; PARTIALS];
        for at in (0..row.seen).step_by(PARTIALS) {
            for (top, v) in tops.iter_mut().zip(row.scores(at)) {
                *top = larger(*top, v);
            }
        }
        let mut top = f32::NEG_INFINITY;
        for t in tops {
            top = larger(top, t);
        }
        let shift = shift(top);
        let half = size_of::<T>() == 2;
        let term = |v| if half { term_half(v, shift) } else { term(v, shift) };
        let mut partials = [0.0; PARTIALS];
        for at in (0..row.seen).step_by(PARTIALS) {
            for (acc, v) in partials.iter_mut().zip(row.scores(at)) {
                *acc += term(v);
            }
        }
        let closing = closing(tree(&mut partials), top, log);
        for (i, y) in y.chunks_mut(PARTIALS).enumerate() {
            let scores = row.scores(i * PARTIALS);
            if log {
                for (y, v) in y.iter_mut().zip(scores) {
                    *y = T::round((v - shift) - closing);
                }
            } else {
                for (y, v) in y.iter_mut().zip(scores) {
                    *y = T::round(term(v) * closing);
                }
            }
        }
    }
}

/// Softmax of the rows of `k` scores that `y` holds, or its logarithm.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn softmax<T: Float>(
    threads: &Threads,
    simd: Simd,
    x: &[T],
    mask: Mask<'_, T>,
    y: &mut [T],
    k: usize,
    scale: f32,
    log: bool,
) {
    threads.run_pieces(y, k, |i, y| {
        let x = &x[i * k..][..k];
        let one = match mask {
            Mask::None => Row { x, mask: None, seen: k, scale },
            Mask::Added(mask) => {
                let at = i % (mask.len() / k) * k;
                Row { x, mask: Some(&mask[at..][..k]), seen: k, scale }
            }
            Mask::Causal(queries) => {
                // Both fit: they were compared with the contract's limits.
                let seen = visible(i as u32, k as u32, queries as u32) as usize;
                Row { x, mask: None, seen, scale }
            }
        };
        if k > WHOLE as usize { long_row(simd, one, log, y) } else { row(simd, one, log, y) }
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::check_everywhere;
    use crate::reference::ELEMENTS;
    use crate::reference::softmax::{Case, Mask, TEST_SHAPES, softmax};
    use crate::selftest::Output;

    fn check(case: &Case) {
        check_everywhere(case, &[Output::floats("y", &[case.m, case.k], &softmax(case))]);
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for (i, &(m, k)) in TEST_SHAPES.iter().filter(|(m, k)| m * k < 4000).enumerate() {
            for (j, element) in ELEMENTS.into_iter().enumerate() {
                check(&Case::new(element, m, k, i + j, 1));
            }
        }
    }

    #[test]
    fn rows_with_a_sum_for_each_segment() {
        for (i, k) in [16_385, 20_480, 33_001].into_iter().enumerate() {
            for (j, element) in ELEMENTS.into_iter().enumerate() {
                let mut case = Case::new(element, 3, k, i + 2 * j, 3);
                case.x[k..2 * k].fill(f32::NEG_INFINITY);
                case.x[2 * k + 1024..2 * k + 2048].fill(f32::NEG_INFINITY);
                check(&case);
                case.x[3 * k - 1] = f32::NAN;
                check(&case);
            }
        }
    }

    #[test]
    fn broken_and_hidden_rows() {
        for element in ELEMENTS {
            let mut case = Case::new(element, 5, 300, 0, 2);
            case.x[..300].fill(f32::NEG_INFINITY);
            case.x[310] = f32::NAN;
            case.x[610] = f32::INFINITY;
            case.x[1190] = f32::NAN;
            case.mask = Mask::Causal(5);
            check(&case);
            case.mask = Mask::None;
            check(&case);
            case.log = true;
            check(&case);
        }
    }
}
