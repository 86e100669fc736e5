//! Runs of [`crate::ops::relu2_mul`] and [`crate::ops::silu_mul`].

use super::{Bed, Run, RunError};
use crate::ops::Backend;
use crate::ops::act_quant::Gate;
use crate::ops::relu2_mul::Relu2Mul;
use crate::ops::silu_mul::SiluMul;

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The activation: which of the two operations.
    pub gate: Gate,
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
        let out = &mut f;
        match self.gate {
            Gate::Relu2 => {
                bed.backend().relu2_mul(Relu2Mul { gate_up: &gate_up, f: out, m, k })?;
            }
            Gate::Silu => bed.backend().silu_mul(SiluMul { gate_up: &gate_up, f: out, m, k })?,
        }
        bed.keep("f", &[m, k], &f)
    }
}
