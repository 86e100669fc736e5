//! [`contract::image_quant`] on a GPU: images of ResNet-50.

use std::marker::PhantomData;
use std::process::ExitCode;

use bitnet_benches::{Case, blank, floats, run, type_name, upload};
use bitnet_gpu::ops::image_quant::ImageQuant;
use bitnet_gpu::ops::{Backend, Float, OpError};
use bitnet_gpu::reference::image_quant::BENCH_SHAPES;
use half::bf16;

struct Images<T> {
    n: usize,
    len: usize,
    element: PhantomData<T>,
}

struct Tensors<B: Backend, T: Float> {
    x: B::Buf<T>,
    q: B::Buf<i8>,
    scales: B::Buf<f32>,
}

impl<T: Float> Case for Images<T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        format!("{}x{} {}", self.n, self.len, type_name::<T>())
    }

    fn bytes(&self) -> u64 {
        // Read twice, written once.
        ((2 * size_of::<T>() + 1) * self.n * self.len) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        let all = self.n * self.len;
        Ok(Tensors {
            x: upload(backend, &floats(1, all, 8.0))?,
            q: blank(backend, all)?,
            scales: blank(backend, self.n)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        let Tensors { x, q, scales } = t;
        backend.image_quant(ImageQuant { x, q, scales, n: self.n, len: self.len })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        let mut q = vec![0i8; self.n * self.len];
        backend.read(&t.q, 0, &mut q)?;
        Ok(q.into_iter().map(|q| i32::from(q) as u32).collect())
    }
}

fn main() -> ExitCode {
    run("image_quant", |suite| {
        for &(n, len) in BENCH_SHAPES {
            suite.measure(&Images::<f32> { n, len, element: PhantomData })?;
            suite.measure(&Images::<bf16> { n, len, element: PhantomData })?;
        }
        Ok(())
    })
}
