//! [`contract::activation`] on a GPU: every function alone, and as the gate of fused projections.

use std::marker::PhantomData;
use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, floats, run, type_name, upload};
use bitnet_gpu::ops::activation::{Activation, Kind, Source};
use bitnet_gpu::ops::{Backend, Float, OpError};
use half::{bf16, f16};

use bitnet_gpu::reference::activation::BENCH_SHAPES;

struct Elements<T> {
    kind: Kind,
    m: usize,
    k: usize,
    fused: bool,
    element: PhantomData<T>,
}

struct Tensors<B: Backend, T: Float> {
    x: B::Buf<T>,
    y: B::Buf<T>,
}

impl<T: Float> Case for Elements<T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        let gate = if self.fused { "_gate" } else { "" };
        format!("{}{gate} {}x{} {}", self.kind.name(), self.m, self.k, type_name::<T>())
    }

    fn bytes(&self) -> u64 {
        let tensors = if self.fused { 3 } else { 2 };
        (tensors * size_of::<T>() * self.m * self.k) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        let len = self.m * self.k;
        let x = upload(backend, &floats(1, if self.fused { 2 * len } else { len }, 8.0))?;
        Ok(Tensors { x, y: blank(backend, len)? })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        let &Self { kind, m, k, fused, .. } = self;
        let Tensors { x, y } = t;
        let source = if fused { Source::Fused { gate_up: x } } else { Source::Plain { x } };
        backend.activation(Activation { kind, source, y, m, k })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("activation", |suite| {
        for &(m, k) in BENCH_SHAPES {
            for kind in Kind::ALL {
                for fused in [false, true] {
                    suite.measure(&Elements::<f32> { kind, m, k, fused, element: PhantomData })?;
                    suite.measure(&Elements::<f16> { kind, m, k, fused, element: PhantomData })?;
                    suite.measure(&Elements::<bf16> { kind, m, k, fused, element: PhantomData })?;
                }
            }
        }
        Ok(())
    })
}
