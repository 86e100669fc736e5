//! Operations on an NVIDIA GPU: buffers from the pool, one stream, one launch each.

mod kernels;
mod scratch;

use std::sync::OnceLock;

use contract::launch::{DevPtr, Kernel};
use contract::num::RowType;
use contract::parts::{EXCHANGE_SLOTS, PartArgs, parts};
use contract::row::{self, Family};

use super::attention_paged::{PageType, splits};
use super::choices::{Choices, Problem};
use super::error::{apart, place};
use super::{Backend, Element, Float, OpError, Tensor, TokenLog, kv_append::Heads};
use crate::driver::{Call, Cuda, CudaError, CudaOptions, Graph, LaunchError, Stream};
use crate::memory::{DeviceBuffer, MappedBuffer, MemoryUsage};
use crate::profile::Profile;

/// A buffer on the device.
pub(super) type Buf<T> = DeviceBuffer<T>;

/// A GPU with its kernels, ready to run operations.
pub struct CudaBackend {
    cuda: Cuda,
    kernels: kernels::Kernels,
    choices: Choices,
    exchange: OnceLock<Buf<u32>>,
    scratch: scratch::Scratch,
}

/// The address of element `index`.
pub(super) fn at<T>(base: DevPtr<T>, index: usize) -> DevPtr<T> {
    DevPtr::from_addr(base.addr() + (index * size_of::<T>()) as u64)
}

/// A grid of `blocks` on its first axis.
pub(super) fn blocks(op: &'static str, blocks: u64) -> Result<[u32; 3], OpError> {
    match i32::try_from(blocks) {
        Ok(blocks) => Ok([blocks as u32, 1, 1]),
        Err(_) => Err(OpError::Dimension {
            op,
            what: "number of blocks",
            found: blocks as usize,
            allowed: "a launch takes 2^31 - 1; split the tensor",
        }),
    }
}

impl CudaBackend {
    /// Opens a device and loads its kernels.
    ///
    /// # Errors
    /// No driver or device, no PTX that fits, or a driver failure.
    pub fn open(options: CudaOptions) -> Result<Self, OpError> {
        Self::new(options.build()?)
    }

    /// Runs on an opened device.
    ///
    /// # Errors
    /// A kernel that the device cannot have.
    pub fn new(cuda: Cuda) -> Result<Self, OpError> {
        let (kernels, choices) = (kernels::Kernels::new(), Choices::default());
        let (exchange, scratch) = (OnceLock::new(), scratch::Scratch::default());
        let backend = Self { cuda, kernels, choices, exchange, scratch };
        backend.load_model_kernels().map_err(CudaError::from)?;
        Ok(backend)
    }

