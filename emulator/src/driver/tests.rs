//! The functions together, as a program calls them.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

use super::code::Code;
use super::context::*;
use super::device::{cuInit, open_two};
use super::event::*;
use super::graph::*;
use super::handles::Handle;
use super::launch::*;
use super::module::*;
use super::stream::*;
use super::transfer::*;
use super::{In, Out};

/// `add` adds its number to a word; `slow` does so after a while.
const PTX: &str = "
.version 6.0
.target sm_53
.address_size 64

.visible .entry add(.param .u64 x, .param .u32 value) .reqntid 32, 1, 1
{
    .reg .pred %p<2>; .reg .b32 %r<5>; .reg .b64 %rd<3>;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r2, [value];
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r3, [%rd2];
    add.s32 %r4, %r3, %r2;
    st.global.u32 [%rd2], %r4;
DONE:
    ret;
}

.visible .entry slow(.param .u64 x, .param .u32 value)
{
    .reg .pred %p<2>; .reg .b32 %r<5>; .reg .b64 %rd<6>;
    mov.u64 %rd3, %clock64;
SPIN:
    mov.u64 %rd4, %clock64;
    sub.s64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, 200000000;
    @%p1 bra SPIN;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r2, [value];
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r3, [%rd2];
    add.s32 %r4, %r3, %r2;
    st.global.u32 [%rd2], %r4;
    ret;
}
";

/// Result of a call that stores one thing.
fn made<T: Copy>(empty: T, call: impl FnOnce(Out<T>) -> i32) -> Result<T, i32> {
    let mut to = empty;
    match call(Out(&mut to)) {
        0 => Ok(to),
        code => Err(code),
    }
}

/// A device with its kernels and a stream.
struct Gpu {
    ordinal: i32,
    module: Handle,
    stream: Handle,
}

impl Gpu {
    fn open(ordinal: i32) -> Self {
        open_two();
        // SAFETY: every pointer is to something that outlives the call.
        unsafe {
            assert_eq!(cuInit(0), 0);
            let context = made(Handle::NULL, |to| cuDevicePrimaryCtxRetain(to, ordinal));
            assert_eq!(cuCtxSetCurrent(context.expect("a context")), 0);
            let text = CString::new(PTX).expect("text");
            let module = made(Handle::NULL, |to| cuModuleLoadData(to, text.as_ptr().cast()));
            let stream = made(Handle::NULL, |to| cuStreamCreateWithPriority(to, 1, 0));
            Self { ordinal, module: module.expect("PTX"), stream: stream.expect("a stream") }
        }
    }

    fn new_stream(&self) -> Handle {
        // SAFETY: stores one handle.
        made(Handle::NULL, |to| unsafe { cuStreamCreateWithPriority(to, 1, 0) }).expect("a stream")
    }

    fn event(&self) -> Handle {
        // SAFETY: stores one handle.
        made(Handle::NULL, |to| unsafe { cuEventCreate(to, 0) }).expect("an event")
    }

    fn function(&self, name: &CStr) -> Result<Handle, i32> {
        // SAFETY: the name outlives the call.
        made(Handle::NULL, |to| unsafe { cuModuleGetFunction(to, self.module, name.as_ptr()) })
    }

    /// Four zero bytes on the device.
    fn word(&self) -> u64 {
        // SAFETY: the memory is as large as the fill says.
        unsafe {
            let addr = made(0, |to| cuMemAlloc_v2(to, 4)).expect("memory");
            assert_eq!(cuMemsetD8Async(addr, 0, 4, self.stream), 0);
            assert_eq!(cuStreamSynchronize(self.stream), 0);
            addr
        }
    }

    fn read(&self, addr: u64) -> Result<u32, i32> {
        // SAFETY: a word is as large as the copy says.
        made(0u32, |to| unsafe { cuMemcpyDtoHAsync_v2(to.0.cast(), addr, 4, self.stream) })
    }

    fn launch(&self, name: &CStr, block: u32, shared: u32, on: Handle, x: u64, value: u32) -> i32 {
        let function = match self.function(name) {
            Ok(function) => function,
            Err(code) => return code,
        };
        let params = [(&raw const x).cast::<u8>(), (&raw const value).cast()];
        let params = In(params.as_ptr());
        // SAFETY: the kernels take these two parameters, which outlive the call.
        unsafe { cuLaunchKernel(function, 1, 1, 1, block, 1, 1, shared, on, params, null()) }
    }

