//! The cases of the doctor: for each kernel a few small shapes around the edges of words, warps and
//! tiles, with the values that are easily got wrong.

use contract::sample::{MAX_STOP_IDS, ONE_WEIGHT, SampleParams, StepState};
use contract::w2a8_gemv::VARIANTS;

use super::embed::Table;
use super::kv_append::Cache;
use super::rope::Angles;
use super::w2a8_gemv::Product;
use super::{Bed, Output, Run, RunError};
use super::{act_quant, attention, embed, kv_append, lm_head, relu2_mul, rmsnorm, rope, sample};
use super::{silu_mul, w2a8_gemm, w2a8_gemv};
use crate::ops::act_quant::Gate;
use crate::ops::kv_append::Heads;
use crate::ops::{Backend, RowType};
use crate::reference::Inputs as Seeded;

/// One case of one kernel.
#[derive(Clone, Debug)]
pub struct Case {
    /// Symbol of the kernel that runs it on a GPU.
    pub kernel: &'static str,
    /// Its shape, for people.
    pub what: String,
    inputs: Inputs,
}

#[derive(Clone, Debug)]
enum Inputs {
    ActQuant(act_quant::Inputs),
    Attention(attention::Inputs),
    Embed(embed::Inputs),
    KvAppend(kv_append::Inputs),
    LmHead(lm_head::Inputs),
    Relu2Mul(relu2_mul::Inputs),
    RmsNorm(rmsnorm::Inputs),
    Rope(rope::Inputs),
    Sample(sample::Inputs),
    SiluMul(silu_mul::Inputs),
    W2a8Gemm(Product, usize),
    W2a8Gemv(Product, usize),
}

impl Run for Case {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        match &self.inputs {
            Inputs::ActQuant(inputs) => inputs.run(bed),
            Inputs::Attention(inputs) => inputs.run(bed),
            Inputs::Embed(inputs) => inputs.run(bed),
            Inputs::KvAppend(inputs) => inputs.run(bed),
            Inputs::LmHead(inputs) => inputs.run(bed),
            Inputs::Relu2Mul(inputs) => inputs.run(bed),
            Inputs::RmsNorm(inputs) => inputs.run(bed),
            Inputs::Rope(inputs) => inputs.run(bed),
            Inputs::Sample(inputs) => inputs.run(bed),
            Inputs::SiluMul(inputs) => inputs.run(bed),
            Inputs::W2a8Gemm(case, variant) => {
                w2a8_gemm::Inputs { case, variant: Some(*variant) }.run(bed)
            }
            Inputs::W2a8Gemv(case, variant) => {
                w2a8_gemv::Inputs { case, variant: Some(*variant) }.run(bed)
            }
        }
    }
}

impl Case {
    /// Runs the case over each poison; see [`super::run`].
    ///
    /// # Errors
    /// As there.
    pub fn outputs<B: Backend>(&self, backend: &B) -> Result<Vec<Output>, RunError> {
        super::run(backend, self)
    }
}

/// All cases, by kernel in the order of [`contract::KERNELS`]: at least one for each.
pub fn cases() -> Vec<Case> {
    let mut list = List(Vec::new());
    list.act_quant();
    list.attention();
    list.tables();
    list.kv_append();
    list.elementwise();
    list.rope();
    list.sample();
    list.w2a8();
    let order = |case: &Case| contract::KERNELS.iter().position(|k| k.spec.symbol == case.kernel);
    list.0.sort_by_key(order);
    list.0
}

struct List(Vec<Case>);

/// The symbol that `contract` gives kernel `K`.
const fn symbol<K: contract::launch::Kernel>() -> &'static str {
    K::SPEC.symbol
}

impl List {
    fn add(&mut self, kernel: &'static str, what: String, inputs: Inputs) {
        self.0.push(Case { kernel, what, inputs });
    }

    fn act_quant(&mut self) {
        use contract::act_quant::{ActQuant, ActQuantRelu2, ActQuantRmsNorm, ActQuantSilu};
        let mut seeded = Seeded::new(1);
        for (m, k) in [(1, 1), (3, 63), (2, 1000), (5, 513)] {
            let mut weight = || seeded.floats(k, 2.0);
            let (gain, some) = (weight(), (k != 63).then(weight));
            let delta = (k != 1).then(|| seeded.floats(m * k, 3.0));
            let gated = |gate| act_quant::From::Gated { gate, weight: some.clone(), eps: 1e-5 };
            let norm = act_quant::From::RmsNorm { delta, weight: gain, eps: 1e-5 };
            for (kernel, from, width) in [
                (symbol::<ActQuant>(), act_quant::From::Plain, k),
                (symbol::<ActQuantRmsNorm>(), norm, k),
                (symbol::<ActQuantRelu2>(), gated(Gate::Relu2), 2 * k),
                (symbol::<ActQuantSilu>(), gated(Gate::Silu), 2 * k),
            ] {
                let mut x = seeded.floats(m * width, 4.0);
                if m == 5 {
                    // A row of zeros, one with NaN, one with infinity, one of subnormals.
                    x[..width].fill(0.0);
                    x[width + width / 2] = f32::NAN;
                    x[2 * width] = f32::NEG_INFINITY;
                    x[3 * width..4 * width].iter_mut().for_each(|v| *v *= 1e-39);
                }
                let inputs = act_quant::Inputs { m, k, x, from };
                self.add(kernel, format!("m={m} k={k}"), Inputs::ActQuant(inputs));
            }
        }
    }

