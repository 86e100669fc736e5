//! Operations on rows: norms, softmax, activations, element by element, quantising.

use bitnet_benches::blank;
use bitnet_gpu::ops::act_quant::{self, ActQuant};
use bitnet_gpu::ops::activation::{self, Activation, Kind};
use bitnet_gpu::ops::elementwise::{Elementwise, Function, Operand};
use bitnet_gpu::ops::layernorm::LayerNorm;
use bitnet_gpu::ops::rmsnorm::RmsNorm;
use bitnet_gpu::ops::softmax::{Mask, Softmax};
use bitnet_gpu::ops::{Backend, Float, QuantActs};
use half::bf16;

use super::Host;

/// A row, a batch, many short rows, odd ones, and rows that are made in parts.
const SHAPES: &[[usize; 2]] = &[[1, 2560], [512, 4096], [20_000, 64], [333, 1001], [4, 500_000]];

pub(super) fn measure(host: &mut Host) -> anyhow::Result<()> {
    of_type::<f32>(host)?;
    of_type::<bf16>(host)?;
    for [m, k] in [[1, 2560], [512, 6912]] {
        host.time(
            &format!("act_quant {m}x{k}"),
            |gpu| Ok((blank::<_, f32>(gpu, m * k)?, QuantActs::alloc(gpu, m, k)?)),
            |gpu, (x, out)| {
                gpu.act_quant(ActQuant { source: act_quant::Source::Plain { x }, out, m, k })
            },
        )?;
    }
    Ok(())
}

fn of_type<T: Float>(host: &mut Host) -> anyhow::Result<()> {
    let ty = T::TYPE.name();
    for &[m, k] in SHAPES {
        let len = m * k;
        host.time(
            &format!("elementwise affine {m}x{k} {ty}"),
            |gpu| Ok([blank::<_, T>(gpu, len)?, blank(gpu, len)?]),
            |gpu, [a, y]| {
                let function = Function::Affine { alpha: 2.0, beta: 1.0 };
                gpu.elementwise(Elementwise { a, function, relu: false, y, m, k })
            },
        )?;
        host.time(
            &format!("elementwise add row {m}x{k} {ty}"),
            |gpu| Ok([blank::<_, T>(gpu, len)?, blank(gpu, k)?, blank(gpu, len)?]),
            |gpu, [a, b, y]| {
                let function = Function::Add(Operand::Row(b));
                gpu.elementwise(Elementwise { a, function, relu: true, y, m, k })
            },
        )?;
        host.time(
            &format!("activation gelu {m}x{k} {ty}"),
            |gpu| Ok([blank::<_, T>(gpu, len)?, blank(gpu, len)?]),
            |gpu, [x, y]| {
                let source = activation::Source::Plain { x };
                gpu.activation(Activation { kind: Kind::Gelu, source, y, m, k })
            },
        )?;
        host.time(
            &format!("softmax {m}x{k} {ty}"),
            |gpu| Ok([blank::<_, T>(gpu, len)?, blank(gpu, len)?]),
            |gpu, [x, y]| {
                gpu.softmax(Softmax { x, mask: Mask::None, y, m, k, scale: 1.0, log: false })
            },
        )?;
        host.time(
            &format!("rmsnorm {m}x{k} {ty}"),
            |gpu| Ok([blank::<_, T>(gpu, len)?, blank(gpu, k)?, blank(gpu, len)?]),
            |gpu, [x, weight, y]| {
                gpu.rmsnorm(RmsNorm { x, delta: None, weight, y, m, k, eps: 1e-5 })
            },
        )?;
        host.time(
            &format!("layernorm {m}x{k} {ty}"),
            |gpu| Ok([blank::<_, T>(gpu, len)?, blank(gpu, k)?, blank(gpu, len)?]),
            |gpu, [x, weight, y]| {
                let weight = Some(&*weight);
                gpu.layernorm(LayerNorm { x, delta: None, weight, bias: None, y, m, k, eps: 1e-5 })
            },
        )?;
    }
    Ok(())
}
