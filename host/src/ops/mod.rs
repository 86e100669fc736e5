//! The operations of a model, each as checked data.
//!
//! An operation is a struct that borrows its tensors. `check` compares every shape with the
//! contract before anything runs; then a [`Backend`] executes it: on the GPU by one launch, on the
//! CPU by the functions of [`crate::cpu`]. Both give the same bits. Nothing here is `unsafe` to
//! call.
//!
//! Tensors are plain contiguous buffers; lengths are in elements. A buffer may be longer than an
//! operation needs, so that one allocation serves every batch size up to its capacity.

pub mod act_quant;
pub mod activation;
pub mod attention;
pub mod attention_paged;
pub mod attention_step;
pub mod bit_linear;
pub mod conv2d;
pub mod bmm;
pub mod choices;
#[cfg(feature = "cuda")]
mod cuda;
pub mod decode_layers;
pub mod elementwise;
pub mod embed;
pub mod logprobs;
pub mod error;
pub mod kv_append;
pub mod layernorm;
pub mod lm_head;
pub mod lm_head_int8;
pub mod pool2d;
pub mod lut_matmul;
pub mod rmsnorm;
pub mod rope;
pub mod image_quant;
pub mod sample;
pub mod softmax;
pub mod sparse;
pub mod tensor;
pub mod w2a8_gemm;
pub mod w2a8_gemv;
pub mod w2a8_trits;

use crate::memory::MemoryUsage;
use crate::profile::Profile;

pub use crate::memory::Element;
pub use contract::num::RowType;
#[cfg(feature = "cuda")]
pub use cuda::CudaBackend;
pub use error::OpError;
pub use tensor::{Dense, Float, Math, PackedLinear, QuantActs, RowWords, Tensor, WeightLayout};

