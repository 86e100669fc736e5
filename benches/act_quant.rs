//! [`contract::act_quant`] on a GPU: alone, behind the norm, behind the gated product.

use std::cell::OnceCell;
use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::act_quant::{ActQuant, Gate, Source};
use bitnet_gpu::ops::{Backend, OpError, QuantActs, Tensor};
use bitnet_gpu::reference::act_quant::BENCH_SHAPES;
use contract::w2a8::act_bytes;
use half::{bf16, f16};

/// What stands in front of the quantiser, as the model has it.
#[derive(Clone, Copy, PartialEq)]
enum Front {
    Nothing,
    F16,
    Bf16,
    Norm,
    LayerNorm,
    ResidualAndNorm,
    ResidualAndLayerNorm,
    Relu2AndNorm,
}

struct Quant {
    m: usize,
    k: usize,
    front: Front,
    /// `x` and what is added to it, made once: every copy of the tensors holds the same.
    host: OnceCell<[Vec<f32>; 2]>,
}

struct Tensors<B: Backend> {
    /// `x` or, behind the gated product, gate and up.
    x: B::Buf<f32>,
    /// What is added to `x`, or the product.
    other: B::Buf<f32>,
    weight: B::Buf<f32>,
    /// `x` of 16 bits, where that is quantised.
    f16: B::Buf<f16>,
    bf16: B::Buf<bf16>,
    out: QuantActs<B>,
}

impl Case for Quant {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let front = match self.front {
            Front::Nothing => "",
            Front::F16 => " f16",
            Front::Bf16 => " bf16",
            Front::Norm => " rmsnorm",
            Front::LayerNorm => " layernorm",
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
            Front::F16 | Front::Bf16 => len / 2,
            Front::Norm => len + self.k,
            Front::LayerNorm => len + 2 * self.k,
            // x is read and written, delta read; or gate and up read, the product written.
            Front::ResidualAndNorm | Front::Relu2AndNorm => 3 * len + self.k,
            Front::ResidualAndLayerNorm => 3 * len + 2 * self.k,
        };
        (4 * floats + self.m * (act_bytes(self.k) + 8)) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let len = self.m * self.k;
        let gated = self.front == Front::Relu2AndNorm;
        let added = matches!(self.front, Front::ResidualAndNorm | Front::ResidualAndLayerNorm);
        let [x, delta] = self.host.get_or_init(|| {
            let values = if gated { 2 * len } else { len };
            [uniform(1, values, 3.0), uniform(2, if added { len } else { 0 }, 1.0)]
        });
        let other = match added {
            true => upload(backend, delta)?,
            false => blank(backend, if gated { len } else { 1 })?,
        };
        let mut out = QuantActs::alloc(backend, self.m, self.k)?;
        backend.fill(&mut out.acts, 0xff)?;
        backend.fill(&mut out.stats, 0xff)?;
        let weight = upload(backend, &uniform(3, self.k, 2.0))?;
        let rounded = |front| if self.front == front { &x[..] } else { &[0.0] };
        let f16: Vec<_> = rounded(Front::F16).iter().map(|&v| f16::from_f32(v)).collect();
        let bf16: Vec<_> = rounded(Front::Bf16).iter().map(|&v| bf16::from_f32(v)).collect();
        let (f16, bf16) = (upload(backend, &f16)?, upload(backend, &bf16)?);
        Ok(Tensors { x: upload(backend, x)?, other, weight, f16, bf16, out })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { x, other, weight, f16, bf16, out } = t;
        let source = match self.front {
            Front::Nothing => Source::Plain { x },
            Front::F16 => Source::F16 { x: f16 },
            Front::Bf16 => Source::Bf16 { x: bf16 },
            Front::Norm => Source::RmsNorm { x, delta: None, weight, eps: 1e-5 },
            Front::ResidualAndNorm => Source::RmsNorm { x, delta: Some(other), weight, eps: 1e-5 },
            Front::LayerNorm | Front::ResidualAndLayerNorm => Source::LayerNorm {
                x,
                delta: (self.front == Front::ResidualAndLayerNorm).then_some(other),
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
        let case = |m, k, front| Quant { m, k, front, host: OnceCell::new() };
        for &(m, k) in BENCH_SHAPES {
            for front in [
                Front::Nothing,
                Front::ResidualAndNorm,
                Front::ResidualAndLayerNorm,
                Front::Relu2AndNorm,
            ] {
                suite.measure(&case(m, k, front))?;
            }
        }
        // Many rows: 64 MB of f32.
        for k in [64, 128, 300, 1024, 2560, 8192, 14_336, 28_672] {
            for front in [
                Front::Nothing,
                Front::F16,
                Front::Bf16,
                Front::Norm,
                Front::LayerNorm,
                Front::ResidualAndNorm,
                Front::ResidualAndLayerNorm,
                Front::Relu2AndNorm,
            ] {
                suite.measure(&case((16 << 20) / k, k, front))?;
            }
        }
        Ok(())
    })
}
