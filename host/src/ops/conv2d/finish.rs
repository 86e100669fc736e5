//! The epilogue of a convolution by itself, on sums that another operation made.

use contract::conv2d::weights::Packed;

use super::{Activation, Images, OP, OpError, Shape, Window};
use crate::ops::error::at_least;
use crate::ops::{Backend, Float, Tensor};

/// `y = activation((sums + bias) + residual)`, rounded once: the sums of a pruned layer ([`crate::ops::sparse`]) are `f32`,
/// channels last. Rows of a linear layer are images of one pixel.
pub struct Finish<'a, B: Backend, T: Float> {
    /// Sums `[n, h, w, channels]`, whatever the layout of `y`.
    pub sums: &'a B::Buf<f32>,
    /// One number for each channel.
    pub bias: Option<&'a B::Buf<f32>>,
    /// Added before the activation.
    pub residual: Option<&'a B::Buf<T>>,
    /// Output.
    pub y: &'a mut B::Buf<T>,
    /// Number, size and layout of the outputs.
    pub images: Images,
    /// Their channels.
    pub channels: usize,
    /// Last step.
    pub activation: Activation,
}

impl<B: Backend, T: Float> Finish<'_, B, T> {
    /// The convolution with windows of one tap and one channel that has these outputs.
    pub(crate) fn shape(&self) -> Shape {
        let weights = Packed { k: self.channels, c: 1, window: [1; 2], groups: 1 };
        Shape { images: self.images, weights, window: Window::default() }
    }

    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let shape = self.shape();
        super::weights::check_packed(OP, &shape.weights)?;
        shape.geometry(OP)?;
        let len = shape.output_len(OP)?;
        let most = "at most 2^31 - 1 outputs are allowed; split the batch";
        crate::ops::error::dimension(OP, "outputs", len.max(1), i32::MAX as usize, most)?;
        at_least(OP, "sums", self.sums.len(), len)?;
        if let Some(bias) = self.bias {
            at_least(OP, "bias", bias.len(), self.channels)?;
        }
        if let Some(residual) = self.residual {
            at_least(OP, "residual", residual.len(), len)?;
        }
        at_least(OP, "y", self.y.len(), len)
    }
}

#[cfg(feature = "cuda")]
impl<T: Float> Finish<'_, crate::ops::CudaBackend, T> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use contract::conv2d::{Args, Conv2dJoinF32, Conv2dJoinHalf, JOIN_THREADS};
        use contract::launch::DevPtr;
        use contract::num::RowType;

        self.check()?;
        let (shape, stream) = (self.shape(), cuda.stream());
        let geometry = shape.geometry(OP)?;
        if geometry.pixels == 0 {
            return Ok(());
        }
        let args = Args {
            x: DevPtr::NULL,
            w: DevPtr::NULL,
            bias: self.bias.map_or(DevPtr::NULL, |bias| bias.dev_ptr(stream)),
            residual: self.residual.map_or(DevPtr::NULL, |r| r.dev_ptr(stream).cast()),
            y: self.y.dev_ptr(stream).cast(),
            geometry,
            images: shape.images.n as u32,
            rows: shape.weights.rows() as u32,
            columns: shape.weights.columns() as u32,
            element: T::TYPE,
            activation: self.activation,
            vectors: 0,
            partial: self.sums.dev_ptr(stream),
            splits: 1,
            split_terms: u32::MAX / 2,
            column_tiles: 0,
            pixel_tiles: 0,
        };
        let outputs = u64::from(geometry.pixels) * self.channels as u64;
        let grid = super::shape::grid(OP, outputs.div_ceil(u64::from(JOIN_THREADS)))?;
        // SAFETY: a thread for each output; `check` compared the tensors, of which the kernel reads sums, bias and residual and
        // writes `y`, borrowed exclusively. It waits for its predecessor, whoever that is, before it reads.
        stream.close_behind(|| unsafe {
            match T::TYPE {
                RowType::F32 => cuda.launch::<Conv2dJoinF32>(grid, args),
                RowType::F16 | RowType::Bf16 => cuda.launch::<Conv2dJoinHalf>(grid, args),
            }
        })
    }
}
