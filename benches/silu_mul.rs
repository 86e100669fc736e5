//! [`contract::silu_mul`] on a GPU.

use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::silu_mul::SiluMul;
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::reference::silu_mul::BENCH_SHAPES;

struct Product {
    m: usize,
    k: usize,
}

struct Tensors<B: Backend> {
    gate_up: B::Buf<f32>,
    f: B::Buf<f32>,
}

impl Case for Product {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        format!("{}x{}", self.m, self.k)
    }

    fn bytes(&self) -> u64 {
        (4 * 3 * self.m * self.k) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let len = self.m * self.k;
        let gate_up = upload(backend, &uniform(1, 2 * len, 8.0))?;
        Ok(Tensors { gate_up, f: blank(backend, len)? })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        backend.silu_mul(SiluMul { gate_up: &t.gate_up, f: &mut t.f, m: self.m, k: self.k })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.f)
    }
}

fn main() -> ExitCode {
    run("silu_mul", |suite| {
        BENCH_SHAPES.iter().try_for_each(|&(m, k)| suite.measure(&Product { m, k }).map(|_| ()))
    })
}
