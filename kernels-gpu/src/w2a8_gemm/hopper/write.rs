//! From the sums in a warpgroup's registers to `y`, or to shared memory where the blocks of a cluster
//! add theirs.

use contract::w2a8::Divisor;
use contract::w2a8_gemm::{Args, TOKEN_BYTES, TURN_PITCH};

use super::super::tile::Tile;
use crate::arch::hint::opaque;
use crate::arch::mem::{ld, ld_x2_if, st};
use crate::arch::mem_if::{st_if, st_x4_if};
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{ballot, lane_id, sync_warp};
use crate::arch::wgmma;
use crate::tile::hopper::each_group;

/// Asks for scale and sum of this thread's token of a tile.
///
/// # Safety
///
/// The contract's table holds; the kernel in front has ended.
#[inline(always)]
pub(super) unsafe fn stats<const TOKENS: u32>(args: &Args, token0: u32) -> [u32; 2] {
    let token = thread_idx_x() % 128;
    let p = args.stats.as_ptr().cast_const().wrapping_add((token0 + token) as usize);
    let there = token < TOKENS && token0 + token < args.m;
    // SAFETY: stats[token0 + token] when it is there.
    let [scale, sum] = unsafe { ld_x2_if(there, p.cast::<[u32; 2]>()) };
    // A token that is not there is no reason to divide.
    [if there { scale } else { 1.0f32.to_bits() }, sum]
}

/// Puts what [`stats`] asked for, and what makes dividing fast, into the warpgroup's head.
///
/// # Safety
///
/// `head` is written by this warpgroup alone.
#[inline(always)]
pub(super) unsafe fn divisors<const TOKENS: u32>([scale, sum]: [u32; 2], head: Shared<u8>) {
    const { assert!(TOKENS <= 128) };
    let token = thread_idx_x() % 128;
    if token < TOKENS {
        let [scale, reciprocal, ordinary] = Divisor::new(f32::from_bits(scale)).words();
        // SAFETY: this thread's words.
        unsafe {
            head.add(TOKEN_BYTES * token).cast().write_x4([scale, sum, reciprocal, ordinary])
        };
    }
}

