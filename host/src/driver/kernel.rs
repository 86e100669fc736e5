//! Typed kernels and the one launch of the program.
//!
//! `Loaded::launch` is the only place where a kernel is started, [`KernelHandle::launch`] its typed form. Everything
//! that can be checked without knowing the meaning of the arguments is checked before the driver is called; the
//! arguments themselves are the caller's promise, which the wrappers in `ops` make good. What does not depend on the
//! type of a kernel is compiled once: there are hundreds of them.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use contract::launch::{Kernel, LaunchSpec};

use super::api::{
    ATTRIBUTE_CLUSTER, ATTRIBUTE_COOPERATIVE, ATTRIBUTE_PROGRAMMATIC_SERIALIZATION, Api,
    FUNC_MAX_DYNAMIC_SMEM, FUNC_SHARED_CARVEOUT, LaunchAttribute, LaunchConfig,
};
use super::error::{DriverError, LaunchError, ModuleError};
use super::module::{Function, Module};
use super::stream::Stream;

static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Kernels handed to the driver by this process so far, on all devices; refused launches and the
/// nodes of a replayed graph do not count.
pub fn launch_count() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// What a loaded kernel takes of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelResources {
    /// Most threads of a block.
    pub max_threads: u32,
    /// Shared memory of a block that the kernel declares itself, in bytes.
    pub static_smem_bytes: u32,
    /// Local memory (stack and spills) of a thread, in bytes.
    pub local_bytes: u32,
    /// Registers of a thread.
    pub registers: u32,
}

/// A loaded kernel that takes exactly `K::Args`.
///
/// ```
/// use bitnet_gpu::driver::{KernelHandle, LaunchError, Stream};
/// use contract::elementwise::{Args, ElementwiseF32};
///
/// /// # Safety
/// /// As [`KernelHandle::launch`].
/// unsafe fn run(k: &KernelHandle<ElementwiseF32>, s: &Stream, a: Args) -> Result<(), LaunchError> {
///     unsafe { k.launch(s, [1, 1, 1], a) }
/// }
/// ```
///
/// The arguments of another kernel are refused by the compiler:
///
/// ```compile_fail
/// use bitnet_gpu::driver::{KernelHandle, LaunchError, Stream};
/// use contract::elementwise::ElementwiseF32;
/// use contract::rmsnorm::Args;
///
/// /// # Safety
/// /// As [`KernelHandle::launch`].
/// unsafe fn run(k: &KernelHandle<ElementwiseF32>, s: &Stream, a: Args) -> Result<(), LaunchError> {
///     unsafe { k.launch(s, [1, 1, 1], a) }
/// }
/// ```
pub struct KernelHandle<K> {
    loaded: Loaded,
    kernel: PhantomData<fn() -> K>,
}

impl<K> Clone for KernelHandle<K> {
    fn clone(&self) -> Self {
        Self { loaded: self.loaded.clone(), kernel: PhantomData }
    }
}

impl<K: Kernel> std::fmt::Debug for KernelHandle<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelHandle({})", K::SPEC.symbol)
    }
}

impl<K: Kernel> KernelHandle<K> {
    /// The kernel's launch rules.
    pub const SPEC: LaunchSpec = K::SPEC;

    pub(super) fn new(module: &Module) -> Result<Self, LaunchError> {
        Ok(Self { loaded: Loaded::new(module, const { &K::SPEC })?, kernel: PhantomData })
    }

    /// The same kernel, started before the previous one of its stream has ended when the stream has
    /// programmatic dependent launch on.
    ///
    /// # Safety
    /// The loaded kernel executes `griddepcontrol.wait` before it reads or writes anything that an
    /// earlier kernel of the stream touches. Without it the two run beside each other.
    pub unsafe fn with_pdl(self) -> Self {
        // SAFETY: by the caller.
        Self { loaded: unsafe { self.loaded.with_pdl() }, ..self }
    }

    /// The module it comes from.
    pub fn module(&self) -> &Module {
        &self.loaded.module
    }

    /// Blocks of this kernel that fit on one multiprocessor at once.
    ///
    /// # Errors
    /// A driver failure.
    pub fn blocks_per_sm(&self) -> Result<u32, DriverError> {
        self.loaded.blocks_per_sm()
    }

    /// What the driver's compiler gave the kernel on this device.
    ///
    /// # Errors
    /// A driver failure.
    pub fn resources(&self) -> Result<KernelResources, DriverError> {
        self.loaded.resources()
    }

