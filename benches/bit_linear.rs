//! [`contract::bit_linear`] on a GPU: the layers of the 2B-4T model and of larger ones, one row.

use std::process::ExitCode;

use bitnet_benches::{Case, bits, run, upload};
use bitnet_gpu::ops::act_quant::Gate;
use bitnet_gpu::ops::bit_linear::{BitLinear, Finish, Norm};
use bitnet_gpu::ops::{Backend, OpError, PackedLinear};
use bitnet_gpu::reference::bit_linear::{self as reference, BENCH_SHAPES, Finish as Then};
use contract::w2a8::row_words;

struct Layer {
    case: reference::Case,
    words: Vec<u32>,
}

struct Tensors<B: Backend> {
    w: PackedLinear<B>,
    x: B::Buf<f32>,
    norm: B::Buf<f32>,
    y: B::Buf<f32>,
}

impl Case for Layer {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let case = &self.case;
        let then = match case.finish {
            Then::Store => "",
            Then::Add => " added",
            Then::Gated(_) => " gated",
        };
        format!("{}x{}{then}", case.product.n, case.product.k)
    }

    fn bytes(&self) -> u64 {
        let case = &self.case;
        let weights = 4 * case.product.n * row_words(case.product.k);
        (weights + 4 * (2 * case.product.k + case.y.len())) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let reference::Case { product, x, norm, y, .. } = &self.case;
        let mut w = PackedLinear::alloc(backend, "bench", product.k, product.segments)?;
        w.write_rows(backend, 0, &self.words)?;
        let norm = upload(backend, norm.as_deref().unwrap_or_default())?;
        Ok(Tensors { w, x: upload(backend, x)?, norm, y: upload(backend, y)? })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let case = &self.case;
        let y = &mut t.y;
        backend.bit_linear(BitLinear {
            x: &t.x,
            norm: Some(Norm { weight: &t.norm, eps: case.eps }),
            w: &t.w,
            finish: match case.finish {
                Then::Store => Finish::Store { y },
                Then::Add => Finish::Add { y },
                Then::Gated(gate) => Finish::Gated { gate, y },
            },
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("bit_linear", |suite| {
        for &(n, k, gated, added) in BENCH_SHAPES {
            let then = match (gated, added) {
                (true, _) => Then::Gated(Gate::Relu2),
                (_, true) => Then::Add,
                _ => Then::Store,
            };
            let case = reference::Case::new(n, k, true, then, 1);
            suite.measure(&Layer { words: case.product.words(), case })?;
        }
        let note = "each with a norm in front; the bytes are the weights, the row, its gain and the output";
        suite.report().notes.push(note.into());
        Ok(())
    })
}