/// Where tensors live and operations run.
///
/// Operations are queued in order; a backend may return before they have run. [`Backend::read`] and
/// [`Backend::synchronize`] wait, and report what went wrong in between.
pub trait Backend: Sized + Send + 'static {
    /// A buffer of `T`.
    type Buf<T: Element>: Tensor;
    /// Tokens that the sampler writes and the host reads while later steps run.
    type TokenLog: TokenLog;
    /// A recorded sequence of operations.
    type Recording: Send;

    /// Steps worth queuing behind the one whose result is waited for; 0 for a backend that runs
    /// operations at once.
    const AHEAD: usize = 0;
    /// Rows of a prefill step beyond which more are no faster.
    const MOST_PREFILL_ROWS: usize = 768;

    /// One line for people: the device and what it runs.
    fn describe(&self) -> String;

    /// Reserves `len` elements. Their contents are unspecified.
    ///
    /// # Errors
    /// Out of memory, with what was asked for and what is free.
    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> Result<Self::Buf<T>, OpError>;

    /// Reserves a token log of `len` entries.
    ///
    /// # Errors
    /// Out of memory.
    fn alloc_tokens(&self, len: usize) -> Result<Self::TokenLog, OpError>;

    /// Copies `src` to `dst[at..]`, in order with the operations.
    ///
    /// # Errors
    /// A range outside of `dst`; a failed copy.
    fn write<T: Element>(
        &self,
        dst: &mut Self::Buf<T>,
        at: usize,
        src: &[T],
    ) -> Result<(), OpError>;

    /// Copies `src[at..]` to `dst` when all earlier operations have run.
    ///
    /// # Errors
    /// A range outside of `src`; whatever an earlier operation failed with.
    fn read<T: Element>(&self, src: &Self::Buf<T>, at: usize, dst: &mut [T])
    -> Result<(), OpError>;

    /// Copies `len` elements from one place of `buf` to another that does not overlap it, in order with the operations.
    ///
    /// # Errors
    /// Places outside of `buf`, or that overlap; a failed copy.
    fn copy_within<T: Element>(
        &self,
        buf: &mut Self::Buf<T>,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<(), OpError>;

    /// Sets every byte of `dst`, in order with the operations.
    ///
    /// # Errors
    /// A failed launch.
    fn fill<T: Element>(&self, dst: &mut Self::Buf<T>, byte: u8) -> Result<(), OpError>;

    /// Waits for all queued operations.
    ///
    /// # Errors
    /// Whatever one of them failed with.
    fn synchronize(&self) -> Result<(), OpError>;

    /// Whether all queued operations have run. Does not wait.
    ///
    /// # Errors
    /// Whatever one of them failed with.
    fn is_idle(&self) -> Result<bool, OpError>;

    /// Bytes that this backend's buffers take, and the most they have taken.
    fn memory(&self) -> MemoryUsage;

    /// Bytes that may go into copies of weights which make steps faster and change no result: 0 on a backend that gains
    /// nothing by them.
    ///
    /// # Errors
    /// A failed device.
    fn room_for_copies(&self) -> Result<usize, OpError> {
        Ok(0)
    }

    /// Kernel times so far, where the backend was opened to take them. Waits for what is queued.
    ///
    /// # Errors
    /// Whatever a queued operation failed with.
    fn profile(&self) -> Result<Option<Profile>, OpError> {
        Ok(None)
    }

    /// Records the operations that `f` queues, without running them. `None`: this backend does not
    /// record, and `f` was not called.
    ///
    /// # Errors
    /// What `f` returned; an operation that cannot be recorded.
    fn record(
        &self,
        f: impl FnOnce() -> Result<(), OpError>,
    ) -> Result<Option<Self::Recording>, OpError>;

    /// Queues a recording.
    ///
    /// # Errors
    /// A failed launch.
    fn replay(&self, recording: &Self::Recording) -> Result<(), OpError>;

    /// Token rows; see [`embed::Embed`].
    ///
    /// # Errors
    /// Shapes that do not fit; a failed launch. The same holds for every operation below.
    fn embed(&self, op: embed::Embed<'_, Self>) -> Result<(), OpError>;
    /// RMSNorm; see [`rmsnorm::RmsNorm`].
    fn rmsnorm<T: Float>(&self, op: rmsnorm::RmsNorm<'_, Self, T>) -> Result<(), OpError>;
    /// LayerNorm; see [`layernorm::LayerNorm`].
    fn layernorm<T: Float>(&self, op: layernorm::LayerNorm<'_, Self, T>) -> Result<(), OpError>;
    /// Softmax; see [`softmax::Softmax`].
    fn softmax<T: Float>(&self, op: softmax::Softmax<'_, Self, T>) -> Result<(), OpError>;
    /// Activations and gates; see [`activation::Activation`].
    fn activation<T: Float>(&self, op: activation::Activation<'_, Self, T>) -> Result<(), OpError>;
    /// Sums and products of elements; see [`elementwise::Elementwise`].
    fn elementwise<T: Float>(
        &self,
        op: elementwise::Elementwise<'_, Self, T>,
    ) -> Result<(), OpError>;
    /// Pooling of images; see [`pool2d::Pool2d`].
    fn pool2d<T: Float>(&self, op: pool2d::Pool2d<'_, Self, T>) -> Result<(), OpError>;
    /// Quantisation; see [`act_quant::ActQuant`].
    fn act_quant(&self, op: act_quant::ActQuant<'_, Self>) -> Result<(), OpError>;
    /// Ternary matrix times one row; see [`w2a8_gemv::W2a8Gemv`].
    fn w2a8_gemv(&self, op: w2a8_gemv::W2a8Gemv<'_, Self>) -> Result<(), OpError>;
    /// Ternary matrix times rows; see [`w2a8_gemm::W2a8Gemm`].
    fn w2a8_gemm(&self, op: w2a8_gemm::W2a8Gemm<'_, Self>) -> Result<(), OpError>;
    /// Ternary matrix of 1.6 bits a weight times rows; see [`w2a8_trits::W2a8Trits`].
    fn w2a8_trits(&self, op: w2a8_trits::W2a8Trits<'_, Self>) -> Result<(), OpError>;
    /// Rotary embedding; see [`rope::Rope`].
    fn rope(&self, op: rope::Rope<'_, Self>) -> Result<(), OpError>;
    /// Quantisation of images; see [`image_quant::ImageQuant`].
    fn image_quant<T: Float>(
        &self,
        op: image_quant::ImageQuant<'_, Self, T>,
    ) -> Result<(), OpError>;
    /// Cache append; see [`kv_append::KvAppend`].
    fn kv_append(&self, op: kv_append::KvAppend<'_, Self>) -> Result<(), OpError>;
    /// Attention; see [`attention::Attention`].
    fn attention(&self, op: attention::Attention<'_, Self>) -> Result<(), OpError>;
    /// Rotation, append to pages and attention of rows of several sequences; see
    /// [`attention_paged::AttentionPaged`].
    fn attention_paged(&self, op: attention_paged::AttentionPaged<'_, Self>)
    -> Result<(), OpError>;
    /// Copies of pages; see [`attention_paged::CopyPages`].
    fn copy_pages(&self, op: attention_paged::CopyPages<'_, Self>) -> Result<(), OpError>;
    /// Rotation, cache append and attention of one row; see [`attention_step::AttentionStep`].
    fn attention_step(&self, op: attention_step::AttentionStep<'_, Self>) -> Result<(), OpError>;
    /// Whether one kernel can run all layers of a model of these sizes on a row; see
    /// [`decode_layers::DecodeLayers`]. A backend that gains nothing by it says no.
    fn runs_together(&self, _shape: &contract::decode_layers::Shape) -> bool {
        false
    }
    /// The same for a table for so many rows that have a sequence each; see [`decode_layers::rows::DecodeRows`].
    fn runs_rows_together(&self, _shape: &contract::decode_layers::Shape, _rows: usize) -> bool {
        false
    }

    /// Whether [`lm_head_int8::LmHeadInt8::every`] can be asked for, of `m` inputs of the head `w`.
    fn keeps_logits(&self, _w: &Dense<Self>, _m: usize) -> bool {
        true
    }

    /// Pages that a block should take ([`attention_paged::PagedStep::share`]) of rows at such positions, where more than one is faster.
    fn pages_of_block(&self, _heads: kv_append::Heads, _positions: &[usize]) -> Option<usize> {
        None
    }

    /// Whether few rows that may be neighbours attend page by page ([`attention_paged::PagedRows::Split`]) over such pages, for as many positions.
    fn splits(
        &self,
        _heads: kv_append::Heads,
        _pages: attention_paged::PageType,
        _positions: usize,
    ) -> bool {
        false
    }

    /// The address of a buffer, as other kernels' data; 0 on a backend that has no use for it.
    fn address<T: Element>(&self, _buf: &Self::Buf<T>) -> u64 {
        0
    }
    /// All layers of a model on one row; see [`decode_layers::DecodeLayers`].
    fn decode_layers(&self, op: decode_layers::DecodeLayers<'_, Self>) -> Result<(), OpError>;
    /// All layers of a model on several rows; see [`decode_layers::rows::DecodeRows`].
    fn decode_rows(&self, op: decode_layers::rows::DecodeRows<'_, Self>) -> Result<(), OpError>;
    /// One row through a ternary layer; see [`bit_linear::BitLinear`].
    fn bit_linear(&self, op: bit_linear::BitLinear<'_, Self>) -> Result<(), OpError>;
    /// Batched matrix product; see [`bmm::Bmm`].
    fn bmm<T: bmm::Operand>(&self, op: bmm::Bmm<'_, Self, T>) -> Result<(), OpError>;
    /// Logits; see [`lm_head::LmHead`].
    fn lm_head(&self, op: lm_head::LmHead<'_, Self>) -> Result<(), OpError>;
    /// int8 copy of a head; see [`lm_head_int8::Int8Table::new`].
    fn lm_head_int8_pack(&self, op: lm_head_int8::Pack<'_, Self>) -> Result<(), OpError>;
    /// Next token by way of an int8 copy of the head; see [`lm_head_int8::LmHeadInt8`].
    fn lm_head_int8(&self, op: lm_head_int8::LmHeadInt8<'_, Self>) -> Result<(), OpError>;
    /// Convolution; see [`conv2d::Conv2d`].
    fn conv2d<T: Float>(&self, op: conv2d::Conv2d<'_, Self, T>) -> Result<(), OpError>;
    /// Ternary matrix times rows, by lookup tables; see [`lut_matmul::LutMatmul`].
    fn lut_matmul(&self, op: lut_matmul::LutMatmul<'_, Self>) -> Result<(), OpError>;
    /// int8 lookup tables of activations; see [`lut_matmul::LutBuildLossy`].
    fn lut_build_lossy(&self, op: lut_matmul::LutBuildLossy<'_, Self>) -> Result<(), OpError>;
    /// Weights of 1 to 4 bits times rows, by int8 tables; see [`lut_matmul::LutMatmulLossy`].
    fn lut_matmul_lossy(&self, op: lut_matmul::LutMatmulLossy<'_, Self>) -> Result<(), OpError>;
    /// Epilogue of a convolution; see [`conv2d::Finish`].
    fn conv2d_finish<T: Float>(&self, op: conv2d::Finish<'_, Self, T>) -> Result<(), OpError>;
    /// Convolution of int8; see [`conv2d::Conv2dI8`].
    fn conv2d_i8(&self, op: conv2d::Conv2dI8<'_, Self>) -> Result<(), OpError>;
    /// Convolution of int8 with ternaries; see [`conv2d::Conv2dTernary`].
    fn conv2d_ternary<T: Float>(
        &self,
        op: conv2d::Conv2dTernary<'_, Self, T>,
    ) -> Result<(), OpError>;
    /// Product with a pruned matrix; see [`sparse::Linear`].
    fn sparse_linear<W: Float, X: Float>(
        &self,
        op: sparse::Linear<'_, Self, W, X>,
    ) -> Result<(), OpError>;
    /// The same from compressed sparse rows; see [`sparse::LinearCsr`].
    fn sparse_csr<W: Float, X: Float>(
        &self,
        op: sparse::LinearCsr<'_, Self, W, X>,
    ) -> Result<(), OpError>;
    /// Convolution with pruned weights; see [`sparse::Conv2d`].
    fn sparse_conv2d<W: Float, X: Float>(
        &self,
        op: sparse::Conv2d<'_, Self, W, X>,
    ) -> Result<(), OpError>;
    /// Ternary weights as mask and signs; see [`sparse::LinearTernary`].
    fn sparse_ternary(&self, op: sparse::LinearTernary<'_, Self>) -> Result<(), OpError>;
    /// Next token; see [`sample::Sample`].
    fn sample(&self, op: sample::Sample<'_, Self>) -> Result<(), OpError>;
    /// What may be picked next; see [`sample::Allow`].
    fn allow(&self, op: sample::Allow<'_, Self>) -> Result<(), OpError>;
    /// Log probabilities; see [`logprobs::Logprobs`].
    fn logprobs(&self, op: logprobs::Logprobs<'_, Self>) -> Result<(), OpError>;
}

/// Tokens written by the sampler, readable without waiting for the queue.
pub trait TokenLog: Send {
    /// What an entry holds before its token is there.
    const EMPTY: u32 = u32::MAX;

    /// Number of entries.
    fn len(&self) -> usize;

    /// Whether there are no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token of `step`, or [`TokenLog::EMPTY`] as long as it is not there.
    fn get(&self, step: usize) -> u32;

    /// Writes the token of `step`. Only while no sampler that writes there is queued.
    fn put(&mut self, step: usize, token: u32);

    /// Empties the entries of `range`. Only while no sampler that writes there is queued.
    fn clear_part(&mut self, range: std::ops::Range<usize>);

    /// Empties every entry. Only while no sampler that writes here is queued.
    fn clear(&mut self) {
        self.clear_part(0..self.len());
    }
}
