//! The symbols of libcuda, filled in at run time.
//!
//! `cust` declares the driver's functions as linked symbols, and a program linked to libcuda does
//! not start where there is no driver. So every function that `cust` names is defined here, as a
//! trampoline over a slot. [`load`] fills the slots from `dlopen("libcuda.so.1")`; until then they
//! hold a function that returns 3, "not initialised".
//!
//! The trampolines also repair a soundness hole: `cust` receives result codes as a Rust enum that
//! was generated from CUDA 11.4, and a code outside an enum is undefined behaviour. Each returned
//! code goes through [`clamp`]. (What this crate calls itself returns plain `i32`: [`super::api`].)

use std::error::Error;
use std::ffi::{c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

#[cfg(not(all(unix, any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "the `cuda` feature supports Unix on x86_64 and aarch64: build without it for the CPU backend"
);

/// What an empty slot holds: `CUDA_ERROR_NOT_INITIALIZED`.
extern "C" fn not_loaded() -> u32 {
    3
}

/// What the slots of `cuGetErrorString` and `cuGetErrorName` hold at first. `cust` prints errors
/// through them, and its `Display` fails, so `println!` panics, when they report a failure.
///
/// # Safety
/// `text` is valid for one write, as in the driver's own function.
unsafe extern "C" fn no_text(_code: u32, text: *mut *const c_char) -> u32 {
    // SAFETY: the caller passes a place for one pointer.
    unsafe { *text = c"the CUDA driver is not loaded".as_ptr() };
    0
}

/// Turns a code that `cust`'s enum does not have into 999, `CUDA_ERROR_UNKNOWN`.
extern "C" fn clamp(code: u32) -> u32 {
    match code {
        0..=8 | 34 | 100..=102 | 200..=202 | 205..=224 | 300..=304 | 400 | 401 | 500 | 600 => code,
        700..=705 | 708..=720 | 800..=809 | 900..=911 => code,
        _ => 999,
    }
}

/// `call` symbols take at most six arguments, all in registers, and have their result clamped.
/// `jump` symbols take more; this crate does not use them through `cust`.
macro_rules! trampolines {
    (call: $($name:ident = $start:ident)*; jump: $($jump:ident)*) => {
        #[allow(non_upper_case_globals, reason = "the driver's names")]
        mod slots {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new($start as *mut c_void);)*
            $(pub(super) static $jump: AtomicPtr<c_void> = AtomicPtr::new(not_loaded as *mut c_void);)*
        }

        /// Definitions under the driver's own names, for the linker. `.hidden` keeps them out of
        /// the dynamic symbols of a shared library that contains this crate, where they would
        /// stand in front of the real driver for everybody else in the process.
        #[allow(non_snake_case, reason = "the driver's names")]
        mod symbols {
            use super::*;
            $(
                // SAFETY: the name is defined once in the program, here; the stub in the link
                // folder is empty. The body keeps the arguments in their registers and the stack
                // aligned, so it is a call of the slot's function with the caller's signature.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $name() {
                    #[cfg(target_arch = "x86_64")]
                    std::arch::naked_asm!(
                        concat!(".hidden ", stringify!($name)),
                        "sub rsp, 8",
                        "call qword ptr [rip + {slot}]",
                        "add rsp, 8",
                        "mov edi, eax",
                        "jmp {clamp}",
                        slot = sym slots::$name,
                        clamp = sym clamp,
                    );
                    #[cfg(target_arch = "aarch64")]
                    std::arch::naked_asm!(
                        concat!(".hidden ", stringify!($name)),
                        "stp x29, x30, [sp, #-16]!",
                        "mov x29, sp",
                        "adrp x16, {slot}",
                        "ldr x16, [x16, :lo12:{slot}]",
                        "blr x16",
                        "ldp x29, x30, [sp], #16",
                        "b {clamp}",
                        slot = sym slots::$name,
                        clamp = sym clamp,
                    );
                }
            )*
            $(
                // SAFETY: defined once, as above. A jump leaves registers and stack as they are.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $jump() {
                    #[cfg(target_arch = "x86_64")]
                    std::arch::naked_asm!(
                        concat!(".hidden ", stringify!($jump)),
                        "jmp qword ptr [rip + {slot}]",
                        slot = sym slots::$jump,
                    );
                    #[cfg(target_arch = "aarch64")]
                    std::arch::naked_asm!(
                        concat!(".hidden ", stringify!($jump)),
                        "adrp x16, {slot}",
                        "ldr x16, [x16, :lo12:{slot}]",
                        "br x16",
                        slot = sym slots::$jump,
                    );
                }
            )*
        }

        /// Points every slot at the driver's function; a slot whose function the driver lacks
        /// stays as it is.
        fn fill_slots(lib: &Library) {
            $(fill(lib, concat!(stringify!($name), "\0"), &slots::$name);)*
            $(fill(lib, concat!(stringify!($jump), "\0"), &slots::$jump);)*
        }
    };
}

