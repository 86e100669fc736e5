//! [`contract::rmsnorm`] on a GPU, with the residual add in front, as a block does it.

use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::rmsnorm::RmsNorm;
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::reference::rmsnorm::BENCH_SHAPES;

struct Norm {
    m: usize,
    k: usize,
}

struct Tensors<B: Backend> {
    x: B::Buf<f32>,
    delta: B::Buf<f32>,
    weight: B::Buf<f32>,
    y: B::Buf<f32>,
}

impl Case for Norm {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        format!("{}x{}", self.m, self.k)
    }

    fn bytes(&self) -> u64 {
        // x is read and written, delta read, y written.
        (4 * (4 * self.m * self.k + self.k)) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let len = self.m * self.k;
        Ok(Tensors {
            x: upload(backend, &uniform(1, len, 3.0))?,
            delta: upload(backend, &uniform(2, len, 1.0))?,
            weight: upload(backend, &uniform(3, self.k, 2.0))?,
            y: blank(backend, len)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { x, delta, weight, y } = t;
        let (delta, m, k) = (Some(&*delta), self.m, self.k);
        backend.rmsnorm(RmsNorm { x, delta, weight, y, m, k, eps: 1e-5 })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        Ok([bits(backend, &t.x)?, bits(backend, &t.y)?].concat())
    }
}

fn main() -> ExitCode {
    run("rmsnorm", |suite| {
        BENCH_SHAPES.iter().try_for_each(|&(m, k)| suite.measure(&Norm { m, k }).map(|_| ()))
    })
}
