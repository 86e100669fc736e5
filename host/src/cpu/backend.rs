//! The CPU as a [`Backend`]: operations run at once, on the caller and its team of threads.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use super::attention::Cache;
use super::buffer::{Buffer, CpuTokens, Ledger};
use super::dense::Table;
use super::kv_append::CacheMut;
use super::rope::Angles;
use super::sample::Scratch;
use super::{Planes, Simd, SimdError, Tables, Threads};
use crate::memory::MemoryUsage;
use crate::ops::act_quant::ActQuant;
use crate::ops::activation::Activation;
use crate::ops::elementwise::Elementwise;
use crate::ops::error::{apart, place};
use crate::ops::layernorm::LayerNorm;
use crate::ops::pool2d::Pool2d;
use crate::ops::rope::RopeTable;
use crate::ops::softmax::Softmax;
use crate::ops::{self, Backend, Dense, Element, Float, OpError, Tensor, TokenLog};

/// Names the environment variable that forces a vector level, by [`super::Level::name`].
pub const SIMD_VAR: &str = "BITNET_CPU_SIMD";
/// Most threads of a team.
pub const MAX_THREADS: usize = 1024;

/// A CPU backend that cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The number of threads.
    #[error("{asked} threads were asked for; 1 to {MAX_THREADS} are allowed")]
    ThreadCount {
        /// What was asked for.
        asked: usize,
    },
    /// The system refused a thread.
    #[error("cannot start {asked} threads: {source}; ask for fewer")]
    Start {
        /// What was asked for.
        asked: usize,
        /// Why.
        source: std::io::Error,
    },
    /// The vector level.
    #[error(transparent)]
    Simd(#[from] SimdError),
    /// The vector level that the environment names.
    #[error("{SIMD_VAR}: {0}")]
    Variable(#[source] SimdError),
}

/// What a CPU backend is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the caller's among them; by default as many as the system offers.
    pub threads: Option<usize>,
    /// Vector level; by default [`SIMD_VAR`]'s, or else the best of this machine.
    pub simd: Option<Simd>,
}

/// Tensors in host memory, operations on threads and vectors.
pub struct CpuBackend {
    pub(super) threads: Threads,
    pub(super) simd: Simd,
    ledger: Arc<Ledger>,
    pub(super) planes: Mutex<Planes>,
    pub(super) tables: Mutex<Tables>,
    pub(super) scratch: Mutex<Scratch>,
    row: Mutex<super::bit_linear::Row>,
    qkv: Mutex<Vec<f32>>,
}

pub(super) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Scratch has no state that a panic could break.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CpuBackend {
    /// A backend of `threads` threads (by default as many as the system offers).
    ///
    /// # Errors
    /// 0 or too many threads, or the system refuses them; [`SIMD_VAR`] names a level that this
    /// machine lacks.
    pub fn new(threads: Option<usize>) -> Result<Self, OpError> {
        Ok(Self::open(CpuOptions { threads, ..CpuOptions::default() })?)
    }

    /// A backend made to measure.
    ///
    /// # Errors
    /// As [`CpuBackend::new`].
    pub fn open(options: CpuOptions) -> Result<Self, CpuError> {
        let offered = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let asked = options.threads.unwrap_or_else(|| offered().min(MAX_THREADS));
        let count = NonZeroUsize::new(asked).filter(|count| count.get() <= MAX_THREADS);
        let count = count.ok_or(CpuError::ThreadCount { asked })?;
        let simd = match (options.simd, std::env::var(SIMD_VAR)) {
            (Some(simd), _) => simd,
            (None, Ok(name)) => Simd::by_name(&name).map_err(CpuError::Variable)?,
            (None, Err(_)) => Simd::detect(),
        };
        let threads = Threads::new(count).map_err(|source| CpuError::Start { asked, source })?;
        Ok(Self {
            threads,
            simd,
            ledger: Arc::default(),
            planes: Mutex::default(),
            tables: Mutex::default(),
            scratch: Mutex::default(),
            row: Mutex::default(),
            qkv: Mutex::default(),
        })
    }

    /// The vector level in use.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// The team of threads.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }
}

/// This backend does not record: there is no launch to save.
#[derive(Clone, Copy, Debug)]
pub enum NoRecording {}