fn fill(lib: &Library, name: &str, slot: &AtomicPtr<c_void>) {
    // SAFETY: the symbol is only read as an address; the trampoline that jumps to it has the
    // driver's documented signature by the declaration in `cust_raw`.
    if let Ok(symbol) = unsafe { lib.get::<*mut c_void>(name.as_bytes()) } {
        slot.store(*symbol, Ordering::Release);
    }
}

trampolines! {
call:
    cuArray3DCreate_v2 = not_loaded
    cuArray3DGetDescriptor_v2 = not_loaded
    cuArrayDestroy = not_loaded
    cuCtxCreate_v2 = not_loaded
    cuCtxDestroy_v2 = not_loaded
    cuCtxGetApiVersion = not_loaded
    cuCtxGetCacheConfig = not_loaded
    cuCtxGetCurrent = not_loaded
    cuCtxGetDevice = not_loaded
    cuCtxGetFlags = not_loaded
    cuCtxGetLimit = not_loaded
    cuCtxGetSharedMemConfig = not_loaded
    cuCtxGetStreamPriorityRange = not_loaded
    cuCtxPopCurrent_v2 = not_loaded
    cuCtxPushCurrent_v2 = not_loaded
    cuCtxSetCacheConfig = not_loaded
    cuCtxSetCurrent = not_loaded
    cuCtxSetLimit = not_loaded
    cuCtxSetSharedMemConfig = not_loaded
    cuCtxSynchronize = not_loaded
    cuDestroyExternalMemory = not_loaded
    cuDeviceGet = not_loaded
    cuDeviceGetAttribute = not_loaded
    cuDeviceGetCount = not_loaded
    cuDeviceGetName = not_loaded
    cuDevicePrimaryCtxRelease_v2 = not_loaded
    cuDevicePrimaryCtxReset_v2 = not_loaded
    cuDevicePrimaryCtxRetain = not_loaded
    cuDevicePrimaryCtxSetFlags_v2 = not_loaded
    cuDeviceTotalMem_v2 = not_loaded
    cuDriverGetVersion = not_loaded
    cuEventCreate = not_loaded
    cuEventDestroy_v2 = not_loaded
    cuEventElapsedTime = not_loaded
    cuEventQuery = not_loaded
    cuEventRecord = not_loaded
    cuEventSynchronize = not_loaded
    cuExternalMemoryGetMappedBuffer = not_loaded
    cuFuncGetAttribute = not_loaded
    cuFuncSetCacheConfig = not_loaded
    cuFuncSetSharedMemConfig = not_loaded
    cuGraphAddKernelNode = not_loaded
    cuGraphCreate = not_loaded
    cuGraphDebugDotPrint = not_loaded
    cuGraphDestroy = not_loaded
    cuGraphGetEdges = not_loaded
    cuGraphGetNodes = not_loaded
    cuGraphKernelNodeGetParams = not_loaded
    cuGraphNodeGetType = not_loaded
    cuImportExternalMemory = not_loaded
    cuInit = not_loaded
    cuLaunchHostFunc = not_loaded
    cuLinkComplete = not_loaded
    cuLinkCreate_v2 = not_loaded
    cuLinkDestroy = not_loaded
    cuMemAdvise = not_loaded
    cuMemAllocAsync = not_loaded
    cuMemAllocHost_v2 = not_loaded
    cuMemAllocManaged = not_loaded
    cuMemAlloc_v2 = not_loaded
    cuMemFreeAsync = not_loaded
    cuMemFreeHost = not_loaded
    cuMemFree_v2 = not_loaded
    cuMemGetInfo_v2 = not_loaded
    cuMemPrefetchAsync = not_loaded
    cuMemcpy2D_v2 = not_loaded
    cuMemcpyAtoH_v2 = not_loaded
    cuMemcpyDtoDAsync_v2 = not_loaded
    cuMemcpyDtoD_v2 = not_loaded
    cuMemcpyDtoHAsync_v2 = not_loaded
    cuMemcpyDtoH_v2 = not_loaded
    cuMemcpyHtoA_v2 = not_loaded
    cuMemcpyHtoDAsync_v2 = not_loaded
    cuMemcpyHtoD_v2 = not_loaded
    cuMemsetD16Async = not_loaded
    cuMemsetD16_v2 = not_loaded
    cuMemsetD32Async = not_loaded
    cuMemsetD32_v2 = not_loaded
    cuMemsetD8Async = not_loaded
    cuMemsetD8_v2 = not_loaded
    cuModuleGetFunction = not_loaded
    cuModuleGetGlobal_v2 = not_loaded
    cuModuleLoad = not_loaded
    cuModuleLoadData = not_loaded
    cuModuleLoadDataEx = not_loaded
    cuModuleUnload = not_loaded
    cuOccupancyAvailableDynamicSMemPerBlock = not_loaded
    cuOccupancyMaxActiveBlocksPerMultiprocessor = not_loaded
    cuOccupancyMaxPotentialBlockSize = not_loaded
    cuStreamCreateWithPriority = not_loaded
    cuStreamDestroy_v2 = not_loaded
    cuStreamGetFlags = not_loaded
    cuStreamGetPriority = not_loaded
    cuStreamSynchronize = not_loaded
    cuStreamWaitEvent = not_loaded
    cuSurfObjectCreate = not_loaded
    cuSurfObjectDestroy = not_loaded
    cuSurfObjectGetResourceDesc = not_loaded
    cuTexObjectCreate = not_loaded
    cuTexObjectDestroy = not_loaded
    cuTexObjectGetResourceDesc = not_loaded
    cuTexObjectGetResourceViewDesc = not_loaded
    cuGetErrorName = no_text
    cuGetErrorString = no_text;
jump:
    cuLaunchKernel
    cuLinkAddData_v2
}

