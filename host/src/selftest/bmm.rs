//! Runs of [`crate::ops::bmm`].

use contract::bmm::{Memory, QUICK_DEPTH};

use super::{Bed, Output, Run, RunError};
use crate::ops::bmm::{Bmm, Layout, Operand};
use crate::ops::{Backend, Float, Math, RowType};
use crate::reference;

/// The factors and the former contents of `C`.
#[derive(Clone, Debug)]
pub enum Elements {
    /// f32.
    F32([Vec<f32>; 3]),
    /// f16.
    F16([Vec<half::f16>; 3]),
    /// bf16.
    Bf16([Vec<half::bf16>; 3]),
    /// i8, and i32.
    I8([Vec<i8>; 2], Vec<i32>),
}

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// `A`, `B`, `C`.
    pub elements: Elements,
    /// How they lie.
    pub layouts: [Layout; 3],
    /// `m`, `n`, `k`.
    pub shape: [usize; 3],
    /// Matrices.
    pub batch: usize,
    /// `alpha` and `beta`; rounded to whole numbers for integers.
    pub factors: [f32; 2],
    /// How floats are summed.
    pub math: Math,
    /// See [`Bmm::variant`].
    pub variant: Option<usize>,
}

/// Batch, `m`, `n` and `k` of the runs of a variant, and whether rows of `B` and columns of `A` are transposed.
pub(super) fn sizes(variant: &contract::bmm::Variant) -> [(usize, usize, usize, usize, bool); 3] {
    let few = if variant.is_thin() { 11 } else { 48 };
    let (side, most) = (variant.most_side() as usize, variant.most_k as usize);
    if most > 0 {
        let deep = most.min(48);
        // Rows of `C` in pieces where it asks for them.
        let wide = side - if variant.c_unit < 16 { 1 } else { 4 };
        [(2, side, side, 16, false), (1, side - 12, wide, deep, true), (5, 16, 16, most, false)]
    } else {
        let deep = if variant.memory == Memory::Quick { QUICK_DEPTH as usize } else { 1040 };
        [(2, 32, few, 16, false), (1, few, 80, 48, true), (1, 16, 16, deep, false)]
    }
}

impl Inputs {
    /// Random elements of `kind`, a reach of about one; `C` holds something everywhere.
    pub fn random(
        kind: contract::bmm::Kind,
        layouts: [Layout; 3],
        shape: [usize; 3],
        batch: usize,
        seeded: &mut reference::Inputs,
    ) -> Self {
        use contract::bmm::Kind;
        let [m, n, k] = shape;
        let sides = [[m, k], [k, n], [m, n]];
        let len = |i: usize| layouts[i].span(batch, sides[i][0], sides[i][1]);
        let mut floats = |i: usize| seeded.floats(len(i), [1.0, 1.0, 4.0][i]);
        let elements = match kind {
            Kind::Float(RowType::F32) => Elements::F32([floats(0), floats(1), floats(2)]),
            Kind::Float(RowType::F16) => {
                Elements::F16([0, 1, 2].map(|i| floats(i).into_iter().map(Float::round).collect()))
            }
            Kind::Float(RowType::Bf16) => {
                Elements::Bf16([0, 1, 2].map(|i| floats(i).into_iter().map(Float::round).collect()))
            }
            Kind::I8 => {
                let c = floats(2).into_iter().map(|v| (v * 1000.0) as i32).collect();
                Elements::I8([seeded.int8s(len(0)), seeded.int8s(len(1))], c)
            }
        };
        let (factors, math) = ([1.0, 0.0], Math::Exact);
        Self { elements, layouts, shape, batch, factors, math, variant: None }
    }

    /// What an exact run gives, by the reference.
    pub fn expected(&self) -> Output {
        let whole = |v: f32| v as i32;
        match &self.elements {
            Elements::F32([a, b, c]) => self.floats(&self.oracle(a, b, c, |v| v)),
            Elements::F16([a, b, c]) => self.floats(&self.oracle(a, b, c, |v| v)),
            Elements::Bf16([a, b, c]) => self.floats(&self.oracle(a, b, c, |v| v)),
            Elements::I8([a, b], c) => {
                let out = self.oracle(a, b, c, whole);
                Output::words("c", &[out.len()], out.into_iter().map(|v| v as u32).collect())
            }
        }
    }

