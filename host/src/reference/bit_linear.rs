//! Reference for [`contract::bit_linear`]: norm, quantiser, product and gate on unpacked data.

use super::rmsnorm::norm_rows;
use super::w2a8_gemv::{Case as Product, w2a8_gemv};
use super::{Inputs, act_quant};
use crate::ops::act_quant::Gate;

/// `(n, k)` of the weights: around the edges of sets, groups and partials; `n` is even.
pub const TEST_SHAPES: &[(usize, usize)] = &[
    (2, 1),
    (2, 63),
    (4, 64),
    (6, 65),
    (10, 255),
    (8, 257),
    (34, 511),
    (64, 513),
    (130, 1000),
    (66, 2049),
    (640, 2560),
    (100, 6912),
    (14, 7169),
    (6, 28_672),
];

/// `(n, k, gated, added)` of the layers of the 2B-4T model, then of larger ones.
pub const BENCH_SHAPES: &[(usize, usize, bool, bool)] = &[
    (3840, 2560, false, false),
    (2560, 2560, false, true),
    (13_824, 2560, true, false),
    (2560, 6912, false, true),
    (6144, 4096, false, false),
    (28_672, 4096, true, false),
    (4096, 14_336, false, true),
    (55_296, 5120, true, false),
    (5120, 27_648, false, true),
];

/// What becomes of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It is the output.
    Store,
    /// It is added to the output.
    Add,
    /// Its first half gates the second.
    Gated(Gate),
}

impl Finish {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Store, Self::Add, Self::Gated(Gate::Relu2), Self::Gated(Gate::Silu)];

    /// Outputs of `n` rows of weights.
    pub fn outputs(self, n: usize) -> usize {
        if matches!(self, Self::Gated(_)) { n / 2 } else { n }
    }
}

/// One layer and its row.
#[derive(Clone, Debug)]
pub struct Case {
    /// The weights; its activations are made from `x`.
    pub product: Product,
    /// Input `[k]`.
    pub x: Vec<f32>,
    /// Gain `[k]`, or no norm.
    pub norm: Option<Vec<f32>>,
    /// Added to the mean square.
    pub eps: f32,
    /// What becomes of the product.
    pub finish: Finish,
    /// What the output holds before.
    pub y: Vec<f32>,
}

impl Case {
    /// A seeded case.
    pub fn new(n: usize, k: usize, norm: bool, finish: Finish, seed: u64) -> Self {
        let mut inputs = Inputs::new(seed);
        Self {
            product: Product::new(1, n, k, seed),
            x: inputs.floats(k, 3.0),
            norm: norm.then(|| inputs.floats(k, 2.0)),
            eps: 1e-5,
            finish,
            y: inputs.floats(finish.outputs(n), 5.0),
        }
    }
}

/// The output of a case.
pub fn bit_linear(case: &Case) -> Vec<f32> {
    let k = case.product.k;
    let v = match &case.norm {
        Some(gain) => norm_rows(&case.x, gain, case.eps),
        None => case.x.clone(),
    };
    let row = act_quant::act_quant(&v, k).remove(0);
    let p = w2a8_gemv(&Product { q: row.q, s: vec![row.scale], ..case.product.clone() });
    match case.finish {
        Finish::Store => p,
        Finish::Add => case.y.iter().zip(p).map(|(y, p)| y + p).collect(),
        Finish::Gated(gate) => act_quant::gated(gate, &p, None, 0.0, p.len() / 2).0,
    }
}
