//! Host side of [`contract::conv2d`]: two-dimensional convolution with its epilogue.
//!
//! [`Conv2d`] for floats. Weights are packed once ([`Conv2dWeights`], from PyTorch's `[K, C/g, R, S]`);
//! batch norms are folded into them before ([`fold_batch_norm`]). Nothing is unfolded into columns: every
//! kernel gathers its taps from the image.

mod fold;
mod shape;
mod weights;

pub use contract::conv2d::{Activation, Layout, PadMode, tensor_core_bound};
pub use fold::{BatchNorm, FoldedConv, fold_batch_norm};
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

#[cfg(feature = "cuda")]
impl<T: Float> Conv2d<'_, super::CudaBackend, T> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::conv2d::{
            Args, Conv2dF32, Conv2dF32Small, Conv2dHalf, Conv2dTaps3F32, Conv2dTaps3Half,
            Conv2dTapsF32, Conv2dTapsHalf, TAPS_SIDE, Tile, taps3_blocks,
        };
        use contract::launch::DevPtr;
        use contract::num::RowType;
        self.check()?;
        let shape = self.shape();
        let geometry = shape.geometry(OP)?;
        if geometry.pixels == 0 {
            return Ok(());
        }
        let stream = cuda.stream();
        let packed = self.w.packed();
        let args = Args {
            x: self.x.dev_ptr(stream).cast(),
            w: self.w.data().dev_ptr(stream).cast(),
            bias: self.bias.map_or(DevPtr::NULL, |bias| bias.dev_ptr(stream)),
            residual: self.residual.map_or(DevPtr::NULL, |r| r.dev_ptr(stream).cast()),
            y: self.y.dev_ptr(stream).cast(),
            geometry,
            images: shape.images.n as u32,
            rows: packed.rows() as u32,
            columns: packed.columns() as u32,
            element: T::TYPE,
            activation: self.activation,
            vectors: u32::from(shape.channels_together(4)),
            column_tiles: 0,
            pixel_tiles: 0,
        };
        let f32 = T::TYPE == RowType::F32;
        let sms = cuda.cuda().device().info().sm_count as u64;
        let tiled = |tile: Tile| {
            let [column_tiles, pixel_tiles] = tile.tiles(&geometry);
            let blocks =
                u64::from(column_tiles) * u64::from(pixel_tiles) * u64::from(geometry.groups);
            (Args { column_tiles, pixel_tiles, ..args }, blocks)
        };
        // SAFETY, for every launch below: `check` compared `x`, `bias`, `residual` and `y` with the
        // shape; `Conv2dWeights` holds `Packed::len` elements by construction; `y` is borrowed
        // exclusively; the grid is that of the contract's tiles.
        if packed.depthwise() {
            if let Some(blocks) = taps3_blocks(&args) {
                let grid = [blocks, 1, 1];
                // SAFETY: as above.
                return unsafe {
                    match f32 {
                        true => cuda.launch::<Conv2dTaps3F32>(grid, args),
                        false => cuda.launch::<Conv2dTaps3Half>(grid, args),
                    }
                };
            }
            let channels = (packed.k as u32).div_ceil(TAPS_SIDE);
            let blocks = u64::from(channels) * u64::from(geometry.pixels.div_ceil(TAPS_SIDE));
            let (args, grid) = (Args { column_tiles: channels, ..args }, shape::grid(OP, blocks)?);
            // SAFETY: as above.
            return unsafe {
                match f32 {
                    true => cuda.launch::<Conv2dTapsF32>(grid, args),
                    false => cuda.launch::<Conv2dTapsHalf>(grid, args),
                }
            };
        }
        if !f32 {
            let (args, blocks) = tiled(Conv2dHalf::TILE);
            // SAFETY: as above.
            return unsafe { cuda.launch::<Conv2dHalf>(shape::grid(OP, blocks)?, args) };
        }
        let (args, blocks) = tiled(Conv2dF32::TILE);
        if blocks >= 2 * sms {
            // SAFETY: as above.
            return unsafe { cuda.launch::<Conv2dF32>(shape::grid(OP, blocks)?, args) };
        }
        let (args, blocks) = tiled(Conv2dF32Small::TILE);
        // SAFETY: as above.
        unsafe { cuda.launch::<Conv2dF32Small>(shape::grid(OP, blocks)?, args) }
    }
}
