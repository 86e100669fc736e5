//! [`contract::act_quant`] on a GPU: alone, behind the norm, behind the gated product.

use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::act_quant::{ActQuant, Gate, Source};
use bitnet_gpu::ops::{Backend, OpError, QuantActs, Tensor};
use bitnet_gpu::reference::act_quant::BENCH_SHAPES;
use contract::w2a8::act_bytes;

/// What stands in front of the quantiser, as the model has it.
#[derive(Clone, Copy, PartialEq)]
enum Front {
    Nothing,
    Bf16,
    Norm,
    ResidualAndNorm,
    ResidualAndLayerNorm,
    Relu2AndNorm,
}

struct Quant {
    m: usize,
    k: usize,
    front: Front,
}

struct Tensors<B: Backend> {
    /// `x` or, behind the gated product, gate and up.
    x: B::Buf<f32>,
    /// What is added to `x`, or the product.
    other: B::Buf<f32>,
    weight: B::Buf<f32>,
    /// `x` of 16 bits, where that is quantised.
    half: B::Buf<half::bf16>,
    out: QuantActs<B>,
}

impl Case for Quant {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let front = match self.front {
            Front::Nothing => "",
            Front::Bf16 => " bf16",
            Front::Norm => " rmsnorm",
            Front::ResidualAndNorm => " add, rmsnorm",
            Front::ResidualAndLayerNorm => " add, layernorm",
            Front::Relu2AndNorm => " relu2 gate, rmsnorm",
        };
        format!("{}x{}{front}", self.m, self.k)
    }

    fn bytes(&self) -> u64 {
        let len = self.m * self.k;
        let floats = match self.front {
            Front::Nothing => len,
            Front::Bf16 => len / 2,
            Front::Norm => len + self.k,
            // x is read and written, delta read; or gate and up read, the product written.
            Front::ResidualAndNorm | Front::Relu2AndNorm => 3 * len + self.k,
            Front::ResidualAndLayerNorm => 3 * len + 2 * self.k,
        };
        (4 * floats + self.m * (act_bytes(self.k) + 8)) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let len = self.m * self.k;
        let (x, other) = match self.front {
            Front::Nothing | Front::Bf16 | Front::Norm => {
                (uniform(1, len, 3.0), blank(backend, 1)?)
            }
            Front::Relu2AndNorm => (uniform(1, 2 * len, 3.0), blank(backend, len)?),
            _ => (uniform(1, len, 3.0), upload(backend, &uniform(2, len, 1.0))?),
        };
        let mut out = QuantActs::alloc(backend, self.m, self.k)?;
        backend.fill(&mut out.acts, 0xff)?;
        backend.fill(&mut out.stats, 0xff)?;
        let weight = upload(backend, &uniform(3, self.k, 2.0))?;
        let half: Vec<half::bf16> = match self.front {
            Front::Bf16 => x.iter().map(|&v| half::bf16::from_f32(v)).collect(),
            _ => vec![half::bf16::ZERO],
        };
        let (x, half) = (upload(backend, &x)?, upload(backend, &half)?);
        Ok(Tensors { x, other, weight, half, out })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { x, other, weight, half, out } = t;
        let source = match self.front {
            Front::Nothing => Source::Plain { x },
            Front::Bf16 => Source::Bf16 { x: half },
            Front::Norm => Source::RmsNorm { x, delta: None, weight, eps: 1e-5 },
            Front::ResidualAndNorm => Source::RmsNorm { x, delta: Some(other), weight, eps: 1e-5 },
            Front::ResidualAndLayerNorm => Source::LayerNorm {
                x,
                delta: Some(other),
                weight: Some(weight),
                bias: Some(weight),
                eps: 1e-5,
            },
            Front::Relu2AndNorm => Source::Gated {
                gate: Gate::Relu2,
                gate_up: x,
                f: other,
                weight: Some(weight),
                eps: 1e-5,
            },
        };
        backend.act_quant(ActQuant { source, out, m: self.m, k: self.k })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        let mut acts = vec![0u32; t.out.acts.len()];
        let mut stats = vec![[0u32; 2]; t.out.stats.len()];
        backend.read(&t.out.acts, 0, &mut acts)?;
        backend.read(&t.out.stats, 0, &mut stats)?;
        Ok([acts, stats.concat(), bits(backend, &t.x)?, bits(backend, &t.other)?].concat())
    }
}

fn main() -> ExitCode {
    run("act_quant", |suite| {
        for &(m, k) in BENCH_SHAPES {
            for front in [
                Front::Nothing,
                Front::ResidualAndNorm,
                Front::ResidualAndLayerNorm,
                Front::Relu2AndNorm,
            ] {
                suite.measure(&Quant { m, k, front })?;
            }
        }
        // Many rows: 64 MB of f32.
        for k in [64, 333, 2560, 28_672] {
            let m = (16 << 20) / k;
            for front in [
                Front::Nothing,
                Front::Bf16,
                Front::Norm,
                Front::ResidualAndLayerNorm,
                Front::Relu2AndNorm,
            ] {
                suite.measure(&Quant { m, k, front })?;
            }
        }
        Ok(())
    })
}
