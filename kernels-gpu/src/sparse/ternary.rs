//! Ternary weights as mask and signs, times int8 activations: a warp makes one row of outputs.
//!
//! A lane takes a word of the mask: 32 columns. A prefix sum of bit counts over the warp says where its
//! signs start; they are dealt out to the set bits, and mask and signs become bytes of -1, 0 and 1 for
//! `dp4a`. Up to four inputs share that work.

use contract::launch::Kernel;
use contract::sparse::{SparseTernary, TERNARY_INPUTS, TernaryArgs, WAYS, ternary_words};
use contract::w2a8::{CHUNK, CHUNK_GROUP, act_bytes, dequantise};

use crate::arch::bitmap::{below, first_set};
use crate::arch::dot::dp4a_ss;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_x4, st};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y};
use crate::arch::warp::{LANES, lane_id, shuffle_idx, shuffle_up, warp_id, warp_sum};

/// Inputs that share the weights of a word.
const MB: usize = TERNARY_INPUTS as usize;

/// Four bits, the highest first, as four bytes of 0 or 1, the first in the lowest.
#[inline(always)]
fn spread(four: u32) -> u32 {
    (four >> 3 | four << 6 | four << 15 | four << 24) & 0x0101_0101
}

/// # Safety
///
/// The launch obeys `SparseTernary::SPEC` and the contract's row grid for M inputs or fewer; the
/// pointers cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sparse_ternary(args: TernaryArgs) {
    launch_dependents();
    dependency_wait();
    let lane = lane_id();
    let row = block_idx_x() * WAYS as u32 + warp_id();
    // Warps past the last row repeat it and keep their results.
    let (row, inside) = (row.min(args.n - 1), row < args.n);
    let words = ternary_words(args.k as usize) as u32;
    let masks = args.masks.as_ptr().cast_const().wrapping_add(row as usize * words as usize);
    // SAFETY: an entry of `starts`.
    let start = unsafe { ld(args.starts.as_ptr().cast_const().wrapping_add(row as usize)) };
    let signs = args.signs.as_ptr().cast_const().wrapping_add(start as usize);
    let act_row = act_bytes(args.k as usize);
    let mut first = block_idx_y() * MB as u32;
    while first < args.m {
        let mut acc = [0i32; MB];
        // Signs of the row in front of the warp's words.
        let mut used = 0;
        let mut at = 0;
        while at < words {
            let word = at + lane;
            let mut mask = 0;
            if word < words {
                // SAFETY: a word of the row.
                mask = unsafe { ld(masks.wrapping_add(word as usize)) };
            }
            let count = mask.count_ones();
            let mut sum = count;
            let mut distance = 1;
            while distance < LANES {
                let lower = shuffle_up(sum, distance);
                sum += if lane >= distance { lower } else { 0 };
                distance *= 2;
            }
            let own = used + sum - count;
            used += shuffle_idx(sum, LANES - 1);
            let mut negative = 0;
            if mask != 0 {
                let p = signs.wrapping_add(own as usize / 32);
                // SAFETY: the row's signs, or the word behind all of them.
                let (high, low) = unsafe { (ld(p), ld(p.wrapping_add(1))) };
                let both = u64::from(high) << 32 | u64::from(low);
                let mut signs = (both << (own % 32) >> 32) as u32;
                let mut left = mask;
                while left != 0 {
                    let offset = first_set(left);
                    left = below(left, offset);
                    negative |= (signs & 0x8000_0000) >> (offset % 32);
                    signs <<= 1;
                }
            }
            let weights: [u32; 8] = core::array::from_fn(|i| {
                let four = |bits: u32| spread(bits << (4 * i) >> 28);
                four(mask) | four(negative) * 255
            });
            if mask != 0 {
                let chunk = word as usize * 32 / CHUNK;
                // Two of the chunk's four pieces of 16 activations.
                let piece = chunk / CHUNK_GROUP * 4 + word as usize % 2 * 2;
                let acts = piece * (16 * CHUNK_GROUP) + chunk % CHUNK_GROUP * 16;
                let mut i = 0;
                while i < MB {
                    let input = (first + i as u32).min(args.m - 1) as usize;
                    let p = args.acts.cast::<u8>().as_ptr().cast_const();
                    let p = p.wrapping_add(input * act_row + acts);
                    // SAFETY: two pieces of the input's activations, aligned.
                    let (a, b): ([u32; 4], [u32; 4]) = unsafe {
                        (ld_x4(p.cast()), ld_x4(p.wrapping_add(16 * CHUNK_GROUP).cast()))
                    };
                    let mut j = 0;
                    while j < 4 {
                        acc[i] = dp4a_ss(a[j], weights[j], acc[i]);
                        acc[i] = dp4a_ss(b[j], weights[4 + j], acc[i]);
                        j += 1;
                    }
                    i += 1;
                }
            }
            at += LANES;
        }
        let mut i = 0;
        while i < MB {
            let (sum, input) = (warp_sum(acc[i]), first + i as u32);
            if lane == 0 && inside && input < args.m {
                let stats = args.stats.as_ptr().cast_const().wrapping_add(input as usize);
                let to = input as usize * args.n as usize + row as usize;
                // SAFETY: the input's statistics, whose first word is the scale; y[input, row]
                // belongs to this warp.
                unsafe {
                    let y = dequantise(sum, ld(stats.cast::<f32>()), args.segments.scale_of(row));
                    st(args.y.as_ptr().wrapping_add(to), y);
                }
            }
            i += 1;
        }
        first += grid_dim_y() * MB as u32;
    }
}

const _: unsafe extern "ptx-kernel" fn(<SparseTernary as Kernel>::Args) = sparse_ternary;
