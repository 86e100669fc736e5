//! Pages of 8 bits ([`contract::num::mx_value`]) for [`super::fast`]: of keys a lane has the elements `32 b + 8 t ..` of each block, of values the dimensions
//! `16 g ..`.
//!
//! Keys are factors of a product of bytes as they stand. The queries are four digits each, and a block of 32 elements is one product: its scale
//! comes behind it.
//!
//! The byte of a value becomes a bf16 in steps that each give a bf16 exactly. Behind its sign bit, turned around, and below `0x43` it is the bf16
//! `256 + code` of a code below zero and `256 + 2 code` of another. Half of that less 128, times the power of two, is `h`; the number
//! is `h` less what `-h` is above zero.

use contract::attention_paged::{
    FAST_HEAD_DIM, PAGE, STEP_HEAD_DIM, STEP_HEADS, int8_part_bytes, int8_scales, int8_stride,
};
use contract::launch::DevPtr;
use contract::num::{MX_BLOCK, abs_bits, fma, mx_code, mx_scale};
use contract::rope::rotate;

use super::fast::{
    OF_WARP, PIECES, Pages, factors, own_key, own_value, queries, result, value_key,
};
use super::int8::Int8;
use super::step_row::Step;
use crate::arch::dot::permute;
use crate::arch::half::{fma_bf16x2, fma_relu_bf16x2};
use crate::arch::mem::{X4, ld_if, ld_stream_x2_if, ld_stream_x4_if, ld_x2, ld_x4, st};
use crate::arch::mma::mma_s8;
use crate::arch::shared::Shared;
use crate::arch::warp::{lane_id, shuffle_idx, shuffle_xor, warp_id};

/// Blocks of a head.
const BLOCKS: usize = FAST_HEAD_DIM as usize / MX_BLOCK;
/// Bytes from key to key in a page, and from scales to scales.
const KEY_BYTES: usize = int8_stride(FAST_HEAD_DIM as usize);
const SCALE_BYTES: usize = int8_scales(FAST_HEAD_DIM as usize);
/// Where the scales of a part start.
const SCALES: usize = PAGE * KEY_BYTES;
/// Words of a key's codes.
const WORDS: u32 = KEY_BYTES as u32 / 4;

/// The least exponent of a query's largest element: what is below `2^-121` of it is lost then.
const LEAST_QUERY: u32 = 33;

const _: () = assert!(KEY_BYTES == FAST_HEAD_DIM as usize && SCALE_BYTES == BLOCKS);
const _: () = assert!(BLOCKS == PIECES && MX_BLOCK == 32);

/// Two of a number in a word of bf16.
const fn both(bits: u32) -> u32 {
    bits | bits << 16
}

/// What turns codes of a scale into numbers: multipliers and addends of `h` and of `-h`.
#[derive(Clone, Copy)]
pub(super) struct Decode([u32; 4]);

impl Decode {
    /// Of two scales, as bf16 `2^(scale - 127)`; infinity of a block without numbers.
    #[inline(always)]
    fn of(scales: u32) -> Self {
        const NONE: u32 = both(0x8000);
        let by = |factor| fma_bf16x2(scales, both(factor), NONE);
        // 2^-7, -2, -2^-7, 2.
        Self([by(0x3c00), by(0xc000), by(0xbc00), by(0x4000)])
    }

    /// The numbers of the codes in bytes 0 and 2 of a word.
    #[inline(always)]
    fn pair(self, codes: u32) -> u32 {
        const MINUS_ONE: u32 = both(0xbf80);
        let Self([scale, less, minus, more]) = self;
        let y = (codes & both(0x00ff)) ^ both(0x4380);
        fma_bf16x2(fma_relu_bf16x2(y, minus, more), MINUS_ONE, fma_bf16x2(y, scale, less))
    }
}

/// Byte 0 of the kv head's part of page `page`.
#[inline(always)]
fn part(step: &Step<'_>, pages: DevPtr<u8>, page: u32) -> *mut u8 {
    let heads = page as usize * step.args.kv_heads as usize + step.kv_head as usize;
    pages.as_ptr().wrapping_add(heads * int8_part_bytes(FAST_HEAD_DIM as usize))
}

/// Of keys `g` and `g + 8` eight elements of each block; scales of key `lane % 16`.
pub(super) struct Keys {
    codes: [[[u32; 2]; BLOCKS]; 2],
    scales: u32,
}

