//! The feed-forward part: fused gate and up, gated product, sub-norm, down projection.

use super::activations::Activations;
use super::bit_linear::bit_linear;
use crate::ops::act_quant::{ActQuant, Gate, Source};
use crate::ops::bit_linear::{BitLinear, Finish, Norm};
use crate::ops::w2a8_gemm::Behind;
use crate::ops::{Backend, OpError, PackedLinear};

/// Weights of one feed-forward layer.
pub struct Mlp<B: Backend> {
    /// Gate and up, fused by rows.
    pub gate_up: PackedLinear<B>,
    /// The activation of the gate.
    pub gate: Gate,
    /// Gain of the norm in front of the down projection, where the model has one.
    pub sub_norm: Option<B::Buf<f32>>,
    /// Down projection.
    pub down: PackedLinear<B>,
    /// Added to the mean square of the norm.
    pub eps: f32,
}

impl<B: Backend> Mlp<B> {
    /// Takes the quantised, normed rows in `x.acts`; leaves the projection in `x.delta`. What its products do for those behind them, one each.
    ///
    /// # Errors
    /// Shapes that do not fit; a failed launch.
    pub fn forward(
        &self,
        backend: &B,
        x: &mut Activations<B>,
        m: usize,
        [first, second]: [Behind<'_, B>; 2],
    ) -> Result<(), OpError> {
        bit_linear(backend, &self.gate_up, &x.acts, &mut x.wide, m, &mut x.unpacked, first)?;
        let source = Source::Gated {
            gate: self.gate,
            gate_up: &x.wide,
            f: &mut x.delta,
            weight: self.sub_norm.as_ref(),
            eps: self.eps,
        };
        backend.act_quant(ActQuant { source, out: &mut x.acts, m, k: self.down.k() })?;
        bit_linear(backend, &self.down, &x.acts, &mut x.delta, m, &mut x.unpacked, second)
    }

    /// One row: norms `x.h` by `input_norm`, and adds the projection to it.
    ///
    /// # Errors
    /// Shapes that do not fit; a failed launch.
    pub fn step(
        &self,
        backend: &B,
        x: &mut Activations<B>,
        input_norm: &B::Buf<f32>,
    ) -> Result<(), OpError> {
        let eps = self.eps;
        backend.bit_linear(BitLinear {
            x: &x.h,
            norm: Some(Norm { weight: input_norm, eps }),
            w: &self.gate_up,
            finish: Finish::Gated { gate: self.gate, y: &mut x.delta },
        })?;
        backend.bit_linear(BitLinear {
            x: &x.delta,
            norm: self.sub_norm.as_ref().map(|weight| Norm { weight, eps }),
            w: &self.down,
            finish: Finish::Add { y: &mut x.h },
        })
    }
}
