//! The 16-bit tables of [`super::exact`]: sums of two or three int8 activations by code.

use contract::lut_matmul::{Form, pair_entry, table_words, triple_entry};
use contract::w2a8::{act_bytes, act_index};

use crate::arch::mem::ld_if;
use crate::arch::shared::Shared;

/// Where the negative entries of a table begin, in bytes.
pub(super) const NEGATIVE: u32 = 32;

/// Four activations from `4 * word` on; zeros past the end of the row.
///
/// # Safety
///
/// `row` is a row of activations of `k` columns in the order of `contract::w2a8`.
#[inline(always)]
unsafe fn acts_word(row: *const u32, word: u32, k: u32) -> u32 {
    let at = 4 * word as usize;
    // SAFETY: a row has `act_bytes(k)` bytes, whole groups of it, so the word is inside.
    unsafe { ld_if(at < act_bytes(k as usize), row.wrapping_add(act_index(at) / 4)) }
}

/// Builds tables `2 pair` and `2 pair + 1` of the row, which share their loads, into `at`.
///
/// # Safety
///
/// As for [`acts_word`]; `at` starts two tables of shared memory that are this thread's.
#[inline(always)]
pub(super) unsafe fn build<const TL2: bool>(row: *const u32, pair: u32, k: u32, at: Shared<u32>) {
    if TL2 {
        let first = 6 * pair;
        // SAFETY: by the caller.
        let words = unsafe { [acts_word(row, first / 4, k), acts_word(row, first / 4 + 1, k)] };
        let bytes = (u64::from(words[1]) << 32 | u64::from(words[0])) >> (8 * (first % 4));
        let x = |i: u32| (bytes >> (8 * i)) as i8 as i32;
        let mut t = 0;
        while t < 2 {
            let x = [x(3 * t), x(3 * t + 1), x(3 * t + 2)];
            let at = at.add(t * table_words(Form::Tl2));
            let mut word = 0;
            while word < 7 {
                let (a, b) = (triple_entry(2 * word, x), triple_entry(2 * word + 1, x));
                // SAFETY: words below 15 of the table.
                unsafe {
                    at.add(u32::from(word)).write(halves(a, b));
                    at.add(NEGATIVE / 4 + u32::from(word)).write(halves(-a, -b));
                }
                word += 1;
            }
            t += 1;
        }
    } else {
        // SAFETY: by the caller.
        let bytes = unsafe { acts_word(row, pair, k) };
        let x = |i: u32| (bytes >> (8 * i)) as i8 as i32;
        let mut t = 0;
        while t < 2 {
            let x = [x(2 * t), x(2 * t + 1)];
            let at = at.add(t * table_words(Form::Tl1));
            let mut word = 0;
            while word < 5 {
                // Code 9 is none: its half of the last word is never read.
                let (a, b) = (pair_entry(2 * word, x), pair_entry((2 * word + 1) % 9, x));
                // SAFETY: words below 5 of the table.
                unsafe { at.add(u32::from(word)).write(halves(a, b)) };
                word += 1;
            }
            t += 1;
        }
    }
}

/// Two entries in one word.
#[inline(always)]
const fn halves(low: i32, high: i32) -> u32 {
    low as u32 & 0xffff | (high as u32) << 16
}
