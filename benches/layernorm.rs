//! [`contract::layernorm`] on a GPU, with gain and offset.

use std::marker::PhantomData;
use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, floats, rows_of, run, type_name, upload};
use bitnet_gpu::ops::layernorm::LayerNorm;
use bitnet_gpu::ops::{Backend, Float, OpError};
use half::{bf16, f16};

use bitnet_gpu::reference::layernorm::{BENCH_SHAPES, MORE_BENCH_SHAPES};

struct Norm<T> {
    m: usize,
    k: usize,
    element: PhantomData<T>,
}

struct Tensors<B: Backend, T: Float> {
    x: B::Buf<T>,
    weight: B::Buf<T>,
    bias: B::Buf<T>,
    y: B::Buf<T>,
}

impl<T: Float> Case for Norm<T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        format!("{}x{} {}", self.m, self.k, type_name::<T>())
    }

    fn bytes(&self) -> u64 {
        (2 * size_of::<T>() * (self.m * self.k + self.k)) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        Ok(Tensors {
            x: upload(backend, &floats(1, self.m * self.k, 3.0))?,
            weight: upload(backend, &floats(2, self.k, 2.0))?,
            bias: upload(backend, &floats(3, self.k, 1.0))?,
            y: blank(backend, self.m * self.k)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        let Tensors { x, weight, bias, y } = t;
        let (weight, bias, m, k) = (Some(&*weight), Some(&*bias), self.m, self.k);
        backend.layernorm(LayerNorm { x, delta: None, weight, bias, y, m, k, eps: 1e-5 })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("layernorm", |suite| {
        for &(m, k) in BENCH_SHAPES {
            suite.measure(&Norm::<f32> { m, k, element: PhantomData })?;
            suite.measure(&Norm::<f16> { m, k, element: PhantomData })?;
            suite.measure(&Norm::<bf16> { m, k, element: PhantomData })?;
        }
        for &(m, k) in MORE_BENCH_SHAPES {
            suite.measure(&Norm::<f32> { m, k, element: PhantomData })?;
            let m = rows_of::<bf16>(m);
            suite.measure(&Norm::<bf16> { m, k, element: PhantomData })?;
        }
        Ok(())
    })
}
