//! Batch norms folded into the convolution before them, on the host.
//!
//! ```text
//! factor[k] = gamma[k] / sqrt(variance[k] + eps)
//! w'[k, ..] = w[k, ..] * factor[k]      b'[k] = (b[k] - mean[k]) * factor[k] + beta[k]
//! ```
//!
//! Computed in `f64` from the `f32` parameters and rounded to `f32` once: the folded network differs
//! from the unfolded one by the rounding of its weights, not by that of the folding.

use super::{OP, OpError};
use crate::ops::error::same;

/// The parameters of a batch norm at inference, one of each for every channel.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm<'a> {
    /// Scale (`weight`).
    pub gamma: &'a [f32],
    /// Shift (`bias`).
    pub beta: &'a [f32],
    /// `running_mean`.
    pub mean: &'a [f32],
    /// `running_var`.
    pub variance: &'a [f32],
    /// Added to the variance.
    pub eps: f64,
}

/// A convolution with its batch norm in it.
#[derive(Clone, Debug, PartialEq)]
pub struct FoldedConv {
    /// Weights, in the order they came.
    pub weights: Vec<f32>,
    /// One bias for each output channel.
    pub bias: Vec<f32>,
}

/// Folds `norm` into `weights` (`[k, ...]`, `k` the channels of the norm) and `bias`.
///
/// # Errors
/// Parameters of different lengths; weights that are not as many for each channel.
pub fn fold_batch_norm(
    weights: &[f32],
    bias: Option<&[f32]>,
    norm: &BatchNorm<'_>,
) -> Result<FoldedConv, OpError> {
    let k = norm.gamma.len();
    for (what, found) in [
        ("channels of beta and gamma", norm.beta.len()),
        ("channels of mean and gamma", norm.mean.len()),
        ("channels of variance and gamma", norm.variance.len()),
        ("channels of bias and gamma", bias.map_or(k, <[f32]>::len)),
    ] {
        same(OP, what, found, k)?;
    }
    let each = weights.len() / k.max(1);
    same(OP, "weights of whole channels", weights.len(), each * k)?;
    let mut folded = FoldedConv { weights: Vec::with_capacity(weights.len()), bias: Vec::new() };
    for channel in 0..k {
        let wide = |values: &[f32]| f64::from(values[channel]);
        let factor = wide(norm.gamma) / (wide(norm.variance) + norm.eps).sqrt();
        let of_channel = &weights[channel * each..][..each];
        folded.weights.extend(of_channel.iter().map(|&w| (f64::from(w) * factor) as f32));
        let before = bias.map_or(0.0, wide);
        folded.bias.push(((before - wide(norm.mean)) * factor + wide(norm.beta)) as f32);
    }
    Ok(folded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folded_convolution_is_the_norm_of_the_convolution() {
        let norm = BatchNorm {
            gamma: &[2.0, -1.0],
            beta: &[0.5, 0.25],
            mean: &[1.0, -3.0],
            variance: &[4.0, 0.25],
            eps: 0.0,
        };
        let folded = fold_batch_norm(&[1.0, 2.0, 3.0, 4.0], Some(&[7.0, 1.0]), &norm).unwrap();
        assert_eq!(folded.weights, [1.0, 2.0, -6.0, -8.0]);
        assert_eq!(folded.bias, [6.5, -7.75]);
        let x = 3.0;
        let y = (1.0 * x + 2.0 * x + 7.0 - 1.0) / 4.0f32.sqrt() * 2.0 + 0.5;
        assert_eq!(folded.weights[0] * x + folded.weights[1] * x + folded.bias[0], y);
    }

    #[test]
    fn lengths_that_differ_are_refused() {
        let one = &[1.0];
        let norm = BatchNorm { gamma: one, beta: one, mean: one, variance: one, eps: 1e-5 };
        assert!(fold_batch_norm(&[1.0; 3], None, &norm).is_ok());
        assert!(fold_batch_norm(&[1.0; 3], Some(&[1.0; 2]), &norm).is_err());
        let two = BatchNorm { gamma: &[1.0; 2], beta: &[1.0; 2], mean: &[1.0; 2], ..norm };
        assert!(fold_batch_norm(&[1.0; 4], None, &two).is_err());
        let two = BatchNorm { variance: &[1.0; 2], ..two };
        assert!(fold_batch_norm(&[1.0; 3], None, &two).is_err());
    }
}
