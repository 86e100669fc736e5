//! What a block makes of a key block and its queries on tensor cores (`mma.sync` of bf16): heads of [`HEAD`] elements, four at a time.
//!
//! Of the eight columns of a product four are the queries of the heads, rounded to bf16, and four what the rounding left; the same
//! with the weights. A warp makes the products of 16 keys with half of the elements, a thread the weight of a key, and then a warp
//! 16 dimensions of the weighted values of all keys: nobody adds up what others made but for the halves of the scores.
//!
//! Factors, words of two bf16: of step `s`, 16 elements or keys, word `r` of lane `l` at `32 * 4 * (s / 2) + 4 l + 2 (s % 2) + r`, so that
//! a lane reads two steps at once. Piece `p` of 16 bytes of value `v` stands at `p ^ v % 8`: the same pieces of eight values do
//! not fall on the same banks.

use contract::decode_layers::{FAST_HEAD_DIM, KEY_BYTES, UNIT_HEADS, VALUE_BYTES, WARPS};
use contract::num::{max, order_key, order_value};

use super::super::sync;
use super::answer::Results;
use super::{KEYS, Memory, own_thread};
use crate::arch::float::exp2_approx;
use crate::arch::half::pack_bf16;
use crate::arch::mma::{ldmatrix_x4, ldmatrix_x4_trans, mma_bf16};
use crate::arch::shared::Shared;
use crate::arch::warp::{LANES, shuffle_xor, warp_max};

/// Elements, or keys, of a product in depth.
const DEPTH: u32 = 16;
/// Steps of a warp's half of the elements, and of the keys.
const STEPS: usize = 4;
/// 1 and 1.
const ONES: u32 = 0x3f80_3f80;

const _: () = assert!(FAST_HEAD_DIM == 2 * DEPTH * STEPS as u32 && KEYS == DEPTH * STEPS as u32);
const _: () = assert!(WARPS == 2 * KEYS / DEPTH && WARPS * DEPTH == FAST_HEAD_DIM);
const _: () = assert!(UNIT_HEADS == 4 && WARPS * LANES == UNIT_HEADS * KEYS);

/// Two numbers of bf16 that are `v`, but for 2^-17 of it.
#[inline(always)]
fn split(v: f32) -> [u16; 2] {
    let high = pack_bf16(v, 0.0) as u16;
    [high, pack_bf16(v - f32::from_bits(u32::from(high) << 16), 0.0) as u16]
}

/// Makes `v` element (key) `at` of head `head` of a factor.
///
/// # Safety
///
/// The factor is in shared memory; nobody else accesses this element.
#[inline(always)]
pub(super) unsafe fn leave(factor: Shared<u32>, head: u32, at: u32, v: f32) {
    let (step, own) = (at / DEPTH, at % DEPTH);
    let word = (step / 2 * LANES + 4 * head + own % 8 / 2) * 4 + step % 2 * 2 + own / 8;
    let to = factor.add(word).cast::<u16>().add(own % 2);
    let [high, low] = split(v);
    // SAFETY: the caller's promise; the other one belongs to column `head + 4`.
    unsafe {
        to.write_u16(high);
        to.add(8 * 4 * UNIT_HEADS).write_u16(low);
    }
}

/// Where piece `piece` of value `key` is.
#[inline(always)]
pub(super) fn value_at(values: Shared<u8>, key: u32, piece: u32) -> Shared<u8> {
    values.byte_add(key * VALUE_BYTES + 16 * (piece ^ key % 8))
}

/// Both columns of each head: what two lanes have of it.
#[inline(always)]
fn both(sums: [[f32; 4]; 2]) -> [f32; 4] {
    core::array::from_fn(|i| {
        let sum = sums[0][i] + sums[1][i];
        sum + shuffle_xor(sum, 2)
    })
}

/// Leaves the results of a unit of `count` keys in `partial`.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// Queries, keys and values are in shared memory, zeros for values that are not there; the results are this unit's.
#[inline(always)]
pub(super) unsafe fn answer<const PAGED: bool>(
    memory: Memory,
    (keys, values): (Shared<u8>, Shared<u8>),
    count: u32,
    scale: f32,
    results: &Results,
) {
    // SAFETY: words of the block's shared memory; the partial results of this unit, each word of one thread.
    unsafe {
        scores(memory, keys);
        sync();
        // Nobody reads the keys any more.
        let weights = keys.cast::<u32>();
        soften::<PAGED>(memory, weights, count, scale);
        sync();
        weigh(memory, weights, values, results);
    }
}

