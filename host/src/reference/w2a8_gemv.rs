//! Reference for [`contract::w2a8_gemv`]: plain loops over ternaries and natural-order activations.

use contract::w2a8::{Segments, act_bytes, act_index, code_place, row_words};

use super::Inputs;

/// `(n, k)`: around the edges of words, chunks, groups and tiles.
pub const TEST_SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (1, 16),
    (2, 63),
    (3, 64),
    (5, 65),
    (4, 127),
    (7, 256),
    (8, 257),
    (9, 511),
    (16, 512),
    (17, 528),
    (33, 1000),
    (64, 640),
    (65, 1792),
    (130, 2049),
    (640, 2560),
    (100, 6912),
];

/// `(n, k)` of the 2B-4T model and of the published kernel's list.
pub const BENCH_SHAPES: &[(usize, usize)] = &[
    (3840, 2560),
    (2560, 2560),
    (13824, 2560),
    (2560, 6912),
    (4800, 3200),
    (3200, 3200),
    (20480, 3200),
    (3200, 10240),
    (5120, 27648),
    (55296, 5120),
];

/// One product in both forms: unpacked for the oracle, packed for what is tested.
#[derive(Clone, Debug)]
pub struct Case {
    /// Rows of weights.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Rows of activations.
    pub m: usize,
    /// Ternaries `[n, k]`.
    pub t: Vec<i8>,
    /// Activations `[m, k]`.
    pub q: Vec<i8>,
    /// Activation scales `[m]`.
    pub s: Vec<f32>,
    /// Weight scales by rows.
    pub segments: Segments,
}

impl Case {
    /// A seeded case with up to three segments.
    ///
    /// # Panics
    /// A dimension is 0 or over the contract's limits.
    pub fn new(m: usize, n: usize, k: usize, seed: u64) -> Self {
        let mut inputs = Inputs::new(seed);
        let parts = match n {
            0..3 => vec![(n, 0.75)],
            _ => vec![(n / 2, 0.013), (n / 3, 1.25), (n - n / 2 - n / 3, 3.0)],
        };
        let segments = Segments::new(&parts).expect("dimensions of the contract");
        let s = inputs.floats(m, 60.0).into_iter().map(|v| v.abs() + 1.0).collect();
        Self { n, k, m, t: inputs.ternaries(n * k), q: inputs.int8s(m * k), s, segments }
    }

    /// The weights in the contract's layout.
    pub fn words(&self) -> Vec<u32> {
        let per_row = row_words(self.k);
        // Code 1 everywhere is a row of zeros.
        let mut words = vec![0x5555_5555u32; self.n * per_row];
        for n in 0..self.n {
            for k in 0..self.k {
                let (word, shift) = code_place(k);
                let word = &mut words[n * per_row + word];
                let code = (self.t[n * self.k + k] + 1) as u32;
                *word &= !(3 << shift);
                *word |= code << shift;
            }
        }
        words
    }

    /// The activations in the contract's order, four to a word.
    pub fn acts(&self) -> Vec<u32> {
        let bytes = act_bytes(self.k);
        let mut words = vec![0u32; self.m * bytes / 4];
        let acts: &mut [i8] = bytemuck::cast_slice_mut(&mut words);
        for m in 0..self.m {
            for k in 0..self.k {
                acts[m * bytes + act_index(k)] = self.q[m * self.k + k];
            }
        }
        words
    }

    /// Scale and sum of each row of activations, as words.
    pub fn stats(&self) -> Vec<[u32; 2]> {
        let sum = |m: usize| -> i32 {
            self.q[m * self.k..][..self.k].iter().map(|&q| i32::from(q)).sum()
        };
        (0..self.m).map(|m| [self.s[m].to_bits(), sum(m) as u32]).collect()
    }

    /// The result for row `m` of the activations.
    pub fn row(&self, m: usize) -> Vec<f32> {
        let mut y = Vec::with_capacity(self.n);
        for n in 0..self.n {
            let mut acc = 0i64;
            for k in 0..self.k {
                acc += i64::from(self.q[m * self.k + k]) * i64::from(self.t[n * self.k + k]);
            }
            let mut g = 0.0;
            for segment in (0..self.segments.end.len()).rev() {
                if n < self.segments.end[segment] as usize {
                    g = self.segments.scale[segment];
                }
            }
            y.push((acc as f32 / self.s[m]) * g);
        }
        y
    }
}

/// `y[n] = (sum_k q[k] t[n, k] / s) * g[n]` of a case with one row of activations.
pub fn w2a8_gemv(case: &Case) -> Vec<f32> {
    case.row(0)
}
