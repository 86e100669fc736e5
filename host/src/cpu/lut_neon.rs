//! Lookups of [`super::lut_matmul`] and [`super::lut_lossy`] for AArch64: byte shuffles.
//!
//! As in the x86-64 code an exact entry is two base-31 digits in two planes of 16 bytes; `tbl` reads 16
//! of one plane. Eight lookups of a step add up inside bytes, ten steps inside 16 bits.

use std::arch::aarch64::*;

use contract::lut_matmul::{STEP_LOOKUPS, TILE, pair_entry, triple_entry};

use super::lut_lossy;
use super::lut_matmul::{Lookups, Sums, Table};

/// The weight of the high digit.
const BASE: i32 = 31;
/// Steps whose sums a 16-bit lane holds: 10 of at most 8 * 384.
const WIDEN: usize = 10;

/// Pairs.
pub(super) static NEON_TL1: Lookups = Lookups { build: build_tl1, add: add_tl1 };
/// Triples.
pub(super) static NEON_TL2: Lookups = Lookups { build: build_tl2, add: add_tl2 };

fn build_tl1(q: &[i8], tables: &mut [Table]) {
    for (x, table) in q.as_chunks::<2>().0.iter().zip(tables) {
        let x = x.map(i32::from);
        digits(table, 9, |code| pair_entry(code, x));
    }
}

fn build_tl2(q: &[i8], tables: &mut [Table]) {
    for (x, table) in q.as_chunks::<3>().0.iter().zip(tables) {
        let x = x.map(i32::from);
        digits(table, 14, |code| triple_entry(code, x));
    }
}

/// Both planes of a table: sixteen low digits, then sixteen high ones.
fn digits(table: &mut Table, codes: u8, entry: impl Fn(u8) -> i32) {
    for code in 0..codes {
        let entry = entry(code);
        // To the nearest, for |entry| <= 384 = 12.4 * 31.
        let high = (entry + 13 * BASE + BASE / 2) / BASE - 13;
        table[usize::from(code)] = (entry - BASE * high) as i8 as u8;
        table[16 + usize::from(code)] = high as i8 as u8;
    }
}

fn add_tl1(steps: &[u8], tables: &[Table], sums: &mut Sums) {
    // SAFETY: the table is reached only through a `Simd` of this level, which exists only where the
    // machine has NEON.
    unsafe { neon::<false, 4>(steps, tables, sums) }
}

fn add_tl2(steps: &[u8], tables: &[Table], sums: &mut Sums) {
    // SAFETY: as above.
    unsafe { neon::<true, 5>(steps, tables, sums) }
}

#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Half `half` (16 rows) of a vector.
#[target_feature(enable = "neon")]
#[inline]
fn half_of(vector: &[u8; TILE], half: usize) -> uint8x16_t {
    load(&vector.as_chunks().0[half])
}

#[target_feature(enable = "neon")]
fn neon<const TL2: bool, const V: usize>(steps: &[u8], tables: &[Table], sums: &mut Sums) {
    let steps = steps.as_chunks::<TILE>().0.as_chunks::<V>().0.chunks(WIDEN);
    let tables = tables.as_chunks::<STEP_LOOKUPS>().0.chunks(WIDEN);
    for (steps, tables) in steps.zip(tables) {
        for (half, sums) in sums.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let mut lanes = [vdupq_n_s16(0); 2];
            for (vectors, tables) in steps.iter().zip(tables) {
                step::<TL2, V>(vectors, tables, half, &mut lanes);
            }
            widen(lanes, sums);
        }
    }
}

