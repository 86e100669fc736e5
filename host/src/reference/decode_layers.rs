//! Reference for [`contract::decode_layers`]: the layers one after the other, row by row.

use super::Inputs;
use super::attention_paged::{Row, attention_paged};
use super::attention_step::attention_step;
use super::bit_linear::{Case as Linear, Finish, bit_linear};
use super::kv_append::{Cache, kept};
use super::rope::table;
use super::w2a8_gemv::Case as Product;
use crate::ops::act_quant::Gate;
use crate::ops::kv_append::Heads;
use crate::ops::{Math, RowType};
use contract::attention_paged::ABSENT;

/// `(layers, hidden, ffn, heads, kv_heads, head_dim, start)`.
pub type Sizes = (usize, usize, usize, usize, usize, usize, usize);

/// Fewer outputs than multiprocessors, blocks with several key
/// blocks, heads that do not share evenly, the width of the 2B-4T model, fewer blocks than heads, more than 64 key blocks.
pub const TEST_SHAPES: &[Sizes] = &[
    (1, 1, 1, 1, 1, 8, 0),
    (2, 24, 40, 2, 1, 16, 62),
    (3, 130, 70, 3, 1, 24, 63),
    (2, 300, 513, 5, 5, 40, 130),
    (2, 640, 1100, 6, 2, 64, 0),
    (5, 257, 300, 4, 2, 80, 300),
    (2, 2560, 6912, 20, 5, 128, 126),
    (1, 2559, 7168, 20, 4, 128, 65),
    (2, 3, 5, 5, 5, 8, 130),
    (1, 24, 40, 2, 1, 16, 4200),
];

/// `(layers, hidden, ffn, heads, kv_heads, head_dim, positions of the rows)`.
pub type RowsShape<'a> = (usize, usize, usize, usize, usize, usize, &'a [u32]);

/// One row, with one key block and with more than 64; several units a block, more heads than a unit takes, more groups of a row than warps, the width of the 2B-4T model; more than
/// eight rows with some that are not there, with one row in the second tile, and with several rounds of units a block.
pub const ROWS_SHAPES: &[RowsShape<'_>] = &[
    (1, 1, 1, 1, 1, 8, &[0]),
    (2, 24, 40, 2, 1, 16, &[62]),
    (5, 257, 300, 4, 2, 80, &[300]),
    (2, 2560, 6912, 20, 5, 128, &[126]),
    (2, 3, 5, 5, 5, 8, &[130]),
    (1, 24, 40, 2, 1, 16, &[4200]),
    (2, 24, 40, 2, 1, 16, &[ABSENT]),
    (2, 24, 40, 2, 1, 16, &[62, 0, ABSENT, 127, 3, 64, 63, 130]),
    (3, 130, 70, 3, 1, 24, &[63, ABSENT]),
    (2, 300, 513, 12, 2, 40, &[130, 500, 1]),
    (5, 257, 3300, 4, 2, 80, &[300, 64, ABSENT, ABSENT, 7]),
    (2, 2560, 6912, 20, 5, 128, &[126, ABSENT, 5, 62]),
    (2, 3, 5, 5, 5, 8, &[130, 700, 9, 9, 9, 9, 9]),
    (1, 1, 1, 1, 1, 8, &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
    (
        2,
        24,
        40,
        2,
        1,
        16,
        &[62, 0, ABSENT, 127, 3, 64, 63, 130, 66, ABSENT, 128, 129, 5, ABSENT, 1],
    ),
    (2, 3, 5, 10, 5, 8, &[130, 700, 9, 9, 320, 9, 9, 63, 64, 65, 500, 9, 128, 9, 300, 127]),
    (5, 257, 3300, 4, 2, 80, &[300, 64, ABSENT, ABSENT, 7, 1, 2, 3, 4, ABSENT, 70]),
    (2, 2560, 6912, 20, 5, 128, &[126, ABSENT, 5, 62, 63, 64, 65, 66, 67, 0, 1, 2, 3, 4, 127, 7]),
];

/// The 2B-4T model.
pub const BENCH_SHAPES: &[Sizes] =
    &[(30, 2560, 6912, 20, 5, 128, 500), (30, 2560, 6912, 20, 5, 128, 4000)];

/// A small model and rows for it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Heads of every layer.
    pub heads: Heads,
    /// Of each layer: qkv, output, gate and up, down. Only weights and gains count.
    pub layers: Vec<[Linear; 4]>,
    /// Of each layer, before.
    pub caches: Vec<Cache>,
    /// Cosines and sines for the positions of the caches.
    pub tables: (Vec<f32>, Vec<f32>),
    /// Rows, one after the other from `start` on.
    pub rows: Vec<Vec<f32>>,
    /// Position of the first.
    pub start: usize,
    /// The activation of the gate.
    pub gate: Gate,
    /// Added to the mean square.
    pub eps: f32,
    /// How attention is computed.
    pub math: Math,
    /// How far a run's results may be from the reference: in parts of what the layers add, in the mean.
    pub within: f32,
}

