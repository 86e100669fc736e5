//! Reference for [`contract::lut_matmul`]: the exact forms are the products of
//! [`super::w2a8_gemv`], whatever the tables; the bit-serial form is its table arithmetic, spelt out
//! per weight, without packed indices.

use contract::lut_matmul::Form;

use contract::num::fma;

use super::w2a8_gemv::Case;
use super::{Inputs, sum256};
use crate::pack::{PackError, PackedBits, PackedTl, PackedW2};

/// `y[m, n] = (sum_k q[m, k] t[n, k] / s[m]) * g[n]` for every row of the activations.
pub fn lut_matmul(case: &Case) -> Vec<f32> {
    (0..case.m).flat_map(|m| case.row(m)).collect()
}

/// The weights of a case in tiles.
///
/// # Errors
/// None for a case of ternaries.
pub fn tiles(case: &Case, form: Form) -> Result<PackedTl, PackError> {
    let Case { n, k, segments, .. } = *case;
    PackedTl::from_w2(form, &PackedW2 { n, k, words: case.words(), segments })
}

/// `(m, n, k, act_group, weight group)`: around the edges of tables, steps, groups and tiles.
pub const LOSSY_SHAPES: &[(usize, usize, usize, usize, usize)] = &[
    (1, 1, 1, 64, 64),
    (1, 3, 4, 32, 32),
    (2, 32, 31, 32, 32),
    (1, 33, 33, 32, 64),
    (3, 5, 64, 64, 64),
    (1, 40, 129, 64, 128),
    (2, 70, 256, 32, 128),
    (1, 31, 300, 96, 192),
    (1, 64, 1000, 1000, 1000),
    (2, 9, 4128, 64, 128),
    (1, 4, 5000, 160, 5000),
    (1, 100, 2560, 2560, 2560),
];

/// A product of the bit-serial form, unpacked.
#[derive(Clone, Debug)]
pub struct LossyCase {
    /// Bits of a weight.
    pub bits: usize,
    /// Rows of activations.
    pub m: usize,
    /// Rows of weights.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Columns of an activation group.
    pub act_group: usize,
    /// Columns of a weight group.
    pub group: usize,
    /// Codes `[n, k]`.
    pub codes: Vec<u8>,
    /// Scales `[n, weight groups]`.
    pub scales: Vec<f32>,
    /// Zero points of the same shape.
    pub zeros: Option<Vec<f32>>,
    /// Activations `[m, k]`.
    pub x: Vec<f32>,
}

impl LossyCase {
    /// A seeded case; every second seed has zero points.
    pub fn new(
        bits: usize,
        (m, n, k, act_group, group): (usize, usize, usize, usize, usize),
        seed: u64,
    ) -> Self {
        let mut inputs = Inputs::new(seed);
        let count = n * k.div_ceil(group);
        let codes = (0..n * k).map(|_| inputs.below(1 << bits) as u8).collect();
        let scales = inputs.floats(count, 0.4).iter().map(|v| v + 0.5).collect();
        let zeros = (seed % 2 == 1).then(|| inputs.floats(count, 0.7));
        let x = inputs.floats(m * k, 3.0);
        Self { bits, m, n, k, act_group, group, codes, scales, zeros, x }
    }

    /// The weights in tiles.
    ///
    /// # Errors
    /// None for codes of `bits` bits and finite scales.
    pub fn packed(&self) -> Result<PackedBits, PackError> {
        let (scales, zeros) = (self.scales.clone(), self.zeros.clone());
        PackedBits::from_codes(self.bits, &self.codes, self.k, self.group, scales, zeros)
    }

    /// Activation `k` of row `m`; zero past the end.
    fn x(&self, m: usize, k: usize) -> f32 {
        if k < self.k { self.x[m * self.k + k] } else { 0.0 }
    }

