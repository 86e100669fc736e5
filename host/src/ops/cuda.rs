//! Operations on an NVIDIA GPU: buffers from the pool, one stream, one launch each.

use contract::launch::{DevPtr, Kernel};
use contract::{
    act_quant, attention, embed, kv_append, lm_head, relu2_mul, rmsnorm, rope, sample, silu_mul,
    w2a8_gemm, w2a8_gemv,
};

use super::{Backend, Element, OpError, Tensor, TokenLog};
use crate::driver::{
    Cuda, CudaError, CudaOptions, Graph, KernelHandle, LaunchError, Module, Stream,
};
use crate::memory::{DeviceBuffer, MappedBuffer, MemoryUsage};
use crate::profile::Profile;

/// A buffer on the device.
pub(super) type Buf<T> = DeviceBuffer<T>;

/// A GPU with its kernels, ready to run operations.
pub struct CudaBackend {
    cuda: Cuda,
    kernels: Kernels,
}

/// A variant of [`w2a8_gemv`], whichever its type.
pub(super) trait GemvLaunch: Send + Sync {
    /// # Safety
    /// As [`KernelHandle::launch`].
    unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        args: w2a8_gemv::Args,
    ) -> Result<(), LaunchError>;
}

impl<K: Kernel<Args = w2a8_gemv::Args>> GemvLaunch for KernelHandle<K> {
    unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        args: w2a8_gemv::Args,
    ) -> Result<(), LaunchError> {
        // SAFETY: by the caller.
        unsafe { self.launch(stream, grid, args) }
    }
}

fn handle<K: Kernel>(module: &Module) -> Result<KernelHandle<K>, LaunchError> {
    let handle = module.kernel::<K>()?;
    // SAFETY: every kernel waits for its predecessors (`arch::grid::dependency_wait`) before it
    // touches what another kernel may write, and before it writes; the PTX audit counts the waits.
    Ok(unsafe { handle.with_pdl() })
}

macro_rules! kernels {
    ($($field:ident: $family:ident::$kernel:ident,)*) => {
        /// Handles of all kernels.
        pub(super) struct Kernels {
            $(pub(super) $field: KernelHandle<$family::$kernel>,)*
            /// In the order of [`w2a8_gemv::VARIANTS`].
            pub(super) w2a8_gemv: Vec<Box<dyn GemvLaunch>>,
        }

        impl Kernels {
            fn load(module: &Module) -> Result<Self, LaunchError> {
                Ok(Self { $($field: handle(module)?,)* w2a8_gemv: gemv_handles(module)? })
            }
        }
    };
}

kernels! {
    act_quant: act_quant::ActQuant,
    act_quant_rmsnorm: act_quant::ActQuantRmsNorm,
    act_quant_relu2: act_quant::ActQuantRelu2,
    act_quant_silu: act_quant::ActQuantSilu,
    attention_bf16: attention::AttentionBf16,
    attention_f32: attention::AttentionF32,
    attention_split_bf16: attention::AttentionSplitBf16,
    attention_split_f32: attention::AttentionSplitF32,
    embed_bf16: embed::EmbedBf16,
    embed_f16: embed::EmbedF16,
    embed_f32: embed::EmbedF32,
    kv_append_bf16: kv_append::KvAppendBf16,
    kv_append_f32: kv_append::KvAppendF32,
    kv_append_rope_bf16: kv_append::KvAppendRopeBf16,
    kv_append_rope_f32: kv_append::KvAppendRopeF32,
    lm_head_bf16: lm_head::LmHeadBf16,
    lm_head_f16: lm_head::LmHeadF16,
    lm_head_f32: lm_head::LmHeadF32,
    relu2_mul: relu2_mul::Relu2Mul,
    rmsnorm: rmsnorm::RmsNorm,
    rope: rope::Rope,
    sample_prepare: sample::SamplePrepare,
    sample_pick: sample::SamplePick,
    silu_mul: silu_mul::SiluMul,
    w2a8_gemm: w2a8_gemm::W2a8Gemm,
}

macro_rules! gemv_handles {
    ($($name:ident $symbol:literal $lanes:literal $rows:literal $unroll:literal;)*) => {
        fn gemv_handles(module: &Module) -> Result<Vec<Box<dyn GemvLaunch>>, LaunchError> {
            Ok(vec![$(Box::new(handle::<w2a8_gemv::$name>(module)?)),*])
        }
    };
}
contract::for_each_w2a8_gemv!(gemv_handles);

/// The address of element `index`.
pub(super) fn at<T>(base: DevPtr<T>, index: usize) -> DevPtr<T> {
    DevPtr::from_addr(base.addr() + (index * size_of::<T>()) as u64)
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
        let kernels = Kernels::load(cuda.module()).map_err(CudaError::from)?;
        Ok(Self { cuda, kernels })
    }

    /// The opened device.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    pub(super) fn stream(&self) -> &Stream {
        self.cuda.stream()
    }

    pub(super) fn kernels(&self) -> &Kernels {
        &self.kernels
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

    fn clear(&mut self) {
        for index in 0..self.len() {
            self.store(index, Self::EMPTY);
        }
    }
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

    fn describe(&self) -> String {
        let (device, module) = (self.cuda.device(), self.cuda.module());
        format!("cuda:{} {} ({})", device.ordinal(), device.info().name, module.loaded_level())
    }

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> Result<Buf<T>, OpError> {
        let buffer = self.cuda.pool().alloc(self.stream(), len, label);
        Ok(buffer.map_err(CudaError::from)?)
    }

    fn alloc_tokens(&self, len: usize) -> Result<MappedBuffer<u32>, OpError> {
        let mut log = MappedBuffer::new(self.cuda.device(), len).map_err(CudaError::from)?;
        log.clear();
        Ok(log)
    }

    fn write<T: Element>(&self, dst: &mut Buf<T>, at: usize, src: &[T]) -> Result<(), OpError> {
        let len = dst.len();
        let end = at.checked_add(src.len()).filter(|&end| end <= len);
        let end = end.ok_or(OpError::Range { op: "write", at, count: src.len(), len })?;
        let copy = dst.slice_mut(at..end).and_then(|mut to| to.upload(self.stream(), src));
        Ok(copy.map_err(CudaError::from)?)
    }

    fn read<T: Element>(&self, src: &Buf<T>, at: usize, dst: &mut [T]) -> Result<(), OpError> {
        let len = src.len();
        let end = at.checked_add(dst.len()).filter(|&end| end <= len);
        let end = end.ok_or(OpError::Range { op: "read", at, count: dst.len(), len })?;
        let copy = src.slice(at..end).and_then(|from| from.download_into(self.stream(), dst));
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

    launches! {
        embed: Embed,
        rmsnorm: RmsNorm,
        act_quant: ActQuant,
        w2a8_gemv: W2a8Gemv,
        w2a8_gemm: W2a8Gemm,
        rope: Rope,
        kv_append: KvAppend,
        attention: Attention,
        relu2_mul: Relu2Mul,
        silu_mul: SiluMul,
        lm_head: LmHead,
        sample: Sample,
    }
}