/// Of four values a piece each; scales of value `lane % 16`.
pub(super) struct Values {
    codes: [X4<u32>; 4],
    scales: u32,
}

/// The scales of key `lane % 16` of this warp in `part`, where it is `stored`; elsewhere 0, with which every code is zero.
///
/// # Safety
///
/// So many keys are stored.
#[inline(always)]
unsafe fn scales(part: *const u8, stored: u32) -> u32 {
    let key = warp_id() * OF_WARP + lane_id() % OF_WARP;
    let at = part.wrapping_add(SCALES + key as usize * SCALE_BYTES);
    // SAFETY: the caller's promise; a row of scales.
    unsafe { ld_if(key < stored, at.cast()) }
}

impl Pages for Int8 {
    type Keys = Keys;
    type Values = Values;
    const APART: u32 = 16;
    const UPPER: u32 = 8;

    #[inline(always)]
    unsafe fn keys(step: &Step<'_>, page: u32, stored: u32) -> Keys {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let key = warp_id() * OF_WARP + g;
        let part = part(step, step.args.k_pages, page).cast_const();
        let from = part.wrapping_add(key as usize * KEY_BYTES + 8 * t as usize);
        let codes = core::array::from_fn(|r| {
            let there = key + 8 * (r as u32) < stored;
            core::array::from_fn(|b| {
                let at = from.wrapping_add(8 * r * KEY_BYTES + MX_BLOCK * b);
                // SAFETY: the caller's promise; 8 bytes of a key.
                unsafe { ld_stream_x2_if(there, at.cast()) }
            })
        });
        // SAFETY: the caller's promise.
        Keys { codes, scales: unsafe { scales(part, stored) } }
    }

    #[inline(always)]
    unsafe fn values(step: &Step<'_>, page: u32, stored: u32) -> Values {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let key = warp_id() * OF_WARP + 2 * t;
        let part = part(step, step.args.v_pages, page).cast_const();
        let from = part.wrapping_add(key as usize * KEY_BYTES + 16 * g as usize);
        let codes = core::array::from_fn(|r| {
            let behind = value_key(0, r as u32);
            let at = from.wrapping_add(behind as usize * KEY_BYTES);
            // SAFETY: the caller's promise; 16 bytes of a value.
            unsafe { ld_stream_x4_if(key + behind < stored, at.cast()) }
        });
        // SAFETY: the caller's promise.
        Values { codes, scales: unsafe { scales(part, stored) } }
    }

    #[inline(always)]
    unsafe fn put_new(step: &Step<'_>) {
        let args = step.args;
        let place = step.pos as usize % PAGE;
        let stores = |pages: DevPtr<u8>, to: Shared<u32>, at: u32, word: u32, scales: u32| {
            let part = part(step, pages, step.page);
            let codes = part.wrapping_add(place * KEY_BYTES + 4 * at as usize);
            // SAFETY: a word of the row's key or value, and its scales, in both places.
            unsafe {
                to.add(at).write(word);
                if step.stores {
                    st(codes.cast(), word);
                }
                if lane_id() == 0 {
                    to.add(WORDS).write(scales);
                    if step.stores {
                        st(part.wrapping_add(SCALES + place * SCALE_BYTES).cast(), scales);
                    }
                }
            }
        };
        let i = lane_id();
        if warp_id() == 0 {
            // SAFETY: the head's elements; the position is below the capacity, and `2 i + 1` below half of a head.
            let (low, high) = unsafe {
                let from = step.source(args.heads + step.kv_head).wrapping_add(2 * i as usize);
                let [lo, hi]: [[f32; 2]; 2] =
                    [from, from.wrapping_add(FAST_HEAD_DIM as usize / 2)].map(|p| ld_x2(p.cast()));
                let (a, b) = (step.angle(2 * i), step.angle(2 * i + 1));
                let (a, b) = (rotate(lo[0], hi[0], a.0, a.1), rotate(lo[1], hi[1], b.0, b.1));
                ([a.0, b.0], [a.1, b.1])
            };
            // A block is two elements of 16 lanes.
            let [low_scale, high_scale] = [low, high].map(|v| scale::<16>(&v));
            let (low, high) = (codes(low, low_scale), codes(high, high_scale));
            let odd = i % 2 == 1;
            let given = shuffle_xor(if odd { low } else { high }, 1);
            let word = if odd { given | high << 16 } else { low | given << 16 };
            let at = i / 2 + if odd { WORDS / 2 } else { 0 };
            let of = |scale: u32, lane: u32| shuffle_idx(scale, lane);
            let scales = of(low_scale, 0) | of(low_scale, 16) << 8;
            let scales = scales | of(high_scale, 0) << 16 | of(high_scale, 16) << 24;
            stores(args.k_pages, own_key(), at, word, scales);
        } else if warp_id() == 1 {
            let from = step.source(args.heads + args.kv_heads + step.kv_head);
            // SAFETY: four elements of the value; heads of 128 elements are aligned.
            let v: [f32; 4] = unsafe { ld_x4(from.wrapping_add(4 * i as usize).cast()) };
            // A block is four elements of 8 lanes.
            let scale = scale::<8>(&v);
            let word = codes([v[0], v[1]], scale) | codes([v[2], v[3]], scale) << 16;
            let of = |lane: u32| shuffle_idx(scale, lane);
            let scales = of(0) | of(8) << 8 | of(16) << 16 | of(24) << 24;
            stores(args.v_pages, own_value(), i, word, scales);
        }
    }