    /// Enqueues one launch over `grid` blocks on `stream`.
    ///
    /// # Safety
    /// `args` says nothing untrue: every address in it came from `dev_ptr(stream)` of memory that
    /// is large enough for what the kernel does with it under `grid` and the other fields, and what
    /// the kernel writes is borrowed exclusively.
    ///
    /// # Errors
    /// Refused before the driver is called: an empty or too large grid, a stream of another device.
    /// (Block, shared memory and capability were checked when the handle was made.) Else the
    /// driver's error, which may be one of earlier asynchronous work.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        args: K::Args,
    ) -> Result<(), LaunchError> {
        // SAFETY: the caller vouches for the arguments, which are of this very kernel.
        unsafe { self.loaded.launch(stream, grid, Call::of::<K>(&args)) }
    }
}

/// Arguments of a launch, and what a kernel derives from them.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    args: *const c_void,
    smem_bytes: u32,
    cluster: u32,
    lives: PhantomData<&'a ()>,
}

impl<'a> Call<'a> {
    /// Of kernel `K`.
    pub(crate) fn of<K: Kernel>(args: &'a K::Args) -> Self {
        Self {
            args: (&raw const *args).cast(),
            smem_bytes: K::smem_bytes(args),
            cluster: K::cluster(args),
            lives: PhantomData,
        }
    }
}

/// A loaded kernel, whichever it is.
#[derive(Clone)]
pub(crate) struct Loaded {
    spec: &'static LaunchSpec,
    function: Function,
    module: Module,
    /// Most dynamic shared memory of a block of a launch, in bytes.
    most_smem_bytes: u32,
    pdl: bool,
}

impl Loaded {
    /// Finds the kernel of `spec` in `module` and prepares it for launches.
    ///
    /// # Errors
    /// As [`Module::kernel`].
    pub(crate) fn new(module: &Module, spec: &'static LaunchSpec) -> Result<Self, LaunchError> {
        let limits = module.device().limits();
        limits.check(spec, [1; 3])?;
        let _loads = module.device().bind().map_err(ModuleError::from)?.while_captured();
        let function = module.function(spec.symbol, spec.min_sm)?;
        let most_smem_bytes = spec.smem_bytes;
        let mut handle =
            Self { spec, function, module: module.clone(), most_smem_bytes, pdl: false };
        let driver = |source| LaunchError::Driver { kernel: spec.symbol, source };
        let api = module.device().bind().map_err(driver)?;
        if spec.all_at_once && api.launch_kernel_ex.is_none() {
            let (symbol, level) = (spec.symbol, module.loaded_level().to_owned());
            return Err(ModuleError::MissingKernel { symbol, level, min_sm: spec.min_sm }.into());
        }
        if let Some(load) = api.func_load {
            // The driver loads lazily, and may wait for all work when it does: better here than at
            // the first launch.
            // SAFETY: the function belongs to `module`, which is alive.
            api.check(unsafe { load(function.0) }, "cuFuncLoad").map_err(driver)?;
        }
        let static_bytes = handle.resources().map_err(driver)?.static_smem_bytes;
        let asked = static_bytes.saturating_add(spec.smem_bytes);
        let allowed = limits.smem_optin_bytes.max(limits.smem_bytes);
        if asked > allowed {
            return Err(LaunchError::SharedMemory { kernel: spec.symbol, asked, allowed });
        }
        let most = spec.smem_bytes.max(spec.room_bytes.min(allowed - static_bytes));
        handle.most_smem_bytes = most;
        if static_bytes + most > limits.smem_bytes {
            // SAFETY: the function belongs to `module`, which is alive; the size was checked.
            let code =
                unsafe { (api.func_set_attribute)(function.0, FUNC_MAX_DYNAMIC_SMEM, most as i32) };
            api.check(code, "cuFuncSetAttribute").map_err(driver)?;
        }
        if spec.all_shared {
            // SAFETY: the function belongs to `module`, which is alive.
            let code = unsafe { (api.func_set_attribute)(function.0, FUNC_SHARED_CARVEOUT, 100) };
            api.check(code, "cuFuncSetAttribute").map_err(driver)?;
        }
        Ok(handle)
    }

    /// As [`KernelHandle::with_pdl`].
    ///
    /// # Safety
    /// As for that.
    pub(crate) unsafe fn with_pdl(self) -> Self {
        Self { pdl: true, ..self }
    }

