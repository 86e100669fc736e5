//! [`contract::lm_head_int8`] on a GPU, with bf16 rows, from the residual stream to the token: the best token, the best 40, the best 256, and all, for
//! one input and for several.
//!
//! The table is bell-shaped noise, and every row is as likely to win.

use std::process::ExitCode;

use bitnet_benches::{Case, blank, run, uniform, upload};
use bitnet_gpu::ops::lm_head_int8::{HeadNorm, Int8Table, LmHeadInt8};
use bitnet_gpu::ops::sample::{STATE_WORDS, SampleState, param_words};
use bitnet_gpu::ops::{Backend, Dense, OpError, RowType};
use bitnet_gpu::reference::Inputs;
use bitnet_gpu::reference::lm_head_int8::BENCH_SHAPES;
use bitnet_gpu::reference::sample::GREEDY;
use contract::lm_head_int8::row_bytes;
use contract::sample::{ONE_WEIGHT, SampleParams};

struct Head<'a> {
    name: &'static str,
    params: SampleParams,
    m: usize,
    vocab: usize,
    k: usize,
    table: &'a [u8],
}

struct Tensors<B: Backend> {
    h: B::Buf<f32>,
    weight: B::Buf<f32>,
    x: B::Buf<f32>,
    w: Dense<B>,
    copy: Int8Table<B>,
    input: B::Buf<u32>,
    sampler: SampleState<B>,
    bounds: B::Buf<f32>,
    log: B::TokenLog,
}

impl Case for Head<'_> {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        match self.m {
            1 => format!("{}x{} {}", self.vocab, self.k, self.name),
            m => format!("{m} inputs, {}x{} {}", self.vocab, self.k, self.name),
        }
    }

    fn bytes(&self) -> u64 {
        // Without the rows that are computed; for all of them, the table itself.
        let row = if self.name == "all" { 2 * self.k } else { row_bytes(self.k) + 16 };
        (self.vocab * (row + 4 * self.m) + 4 * self.k * self.m) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let mut w = Dense::alloc(backend, "bench", RowType::Bf16, self.vocab, self.k)?;
        w.write_rows(backend, 0, self.table)?;
        let copy = Int8Table::new(backend, &w)?;
        let mut sampler = SampleState::alloc(backend, self.vocab, self.m)?;
        let each = |i| param_words(&SampleParams { seed: i as u64, ..self.params });
        let params: Vec<_> = (0..self.m).flat_map(each).collect();
        backend.write(&mut sampler.params, 0, &params)?;
        Ok(Tensors {
            h: upload(backend, &uniform(1, self.m * self.k, 3.0))?,
            weight: upload(backend, &vec![1.0; self.k])?,
            x: blank(backend, self.m * self.k)?,
            input: copy.input(backend, self.m)?,
            w,
            copy,
            sampler,
            bounds: blank(backend, self.m * self.vocab)?,
            log: backend.alloc_tokens(8 * self.m)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { h, weight, x, w, copy: table, input, sampler, bounds, log: out } = t;
        backend.lm_head_int8(LmHeadInt8 {
            norm: Some(HeadNorm { h, delta: None, weight, eps: 1e-5 }),
            x,
            x_at: 0,
            w,
            table,
            input,
            sampler,
            row: 0,
            bounds,
            every: false,
            out,
            m: self.m,
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        let mut state = vec![0; STATE_WORDS * self.m];
        backend.read(&t.sampler.state, 0, &mut state)?;
        Ok(state)
    }
}

/// `count` bf16 numbers, bell-shaped around 0: sums of four bytes.
fn bell(seed: u64, count: usize) -> Vec<u8> {
    let mut inputs = Inputs::new(seed);
    let mut bytes: Vec<u8> = (0..count.div_ceil(2))
        .flat_map(|_| {
            let random = inputs.bits().to_le_bytes();
            let value = |four: &[u8]| four.iter().map(|&b| i32::from(b)).sum::<i32>() - 510;
            let bits = |four| half::bf16::from_f32(value(four) as f32 / 4096.0).to_le_bytes();
            [bits(&random[..4]), bits(&random[4..])].concat()
        })
        .collect();
    bytes.truncate(2 * count);
    bytes
}

fn main() -> ExitCode {
    run("lm_head_int8", |suite| {
        for &(vocab, k) in BENCH_SHAPES {
            let table = bell(2, vocab * k);
            let drawn = SampleParams { temperature: 0.8, ..GREEDY };
            let cases = [
                ("greedy", GREEDY),
                ("top-k 40", SampleParams { top_k: 40, ..drawn }),
                ("top-k 256", SampleParams { top_k: 256, ..drawn }),
                ("all", drawn),
                ("min-p 0.05", SampleParams { min_weight: ONE_WEIGHT / 20, ..drawn }),
            ];
            for (m, cases) in [
                (1, &cases[..]),
                (8, &cases[..]),
                (16, &cases[..]),
                (32, &cases[..]),
                (33, &cases[..2]),
                (64, &cases[..]),
            ] {
                for &(name, params) in cases {
                    suite.measure(&Head { name, params, m, vocab, k, table: &table })?;
                }
            }
        }
        Ok(())
    })
}
