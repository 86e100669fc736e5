//! Pages of bf16 for [`super::fast`]: of keys a lane has the elements `32 j + 8 t ..`, of values the dimensions `64 i + 8 g ..`.

use contract::attention_paged::FAST_HEAD_DIM;
use contract::launch::DevPtr;

use super::fast::{OF_WARP, Pages, own_key, own_value, value_key};
use super::step_row::Step;
use crate::arch::dot::permute;
use crate::arch::mem::{X4, ld_or_zero_stream_x4};
use crate::arch::warp::{lane_id, warp_id};
use crate::element::Bf16;

/// Pieces of 16 bytes that a lane reads of a key, and of a value.
const KEY_PIECES: usize = FAST_HEAD_DIM as usize / 32;
const VALUE_PIECES: usize = FAST_HEAD_DIM as usize / 64;
/// Bytes from key to key in a page.
const KEY_BYTES: usize = 2 * FAST_HEAD_DIM as usize;

/// Byte 0 of the kv head's part of page `page` in `pages`, of the first page where it is not there, and the keys of key block `block` in front of
/// the row's own: none where it is not there.
#[inline(always)]
fn stored(step: &Step<'_>, pages: DevPtr<u8>, page: u32, block: u32) -> (*const u8, u32) {
    let there = page < step.args.pages;
    let part = Step { page: if there { page } else { 0 }, ..*step }.part();
    let keys = if there { step.pos - block * super::tile::KEYS } else { 0 };
    (pages.cast::<u16>().as_ptr().cast_const().wrapping_add(part).cast(), keys)
}

impl Pages for Bf16 {
    type Keys = [[X4<u32>; KEY_PIECES]; 2];
    type Values = [[X4<u32>; VALUE_PIECES]; 4];
    const APART: u32 = 8;
    const UPPER: u32 = 64;
    const ORDER: [[[usize; 2]; 2]; 2] = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]];

    #[inline(always)]
    unsafe fn keys(step: &Step<'_>, page: u32, block: u32) -> Self::Keys {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let key = warp_id() * OF_WARP + g;
        let (from, stored) = stored(step, step.args.k_pages, page, block);
        let from = from.wrapping_add(key as usize * KEY_BYTES + 16 * t as usize);
        core::array::from_fn(|r| {
            let there = key + 8 * (r as u32) < stored;
            core::array::from_fn(|j| {
                let at = from.wrapping_add(8 * r * KEY_BYTES + 64 * j);
                // SAFETY: the caller's promise; 16 bytes of a key.
                unsafe { ld_or_zero_stream_x4(there, at.cast()) }
            })
        })
    }

    #[inline(always)]
    unsafe fn values(step: &Step<'_>, page: u32, block: u32) -> Self::Values {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let key = warp_id() * OF_WARP + 2 * t;
        let (from, stored) = stored(step, step.args.v_pages, page, block);
        let from = from.wrapping_add(key as usize * KEY_BYTES + 16 * g as usize);
        core::array::from_fn(|r| {
            let behind = value_key(0, r as u32);
            let there = key + behind < stored;
            core::array::from_fn(|i| {
                let at = from.wrapping_add(behind as usize * KEY_BYTES + 128 * i);
                // SAFETY: the caller's promise; 16 bytes of a value.
                unsafe { ld_or_zero_stream_x4(there, at.cast()) }
            })
        })
    }

    #[inline(always)]
    unsafe fn put_new(step: &Step<'_>) {
        // SAFETY: handed on.
        unsafe { step.put_new(step.new_words(), [own_key(), own_value()]) };
    }

    #[inline(always)]
    unsafe fn take_own(k: &mut Self::Keys, v: &mut Self::Values, own: u32) {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let mut r = 0;
        while r < 2 {
            let mut j = 0;
            while j < KEY_PIECES {
                if g + 8 * r as u32 == own {
                    // SAFETY: 16 bytes of the key.
                    k[r][j] = unsafe { own_key().add(Self::first(j as u32, t) / 2).read_x4() };
                }
                j += 1;
            }
            r += 1;
        }
        let mut r = 0;
        while r < 4 {
            let mut i = 0;
            while i < VALUE_PIECES {
                let first = 64 * i as u32 + 8 * g;
                if value_key(t, r as u32) == own {
                    // SAFETY: 16 bytes of the value.
                    v[r][i] = unsafe { own_value().add(first / 2).read_x4() };
                }
                i += 1;
            }
            r += 1;
        }
    }

    #[inline(always)]
    fn first(j: u32, t: u32) -> u32 {
        32 * j + 8 * t
    }

    #[inline(always)]
    fn key_factors(k: &Self::Keys, j: usize) -> [[u32; 4]; 2] {
        core::array::from_fn(|u| {
            [k[0][j][2 * u], k[1][j][2 * u], k[0][j][2 * u + 1], k[1][j][2 * u + 1]]
        })
    }

    #[inline(always)]
    fn value_factors(v: &Self::Values, tile: usize) -> [u32; 4] {
        // The lower or upper halves of two words.
        let halves = if tile % 2 == 0 { 0x5410 } else { 0x7632 };
        let of = |key: usize, piece: usize| {
            permute(v[key][piece][tile / 2], v[key + 1][piece][tile / 2], halves)
        };
        [of(0, 0), of(0, 1), of(2, 0), of(2, 1)]
    }
}
