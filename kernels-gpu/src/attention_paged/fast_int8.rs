//! Pages of 8 bits ([`contract::num::mx_value`]) for [`super::fast`]: of keys a lane has the elements `64 c + 16 t ..`, of values the dimensions
//! `16 g ..`.
//!
//! A byte becomes a bf16 in steps that each give a bf16 exactly. Behind its sign bit, turned around, and below `0x43` it is the bf16
//! `256 + code` of a code below zero and `256 + 2 code` of another. Half of that less 128, times the power of two, is `h`; the number
//! is `h` less what `-h` is above zero.

use contract::attention_paged::{FAST_HEAD_DIM, PAGE, int8_part_bytes, int8_scales, int8_stride};
use contract::launch::DevPtr;
use contract::num::{abs_bits, mx_code, mx_scale};
use contract::rope::rotate;

use super::fast::{OF_WARP, Pages, own_key, own_value, value_key};
use super::step_row::Step;
use super::tile::KEYS;
use crate::arch::dot::permute;
use crate::arch::half::{fma_bf16x2, fma_relu_bf16x2};
use crate::arch::mem::{X4, ld_if, ld_or_zero_stream_x4, ld_u8_if, ld_x2, ld_x4, st};
use crate::arch::shared::Shared;
use crate::arch::warp::{lane_id, shuffle_idx, shuffle_xor, warp_id};

/// Pages of 8 bits.
pub(super) struct Int8;

/// Pieces of 16 bytes that a lane reads of a key.
const KEY_PIECES: usize = FAST_HEAD_DIM as usize / 64;
/// Bytes from key to key in a page, and from scales to scales.
const KEY_BYTES: usize = int8_stride(FAST_HEAD_DIM as usize);
const SCALE_BYTES: usize = int8_scales(FAST_HEAD_DIM as usize);
/// Where the scales of a part start.
const SCALES: usize = PAGE * KEY_BYTES;
/// Words of a key's codes.
const WORDS: u32 = KEY_BYTES as u32 / 4;

const _: () = assert!(KEY_BYTES == FAST_HEAD_DIM as usize && SCALE_BYTES == 4);

/// Two of a number in a word of bf16.
const fn both(bits: u32) -> u32 {
    bits | bits << 16
}

/// What turns codes of a scale into numbers: multipliers and addends of `h` and of `-h`.
#[derive(Clone, Copy)]
struct Decode([u32; 4]);

impl Decode {
    /// Of two scales, as bf16 `2^(scale - 127)`; infinity of a block without numbers.
    #[inline(always)]
    fn of(scales: u32) -> Self {
        const NONE: u32 = both(0x8000);
        #[cfg(variant_lop)]
        return Self([fma_bf16x2(scales, both(0x3c80), NONE); 4]);
        let by = |factor| fma_bf16x2(scales, both(factor), NONE);
        // 2^-7, -2, -2^-7, 2.
        Self([by(0x3c00), by(0xc000), by(0xbc00), by(0x4000)])
    }

    /// The numbers of the codes in bytes 0 and 2 of a word.
    #[inline(always)]
    fn pair(self, codes: u32) -> u32 {
        const MINUS_ONE: u32 = both(0xbf80);
        #[cfg(variant_lop)]
        {
            let x = (codes & both(0x007f)) | both(0x4300);
            let c = (codes & both(0x0080)) | both(0xc300);
            return fma_bf16x2(fma_bf16x2(x, both(0x3f80), c), self.0[0], both(0x8000));
        }
        let Self([scale, less, minus, more]) = self;
        let y = (codes & both(0x00ff)) ^ both(0x4380);
        fma_bf16x2(fma_relu_bf16x2(y, minus, more), MINUS_ONE, fma_bf16x2(y, scale, less))
    }
}

/// Byte 0 of the kv head's part of page `page` in `pages`, of the first page where it is not there, and the keys of key block `block` in front of
/// the row's own: none where it is not there.
#[inline(always)]
fn stored(step: &Step<'_>, pages: DevPtr<u8>, page: u32, block: u32) -> (*const u8, u32) {
    let there = page < step.args.pages;
    let keys = if there { step.pos - block * KEYS } else { 0 };
    (part(step, pages, if there { page } else { 0 }).cast_const(), keys)
}

/// Byte 0 of the kv head's part of page `page`.
#[inline(always)]
fn part(step: &Step<'_>, pages: DevPtr<u8>, page: u32) -> *mut u8 {
    let heads = page as usize * step.args.kv_heads as usize + step.kv_head as usize;
    pages.as_ptr().wrapping_add(heads * int8_part_bytes(FAST_HEAD_DIM as usize))
}

/// Of keys `g` and `g + 8` two pieces each, and their scales.
pub(super) struct Keys {
    codes: [[X4<u32>; KEY_PIECES]; 2],
    scales: [u32; 2],
}

/// Of four values a piece each, and its scale.
pub(super) struct Values {
    codes: [X4<u32>; 4],
    scales: [u32; 4],
}

