//! CPU side of [`contract::bit_linear`]: the operations it stands for, one after the other.

use contract::w2a8::{Segments, act_bytes};

use super::act_quant::Quantised;
use super::{Planes, Simd, Threads, act_quant, activation, w2a8_gemv};
use crate::ops::OpError;
use crate::ops::act_quant::Gate;
use crate::ops::activation::Kind;

/// What stands between the operations; keeps its memory.
#[derive(Debug, Default)]
pub struct Row {
    x: Vec<f32>,
    acts: Vec<u32>,
    product: Vec<f32>,
}

/// What becomes of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It is the output.
    Store,
    /// It is added to the output.
    Add,
    /// Its first half gates the second.
    Gated(Gate),
}

/// One row `x` through a layer of `segments.rows()` packed rows `words` of `x.len()` codes, normed first
/// by `norm`, a gain as long as `x` and what is added to the mean square.
///
/// # Errors
/// No memory for `planes`.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn bit_linear(
    threads: &Threads,
    simd: Simd,
    x: &[f32],
    norm: Option<(&[f32], f32)>,
    words: &[u32],
    segments: &Segments,
    finish: Finish,
    row: &mut Row,
    planes: &mut Planes,
    y: &mut [f32],
) -> Result<(), OpError> {
    let (n, k) = (segments.rows(), x.len());
    let mut stats = [[0; 2]];
    row.acts.resize(act_bytes(k) / 4, 0);
    let out = Quantised { acts: &mut row.acts, stats: &mut stats };
    match norm {
        None => act_quant::plain(threads, simd, x, k, out),
        Some((weight, eps)) => {
            row.x.clear();
            row.x.extend_from_slice(x);
            act_quant::rmsnorm(threads, simd, &mut row.x, None, weight, eps, out);
        }
    }
    let (acts, stats) = (&row.acts, stats[0]);
    let mut multiply = |y: &mut [f32]| {
        w2a8_gemv::w2a8_gemv(threads, simd, words, k, segments, acts, stats, planes, y)
    };
    if finish == Finish::Store {
        return multiply(&mut y[..n]);
    }
    row.product.resize(n, 0.0);
    multiply(&mut row.product)?;
    match finish {
        Finish::Gated(gate) => {
            let kind = match gate {
                Gate::Relu2 => Kind::Relu2,
                Gate::Silu => Kind::Silu,
            };
            activation::fused(threads, simd, kind, &row.product, &mut y[..n / 2], n / 2);
        }
        _ => y.iter_mut().zip(&row.product).for_each(|(y, p)| *y += p),
    }
    Ok(())
}