pub(super) fn table<'a>(dense: &'a Dense<CpuBackend>) -> Table<'a> {
    Table {
        data: dense.data().as_slice(),
        element: dense.element(),
        rows: dense.rows(),
        width: dense.width(),
        stride: dense.stride(),
    }
}

pub(super) fn angles(table: &RopeTable<CpuBackend>) -> Angles<'_> {
    let len = table.positions * table.head_dim / 2;
    let (cos, sin) = (table.cos.as_slice(), table.sin.as_slice());
    Angles { cos: &cos[..len], sin: &sin[..len], head_dim: table.head_dim }
}

impl Backend for CpuBackend {
    type Buf<T: Element> = Buffer<T>;
    type TokenLog = CpuTokens;
    type Recording = NoRecording;

    fn describe(&self) -> String {
        let (count, level) = (self.threads.count(), self.simd.level().name());
        format!("CPU, {count} {}, {level}", if count == 1 { "thread" } else { "threads" })
    }

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> Result<Buffer<T>, OpError> {
        Buffer::counted(label, len, &self.ledger)
    }

    fn alloc_tokens(&self, len: usize) -> Result<CpuTokens, OpError> {
        let mut tokens = Vec::new();
        let bytes = len.saturating_mul(4);
        let refused = |_| OpError::HostMemory { label: "tokens", bytes };
        tokens.try_reserve_exact(len).map_err(refused)?;
        tokens.resize(len, CpuTokens::EMPTY);
        Ok(CpuTokens(tokens))
    }

    fn write<T: Element>(&self, dst: &mut Buffer<T>, at: usize, src: &[T]) -> Result<(), OpError> {
        place("write", at, src.len(), dst.len())?;
        dst.as_mut_slice()[at..][..src.len()].copy_from_slice(src);
        Ok(())
    }

    fn read<T: Element>(&self, src: &Buffer<T>, at: usize, dst: &mut [T]) -> Result<(), OpError> {
        place("read", at, dst.len(), src.len())?;
        dst.copy_from_slice(&src.as_slice()[at..][..dst.len()]);
        Ok(())
    }

