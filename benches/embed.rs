//! [`contract::embed`] on a GPU, from a bf16 table of the full vocabulary.

use std::process::ExitCode;

use bitnet_benches::{Case, bf16_bytes, bits, blank, run, upload};
use bitnet_gpu::ops::embed::Embed;
use bitnet_gpu::ops::{Backend, Dense, OpError, RowType};
use bitnet_gpu::reference::Inputs;
use bitnet_gpu::reference::embed::BENCH_SHAPES;

struct Lookup {
    m: usize,
    vocab: usize,
    width: usize,
    table: Vec<u8>,
}

struct Tensors<B: Backend> {
    ids: B::Buf<u32>,
    table: Dense<B>,
    out: B::Buf<f32>,
}

impl Case for Lookup {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        format!("{} of {}x{}", self.m, self.vocab, self.width)
    }

    fn bytes(&self) -> u64 {
        (self.m * (4 + (2 + 4) * self.width)) as u64
    }

    /// A call touches a few rows of the table.
    fn rotates(&self) -> bool {
        false
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let mut table = Dense::alloc(backend, "bench", RowType::Bf16, self.vocab, self.width)?;
        table.write_rows(backend, 0, &self.table)?;
        let mut inputs = Inputs::new(1);
        let ids: Vec<_> = (0..self.m).map(|_| inputs.below(self.vocab) as u32).collect();
        let (ids, out) = (upload(backend, &ids)?, blank(backend, self.m * self.width)?);
        Ok(Tensors { ids, table, out })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { ids, table, out } = t;
        backend.embed(Embed { ids, ids_at: 0, ids_stride: 1, table, out, first: 0, m: self.m })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.out)
    }
}

fn main() -> ExitCode {
    run("embed", |suite| {
        for &(m, vocab, width) in BENCH_SHAPES {
            let table = bf16_bytes(2, vocab * width);
            suite.measure(&Lookup { m, vocab, width, table })?;
        }
        Ok(())
    })
}
