//! [`contract::sample`] on a GPU: both kernels of a step, and what texts may pick next, over the full vocabulary.

use std::process::ExitCode;

use bitnet_benches::{Case, run, upload};
use bitnet_gpu::ops::sample::{Allow, STATE_WORDS, Sample, SampleState, mask_words, param_words};
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::reference::sample::{BENCH_SHAPES, GREEDY, logits};
use contract::sample::SampleParams;

struct Pick {
    vocab: usize,
    name: &'static str,
    params: SampleParams,
}

struct Tensors<B: Backend> {
    logits: B::Buf<f32>,
    sampler: SampleState<B>,
    out: B::TokenLog,
}

impl Case for Pick {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        format!("{} {}", self.vocab, self.name)
    }

    fn bytes(&self) -> u64 {
        // Logits and marks are read, the adjusted logits written and read once; further passes of
        // the filters are the kernel's own affair.
        (self.vocab * (4 + 1 + 4 + 4)) as u64
    }

    /// The logits always come from the head before.
    fn rotates(&self) -> bool {
        false
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let mut sampler = SampleState::alloc(backend, self.vocab, 1)?;
        backend.write(&mut sampler.params, 0, &param_words(&self.params))?;
        let (logits, out) = (upload(backend, &logits(self.vocab, 1))?, backend.alloc_tokens(8)?);
        Ok(Tensors { logits, sampler, out })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { logits, sampler, out } = t;
        backend.sample(Sample {
            logits,
            logits_at: 0,
            vocab: self.vocab,
            sampler,
            row: 0,
            rows: 1,
            out,
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        let mut state = [0; STATE_WORDS];
        backend.read(&t.sampler.state, 0, &mut state)?;
        let mut marks = vec![0u8; self.vocab];
        backend.read(&t.sampler.marks, 0, &mut marks)?;
        Ok(state.into_iter().chain(marks.into_iter().map(u32::from)).collect())
    }
}

/// What so many texts may pick next.
struct Masks {
    vocab: usize,
    rows: usize,
}

struct MaskTensors<B: Backend> {
    sampler: SampleState<B>,
    rows: B::Buf<u32>,
    allowed: B::Buf<u32>,
}

impl Case for Masks {
    type Tensors<B: Backend> = MaskTensors<B>;

    fn name(&self) -> String {
        format!("{} masks of {}", self.rows, self.vocab)
    }

    fn bytes(&self) -> u64 {
        (self.rows * (2 * self.vocab + 4 * mask_words(self.vocab))) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<MaskTensors<B>, OpError> {
        let words = self.rows * mask_words(self.vocab);
        let allowed: Vec<u32> = (0..words as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        Ok(MaskTensors {
            sampler: SampleState::alloc(backend, self.vocab, self.rows)?,
            rows: upload(backend, &(0..self.rows as u32).rev().collect::<Vec<_>>())?,
            allowed: upload(backend, &allowed)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut MaskTensors<B>) -> Result<(), OpError> {
        let MaskTensors { sampler, rows, allowed } = t;
        backend.allow(Allow { sampler, rows, allowed, vocab: self.vocab, masks: self.rows })
    }

    fn output<B: Backend>(&self, backend: &B, t: &MaskTensors<B>) -> Result<Vec<u32>, OpError> {
        let mut marks = vec![0u8; self.rows * self.vocab];
        backend.read(&t.sampler.marks, 0, &mut marks)?;
        Ok(marks.into_iter().map(u32::from).collect())
    }
}

fn main() -> ExitCode {
    let warm = SampleParams { temperature: 0.8, seed: 1, ..GREEDY };
    let settings = [
        ("greedy", GREEDY),
        ("temperature", warm),
        ("top-k 40", SampleParams { top_k: 40, ..warm }),
        ("top-k 40, top-p 0.95", SampleParams { top_k: 40, top_p_q32: 0xf333_3333, ..warm }),
        ("repetition penalty", SampleParams { repetition_penalty: 1.1, ..GREEDY }),
    ];
    run("sample", |suite| {
        for &vocab in BENCH_SHAPES {
            for (name, params) in settings {
                suite.measure(&Pick { vocab, name, params })?;
            }
            for rows in [1, 8, 64] {
                suite.measure(&Masks { vocab, rows })?;
            }
        }
        Ok(())
    })
}
