//! Host side of [`contract::conv2d`]: two-dimensional convolution with its epilogue.
//!
//! [`Conv2d`] for floats, [`Conv2dI8`] and [`Conv2dTernary`] for int8 activations, [`Finish`] for sums of other operations. Weights are packed once ([`Conv2dWeights`], from PyTorch's `[K, C/g, R, S]`);
//! batch norms are folded into them before ([`fold_batch_norm`]). Nothing is unfolded into columns: every
//! kernel gathers its taps from the image.

mod finish;
mod fold;
mod int8;
#[cfg(feature = "cuda")]
mod int8_launch;
#[cfg(feature = "cuda")]
pub(in crate::ops) mod bulk_lines;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod points;
#[cfg(feature = "cuda")]
mod runs;
mod shape;
#[cfg(feature = "cuda")]
mod strips;
#[cfg(feature = "cuda")]
mod turn;
mod weights;
#[cfg(feature = "cuda")]
mod whole;

pub use contract::conv2d::{Activation, Layout, PadMode, tensor_core_bound};
pub use finish::Finish;
pub use fold::{BatchNorm, FoldedConv, fold_batch_norm};
pub use int8::{Conv2dI8, Conv2dI8Weights, Conv2dTernary, Conv2dTernaryWeights};
pub use shape::{Images, Padding, Shape, Window};
pub use weights::Conv2dWeights;

use super::error::at_least;
use super::{Backend, Float, Math, OpError, Tensor};

const OP: &str = "conv2d";

/// `y = activation((conv(x, w) + bias) + residual)`.
///
/// `x` is `[n, h, w, c]` or `[n, c, h, w]` ([`Images::layout`]), `y` and `residual` have the same
/// layout and the shape of [`Conv2d::shape`]`.output()`. No images (`n = 0`) is allowed: nothing is
/// written.
pub struct Conv2d<'a, B: Backend, T: Float> {
    /// Images.
    pub x: &'a B::Buf<T>,
    /// Packed weights.
    pub w: &'a Conv2dWeights<B, T>,
    /// One number for each output channel.
    pub bias: Option<&'a B::Buf<f32>>,
    /// Added before the activation.
    pub residual: Option<&'a B::Buf<T>>,
    /// Output.
    pub y: &'a mut B::Buf<T>,
    /// Number, size and layout of the images.
    pub images: Images,
    /// How the window moves.
    pub window: Window,
    /// Last step.
    pub activation: Activation,
    /// [`Math::Exact`] gives the contract's bits. [`Math::TensorCore`] takes tensor cores for f16 and
    /// bf16 where the device has them, within [`tensor_core_bound`]; `f32` and depthwise stay exact.
    pub math: Math,
    /// Symbol of the kernel to run, for tests and measurements; `None`: the shape chooses. The CPU
    /// has one way and takes any.
    pub kernel: Option<&'static str>,
}

impl<B: Backend, T: Float> Conv2d<'_, B, T> {
    /// The shape of the operation.
    pub fn shape(&self) -> Shape {
        Shape { images: self.images, weights: *self.w.packed(), window: self.window }
    }

    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let shape = self.shape();
        shape.geometry(OP)?;
        let y_len = shape.output_len(OP)?;
        at_least(OP, "x", self.x.len(), shape.input_len(OP)?)?;
        if let Some(bias) = self.bias {
            at_least(OP, "bias", bias.len(), shape.weights.k)?;
        }
        if let Some(residual) = self.residual {
            at_least(OP, "residual", residual.len(), y_len)?;
        }
        at_least(OP, "y", self.y.len(), y_len)
    }
}
