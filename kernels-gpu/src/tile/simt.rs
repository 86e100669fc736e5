//! Products of slices in shared memory, without tensor cores: the one arithmetic.
//!
//! A slice holds, for each k, the rows of `A` (columns of `B`) side by side. A thread owns `RM` by
//! `RN` squares of 4 by 4 outputs, `rows / RM` and `columns / RN` apart, so that its reads are 16
//! bytes wide and those of a warp are neighbours. Terms come in the order of k.

use contract::num::fma;

use crate::arch::dot::dp4a_ss;
use crate::arch::shared::Shared;
use crate::arch::warp::Register;

/// One step of a sum.
pub trait Term {
    /// What a slice holds for one k: an element, or four of them.
    type Word: Register;
    /// A sum.
    type Sum: Register;
    /// The empty sum.
    const ZERO: Self::Sum;
    /// `sum + a * b`.
    fn step(a: Self::Word, b: Self::Word, sum: Self::Sum) -> Self::Sum;
    /// `a + b`.
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
}

/// f32, fused multiply-add.
pub enum Fma {}
/// Four i8 in a word.
pub enum Dot4 {}

impl Term for Fma {
    type Word = f32;
    type Sum = f32;
    const ZERO: f32 = 0.0;
    #[inline(always)]
    fn step(a: f32, b: f32, sum: f32) -> f32 {
        fma(a, b, sum)
    }
    #[inline(always)]
    fn add(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl Term for Dot4 {
    type Word = u32;
    type Sum = i32;
    const ZERO: i32 = 0;
    #[inline(always)]
    fn step(a: u32, b: u32, sum: i32) -> i32 {
        dp4a_ss(a, b, sum)
    }
    #[inline(always)]
    fn add(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
}

/// The sums of a thread: `[square row][row][square column][column]`.
pub type Sums<T, const RM: usize, const RN: usize> = [[[[<T as Term>::Sum; 4]; RN]; 4]; RM];

/// Sums without a term.
#[inline(always)]
pub fn zeros<T: Term, const RM: usize, const RN: usize>() -> Sums<T, RM, RN> {
    [[[[T::ZERO; 4]; RN]; 4]; RM]
}

/// Takes `DEPTH` terms into `sums`. `a` and `b` point at this thread's first square in the slice;
/// `a_ld`, `b_ld`: words from one k to the next; `a_next`, `b_next`: words from one square to the
/// next.
///
/// # Safety
///
/// All of that lies in the block's shared memory, aligned to 16 bytes, and no other thread writes it
/// without a barrier between.
#[inline(always)]
pub unsafe fn multiply<T: Term, const DEPTH: u32, const RM: usize, const RN: usize>(
    sums: &mut Sums<T, RM, RN>,
    (a, a_ld, a_next): (Shared<T::Word>, u32, u32),
    (b, b_ld, b_next): (Shared<T::Word>, u32, u32),
) {
    let mut k = 0;
    while k < DEPTH {
        let mut left = [[T::Word::from_word(0); 4]; RM];
        let mut right = [[T::Word::from_word(0); 4]; RN];
        let mut r = 0;
        while r < RM {
            // SAFETY: the caller's promise.
            left[r] = unsafe { a.add(k * a_ld + r as u32 * a_next).read_x4() };
            r += 1;
        }
        let mut c = 0;
        while c < RN {
            // SAFETY: the caller's promise.
            right[c] = unsafe { b.add(k * b_ld + c as u32 * b_next).read_x4() };
            c += 1;
        }
        let mut r = 0;
        while r < RM {
            let mut i = 0;
            while i < 4 {
                let mut c = 0;
                while c < RN {
                    let mut j = 0;
                    while j < 4 {
                        let sum = &mut sums[r][i][c][j];
                        *sum = T::step(left[r][i], right[c][j], *sum);
                        j += 1;
                    }
                    c += 1;
                }
                i += 1;
            }
            r += 1;
        }
        k += 1;
    }
}
