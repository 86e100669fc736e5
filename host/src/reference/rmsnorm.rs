//! Reference for [`contract::rmsnorm`].

use super::{Inputs, rounded, sum256};
use crate::ops::RowType;

/// `(m, k)`: around the edges of partials and of what a thread holds.
pub const TEST_SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (1, 4),
    (2, 7),
    (3, 255),
    (1, 256),
    (2, 257),
    (5, 511),
    (1, 513),
    (3, 1000),
    (17, 640),
    (2, 2560),
    (1, 6912),
    (1, 9001),
    (2, 20_001),
    (1, 24_576),
    (1, 40_008),
    (1, 65_536),
    (2, 65_537),
    (1, 70_008),
];

/// `(m, k)` of the 2B-4T model (decode and prefill, hidden and feed-forward width), then 64 MiB of `f32`
/// and more.
pub const BENCH_SHAPES: &[(usize, usize)] =
    &[(1, 2560), (1, 6912), (512, 2560), (512, 6912), (65_536, 768), (16_384, 4096), (8192, 8192)];

/// The tensors of one norm.
#[derive(Clone, Debug)]
pub struct Case {
    /// Element type; every number below is one of it.
    pub element: RowType,
    /// Rows.
    pub m: usize,
    /// Elements of a row.
    pub k: usize,
    /// Rows `[m, k]`.
    pub x: Vec<f32>,
    /// What is added to them, or nothing.
    pub delta: Option<Vec<f32>>,
    /// Gain `[k]`.
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

impl Case {
    /// A seeded case.
    pub fn new(element: RowType, m: usize, k: usize, with_delta: bool, seed: u64) -> Self {
        let mut inputs = Inputs::new(seed);
        let mut tensor = |len: usize, reach: f32| -> Vec<f32> {
            inputs.floats(len, reach).into_iter().map(|v| rounded(element, v)).collect()
        };
        let x = tensor(m * k, 3.0);
        let delta = with_delta.then(|| tensor(m * k, 1.0));
        Self { element, m, k, x, delta, weight: tensor(k, 2.0), eps: 1e-5 }
    }
}

/// `x + delta` and its norm, row by row.
pub fn rmsnorm(case: &Case) -> (Vec<f32>, Vec<f32>) {
    let mut sum = case.x.clone();
    if let Some(delta) = &case.delta {
        for i in 0..sum.len() {
            sum[i] = rounded(case.element, sum[i] + delta[i]);
        }
    }
    let y = norm_rows(&sum, &case.weight, case.eps);
    let y = y.into_iter().map(|v| rounded(case.element, v)).collect();
    (sum, y)
}

/// The norm of rows of `weight.len()` elements.
pub fn norm_rows(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let k = weight.len();
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks(k) {
        let [_, squares] = sums(row, false);
        let r = 1.0 / (squares / k as f32 + eps).sqrt();
        for i in 0..k {
            y.push((row[i] * r) * weight[i]);
        }
    }
    y
}

/// The sum of a row, and that of its squares: around its mean, or of the elements themselves. Of more than 28,672 elements (65,536 where they are not centred) from those of segments of
/// 1,024, of which up to eight neighbours are a part.
pub(super) fn sums(row: &[f32], centred: bool) -> [f32; 2] {
    if row.len() <= if centred { 28_672 } else { 65_536 } {
        return sums_of(row, centred);
    }
    // The squares around another mean.
    let moved = |[sum, squares]: [f32; 2], len: usize, mean: f32| {
        let apart = sum / len as f32 - mean;
        if centred { (apart * len as f32).mul_add(apart, squares) } else { squares }
    };
    let tree = |v: [f32; 8]| ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
    let segments: Vec<&[f32]> = row.chunks(1024).collect();
    let count = segments.len().div_ceil(8);
    let (mut first, mut parts) = (0, Vec::new());
    for part in 0..count {
        // The first ones have one more, where they cannot all have as many.
        let len = segments.len() / count + usize::from(part < segments.len() % count);
        let own = &segments[first..first + len];
        first += len;
        let elements: usize = own.iter().map(|segment| segment.len()).sum();
        let (mut terms, mut squares) = ([0.0; 8], [0.0; 8]);
        for (i, segment) in own.iter().enumerate() {
            terms[i] = sums_of(segment, centred)[0];
        }
        let sum = tree(terms);
        for (i, segment) in own.iter().enumerate() {
            let own = sums_of(segment, centred);
            squares[i] = moved(own, segment.len(), sum / elements as f32);
        }
        parts.push(([sum, tree(squares)], elements));
    }
    let sum = sum256(count, |acc, i| acc + parts[i].0[0]);
    let mean = sum / row.len() as f32;
    [sum, sum256(count, |acc, i| acc + moved(parts[i].0, parts[i].1, mean))]
}

/// The same with one sum each.
fn sums_of(row: &[f32], centred: bool) -> [f32; 2] {
    let k = row.len();
    let sum = if centred { sum256(k, |acc, i| acc + row[i]) } else { 0.0 };
    let mean = sum / k as f32;
    [sum, sum256(k, |acc, i| (row[i] - mean).mul_add(row[i] - mean, acc))]
}
