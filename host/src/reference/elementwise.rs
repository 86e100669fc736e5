//! Reference for [`contract::elementwise`].

use super::{Inputs, rounded};
use crate::ops::RowType;

/// `(m, k)`: around the edges of pieces and blocks.
pub const TEST_SHAPES: &[(usize, usize)] = super::activation::TEST_SHAPES;

/// `(m, k)`, 64 MiB and more in every type.
pub const BENCH_SHAPES: &[(usize, usize)] = super::activation::BENCH_SHAPES;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// `a + b`.
    Add,
    /// `a * b`.
    Mul,
    /// `alpha a + beta b`.
    Axpby(f32, f32),
    /// `alpha a + beta`.
    Affine(f32, f32),
}

/// The tensors of one function.
#[derive(Clone, Debug)]
pub struct Case {
    /// Element type; every number below is one of it.
    pub element: RowType,
    /// What is computed.
    pub form: Form,
    /// Rows.
    pub m: usize,
    /// Elements of a row.
    pub k: usize,
    /// First operand `[m, k]`.
    pub a: Vec<f32>,
    /// Second operand: `[m, k]`, or `[k]` for all rows. Not looked at in [`Form::Affine`].
    pub b: Vec<f32>,
    /// Whether a relu follows.
    pub relu: bool,
}

impl Case {
    /// A seeded case; `kind` chooses function, broadcast and relu.
    pub fn new(element: RowType, m: usize, k: usize, kind: usize, seed: u64) -> Self {
        let mut inputs = Inputs::new(seed);
        let mut tensor = |len: usize| -> Vec<f32> {
            inputs.floats(len, 5.0).into_iter().map(|v| rounded(element, v)).collect()
        };
        let form = match kind % 4 {
            0 => Form::Add,
            1 => Form::Mul,
            2 => Form::Axpby(0.3, -1.7),
            _ => Form::Affine(1.1, 0.25),
        };
        let (a, b) = (tensor(m * k), tensor(if kind & 4 == 0 { m * k } else { k }));
        Self { element, form, m, k, a, b, relu: kind & 8 != 0 }
    }
}

/// Every element.
pub fn elementwise(case: &Case) -> Vec<f32> {
    let element = |i: usize| {
        let (a, b) = (case.a[i], case.b[i % case.b.len()]);
        let y = match case.form {
            Form::Add => a + b,
            Form::Mul => a * b,
            Form::Axpby(alpha, beta) => alpha.mul_add(a, beta * b),
            Form::Affine(alpha, beta) => alpha.mul_add(a, beta),
        };
        let y = if case.relu && !y.is_nan() && y <= 0.0 { 0.0 } else { y };
        rounded(case.element, y)
    };
    (0..case.m * case.k).map(element).collect()
}
