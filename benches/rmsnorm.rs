//! [`contract::rmsnorm`] on a GPU, with the residual add in front, as a block does it.

use std::marker::PhantomData;
use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, floats, rows_of, run, type_name, upload};
use bitnet_gpu::ops::rmsnorm::RmsNorm;
use bitnet_gpu::ops::{Backend, Float, OpError};
use bitnet_gpu::reference::layernorm::MORE_BENCH_SHAPES;
use bitnet_gpu::reference::rmsnorm::BENCH_SHAPES;
use half::{bf16, f16};

struct Norm<T> {
    m: usize,
    k: usize,
    element: PhantomData<T>,
}

struct Tensors<B: Backend, T: Float> {
    x: B::Buf<T>,
    delta: B::Buf<T>,
    weight: B::Buf<T>,
    y: B::Buf<T>,
}

impl<T: Float> Case for Norm<T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        format!("{}x{} {}", self.m, self.k, type_name::<T>())
    }

    fn bytes(&self) -> u64 {
        // x is read and written, delta read, y written.
        (size_of::<T>() * (4 * self.m * self.k + self.k)) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        let len = self.m * self.k;
        Ok(Tensors {
            x: upload(backend, &floats::<T>(1, len, 3.0))?,
            delta: upload(backend, &floats::<T>(2, len, 1.0))?,
            weight: upload(backend, &floats::<T>(3, self.k, 2.0))?,
            y: blank(backend, len)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        let Tensors { x, delta, weight, y } = t;
        let (delta, m, k) = (Some(&*delta), self.m, self.k);
        backend.rmsnorm(RmsNorm { x, delta, weight, y, m, k, eps: 1e-5 })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        Ok([bits(backend, &t.x)?, bits(backend, &t.y)?].concat())
    }
}

fn main() -> ExitCode {
    run("rmsnorm", |suite| {
        for &(m, k) in BENCH_SHAPES {
            suite.measure(&Norm::<f32> { m, k, element: PhantomData })?;
            if m > 1000 {
                suite.measure(&Norm::<f16> { m, k, element: PhantomData })?;
                suite.measure(&Norm::<bf16> { m, k, element: PhantomData })?;
            }
        }
        for &(m, k) in MORE_BENCH_SHAPES {
            suite.measure(&Norm::<f32> { m, k, element: PhantomData })?;
            let m = rows_of::<bf16>(m);
            suite.measure(&Norm::<bf16> { m, k, element: PhantomData })?;
        }
        Ok(())
    })
}
