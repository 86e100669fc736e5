//! Tiles of [`super::w2a8`] for AArch64.
//!
//! Codes are 0, 1, 2 and multiply as signed bytes. A product is at most 256 in magnitude; a group
//! of 256 gives a 16-bit lane 32 products, at most 8,192, and is then widened pairwise.

use std::arch::aarch64::*;

use super::w2a8::{GROUP, Job, Tiles, tail_of};

/// Two rows by four tokens.
pub(super) static NEON: Tiles = Tiles { rows: 2, full: tile::<2>, one_row: tile::<1>, one_token };

fn tile<const R: usize>(job: &Job<'_>, row: usize, token: usize, sums: &mut [[i32; 4]; 4]) {
    // SAFETY: the table is reached only through a `Simd` of this level, which exists only where
    // the machine has NEON.
    unsafe { neon::<R, 4>(job, row, token, sums) }
}

fn one_token(job: &Job<'_>, row: usize, token: usize, sums: &mut [i32]) {
    for (r, sum) in sums.iter_mut().enumerate() {
        let mut tile = [[0; 4]; 4];
        // SAFETY: as above.
        unsafe { neon::<1, 1>(job, row + r, token, &mut tile) };
        *sum = tile[0][0];
    }
}

#[target_feature(enable = "neon")]
fn neon<const R: usize, const T: usize>(
    job: &Job<'_>,
    row: usize,
    token: usize,
    sums: &mut [[i32; 4]; 4],
) {
    let mut totals = [[vdupq_n_s32(0); T]; R];
    let groups = job.row_bytes / GROUP;
    for g in 0..job.row_bytes.div_ceil(GROUP) {
        let mut planes = [&[0i8; 4 * GROUP]; T];
        for t in 0..T {
            planes[t] = &job.plane_row(token + t).as_chunks().0[g];
        }
        for r in 0..R {
            let weights = job.weight_row(row + r);
            if g < groups {
                group(&weights.as_chunks().0[g], planes, &mut totals[r]);
            } else if let Some(tail) = tail_of(weights) {
                group(&tail, planes, &mut totals[r]);
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            sums[r][t] = vaddvq_s32(totals[r][t]);
        }
    }
}

/// Adds one group of one row.
#[target_feature(enable = "neon")]
#[inline]
fn group<const T: usize>(
    codes: &[u8; GROUP],
    planes: [&[i8; 4 * GROUP]; T],
    totals: &mut [int32x4_t; T],
) {
    let three = vdupq_n_u8(3);
    let mut lanes = [vdupq_n_s16(0); T];
    for quarter in 0..4 {
        // SAFETY: 16 bytes from 16 quarter on lie inside the 64.
        let mut v = unsafe { vld1q_u8(codes.as_ptr().add(16 * quarter)) };
        for plane in 0..4 {
            let c = vreinterpretq_s8_u8(vandq_u8(v, three));
            for t in 0..T {
                // SAFETY: 16 bytes from 64 plane + 16 quarter on lie inside the 256.
                let a = unsafe { vld1q_s8(planes[t].as_ptr().add(64 * plane + 16 * quarter)) };
                lanes[t] = vmlal_s8(lanes[t], vget_low_s8(c), vget_low_s8(a));
                lanes[t] = vmlal_high_s8(lanes[t], c, a);
            }
            v = vshrq_n_u8::<2>(v);
        }
    }
    for t in 0..T {
        totals[t] = vpadalq_s16(totals[t], lanes[t]);
    }
}