/// The driver's library, opened once and never closed. The error says what `dlopen` said.
pub(crate) fn load() -> Result<&'static Library, &'static str> {
    static LIB: OnceLock<Result<Library, String>> = OnceLock::new();
    LIB.get_or_init(|| {
        // SAFETY: libcuda's initialisers only set up the driver's own state; they are what any
        // CUDA program runs at its start.
        let lib = unsafe { Library::new("libcuda.so.1") }.map_err(|e| {
            // The reason stands in the error's source.
            e.source().map_or_else(|| e.to_string(), ToString::to_string)
        })?;
        fill_slots(&lib);
        Ok(lib)
    })
    .as_ref()
    .map_err(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_cust_passes_and_the_newer_ones_become_unknown() {
        for code in [0, 2, 3, 34, 100, 201, 209, 218, 222, 224, 304, 500, 600, 700, 719, 803, 911] {
            assert_eq!(clamp(code), code);
        }
        for code in [9, 36, 46, 47, 103, 203, 225, 226, 402, 706, 721, 810, 912, 998, 1000] {
            assert_eq!(clamp(code), 999, "{code}");
        }
    }

    #[test]
    fn an_empty_slot_answers_through_its_trampoline() {
        if load().is_ok() {
            return; // a driver is here: the slots are not empty
        }
        // SAFETY: these only run trampolines over slots that return at once.
        unsafe {
            assert_eq!(cust::sys::cuInit(0) as u32, 3);
            let mut text = std::ptr::null();
            let code = cust::sys::cudaError_enum::CUDA_ERROR_INVALID_VALUE;
            assert_eq!(cust::sys::cuGetErrorString(code, &mut text) as u32, 0);
            assert!(!text.is_null());
        }
        // `cust` itself: an ordinary error that can be printed.
        let error = cust::init(cust::CudaFlags::empty()).unwrap_err();
        assert_eq!(error, cust::error::CudaError::NotInitialized);
        assert!(error.to_string().contains("not loaded"));
    }
}
