//! Host side of [`contract::image_quant`].

use contract::image_quant::{MAX_IMAGES, MAX_LEN};

use super::error::{at_least, dimension};
use super::{Backend, Float, OpError, Tensor};

const OP: &str = "image_quant";

/// Quantises `n` images of `len` elements to int8, one multiplier an image: `x` and `scales` of
/// [`super::conv2d::Conv2dTernary`]. The order of the dimensions stays.
pub struct ImageQuant<'a, B: Backend, T: Float> {
    /// Images `[n, len]`.
    pub x: &'a B::Buf<T>,
    /// Output `[n, len]`.
    pub q: &'a mut B::Buf<i8>,
    /// Output: the multiplier of each image; `q` is about `scales * x`.
    pub scales: &'a mut B::Buf<f32>,
    /// Images, up to 2^22; with none, nothing happens.
    pub n: usize,
    /// Elements of an image, 1 to 2^31 - 1.
    pub len: usize,
}

impl<B: Backend, T: Float> ImageQuant<'_, B, T> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let most = "0 to 2^22 images are allowed; split the batch";
        dimension(OP, "images", self.n.max(1), MAX_IMAGES, most)?;
        dimension(OP, "elements of an image", self.len, MAX_LEN, "1 to 2^31 - 1 are allowed")?;
        let all = self.n.saturating_mul(self.len);
        at_least(OP, "x", self.x.len(), all)?;
        at_least(OP, "q", self.q.len(), all)?;
        at_least(OP, "scales", self.scales.len(), self.n)
    }
}

#[cfg(feature = "cuda")]
impl<T: Float> ImageQuant<'_, super::CudaBackend, T> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::image_quant::{
            Args, ImageQuantBf16, ImageQuantF16, ImageQuantF32, ImageTopBf16, ImageTopF16,
            ImageTopF32, PIECE, part_len, parts,
        };
        use contract::num::RowType;

        use crate::memory::DeviceBuffer;
        self.check()?;
        let Self { x, q, scales, n, len } = self;
        if n == 0 {
            return Ok(());
        }
        let (stream, len) = (cuda.stream(), len as u64);
        let blocks = n * parts(len) as usize;
        let tops: DeviceBuffer<u32> = cuda.alloc("image_quant", blocks)?;
        let args = Args {
            x: x.dev_ptr(stream).cast(),
            q: q.dev_ptr(stream).cast(),
            scales: scales.dev_ptr(stream),
            tops: tops.dev_ptr(stream),
            len,
            part_len: part_len(len),
            parts: parts(len),
            // Allocations are aligned to 256 bytes.
            aligned: u32::from(len.is_multiple_of(PIECE)),
        };
        let grid = [blocks as u32, 1, 1];
        // SAFETY: `check` compared the tensors with `n` images of `len` elements of this type; `tops` has a
        // word for each block, and the launches are in order; `q` and `scales` are borrowed exclusively.
        unsafe {
            match T::TYPE {
                RowType::F32 => {
                    cuda.launch::<ImageTopF32>(grid, args)?;
                    cuda.launch::<ImageQuantF32>(grid, args)
                }
                RowType::F16 => {
                    cuda.launch::<ImageTopF16>(grid, args)?;
                    cuda.launch::<ImageQuantF16>(grid, args)
                }
                RowType::Bf16 => {
                    cuda.launch::<ImageTopBf16>(grid, args)?;
                    cuda.launch::<ImageQuantBf16>(grid, args)
                }
            }
        }
    }
}