    fn oracle<T: Operand>(
        &self,
        a: &[T],
        b: &[T],
        c: &[T::Out],
        factor: impl Fn(f32) -> T::Sum,
    ) -> Vec<T::Out> {
        let ([m, n, _], [alpha, beta]) = (self.shape, self.factors.map(factor));
        let [a_layout, b_layout, layout] = self.layouts;
        let sums = reference::bmm::sums((a, a_layout), (b, b_layout), self.shape, self.batch);
        let mut out = c.to_vec();
        for (i, sum) in sums.into_iter().enumerate() {
            let (index, row, column) = (i / (m * n), i / n % m, i % n);
            let c = &mut out[layout.index(index, row, column)];
            *c = T::finish(alpha, sum, beta, *c);
        }
        out
    }

    /// All of `C`, with the bound that its math promises.
    fn floats<T: Float>(&self, c: &[T]) -> Output {
        let values: Vec<f32> = c.iter().map(|v| v.widen()).collect();
        let output = Output::floats("c", &[c.len()], &values);
        if self.math == Math::Exact {
            return output;
        }
        // Elements between the rows of C are not results: they must not move at all.
        let mut within = vec![0.0; c.len()];
        let results = self.results(&values);
        let (a, b) = self.widened();
        let [a_layout, b_layout, layout] = self.layouts;
        let (a, b) = ((&a[..], a_layout), (&b[..], b_layout));
        let alpha = self.factors[0];
        let bounds = reference::bmm::bounds(T::TYPE, a, b, self.shape, self.batch, alpha, &results);
        let [m, n, _] = self.shape;
        for (i, bound) in bounds.into_iter().enumerate() {
            within[layout.index(i / (m * n), i / n % m, i % n)] = bound;
        }
        output.within(within)
    }

    fn results(&self, c: &[f32]) -> Vec<f32> {
        let ([m, n, _], layout) = (self.shape, self.layouts[2]);
        let at = |i: usize| layout.index(i / (m * n), i / n % m, i % n);
        (0..self.batch * m * n).map(|i| c[at(i)]).collect()
    }

    fn widened(&self) -> (Vec<f32>, Vec<f32>) {
        fn wide<T: Float>(v: &[T]) -> Vec<f32> {
            v.iter().map(|v| v.widen()).collect()
        }
        match &self.elements {
            Elements::F32([a, b, _]) => (a.clone(), b.clone()),
            Elements::F16([a, b, _]) => (wide(a), wide(b)),
            Elements::Bf16([a, b, _]) => (wide(a), wide(b)),
            Elements::I8(..) => (Vec::new(), Vec::new()),
        }
    }

    fn product<B: Backend, T: Operand>(
        &self,
        bed: &Bed<'_, B>,
        a: &[T],
        b: &[T],
        c: &[T::Out],
        factors: [T::Sum; 2],
    ) -> Result<Vec<T::Out>, RunError> {
        let (a, b, mut out) = (bed.input(a)?, bed.input(b)?, bed.input(c)?);
        let [a_layout, b_layout, c_layout] = self.layouts;
        let ([m, n, k], [alpha, beta]) = (self.shape, factors);
        let op = Bmm {
            a: &a,
            a_layout,
            b: &b,
            b_layout,
            c: &mut out,
            c_layout,
            m,
            n,
            k,
            batch: self.batch,
            alpha,
            beta,
            math: self.math,
            variant: self.variant,
        };
        bed.backend().bmm(op)?;
        bed.read("c", &out)
    }
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let factors = self.factors;
        let output = match &self.elements {
            Elements::F32([a, b, c]) => self.floats(&self.product(bed, a, b, c, factors)?),
            Elements::F16([a, b, c]) => self.floats(&self.product(bed, a, b, c, factors)?),
            Elements::Bf16([a, b, c]) => self.floats(&self.product(bed, a, b, c, factors)?),
            Elements::I8([a, b], c) => {
                let out = self.product(bed, a, b, c, factors.map(|v| v as i32))?;
                Output::words("c", &[out.len()], out.into_iter().map(|v| v as u32).collect())
            }
        };
        bed.push(output);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_for_small_matrices_gets_no_larger_ones() {
        for variant in contract::bmm::VARIANTS.iter().filter(|variant| variant.most_k > 0) {
            for (_, m, n, k, _) in sizes(variant) {
                let most = variant.most_side() as usize;
                let what = format!("{} m={m} n={n} k={k}", variant.spec.symbol);
                assert!(m.max(n) <= most && k <= variant.most_k as usize, "{what}");
            }
        }
    }
}
