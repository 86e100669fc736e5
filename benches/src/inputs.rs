//! Seeded inputs at full model sizes, made fast: a second of set-up for each shape would be most of
//! a run.

use bitnet_gpu::ops::{Backend, Float, OpError, PackedLinear, QuantActs};
use bitnet_gpu::pack::PackedW2;
use bitnet_gpu::reference::Inputs;
use contract::w2a8::{
    CODES_PER_WORD, PAD_WORD, Segments, act_bytes, act_index, code_shift, row_words,
};

use crate::case::blank;

/// `count` numbers in `(-reach, reach)`.
pub fn uniform(seed: u64, count: usize, reach: f32) -> Vec<f32> {
    Inputs::new(seed).floats(count, reach)
}

/// The same, rounded to `T`.
pub fn floats<T: Float>(seed: u64, count: usize, reach: f32) -> Vec<T> {
    uniform(seed, count, reach).into_iter().map(T::round).collect()
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

/// A packed ternary matrix `[n, k]`: a quarter -1, half 0, a quarter 1.
pub fn packed_words(seed: u64, n: usize, k: usize) -> Vec<u32> {
    let (row, mut inputs) = (row_words(k), Inputs::new(seed));
    let mut words: Vec<u32> = (0..(n * row).div_ceil(2))
        .flat_map(|_| {
            let bits = inputs.bits();
            // A code of 3 becomes 1.
            let codes = bits ^ (bits & (bits << 1) & 0xaaaa_aaaa_aaaa_aaaa);
            [codes as u32, (codes >> 32) as u32]
        })
        .collect();
    words.truncate(n * row);
    // The rest of each row holds the code of zero.
    let whole = k / CODES_PER_WORD;
    if whole < row {
        for words in words.chunks_exact_mut(row) {
            for e in k % CODES_PER_WORD..CODES_PER_WORD {
                let shift = code_shift(e);
                words[whole] = words[whole] & !(3 << shift) | 1 << shift;
            }
            words[whole + 1..].fill(PAD_WORD);
        }
    }
    words
}

/// `m` rows of `k` int8 activations in the contract's order, with their scales and sums.
pub fn acts(seed: u64, m: usize, k: usize) -> (Vec<u32>, Vec<[u32; 2]>) {
    let (bytes, mut inputs) = (act_bytes(k), Inputs::new(seed));
    let (mut words, mut stats) = (vec![0u32; m * bytes / 4], Vec::with_capacity(m));
    for row in words.chunks_exact_mut(bytes / 4) {
        let mut sum = 0i32;
        for i in 0..k {
            let q = inputs.bits() as i8;
            let at = act_index(i);
            row[at / 4] |= u32::from(q as u8) << (8 * (at % 4));
            sum += i32::from(q);
        }
        stats.push([(1.0 + inputs.floats(1, 0.5)[0]).to_bits(), sum as u32]);
    }
    (words, stats)
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

    /// Packed weights, activations with their scales, and outputs, each once.
    pub fn bytes(&self) -> u64 {
        let segments = size_of::<Segments>();
        let parts = [4 * self.words.len(), segments, 4 * self.acts.len(), 8 * self.m];
        (parts.iter().sum::<usize>() + 4 * self.m * self.n) as u64
    }

    /// Output `[row, feature]`, by plain loops over the unpacked codes.
    pub fn output(&self, row: usize, feature: usize) -> f32 {
        let acts = &self.acts[row * act_bytes(self.k) / 4..];
        let words = &self.words[feature * row_words(self.k)..];
        let mut acc = 0i64;
        for i in 0..self.k {
            let at = act_index(i);
            let q = (acts[at / 4] >> (8 * (at % 4))) as u8 as i8;
            let code = words[i / CODES_PER_WORD] >> code_shift(i % CODES_PER_WORD) & 3;
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

    /// Uploads it.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    pub fn tensors<B: Backend>(&self, backend: &B) -> Result<LinearTensors<B>, OpError> {
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
    fn packed_words_hold_ternaries_and_padding() {
        for (n, k) in [(3, 64), (2, 65), (5, 100), (1, 1), (4, 192)] {
            let words = packed_words(1, n, k);
            assert_eq!(words.len(), n * row_words(k));
            let mut seen = [0; 4];
            for row in words.chunks_exact(row_words(k)) {
                for i in 0..16 * row.len() {
                    let code = row[i / 16] >> code_shift(i % 16) & 3;
                    seen[code as usize] += 1;
                    assert!(i < k || code == 1, "n={n} k={k} i={i} code={code}");
                }
            }
            assert_eq!(seen[3], 0);
            assert!(n * k < 64 || seen[0] > 0 && seen[2] > 0);
        }
    }

    #[test]
    fn activations_carry_their_sum() {
        let (words, stats) = acts(3, 2, 700);
        let per_row = act_bytes(700) / 4;
        for (row, stats) in words.chunks_exact(per_row).zip(stats) {
            let bytes = row.iter().flat_map(|w| w.to_le_bytes());
            let sum: i32 = bytes.map(|b| i32::from(b as i8)).sum();
            assert_eq!(sum as u32, stats[1]);
            assert!(f32::from_bits(stats[0]) > 0.0);
        }
    }
}
