//! [`contract::rope`] on a GPU.

use std::process::ExitCode;

use bitnet_benches::{Case, bits, run, uniform, upload};
use bitnet_gpu::ops::rope::{Rope, RopeTable};
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::reference::rope::BENCH_SHAPES;

struct Rotate {
    m: usize,
    heads: usize,
    head_dim: usize,
    start: usize,
}

struct Tensors<B: Backend> {
    x: B::Buf<f32>,
    table: RopeTable<B>,
    start: B::Buf<u32>,
}

impl Case for Rotate {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Self { m, heads, head_dim, start } = self;
        format!("{m}x{heads}x{head_dim} from {start}")
    }

    fn bytes(&self) -> u64 {
        // Read and written in place; a cosine and a sine for each pair of a row.
        (8 * self.m * self.heads * self.head_dim + 4 * self.m * self.head_dim) as u64
    }

    /// The rows always come from the product before.
    fn rotates(&self) -> bool {
        false
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        Ok(Tensors {
            x: upload(backend, &uniform(1, self.m * self.heads * self.head_dim, 3.0))?,
            table: RopeTable::new(backend, self.start + self.m, self.head_dim, 500_000.0)?,
            start: upload(backend, &[self.start as u32])?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { x, table, start } = t;
        let (m, heads, row_stride) = (self.m, self.heads, self.heads * self.head_dim);
        backend.rope(Rope { x, table, start, start_at: 0, m, heads, row_stride })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.x)
    }
}

fn main() -> ExitCode {
    run("rope", |suite| {
        for &(m, heads, head_dim, start) in BENCH_SHAPES {
            suite.measure(&Rotate { m, heads, head_dim, start })?;
        }
        Ok(())
    })
}
