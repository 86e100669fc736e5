//! Naive oracles: every operation as plain loops over unpacked data.
//!
//! Each family has one file of its name: the oracle, seeded inputs, the shapes that tests
//! ([`w2a8_gemv::TEST_SHAPES`] and the like) and benches take. The oracles share no trick with a kernel
//! or with [`crate::cpu`]; what they share is the contract's arithmetic of single numbers
//! ([`contract::num`]) and the order of sums that it states, spelt out here in their own words. All
//! three are held to the same bits.
#![allow(clippy::needless_range_loop, reason = "an oracle says its indices")]

pub mod act_quant;
pub mod activation;
pub mod attention;
pub mod attention_paged;
pub mod attention_step;
pub mod bit_linear;
pub mod conv2d;
pub mod decode_layers;
pub mod elementwise;
pub mod bmm;
pub mod embed;
pub mod logprobs;
pub mod kv_append;
pub mod layernorm;
pub mod lm_head;
pub mod lm_head_int8;
pub mod pool2d;
pub mod lut_matmul;
pub mod rmsnorm;
pub mod rope;
pub mod image_quant;
pub mod sample;
pub mod softmax;
pub mod sparse;
pub mod w2a8_gemm;
pub mod w2a8_gemv;
pub mod w2a8_trits;

use contract::num::RowType;
use contract::w2a8::{CODES_PER_WORD, act_bytes, act_index, code_place, row_words};

/// What the state of [`Inputs`] grows by.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A small generator of test inputs (SplitMix64): the same seed, the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Inputs(u64);

impl Inputs {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Leaves out `count` of those, so that parts of one sequence can be made side by side.
    pub fn skip(&mut self, count: usize) {
        self.0 = self.0.wrapping_add(STEP.wrapping_mul(count as u64));
    }

    /// A whole number below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Numbers in `(-reach, reach)`.
    pub fn floats(&mut self, count: usize, reach: f32) -> Vec<f32> {
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (0..count).map(|_| unit(self.bits()) * reach).collect()
    }

    /// Marks of tokens for a sampler: half of them none, some seen, some forbidden.
    pub fn marks(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(6).saturating_sub(2) as u8).collect()
    }

    /// The same where tokens have a bias: every third has one, half of those were given.
    pub fn biased_marks(&mut self, count: usize) -> Vec<u8> {
        use contract::sample::{BIASED, GIVEN};
        let mut marks = self.marks(count);
        marks
            .iter_mut()
            .for_each(|mark| *mark |= [BIASED, BIASED | GIVEN, 0, 0, 0, 0][self.below(6)]);
        marks
    }

    /// Bits for so many tokens of which some, few or all are set.
    pub fn masks(&mut self, tokens: usize) -> Vec<u32> {
        let of = self.below(4);
        let word = |bits: [u64; 2]| [bits[0], bits[0] & bits[1], 0, u64::MAX][of] as u32;
        (0..tokens.div_ceil(32)).map(|_| word([self.bits(), self.bits()])).collect()
    }

    /// Values -1, 0 and 1.
    pub fn ternaries(&mut self, count: usize) -> Vec<i8> {
        (0..count).map(|_| self.below(3) as i8 - 1).collect()
    }

    /// A ternary matrix `[n, k]` in the device layout, without a pass over single values: a quarter -1, half 0,
    /// a quarter 1.
    pub fn packed_words(&mut self, n: usize, k: usize) -> Vec<u32> {
        let row = row_words(k);
        let mut words: Vec<u32> = (0..(n * row).div_ceil(2))
            .flat_map(|_| {
                let bits = self.bits();
                // A code of 3 becomes 1.
                let codes = bits ^ (bits & (bits << 1) & 0xaaaa_aaaa_aaaa_aaaa);
                [codes as u32, (codes >> 32) as u32]
            })
            .collect();
        words.truncate(n * row);
        // The rest of each row holds the code of zero.
        for words in words.chunks_exact_mut(row) {
            for k in k..row * CODES_PER_WORD {
                let (word, shift) = code_place(k);
                words[word] = words[word] & !(3 << shift) | 1 << shift;
            }
        }
        words
    }

    /// `m` rows of `k` int8 activations in the contract's order, with the scale and the sum of each as bits.
    pub fn packed_acts(&mut self, m: usize, k: usize) -> (Vec<u32>, Vec<[u32; 2]>) {
        let (mut words, mut stats) = (vec![0u32; m * act_bytes(k) / 4], Vec::with_capacity(m));
        for row in words.chunks_exact_mut(act_bytes(k) / 4) {
            let mut sum = 0i32;
            for i in 0..k {
                let q = self.bits() as i8;
                let at = act_index(i);
                row[at / 4] |= u32::from(q as u8) << (8 * (at % 4));
                sum += i32::from(q);
            }
            stats.push([(1.0 + self.floats(1, 0.5)[0]).to_bits(), sum as u32]);
        }
        (words, stats)
    }

    /// All int8 values, -128 among them.
    pub fn int8s(&mut self, count: usize) -> Vec<i8> {
        (0..count).map(|_| self.bits() as i8).collect()
    }
}

/// The sum of `n` terms in the contract's order: `term(acc, i)` takes element `i` into its chain.
pub(crate) fn sum256(n: usize, term: impl Fn(f32, usize) -> f32) -> f32 {
    let mut p = [0.0; 256];
    for i in 0..n {
        p[i % 256] = term(p[i % 256], i);
    }
    for distance in [128, 64, 32, 16, 8, 4, 2, 1] {
        for i in 0..distance {
            p[i] += p[i + distance];
        }
    }
    p[0]
}

/// `v` as the nearest number of the element type.
pub fn rounded(element: RowType, v: f32) -> f32 {
    match element {
        RowType::F32 => v,
        RowType::F16 => half::f16::from_f32(v).to_f32(),
        RowType::Bf16 => half::bf16::from_f32(v).to_f32(),
    }
}

/// The three element types of the general float families.
pub const ELEMENTS: [RowType; 3] = [RowType::F32, RowType::F16, RowType::Bf16];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_words_hold_ternaries_and_padding() {
        for (n, k) in [(3, 64), (2, 65), (5, 100), (1, 1), (4, 192)] {
            let words = Inputs::new(1).packed_words(n, k);
            assert_eq!(words.len(), n * row_words(k));
            let mut seen = [0; 4];
            for row in words.chunks_exact(row_words(k)) {
                for i in 0..16 * row.len() {
                    let (word, shift) = code_place(i);
                    let code = row[word] >> shift & 3;
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
        let (words, stats) = Inputs::new(3).packed_acts(2, 700);
        let per_row = act_bytes(700) / 4;
        for (row, stats) in words.chunks_exact(per_row).zip(stats) {
            let bytes = row.iter().flat_map(|w| w.to_le_bytes());
            let sum: i32 = bytes.map(|b| i32::from(b as i8)).sum();
            assert_eq!(sum as u32, stats[1]);
            assert!(f32::from_bits(stats[0]) > 0.0);
        }
    }
}
