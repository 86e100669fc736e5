//! [`contract::w2a8_gemm`] on a GPU: batches and prefill.

use std::process::ExitCode;

use bitnet_benches::{Case, Linear, LinearTensors, bits, run};
use bitnet_gpu::ops::w2a8_gemm::W2a8Gemm;
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::reference::w2a8_gemm::BENCH_SHAPES;

struct Gemm(Linear);

impl Case for Gemm {
    type Tensors<B: Backend> = LinearTensors<B>;

    fn name(&self) -> String {
        format!("{}x{}x{}", self.0.m, self.0.n, self.0.k)
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<LinearTensors<B>, OpError> {
        self.0.tensors(backend)
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut LinearTensors<B>) -> Result<(), OpError> {
        backend.w2a8_gemm(W2a8Gemm {
            chained: false,
            behind: Default::default(),
            w: &t.w,
            acts: &t.acts,
            y: &mut t.y,
            m: self.0.m,
            variant: None,
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &LinearTensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("w2a8_gemm", |suite| {
        for &(m, n, k) in BENCH_SHAPES {
            if let Some(row) = suite.measure(&Gemm(Linear::new(m, n, k)))?
                && let Some(us) = row.cold.or(row.warm).map(|t| t.us.median)
            {
                row.set("int8_tera_ops_per_s", 2.0 * (m * n * k) as f64 / us / 1e6);
            }
        }
        suite.report().notes.push("cases are M x N x K: tokens, outputs, inputs".into());
        Ok(())
    })
}