    fn copy_within<T: Element>(
        &self,
        buf: &mut Buffer<T>,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<(), OpError> {
        apart("copy_within", from, to, len, buf.len())?;
        buf.as_mut_slice().copy_within(from..from + len, to);
        Ok(())
    }

    fn fill<T: Element>(&self, dst: &mut Buffer<T>, byte: u8) -> Result<(), OpError> {
        bytemuck::cast_slice_mut::<T, u8>(dst.as_mut_slice()).fill(byte);
        Ok(())
    }

    fn synchronize(&self) -> Result<(), OpError> {
        Ok(())
    }

    fn is_idle(&self) -> Result<bool, OpError> {
        Ok(true)
    }

    fn memory(&self) -> MemoryUsage {
        self.ledger.usage()
    }

    fn record(
        &self,
        _: impl FnOnce() -> Result<(), OpError>,
    ) -> Result<Option<NoRecording>, OpError> {
        Ok(None)
    }

    fn replay(&self, recording: &NoRecording) -> Result<(), OpError> {
        match *recording {}
    }

    fn embed(&self, op: ops::embed::Embed<'_, Self>) -> Result<(), OpError> {
        op.check()?;
        let ids: Vec<_> =
            (0..op.m).map(|m| op.ids.as_slice()[op.ids_at + m * op.ids_stride]).collect();
        let out = &mut op.out.as_mut_slice()[op.first * op.table.width()..];
        super::embed::embed(&self.threads, self.simd, &ids, table(op.table), out);
        Ok(())
    }

    fn rmsnorm<T: Float>(&self, op: ops::rmsnorm::RmsNorm<'_, Self, T>) -> Result<(), OpError> {
        op.check()?;
        let len = op.m * op.k;
        super::rmsnorm::rmsnorm(
            &self.threads,
            self.simd,
            &mut op.x.as_mut_slice()[..len],
            op.delta.map(Buffer::as_slice),
            &op.weight.as_slice()[..op.k],
            &mut op.y.as_mut_slice()[..len],
            op.eps,
        );
        Ok(())
    }

    fn layernorm<T: Float>(&self, op: LayerNorm<'_, Self, T>) -> Result<(), OpError> {
        op.check()?;
        let len = op.m * op.k;
        super::layernorm::layernorm(
            &self.threads,
            self.simd,
            &mut op.x.as_mut_slice()[..len],
            op.delta.map(Buffer::as_slice),
            super::layernorm::Affine {
                weight: op.weight.map(Buffer::as_slice),
                bias: op.bias.map(Buffer::as_slice),
            },
            &mut op.y.as_mut_slice()[..len],
            op.k,
            op.eps,
        );
        Ok(())
    }

    fn softmax<T: Float>(&self, op: Softmax<'_, Self, T>) -> Result<(), OpError> {
        use super::softmax::Mask;
        op.check()?;
        let mask = match op.mask {
            ops::softmax::Mask::None => Mask::None,
            ops::softmax::Mask::Added { mask, rows } => {
                Mask::Added(&mask.as_slice()[..rows * op.k])
            }
            ops::softmax::Mask::Causal { queries } => Mask::Causal(queries),
        };
        let (x, y) = (op.x.as_slice(), &mut op.y.as_mut_slice()[..op.m * op.k]);
        super::softmax::softmax(&self.threads, self.simd, x, mask, y, op.k, op.scale, op.log);
        Ok(())
    }

    fn activation<T: Float>(&self, op: Activation<'_, Self, T>) -> Result<(), OpError> {
        use ops::activation::Source;
        op.check()?;
        let (threads, simd, kind) = (&self.threads, self.simd, op.kind);
        let y = &mut op.y.as_mut_slice()[..op.m * op.k];
        match op.source {
            Source::Plain { x } => {
                super::activation::activation(threads, simd, kind, x.as_slice(), None, y);
            }
            Source::Gated { gate, up } => {
                let (gate, up) = (gate.as_slice(), Some(up.as_slice()));
                super::activation::activation(threads, simd, kind, gate, up, y);
            }
            Source::Fused { gate_up } => {
                super::activation::fused(threads, simd, kind, gate_up.as_slice(), y, op.k);
            }
        }
        Ok(())
    }

    fn elementwise<T: Float>(&self, op: Elementwise<'_, Self, T>) -> Result<(), OpError> {
        use ops::elementwise::Operand;
        op.check()?;
        let (function, b, alpha, beta) = op.function.parts();
        let form = super::elementwise::Form { function, alpha, beta, relu: op.relu };
        let len = op.m * op.k;
        let b = b.map(|b| match b {
            Operand::Rows(b) => &b.as_slice()[..len],
            Operand::Row(b) => &b.as_slice()[..op.k],
        });
        let (a, y) = (op.a.as_slice(), &mut op.y.as_mut_slice()[..len]);
        super::elementwise::elementwise(&self.threads, self.simd, form, a, b, y, op.k);
        Ok(())
    }

    fn pool2d<T: Float>(&self, op: Pool2d<'_, Self, T>) -> Result<(), OpError> {
        super::products::pool2d(self, op)
    }

    fn act_quant(&self, op: ActQuant<'_, Self>) -> Result<(), OpError> {
        super::products::act_quant(self, op)
    }

    fn w2a8_gemv(&self, op: ops::w2a8_gemv::W2a8Gemv<'_, Self>) -> Result<(), OpError> {
        op.check()?;
        super::w2a8_gemv::w2a8_gemv(
            &self.threads,
            self.simd,
            op.w.words().as_slice(),
            op.w.k(),
            op.w.segments(),
            op.acts.acts.as_slice(),
            op.acts.stats.as_slice()[0],
            &mut hold(&self.planes),
            op.y.as_mut_slice(),
        )
    }

    fn w2a8_gemm(&self, op: ops::w2a8_gemm::W2a8Gemm<'_, Self>) -> Result<(), OpError> {
        op.check()?;
        super::w2a8_gemm::w2a8_gemm(
            &self.threads,
            self.simd,
            op.w.words().as_slice(),
            op.w.k(),
            op.w.segments(),
            op.acts.acts.as_slice(),
            &op.acts.stats.as_slice()[..op.m],
            &mut hold(&self.planes),
            op.y.as_mut_slice(),
        )
    }

    fn w2a8_trits(&self, op: ops::w2a8_trits::W2a8Trits<'_, Self>) -> Result<(), OpError> {
        super::products::w2a8_trits(self, op)
    }

    fn rope(&self, op: ops::rope::Rope<'_, Self>) -> Result<(), OpError> {
        op.check()?;
        super::rope::rope(
            &self.threads,
            self.simd,
            op.x.as_mut_slice(),
            angles(op.table),
            op.start.as_slice()[op.start_at],
            op.m,
            op.heads,
            op.row_stride,
        );
        Ok(())
    }

    fn image_quant<T: Float>(
        &self,
        op: ops::image_quant::ImageQuant<'_, Self, T>,
    ) -> Result<(), OpError> {
        op.check()?;
        let all = op.n * op.len;
        let (x, q) = (&op.x.as_slice()[..all], &mut op.q.as_mut_slice()[..all]);
        let scales = &mut op.scales.as_mut_slice()[..op.n];
        super::image_quant::image_quant(&self.threads, self.simd, x, q, scales, op.len);
        Ok(())
    }

    fn kv_append(&self, op: ops::kv_append::KvAppend<'_, Self>) -> Result<(), OpError> {
        op.check()?;
        let cache = CacheMut {
            k: op.cache.k.as_mut_slice(),
            v: op.cache.v.as_mut_slice(),
            element: op.cache.element,
            capacity: op.cache.capacity,
        };
        super::kv_append::kv_append(
            &self.threads,
            self.simd,
            op.qkv.as_mut_slice(),
            cache,
            op.rope.map(angles),
            op.start.as_slice()[op.start_at],
            op.m,
            op.heads,
        );
        Ok(())
    }

    fn attention(&self, op: ops::attention::Attention<'_, Self>) -> Result<(), OpError> {
        op.check()?;
        let cache = Cache {
            k: op.cache.k.as_slice(),
            v: op.cache.v.as_slice(),
            element: op.cache.element,
            capacity: op.cache.capacity,
        };
        let scale = op.scale();
        super::attention::attention(
            &self.threads,
            self.simd,
            op.qkv.as_slice(),
            cache,
            op.out.as_mut_slice(),
            op.start.as_slice()[op.start_at],
            op.m,
            op.heads,
            scale,
        );
        Ok(())
    }

    fn attention_paged(
        &self,
        op: ops::attention_paged::AttentionPaged<'_, Self>,
    ) -> Result<(), OpError> {
        super::products::attention_paged(self, op, &mut hold(&self.qkv))
    }

    fn copy_pages(&self, op: ops::attention_paged::CopyPages<'_, Self>) -> Result<(), OpError> {
        op.run(self)
    }

    fn attention_step(
        &self,
        op: ops::attention_step::AttentionStep<'_, Self>,
    ) -> Result<(), OpError> {
        op.check()?;
        let scale = op.scale();
        let cache = CacheMut {
            k: op.cache.k.as_mut_slice(),
            v: op.cache.v.as_mut_slice(),
            element: op.cache.element,
            capacity: op.cache.capacity,
        };
        super::attention_step::attention_step(
            &self.threads,
            self.simd,
            op.qkv.as_slice(),
            cache,
            angles(op.rope),
            op.out.as_mut_slice(),
            op.start.as_slice()[op.start_at],
            op.heads,
            scale,
            &mut hold(&self.qkv),
        );
        Ok(())
    }

    fn bit_linear(&self, op: ops::bit_linear::BitLinear<'_, Self>) -> Result<(), OpError> {
        use super::bit_linear::Finish;
        op.check()?;
        let k = op.w.k();
        let (finish, y) = match op.finish {
            ops::bit_linear::Finish::Store { y } => (Finish::Store, y),
            ops::bit_linear::Finish::Add { y } => (Finish::Add, y),
            ops::bit_linear::Finish::Gated { gate, y } => (Finish::Gated(gate), y),
        };
        super::bit_linear::bit_linear(
            &self.threads,
            self.simd,
            &op.x.as_slice()[..k],
            op.norm.as_ref().map(|norm| (&norm.weight.as_slice()[..k], norm.eps)),
            op.w.words().as_slice(),
            op.w.segments(),
            finish,
            &mut hold(&self.row),
            &mut hold(&self.planes),
            y.as_mut_slice(),
        )
    }

    fn decode_layers(&self, op: ops::decode_layers::DecodeLayers<'_, Self>) -> Result<(), OpError> {
        super::decode_layers::decode_layers(self, op)
    }

    fn decode_rows(
        &self,
        op: ops::decode_layers::rows::DecodeRows<'_, Self>,
    ) -> Result<(), OpError> {
        super::decode_layers::decode_rows(self, op)
    }

    fn lm_head(&self, op: ops::lm_head::LmHead<'_, Self>) -> Result<(), OpError> {
        op.check()?;
        let x = &op.x.as_slice()[op.x_at..];
        let logits = op.logits.as_mut_slice();
        super::lm_head::lm_head(&self.threads, self.simd, x, table(op.w), logits, op.m);
        Ok(())
    }

    fn lm_head_int8_pack(&self, op: ops::lm_head_int8::Pack<'_, Self>) -> Result<(), OpError> {
        super::products::lm_head_int8_pack(self, op)
    }

    fn lm_head_int8(&self, op: ops::lm_head_int8::LmHeadInt8<'_, Self>) -> Result<(), OpError> {
        super::products::lm_head_int8(self, op)
    }

    fn conv2d<T: Float>(&self, op: ops::conv2d::Conv2d<'_, Self, T>) -> Result<(), OpError> {
        super::products::conv2d(self, op)
    }

    fn conv2d_finish<T: Float>(&self, op: ops::conv2d::Finish<'_, Self, T>) -> Result<(), OpError> {
        super::products::conv2d_finish(op)
    }

    fn conv2d_i8(&self, op: ops::conv2d::Conv2dI8<'_, Self>) -> Result<(), OpError> {
        super::products::conv2d_i8(self, op)
    }

    fn conv2d_ternary<T: Float>(
        &self,
        op: ops::conv2d::Conv2dTernary<'_, Self, T>,
    ) -> Result<(), OpError> {
        super::products::conv2d_ternary(self, op)
    }

    fn lut_matmul(&self, op: ops::lut_matmul::LutMatmul<'_, Self>) -> Result<(), OpError> {
        super::products::lut_matmul(self, op)
    }

    fn lut_build_lossy(&self, op: ops::lut_matmul::LutBuildLossy<'_, Self>) -> Result<(), OpError> {
        super::products::lut_build_lossy(self, op)
    }

    fn lut_matmul_lossy(
        &self,
        op: ops::lut_matmul::LutMatmulLossy<'_, Self>,
    ) -> Result<(), OpError> {
        super::products::lut_matmul_lossy(self, op)
    }

    fn sparse_linear<W: ops::Float, X: ops::Float>(
        &self,
        op: ops::sparse::Linear<'_, Self, W, X>,
    ) -> Result<(), OpError> {
        super::products::sparse_linear(self, op)
    }

    fn sparse_conv2d<W: ops::Float, X: ops::Float>(
        &self,
        op: ops::sparse::Conv2d<'_, Self, W, X>,
    ) -> Result<(), OpError> {
        super::products::sparse_conv2d(self, op)
    }

    fn sparse_csr<W: ops::Float, X: ops::Float>(
        &self,
        op: ops::sparse::LinearCsr<'_, Self, W, X>,
    ) -> Result<(), OpError> {
        super::products::sparse_csr(self, op)
    }

    fn sparse_ternary(&self, op: ops::sparse::LinearTernary<'_, Self>) -> Result<(), OpError> {
        super::products::sparse_ternary(self, op)
    }

    fn bmm<T: ops::bmm::Operand>(&self, op: ops::bmm::Bmm<'_, Self, T>) -> Result<(), OpError> {
        super::products::bmm(self, op)
    }

    fn sample(&self, op: ops::sample::Sample<'_, Self>) -> Result<(), OpError> {
        super::products::sample(self, op)
    }

    fn allow(&self, op: ops::sample::Allow<'_, Self>) -> Result<(), OpError> {
        super::products::allow(op)
    }

    fn logprobs(&self, op: ops::logprobs::Logprobs<'_, Self>) -> Result<(), OpError> {
        super::products::logprobs(self, op)
    }
}

#[cfg(test)]
mod tests;
