//! Host side of [`contract::softmax`].

use contract::row::{MAX_LEN, MAX_ROWS};

use super::error::{at_least, dimension, elements};
use super::{Backend, Float, OpError, Tensor};

const OP: &str = "softmax";

/// What is done to the scores before they are compared.
pub enum Mask<'a, B: Backend, T: Float> {
    /// Nothing.
    None,
    /// A mask is added.
    Added {
        /// Rows `[rows, k]`; row `i` of the scores takes row `i % rows`.
        mask: &'a B::Buf<T>,
        /// Rows of the mask.
        rows: usize,
    },
    /// Row `i` is query `i % queries` of a matrix of `k` keys, and sees those up to its own: the last
    /// query sees all. What is not seen does not matter, whatever it is.
    Causal {
        /// Queries of one matrix; at most `k`.
        queries: usize,
    },
}

/// `softmax(x * scale + mask)` of `m` rows of `k` scores, or its logarithm.
///
/// A row with all scores at minus infinity gives zeros, or minus infinity in the logarithm. NaN or plus
/// infinity among the scores of a row makes all of the row NaN.
pub struct Softmax<'a, B: Backend, T: Float> {
    /// Scores `[m, k]`.
    pub x: &'a B::Buf<T>,
    /// The mask.
    pub mask: Mask<'a, B, T>,
    /// Output `[m, k]`.
    pub y: &'a mut B::Buf<T>,
    /// Rows, 1 to 2^31 - 1.
    pub m: usize,
    /// Elements of a row, 1 to 2^30.
    pub k: usize,
    /// Factor of the scores; 1 leaves them as they are.
    pub scale: f32,
    /// Whether the logarithm is wanted.
    pub log: bool,
}

impl<B: Backend, T: Float> Softmax<'_, B, T> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let &Self { m, k, .. } = self;
        dimension(OP, "m", m, MAX_ROWS, "1 to 2^31 - 1 rows are allowed")?;
        dimension(OP, "k", k, MAX_LEN, "1 to 2^30 elements are allowed")?;
        let len = elements(OP, &[m, k])?;
        at_least(OP, "x", self.x.len(), len)?;
        match self.mask {
            Mask::None => {}
            Mask::Added { mask, rows } => {
                dimension(OP, "mask rows", rows, MAX_ROWS, "1 to 2^31 - 1 rows are allowed")?;
                at_least(OP, "mask", mask.len(), elements(OP, &[rows, k])?)?;
            }
            Mask::Causal { queries } => {
                dimension(OP, "queries", queries, k, "1 to k queries are allowed")?;
            }
        }
        at_least(OP, "y", self.y.len(), len)
    }
}

#[cfg(feature = "cuda")]
impl<T: Float> Softmax<'_, super::CudaBackend, T> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::launch::DevPtr;
        use contract::softmax::Args;
        self.check()?;
        let Self { x, mask, y, m, k, scale, log } = self;
        let stream = cuda.stream();
        let (mask, mask_rows, queries) = match mask {
            Mask::None => (DevPtr::NULL, 1, 0),
            Mask::Added { mask, rows } => (mask.dev_ptr(stream).cast(), rows, 0),
            Mask::Causal { queries } => (DevPtr::NULL, 1, queries),
        };
        let (m, k, log) = (m as u32, k as u32, u32::from(log));
        let (mask_rows, queries) = (mask_rows as u32, queries as u32);
        let (x, y) = (x.dev_ptr(stream).cast(), y.dev_ptr(stream).cast());
        let args = Args { x, mask, y, m, k, mask_rows, queries, scale, log };
        // SAFETY: `check` compared `x` and `y` with `m` rows of `k` elements of this type, and the mask
        // with its rows; `y` is borrowed exclusively.
        unsafe { cuda.launch_rows::<contract::softmax::Softmax>(T::TYPE, [m, k], args) }
    }
}
