//! The order of every floating-point sum.
//!
//! A sum over n elements has 256 partials: partial `p` takes elements p, p + 256, p + 512, ... in
//! that order, starting from 0, with a fused multiply-add where products are summed. Then a binary
//! tree: for distance d = 128, 64, ... 1, partial i takes partial i + d (i < d). Any thread count
//! that divides 256 can make it, and so can vector lanes. Short dots (attention scores, over the
//! head size) do the same with 8 partials.
//!
//! The `*_into` forms run over slices whose inner loop is 256 independent lanes, which compilers
//! vectorise; the closures say the same sums for kernels and oracles.

use super::fma;

/// Partials of a sum.
pub const PARTIALS: usize = 256;
/// Partials of a short dot.
pub const DOT_PARTIALS: usize = 8;

/// Sums the partials: distance 128 down to 1. Leaves intermediate sums behind.
#[inline(always)]
pub fn tree(partials: &mut [f32; PARTIALS]) -> f32 {
    let mut distance = PARTIALS / 2;
    while distance > 0 {
        let (low, high) = partials.split_at_mut(distance);
        for (a, b) in low.iter_mut().zip(high.iter()) {
            *a += *b;
        }
        distance /= 2;
    }
    partials[0]
}

/// Sums eight partials: distance 4, 2, 1.
#[inline(always)]
pub const fn tree8(p: [f32; DOT_PARTIALS]) -> f32 {
    ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
}

/// Partial `p` of a sum over `n` elements; `step(acc, i)` takes element `i` into the chain.
#[inline(always)]
pub fn partial(p: usize, n: usize, mut step: impl FnMut(f32, usize) -> f32) -> f32 {
    let mut acc = 0.0;
    let mut i = p;
    while i < n {
        acc = step(acc, i);
        i += PARTIALS;
    }
    acc
}

/// A whole sum over `n` elements: partials and tree.
#[inline(always)]
pub fn strided_sum(n: usize, mut step: impl FnMut(f32, usize) -> f32) -> f32 {
    let mut partials = [0.0; PARTIALS];
    for (p, slot) in partials.iter_mut().enumerate() {
        *slot = partial(p, n, &mut step);
    }
    tree(&mut partials)
}

/// A short dot of length `n`: 8 partials and their tree. `step(acc, i)` takes element `i`.
#[inline(always)]
pub fn short_dot(n: usize, mut step: impl FnMut(f32, usize) -> f32) -> f32 {
    let mut p = [0.0; DOT_PARTIALS];
    let mut i = 0;
    while i + DOT_PARTIALS <= n {
        for (j, acc) in p.iter_mut().enumerate() {
            *acc = step(*acc, i + j);
        }
        i += DOT_PARTIALS;
    }
    for (j, acc) in p.iter_mut().enumerate() {
        if i + j < n {
            *acc = step(*acc, i + j);
        }
    }
    tree8(p)
}

/// Takes the elements of `x` into the partials by `step(acc, element)`, the first into partial 0.
#[inline(always)]
pub fn take_into<T: Copy>(
    partials: &mut [f32; PARTIALS],
    x: &[T],
    step: impl Fn(f32, T) -> f32 + Copy,
) {
    let (whole, rest) = x.as_chunks::<PARTIALS>();
    for piece in whole {
        for (acc, v) in partials.iter_mut().zip(piece) {
            *acc = step(*acc, *v);
        }
    }
    for (acc, v) in partials.iter_mut().zip(rest) {
        *acc = step(*acc, *v);
    }
}

/// Takes `x` into the partials as plain terms, its first element into partial 0.
#[inline(always)]
pub fn sum_into(partials: &mut [f32; PARTIALS], x: &[f32]) {
    let (whole, rest) = x.as_chunks::<PARTIALS>();
    for piece in whole {
        for (acc, v) in partials.iter_mut().zip(piece) {
            *acc += *v;
        }
    }
    for (acc, v) in partials.iter_mut().zip(rest) {
        *acc += *v;
    }
}

/// Takes the squares of `x` into the partials.
#[inline(always)]
pub fn sum_squares_into(partials: &mut [f32; PARTIALS], x: &[f32]) {
    let (whole, rest) = x.as_chunks::<PARTIALS>();
    for piece in whole {
        for (acc, v) in partials.iter_mut().zip(piece) {
            *acc = fma(*v, *v, *acc);
        }
    }
    for (acc, v) in partials.iter_mut().zip(rest) {
        *acc = fma(*v, *v, *acc);
    }
}