    #[inline(always)]
    unsafe fn take_own(k: &mut Keys, v: &mut Values, own: u32) {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        // SAFETY: four pieces of the key, one of the value, and their scales.
        unsafe {
            let mut r = 0;
            while r < 2 {
                if g + 8 * r as u32 == own {
                    k.codes[r] =
                        core::array::from_fn(|b| own_key().add(8 * b as u32 + 2 * t).read_x2());
                }
                r += 1;
            }
            let mut r = 0;
            while r < 4 {
                if value_key(t, r as u32) == own {
                    v.codes[r] = own_value().add(4 * g).read_x4();
                }
                r += 1;
            }
            if lane_id() % OF_WARP == own {
                k.scales = own_key().add(WORDS).read();
                v.scales = own_value().add(WORDS).read();
            }
        }
    }

    /// Multipliers of this lane's heads.
    type Queries = [f32; 2];

    /// Elements `32 j + 8 t ..` of a query as four digits to the base 128, a block each warp. Of head `g % 4` the first product takes digit 0, or from
    /// column 4 on digit 2, the second one the next.
    #[inline(always)]
    unsafe fn make_factors() {
        let (g, t, j) = (lane_id() / 4, lane_id() % 4, warp_id());
        let (of_eight, head) = (lane_id() % 8, g % STEP_HEADS);
        // The largest magnitude of each head: sixteen elements of a lane.
        let from = queries().add(lane_id() / 8 * STEP_HEAD_DIM + 16 * of_eight);
        let (mut top, mut i) = (0, 0);
        while i < 4 {
            // SAFETY: four words of a query.
            let q: [f32; 4] = unsafe { from.add(4 * i).read_x4() };
            top = q.iter().fold(top, |top, &q| abs_bits(q).max(top));
            i += 1;
        }
        let mut distance = 1;
        while distance < 8 {
            top = shuffle_xor(top, distance).max(top);
            distance *= 2;
        }
        let exponent = (shuffle_idx(top, 8 * head) >> 23).max(LEAST_QUERY);
        let from = queries().add(head * STEP_HEAD_DIM + 32 * j + 8 * t);
        // SAFETY: eight words of a query.
        let q: [[f32; 4]; 2] = unsafe { [from.read_x4(), from.add(4).read_x4()] };
        // The largest is below 64 then.
        let unit = f32::from_bits((259 - exponent) << 23);
        let digits = q.map(|q| q.map(|q| digits(q * unit, g >= STEP_HEADS)));
        let word = |half: usize, d: usize| {
            let [a, b, c, e] = digits[half].map(|digits| digits[d] & 0xff);
            a | b << 8 | c << 16 | e << 24
        };
        // SAFETY: by the caller; a word of the head that no result uses, one lane's.
        unsafe {
            factors(j).write_x4([word(0, 0), word(1, 0), word(0, 1), word(1, 1)]);
            if j == 0 && t == 0 && g < STEP_HEADS {
                let scale = f32::from_bits((exponent - 18) << 23);
                result(0, head).add(2).write(if exponent < 255 { scale } else { f32::NAN });
            }
        }
    }