/// Writes the sums of a warp: `row` is its first feature in the tile. A lane gets four neighbouring features of
/// a token, through shared memory.
///
/// # Safety
///
/// `head` is what [`divisors`] and [`Tile::scales`] wrote, shown by a barrier; `turn` starts
/// [`contract::w2a8_gemm::TURN_BYTES`] of this warp's alone; the products are done; the contract's table.
#[inline(always)]
pub(super) unsafe fn write<const ROWS: u32, const TOKENS: u32>(
    args: &Args,
    tile: Tile<ROWS, TOKENS>,
    row: u32,
    head: Shared<u8>,
    turn: Shared<i32>,
) {
    let unusual = has_unusual::<TOKENS>(head);
    let row = row + 4 * (lane_id() % 4);
    let scales = head.add(TOKEN_BYTES * TOKENS).cast::<f32>().add(row);
    // SAFETY: the scales of four features.
    let weight = unsafe { scales.read_x4() };
    let weight = if unusual { [1.0; 4] } else { weight };
    // Eight lanes that read at the same time read all the banks: tokens 0 and 4.
    let first = lane_id() / 4 % 2 * 4 + lane_id() / 8;
    let (mine, row) = (turn.add(2 * (lane_id() % 4) * TURN_PITCH + lane_id() / 4), tile.row0 + row);
    let there = turn.add(first * TURN_PITCH + 4 * (lane_id() % 4));
    let wide = args.n.is_multiple_of(4) && (args.y.as_ptr() as usize).is_multiple_of(16);
    let tokens = args.m.saturating_sub(tile.token0 + first);
    let step = 8 * args.n as usize;
    let y = args.y.as_ptr();
    let start = (tile.token0 + first) as usize * args.n as usize + row as usize;
    let mut p = y.wrapping_add(start);
    each_group!(TOKENS, J => {
        let sums = wgmma::read::<J>();
        sync_warp();
        let mut i = 0;
        while i < 8 {
            let at = (8 * (i / 4) + i % 2) * TURN_PITCH + 8 * (i / 2 % 2);
            // SAFETY: a sum's place of this warp, which has read what was there.
            unsafe { mine.add(at).write(sums[i as usize].to_bits() as i32) };
            i += 1;
        }
        sync_warp();
        let mut half = 0;
        while half < 2 {
            let at = 16 * J + 8 * half;
            // SAFETY: this token's words, and four of its sums, written before the barrier.
            let ([scale, sum, reciprocal, ordinary], mut total) = unsafe {
                let words = head.add(TOKEN_BYTES * (at + first)).cast::<u32>().read_x4();
                (words, there.add(8 * half * TURN_PITCH).read_x4())
            };
            let one = 1.0f32.to_bits();
            let words = if ordinary != 0 { [scale, reciprocal] } else { [one; 2] };
            let mut i = 0;
            while i < 4 {
                total[i] -= sum as i32;
                i += 1;
            }
            let divisor = Divisor::from_words([words[0], words[1], 1]);
            let mut out = divisor.divide4_ordinary(total);
            let mut i = 0;
            while i < 4 {
                out[i] *= weight[i];
                i += 1;
            }
            let p = p.wrapping_add(half as usize * step);
            let inside = at < tokens && row < args.n;
            // SAFETY: y[token, row ..][..4] are inside, since 4 divides n, and this lane's.
            unsafe { st_x4_if(inside && wide, p.cast(), out) };
            if inside && !wide {
                let mut i = 0;
                while i < 4 {
                    if row + (i as u32) < args.n {
                        // SAFETY: y[token, row + i] is this lane's.
                        unsafe { st(p.wrapping_add(i), out[i]) };
                    }
                    i += 1;
                }
            }
            half += 1;
        }
        p = p.wrapping_add(2 * step);
    });
    // The last group's step leads nowhere.
    let _ = p;
    if !unusual {
        return;
    }
    let mut token = opaque(0);
    while token < TOKENS {
        // SAFETY: this token's words.
        let [scale, _, _, ordinary] =
            unsafe { head.add(TOKEN_BYTES * (token + first)).cast::<u32>().read_x4() };
        let divisor = if ordinary == 0 { f32::from_bits(scale) } else { 1.0 };
        let p = y.wrapping_add(start + token as usize * args.n as usize);
        let mut r = 0;
        while r < 4 && token < tokens && row + r < args.n {
            let p = p.wrapping_add(r as usize);
            // SAFETY: y[token, row + r] is this lane's, which wrote it above; the feature's scale.
            unsafe { st(p, (ld(p) / divisor) * scales.add(r).read()) };
            r += 1;
        }
        token += 8;
    }
}