    fn load_model_kernels(&self) -> Result<(), LaunchError> {
        for (index, kernel) in contract::KERNELS.iter().enumerate() {
            if contract::MODEL_FAMILIES.contains(&kernel.family) {
                match self.kernels.get(index, self.cuda.module()) {
                    // Another kernel of the family does what this device cannot have.
                    Err(error) if !error.is_absent() => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The opened device.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// Queues operations on `stream` from now on, and gives back the stream before.
    ///
    /// # Errors
    /// A stream of another device.
    pub fn set_stream(&mut self, stream: Stream) -> Result<Stream, OpError> {
        Ok(self.cuda.set_stream(stream)?)
    }

    /// The variants that run instead of those of the families' own rules.
    pub fn choices(&self) -> &Choices {
        &self.choices
    }

    /// Runs these variants from now on. Results do not change, times may; what was recorded keeps its own.
    ///
    /// # Errors
    /// A variant that this device cannot run; nothing has changed then.
    pub fn set_choices(&mut self, choices: Choices) -> Result<(), OpError> {
        if let Some((problem, found)) = choices.iter().find(|&(p, index)| !self.runs(p, index)) {
            return Err(OpError::Dimension {
                op: problem.family().name(),
                what: "variant",
                found,
                allowed: "this device cannot run the chosen one; leave the choice out",
            });
        }
        self.choices = choices;
        Ok(())
    }

    /// Whether this device can run variant `index` for `problem`.
    pub fn runs(&self, problem: &Problem, index: usize) -> bool {
        use super::choices::Family;
        let device = self.cuda.device();
        let family = problem.family();
        problem.eligible(index, device.sm_count())
            && match family {
                Family::W2a8Gemm => super::w2a8_gemm::has_variant(self, index),
                // Every level has these kernels.
                Family::BitLinear | Family::W2a8Gemv | Family::W2a8Trits => family
                    .spec(index)
                    .is_some_and(|spec| device.limits().check(spec, [1; 3]).is_ok()),
            }
    }

    pub(super) fn stream(&self) -> &Stream {
        self.cuda.stream()
    }

    /// Queues one launch of `K`. The first one compiles its PTX for the device, unless that was done when the
    /// device was opened or the driver has it in its cache.
    ///
    /// # Safety
    /// As [`KernelHandle::launch`].
    pub(super) unsafe fn launch<K: Kernel>(
        &self,
        grid: [u32; 3],
        args: K::Args,
    ) -> Result<(), OpError> {
        // SAFETY: by the caller; the arguments are of the kernel in this place, whose name is its own.
        unsafe { self.launch_call(kernels::Place::<K>::INDEX, grid, Call::of::<K>(&args)) }
    }

    /// [`CudaBackend::launch`] of the kernel at `index` of `contract::KERNELS`: compiled once for all of them.
    ///
    /// # Safety
    /// As for that; `call` is of that kernel.
    unsafe fn launch_call(
        &self,
        index: usize,
        grid: [u32; 3],
        call: Call<'_>,
    ) -> Result<(), OpError> {
        let kernel = self.kernels.get(index, self.cuda.module())?;
        if self.scratch.counts() {
            return Ok(());
        }
        // SAFETY: by the caller.
        unsafe { kernel.launch(self.stream(), grid, call)? };
        Ok(())
    }

    /// Queues the rows of `F`, `m` of `k` elements of such a type: in parts where they are longer than it has whole, and the device has the kernel.
    ///
    /// # Safety
    /// As [`KernelHandle::launch`], of each kernel of the family.
    pub(super) unsafe fn launch_rows<F: Family>(
        &self,
        element: RowType,
        shape: [u32; 2],
        rows: F::Args,
    ) -> Result<(), OpError> {
        // SAFETY: by the caller.
        unsafe {
            match element {
                RowType::F32 => self.launch_rows_of::<F, F::F32>(4, shape, rows),
                RowType::F16 => self.launch_rows_of::<F, F::F16>(2, shape, rows),
                RowType::Bf16 => self.launch_rows_of::<F, F::Bf16>(2, shape, rows),
            }
        }
    }

    /// [`CudaBackend::launch_rows`] by kernels for elements of so many bytes.
    ///
    /// # Safety
    /// As for that.
    unsafe fn launch_rows_of<F: Family, K: row::Kernels<F::Args>>(
        &self,
        bytes: u32,
        [m, k]: [u32; 2],
        rows: F::Args,
    ) -> Result<(), OpError> {
        use contract::ring;
        use contract::row::{Owner, SHORT, grid_of_blocks, grid_of_lanes, lies_in_room, owner};
        let sms = self.cuda.device().sm_count().max(1);
        // SAFETY: by the caller.
        unsafe {
            debug_assert!(F::rows(&rows).is_multiple_of(16), "buffers start where allocations do");
            // Where there are long blocks, nobody else has these rows.
            if k > F::WHOLE && (self.has::<K::Long>() || self.has::<K::Parts>()) {
                return self.launch_parts::<F, K::Parts>(bytes, [m, k], rows);
            }
            let at_once = |min_blocks_per_sm: u32| min_blocks_per_sm.max(1) * sms;
            if F::together(&rows, bytes)
                && F::rows(&rows).is_multiple_of(16)
                && self.has::<K::Small>()
            {
                let (small, in_words) = (F::small(&rows), F::small(&rows).paired(k, bytes));
                let spec = if in_words { K::Words::SPEC } else { K::Small::SPEC };
                let grid = [small.grid(m, k, bytes, at_once(spec.min_blocks_at(u32::MAX))), 1, 1];
                return if in_words {
                    self.launch::<K::Words>(grid, rows)
                } else {
                    self.launch::<K::Small>(grid, rows)
                };
            }
            let blocks = |min_blocks_per_sm: u32| {
                let at_once = at_once(min_blocks_per_sm);
                grid_of_blocks(m, k, bytes, F::IN_TURN, at_once)
            };
            // Rows that start anywhere, unless they do not even start with the tensors.
            let held = F::HELD[bytes as usize / 4];
            let turned = !(bytes * k).is_multiple_of(16)
                && F::rows(&rows).is_multiple_of(16)
                && lies_in_room(k, held);
            let adds = F::adds(&rows);
            if F::BESIDE > 0
                && F::rows(&rows).is_multiple_of(16)
                && ring::goes([m, k], bytes, (F::BESIDE, adds), sms)
                && self.has::<K::Turned>()
            {
                return self.launch::<K::Turned>([ring::grid(m, k, bytes, sms), 1, 1], rows);
            }
            match owner(k, bytes, F::LANE) {
                // A warp has a row whose last piece is one more than its lanes hold.
                Owner::Block
                    if turned && k <= SHORT && F::BESIDE == 0 && self.has::<K::Turned>() =>
                {
                    let grid = [grid_of_lanes(m, k, bytes, 32), 1, 1];
                    self.launch::<K::Short>(grid, rows)
                }
                Owner::Block if turned && F::BESIDE == 0 && self.has::<K::Turned>() => {
                    // They go in turn in every family.
                    let at_once = at_once(K::Turned::SPEC.min_blocks_per_sm);
                    let grid = [grid_of_blocks(m, k, bytes, true, at_once), 1, 1];
                    self.launch::<K::Turned>(grid, rows)
                }
                Owner::LongBlock if turned && self.has::<K::LongTurned>() => {
                    let clusters = blocks(K::LongTurned::SPEC.min_blocks_per_sm);
                    let grid = [clusters * K::LongTurned::cluster(&rows), 1, 1];
                    self.launch::<K::LongTurned>(grid, rows)
                }
                Owner::Lanes(lanes) => {
                    let grid = [grid_of_lanes(m, k, bytes, lanes), 1, 1];
                    self.launch::<K::Short>(grid, rows)
                }
                Owner::LongBlock if self.has::<K::Long>() => {
                    let clusters = blocks(K::Long::SPEC.min_blocks_per_sm);
                    self.launch::<K::Long>([clusters * K::Long::cluster(&rows), 1, 1], rows)
                }
                Owner::Block | Owner::LongBlock => {
                    // As many as the newer levels ask for: older GPUs, where fewer fit, have them one after the other.
                    let grid = [blocks(K::Middle::SPEC.min_blocks_at(u32::MAX)), 1, 1];
                    self.launch::<K::Middle>(grid, rows)
                }
            }
        }
    }

    /// Queues launches of `P`, the parts of `m` rows of `k` elements of so many bytes.
    ///
    /// # Safety
    /// As [`KernelHandle::launch`].
    unsafe fn launch_parts<F: Family, P: Kernel<Args = PartArgs<F::Args>>>(
        &self,
        bytes: u32,
        [m, k]: [u32; 2],
        rows: F::Args,
    ) -> Result<(), OpError> {
        use contract::norm::same_parts;
        let parts = parts(k);
        let at_once = P::SPEC.min_blocks_per_sm * self.cuda.device().sm_count().max(1);
        let same = F::SAME_PARTS && same_parts(bytes, parts) && parts <= at_once;
        let blocks = if same { at_once / parts * parts } else { at_once };
        let (exchange, most) = (self.exchange()?, EXCHANGE_SLOTS / parts);
        let mut first = 0;
        while first < m {
            let count = most.min(m - first);
            // SAFETY: by the caller; the rows' parts have slots, and the launch before this one on the stream has ended with them.
            unsafe {
                let grid = [blocks.min(count * parts), 1, 1];
                self.launch::<P>(grid, PartArgs { rows, exchange, first, count })?;
            }
            first += count;
        }
        Ok(())
    }

    /// Whether the device and the loaded PTX have `K`. True also where the driver refuses it: the launch is to say so,
    /// instead of a slower kernel hiding it.
    pub(super) fn has<K: Kernel>(&self) -> bool {
        !self.kernels.lacks(kernels::Place::<K>::INDEX, self.cuda.module())
    }
}

impl<T: Element> Tensor for DeviceBuffer<T> {
    fn len(&self) -> usize {
        self.len()
    }
}

impl TokenLog for MappedBuffer<u32> {
    fn len(&self) -> usize {
        self.len()
    }

    fn get(&self, step: usize) -> u32 {
        self.load(step).unwrap_or(Self::EMPTY)
    }

    fn put(&mut self, step: usize, token: u32) {
        self.store(step, token);
    }

    fn clear_part(&mut self, range: std::ops::Range<usize>) {
        for index in range {
            self.store(index, Self::EMPTY);
        }
    }
}

macro_rules! float_launches {
    ($($op:ident: $operation:ident,)*) => { $(
        fn $op<T: Float>(&self, op: super::$op::$operation<'_, Self, T>) -> Result<(), OpError> {
            op.launch(self)
        }
    )* };
}

macro_rules! launches {
    ($($op:ident: $operation:ident,)*) => { $(
        fn $op(&self, op: super::$op::$operation<'_, Self>) -> Result<(), OpError> {
            op.launch(self)
        }
    )* };
}

impl Backend for CudaBackend {
    type Buf<T: Element> = DeviceBuffer<T>;
    type TokenLog = MappedBuffer<u32>;
    type Recording = Graph;

    const AHEAD: usize = 4;
    const MOST_PREFILL_ROWS: usize = 4096;

    fn describe(&self) -> String {
        let (device, module) = (self.cuda.device(), self.cuda.module());
        format!("cuda:{} {} ({})", device.ordinal(), device.info().name, module.loaded_level())
    }

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> Result<Buf<T>, OpError> {
        if let Some(lent) = self.scratch(label, len) {
            return lent;
        }
        let buffer = self.cuda.pool().alloc(self.stream(), len, label);
        Ok(buffer.map_err(CudaError::from)?)
    }

    fn alloc_tokens(&self, len: usize) -> Result<MappedBuffer<u32>, OpError> {
        let mut log = MappedBuffer::new(self.cuda.device(), len).map_err(CudaError::from)?;
        log.clear();
        Ok(log)
    }

    fn write<T: Element>(&self, dst: &mut Buf<T>, at: usize, src: &[T]) -> Result<(), OpError> {
        let place = place("write", at, src.len(), dst.len())?;
        let copy = dst.slice_mut(place).and_then(|mut to| to.upload(self.stream(), src));
        Ok(copy.map_err(CudaError::from)?)
    }

    fn read<T: Element>(&self, src: &Buf<T>, at: usize, dst: &mut [T]) -> Result<(), OpError> {
        let place = place("read", at, dst.len(), src.len())?;
        let copy = src.slice(place).and_then(|from| from.download_into(self.stream(), dst));
        Ok(copy.map_err(CudaError::from)?)
    }

    fn copy_within<T: Element>(
        &self,
        buf: &mut Buf<T>,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<(), OpError> {
        let [from, to] = apart("copy_within", from, to, len, buf.len())?;
        let (up, middle) = (from.start < to.start, from.start.max(to.start));
        let copy = buf.as_slice_mut().split_at(middle).and_then(|(mut low, mut high)| match up {
            true => high
                .reborrow()
                .slice_mut(..len)?
                .copy_from(self.stream(), low.as_slice().slice(from)?),
            false => low
                .reborrow()
                .slice_mut(to)?
                .copy_from(self.stream(), high.as_slice().slice(..len)?),
        });
        Ok(copy.map_err(CudaError::from)?)
    }

    fn fill<T: Element>(&self, dst: &mut Buf<T>, byte: u8) -> Result<(), OpError> {
        Ok(dst.fill_bytes(self.stream(), byte).map_err(CudaError::from)?)
    }

    fn synchronize(&self) -> Result<(), OpError> {
        Ok(self.stream().synchronize().map_err(CudaError::from)?)
    }

    fn is_idle(&self) -> Result<bool, OpError> {
        Ok(self.stream().is_idle().map_err(CudaError::from)?)
    }

    fn memory(&self) -> MemoryUsage {
        self.cuda.pool().usage()
    }

    fn room_for_copies(&self) -> Result<usize, OpError> {
        // Without dp4a products of int8 take longer than the bytes that they save.
        match self.cuda.device().sm() {
            ..=60 => Ok(0),
            _ => Ok(self.cuda.pool().room().map_err(CudaError::from)?),
        }
    }

    fn profile(&self) -> Result<Option<Profile>, OpError> {
        let profiler = self.cuda.device().profiler();
        Ok(profiler.map(|p| p.report()).transpose().map_err(CudaError::from)?)
    }

    fn record(&self, f: impl FnOnce() -> Result<(), OpError>) -> Result<Option<Graph>, OpError> {
        Ok(Some(self.stream().capture(|_| f())?.0))
    }

    fn replay(&self, graph: &Graph) -> Result<(), OpError> {
        Ok(graph.launch(self.stream()).map_err(CudaError::from)?)
    }

    fn runs_together(&self, shape: &contract::decode_layers::Shape) -> bool {
        let sms = self.cuda.device().sm_count().max(1);
        shape.blocks(sms).is_some() && self.has::<contract::decode_layers::DecodeLayers>()
    }

    fn runs_rows_together(&self, shape: &contract::decode_layers::Shape, rows: usize) -> bool {
        super::decode_layers::rows::runs_together(self, shape, rows)
    }

    fn keeps_logits(&self, w: &super::Dense<Self>, m: usize) -> bool {
        super::lm_head_int8::keeps_logits(self, w, m)
    }

    fn pages_of_block(&self, heads: Heads, positions: &[usize]) -> Option<usize> {
        use contract::attention_paged::{PAGE, WalkBf16, step_parts, step_share, step_takes};
        let Heads { heads, kv_heads, head_dim } = heads;
        if !step_takes(head_dim) || kv_heads == 0 || !self.has::<WalkBf16>() {
            return None;
        }
        let units = kv_heads as u32 * step_parts((heads / kv_heads) as u32);
        let whole = positions.iter().map(|position| (position / PAGE) as u32);
        step_share(units, whole, self.cuda.device().sm_count()).map(|share| share as usize)
    }

    fn splits(&self, heads: Heads, pages: PageType, positions: usize) -> bool {
        splits(self, (pages, heads), positions)
    }

    fn address<T: Element>(&self, buf: &Buf<T>) -> u64 {
        buf.dev_ptr(self.stream()).addr()
    }

    float_launches! {
        activation: Activation,
        conv2d: Conv2d,
        elementwise: Elementwise,
        image_quant: ImageQuant,
        layernorm: LayerNorm,
        pool2d: Pool2d,
        rmsnorm: RmsNorm,
        softmax: Softmax,
    }

    fn decode_rows(
        &self,
        op: super::decode_layers::rows::DecodeRows<'_, Self>,
    ) -> Result<(), OpError> {
        op.launch(self)
    }

    fn copy_pages(&self, op: super::attention_paged::CopyPages<'_, Self>) -> Result<(), OpError> {
        op.launch(self)
    }

    fn lm_head_int8_pack(&self, op: super::lm_head_int8::Pack<'_, Self>) -> Result<(), OpError> {
        op.launch(self)
    }

    fn lut_build_lossy(
        &self,
        op: super::lut_matmul::LutBuildLossy<'_, Self>,
    ) -> Result<(), OpError> {
        op.launch(self)
    }

    fn lut_matmul_lossy(
        &self,
        op: super::lut_matmul::LutMatmulLossy<'_, Self>,
    ) -> Result<(), OpError> {
        op.launch(self)
    }

    fn conv2d_finish<T: Float>(
        &self,
        op: super::conv2d::Finish<'_, Self, T>,
    ) -> Result<(), OpError> {
        op.launch(self)
    }

    fn conv2d_i8(&self, op: super::conv2d::Conv2dI8<'_, Self>) -> Result<(), OpError> {
        op.launch(self)
    }

    fn conv2d_ternary<T: super::Float>(
        &self,
        op: super::conv2d::Conv2dTernary<'_, Self, T>,
    ) -> Result<(), OpError> {
        op.launch(self)
    }

    fn sparse_linear<W: super::Float, X: super::Float>(
        &self,
        op: super::sparse::Linear<'_, Self, W, X>,
    ) -> Result<(), OpError> {
        op.launch(self)
    }

    fn sparse_csr<W: super::Float, X: super::Float>(
        &self,
        op: super::sparse::LinearCsr<'_, Self, W, X>,
    ) -> Result<(), OpError> {
        op.launch(self)
    }

    fn sparse_conv2d<W: super::Float, X: super::Float>(
        &self,
        op: super::sparse::Conv2d<'_, Self, W, X>,
    ) -> Result<(), OpError> {
        op.launch(self)
    }

    fn sparse_ternary(&self, op: super::sparse::LinearTernary<'_, Self>) -> Result<(), OpError> {
        op.launch(self)
    }

    fn bmm<T: super::bmm::Operand>(&self, op: super::bmm::Bmm<'_, Self, T>) -> Result<(), OpError> {
        op.launch(self)
    }

    fn allow(&self, op: super::sample::Allow<'_, Self>) -> Result<(), OpError> {
        op.launch(self)
    }

    launches! {
        embed: Embed,
        act_quant: ActQuant,
        w2a8_gemv: W2a8Gemv,
        w2a8_gemm: W2a8Gemm,
        w2a8_trits: W2a8Trits,
        rope: Rope,
        kv_append: KvAppend,
        attention: Attention,
        attention_paged: AttentionPaged,
        attention_step: AttentionStep,
        bit_linear: BitLinear,
        decode_layers: DecodeLayers,
        lm_head: LmHead, lm_head_int8: LmHeadInt8, logprobs: Logprobs,
        lut_matmul: LutMatmul,
        sample: Sample,
    }
}
