//! A ternary linear layer on quantised activations.

use crate::ops::w2a8_gemm::W2a8Gemm;
use crate::ops::w2a8_gemv::W2a8Gemv;
use crate::ops::{Backend, OpError, PackedLinear, QuantActs};

/// `y = w . acts` for `m` rows: the GEMV for one, the GEMM for more, the same bits from both.
///
/// # Errors
/// Shapes that do not fit; a failed launch.
pub fn bit_linear<B: Backend>(
    backend: &B,
    w: &PackedLinear<B>,
    acts: &QuantActs<B>,
    y: &mut B::Buf<f32>,
    m: usize,
) -> Result<(), OpError> {
    if m == 1 {
        backend.w2a8_gemv(W2a8Gemv { w, acts, y, variant: None })
    } else {
        backend.w2a8_gemm(W2a8Gemm { w, acts, y, m, variant: None })
    }
}
