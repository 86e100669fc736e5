//! CPU side of [`contract::act_quant`]: rows are made in pieces of 16, which stay together in the
//! contract's order of activations.
#![allow(clippy::needless_range_loop, reason = "lanes are indexed")]

use contract::num::{abs_bits, act_scale, quantise};
use contract::rmsnorm::normalise;
use contract::w2a8::{act_bytes, act_index};

use super::activation::elements;
use super::layernorm::{Affine, norm_row};
use super::rmsnorm::residual;
use super::simd::vectorised;
use super::threads::RowsMut;
use super::{Simd, Threads};
use crate::ops::Float;
use crate::ops::act_quant::Gate;
use crate::ops::activation::Kind;

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

/// A row of values that are made piece by piece.
#[derive(Clone, Copy)]
enum Values<'a> {
    Plain(&'a [f32]),
    Normed { x: &'a [f32], weight: &'a [f32], r: f32 },
}

impl Values<'_> {
    #[inline(always)]
    fn at(self, at: usize) -> [f32; PIECE] {
        match self {
            Self::Plain(x) => piece(x, at),
            Self::Normed { x, weight, r } => {
                let (x, weight) = (piece(x, at), piece(weight, at));
                let mut y = [0.0; PIECE];
                for e in 0..PIECE {
                    y[e] = normalise(x[e], r, weight[e]);
                }
                // Past the end an infinite `r` would make a NaN of the zero.
                y[PIECE.min(self.len() - at)..].fill(0.0);
                y
            }
        }
    }

    #[inline(always)]
    fn len(self) -> usize {
        match self {
            Self::Plain(x) | Self::Normed { x, .. } => x.len(),
        }
    }
}

vectorised! {
    /// Quantises one row.
    fn quantise_row(values: Values<'_>, acts: &mut [u32], stats: &mut [u32; 2]) {
        let k = values.len();
        let mut tops = [0; PIECE];
        for at in (0..k).step_by(PIECE) {
            let v = values.at(at);
            for e in 0..PIECE {
                tops[e] = abs_bits(v[e]).max(tops[e]);
            }
        }
        let mut top = 0;
        for t in tops {
            top = t.max(top);
        }
        let scale = act_scale(f32::from_bits(top));
        let acts: &mut [i8] = bytemuck::cast_slice_mut(acts);
        let mut sums = [0; PIECE];
        for at in (0..act_bytes(k)).step_by(PIECE) {
            let mut q = [0i8; PIECE];
            if at < k {
                let v = values.at(at);
                for e in 0..PIECE {
                    q[e] = quantise(v[e], scale);
                    sums[e] += i32::from(q[e]);
                }
            }
            acts[act_index(at)..][..PIECE].copy_from_slice(&q);
        }
        let mut sum = 0;
        for s in sums {
            sum += s;
        }
        *stats = [scale.to_bits(), sum as u32];
    }
}

vectorised! {
    /// The factor of a row's norm, after the residual add.
    fn residual_row(x: &mut [f32], delta: Option<&[f32]>, eps: f32) -> f32 {
        residual(x, delta, eps)
    }
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
        quantise_row(simd, Values::Plain(&x[i * k..][..k]), acts, &mut stats[0]);
    });
}

/// Quantises rows of `k` elements of 16 bits as they are.
pub fn widened<T: Float>(threads: &Threads, simd: Simd, x: &[T], k: usize, out: Quantised<'_>) {
    let (m, rows) = out.rows(k);
    threads.run_rows(m, rows, |i, (acts, stats)| {
        let row: Vec<f32> = x[i * k..][..k].iter().map(|v| v.widen()).collect();
        quantise_row(simd, Values::Plain(&row), acts, &mut stats[0]);
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
        let r = residual_row(simd, x, delta.map(|d| &d[i * k..][..k]), eps);
        quantise_row(simd, Values::Normed { x, weight, r }, acts, &mut stats[0]);
    });
}

