//! [`contract::elementwise`] on a GPU: a sum with relu (the end of a residual block), a product with one
//! row for all, and a scaled tensor.

use std::marker::PhantomData;
use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, floats, run, type_name, upload};
use bitnet_gpu::ops::elementwise::{Elementwise, Function, Operand};
use bitnet_gpu::ops::{Backend, Float, OpError};
use half::{bf16, f16};

use bitnet_gpu::reference::elementwise::BENCH_SHAPES;

#[derive(Clone, Copy)]
enum Form {
    AddRelu,
    MulRow,
    Affine,
}

struct Elements<T> {
    form: Form,
    m: usize,
    k: usize,
    element: PhantomData<T>,
}

struct Tensors<B: Backend, T: Float> {
    a: B::Buf<T>,
    b: B::Buf<T>,
    y: B::Buf<T>,
}

impl<T: Float> Elements<T> {
    fn b_len(&self) -> usize {
        match self.form {
            Form::AddRelu => self.m * self.k,
            Form::MulRow => self.k,
            Form::Affine => 0,
        }
    }
}

impl<T: Float> Case for Elements<T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        let form = match self.form {
            Form::AddRelu => "add_relu",
            Form::MulRow => "mul_row",
            Form::Affine => "affine",
        };
        format!("{form} {}x{} {}", self.m, self.k, type_name::<T>())
    }

    fn bytes(&self) -> u64 {
        (size_of::<T>() * (2 * self.m * self.k + self.b_len())) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        let len = self.m * self.k;
        Ok(Tensors {
            a: upload(backend, &floats(1, len, 8.0))?,
            b: upload(backend, &floats(2, self.b_len(), 8.0))?,
            y: blank(backend, len)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        let &Self { form, m, k, .. } = self;
        let Tensors { a, b, y } = t;
        let (function, relu) = match form {
            Form::AddRelu => (Function::Add(Operand::Rows(b)), true),
            Form::MulRow => (Function::Mul(Operand::Row(b)), false),
            Form::Affine => (Function::Affine { alpha: 0.5, beta: 1.0 }, false),
        };
        backend.elementwise(Elementwise { a, function, relu, y, m, k })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("elementwise", |suite| {
        for &(m, k) in BENCH_SHAPES {
            for form in [Form::AddRelu, Form::MulRow, Form::Affine] {
                suite.measure(&Elements::<f32> { form, m, k, element: PhantomData })?;
                suite.measure(&Elements::<f16> { form, m, k, element: PhantomData })?;
                suite.measure(&Elements::<bf16> { form, m, k, element: PhantomData })?;
            }
        }
        Ok(())
    })
}