    fn attention(&mut self) {
        use contract::attention::{
            AttentionBf16, AttentionF32, AttentionSplitBf16, AttentionSplitF32,
        };
        let mut seeded = Seeded::new(2);
        for (heads, kv_heads, head_dim, m, start) in
            [(1, 1, 1, 1, 0), (4, 2, 48, 3, 62), (3, 1, 100, 1, 128), (2, 2, 256, 2, 190)]
        {
            let heads = Heads { heads, kv_heads, head_dim };
            let qkv = seeded.floats(m * heads.qkv_len(), 2.0);
            let positions = start + m;
            for (element, rows, keys) in [
                (RowType::Bf16, symbol::<AttentionBf16>(), symbol::<AttentionSplitBf16>()),
                (RowType::F32, symbol::<AttentionF32>(), symbol::<AttentionSplitF32>()),
            ] {
                let cache = Cache::random(element, heads, positions + 70, &mut seeded);
                // A recorded step reaches further than its position.
                for (kernel, split) in [(rows, None), (keys, Some(positions + 65))] {
                    let (qkv, cache, start) = (qkv.clone(), cache.clone(), start as u32);
                    let inputs = attention::Inputs { heads, qkv, cache, start, split };
                    let what = format!("{heads:?} m={m} start={start}");
                    self.add(kernel, what, Inputs::Attention(inputs));
                }
            }
        }
    }

    fn tables(&mut self) {
        use contract::embed::{EmbedBf16, EmbedF16, EmbedF32};
        use contract::lm_head::{LmHeadBf16, LmHeadF16, LmHeadF32};
        let mut seeded = Seeded::new(3);
        for (element, embed, lm_head) in [
            (RowType::Bf16, symbol::<EmbedBf16>(), symbol::<LmHeadBf16>()),
            (RowType::F16, symbol::<EmbedF16>(), symbol::<LmHeadF16>()),
            (RowType::F32, symbol::<EmbedF32>(), symbol::<LmHeadF32>()),
        ] {
            for (rows, width, m) in [(1, 1, 1), (17, 63, 2), (33, 1027, 3)] {
                let table = Table::new(element, rows, width, seeded.bits());
                let what = format!("rows={rows} width={width} m={m}");
                let mut ids: Vec<u32> = (0..m + 1).map(|_| seeded.below(rows) as u32).collect();
                // Past the table: a row of NaN.
                ids[m] = rows as u32;
                let inputs = embed::Inputs { table: table.clone(), ids, ids_at: 1 };
                self.add(embed, what.clone(), Inputs::Embed(inputs));
                let x = seeded.floats(width + m * width, 1.0);
                let inputs = lm_head::Inputs { table, x, x_at: width };
                self.add(lm_head, what, Inputs::LmHead(inputs));
            }
        }
    }

    fn kv_append(&mut self) {
        use contract::kv_append::{KvAppendBf16, KvAppendF32, KvAppendRopeBf16, KvAppendRopeF32};
        let mut seeded = Seeded::new(4);
        for (heads, kv_heads, head_dim, m, start, capacity) in
            [(1, 1, 2, 1, 0, 1), (4, 2, 50, 3, 5, 9), (2, 1, 256, 4, 6, 8)]
        {
            let heads = Heads { heads, kv_heads, head_dim };
            let angles = Angles::new(capacity, head_dim, 10_000.0);
            for (element, plain, rotate) in [
                (RowType::Bf16, symbol::<KvAppendBf16>(), symbol::<KvAppendRopeBf16>()),
                (RowType::F32, symbol::<KvAppendF32>(), symbol::<KvAppendRopeF32>()),
            ] {
                let cache = Cache::random(element, heads, capacity, &mut seeded);
                let cache = Cache { padding: 5.0, ..cache };
                let qkv = seeded.floats(m * heads.qkv_len(), 3.0);
                for (kernel, angles) in [(plain, None), (rotate, Some(angles.clone()))] {
                    let (qkv, cache) = (qkv.clone(), cache.clone());
                    let inputs = kv_append::Inputs { heads, qkv, cache, angles, start };
                    let what = format!("{heads:?} m={m} start={start} capacity={capacity}");
                    self.add(kernel, what, Inputs::KvAppend(inputs));
                }
            }
        }
    }