    #[inline(always)]
    unsafe fn queries() -> [f32; 2] {
        let t = lane_id() % 4;
        // Digits 2 and 3 are 2^-14 of the others.
        let of_digits = if t < 2 { 1.0 } else { 1.0 / 16_384.0 };
        // SAFETY: the caller's promise.
        [0, 1].map(|h| unsafe { result(0, 2 * (t % 2) + h).add(2).read() } * of_digits)
    }

    #[inline(always)]
    unsafe fn scores(k: &Keys, q: [f32; 2]) -> [[f32; 2]; 2] {
        let g = lane_id() / 4;
        let scales = [g, g + 8].map(|key| shuffle_idx(k.scales, key));
        let mut sums = [0.0; 4];
        let mut b = 0;
        while b < BLOCKS {
            // SAFETY: the caller's promise.
            let digits = unsafe { factors(b as u32).read_x4() };
            let [low, high] = [k.codes[0][b], k.codes[1][b]];
            let keys = [low[0], high[0], low[1], high[1]];
            let first = mma_s8(keys, [digits[0], digits[1]], [0; 4]);
            let second = mma_s8(keys, [digits[2], digits[3]], [0; 4]);
            // 2^(scale - 127): the byte to the top of a word, and one down.
            let scales =
                scales.map(|word| f32::from_bits(permute(word, 0, 0x0444 | (b as u32) << 12) >> 1));
            let mut i = 0;
            while i < 4 {
                // Below 2^26.
                let dot = (first[i] * 128 + second[i]) as f32;
                sums[i] = fma(dot, scales[i / 2], sums[i]);
                i += 1;
            }
            b += 1;
        }
        let all: [f32; 4] = core::array::from_fn(|i| {
            let own = sums[i] * q[i % 2];
            // With the other digits.
            own + shuffle_xor(own, 2)
        });
        [[all[0], all[1]], [all[2], all[3]]]
    }

    /// What decodes the values of both pairs of keys.
    type Ready = [Decode; 2];

    #[inline(always)]
    fn ready(v: &Values) -> [Decode; 2] {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let block = g / 2;
        [0, 2].map(|r| {
            let [a, b] = [r, r + 1].map(|r| shuffle_idx(v.scales, value_key(t, r)));
            // The scale of each, to its place in a bf16.
            let both = permute(a, b, block | (4 + block) << 8);
            Decode::of((both & 0x00ff_00ff) << 7)
        })
    }

    #[inline(always)]
    fn value_factors(v: &Values, ready: &[Decode; 2], tile: usize) -> [u32; 4] {
        // The same byte of two values, to bytes 0 and 2.
        let byte = tile as u32 % 4;
        let of = |i: usize, word: usize| {
            let [a, b] = [2 * i, 2 * i + 1].map(|r| v.codes[r][word]);
            ready[i].pair(permute(a, b, byte | (4 + byte) << 8))
        };
        let word = tile / 4;
        [of(0, word), of(0, word + 2), of(1, word), of(1, word + 2)]
    }
}

/// The first two of four digits of `x` to the base 128, or the others: each between -64 and 64.
#[inline(always)]
fn digits(mut x: f32, others: bool) -> [u32; 2] {
    /// `1.5 * 2^23`: the sum has no place for a fraction.
    const ROUND: f32 = 12_582_912.0;
    let all: [u32; 4] = core::array::from_fn(|_| {
        let sum = x + ROUND;
        x = (x - (sum - ROUND)) * 128.0;
        sum.to_bits().wrapping_sub(ROUND.to_bits())
    });
    if others { [all[2], all[3]] } else { [all[0], all[1]] }
}

/// The scale of this lane's block, which `LANES` neighbours have.
///
/// *Convergence*: every lane calls it.
#[inline(always)]
fn scale<const LANES: u32>(own: &[f32]) -> u32 {
    let (mut top, mut i) = (0, 0);
    while i < own.len() {
        top = abs_bits(own[i]).max(top);
        i += 1;
    }
    let mut distance = LANES / 2;
    while distance > 0 {
        top = shuffle_xor(top, distance).max(top);
        distance /= 2;
    }
    mx_scale(top)
}

/// Two codes, in the lower bytes of a word.
#[inline(always)]
fn codes([a, b]: [f32; 2], scale: u32) -> u32 {
    let [a, b] = [a, b].map(|v| mx_code(v, scale) as u32 & 0xff);
    a | b << 8
}
