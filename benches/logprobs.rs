//! [`contract::logprobs`] on a GPU: over the full vocabulary, behind the sampler of a step.

use std::process::ExitCode;

use bitnet_benches::{Case, run, upload};
use bitnet_gpu::ops::logprobs::{LogprobScratch, Logprobs};
use bitnet_gpu::ops::{Backend, OpError, RowWords, TokenLog};
use bitnet_gpu::reference::logprobs::BENCH_SHAPES;
use bitnet_gpu::reference::sample::logits;
use contract::logprobs::ENTRY_WORDS;

struct Tell {
    vocab: usize,
    rows: usize,
    top: u32,
}

struct Tensors<B: Backend> {
    logits: B::Buf<f32>,
    ids: B::Buf<u32>,
    /// The number of each token, and what is wanted.
    words: B::Buf<u32>,
    last: B::Buf<u32>,
    out: B::TokenLog,
    scratch: LogprobScratch<B>,
}

impl Case for Tell {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        format!("{} rows={} top={}", self.vocab, self.rows, self.top)
    }

    fn bytes(&self) -> u64 {
        (self.rows * self.vocab * 4) as u64
    }

    /// The logits always come from the head before.
    fn rotates(&self) -> bool {
        false
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let of_rows = (0..self.rows).flat_map(|row| logits(self.vocab, row as u64));
        let ids: Vec<u32> = (0..self.rows as u32).map(|row| 17 * row).collect();
        Ok(Tensors {
            logits: upload(backend, &of_rows.collect::<Vec<_>>())?,
            ids: upload(backend, &ids)?,
            words: upload(backend, &[1, 1 + self.top])?,
            last: upload(backend, &vec![0u32; self.rows])?,
            out: backend.alloc_tokens(self.rows * ENTRY_WORDS)?,
            scratch: LogprobScratch::alloc(backend, self.vocab, self.rows)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { logits, ids, words, last, out, scratch } = t;
        let word = |at| RowWords::<B> { words, at, stride: 0 };
        // A token is told once.
        backend.fill(last, 0)?;
        backend.logprobs(Logprobs {
            logits,
            vocab: self.vocab,
            ids: RowWords { words: ids, at: 0, stride: 1 },
            steps: word(0),
            wanted: word(1),
            last,
            out,
            scratch,
            first: 0,
            rows: self.rows,
            ring: 1,
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        backend.synchronize()?;
        Ok((0..t.out.len()).map(|i| t.out.get(i)).collect())
    }
}

fn main() -> ExitCode {
    run("logprobs", |suite| {
        for &vocab in BENCH_SHAPES {
            for (rows, top) in [(1, 0), (1, 5), (1, 20), (8, 5), (64, 0), (64, 5), (64, 20)] {
                suite.measure(&Tell { vocab, rows, top })?;
            }
        }
        Ok(())
    })
}