/// Adds the eight lookups of a step of 16 rows: rows 0..8, then 8..16.
#[target_feature(enable = "neon")]
#[inline]
fn step<const TL2: bool, const V: usize>(
    vectors: &[[u8; TILE]; V],
    tables: &[Table; STEP_LOOKUPS],
    half: usize,
    lanes: &mut [int16x8_t; 2],
) {
    let mut low = vdupq_n_s8(0);
    let mut high = vdupq_n_s8(0);
    let mut signs = half_of(&vectors[V - 1], half);
    for (j, table) in tables.iter().enumerate() {
        let codes = half_of(&vectors[j / 2], half);
        let codes =
            if j % 2 == 0 { vandq_u8(codes, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(codes) };
        let mut planes = [vdupq_n_s8(0); 2];
        for (digits, plane) in planes.iter_mut().zip(table.as_chunks().0) {
            *digits = vreinterpretq_s8_u8(vqtbl1q_u8(load(plane), codes));
        }
        if TL2 {
            // The sign of this lookup is the topmost bit.
            let negative = vreinterpretq_s8_u8(vcltzq_s8(vreinterpretq_s8_u8(signs)));
            for digits in &mut planes {
                *digits = vsubq_s8(veorq_s8(*digits, negative), negative);
            }
            signs = vshlq_n_u8::<1>(signs);
        }
        low = vaddq_s8(low, planes[0]);
        high = vaddq_s8(high, planes[1]);
    }
    let base = vdupq_n_s8(BASE as i8);
    lanes[0] = vmlal_s8(vaddw_s8(lanes[0], vget_low_s8(low)), vget_low_s8(high), vget_low_s8(base));
    lanes[1] = vmlal_high_s8(vaddw_high_s8(lanes[1], low), high, base);
}

/// Adds 16-bit sums of 16 rows to theirs.
#[target_feature(enable = "neon")]
#[inline]
fn widen(lanes: [int16x8_t; 2], sums: &mut [i32; 16]) {
    let [a, b] = lanes;
    let quarters = [vget_low_s16(a), vget_high_s16(a), vget_low_s16(b), vget_high_s16(b)];
    for (quarter, sums) in quarters.into_iter().zip(sums.as_chunks_mut::<4>().0) {
        // SAFETY: four sums are 16 bytes.
        unsafe { vst1q_s32(sums.as_mut_ptr(), vaddw_s16(vld1q_s32(sums.as_ptr()), quarter)) };
    }
}

/// Pairs of tables whose sums a 16-bit lane holds: two entries of 127, times 15, eight times.
const WIDEN_LOSSY: usize = 8;

/// The lookups of the bit-serial form.
pub(super) fn add_lossy(bits: usize, steps: &[u8], tables: &[lut_lossy::Table], sums: &mut Sums) {
    // SAFETY: reached only through a `Simd` of this level.
    unsafe { lossy(bits, steps, tables, sums) }
}

#[target_feature(enable = "neon")]
fn lossy(bits: usize, steps: &[u8], tables: &[lut_lossy::Table], sums: &mut Sums) {
    let vectors = steps.as_chunks::<TILE>().0.chunks(WIDEN_LOSSY * bits);
    let pairs = tables.as_chunks::<2>().0.chunks(WIDEN_LOSSY);
    for (vectors, pairs) in vectors.zip(pairs) {
        for (half, sums) in sums.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let mut lanes = [vdupq_n_s16(0); 2];
            for (vectors, pair) in vectors.chunks_exact(bits).zip(pairs) {
                // SAFETY: a table is 16 bytes.
                let tables = pair.each_ref().map(|table| unsafe { vld1q_s8(table.as_ptr()) });
                for (bit, vector) in vectors.iter().enumerate() {
                    let codes = half_of(vector, half);
                    let weight = vdupq_n_s8(1 << bit);
                    let codes = [vandq_u8(codes, vdupq_n_u8(15)), vshrq_n_u8::<4>(codes)];
                    for (table, codes) in tables.into_iter().zip(codes) {
                        let entries = vqtbl1q_s8(table, codes);
                        let first = vget_low_s8(entries);
                        lanes[0] = vmlal_s8(lanes[0], first, vget_low_s8(weight));
                        lanes[1] = vmlal_high_s8(lanes[1], entries, weight);
                    }
                }
            }
            widen(lanes, sums);
        }
    }
}
