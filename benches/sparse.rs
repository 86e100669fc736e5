//! [`contract::sparse`] on a GPU: bf16 weights at shares of zeros, exact and on tensor cores.
//!
//! `--peers` adds PyTorch's dense bf16 products (cuBLAS) and convolutions (cuDNN, channels last) from
//! the same machine and minute. `ops::sparse::pays_off` is made from these rows.

use std::process::ExitCode;
use std::rc::Rc;

use anyhow::ensure;
use bitnet_benches::{Case, bits, blank, run, same_bits, uniform, upload};
use bitnet_gpu::ops::sparse::{Bitmap, Conv2d, ConvShape, Linear, SparseConv2d, SparseLinear};
use bitnet_gpu::ops::{Backend, Math, OpError};
use bitnet_gpu::reference::Inputs;
use bitnet_gpu::reference::sparse::{BENCH_IMAGES, BENCH_SHAPES, BENCH_SPARSITIES};
use bitnet_gpu::selftest::sparse::shape;
use half::bf16;

/// Weights of magnitude 0.5 to 1, this percentage of them 0.
fn pruned(n: usize, k: usize, percent: usize) -> Result<Rc<Bitmap<bf16>>, anyhow::Error> {
    let (mut inputs, zeros) = (Inputs::new(percent as u64), (percent << 16) as u64 / 100);
    let weight = |bits: u64| match bits >> 48 < zeros {
        true => bf16::ZERO,
        false => bf16::from_bits(bits as u16 & 0x807f | 0x3f00),
    };
    let dense: Vec<bf16> = (0..n * k).map(|_| weight(inputs.bits())).collect();
    Ok(Rc::new(Bitmap::from_dense(n, k, &dense)?))
}

/// Exact results have the CPU's bits; those of tensor cores may differ by their bound, since inputs and
/// weights are at most 1.
fn compare(math: Math, w: &Bitmap<bf16>, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
    if math == Math::Exact {
        return same_bits("exact", found, expected);
    }
    // A row may have somewhat more weights than the mean.
    let bound = (1.5 * w.stored() as f32 / w.n() as f32 + 64.0) * 2f32.powi(-17);
    for (i, (&a, &b)) in found.iter().zip(expected).enumerate() {
        let (a, b) = (f32::from_bits(a), f32::from_bits(b));
        ensure!((a - b).abs() <= bound, "tensor cores: output {i} is {a}, the CPU's is {b}");
    }
    Ok(())
}

fn name_of(math: Math) -> String {
    if math == Math::Exact { "exact" } else { "tensor cores" }.to_owned()
}

struct Product {
    m: usize,
    percent: usize,
    math: Math,
    w: Rc<Bitmap<bf16>>,
}

struct Tensors<B: Backend> {
    w: SparseLinear<B, bf16>,
    x: B::Buf<bf16>,
    y: B::Buf<f32>,
}

fn inputs(len: usize) -> Vec<bf16> {
    uniform(7, len, 1.0).into_iter().map(bf16::from_f32).collect()
}

impl Case for Product {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        format!("linear {}x{}x{} {}%", self.m, self.w.n(), self.w.k(), self.percent)
    }

    fn variant(&self) -> String {
        name_of(self.math)
    }

    fn bytes(&self) -> u64 {
        (self.w.bytes() + self.m * (2 * self.w.k() + 4 * self.w.n())) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        Ok(Tensors {
            w: SparseLinear::upload(backend, "bench", &self.w)?,
            x: upload(backend, &inputs(self.m * self.w.k()))?,
            y: blank(backend, self.m * self.w.n())?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { w, x, y } = t;
        backend.sparse_linear(Linear { w, x, y, m: self.m, math: self.math, kernel: None })
    }

    fn compare(&self, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
        compare(self.math, &self.w, found, expected)
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

struct Convolution {
    shape: ConvShape,
    percent: usize,
    math: Math,
    w: Rc<Bitmap<bf16>>,
}

struct ConvTensors<B: Backend> {
    w: SparseConv2d<B, bf16>,
    x: B::Buf<bf16>,
    y: B::Buf<f32>,
}

impl Convolution {
    fn input_len(&self) -> usize {
        let ConvShape { batch, height, width, channels, .. } = self.shape;
        batch * height * width * channels
    }
}

impl Case for Convolution {
    type Tensors<B: Backend> = ConvTensors<B>;

    fn name(&self) -> String {
        let ConvShape { batch, height, width, channels, kernel, .. } = self.shape;
        let (n, side, percent) = (self.w.n(), kernel[0], self.percent);
        format!("conv {batch}x{height}x{width}x{channels} to {n} by {side} {percent}%")
    }

    fn variant(&self) -> String {
        name_of(self.math)
    }

    fn bytes(&self) -> u64 {
        (self.w.bytes() + 2 * self.input_len() + 4 * self.shape.pixels() * self.w.n()) as u64
    }

    fn rotates(&self) -> bool {
        false
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<ConvTensors<B>, OpError> {
        let ConvShape { kernel, channels, .. } = self.shape;
        Ok(ConvTensors {
            w: SparseConv2d::upload(backend, "bench", &self.w, kernel, channels)?,
            x: upload(backend, &inputs(self.input_len()))?,
            y: blank(backend, self.shape.pixels() * self.w.n())?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut ConvTensors<B>) -> Result<(), OpError> {
        let ConvTensors { w, x, y } = t;
        backend.sparse_conv2d(Conv2d { w, x, y, shape: self.shape, math: self.math, kernel: None })
    }

    fn compare(&self, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
        compare(self.math, &self.w, found, expected)
    }

    fn output<B: Backend>(&self, backend: &B, t: &ConvTensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("sparse", |suite| {
        for &(n, k) in BENCH_SHAPES {
            for &percent in BENCH_SPARSITIES {
                let w = pruned(n, k, percent)?;
                for m in [1, 8, 16] {
                    for math in [Math::Exact, Math::TensorCore] {
                        suite.measure(&Product { m, percent, math, w: Rc::clone(&w) })?;
                    }
                }
            }
        }
        // Rows that are no multiple of sixteen bytes long.
        let w = pruned(3000, 5003, 90)?;
        suite.measure(&Product { m: 8, percent: 90, math: Math::TensorCore, w })?;
        for &(batch, side) in BENCH_IMAGES {
            let shape = shape(batch, [side; 2], 256, 3, 1);
            let w = pruned(256, shape.k(), 90)?;
            for math in [Math::Exact, Math::TensorCore] {
                let w = Rc::clone(&w);
                suite.measure(&Convolution { shape, percent: 90, math, w })?;
            }
        }
        Ok(())
    })
}
