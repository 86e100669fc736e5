//! Runs of [`crate::ops::softmax`].

use super::{Bed, Run, RunError, typed};
use crate::ops::softmax::{Mask, Softmax};
use crate::ops::{Backend, Float};
use crate::reference::softmax::Mask as Values;

pub use crate::reference::softmax::Case as Inputs;

typed!(Inputs);

impl Inputs {
    fn run_as<T: Float, B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Self { m, k, scale, log, .. } = self;
        let x = &bed.floats::<T>(&self.x)?;
        let added = match &self.mask {
            Values::Added(mask) => Some((bed.floats::<T>(mask)?, mask.len() / k)),
            _ => None,
        };
        let mask = match (&self.mask, &added) {
            (_, Some((mask, rows))) => Mask::Added { mask, rows: *rows },
            (&Values::Causal(queries), None) => Mask::Causal { queries },
            _ => Mask::None,
        };
        let mut y = bed.output(m * k)?;
        bed.backend().softmax(Softmax { x, mask, y: &mut y, m, k, scale, log })?;
        bed.keep_floats("y", &[m, k], &y)
    }
}
