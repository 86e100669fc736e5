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
pub mod attention_step;
pub mod bit_linear;
pub mod conv2d;
pub mod decode_layers;
pub mod elementwise;
pub mod bmm;
pub mod embed;
pub mod kv_append;
pub mod layernorm;
pub mod lm_head;
pub mod lm_head_int8;
pub mod pool2d;
pub mod lut_matmul;
pub mod rmsnorm;
pub mod rope;
pub mod sample;
pub mod softmax;
pub mod sparse;
pub mod w2a8_gemm;
pub mod w2a8_gemv;

use contract::num::RowType;

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
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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

    /// Values -1, 0 and 1.
    pub fn ternaries(&mut self, count: usize) -> Vec<i8> {
        (0..count).map(|_| self.below(3) as i8 - 1).collect()
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