/// Takes the products `x[i] * widen(y[i])` into the partials; stops at the shorter of the two.
#[inline(always)]
pub fn dot_into<T: Copy>(
    partials: &mut [f32; PARTIALS],
    x: &[f32],
    y: &[T],
    widen: impl Fn(T) -> f32,
) {
    // Whole pieces have a length that compilers know: their loop needs no remainder.
    let (xs, ys) = (x.as_chunks::<PARTIALS>().0, y.as_chunks::<PARTIALS>().0);
    for (x, y) in xs.iter().zip(ys) {
        for ((acc, a), b) in partials.iter_mut().zip(x).zip(y) {
            *acc = fma(*a, widen(*b), *acc);
        }
    }
    let whole = xs.len().min(ys.len()) * PARTIALS;
    for ((acc, a), b) in partials.iter_mut().zip(&x[whole..]).zip(&y[whole..]) {
        *acc = fma(*a, widen(*b), *acc);
    }
}

/// The sum of squares of `x`.
#[inline(always)]
pub fn sum_squares(x: &[f32]) -> f32 {
    let mut partials = [0.0; PARTIALS];
    sum_squares_into(&mut partials, x);
    tree(&mut partials)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// The definition, spelt out with no slices.
    fn plain(n: usize, term: impl Fn(f32, usize) -> f32) -> f32 {
        let mut p = [0.0f32; 256];
        for i in 0..n {
            p[i % 256] = term(p[i % 256], i);
        }
        for d in [128, 64, 32, 16, 8, 4, 2, 1] {
            for i in 0..d {
                p[i] += p[i + d];
            }
        }
        p[0]
    }

    #[test]
    fn every_form_gives_the_same_bits() {
        for n in [0, 1, 2, 7, 255, 256, 257, 511, 512, 1000, 2560, 6912] {
            let (x, y) = (noise(n, 1), noise(n, 2));
            let want = plain(n, |acc, i| x[i].mul_add(x[i], acc));
            assert_eq!(sum_squares(&x).to_bits(), want.to_bits(), "{n}");
            assert_eq!(strided_sum(n, |acc, i| fma(x[i], x[i], acc)).to_bits(), want.to_bits());

            let mut p = [0.0; PARTIALS];
            dot_into(&mut p, &x, &y, |v| v);
            let want = plain(n, |acc, i| x[i].mul_add(y[i], acc));
            assert_eq!(tree(&mut p).to_bits(), want.to_bits(), "{n}");

            let mut p = [0.0; PARTIALS];
            sum_into(&mut p, &x);
            assert_eq!(tree(&mut p).to_bits(), plain(n, |acc, i| acc + x[i]).to_bits(), "{n}");

            let mut p = [0.0; PARTIALS];
            take_into(&mut p, &x, |acc, v| fma(v, v, acc));
            assert_eq!(tree(&mut p).to_bits(), sum_squares(&x).to_bits(), "{n}");
        }
    }

    #[test]
    fn fewer_threads_make_the_same_partials() {
        let x = noise(5000, 3);
        let want = sum_squares(&x).to_bits();
        for threads in [1, 2, 32, 64, 128, 256] {
            let mut p = [0.0; PARTIALS];
            for t in 0..threads {
                for q in (t..PARTIALS).step_by(threads) {
                    p[q] = partial(q, x.len(), |acc, i| fma(x[i], x[i], acc));
                }
            }
            assert_eq!(tree(&mut p).to_bits(), want);
        }
    }

    #[test]
    fn short_dots() {
        for n in [0, 1, 4, 7, 8, 9, 64, 80, 128, 250] {
            let (x, y) = (noise(n, 4), noise(n, 5));
            let mut p = [0.0f32; 8];
            for i in 0..n {
                p[i % 8] = x[i].mul_add(y[i], p[i % 8]);
            }
            for d in [4, 2, 1] {
                for i in 0..d {
                    p[i] += p[i + d];
                }
            }
            assert_eq!(short_dot(n, |acc, i| fma(x[i], y[i], acc)).to_bits(), p[0].to_bits());
        }
    }
}