    /// Bit `bit` of code `k` of row `n`; zero past the end.
    fn bit(&self, n: usize, k: usize, bit: usize) -> u8 {
        if k < self.k { self.codes[n * self.k + k] >> bit & 1 } else { 0 }
    }

    /// Tables of four columns of row `m` from `first` to `end`: entries by sign pattern, quantised,
    /// with their scale, and the bias.
    fn tables(&self, m: usize, first: usize, end: usize) -> (Vec<[i8; 16]>, f32, f32) {
        let signed = |c: usize, i: usize, j: usize| {
            let x = self.x(m, first + 4 * c + j);
            if i >> j & 1 == 1 { x } else { -x }
        };
        let entry = |c: usize, i: usize| {
            ((signed(c, i, 0) + signed(c, i, 1)) + signed(c, i, 2)) + signed(c, i, 3)
        };
        let count = (end - first) / 4;
        let mut top = 0.0f32;
        for c in 0..count {
            let x = |j| self.x(m, first + 4 * c + j).abs();
            let reach = ((x(0) + x(1)) + x(2)) + x(3);
            if reach > top || reach.is_nan() {
                top = reach;
            }
            if top.is_nan() {
                break;
            }
        }
        let scale = top / 127.0;
        let mut tables = vec![[0; 16]; count];
        for c in 0..count {
            for i in 0..16 {
                let unit = entry(c, i) / scale;
                // `as` saturates and takes NaN to 0.
                tables[c][i] = unit.round_ties_even() as i8;
            }
        }
        (tables, scale, sum256(count, |acc, c| acc + entry(c, 0)))
    }

    /// What the real product would be, in f64.
    pub fn exact(&self) -> Vec<f64> {
        let groups = self.k.div_ceil(self.group);
        let mut y = vec![0.0; self.m * self.n];
        for m in 0..self.m {
            for n in 0..self.n {
                for k in 0..self.k {
                    let u = i32::from(self.codes[n * self.k + k]) - (1 << (self.bits - 1));
                    let at = n * groups + k / self.group;
                    let zero = self.zeros.as_ref().map_or(0.0, |z| z[at]);
                    let w = f64::from(u) * f64::from(self.scales[at]) - f64::from(zero);
                    y[m * self.n + n] += w * f64::from(self.x[m * self.k + k]);
                }
            }
        }
        y
    }
}

/// `y[m, n]` of the bit-serial form.
pub fn lut_matmul_lossy(case: &LossyCase) -> Vec<f32> {
    let &LossyCase { bits, m: rows, n: features, k, act_group, group, .. } = case;
    let padded = k.next_multiple_of(32);
    let act_group = if act_group < k { act_group } else { padded };
    let mut y = Vec::with_capacity(rows * features);
    for m in 0..rows {
        let mut tables = Vec::new();
        for first in (0..padded).step_by(act_group) {
            tables.push((first, case.tables(m, first, padded.min(first + act_group))));
        }
        for n in 0..features {
            let mut out = 0.0f32;
            for of_weights in 0..k.div_ceil(group) {
                let (mut product, mut biases) = (0.0f32, 0.0f32);
                for (first, (tables, scale, bias)) in &tables {
                    if first / group != of_weights {
                        continue;
                    }
                    let mut z = 0i32;
                    for c in 0..tables.len() {
                        for bit in 0..bits {
                            let mut index = 0;
                            for j in 0..4 {
                                let set = case.bit(n, first + 4 * c + j, bit) == 1;
                                index += if set { 1 << j } else { 0 };
                            }
                            z += i32::from(tables[c][index]) * (1 << bit);
                        }
                    }
                    product += fma(*scale, z as f32, *bias);
                    biases += *bias;
                }
                let at = n * k.div_ceil(group) + of_weights;
                out = fma(0.5 * product, case.scales[at], out);
                if let Some(zeros) = &case.zeros {
                    out = fma(biases, zeros[at], out);
                }
            }
            y.push(out);
        }
    }
    y
}