impl Pages for Int8 {
    type Keys = Keys;
    type Values = Values;
    const APART: u32 = 16;
    const UPPER: u32 = 8;
    const ORDER: [[[usize; 2]; 2]; 2] = [[[0, 2], [1, 3]], [[4, 6], [5, 7]]];

    #[inline(always)]
    unsafe fn keys(step: &Step<'_>, page: u32, block: u32) -> Keys {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let key = warp_id() * OF_WARP + g;
        let (part, stored) = stored(step, step.args.k_pages, page, block);
        let from = part.wrapping_add(key as usize * KEY_BYTES + 16 * t as usize);
        let scales = part.wrapping_add(SCALES + key as usize * SCALE_BYTES);
        let there: [bool; 2] = core::array::from_fn(|r| key + 8 * (r as u32) < stored);
        // SAFETY: the caller's promise; 16 bytes of a key, and its scales.
        unsafe {
            Keys {
                codes: core::array::from_fn(|r| {
                    core::array::from_fn(|c| {
                        let at = from.wrapping_add(8 * r * KEY_BYTES + 64 * c);
                        ld_or_zero_stream_x4(there[r], at.cast())
                    })
                }),
                scales: core::array::from_fn(|r| {
                    ld_if(there[r], scales.wrapping_add(8 * r * SCALE_BYTES).cast())
                }),
            }
        }
    }

    #[inline(always)]
    unsafe fn values(step: &Step<'_>, page: u32, block: u32) -> Values {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let key = warp_id() * OF_WARP + 2 * t;
        let (part, stored) = stored(step, step.args.v_pages, page, block);
        let from = part.wrapping_add(key as usize * KEY_BYTES + 16 * g as usize);
        let scales = part.wrapping_add(SCALES + key as usize * SCALE_BYTES + g as usize / 2);
        let behind = |r: usize| value_key(0, r as u32) as usize;
        let there: [bool; 4] = core::array::from_fn(|r| key + (behind(r) as u32) < stored);
        // SAFETY: the caller's promise; 16 bytes of a value, and their scale.
        unsafe {
            Values {
                codes: core::array::from_fn(|r| {
                    let at = from.wrapping_add(behind(r) * KEY_BYTES);
                    ld_or_zero_stream_x4(there[r], at.cast())
                }),
                scales: core::array::from_fn(|r| {
                    let at = scales.wrapping_add(behind(r) * SCALE_BYTES);
                    u32::from(ld_u8_if(there[r], at))
                }),
            }
        }
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
        let mut r = 0;
        while r < 2 {
            if g + 8 * r as u32 == own {
                // SAFETY: two pieces of the key, and its scales.
                unsafe {
                    k.codes[r] =
                        core::array::from_fn(|c| own_key().add(16 * c as u32 + 4 * t).read_x4());
                    k.scales[r] = own_key().add(WORDS).read();
                }
            }
            r += 1;
        }
        let mut r = 0;
        while r < 4 {
            if value_key(t, r as u32) == own {
                // SAFETY: a piece of the value, and its scales.
                unsafe {
                    v.codes[r] = own_value().add(4 * g).read_x4();
                    v.scales[r] = own_value().add(WORDS).read() >> (g / 2 * 8) & 0xff;
                }
            }
            r += 1;
        }
    }

    #[inline(always)]
    fn first(j: u32, t: u32) -> u32 {
        64 * (j / 2) + 16 * t + 8 * (j % 2)
    }

    #[inline(always)]
    fn key_factors(k: &Keys, j: usize) -> [[u32; 4]; 2] {
        let c = j / 2;
        // The scale of a piece twice, and to its place in a bf16.
        let block = 2 * c as u32 + lane_id() % 4 / 2;
        let decode: [Decode; 2] = core::array::from_fn(|r| {
            Decode::of(permute(k.scales[r], 0, 0x4040 | block | block << 8) << 7)
        });
        core::array::from_fn(|u| {
            let words: [u32; 2] = core::array::from_fn(|r| k.codes[r][c][2 * (j % 2) + u]);
            [
                decode[0].pair(words[0]),
                decode[1].pair(words[1]),
                decode[0].pair(words[0] >> 8),
                decode[1].pair(words[1] >> 8),
            ]
        })
    }

    #[inline(always)]
    fn value_factors(v: &Values, tile: usize) -> [u32; 4] {
        let decode: [Decode; 2] = core::array::from_fn(|i| {
            Decode::of(v.scales[2 * i] << 7 | v.scales[2 * i + 1] << 23)
        });
        // The same byte of two values, to bytes 0 and 2.
        let byte = tile as u32 % 4;
        let of = |i: usize, word: usize| {
            let [a, b] = [2 * i, 2 * i + 1].map(|r| v.codes[r][word]);
            decode[i].pair(permute(a, b, byte | (4 + byte) << 8))
        };
        let word = tile / 4;
        [of(0, word), of(0, word + 2), of(1, word), of(1, word + 2)]
    }
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