/// Leaves the products of keys and queries, those of half of the elements each.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// Queries and keys are in shared memory.
#[inline(always)]
unsafe fn scores(memory: Memory, keys: Shared<u8>) {
    let (warp, lane) = (own_thread() / LANES, own_thread() % LANES);
    let (block, half) = (warp / 2, warp % 2);
    let key = DEPTH * block + lane % DEPTH;
    let from = keys.byte_add(key * KEY_BYTES + 128 * half + 16 * (lane / DEPTH));
    let q = memory.q.cast::<u32>().add((2 * half * LANES + lane) * 4);
    let mut sums = [[0.0; 4]; 2];
    let mut i = 0;
    while i < STEPS / 2 {
        // SAFETY: a row of a slot that nobody filled gives a score that nobody uses.
        unsafe {
            let q = q.add(4 * LANES * i as u32).read_x4();
            let from = from.byte_add(64 * i as u32);
            sums[0] = mma_bf16(ldmatrix_x4(from), [q[0], q[1]], sums[0]);
            sums[1] = mma_bf16(ldmatrix_x4(from.byte_add(32)), [q[2], q[3]], sums[1]);
        }
        i += 1;
    }
    let [a, b, c, d] = both(sums);
    let (g, t) = (lane / 4, lane % 4);
    let (mine, key) = if t < 2 { ([a, b], g) } else { ([c, d], g + 8) };
    let to = memory.scores.add((UNIT_HEADS * half + 2 * (t % 2)) * KEYS + DEPTH * block + key);
    // SAFETY: two scores of this thread.
    unsafe {
        to.write(mine[0]);
        to.add(KEYS).write(mine[1]);
    }
}

/// Turns scores into weights, of which a thread has one, and leaves the maxima.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// The halves of 64 scores of each head, of which `keys` count, written before a barrier; nobody uses the weights.
#[inline(always)]
unsafe fn soften<const PAGED: bool>(memory: Memory, weights: Shared<u32>, keys: u32, scale: f32) {
    let (head, key) = (own_thread() / KEYS, own_thread() % KEYS);
    // SAFETY: the caller's promise; a weight of this thread.
    unsafe {
        let scale = if PAGED { memory.scale().read() } else { scale };
        let score = |key: u32| {
            let from = memory.scores.add(head * KEYS + key);
            (from.read() + from.add(UNIT_HEADS * KEYS).read()) * scale
        };
        let (own, other) = (score(key), score(key ^ LANES));
        let top = if key < keys { max(f32::NEG_INFINITY, own) } else { f32::NEG_INFINITY };
        let top = if key ^ LANES < keys { max(top, other) } else { top };
        let top = order_value(warp_max(order_key(top)));
        let p = exp2_approx((own - top) * core::f32::consts::LOG2_E);
        leave(weights, head, key, if key < keys { p } else { 0.0 });
        if key == 0 {
            memory.tops.add(head).write(top);
        }
    }
}

/// Leaves the weighted values of a unit, and the sums of the weights.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// Weights and values of [`KEYS`] keys are in shared memory, zeros for those that are not there; the results are this thread's.
#[inline(always)]
unsafe fn weigh(memory: Memory, weights: Shared<u32>, values: Shared<u8>, results: &Results) {
    let (warp, lane) = (own_thread() / LANES, own_thread() % LANES);
    let from = value_at(values, lane / DEPTH * 8 + lane % 8, 2 * warp + lane / 8 % 2);
    let (mut sums, mut out) = ([[0.0; 4]; 2], [[0.0; 4]; 2]);
    let mut i = 0;
    while i < STEPS / 2 {
        // SAFETY: the caller's promise.
        unsafe {
            let p = weights.add((i as u32 * LANES + lane) * 4).read_x4();
            let from = from.byte_add(2 * DEPTH * VALUE_BYTES * i as u32);
            let next = from.byte_add(DEPTH * VALUE_BYTES);
            out[0] = mma_bf16(ldmatrix_x4_trans(from), [p[0], p[1]], out[0]);
            out[1] = mma_bf16(ldmatrix_x4_trans(next), [p[2], p[3]], out[1]);
            sums[0] = mma_bf16([ONES; 4], [p[0], p[1]], sums[0]);
            sums[1] = mma_bf16([ONES; 4], [p[2], p[3]], sums[1]);
        }
        i += 1;
    }
    let ([a, b, c, d], sums) = (both(out), both(sums));
    let (g, t) = (lane / 4, lane % 4);
    let (mine, dim) = if t < 2 { ([a, b], g) } else { ([c, d], g + 8) };
    // Of two neighbours one has the dimensions of both for the first head, the other for the second.
    let odd = g % 2 == 1;
    let got = shuffle_xor(if odd { mine[0] } else { mine[1] }, 4);
    let pair = if odd { [got, mine[1]] } else { [mine[0], got] };
    let (head, dim) = (2 * (t % 2), DEPTH * warp + (dim & !1));
    // SAFETY: the caller's promise; the maxima were written before a barrier.
    unsafe {
        results.put(head + u32::from(odd), 2 + dim, pair);
        if warp == 0 && g < 2 && t < 2 {
            let (head, sum) = (head + g, if odd { sums[1] } else { sums[0] });
            results.put(head, 0, [memory.tops.add(head).read(), sum]);
        }
    }
}
