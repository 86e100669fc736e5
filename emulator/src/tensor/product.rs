//! Dense products of small matrices.

use std::ops::{Add, Mul, Neg};

use super::fragment::{Left, Right};

/// A type that sums are made in, exactly or to be rounded once.
pub(super) trait Sum:
    Copy + Default + Add<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// Whether eight of them, and not four, fit a register of 256 bits.
    const NARROW: bool;

    /// What a sum starts from, where accumulator `c` is to be added to.
    fn start(c: u32) -> Self;

    /// `self` by `b`, and `sum`, rounded once.
    fn fused(self, b: Self, sum: Self) -> Self;

    /// The accumulator after it.
    fn finish(self, c: u32) -> u32;
}

/// Of floats: every product of two factors of up to 24 bits is exact. The sum is rounded to f32 once; hardware
/// sums in an order, and with a rounding, that are not documented.
impl Sum for f64 {
    const NARROW: bool = false;

    #[inline(always)]
    fn start(c: u32) -> Self {
        f32::from_bits(c).into()
    }

    #[inline(always)]
    fn fused(self, b: Self, sum: Self) -> Self {
        self.mul_add(b, sum)
    }

    #[inline(always)]
    fn finish(self, _: u32) -> u32 {
        if self.is_nan() { 0x7fff_ffff } else { (self as f32).to_bits() }
    }
}

/// Of integers: 32 products of 8-bit factors are below 2^24, so that every sum is exact.
impl Sum for f32 {
    const NARROW: bool = true;

    #[inline(always)]
    fn start(_: u32) -> Self {
        0.0
    }

    #[inline(always)]
    fn fused(self, b: Self, sum: Self) -> Self {
        self.mul_add(b, sum)
    }

    #[inline(always)]
    fn finish(self, c: u32) -> u32 {
        (self as i32 as u32).wrapping_add(c)
    }
}

/// Adds the product of 16 rows and eight columns to the accumulators of a warp; without `add`, those were zeros.
///
/// In register `i` lane `l` has row `l / 4 + 8 (i / 2)` and column `2 (l % 4) + i % 2`.
pub(super) fn multiply<T: Sum, const E: usize>(
    a: &Left<T, E>,
    b: &Right<T, E>,
    d: &mut [[u32; 32]; 4],
    add: bool,
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: this processor has both.
        unsafe { multiply_avx2(a, b, d, add) };
        return;
    }
    accumulate(a, b, d, add, |a, b, sum| sum + a * b);
}

/// [`multiply`] for AVX2. Products are exact, so that fusing them with the sum changes nothing.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_avx2<T: Sum, const E: usize>(
    a: &Left<T, E>,
    b: &Right<T, E>,
    d: &mut [[u32; 32]; 4],
    add: bool,
) {
    accumulate(a, b, d, add, T::fused);
}

/// See [`multiply`]; `fused(a, b, sum)` is `sum + a b`.
#[inline(always)]
fn accumulate<T: Sum, const E: usize>(
    a: &Left<T, E>,
    b: &Right<T, E>,
    d: &mut [[u32; 32]; 4],
    add: bool,
    fused: impl Fn(T, T, T) -> T,
) {
    if !add {
        *d = [[0; 32]; 4];
    }
    let mut sums = [[T::default(); 8]; 16];
    each(|i, lane, row, column| sums[row][column] = T::start(d[i][lane]));
    if T::NARROW {
        rows::<T, E, 8>(a, b, &mut sums, fused);
    } else {
        rows::<T, E, 4>(a, b, &mut sums, fused);
    }
    each(|i, lane, row, column| d[i][lane] = sums[row][column].finish(d[i][lane]));
}

/// Calls with every register, lane, row and column of an accumulator.
#[inline(always)]
fn each(mut call: impl FnMut(usize, usize, usize, usize)) {
    for i in 0..4 {
        for lane in 0..32 {
            call(i, lane, lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
        }
    }
}

/// Adds products to sums, `R` rows at a time in registers.
#[inline(always)]
fn rows<T: Sum, const E: usize, const R: usize>(
    a: &Left<T, E>,
    b: &Right<T, E>,
    sums: &mut [[T; 8]; 16],
    fused: impl Fn(T, T, T) -> T,
) {
    for (a, to) in a.as_chunks::<R>().0.iter().zip(sums.as_chunks_mut::<R>().0) {
        let mut sums = *to;
        for (half, b) in b.iter().enumerate() {
            for (term, b) in b.iter().enumerate() {
                for (a, sums) in a.iter().zip(&mut sums) {
                    let a = a[half][term];
                    for (sum, &b) in sums.iter_mut().zip(b) {
                        *sum = fused(a, b, *sum);
                    }
                }
            }
        }
        *to = sums;
    }
}
