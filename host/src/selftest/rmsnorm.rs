//! Runs of [`crate::ops::rmsnorm`].

use super::{Bed, Run, RunError, typed};
use crate::ops::rmsnorm::RmsNorm;
use crate::ops::{Backend, Float};

pub use crate::reference::rmsnorm::Case as Inputs;

typed!(Inputs);

impl Inputs {
    fn run_as<T: Float, B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Self { m, k, eps, .. } = self;
        let mut x = bed.floats::<T>(&self.x)?;
        let delta = self.delta.as_ref().map(|v| bed.floats::<T>(v)).transpose()?;
        let weight = bed.floats::<T>(&self.weight)?;
        let mut y = bed.output(m * k)?;
        bed.backend().rmsnorm(RmsNorm {
            x: &mut x,
            delta: delta.as_ref(),
            weight: &weight,
            y: &mut y,
            m,
            k,
            eps,
        })?;
        bed.keep_floats("x", &[m, k], &x)?;
        bed.keep_floats("y", &[m, k], &y)
    }
}
