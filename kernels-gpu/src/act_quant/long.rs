//! Norms of rows that have sums for each segment, a block of 256 threads each: [`contract::norm`]. Thread `t` has elements `t, t + 256, ...`,
//! and so partial `t` of every segment.

use contract::norm::around;
use contract::num::{PARTIALS, fma, tree8};
use contract::parts::{PART, Parts, SEGMENT};

use crate::arch::block;
use crate::arch::shared::Shared;
use crate::arch::thread::{opaque, sync_threads, thread_idx_x};

/// Elements of a thread in a segment.
const OWN: usize = SEGMENT as usize / PARTIALS;

/// The sum of a row of `k` elements `at(i)`, 0 unless `CENTRED`, and that of their squares, around its mean then, in every thread.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// As for [`block::sum_partials`]; `at` is asked for elements of this thread.
#[inline(always)]
pub(super) unsafe fn sums<const CENTRED: bool>(
    scratch: Shared<f32>,
    k: u32,
    at: impl Fn(u32) -> f32,
) -> [f32; 2] {
    let parts = Parts::new(k);
    // SAFETY: the caller's promise; a barrier stands behind each call.
    let over = |partial: f32| unsafe {
        let sum = block::sum_partials(scratch, partial);
        sync_threads();
        sum
    };
    let mut all = [0.0; 2];
    let mut pass = u32::from(!CENTRED);
    while pass < 2 {
        let mean = all[0] / k as f32;
        let mut partial = 0.0;
        let mut part = 0;
        while part < parts.count {
            let (first, len) = parts.segments(part);
            let mut own = [[0.0; PART as usize]; 2];
            let mut lens = [1; PART as usize];
            let mut n = 0;
            while n < len {
                let start = (first + n) * SEGMENT;
                let left = k - start;
                let count = if left < SEGMENT { left } else { SEGMENT };
                let mut v = [0.0; OWN];
                let there = |i: usize| thread_idx_x() + PARTIALS as u32 * (i as u32) < count;
                let mut i = 0;
                while i < OWN {
                    let on = thread_idx_x() + PARTIALS as u32 * i as u32;
                    v[i] = if there(i) { at(start + on) } else { 0.0 };
                    i += 1;
                }
                let mut both = [0.0; 2];
                if CENTRED {
                    let mut sum = 0.0;
                    let mut i = 0;
                    while i < OWN {
                        sum += v[i];
                        i += 1;
                    }
                    both[0] = over(sum);
                    let mean = both[0] / count as f32;
                    let mut i = 0;
                    while i < OWN {
                        v[i] = if there(i) { v[i] - mean } else { 0.0 };
                        i += 1;
                    }
                }
                if pass == 1 {
                    let mut squares = 0.0;
                    let mut i = 0;
                    while i < OWN {
                        squares = fma(v[i], v[i], squares);
                        i += 1;
                    }
                    both[1] = over(squares);
                }
                let mut i = 0;
                while i < PART as usize {
                    if i as u32 == n {
                        (own[0][i], own[1][i], lens[i]) = (both[0], both[1], count);
                    }
                    i += 1;
                }
                n = opaque(n + 1);
            }
            let sum = tree8(own[0]);
            let elements = parts.elements(part, k);
            if CENTRED {
                let mean = sum / elements as f32;
                let mut i = 0;
                while i < PART as usize {
                    if (i as u32) < len && pass == 1 {
                        own[1][i] = around(own[1][i], own[0][i], lens[i], mean);
                    }
                    i += 1;
                }
            }
            let squares = tree8(own[1]);
            if part % PARTIALS as u32 == thread_idx_x() {
                partial += match (pass, CENTRED) {
                    (0, _) => sum,
                    (_, true) => around(squares, sum, elements, mean),
                    _ => squares,
                };
            }
            part = opaque(part + 1);
        }
        let sum = over(partial);
        if pass == 0 {
            all[0] = sum
        } else {
            all[1] = sum
        }
        pass = opaque(pass + 1);
    }
    all
}