/// [`write`] straight from registers, 32 bytes of a token at a time: faster for few tokens.
///
/// # Safety
///
/// As for [`write`].
#[inline(always)]
pub(super) unsafe fn write_few<const ROWS: u32, const TOKENS: u32>(
    args: &Args,
    tile: Tile<ROWS, TOKENS>,
    row: u32,
    head: Shared<u8>,
) {
    let unusual = has_unusual::<TOKENS>(head);
    let row = row + lane_id() / 4;
    let first = 2 * (lane_id() % 4);
    let scales = head.add(TOKEN_BYTES * TOKENS).cast::<f32>().add(row);
    // SAFETY: the scales of two features.
    let read = unsafe { [scales.read(), scales.add(8).read()] };
    let weight = if unusual { [1.0; 2] } else { read };
    let inside = [tile.row0 + row < args.n, tile.row0 + row + 8 < args.n];
    let tokens = args.m.saturating_sub(tile.token0 + first);
    let n = args.n as usize;
    let start = (tile.token0 + first) as usize * n + (tile.row0 + row) as usize;
    let y = args.y.as_ptr().wrapping_add(start);
    let mut p = y;
    each_group!(TOKENS, J => {
        let sums = wgmma::read::<J>();
        let mut i = 0;
        while i < 4 {
            let at = 16 * J + 8 * (i / 2) + i % 2;
            // SAFETY: this token's words, written before the barrier.
            let [scale, sum, reciprocal, ordinary] =
                unsafe { head.add(TOKEN_BYTES * (at + first)).cast::<u32>().read_x4() };
            let one = 1.0f32.to_bits();
            let words = if ordinary != 0 { [scale, reciprocal] } else { [one; 2] };
            let divisor = Divisor::from_words([words[0], words[1], 1]);
            let from = 4 * (i as usize / 2) + i as usize % 2;
            let total = [from, from + 2].map(|s| sums[s].to_bits() as i32 - sum as i32);
            let out = divisor.divide4_ordinary([total[0], total[1], 0, 0]);
            let to = p.wrapping_add(i as usize % 2 * n);
            // SAFETY: y[token, row] and y[token, row + 8], when they are there, are this lane's.
            unsafe {
                st_if(at < tokens && inside[0], to, out[0] * weight[0]);
                st_if(at < tokens && inside[1], to.wrapping_add(8), out[1] * weight[1]);
            }
            if i == 1 {
                p = p.wrapping_add(8 * n);
            }
            i += 1;
        }
        p = p.wrapping_add(8 * n);
    });
    // The last group's step leads nowhere.
    let _ = p;
    if !unusual {
        return;
    }
    let mut i = opaque(0);
    while i < TOKENS / 2 {
        let (token, r) = (8 * (i / 4) + i / 2 % 2, i % 2);
        // SAFETY: this token's words.
        let [scale, _, _, ordinary] =
            unsafe { head.add(TOKEN_BYTES * (token + first)).cast::<u32>().read_x4() };
        let divisor = if ordinary == 0 { f32::from_bits(scale) } else { 1.0 };
        if token < tokens && tile.row0 + row + 8 * r < args.n {
            let p = y.wrapping_add(token as usize * n + 8 * r as usize);
            // SAFETY: y[token, row + 8 r] is this lane's, which wrote it above; the feature's scale.
            unsafe { st(p, (ld(p) / divisor) * scales.add(8 * r).read()) };
        }
        i += 1;
    }
}

/// Whether a token's sums are still to be divided where those of all others are done: rare, and kept out of the other code.
///
/// *Convergence*: every lane calls it.
#[inline(always)]
fn has_unusual<const TOKENS: u32>(head: Shared<u8>) -> bool {
    let mut unusual = false;
    let mut at = lane_id();
    while at < TOKENS {
        // SAFETY: the last of this token's words.
        unusual |= unsafe { head.add(TOKEN_BYTES * at + 12).cast::<u32>().read() } == 0;
        at += 32;
    }
    ballot(unusual) != 0
}

/// Puts the sums of a warp where [`Tile::finish`] finds them: those of a token are `pitch` words from
/// those of the next one, the lane's first row is at `mine`.
///
/// # Safety
///
/// The sums' place is there, and nobody uses it; the products are done.
#[inline(always)]
pub(super) unsafe fn park<const TOKENS: u32>(mine: Shared<i32>, pitch: u32) {
    let mine = mine.add(2 * (lane_id() % 4) * pitch);
    each_group!(TOKENS, J => {
        let sums = wgmma::read::<J>();
        let mut i = 0;
        while i < 8 {
            let (token, row) = (16 * J + 8 * (i / 4) + i % 2, 8 * (i / 2 % 2));
            // SAFETY: this lane's own sum.
            unsafe { mine.add(token * pitch + row).write(sums[i as usize].to_bits() as i32) };
            i += 1;
        }
    });
}
