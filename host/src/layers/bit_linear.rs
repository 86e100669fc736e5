//! A ternary linear layer on quantised activations.

use crate::ops::w2a8_gemm::{Behind, W2a8Gemm};
use crate::ops::w2a8_gemv::W2a8Gemv;
use crate::ops::w2a8_trits::W2a8Trits;
use crate::ops::{Backend, OpError, PackedLinear, QuantActs, WeightLayout};

/// `y = w . acts` for `m` rows: the GEMV for one, the GEMM for more, the same bits from both and from both layouts of
/// weights. `unpacked` is scratch for several rows of weights of 1.6 bits. `behind` is [`W2a8Gemm::behind`].
///
/// # Errors
/// Shapes that do not fit; a failed launch.
pub fn bit_linear<B: Backend>(
    backend: &B,
    w: &PackedLinear<B>,
    acts: &QuantActs<B>,
    y: &mut B::Buf<f32>,
    m: usize,
    unpacked: &mut B::Buf<u32>,
    behind: Behind<'_, B>,
) -> Result<(), OpError> {
    match (w.layout(), m) {
        (WeightLayout::Trits, _) => {
            backend.w2a8_trits(W2a8Trits { w, acts, y, m, unpacked, variant: None })
        }
        (WeightLayout::Bits2, 1) => backend.w2a8_gemv(W2a8Gemv { w, acts, y, variant: None }),
        (WeightLayout::Bits2, _) => {
            backend.w2a8_gemm(W2a8Gemm { chained: true, behind, w, acts, y, m, variant: None })
        }
    }
}