    fn elementwise(&mut self) {
        let mut seeded = Seeded::new(5);
        for (m, k) in [(1, 1), (2, 255), (3, 1025)] {
            let what = format!("m={m} k={k}");
            let gate_up = seeded.floats(2 * m * k, 9.0);
            let inputs = relu2_mul::Inputs { m, k, gate_up: gate_up.clone() };
            let kernel = symbol::<contract::relu2_mul::Relu2Mul>();
            self.add(kernel, what.clone(), Inputs::Relu2Mul(inputs));
            let inputs = silu_mul::Inputs { m, k, gate_up };
            let kernel = symbol::<contract::silu_mul::SiluMul>();
            self.add(kernel, what.clone(), Inputs::SiluMul(inputs));
            for delta in [None, Some(seeded.floats(m * k, 3.0))] {
                let (x, weight) = (seeded.floats(m * k, 3.0), seeded.floats(k, 2.0));
                let inputs = rmsnorm::Inputs { m, k, x, delta, weight, eps: 1e-5 };
                let kernel = symbol::<contract::rmsnorm::RmsNorm>();
                self.add(kernel, what.clone(), Inputs::RmsNorm(inputs));
            }
        }
    }

    fn rope(&mut self) {
        let mut seeded = Seeded::new(6);
        // The last rows of the second case stand past the table.
        for (m, heads, head_dim, start, positions) in [(1, 1, 2, 0, 1), (5, 3, 50, 7, 10)] {
            let row_stride = heads * head_dim + 3;
            let inputs = rope::Inputs {
                angles: Angles::new(positions, head_dim, 500_000.0),
                x: seeded.floats((m - 1) * row_stride + heads * head_dim, 3.0),
                m,
                heads,
                row_stride,
                start,
            };
            let what = format!("m={m} heads={heads} head_dim={head_dim} start={start}");
            self.add(symbol::<contract::rope::Rope>(), what, Inputs::Rope(inputs));
        }
    }

    fn sample(&mut self) {
        use contract::sample::{SamplePick, SamplePrepare};
        let mut seeded = Seeded::new(7);
        let plain = SampleParams {
            seed: 0x0123_4567_89ab_cdef,
            top_p_q32: 1 << 32,
            temperature: 0.8,
            repetition_penalty: 1.0,
            top_k: 0,
            min_weight: 0,
            max_steps: 100,
            stop_len: 0,
            stop_ids: [0; MAX_STOP_IDS],
        };
        let all = SampleParams {
            top_k: 50,
            top_p_q32: 3_865_470_566,
            min_weight: ONE_WEIGHT / 50,
            repetition_penalty: 1.3,
            ..plain
        };
        let greedy = SampleParams { temperature: 0.0, ..all };
        for (vocab, params) in [(1, plain), (1023, greedy), (1025, plain), (4097, all)] {
            let mut logits = seeded.floats(3 + vocab, 6.0);
            logits[3 + vocab / 2] = f32::NAN;
            logits[3 + vocab / 3] = f32::NEG_INFINITY;
            let inputs = sample::Inputs {
                logits,
                logits_at: 3,
                params,
                state: StepState { pos: 7, ..StepState::default() },
                seen: (0..vocab).map(|_| seeded.below(2) as u8).collect(),
                steps: 5,
                log: 4,
            };
            for kernel in [symbol::<SamplePrepare>(), symbol::<SamplePick>()] {
                let what = format!("vocab={vocab} top_k={}", params.top_k);
                self.add(kernel, what, Inputs::Sample(inputs.clone()));
            }
        }
    }

    fn w2a8(&mut self) {
        let gemv = [(1, 1), (7, 65), (33, 513), (131, 1000)];
        for (index, variant) in VARIANTS.iter().enumerate() {
            for (n, k) in gemv {
                let case = Product::new(1, n, k, 8);
                self.add(
                    variant.spec.symbol,
                    format!("n={n} k={k}"),
                    Inputs::W2a8Gemv(case, index),
                );
            }
        }
        // Around one tile of every variant, and over several parts of k.
        let gemm = [(1, 1, 1), (2, 7, 65), (17, 70, 1000), (65, 132, 2100)];
        for (index, variant) in contract::w2a8_gemm::VARIANTS.iter().enumerate() {
            for (m, n, k) in gemm {
                let case = Product::new(m, n, k, 9);
                self.add(
                    variant.spec.symbol,
                    format!("m={m} n={n} k={k}"),
                    Inputs::W2a8Gemm(case, index),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_case() {
        let cases = cases();
        for kernel in contract::KERNELS {
            let symbol = kernel.spec.symbol;
            assert!(cases.iter().any(|case| case.kernel == symbol), "{symbol} has no case");
        }
        assert!(cases.iter().all(|c| contract::KERNELS.iter().any(|k| k.spec.symbol == c.kernel)));
    }
}
