//! [`contract::lm_head`] on a GPU, with bf16 rows.

use std::process::ExitCode;

use bitnet_benches::{Case, bf16_bytes, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::lm_head::LmHead;
use bitnet_gpu::ops::{Backend, Dense, OpError, RowType};
use bitnet_gpu::reference::lm_head::BENCH_SHAPES;

/// `(vocab, k, cold)` in microseconds of torch's bf16 GEMV (cuBLAS) on one H200, PyTorch 2.11 for
/// CUDA 13.0, in another session.
const TORCH_BF16_US: &[(usize, usize, f64)] = &[(128_256, 2560, 157.5)];

struct Head {
    m: usize,
    vocab: usize,
    k: usize,
    table: Vec<u8>,
}

struct Tensors<B: Backend> {
    x: B::Buf<f32>,
    w: Dense<B>,
    logits: B::Buf<f32>,
}

impl Case for Head {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        format!("{}x{}x{}", self.m, self.vocab, self.k)
    }

    fn bytes(&self) -> u64 {
        (2 * self.vocab * self.k + 4 * self.m * (self.k + self.vocab)) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let mut w = Dense::alloc(backend, "bench", RowType::Bf16, self.vocab, self.k)?;
        w.write_rows(backend, 0, &self.table)?;
        Ok(Tensors {
            x: upload(backend, &uniform(1, self.m * self.k, 3.0))?,
            w,
            logits: blank(backend, self.m * self.vocab)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { x, w, logits } = t;
        backend.lm_head(LmHead { x, x_at: 0, w, logits, m: self.m })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.logits)
    }
}

fn main() -> ExitCode {
    run("lm_head", |suite| {
        for &(m, vocab, k) in BENCH_SHAPES {
            let table = bf16_bytes(2, vocab * k);
            let torch = TORCH_BF16_US.iter().find(|c| (c.0, c.1) == (vocab, k) && m == 1);
            if let Some(row) = suite.measure(&Head { m, vocab, k, table })?
                && let (Some(&(.., us)), Some(ours)) = (torch, row.cold)
            {
                row.set("torch_bf16_other_session_us", us);
                row.set("torch_bf16_other_session_ratio", us / ours.us.median);
            }
        }
        Ok(())
    })
}
