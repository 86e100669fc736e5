//! [`contract::bmm`] on a GPU: large, small and thin products of f32, bf16 and i8, exact and on
//! tensor cores.
//!
//! `--peers` adds `torch.bmm` (cuBLAS; TF32 off) of the same type. `--variants` times every kernel
//! that takes the case: what the costs in [`contract::bmm::VARIANTS`] are made from. A product on
//! tensor cores is held against the contract's bound instead of bits.

use std::cell::OnceCell;
use std::process::ExitCode;
use std::rc::Rc;

use bitnet_benches::{Case, Suite, blank, run, same_bits, uniform, upload};
use bitnet_gpu::ops::bmm::{Bmm, Operand};
use bitnet_gpu::ops::{Backend, Float, Math, OpError};
use bitnet_gpu::reference::bmm::{BENCH_SHAPES, tolerance};
use contract::bmm::{Kind, VARIANTS, tensor_bound};

struct Product<T: Operand> {
    shape: (usize, usize, usize, usize),
    math: Math,
    variant: Option<usize>,
    /// An element from a number between -1 and 1, and back.
    from: fn(f32) -> T,
    number: fn(T) -> f64,
    /// The bits that an element of the result is compared by, and what they stand for.
    word: fn(T::Out) -> u32,
    value: fn(u32) -> f32,
    /// The factors, once made: every copy in the rotation has the same.
    made: Rc<OnceCell<[Vec<T>; 2]>>,
}

struct Tensors<B: Backend, T: Operand> {
    a: B::Buf<T>,
    b: B::Buf<T>,
    c: B::Buf<T::Out>,
}

impl<T: Operand> Product<T> {
    fn elements(&self) -> &[Vec<T>; 2] {
        let (batch, m, n, k) = self.shape;
        let values = |seed, len| uniform(seed, len, 1.0).into_iter().map(self.from).collect();
        self.made.get_or_init(|| [values(1, batch * m * k), values(2, batch * k * n)])
    }

    /// Euclidean lengths of the rows of A and of the columns of B: their product is at least the
    /// magnitude that the contract's bound is made from.
    fn lengths(&self) -> [Vec<f64>; 2] {
        let (_, _, n, k) = self.shape;
        let [a, b] = self.elements();
        let square = |v: &T| (self.number)(*v).powi(2);
        let rows = a.chunks_exact(k).map(|row| row.iter().map(square).sum::<f64>().sqrt());
        let mut columns = vec![0.0; b.len() / k];
        for (i, v) in b.iter().enumerate() {
            columns[i / (n * k) * n + i % n] += square(v);
        }
        [rows.collect(), columns.into_iter().map(f64::sqrt).collect()]
    }
}

impl<T: Operand> Case for Product<T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        let (batch, m, n, k) = self.shape;
        format!("{} {batch}x{m}x{n}x{k}", T::KIND.name())
    }

    fn variant(&self) -> String {
        match (self.variant, self.math) {
            (Some(index), _) => VARIANTS[index].spec.symbol.into(),
            (None, Math::TensorCore) => "tensor cores".into(),
            (None, _) => "exact".into(),
        }
    }

    fn bytes(&self) -> u64 {
        let (batch, m, n, k) = self.shape;
        let factors = size_of::<T>() * (m * k + k * n);
        (batch * (factors + size_of::<T::Out>() * m * n)) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        let (batch, m, n, _) = self.shape;
        let [a, b] = self.elements();
        let c = blank(backend, batch * m * n)?;
        Ok(Tensors { a: upload(backend, a)?, b: upload(backend, b)?, c })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        let (batch, m, n, k) = self.shape;
        let product = Bmm::new(&t.a, &t.b, &mut t.c, [m, n, k], batch);
        backend.bmm(Bmm { math: self.math, variant: self.variant, ..product })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        let (batch, m, n, _) = self.shape;
        let mut values = vec![T::Out::default(); batch * m * n];
        backend.read(&t.c, 0, &mut values)?;
        Ok(values.into_iter().map(self.word).collect())
    }

    fn compare(&self, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
        let (Math::TensorCore, Kind::Float(element)) = (self.math, T::KIND) else {
            return same_bits(&self.variant(), found, expected);
        };
        let (_, m, n, k) = self.shape;
        let [rows, columns] = self.lengths();
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let [f, e] = [found, expected].map(|&word| (self.value)(word));
            let magnitude = rows[i / n] * columns[i / (m * n) * n + i % n];
            let bound = tolerance(element, tensor_bound(element, k, 1.0, magnitude), e);
            anyhow::ensure!((f - e).abs() <= bound, "element {i} is {f}, {e} +- {bound} expected");
        }
        Ok(())
    }
}

impl<T: Operand> Clone for Product<T> {
    fn clone(&self) -> Self {
        Self { made: Rc::clone(&self.made), ..*self }
    }
}

/// One type at every shape: exact and on tensor cores, or every kernel that takes the case.
fn measure<T: Operand>(suite: &mut Suite, product: &Product<T>) -> anyhow::Result<()> {
    let every = suite.options().variants;
    for &shape in BENCH_SHAPES {
        let base = Product { shape, made: Rc::default(), ..product.clone() };
        let mut cases = vec![base.clone()];
        if T::KIND != Kind::I8 {
            cases.push(Product { math: Math::TensorCore, ..base.clone() });
        }
        for (index, variant) in VARIANTS.iter().enumerate().filter(|_| every) {
            let math = if variant.tensor { Math::TensorCore } else { Math::Exact };
            let case = Product { math, variant: Some(index), ..base.clone() };
            // One run says whether the device, the type and the alignment are its own.
            let mut tensors = case.tensors(suite.gpu())?;
            if case.run(suite.gpu(), &mut tensors).is_ok() {
                cases.push(case);
            }
        }
        suite.measure_variants(&cases)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let (shape, math, variant) = ((0, 0, 0, 0), Math::Exact, None);
    run("bmm", |suite| {
        measure(
            suite,
            &Product::<f32> {
                shape,
                math,
                variant,
                from: |v| v,
                number: f64::from,
                word: f32::to_bits,
                value: f32::from_bits,
                made: Rc::default(),
            },
        )?;
        measure(
            suite,
            &Product::<half::bf16> {
                shape,
                math,
                variant,
                from: Float::round,
                number: |v| f64::from(Float::widen(v)),
                word: |v| Float::widen(v).to_bits(),
                value: f32::from_bits,
                made: Rc::default(),
            },
        )?;
        measure(
            suite,
            &Product::<i8> {
                shape,
                math,
                variant,
                from: |v| (v * 127.0) as i8,
                number: f64::from,
                word: |v| v as u32,
                value: |word| word as i32 as f32,
                made: Rc::default(),
            },
        )
    })
}
