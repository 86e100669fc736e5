//! Reference for [`contract::act_quant`]: rows in natural order.

use super::rmsnorm::norm_rows;
use crate::ops::act_quant::Gate;
use crate::ops::activation::Kind;

/// `(m, k)`: around the edges of pieces, chunks, groups and partials.
pub const TEST_SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (1, 15),
    (2, 16),
    (3, 17),
    (1, 64),
    (2, 65),
    (1, 255),
    (3, 257),
    (2, 511),
    (1, 512),
    (5, 513),
    (2, 1000),
    (9, 640),
    (2, 2560),
    (1, 6912),
    (1, 9001),
    (2, 66_001),
];

/// `(m, k)`: so many rows, or so long, that other kernels have them.
pub const MANY_SHAPES: &[(usize, usize)] = &[
    (513, 60),
    (512, 131),
    (514, 300),
    (515, 515),
    (512, 1028),
    (513, 1031),
    (2, 3100),
    (3, 4099),
    (2, 8192),
    (2, 12_290),
    (1, 28_672),
    (1, 28_673),
];

/// `(m, k)` of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize)] = super::rmsnorm::BENCH_SHAPES;

/// One quantised row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Values in natural order.
    pub q: Vec<i8>,
    /// Multiplier.
    pub scale: f32,
    /// Sum of the values.
    pub sum: i32,
}

/// Quantises rows of `k`.
pub fn act_quant(v: &[f32], k: usize) -> Vec<Row> {
    v.chunks(k).map(quantise_row).collect()
}

/// Rows of 16 bits as `f32`.
pub fn widened<T: Copy + Into<f32>>(x: &[T]) -> Vec<f32> {
    x.iter().map(|&v| v.into()).collect()
}

fn quantise_row(v: &[f32]) -> Row {
    let mut absmax = 0.0f32;
    let mut broken = false;
    for v in v {
        broken |= v.is_nan();
        absmax = absmax.max(v.abs());
    }
    let scale = if broken { f32::NAN } else { 127.0 / absmax.max(1e-5) };
    // A cast of NaN gives 0.
    let q: Vec<i8> =
        v.iter().map(|v| (v * scale).round_ties_even().clamp(-128.0, 127.0) as i8).collect();
    let sum = q.iter().map(|&q| i32::from(q)).sum();
    Row { q, scale, sum }
}

/// The gated product of rows that hold `k` gates, then `k` ups; and its norm, if there is a gain.
pub fn gated(
    gate: Gate,
    gate_up: &[f32],
    weight: Option<&[f32]>,
    eps: f32,
    k: usize,
) -> (Vec<f32>, Vec<f32>) {
    let f = match gate {
        Gate::Relu2 => super::activation::fused(Kind::Relu2, gate_up, k),
        Gate::Silu => super::activation::fused(Kind::Silu, gate_up, k),
    };
    let v = weight.map_or_else(|| f.clone(), |weight| norm_rows(&f, weight, eps));
    (f, v)
}
