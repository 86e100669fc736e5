//! Pages of bf16 for [`super::fast`]: of keys a lane has the elements `32 j + 8 t ..`, of values the dimensions `64 i + 8 g ..`.

use contract::attention_paged::{FAST_HEAD_DIM, STEP_HEAD_DIM, STEP_HEADS};
use contract::launch::DevPtr;

use super::fast::{OF_WARP, PIECES, Pages, factors, own_key, own_value, queries, split, value_key};
use super::step_row::Step;
use crate::arch::dot::permute;
use crate::arch::mem::{X4, ld_or_zero_stream_x4};
use crate::arch::mma::mma_bf16;
use crate::arch::warp::{lane_id, shuffle_xor, warp_id};
use crate::element::Bf16;

/// Pieces of 16 bytes that a lane reads of a key, and of a value.
const KEY_PIECES: usize = FAST_HEAD_DIM as usize / 32;
const VALUE_PIECES: usize = FAST_HEAD_DIM as usize / 64;
/// Bytes from key to key in a page.
const KEY_BYTES: usize = 2 * FAST_HEAD_DIM as usize;

/// Byte 0 of the kv head's part of page `page`.
#[inline(always)]
fn part(step: &Step<'_>, pages: DevPtr<u8>, page: u32) -> *const u8 {
    let part = Step { page, ..*step }.part();
    pages.cast::<u16>().as_ptr().cast_const().wrapping_add(part).cast()
}

impl Pages for Bf16 {
    type Keys = [[X4<u32>; KEY_PIECES]; 2];
    type Values = [[X4<u32>; VALUE_PIECES]; 4];
    const APART: u32 = 8;
    const UPPER: u32 = 64;

    #[inline(always)]
    unsafe fn keys(step: &Step<'_>, page: u32, stored: u32) -> Self::Keys {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let key = warp_id() * OF_WARP + g;
        let from = part(step, step.args.k_pages, page);
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
    unsafe fn values(step: &Step<'_>, page: u32, stored: u32) -> Self::Values {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let key = warp_id() * OF_WARP + 2 * t;
        let from = part(step, step.args.v_pages, page);
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
                    k[r][j] = unsafe { own_key().add(16 * j as u32 + 4 * t).read_x4() };
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

    type Queries = ();

    /// Of step `2 j + u` the elements `32 j + 8 t + 4 u ..`, of head `g` their bf16, of head `g - 4` what is left of them.
    #[inline(always)]
    unsafe fn make_factors() {
        let (g, t, j) = (lane_id() / 4, lane_id() % 4, warp_id());
        let from = queries().add(g % STEP_HEADS * STEP_HEAD_DIM + 32 * j + 8 * t);
        // SAFETY: eight words of a query.
        let q: [[f32; 4]; 2] = unsafe { [from.read_x4(), from.add(4).read_x4()] };
        let words = core::array::from_fn(|i| {
            split(q[i / 2][2 * (i % 2)], q[i / 2][2 * (i % 2) + 1], g >= STEP_HEADS)
        });
        // SAFETY: by the caller.
        unsafe { factors(j).write_x4(words) };
    }

    #[inline(always)]
    unsafe fn queries() {}

    #[inline(always)]
    unsafe fn scores(k: &Self::Keys, (): ()) -> [[f32; 2]; 2] {
        // Two chains, which do not wait for each other.
        let mut sums = [[0.0; 4]; 2];
        let mut j = 0;
        while j < PIECES {
            // SAFETY: the caller's promise.
            let q = unsafe { factors(j as u32).read_x4() };
            let mut u = 0;
            while u < 2 {
                let a = [k[0][j][2 * u], k[1][j][2 * u], k[0][j][2 * u + 1], k[1][j][2 * u + 1]];
                sums[u] = mma_bf16(a, [q[2 * u], q[2 * u + 1]], sums[u]);
                u += 1;
            }
            j += 1;
        }
        let all: [f32; 4] = core::array::from_fn(|i| {
            let both = sums[0][i] + sums[1][i];
            // With what rounding left of the queries.
            both + shuffle_xor(both, 2)
        });
        [[all[0], all[1]], [all[2], all[3]]]
    }

    type Ready = ();

    #[inline(always)]
    fn ready(_: &Self::Values) {}

    #[inline(always)]
    fn value_factors(v: &Self::Values, (): &(), tile: usize) -> [u32; 4] {
        // The lower or upper halves of two words.
        let halves = if tile % 2 == 0 { 0x5410 } else { 0x7632 };
        let of = |key: usize, piece: usize| {
            permute(v[key][piece][tile / 2], v[key + 1][piece][tile / 2], halves)
        };
        [of(0, 0), of(0, 1), of(2, 0), of(2, 1)]
    }
}