    fn blocks_per_sm(&self) -> Result<u32, DriverError> {
        let api = self.module.device().bind()?;
        let spec = self.spec;
        let mut blocks = 0;
        // SAFETY: writes one i32; the function's module is alive.
        let code = unsafe {
            (api.occupancy)(
                &mut blocks,
                self.function.0,
                spec.threads() as i32,
                spec.smem_bytes as usize,
            )
        };
        api.check(code, "cuOccupancyMaxActiveBlocksPerMultiprocessor")?;
        Ok(blocks.max(0) as u32)
    }

    fn resources(&self) -> Result<KernelResources, DriverError> {
        let api = self.module.device().bind()?;
        // `CUfunction_attribute` numbers.
        let attribute = |id: i32| {
            let mut value = 0;
            // SAFETY: writes one i32; the function's module is alive.
            let code = unsafe { (api.func_get_attribute)(&mut value, id, self.function.0) };
            api.check(code, "cuFuncGetAttribute").map(|()| value.max(0) as u32)
        };
        Ok(KernelResources {
            max_threads: attribute(0)?,
            static_smem_bytes: attribute(1)?,
            local_bytes: attribute(3)?,
            registers: attribute(4)?,
        })
    }

    /// Enqueues one launch: see [`KernelHandle::launch`].
    ///
    /// # Safety
    /// As for that; `call` is of this kernel.
    ///
    /// # Errors
    /// As for that.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        call: Call<'_>,
    ) -> Result<(), LaunchError> {
        let device = self.module.device();
        let kernel = self.spec.symbol;
        device.limits().check(self.spec, grid)?;
        if stream.device() != device {
            return Err(LaunchError::WrongDevice {
                kernel,
                kernel_device: device.ordinal(),
                stream_device: stream.device().ordinal(),
            });
        }
        let driver = |source| LaunchError::Driver { kernel, source };
        let api = device.bind().map_err(driver)?;
        stream.keep(|| self.module.keep_alive());
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
        let start = || {
            // SAFETY: the caller vouches for the arguments; the entry takes exactly one `Kernel::Args`
            // by value (compared with the PTX by the audit), which outlives the call that copies
            // it; grid, block and shared memory were checked.
            unsafe { self.start(api, stream, grid, call) }
        };
        match device.profiler() {
            Some(profiler) if !stream.is_capturing() => {
                profiler.timed(kernel, stream, || start().map_err(driver))
            }
            _ => start().map_err(driver),
        }
    }

    /// # Safety
    /// As [`KernelHandle::launch`], after its checks.
    unsafe fn start(
        &self,
        api: &Api,
        stream: &Stream,
        grid: [u32; 3],
        call: Call<'_>,
    ) -> Result<(), DriverError> {
        let spec = self.spec;
        let smem_bytes = call.smem_bytes.min(self.most_smem_bytes);
        let mut params = [call.args.cast_mut()];
        if let Some(launch_kernel_ex) = api.launch_kernel_ex {
            let attribute = |id: u32, numbers: [u32; 3]| {
                let mut value = [0; 16];
                value[..3].copy_from_slice(&numbers);
                LaunchAttribute { id, pad: 0, value }
            };
            // Blocks that wait for each other must not wait for room: no overlap for them.
            let (first, wanted) = match spec.all_at_once {
                true => (ATTRIBUTE_COOPERATIVE, true),
                false => (ATTRIBUTE_PROGRAMMATIC_SERIALIZATION, self.pdl && stream.overlaps()),
            };
            let first = attribute(first, [1, 0, 0]);
            let cluster = attribute(ATTRIBUTE_CLUSTER, [call.cluster, 1, 1]);
            let clusters = call.cluster > 1;
            let attributes = if wanted { [first, cluster] } else { [cluster, first] };
            let config = LaunchConfig {
                grid,
                block: spec.block,
                smem_bytes,
                stream: stream.raw(),
                attributes: attributes.as_ptr(),
                attributes_len: u32::from(wanted) + u32::from(clusters),
            };
            // SAFETY: by this function's own contract; `config`, `attributes` and `params` outlive the
            // call and have the driver's layout.
            let code = unsafe {
                launch_kernel_ex(
                    &config,
                    self.function.0,
                    params.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            api.check(code, "cuLaunchKernelEx")
        } else {
            let [gx, gy, gz] = grid;
            let [bx, by, bz] = spec.block;
            // SAFETY: as above, without a configuration.
            let code = unsafe {
                (api.launch_kernel)(
                    self.function.0,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    smem_bytes,
                    stream.raw(),
                    params.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            api.check(code, "cuLaunchKernel")
        }
    }
}
