//! [`contract::softmax`] on a GPU.

use std::marker::PhantomData;
use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, floats, rows_of, run, type_name, upload};
use bitnet_gpu::ops::softmax::{Mask, Softmax};
use bitnet_gpu::ops::{Backend, Float, OpError};
use half::{bf16, f16};

use bitnet_gpu::reference::softmax::{BENCH_SHAPES, ODD_BENCH_SHAPES};

struct Rows<T> {
    m: usize,
    k: usize,
    log: bool,
    element: PhantomData<T>,
}

struct Tensors<B: Backend, T: Float> {
    x: B::Buf<T>,
    y: B::Buf<T>,
}

impl<T: Float> Case for Rows<T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        let log = if self.log { "log " } else { "" };
        format!("{log}{}x{} {}", self.m, self.k, type_name::<T>())
    }

    fn bytes(&self) -> u64 {
        (2 * size_of::<T>() * self.m * self.k) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        let x = upload(backend, &floats(1, self.m * self.k, 8.0))?;
        Ok(Tensors { x, y: blank(backend, self.m * self.k)? })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        let &Self { m, k, log, .. } = self;
        let (x, y) = (&t.x, &mut t.y);
        backend.softmax(Softmax { x, mask: Mask::None, y, m, k, scale: 1.0, log })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("softmax", |suite| {
        for &(m, k) in BENCH_SHAPES {
            // The CPU's rows, which are compared, take most of the time.
            suite.measure(&Rows::<f32> { m, k, log: false, element: PhantomData })?;
            for log in [false, true] {
                suite.measure(&Rows::<bf16> { m, k, log, element: PhantomData })?;
            }
            if k == 4096 {
                suite.measure(&Rows::<f32> { m, k, log: true, element: PhantomData })?;
                suite.measure(&Rows::<f16> { m, k, log: false, element: PhantomData })?;
            }
        }
        for &(m, k) in ODD_BENCH_SHAPES {
            suite.measure(&Rows::<f32> { m, k, log: false, element: PhantomData })?;
            let m = rows_of::<bf16>(m);
            suite.measure(&Rows::<bf16> { m, k, log: false, element: PhantomData })?;
        }
        Ok(())
    })
}
