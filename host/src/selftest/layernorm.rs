//! Runs of [`crate::ops::layernorm`].

use super::{Bed, Run, RunError, typed};
use crate::ops::layernorm::LayerNorm;
use crate::ops::{Backend, Float};

pub use crate::reference::layernorm::Case as Inputs;

typed!(Inputs);

impl Inputs {
    fn run_as<T: Float, B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Self { m, k, eps, .. } = self;
        let mut x = bed.floats::<T>(&self.x)?;
        let [delta, weight, bias] = [&self.delta, &self.weight, &self.bias]
            .map(|tensor| tensor.as_ref().map(|v| bed.floats::<T>(v)).transpose());
        let (delta, weight, bias) = (delta?, weight?, bias?);
        let mut y = bed.output(m * k)?;
        bed.backend().layernorm(LayerNorm {
            x: &mut x,
            delta: delta.as_ref(),
            weight: weight.as_ref(),
            bias: bias.as_ref(),
            y: &mut y,
            m,
            k,
            eps,
        })?;
        bed.keep_floats("x", &[m, k], &x)?;
        bed.keep_floats("y", &[m, k], &y)
    }
}