/// Quantises `layernorm(x + delta)`; `x` keeps the sum. Rows have `k` elements.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn layernorm(
    threads: &Threads,
    simd: Simd,
    x: &mut [f32],
    delta: Option<&[f32]>,
    affine: Affine<'_, f32>,
    eps: f32,
    k: usize,
    out: Quantised<'_>,
) {
    let (m, rows) = out.rows(k);
    threads.run_rows(m, (rows, RowsMut::new(x, k)), |i, ((acts, stats), x)| {
        let mut y = vec![0.0; k];
        norm_row(simd, x, delta.map(|d| &d[i * k..][..k]), affine, &mut y, eps);
        quantise_row(simd, Values::Plain(&y), acts, &mut stats[0]);
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
        let gate_up = &gate_up[2 * k * i..][..2 * k];
        let (gates, ups) = gate_up.split_at(k);
        let kind = match gate {
            Gate::Relu2 => Kind::Relu2,
            Gate::Silu => Kind::Silu,
        };
        elements(simd, kind, gates, Some(ups), f);
        let values = match weight {
            None => Values::Plain(f),
            Some(weight) => {
                let r = residual_row(simd, f, None, eps);
                Values::Normed { x: f, weight, r }
            }
        };
        quantise_row(simd, values, acts, &mut stats[0]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::{bits, every_backend, upload};
    use crate::cpu::{Buffer, CpuBackend};
    use crate::ops::act_quant::{ActQuant, Source};
    use crate::ops::{Backend, QuantActs, RowType};
    use crate::reference::act_quant::{self as reference, Row, TEST_SHAPES};
    use crate::reference::rmsnorm::{self, Case};
    use crate::reference::{Inputs, layernorm, w2a8_gemv};
    use proptest::prelude::*;

    /// Runs one source and compares what it leaves with `want`.
    fn run(backend: &CpuBackend, source: Source<'_, CpuBackend>, want: &[Row], k: usize) {
        let m = want.len();
        let mut out = QuantActs::alloc(backend, m + 1, k).expect("alloc");
        backend.fill(&mut out.acts, 0x55).expect("fill");
        backend.act_quant(ActQuant { source, out: &mut out, m, k }).expect("shapes fit");
        let mut natural = w2a8_gemv::Case::new(m, 1, k, 0);
        natural.q = want.iter().flat_map(|row| row.q.clone()).collect();
        natural.s = want.iter().map(|row| row.scale).collect();
        let words = natural.acts();
        assert_eq!(out.acts.as_slice()[..words.len()], words, "m={m} k={k}");
        for (got, want) in out.stats.as_slice().iter().zip(want) {
            assert_eq!(bits(&[f32::from_bits(got[0])]), bits(&[want.scale]), "m={m} k={k}");
            assert_eq!(got[1] as i32, want.sum, "m={m} k={k}");
        }
        assert!(out.acts.as_slice()[words.len()..].iter().all(|&w| w == 0x5555_5555));
    }

    fn check(m: usize, k: usize, seed: u64) {
        let case = Case::new(RowType::F32, m, k, seed.is_multiple_of(2), seed);
        check_plain(&case.x, k);
        let eps = case.eps;
        let (sum, normed) = rmsnorm::rmsnorm(&case);
        let want = reference::act_quant(&normed, k);
        every_backend(|backend| {
            let mut x = upload(backend, &case.x);
            let delta = case.delta.as_ref().map(|d| upload(backend, d));
            let (delta, weight) = (delta.as_ref(), &upload(backend, &case.weight));
            run(backend, Source::RmsNorm { x: &mut x, delta, weight, eps }, &want, k);
            assert_eq!(bits(x.as_slice()), bits(&sum), "m={m} k={k}");
        });
        check_layernorm(&layernorm::Case::new(RowType::F32, m, k, seed as usize % 8, seed));
        let gate_up = Inputs::new(seed).floats(2 * m * k, 9.0);
        for gate in [Gate::Relu2, Gate::Silu] {
            for weight in [None, Some(&case.weight[..])] {
                check_gated(gate, &gate_up, weight, eps, k);
            }
        }
    }

    fn check_layernorm(case: &layernorm::Case) {
        let (sum, normed) = layernorm::layernorm(case);
        let want = reference::act_quant(&normed, case.k);
        every_backend(|backend| {
            let mut x = upload(backend, &case.x);
            let tensor = |v: &Option<Vec<f32>>| v.as_ref().map(|v| upload(backend, v));
            let [delta, weight, bias] = [&case.delta, &case.weight, &case.bias].map(tensor);
            let source = Source::LayerNorm {
                x: &mut x,
                delta: delta.as_ref(),
                weight: weight.as_ref(),
                bias: bias.as_ref(),
                eps: case.eps,
            };
            run(backend, source, &want, case.k);
            assert_eq!(bits(x.as_slice()), bits(&sum), "m={} k={}", case.m, case.k);
        });
    }

    fn check_plain(x: &[f32], k: usize) {
        let want = reference::act_quant(x, k);
        every_backend(|backend| {
            run(backend, Source::Plain { x: &upload(backend, x) }, &want, k);
        });
        let f16 = x.iter().map(|&v| half::f16::from_f32(v)).collect::<Vec<_>>();
        let bf16 = x.iter().map(|&v| half::bf16::from_f32(v)).collect::<Vec<_>>();
        let want = [reference::widened(&f16), reference::widened(&bf16)]
            .map(|x| reference::act_quant(&x, k));
        every_backend(|backend| {
            run(backend, Source::F16 { x: &upload(backend, &f16) }, &want[0], k);
            run(backend, Source::Bf16 { x: &upload(backend, &bf16) }, &want[1], k);
        });
    }

    fn check_gated(gate: Gate, gate_up: &[f32], weight: Option<&[f32]>, eps: f32, k: usize) {
        let (want_f, v) = reference::gated(gate, gate_up, weight, eps, k);
        let want = reference::act_quant(&v, k);
        every_backend(|backend| {
            let gate_up = &upload(backend, gate_up);
            let mut f: Buffer<f32> = upload(backend, &vec![f32::NAN; want_f.len()]);
            let weight = weight.map(|w| upload(backend, w));
            let weight = weight.as_ref();
            run(backend, Source::Gated { gate, gate_up, f: &mut f, weight, eps }, &want, k);
            assert_eq!(bits(f.as_slice()), bits(&want_f), "{gate:?} k={k}");
        });
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for (seed, &(m, k)) in TEST_SHAPES.iter().enumerate() {
            check(m, k, seed as u64);
        }
    }

    #[test]
    fn rows_that_are_not_finite_or_zero() {
        let mut x = Inputs::new(1).floats(5 * 70, 1.0);
        x[3] = f32::NAN;
        x[70] = f32::NEG_INFINITY;
        x[140..210].fill(0.0);
        x[210..280].fill(1e-7);
        check_plain(&x, 70);
        let gate_up: Vec<f32> = x.iter().chain(&x).copied().collect();
        for eps in [0.0, 1e-5] {
            check_gated(Gate::Silu, &gate_up, Some(&[1.0; 70]), eps, 70);
            check_gated(Gate::Relu2, &gate_up, Some(&[1.0; 70]), eps, 70);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(15))]
        #[test]
        fn equals_the_reference_on_any_shape(m in 1usize..4, k in 1usize..900, seed: u64) {
            check(m, k, seed);
        }
    }
}
