//! CPU side of [`contract::act_quant`]: rows are made in pieces of 16, which stay together in the
//! contract's order of activations.

use contract::num::{abs_bits, act_scale, quantise};
use contract::rmsnorm::{inv_rms, normalise};
use contract::w2a8::{act_bytes, act_index};
use contract::{num, relu2_mul, silu_mul};

use super::rmsnorm::residual;
use super::threads::RowsMut;
use super::{Simd, Threads};
use crate::ops::act_quant::Gate;

const PIECE: usize = 16;

/// Elements `at..at + 16` of a row, zeros past its end.
#[inline(always)]
fn piece(row: &[f32], at: usize) -> [f32; PIECE] {
    if let Some(whole) = row[at..].first_chunk() {
        return *whole;
    }
    let mut part = [0.0; PIECE];
    part[..row.len() - at].copy_from_slice(&row[at..]);
    part
}

/// The norm of a piece.
#[inline(always)]
fn normed(x: &[f32], weight: &[f32], r: f32, at: usize) -> [f32; PIECE] {
    let (x, weight) = (piece(x, at), piece(weight, at));
    std::array::from_fn(|e| normalise(x[e], r, weight[e]))
}

/// Quantises a row of `k` values that come in pieces; what a piece holds past `k` is ignored.
#[inline(always)]
fn quantise_row(
    k: usize,
    values: impl Fn(usize) -> [f32; PIECE],
    acts: &mut [u32],
    stats: &mut [u32; 2],
) {
    let inside = |at: usize| {
        let mut v = values(at);
        if at + PIECE > k {
            v[k - at..].fill(0.0);
        }
        v
    };
    let mut tops = [0; PIECE];
    for at in (0..k).step_by(PIECE) {
        let v = inside(at);
        for (top, v) in tops.iter_mut().zip(v) {
            *top = abs_bits(v).max(*top);
        }
    }
    let absmax = tops.into_iter().fold(0, u32::max);
    let scale = act_scale(f32::from_bits(absmax));
    let acts: &mut [i8] = bytemuck::cast_slice_mut(acts);
    let mut sums = [0; PIECE];
    for at in (0..act_bytes(k)).step_by(PIECE) {
        let mut q = [0i8; PIECE];
        if at < k {
            let v = inside(at);
            for ((q, sum), v) in q.iter_mut().zip(&mut sums).zip(v) {
                *q = quantise(v, scale);
                *sum += i32::from(*q);
            }
        }
        acts[act_index(at)..][..PIECE].copy_from_slice(&q);
    }
    let sum: i32 = sums.iter().sum();
    *stats = [scale.to_bits(), sum as u32];
}

/// The quantised rows: `acts` of `act_bytes(k)` bytes each, and one of `stats` for each row.
pub struct Quantised<'a> {
    /// Values in the contract's order, four to a word.
    pub acts: &'a mut [u32],
    /// Scale bits and sum; its length is the number of rows.
    pub stats: &'a mut [[u32; 2]],
}

impl<'a> Quantised<'a> {
    fn rows(self, k: usize) -> (usize, (RowsMut<'a, u32>, RowsMut<'a, [u32; 2]>)) {
        let m = self.stats.len();
        (m, (RowsMut::new(self.acts, act_bytes(k) / 4), RowsMut::new(self.stats, 1)))
    }
}

/// Quantises rows of `k` as they are.
pub fn plain(threads: &Threads, simd: Simd, x: &[f32], k: usize, out: Quantised<'_>) {
    let (m, rows) = out.rows(k);
    threads.run_rows(m, rows, |i, (acts, stats)| {
        let x = &x[i * k..][..k];
        simd.with(|| quantise_row(k, |at| piece(x, at), acts, &mut stats[0]));
    });
}

/// Quantises `rmsnorm(x + delta) * weight`; `x` keeps the sum. Rows have `weight.len()` elements.
pub fn rmsnorm(
    threads: &Threads,
    simd: Simd,
    x: &mut [f32],
    delta: Option<&[f32]>,
    weight: &[f32],
    eps: f32,
    out: Quantised<'_>,
) {
    let k = weight.len();
    let (m, rows) = out.rows(k);
    threads.run_rows(m, (rows, RowsMut::new(x, k)), |i, ((acts, stats), x)| {
        simd.with(|| {
            let r = residual(x, delta.map(|d| &d[i * k..][..k]), eps);
            quantise_row(k, |at| normed(x, weight, r, at), acts, &mut stats[0]);
        });
    });
}

/// Writes `f = gate(gate_up[..k]) * gate_up[k..]` and quantises it, normed when there is a weight.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn gated(
    threads: &Threads,
    simd: Simd,
    gate: Gate,
    gate_up: &[f32],
    f: &mut [f32],
    weight: Option<&[f32]>,
    eps: f32,
    k: usize,
    out: Quantised<'_>,
) {
    let (m, rows) = out.rows(k);
    threads.run_rows(m, (rows, RowsMut::new(f, k)), |i, ((acts, stats), f)| {
        let (gates, ups) = gate_up[2 * k * i..][..2 * k].split_at(k);
        simd.with(|| {
            match gate {
                Gate::Relu2 => gate_row(gates, ups, f, relu2_mul::gated),
                Gate::Silu => gate_row(gates, ups, f, silu_mul::gated),
            }
            match weight {
                None => quantise_row(k, |at| piece(f, at), acts, &mut stats[0]),
                Some(weight) => {
                    let r = inv_rms(num::sum_squares(f), k as u32, eps);
                    quantise_row(k, |at| normed(f, weight, r, at), acts, &mut stats[0]);
                }
            }
        });
    });
}

/// One row of a gated product.
#[inline(always)]
pub(super) fn gate_row(gates: &[f32], ups: &[f32], f: &mut [f32], gated: impl Fn(f32, f32) -> f32) {
    for ((f, gate), up) in f.iter_mut().zip(gates).zip(ups) {
        *f = gated(*gate, *up);
    }
}
