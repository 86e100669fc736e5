//! Seeded inputs at full model sizes, made fast: a second of set-up for each shape would be most of
//! a run.

use std::num::NonZeroUsize;
use std::thread::{self, available_parallelism};

use bitnet_gpu::ops::w2a8_gemm::W2a8Gemm;
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, Float, OpError, PackedLinear, QuantActs};
use bitnet_gpu::pack::PackedW2;
use bitnet_gpu::reference::Inputs;
use contract::w2a8::{Segments, act_bytes, act_index, code_place, row_words};

use crate::case::{Case, bits, blank};

/// `count` numbers in `(-reach, reach)`.
pub fn uniform(seed: u64, count: usize, reach: f32) -> Vec<f32> {
    floats(seed, count, reach)
}

/// The same, rounded to `T`.
pub fn floats<T: Float>(seed: u64, count: usize, reach: f32) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let threads = available_parallelism().map_or(1, NonZeroUsize::get);
    let part = count.div_ceil(threads).max(1 << 16);
    thread::scope(|scope| {
        for (i, values) in values.chunks_mut(part).enumerate() {
            scope.spawn(move || {
                let mut inputs = Inputs::new(seed);
                inputs.skip(i * part);
                for block in values.chunks_mut(1024) {
                    let numbers = inputs.floats(block.len(), reach);
                    block.iter_mut().zip(numbers).for_each(|(value, x)| *value = T::round(x));
                }
            });
        }
    });
    values
}

/// `count` bf16 numbers of magnitude 0.5 to 1, as bytes.
pub fn bf16_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut inputs = Inputs::new(seed);
    let sign_and_mantissa = 0x807f_807f_807f_807f;
    let exponent = 0x3f00_3f00_3f00_3f00;
    let mut bytes: Vec<u8> = (0..count.div_ceil(4))
        .flat_map(|_| (inputs.bits() & sign_and_mantissa | exponent).to_le_bytes())
        .collect();
    bytes.truncate(2 * count);
    bytes
}

/// A packed ternary matrix `[n, k]`; see [`Inputs::packed_words`].
pub fn packed_words(seed: u64, n: usize, k: usize) -> Vec<u32> {
    Inputs::new(seed).packed_words(n, k)
}

/// `m` rows of `k` int8 activations in the contract's order, with their scales and sums.
pub fn acts(seed: u64, m: usize, k: usize) -> (Vec<u32>, Vec<[u32; 2]>) {
    Inputs::new(seed).packed_acts(m, k)
}

/// A W2A8 product on the host: what `w2a8_gemv` and `w2a8_gemm` take.
pub struct Linear {
    /// Rows of activations.
    pub m: usize,
    /// Rows of weights.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    words: Vec<u32>,
    acts: Vec<u32>,
    stats: Vec<[u32; 2]>,
}

/// The tensors of a [`Linear`].
pub struct LinearTensors<B: Backend> {
    /// Packed weights.
    pub w: PackedLinear<B>,
    /// Quantised activations.
    pub acts: QuantActs<B>,
    /// Output `[m, n]`.
    pub y: B::Buf<f32>,
}

impl Linear {
    /// Seeded inputs.
    pub fn new(m: usize, n: usize, k: usize) -> Self {
        let (acts, stats) = acts(k as u64, m, k);
        Self { m, n, k, words: packed_words(n as u64, n, k), acts, stats }
    }

    /// The weights, with their scales.
    ///
    /// # Panics
    /// For no shape of the contract.
    pub fn packed(&self) -> PackedW2 {
        let &Self { n, k, .. } = self;
        let segments = Segments::new(&parts(n)).expect("dimensions of the contract");
        PackedW2 { n, k, words: self.words.clone(), segments }
    }

    /// The first row of activations as real numbers: `q / s`.
    pub fn activations(&self) -> Vec<f32> {
        let s = f32::from_bits(self.stats[0][0]);
        let q = |i: usize| (self.acts[act_index(i) / 4] >> (8 * (act_index(i) % 4))) as u8 as i8;
        (0..self.k).map(|i| f32::from(q(i)) / s).collect()
    }

    /// Output `[row, feature]`, by plain loops over the unpacked codes.
    pub fn naive(&self, row: usize, feature: usize) -> f32 {
        let acts = &self.acts[row * act_bytes(self.k) / 4..];
        let words = &self.words[feature * row_words(self.k)..];
        let mut acc = 0i64;
        for i in 0..self.k {
            let at = act_index(i);
            let q = (acts[at / 4] >> (8 * (at % 4))) as u8 as i8;
            let (word, shift) = code_place(i);
            let code = words[word] >> shift & 3;
            acc += i64::from(q) * (i64::from(code) - 1);
        }
        let mut first = 0;
        let parts = parts(self.n);
        let part = parts.iter().find(|part| {
            first += part.0;
            feature < first
        });
        let g = part.map_or(f32::NAN, |part| part.1);
        (acc as f32 / f32::from_bits(self.stats[row][0])) * g
    }
}

/// `w2a8_gemv` for one row of activations, `w2a8_gemm` for more.
impl Case for Linear {
    type Tensors<B: Backend> = LinearTensors<B>;

    fn name(&self) -> String {
        format!("{}x{}x{}", self.m, self.n, self.k)
    }

    fn bytes(&self) -> u64 {
        let segments = size_of::<Segments>();
        let parts = [4 * self.words.len(), segments, 4 * self.acts.len(), 8 * self.m];
        (parts.iter().sum::<usize>() + 4 * self.m * self.n) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<LinearTensors<B>, OpError> {
        let Self { m, n, k, words, acts, stats } = self;
        let segments = Segments::new(&parts(*n)).ok_or(OpError::Dimension {
            op: "w2a8",
            what: "n",
            found: *n,
            allowed: "1 to 2^24 are allowed",
        })?;
        let mut w = PackedLinear::alloc(backend, "weights", *k, segments)?;
        w.write_rows(backend, 0, words)?;
        let mut quant = QuantActs::alloc(backend, *m, *k)?;
        backend.write(&mut quant.acts, 0, acts)?;
        backend.write(&mut quant.stats, 0, stats)?;
        Ok(LinearTensors { w, acts: quant, y: blank(backend, m * n)? })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut LinearTensors<B>) -> Result<(), OpError> {
        let LinearTensors { w, acts, y } = t;
        match self.m {
            1 => backend.w2a8_gemv(W2a8Gemv { w, acts, y, variant: None }),
            m => {
                let (chained, behind) = (false, Default::default());
                backend.w2a8_gemm(W2a8Gemm { chained, behind, w, acts, y, m, variant: None })
            }
        }
    }

    fn output<B: Backend>(&self, backend: &B, t: &LinearTensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

/// Rows and scale of each segment: three projections in one matrix.
fn parts(n: usize) -> Vec<(usize, f32)> {
    match n {
        0..3 => vec![(n, 0.02)],
        _ => vec![(n / 2, 0.013), (n / 3, 1.25), (n - n / 2 - n / 3, 0.4)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_made_side_by_side_are_one_sequence() {
        for count in [0, 1, 1023, 1 << 16, 300_001] {
            assert_eq!(uniform(7, count, 2.0), Inputs::new(7).floats(count, 2.0));
        }
    }
}
