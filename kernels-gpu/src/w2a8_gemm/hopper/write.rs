//! From the sums in a warpgroup's registers to `y`, or to shared memory where the blocks of a cluster
//! add theirs.

use contract::w2a8::Divisor;
use contract::w2a8_gemm::{Args, TOKEN_BYTES};

use crate::arch::hint::opaque;
use crate::arch::mem::{ld, ld_x2_if, st};
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{ballot, lane_id};
use crate::arch::wgmma;
use crate::tile::hopper::each_group;

/// Puts scale, sum and what makes dividing fast of each token of a tile into the warpgroup's head.
///
/// # Safety
///
/// `head` is written by this warpgroup alone; the contract's table holds.
#[inline(always)]
pub(super) unsafe fn divisors<const TOKENS: u32>(args: &Args, token0: u32, head: Shared<u8>) {
    let mut token = thread_idx_x() % 128;
    while token < TOKENS {
        let p = args.stats.as_ptr().cast_const().wrapping_add((token0 + token) as usize);
        // SAFETY: stats[token0 + token] when it is there; this thread's words.
        unsafe {
            let [scale, sum] = ld_x2_if(token0 + token < args.m, p.cast::<[u32; 2]>());
            let [scale, reciprocal, ordinary] = Divisor::new(f32::from_bits(scale)).words();
            head.add(TOKEN_BYTES * token).cast().write_x4([scale, sum, reciprocal, ordinary]);
        }
        token += 128;
    }
}

/// Writes the sums of a warpgroup: tokens from `token0` on, the lane's first feature is `row`.
///
/// # Safety
///
/// `head` is what [`divisors`] wrote, shown by a barrier; the products are done; the contract's table.
#[inline(always)]
pub(super) unsafe fn write<const BLOCKS: usize, const TOKENS: u32>(
    args: &Args,
    token0: u32,
    row: u32,
    head: Shared<u8>,
) {
    let mut weight = [0.0; 4];
    let mut i = 0;
    while i < 2 * BLOCKS {
        weight[i] = args.segments.scale_of(row + 64 * (i as u32 / 2) + 8 * (i as u32 % 2));
        i += 1;
    }
    let column = 2 * (lane_id() % 4);
    let y = args.y.as_ptr().wrapping_add(row as usize);
    each_group!(TOKENS, J => {
        let sums = [wgmma::read::<J>(), wgmma::read::<{ (J + 8) % 16 }>()];
        let mut i = 0;
        while i < 4 && 8 * (i as u32 / 2) < TOKENS {
            let at = 16 * J + 8 * (i as u32 / 2) + i as u32 % 2 + column;
            // SAFETY: this token's words.
            let [scale, sum, reciprocal, ordinary] =
                unsafe { head.add(TOKEN_BYTES * at).cast::<u32>().read_x4() };
            let from = i / 2 * 4 + i % 2;
            let mut total = [0; 4];
            let mut block = 0;
            while block < BLOCKS {
                total[2 * block] = sums[block][from].to_bits() as i32 - sum as i32;
                total[2 * block + 1] = sums[block][from + 2].to_bits() as i32 - sum as i32;
                block += 1;
            }
            let divisor = Divisor::from_words([scale, reciprocal, ordinary]);
            let out = divisor.divide4_ordinary(total);
            let token = token0 + at;
            let p = y.wrapping_add(token as usize * args.n as usize);
            let mut r = 0;
            while r < 2 * BLOCKS {
                let further = 64 * (r as u32 / 2) + 8 * (r as u32 % 2);
                let out = if ordinary != 0 { out[r] * weight[r] } else { total[r] as f32 };
                if token < args.m && row + further < args.n {
                    // SAFETY: y[token, row + further] is this lane's.
                    unsafe { st(p.wrapping_add(further as usize), out) };
                }
                r += 1;
            }
            i += 1;
        }
    });
    // Sums that are still to be divided: rare, and kept out of the code above.
    let mut unusual = false;
    let mut at = lane_id();
    while at < TOKENS {
        // SAFETY: the last of this token's words.
        unusual |= unsafe { head.add(TOKEN_BYTES * at + 12).cast::<u32>().read() } == 0;
        at += 32;
    }
    if ballot(unusual) == 0 {
        return;
    }
    let mut i = opaque(0);
    while i < TOKENS / 4 {
        let at = 8 * (i / 2) + i % 2 + column;
        // SAFETY: this token's words.
        let [scale, _, _, ordinary] = unsafe { head.add(TOKEN_BYTES * at).cast::<u32>().read_x4() };
        let token = token0 + at;
        if ordinary == 0 && token < args.m {
            let p = y.wrapping_add(token as usize * args.n as usize);
            let mut r = 0;
            while r < 2 * BLOCKS {
                let further = 64 * (r as u32 / 2) + 8 * (r as u32 % 2);
                if row + further < args.n {
                    let p = p.wrapping_add(further as usize);
                    // SAFETY: y[token, row + further] is this lane's, which wrote it above.
                    unsafe { st(p, (ld(p) / f32::from_bits(scale)) * weight[r]) };
                }
                r += 1;
            }
        }
        i += 1;
    }
}

/// Puts the sums of a warp where [`Tile::finish`] finds them: those of a token are `pitch` words from
/// those of the next one, the lane's first row is at `mine`.
///
/// # Safety
///
/// The sums' place is there, and nobody uses it; the products are done.
#[inline(always)]
pub(super) unsafe fn park<const BLOCKS: usize, const TOKENS: u32>(mine: Shared<i32>, pitch: u32) {
    let mine = mine.add(2 * (lane_id() % 4) * pitch);
    each_group!(TOKENS, J => {
        let sums = [wgmma::read::<J>(), wgmma::read::<{ (J + 8) % 16 }>()];
        let mut i = 0;
        while i < 8 * BLOCKS {
            let (block, i_) = (i / 8, i as u32 % 8);
            let (token, row) = (16 * J + 8 * (i_ / 4) + i_ % 2, 8 * (i_ / 2 % 2) + 64 * block as u32);
            if 8 * (i_ / 4) < TOKENS {
                // SAFETY: this lane's own sum.
                unsafe { mine.add(token * pitch + row).write(sums[block][i % 8].to_bits() as i32) };
            }
            i += 1;
        }
    });
}
