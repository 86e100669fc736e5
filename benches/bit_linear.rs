//! [`contract::bit_linear`] on a GPU: the layers of the 2B-4T model and of larger ones, one row.
//!
//! `--variants` times every compiled variant and marks the one that is chosen.

use std::process::ExitCode;
use std::rc::Rc;

use bitnet_benches::{Case, bits, run, upload};
use bitnet_gpu::ops::act_quant::Gate;
use bitnet_gpu::ops::bit_linear::{BitLinear, Finish, Norm};
use bitnet_gpu::ops::{Backend, OpError, PackedLinear};
use bitnet_gpu::reference::bit_linear::{self as reference, BENCH_SHAPES, Finish as Then};
use contract::bit_linear::VARIANTS;
use contract::w2a8::row_words;

struct Layer {
    case: reference::Case,
    words: Vec<u32>,
}

struct One {
    layer: Rc<Layer>,
    variant: Option<usize>,
}

struct Tensors<B: Backend> {
    w: PackedLinear<B>,
    x: B::Buf<f32>,
    norm: B::Buf<f32>,
    y: B::Buf<f32>,
}

impl Case for One {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let case = &self.layer.case;
        let then = match case.finish {
            Then::Store => "",
            Then::Add => " added",
            Then::Gated(_) => " gated",
        };
        format!("{}x{}{then}", case.product.n, case.product.k)
    }

    fn variant(&self) -> String {
        self.variant.map_or("chosen".into(), |v| VARIANTS[v].spec.symbol.to_owned())
    }

    fn bytes(&self) -> u64 {
        let case = &self.layer.case;
        let weights = 4 * case.product.n * row_words(case.product.k);
        (weights + 4 * (2 * case.product.k + case.y.len())) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let reference::Case { product, x, norm, y, .. } = &self.layer.case;
        let mut w = PackedLinear::alloc(backend, "bench", product.k, product.segments)?;
        w.write_rows(backend, 0, &self.layer.words)?;
        let norm = upload(backend, norm.as_deref().unwrap_or_default())?;
        Ok(Tensors { w, x: upload(backend, x)?, norm, y: upload(backend, y)? })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let case = &self.layer.case;
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
            variant: self.variant,
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
            let layer = Rc::new(Layer { words: case.product.words(), case });
            let one = |variant| One { layer: layer.clone(), variant };
            if !suite.options().wants(&one(None).name()) {
                continue;
            }
            let variants: Vec<_> = match suite.options().variants {
                true => (0..VARIANTS.len()).map(Some).map(one).collect(),
                false => vec![one(None)],
            };
            suite.measure_variants(&variants)?;
        }
        let note = "each with a norm in front; the bytes are the weights, the row, its gain and the output";
        suite.report().notes.push(note.into());
        Ok(())
    })
}
