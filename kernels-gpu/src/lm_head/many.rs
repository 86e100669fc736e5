//! The head for several inputs: four at a time (before sm_75 two), so that a weight that was read is used four
//! times, and comes from the cache for the inputs after them.

use contract::lm_head::{Args, MANY_INPUTS, ROWS_PER_BLOCK, ROWS_PER_WARP};
use contract::num::{PARTIALS, fma};

use super::{OWN, ROWS, load8, sum_rows};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, st};
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{lane_id, warp_id};
use crate::element::Element;

/// Steps of 256 weights of each row in flight; some GPUs before sm_75 have half the registers.
const AHEAD: usize = if cfg!(level_sm_75) { 4 } else { 2 };
/// Inputs at once, for the same reason.
const INPUTS: usize = MANY_INPUTS as usize / if cfg!(level_sm_75) { 1 } else { 2 };

/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; block and grid are the
/// contract's.
#[inline(always)]
pub(super) unsafe fn lm_head_many<E: Element>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let (k, vocab) = (args.k as usize, args.vocab);
    let own = OWN * lane_id() as usize;
    let row0 = block_idx_x() * ROWS_PER_BLOCK + warp_id() * ROWS_PER_WARP;
    let table = args.w.cast::<E>().as_ptr().cast_const();
    let rows: [*const E; ROWS] = core::array::from_fn(|r| {
        let row = (row0 + r as u32).min(vocab - 1); // lanes stay alive: the last row again
        table.wrapping_add(row as usize * args.stride as usize + own)
    });
    let whole = k / PARTIALS; // steps in which every lane has eight elements
    let mut first = 0;
    while first < args.m {
        let inputs: [*const f32; INPUTS] = core::array::from_fn(|i| {
            let input = (first + i as u32).min(args.m - 1); // the last input again
            args.x.as_ptr().cast_const().wrapping_add(input as usize * k + own)
        });
        let mut acc = [[[0.0f32; OWN]; ROWS]; INPUTS];
        let load = |at: usize| -> [[E::Raw8; ROWS]; AHEAD] {
            core::array::from_fn(|u| {
                // Past the end the last step again: it is not used.
                let step = (at + u).min(whole.max(1) - 1);
                core::array::from_fn(|r| {
                    // SAFETY: elements 256 step + 8 lane .. + 8 of the row, when there is a step.
                    unsafe { E::near8(rows[r].wrapping_add(step * PARTIALS)) }
                })
            })
        };
        let mut at = 0;
        while at < whole {
            let held = load(at);
            let mut u = 0;
            while u < AHEAD {
                if at + u < whole {
                    let w: [[f32; OWN]; ROWS] = core::array::from_fn(|r| E::widen8(held[u][r]));
                    let mut i = 0;
                    while i < INPUTS {
                        // SAFETY: the same elements of an input.
                        let x = unsafe { load8(inputs[i].wrapping_add((at + u) * PARTIALS)) };
                        let mut r = 0;
                        while r < ROWS {
                            let mut p = 0;
                            while p < OWN {
                                acc[i][r][p] = fma(x[p], w[r][p], acc[i][r][p]);
                                p += 1;
                            }
                            r += 1;
                        }
                        i += 1;
                    }
                }
                u += 1;
            }
            at += AHEAD;
        }
        // The last K % 256 elements, one by one.
        let at = whole * PARTIALS;
        let mut p = 0;
        while p < OWN {
            if at + own + p < k {
                let mut r = 0;
                while r < ROWS {
                    // SAFETY: element at + 8 lane + p < K of each row and input.
                    let w = unsafe { E::load(rows[r].wrapping_add(at + p)) };
                    let mut i = 0;
                    while i < INPUTS {
                        // SAFETY: as above.
                        let x = unsafe { ld(inputs[i].wrapping_add(at + p)) };
                        acc[i][r][p] = fma(x, w, acc[i][r][p]);
                        i += 1;
                    }
                    r += 1;
                }
            }
            p += 1;
        }
        let row = row0 + lane_id() / 16;
        let mut i = 0;
        while i < INPUTS {
            let sum = sum_rows(acc[i]);
            let input = first + i as u32;
            if lane_id() % 16 == 0 && row < vocab && input < args.m {
                let at = input as usize * vocab as usize + row as usize;
                // SAFETY: logits[input, row] belongs to this lane.
                unsafe { st(args.logits.as_ptr().wrapping_add(at), sum) };
            }
            i += 1;
        }
        first += INPUTS as u32;
    }
}
