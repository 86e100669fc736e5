//! The driver's functions that this crate calls itself.
//!
//! Signatures are the driver's, except that results are plain `i32`: a driver may return codes
//! that this crate has never heard of. `cust` is used for the primary context, modules and
//! functions; what stands here is newer than `cust` 0.3.2 (`cuLaunchKernelEx`, graphs), or unsound
//! or lossy there: its streams are never non-blocking, its events record only on its own streams,
//! its module loader has no log, its copies are synchronous.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use contract::launch::TensorMap;

use super::error::{DeviceError, DriverError};
use super::loader;

/// An opaque driver handle (`CUstream`, `CUevent`, `CUgraph`, ...).
pub(crate) type Handle = *mut c_void;

/// `CUlaunchAttribute`: an id, and a value union of 64 bytes aligned to 8.
#[repr(C, align(8))]
pub(crate) struct LaunchAttribute {
    pub(crate) id: u32,
    pub(crate) pad: u32,
    pub(crate) value: [u32; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) smem_bytes: u32,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attributes_len: u32,
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72 && align_of::<LaunchAttribute>() == 8);
const _: () = assert!(std::mem::offset_of!(LaunchAttribute, value) == 8);
const _: () = assert!(size_of::<LaunchConfig>() == 56);
const _: () = assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);
const _: () = assert!(std::mem::offset_of!(LaunchConfig, attributes) == 40);
const _: () = assert!(std::mem::offset_of!(LaunchConfig, attributes_len) == 48);

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub(crate) const ATTRIBUTE_COOPERATIVE: u32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
pub(crate) const ATTRIBUTE_CLUSTER: u32 = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub(crate) const ATTRIBUTE_PROGRAMMATIC_SERIALIZATION: u32 = 6;
/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const CAPTURE_RELAXED: u32 = 2;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_MEMHOSTALLOC_PORTABLE`.
pub(crate) const HOST_PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`.
pub(crate) const HOST_DEVICEMAP: u32 = 2;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub(crate) const FUNC_MAX_DYNAMIC_SMEM: i32 = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`, in percent; a hint.
pub(crate) const FUNC_SHARED_CARVEOUT: i32 = 9;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: i32 = 600;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: i32 = 2;

macro_rules! table {
    (
        required { $($name:ident = $symbol:ident ($($arg:ty),*);)* }
        optional { $($opt:ident = $opt_symbol:ident ($($opt_arg:ty),*);)* }
    ) => {
        /// Entry points of the loaded driver.
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> i32,)*
            $(pub(crate) $opt: Option<unsafe extern "C" fn($($opt_arg),*) -> i32>,)*
        }

        impl Api {
            fn resolve(lib: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        // SAFETY: the type is the driver's documented signature of this symbol;
                        // the library is never closed, so the pointer stays valid.
                        $name: *unsafe { lib.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                            .map_err(|_| stringify!($symbol))?,
                    )*
                    $(
                        // SAFETY: as above.
                        $opt: unsafe { lib.get(concat!(stringify!($opt_symbol), "\0").as_bytes()) }
                            .ok()
                            .map(|symbol| *symbol),
                    )*
                })
            }
        }
    };
}

table! {
    required {
        init = cuInit(u32);
        driver_version = cuDriverGetVersion(*mut i32);
        error_name = cuGetErrorName(i32, *mut *const c_char);
        error_string = cuGetErrorString(i32, *mut *const c_char);
        device_count = cuDeviceGetCount(*mut i32);
        device_get = cuDeviceGet(*mut i32, i32);
        device_name = cuDeviceGetName(*mut c_char, i32, i32);
        device_total_mem = cuDeviceTotalMem_v2(*mut usize, i32);
        device_attribute = cuDeviceGetAttribute(*mut i32, i32, i32);
        device_uuid = cuDeviceGetUuid(*mut [u8; 16], i32);
        ctx_set_current = cuCtxSetCurrent(Handle);
        ctx_stream_priorities = cuCtxGetStreamPriorityRange(*mut i32, *mut i32);
        ctx_synchronize = cuCtxSynchronize();
        module_load_ex =
            cuModuleLoadDataEx(*mut Handle, *const c_void, u32, *mut u32, *mut *mut c_void);
        module_unload = cuModuleUnload(Handle);
        func_set_attribute = cuFuncSetAttribute(Handle, i32, i32);
        func_get_attribute = cuFuncGetAttribute(*mut i32, i32, Handle);
        occupancy = cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut i32, Handle, i32, usize);
        launch_kernel = cuLaunchKernel(
            Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void
        );
        stream_create = cuStreamCreateWithPriority(*mut Handle, u32, i32);
        stream_destroy = cuStreamDestroy_v2(Handle);
        stream_synchronize = cuStreamSynchronize(Handle);
        stream_query = cuStreamQuery(Handle);
        stream_wait_event = cuStreamWaitEvent(Handle, Handle, u32);
        stream_begin_capture = cuStreamBeginCapture_v2(Handle, u32);
        stream_end_capture = cuStreamEndCapture(Handle, *mut Handle);
        event_create = cuEventCreate(*mut Handle, u32);
        event_destroy = cuEventDestroy_v2(Handle);
        event_record = cuEventRecord(Handle, Handle);
        event_query = cuEventQuery(Handle);
        event_synchronize = cuEventSynchronize(Handle);
        event_elapsed = cuEventElapsedTime(*mut f32, Handle, Handle);
        graph_nodes = cuGraphGetNodes(Handle, *mut Handle, *mut usize);
        graph_destroy = cuGraphDestroy(Handle);
        graph_exec_destroy = cuGraphExecDestroy(Handle);
        graph_launch = cuGraphLaunch(Handle, Handle);
        mem_info = cuMemGetInfo_v2(*mut usize, *mut usize);
        mem_alloc = cuMemAlloc_v2(*mut u64, usize);
        mem_free = cuMemFree_v2(u64);
        mem_host_alloc = cuMemHostAlloc(*mut *mut c_void, usize, u32);
        mem_host_free = cuMemFreeHost(*mut c_void);
        mem_host_device_ptr = cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, u32);
        copy_to_device = cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle);
        copy_to_host = cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle);
        copy_on_device = cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
        fill_u8 = cuMemsetD8Async(u64, u8, usize, Handle);
    }
    optional {
        // CUDA 11.4
        graph_instantiate = cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
        // CUDA 11.8
        launch_kernel_ex = cuLaunchKernelEx(
            *const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void
        );
        // CUDA 12.0
        tensor_map_tiled = cuTensorMapEncodeTiled(
            *mut TensorMap, u32, u32, u64, *const u64, *const u64, *const u32, *const u32, u32, u32,
            u32, u32
        );
        tensor_map_im2col = cuTensorMapEncodeIm2col(
            *mut TensorMap, u32, u32, u64, *const u64, *const u64, *const i32, *const i32, u32, u32,
            *const u32, u32, u32, u32, u32
        );
        library_load = cuLibraryLoadData(
            *mut Handle, *const c_void, *mut u32, *mut *mut c_void, u32, *mut u32, *mut *mut c_void, u32
        );
        library_unload = cuLibraryUnload(Handle);
        // CUDA 12.4
        func_load = cuFuncLoad(Handle);
        // CUDA 10.1
        capture_mode = cuThreadExchangeStreamCaptureMode(*mut u32);
        // CUDA 11.1
        graph_upload = cuGraphUpload(Handle, Handle);
    }
}

/// The loaded and initialised driver. Loads it on the first call; the outcome is kept.
pub(crate) fn api() -> Result<&'static Api, DeviceError> {
    static API: OnceLock<Result<Api, DeviceError>> = OnceLock::new();
    API.get_or_init(|| {
        let lib =
            loader::load().map_err(|reason| DeviceError::NoDriver { reason: reason.into() })?;
        let api = Api::resolve(lib).map_err(|symbol| DeviceError::DriverTooOld { symbol })?;
        // SAFETY: cuInit takes only flags, which must be 0.
        api.check(unsafe { (api.init)(0) }, "cuInit")?;
        Ok(api)
    })
    .as_ref()
    .map_err(Clone::clone)
}

impl Api {
    /// Turns a result code of `call` into an error with the driver's own words.
    #[inline]
    pub(crate) fn check(&self, code: i32, call: &'static str) -> Result<(), DriverError> {
        if code == 0 { Ok(()) } else { Err(self.error(code, call)) }
    }

    /// Until the result is dropped, this thread may load modules although one of its streams is
    /// being captured.
    pub(crate) fn while_captured(&self) -> CaptureMode<'_> {
        let mut mode = CAPTURE_RELAXED;
        self.exchange_capture_mode(&mut mode);
        CaptureMode { api: self, before: mode }
    }

    fn exchange_capture_mode(&self, mode: &mut u32) {
        if let Some(exchange) = self.capture_mode {
            // SAFETY: reads and writes one `CUstreamCaptureMode`. It cannot fail with a valid mode,
            // and if it did, the load that follows would say so.
            unsafe { exchange(mode) };
        }
    }

    #[cold]
    pub(crate) fn error(&self, code: i32, call: &'static str) -> DriverError {
        let word = |get: unsafe extern "C" fn(i32, *mut *const c_char) -> i32| {
            let mut text = std::ptr::null();
            // SAFETY: the driver writes the address of a static string, or null for a code that
            // it does not know.
            unsafe {
                if get(code, &mut text) != 0 || text.is_null() {
                    return None;
                }
                Some(CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        DriverError::new(
            code,
            word(self.error_name).unwrap_or_else(|| "unknown code".into()),
            word(self.error_string).unwrap_or_else(|| "the driver has no text for it".into()),
            call,
        )
    }
}

/// See [`Api::while_captured`].
pub(crate) struct CaptureMode<'a> {
    api: &'a Api,
    before: u32,
}

impl Drop for CaptureMode<'_> {
    fn drop(&mut self) {
        let mut mode = self.before;
        self.api.exchange_capture_mode(&mut mode);
    }
}