    fn add(&self, on: Handle, x: u64, value: u32) {
        assert_eq!(self.launch(c"add", 32, 0, on, x, value), 0);
    }

    /// `on` waits for what is queued on `of`.
    fn order(&self, on: Handle, of: Handle) -> i32 {
        let event = self.event();
        // SAFETY: these take handles only.
        unsafe {
            assert_eq!(cuEventRecord(event, of), 0);
            let code = cuStreamWaitEvent(on, event, 0);
            assert_eq!(cuEventDestroy_v2(event), 0);
            code
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: these take handles only.
        unsafe {
            cuStreamDestroy_v2(self.stream);
            cuModuleUnload(self.module);
            assert_eq!(cuDevicePrimaryCtxRelease_v2(self.ordinal), 0);
        }
    }
}

#[test]
fn streams_run_in_order_and_beside_each_other() {
    let gpu = Gpu::open(0);
    let (x, other) = (gpu.word(), gpu.new_stream());
    let (start, end) = (gpu.event(), gpu.event());
    // SAFETY: these take handles, and one place for a float.
    unsafe {
        assert_eq!(cuEventRecord(start, gpu.stream), 0);
        assert_eq!(gpu.launch(c"slow", 1, 0, gpu.stream, x, 1), 0);
        assert_eq!(cuEventRecord(end, gpu.stream), 0);
        assert_eq!((cuStreamQuery(gpu.stream), cuEventQuery(end)), (600, 600));
        assert_eq!((cuStreamQuery(other), cuEventSynchronize(start)), (0, 0));
        assert_eq!(cuStreamWaitEvent(other, end, 0), 0);
        gpu.add(other, x, 10);
        assert_eq!(cuStreamSynchronize(other), 0);
        assert_eq!((cuStreamQuery(gpu.stream), gpu.read(x)), (0, Ok(11)));
        let ms = made(0.0, |to| cuEventElapsedTime(to, start, end)).expect("time");
        assert!(ms > 30.0, "{ms}");
        assert_eq!(cuMemFree_v2(x), 0);
        assert_eq!(cuMemFree_v2(x), Code::INVALID_VALUE.0);
        assert_eq!(cuStreamDestroy_v2(other), 0);
        assert_eq!(cuStreamSynchronize(other), Code::INVALID_HANDLE.0);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let gpu = Gpu::open(0);
    let x = gpu.word();
    assert_eq!(gpu.function(c"nothing"), Err(Code::NOT_FOUND.0));
    assert_eq!(gpu.launch(c"add", 64, 0, gpu.stream, x, 1), Code::INVALID_VALUE.0, "block");
    assert_eq!(gpu.launch(c"slow", 1025, 0, gpu.stream, x, 1), Code::INVALID_VALUE.0, "threads");
    assert_eq!(gpu.launch(c"add", 32, 64 << 10, gpu.stream, x, 1), Code::INVALID_VALUE.0, "shared");
    let function = gpu.function(c"add").expect("a kernel");
    // SAFETY: these take handles and places for one number.
    unsafe {
        assert_eq!(cuFuncSetAttribute(function, 8, 232_449), Code::INVALID_VALUE.0);
        assert_eq!(cuFuncSetAttribute(function, 8, 232_448), 0);
        assert_eq!(made(0, |to| cuFuncGetAttribute(to, 8, function)), Ok(232_448));
        let fit = |shared| {
            made(0, |to| cuOccupancyMaxActiveBlocksPerMultiprocessor(to, function, 32, shared))
        };
        assert_eq!((fit(0), fit(100 << 10), fit(232_448)), (Ok(32), Ok(2), Ok(1)));
        let past = cuMemsetD8Async(x, 0, 5, gpu.stream);
        assert_eq!(past, Code::INVALID_VALUE.0);
        assert_eq!(cuStreamSynchronize(Handle::NULL), Code::NOT_SUPPORTED.0);
    }
    assert_eq!(gpu.launch(c"add", 32, 64 << 10, gpu.stream, x, 1), 0, "opted in");
    assert_eq!(gpu.read(x), Ok(1));
}

#[test]
fn clusters_and_cooperation_have_their_limits() {
    let gpu = Gpu::open(0);
    let x = gpu.word();
    let function = gpu.function(c"add").expect("a kernel");
    let launch = |blocks: u32, id: u32, number: u32| {
        let mut value = [0; 16];
        value[..3].copy_from_slice(&[number, 1, 1]);
        let attribute = LaunchAttribute { id, pad: 0, value };
        let config = LaunchConfig {
            grid: [blocks, 1, 1],
            block: [32, 1, 1],
            shared: 0,
            stream: gpu.stream,
            attributes: In(&attribute),
            count: 1,
        };
        let value = 0u32;
        let params = [(&raw const x).cast::<u8>(), (&raw const value).cast()];
        // SAFETY: everything outlives the call.
        unsafe { cuLaunchKernelEx(In(&config), function, In(params.as_ptr()), null()) }
    };
    assert_eq!(launch(8, 4, 8), 0);
    assert_eq!(launch(9, 4, 8), Code::INVALID_CLUSTER_SIZE.0);
    assert_eq!(launch(16, 4, 16), Code::INVALID_CLUSTER_SIZE.0);
    assert_eq!(launch(4 * 32, 2, 1), 0);
    assert_eq!(launch(4 * 32 + 1, 2, 1), Code::COOPERATIVE_LAUNCH_TOO_LARGE.0);
    assert_eq!(launch(1, 6, 1), 0);
    assert_eq!(launch(1, 77, 1), Code::NOT_SUPPORTED.0);
}

#[test]
fn broken_ptx_comes_with_a_log() {
    let _gpu = Gpu::open(0);
    let load = |text: &str| {
        let text = CString::new(text).expect("text");
        let mut log = [b'x'; 100];
        let (options, room) = ([5u32, 6, 12], null_mut::<c_void>().wrapping_byte_add(log.len()));
        let values = [log.as_mut_ptr().cast(), room, null_mut()];
        let (options, values) = (In(options.as_ptr()), In(values.as_ptr()));
        let mut module = Handle::NULL;
        // SAFETY: the log has the bytes that the option says, the options are three.
        let code = unsafe {
            cuModuleLoadDataEx(Out(&mut module), text.as_ptr().cast(), 3, options, values)
        };
        let log = CStr::from_bytes_until_nul(&log).expect("an end");
        (code, log.to_str().expect("text").to_owned())
    };
    assert_eq!(load(PTX), (0, String::new()));
    let (code, log) = load(&PTX.replace("add.s32", "broken.s32"));
    assert!(code == Code::INVALID_PTX.0 && log.contains("broken"), "{code}: {log}");
    let (code, log) = load(&PTX.replace("6.0", "99.0"));
    assert!(code == Code::UNSUPPORTED_PTX_VERSION.0 && log.contains("99.0"), "{code}: {log}");
}

#[test]
fn a_graph_runs_what_was_captured() {
    let gpu = Gpu::open(0);
    let (a, b) = (gpu.stream, gpu.new_stream());
    let (x, y) = (gpu.word(), gpu.word());
    // SAFETY: these take handles, addresses of whole words and places for one thing.
    unsafe {
        assert_eq!(cuStreamBeginCapture_v2(a, 2), 0);
        assert_eq!(cuStreamBeginCapture_v2(a, 2), Code::ILLEGAL_STATE.0);
        gpu.add(a, x, 1);
        assert_eq!(gpu.order(b, a), 0);
        gpu.add(b, x, 2);
        assert_eq!(gpu.order(a, b), 0);
        assert_eq!(cuMemcpyDtoDAsync_v2(y, x, 4, a), 0);
        let graph = made(Handle::NULL, |to| cuStreamEndCapture(a, to)).expect("a graph");
        assert_eq!(made(0, |to| cuGraphGetNodes(graph, null_mut(), to)), Ok(3));
        let run = made(Handle::NULL, |to| cuGraphInstantiateWithFlags(to, graph, 0));
        let run = run.expect("an instance");
        assert_eq!((gpu.read(x), cuGraphDestroy(graph)), (Ok(0), 0));
        assert_eq!(
            (cuGraphUpload(run, b), cuGraphLaunch(run, b), cuGraphLaunch(run, b)),
            (0, 0, 0)
        );
        assert_eq!((cuStreamSynchronize(b), gpu.read(y)), (0, Ok(6)));
        assert_eq!((cuGraphExecDestroy(run), cuGraphLaunch(run, b)), (0, 400));
    }
}

#[test]
fn a_capture_that_cannot_end_well_ends() {
    let gpu = Gpu::open(0);
    let (a, b) = (gpu.stream, gpu.new_stream());
    let x = gpu.word();
    // SAFETY: these take handles and places for one handle.
    unsafe {
        let end = || made(Handle::NULL, |to| cuStreamEndCapture(a, to));
        assert_eq!(end(), Err(Code::ILLEGAL_STATE.0));
        assert_eq!(cuStreamBeginCapture_v2(a, 2), 0);
        assert_eq!(gpu.order(b, a), 0);
        gpu.add(b, x, 1);
        assert_eq!(end(), Err(Code::STREAM_CAPTURE_UNJOINED.0));

        assert_eq!(cuStreamBeginCapture_v2(a, 2), 0);
        assert_eq!(cuStreamSynchronize(a), Code::STREAM_CAPTURE_UNSUPPORTED.0);
        assert_eq!(end(), Err(Code::STREAM_CAPTURE_INVALIDATED.0));

        assert_eq!(cuStreamBeginCapture_v2(a, 2), 0);
        assert_eq!(gpu.order(a, b), Code::STREAM_CAPTURE_ISOLATION.0);
        assert_eq!(end(), Err(Code::STREAM_CAPTURE_INVALIDATED.0));
        assert_eq!((cuStreamSynchronize(a), cuStreamSynchronize(b)), (0, 0));
    }
    assert_eq!(gpu.read(x), Ok(0), "nothing of it has run");
}

#[test]
fn pinned_memory_is_the_devices_too() {
    let gpu = Gpu::open(0);
    let x = gpu.word();
    // SAFETY: the host memory is used as far as it goes, and by nobody else once the stream is done.
    unsafe {
        let host = made(null_mut(), |to| cuMemHostAlloc(to, 8, 1)).expect("memory");
        let addr = made(0, |to| cuMemHostGetDevicePointer_v2(to, host, 0)).expect("its address");
        host.cast::<[u32; 2]>().write([3, 4]);
        assert_eq!(cuMemcpyHtoDAsync_v2(x, host, 4, gpu.stream), 0);
        gpu.add(gpu.stream, x, 5);
        gpu.add(gpu.stream, addr + 4, 6);
        assert_eq!(cuMemcpyDtoHAsync_v2(host, x, 4, gpu.stream), 0);
        assert_eq!(cuStreamSynchronize(gpu.stream), 0);
        assert_eq!(host.cast::<[u32; 2]>().read(), [8, 10]);
        assert_eq!((cuMemFreeHost(host), cuMemFreeHost(host)), (0, Code::INVALID_VALUE.0));
    }
}

#[test]
fn a_fault_loses_the_context_of_its_device() {
    let (gpu, other) = (Gpu::open(1), 0);
    let x = gpu.word();
    gpu.add(gpu.stream, 0x100, 1);
    // SAFETY: these take handles only.
    unsafe {
        assert_eq!(cuStreamSynchronize(gpu.stream), Code::ILLEGAL_ADDRESS.0);
        assert_eq!(cuCtxSynchronize(), Code::ILLEGAL_ADDRESS.0);
        assert_eq!(gpu.launch(c"add", 32, 0, gpu.stream, x, 1), Code::ILLEGAL_ADDRESS.0);
        assert_eq!(gpu.read(x), Err(Code::ILLEGAL_ADDRESS.0));
    }
    drop(gpu);
    let gpu = Gpu::open(other);
    let x = gpu.word();
    gpu.add(gpu.stream, x, 1);
    assert_eq!(gpu.read(x), Ok(1));
    let again = Gpu::open(1);
    assert_eq!(again.read(again.word()), Ok(0), "a new context has no fault");
}
