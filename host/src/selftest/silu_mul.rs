//! Runs of [`crate::ops::silu_mul`].

use super::{Bed, Run, RunError};
use crate::ops::Backend;
use crate::ops::silu_mul::SiluMul;

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Rows.
    pub m: usize,
    /// Elements of an output row.
    pub k: usize,
    /// Rows `[m, 2 k]`: gate, then up.
    pub gate_up: Vec<f32>,
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (m, k) = (self.m, self.k);
        let gate_up = bed.input(&self.gate_up)?;
        let mut f = bed.output(m * k)?;
        bed.backend().silu_mul(SiluMul { gate_up: &gate_up, f: &mut f, m, k })?;
        bed.keep("f", &[m, k], &f)
    }
}
