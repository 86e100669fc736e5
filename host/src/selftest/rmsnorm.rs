//! Runs of [`crate::ops::rmsnorm`].

use super::{Bed, Run, RunError};
use crate::ops::Backend;
use crate::ops::rmsnorm::RmsNorm;

pub use crate::reference::rmsnorm::Case as Inputs;

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Self { m, k, eps, .. } = self;
        let mut x = bed.input(&self.x)?;
        let delta = self.delta.as_ref().map(|v| bed.input(v)).transpose()?;
        let weight = bed.input(&self.weight)?;
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
        bed.keep("x", &[m, k], &x)?;
        bed.keep("y", &[m, k], &y)
    }
}
