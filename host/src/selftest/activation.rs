//! Runs of [`crate::ops::activation`].

use super::{Bed, Run, RunError, typed};
use crate::ops::activation::{Activation, Source};
use crate::ops::{Backend, Float};

pub use crate::reference::activation::Case as Inputs;

typed!(Inputs);

impl Inputs {
    fn run_as<T: Float, B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Self { kind, m, k, fused, .. } = self;
        let joined = if fused { self.gate_up() } else { Vec::new() };
        let x = &bed.floats::<T>(if fused { &joined } else { &self.x })?;
        let up = bed.floats::<T>(self.up.as_deref().unwrap_or_default())?;
        let source = match (fused, &self.up) {
            (true, _) => Source::Fused { gate_up: x },
            (false, Some(_)) => Source::Gated { gate: x, up: &up },
            (false, None) => Source::Plain { x },
        };
        let mut y = bed.output(m * k)?;
        bed.backend().activation(Activation { kind, source, y: &mut y, m, k })?;
        bed.keep_floats("y", &[m, k], &y)
    }
}
