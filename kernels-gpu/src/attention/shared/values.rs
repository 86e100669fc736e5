//! Weighted values, and the outputs made of them.

use contract::attention::Args;
use contract::num::{Running, Weights, weighted_value};

use super::super::tile::Rows;
use super::memory::Memory;
use super::{KEYS, VALUE_ROWS, WARP_ROWS};
use crate::arch::hint::opaque;
use crate::arch::mem::st;
use crate::arch::warp::{lane_id, sync_warp};

/// Adds the weighted values of the first `count` keys of a block; with `ALL`, every row sees all 64.
///
/// # Safety
///
/// Exponentials, factors and values are in shared memory and stay there.
#[inline(always)]
pub(super) unsafe fn take_values<const D: u32, const PARTS: usize, const ALL: bool>(
    memory: &Memory<D>,
    out: &mut [[[f32; 4]; PARTS]; VALUE_ROWS],
    count: u32,
) {
    let (h, l) = (lane_id() / 16, lane_id() % 16);
    let rows = VALUE_ROWS as u32 * h;
    let factors = memory.factors.add(4 * rows);
    let seen: [u32; VALUE_ROWS] = core::array::from_fn(|r| match ALL {
        true => KEYS,
        // SAFETY: a word of a row.
        false => unsafe { factors.add(4 * r as u32 + 2).cast().read() },
    });
    let mut sums = [[[0.0f32; 4]; PARTS]; VALUE_ROWS];
    let mut t = opaque(0);
    while t < count {
        // SAFETY: rows of a key, dimensions of a value.
        let (low, high, v) = unsafe {
            let p = memory.weights.add(t * WARP_ROWS + rows);
            let v: [[f32; 4]; PARTS] = core::array::from_fn(|part| {
                memory.kv.add(t * Memory::<D>::PITCH + 64 * part as u32 + 4 * l).read_x4()
            });
            (p.read_x4(), p.add(4).read_x4(), v)
        };
        let p = [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]];
        let mut r = 0;
        while r < VALUE_ROWS {
            let sees = ALL || t < seen[r];
            let mut part = 0;
            while part < PARTS {
                let mut e = 0;
                while e < 4 {
                    let next = weighted_value(sums[r][part][e], p[r], v[part][e]);
                    sums[r][part][e] = if sees { next } else { sums[r][part][e] };
                    e += 1;
                }
                part += 1;
            }
            r += 1;
        }
        t += 1;
    }
    let mut r = 0;
    while r < VALUE_ROWS {
        // SAFETY: two words of a row.
        let [running, block] = unsafe { factors.add(4 * r as u32).read_x2() };
        let weights = Weights { running, block };
        let sees = ALL || seen[r] > 0;
        let mut part = 0;
        while part < PARTS {
            let mut e = 0;
            while e < 4 {
                let next = weights.combine(out[r][part][e], sums[r][part][e]);
                out[r][part][e] = if sees { next } else { out[r][part][e] };
                e += 1;
            }
            part += 1;
        }
        r += 1;
    }
}

/// Divides by the sums and writes the rows that exist.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table; rows `row0..` of the block belong to this warp, their sums are in
/// shared memory, and it has taken its queries.
#[inline(always)]
pub(super) unsafe fn write<const D: u32, const PARTS: usize>(
    args: &Args,
    rows: &Rows,
    memory: &Memory<D>,
    out: &[[[f32; 4]; PARTS]; VALUE_ROWS],
    row0: u32,
) {
    let (h, l) = (lane_id() / 16, lane_id() % 16);
    let staging = memory.q.add(row0 * Memory::<D>::PITCH);
    let mut r = 0;
    while r < VALUE_ROWS {
        let at = staging.add((VALUE_ROWS as u32 * h + r as u32) * Memory::<D>::PITCH + 4 * l);
        let mut part = 0;
        while part < PARTS {
            // SAFETY: four words where the warp's queries were.
            unsafe { at.add(64 * part as u32).write_x4(out[r][part]) };
            part += 1;
        }
        r += 1;
    }
    sync_warp();
    let mut index = opaque(0);
    while index < WARP_ROWS {
        // Exponentials, and so outputs, stand in the order of the lanes that made them.
        let row = row0 + index / 4 + 4 * (index % 4);
        // SAFETY: a word of the row.
        let sum = unsafe { memory.factors.add(4 * index + 3).read() };
        let (running, to) = (Running { max: 0.0, sum }, rows.out(args, row));
        let mut d = lane_id();
        while d < args.head_dim && rows.exists(row) {
            // SAFETY: an element of the row, and of the row's head.
            unsafe {
                let value = staging.add(index * Memory::<D>::PITCH + d).read();
                st(to.wrapping_add(d as usize), running.finish(value));
            }
            d += 32;
        }
        index += 1;
    }
}
