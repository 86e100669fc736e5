//! Products: dense, ternary, by tables, with pruned weights.

use std::rc::Rc;

use bitnet_benches::{Arm, Case, Linear, Lookup, Weights, blank};
use bitnet_gpu::layers::bit_linear::bit_linear;
use bitnet_gpu::ops::act_quant::Gate;
use bitnet_gpu::ops::bit_linear::{BitLinear, Finish, Norm};
use bitnet_gpu::ops::bmm::{Bmm, Layout, Operand};
use bitnet_gpu::ops::sparse::{self, Bitmap, Csr, SparseCsr, SparseLinear};
use bitnet_gpu::ops::w2a8_gemm::{Behind, W2a8Gemm};
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, Math};
use contract::lut_matmul::Form;
use half::{bf16, f16};

use super::Host;

/// `[batch, m, n, k]`: tiny, small, large, thin, odd, long sums, many.
const BMM_SHAPES: &[[usize; 4]] = &[
    [1, 1, 1, 1],
    [1, 64, 64, 64],
    [1, 2048, 2048, 2048],
    [1, 1, 4096, 4096],
    [1, 333, 1001, 777],
    [1, 64, 64, 100_000],
    [96, 128, 128, 64],
];

pub(super) fn measure(host: &mut Host) -> anyhow::Result<()> {
    bmm::<f32>(host, "f32", Math::Exact)?;
    bmm::<bf16>(host, "bf16", Math::Exact)?;
    bmm::<bf16>(host, "bf16", Math::TensorCore)?;
    bmm::<f16>(host, "f16", Math::TensorCore)?;
    bmm::<i8>(host, "i8", Math::Exact)?;
    ternary(host)?;
    tables(host)?;
    pruned(host)
}

fn bmm<T: Operand>(host: &mut Host, ty: &str, math: Math) -> anyhow::Result<()> {
    let by = if math == Math::Exact { "" } else { " tensor cores" };
    for &[batch, m, n, k] in BMM_SHAPES {
        for transposed in [false, true] {
            let layout = if transposed { Layout::columns(k, n) } else { Layout::rows(k, n) };
            let turned = if transposed { " b^T" } else { "" };
            host.time(
                &format!("bmm {batch}x{m}x{n}x{k}{turned} {ty}{by}"),
                |gpu| {
                    let (a, b) =
                        (gpu.alloc::<T>("a", batch * m * k)?, gpu.alloc("b", batch * k * n)?);
                    Ok((a, b, gpu.alloc("c", batch * m * n)?))
                },
                |gpu, (a, b, c)| {
                    gpu.bmm(Bmm { b_layout: layout, math, ..Bmm::new(a, b, c, [m, n, k], batch) })
                },
            )?;
        }
    }
    Ok(())
}

fn ternary(host: &mut Host) -> anyhow::Result<()> {
    for (n, k) in [(2560, 2560), (13_824, 2560), (1001, 777)] {
        for m in [1, 2, 16, 64, 512, 4096] {
            let linear = Linear::new(m, n, k);
            let name = format!("w2a8_{} {m}x{n}x{k}", if m == 1 { "gemv" } else { "gemm" });
            host.time(
                &name,
                |gpu| Ok(linear.tensors(gpu)?),
                |gpu, t| {
                    let (w, acts, y) = (&t.w, &t.acts, &mut t.y);
                    if m == 1 {
                        return gpu.w2a8_gemv(W2a8Gemv { w, acts, y, variant: None });
                    }
                    let behind = Behind::default();
                    gpu.w2a8_gemm(W2a8Gemm { w, acts, y, m, variant: None, chained: false, behind })
                },
            )?;
            host.time(
                &format!("layer bit_linear {m}x{n}x{k}"),
                |gpu| Ok((linear.tensors(gpu)?, gpu.alloc("unpacked", 1)?)),
                |gpu, (t, unpacked)| {
                    bit_linear(gpu, &t.w, &t.acts, &mut t.y, m, unpacked, Behind::default())
                },
            )?;
        }
        let linear = Linear::new(1, n, k);
        host.time(
            &format!("bit_linear norm and gate {n}x{k}"),
            |gpu| {
                let x: [_; 2] = [blank::<_, f32>(gpu, k)?, blank(gpu, k)?];
                Ok((linear.tensors(gpu)?, x))
            },
            |gpu, (t, [x, weight])| {
                let norm = Some(Norm { weight, eps: 1e-5 });
                let finish = match n % 2 {
                    0 => Finish::Gated { gate: Gate::Relu2, y: &mut t.y },
                    _ => Finish::Store { y: &mut t.y },
                };
                gpu.bit_linear(BitLinear { x, norm, w: &t.w, finish })
            },
        )?;
    }
    Ok(())
}

fn tables(host: &mut Host) -> anyhow::Result<()> {
    let (n, k) = (2560, 2560);
    let weights = Rc::new(Weights::new(n, k)?);
    for (name, arm) in [
        ("tl1", Arm::Exact(Form::Tl1, None)),
        ("tl2", Arm::Exact(Form::Tl2, None)),
        ("lossy", Arm::Lossy),
    ] {
        let case = Lookup { weights: Rc::clone(&weights), arm };
        host.time_case(&format!("lut_matmul {name} 1x{n}x{k}"), &case)?;
    }
    Ok(())
}

fn pruned(host: &mut Host) -> anyhow::Result<()> {
    for (n, k) in [(2560, 2560), (999, 1003)] {
        let dense: Vec<bf16> =
            (0..n * k).map(|i| if i % 10 == 0 { bf16::ONE } else { bf16::ZERO }).collect();
        let bitmap = Bitmap::from_dense(n, k, &dense)?;
        let csr = Csr::from_dense(n, k, &dense)?;
        for m in [1, 16, 512] {
            for (by, math) in [("exact", Math::Exact), ("tensor cores", Math::TensorCore)] {
                host.time(
                    &format!("sparse linear {m}x{n}x{k} bf16 {by}"),
                    |gpu| {
                        let w = SparseLinear::upload(gpu, "bench", &bitmap)?;
                        Ok((w, blank::<_, bf16>(gpu, m * k)?, blank(gpu, m * n)?))
                    },
                    |gpu, (w, x, y)| {
                        gpu.sparse_linear(sparse::Linear { w, x, y, m, math, kernel: None })
                    },
                )?;
            }
            host.time(
                &format!("sparse csr {m}x{n}x{k} bf16"),
                |gpu| {
                    let w = SparseCsr::upload(gpu, "bench", &csr)?;
                    Ok((w, blank::<_, bf16>(gpu, m * k)?, blank(gpu, m * n)?))
                },
                |gpu, (w, x, y)| gpu.sparse_csr(sparse::LinearCsr { w, x, y, m }),
            )?;
        }
    }
    Ok(())
}
