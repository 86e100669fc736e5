//! Runs of [`crate::ops::elementwise`].

use super::{Bed, Run, RunError, typed};
use crate::ops::elementwise::{Elementwise, Function, Operand};
use crate::ops::{Backend, Float};
use crate::reference::elementwise::Form;

pub use crate::reference::elementwise::Case as Inputs;

typed!(Inputs);

impl Inputs {
    fn run_as<T: Float, B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Self { form, m, k, relu, .. } = self;
        let (a, b) = (&bed.floats::<T>(&self.a)?, &bed.floats::<T>(&self.b)?);
        let b = if self.b.len() < m * k { Operand::Row(b) } else { Operand::Rows(b) };
        let function = match form {
            Form::Add => Function::Add(b),
            Form::Mul => Function::Mul(b),
            Form::Axpby(alpha, beta) => Function::Axpby { alpha, beta, b },
            Form::Affine(alpha, beta) => Function::Affine { alpha, beta },
        };
        let mut y = bed.output(m * k)?;
        bed.backend().elementwise(Elementwise { a, function, relu, y: &mut y, m, k })?;
        bed.keep_floats("y", &[m, k], &y)
    }
}
