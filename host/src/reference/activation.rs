//! Reference for [`contract::activation`].

use contract::num::{normal_cdf, one_plus_exp, upper_tail_half};

use super::{Inputs, rounded};
use crate::ops::RowType;
use crate::ops::activation::Kind;

/// `(m, k)`: around the edges of pieces and blocks.
pub const TEST_SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (2, 3),
    (3, 8),
    (7, 9),
    (3, 255),
    (1, 256),
    (4, 257),
    (5, 1000),
    (2, 6912),
    (1, 8193),
];

/// `(m, k)`, 64 MiB and more in every type.
pub const BENCH_SHAPES: &[(usize, usize)] = &[(8192, 8192)];

/// The tensors of one activation.
#[derive(Clone, Debug)]
pub struct Case {
    /// Element type; every number below is one of it.
    pub element: RowType,
    /// Which function.
    pub kind: Kind,
    /// Rows.
    pub m: usize,
    /// Elements of an output row.
    pub k: usize,
    /// Input, or the gate: rows `[m, k]`.
    pub x: Vec<f32>,
    /// Factor: rows `[m, k]`.
    pub up: Option<Vec<f32>>,
    /// Whether both lie in one tensor of rows `[m, 2 k]`.
    pub fused: bool,
}

impl Case {
    /// A seeded case: plain, gated or fused.
    pub fn new(element: RowType, kind: Kind, m: usize, k: usize, form: usize, seed: u64) -> Self {
        let mut inputs = Inputs::new(seed);
        let reach = [1e-3, 1.0, 8.0, 100.0][inputs.below(4)];
        let mut tensor = |reach: f32| -> Vec<f32> {
            inputs.floats(m * k, reach).into_iter().map(|v| rounded(element, v)).collect()
        };
        let x = tensor(reach);
        let up = (!form.is_multiple_of(3)).then(|| tensor(4.0));
        Self { element, kind, m, k, x, up, fused: form % 3 == 2 }
    }

    /// Rows that hold `k` gates, then `k` ups.
    pub fn gate_up(&self) -> Vec<f32> {
        let up = self.up.as_deref().unwrap_or_default();
        let rows = self.x.chunks(self.k).zip(up.chunks(self.k));
        rows.flat_map(|(gate, up)| [gate, up].concat()).collect()
    }
}

/// The function at `x`, from its definition.
pub fn value(kind: Kind, x: f32) -> f32 {
    let positive = if x.is_nan() || x > 0.0 { x } else { 0.0 };
    // x / (1 + e^y), but for the ends of y.
    let logistic = |y: f32| match y {
        _ if y < -20.0 => x,
        _ if y > 87.0 => -0.0,
        _ => x * (1.0 / one_plus_exp(y)),
    };
    let distance = x.abs().min(13.27);
    match kind {
        Kind::Relu => positive,
        Kind::Relu2 => positive * positive,
        Kind::Silu => logistic(-x),
        Kind::Gelu => (-distance).mul_add(normal_cdf(-distance), if x < 0.0 { -0.0 } else { x }),
        // -2 sqrt(2 / pi), and 0.044715 times that.
        Kind::GeluTanh => logistic(x * (x * x).mul_add(-0.071_354_814, -1.595_769_2)),
    }
}

/// [`value`] in the type of the elements.
fn typed(element: RowType, kind: Kind, x: f32) -> f32 {
    if element == RowType::F32 || kind != Kind::Gelu {
        return value(kind, x);
    }
    let distance = x.abs().min(13.27);
    let above = if x < 0.0 { -0.0 } else { x };
    (-distance).mul_add(upper_tail_half(distance), above)
}

/// Every element.
pub fn activation(case: &Case) -> Vec<f32> {
    let element = |i: usize| {
        let y = typed(case.element, case.kind, case.x[i]);
        rounded(case.element, case.up.as_ref().map_or(y, |up| y * up[i]))
    };
    (0..case.m * case.k).map(element).collect()
}

/// `act(gate) * up` of `f32` rows that hold `k` gates, then `k` ups.
pub fn fused(kind: Kind, gate_up: &[f32], k: usize) -> Vec<f32> {
    let row = |row: &[f32]| (0..k).map(|i| value(kind, row[i]) * row[k + i]).collect::<Vec<_>>();
    gate_up.chunks(2 * k).flat_map(row).collect()
}