impl Case {
    /// A seeded case of `rows` rows, the caches as long as they need. `norms`: with the norms in front of the output and
    /// down projections.
    pub fn new(
        (layers, hidden, ffn, heads, kv_heads, head_dim, start): Sizes,
        rows: usize,
        norms: bool,
        gate: Gate,
        seed: u64,
    ) -> Self {
        let heads = Heads { heads, kv_heads, head_dim };
        let mut inputs = Inputs::new(seed);
        let mut linear = |n: usize, k: usize, norm: bool| Linear {
            product: Product::new(1, n, k, inputs.bits()),
            x: Vec::new(),
            norm: norm.then(|| inputs.floats(k, 2.0)),
            eps: 1e-5,
            finish: Finish::Store,
            y: Vec::new(),
        };
        let layer = |_| {
            [
                linear(heads.qkv_len(), hidden, true),
                linear(hidden, heads.q_len(), norms),
                linear(2 * ffn, hidden, true),
                linear(hidden, ffn, norms),
            ]
        };
        let linears = (0..layers).map(layer).collect();
        let capacity = start + rows;
        let mut side = || -> Vec<f32> {
            let values = inputs.floats(kv_heads * capacity * head_dim, 2.0);
            values.into_iter().map(|v| kept(RowType::Bf16, v)).collect()
        };
        let caches = (0..layers).map(|_| Cache { k: side(), v: side(), capacity }).collect();
        Self {
            heads,
            layers: linears,
            caches,
            tables: table(capacity, head_dim, 10_000.0),
            rows: (0..rows).map(|_| inputs.floats(hidden, 3.0)).collect(),
            start,
            gate,
            eps: 1e-5,
            math: Math::Exact,
            within: 0.0,
        }
    }

    /// The same on tensor cores. Of one layer: behind it a code of an activation that goes over to its neighbour is not small any more.
    #[must_use]
    pub fn fast(self, within: f32) -> Self {
        Self { math: Math::TensorCore, within, ..self }
    }

    /// The same where keys are so large that one has all of the weight: a value times 1, by any order of sums.
    #[must_use]
    pub fn of_one_key(mut self) -> Self {
        for k in self.caches.iter_mut().flat_map(|cache| &mut cache.k) {
            *k *= 16_777_216.0;
        }
        Self { math: Math::TensorCore, ..self }
    }
}

/// The residual streams after the last layer, and the caches.
pub fn decode_layers(case: &Case) -> (Vec<Vec<f32>>, Vec<Cache>) {
    let mut caches = case.caches.clone();
    let mut rows = case.rows.clone();
    for (i, h) in rows.iter_mut().enumerate() {
        for (layer, cache) in case.layers.iter().zip(&mut caches) {
            let run = |linear: &Linear, x: &[f32], finish, y: &[f32]| {
                let (x, y) = (x.to_vec(), y.to_vec());
                bit_linear(&Linear { x, y, eps: case.eps, finish, ..linear.clone() })
            };
            let [qkv, o, gate_up, down] = layer;
            let qkv = run(qkv, h, Finish::Store, &[]);
            let tables = (&case.tables.0[..], &case.tables.1[..]);
            let (at, heads) = (case.start + i, case.heads);
            let out = attention_step(&qkv, cache, RowType::Bf16, tables, at, heads);
            *h = run(o, &out, Finish::Add, h);
            let gated = run(gate_up, h, Finish::Gated(case.gate), &[]);
            *h = run(down, &gated, Finish::Add, h);
        }
    }
    (rows, caches)
}

/// The residual streams `h` of rows that have a sequence each after `layers`, and the pools of `pages` pages.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn decode_rows(
    layers: &[[Linear; 4]],
    h: &mut [Vec<f32>],
    pools: &mut [Cache],
    pages: usize,
    tables: (&[f32], &[f32]),
    rows: &[Row],
    capacity: usize,
    heads: Heads,
    gate: Gate,
    eps: f32,
) {
    let run = |linear: &Linear, x: &[f32], finish, y: &[f32]| {
        let (x, y) = (x.to_vec(), y.to_vec());
        bit_linear(&Linear { x, y, eps, finish, ..linear.clone() })
    };
    for ([qkv, o, gate_up, down], pool) in layers.iter().zip(pools) {
        let all: Vec<f32> = h.iter().flat_map(|h| run(qkv, h, Finish::Store, &[])).collect();
        let out = attention_paged(&all, pool, pages, RowType::Bf16, tables, rows, capacity, heads);
        for (h, out) in h.iter_mut().zip(out.chunks(heads.q_len())) {
            *h = run(o, out, Finish::Add, h);
            let gated = run(gate_up, h, Finish::Gated(gate), &[]);
            *h = run(down, &gated, Finish::Add, h);
        }
    }
}
