//! What the tests of driver and memory need: an opened device, and a comparison that says where and
//! how.
//!
//! Tests run side by side on one device, each with its own stream. A test that looks at a counter
//! of the whole process takes the device alone.

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bitnet_gpu::driver::{Device, Module, Stream, StreamOptions};
use bitnet_gpu::memory::{Pool, PoolOptions};
use contract::launch::{DevPtr, Kernel, LaunchSpec};

static TURNS: RwLock<()> = RwLock::new(());

/// A device with the kernels of this file, a stream of the test's own, and an empty pool.
pub(crate) struct Gpu {
    pub(crate) device: Device,
    pub(crate) module: Module,
    pub(crate) stream: Stream,
    pub(crate) pool: Pool,
    _turn: Turn,
}

enum Turn {
    Shared(#[allow(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
}

/// The device beside other tests.
pub(crate) fn gpu() -> Gpu {
    open(Turn::Shared(TURNS.read().unwrap_or_else(PoisonError::into_inner)))
}

/// The device with no other test running.
pub(crate) fn gpu_alone() -> Gpu {
    open(Turn::Alone(alone()))
}

/// Waits until no other test is running and holds the others off.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

fn open(turn: Turn) -> Gpu {
    static DEVICE: Mutex<Option<(Device, Module)>> = Mutex::new(None);
    let mut opened = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let (device, module) = opened
        .get_or_insert_with(|| {
            let device = Device::open(0).expect("these tests need a GPU");
            let module =
                Module::from_ptx(&device, "test", &test_ptx()).expect("the test PTX loads");
            (device, module)
        })
        .clone();
    let stream = Stream::new(&device, StreamOptions::default()).expect("a stream");
    let pool = Pool::new(&device, PoolOptions::default());
    Gpu { device, module, stream, pool, _turn: turn }
}

/// A value whose bits can be shown.
pub(crate) trait Bits: Copy {
    fn bits(self) -> u64;
}

macro_rules! bits {
    ($($int:ty)*; $($float:ty)*) => {
        $(impl Bits for $int { fn bits(self) -> u64 { self as u64 } })*
        $(impl Bits for $float { fn bits(self) -> u64 { self.to_bits().into() } })*
    };
}

bits! { u8 i8 u16 i16 u32 i32 u64 i64; f32 f64 half::f16 half::bf16 }

/// Fails unless both are equal in every bit; names the first difference and counts all of them.
#[track_caller]
pub(crate) fn assert_bits_eq<T: Bits + std::fmt::Debug>(what: &str, found: &[T], wanted: &[T]) {
    assert_eq!(found.len(), wanted.len(), "{what}: length");
    let differs = |i: &usize| found[*i].bits() != wanted[*i].bits();
    if let Some(i) = (0..found.len()).find(differs) {
        let count = (0..found.len()).filter(differs).count();
        panic!(
            "{what}: {count} of {} differ, first at {i}: found {:?} ({:#x}), wanted {:?} ({:#x})",
            found.len(),
            found[i],
            found[i].bits(),
            wanted[i],
            wanted[i].bits()
        );
    }
}

/// Adds 1 to each of `len` words.
pub(crate) struct AddOne;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AddOneArgs {
    pub(crate) x: DevPtr<u32>,
    pub(crate) len: u32,
    pub(crate) pad: u32,
}

impl Kernel for AddOne {
    type Args = AddOneArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("add_one", 128);
}

/// Waits `ticks` cycles, then stores `value`.
pub(crate) struct SpinStore;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SpinStoreArgs {
    pub(crate) x: DevPtr<u32>,
    pub(crate) value: u32,
    pub(crate) ticks: u32,
}

impl Kernel for SpinStore {
    type Args = SpinStoreArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("spin_store", 32);
}

/// Sends the thread number through the far end of 64 KiB of shared memory.
pub(crate) struct BigSmem;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BigSmemArgs {
    pub(crate) x: DevPtr<u32>,
}

impl Kernel for BigSmem {
    type Args = BigSmemArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("big_smem", 32).with_smem(64 << 10);
}

/// Words of [`EchoArgs`].
pub(crate) const ECHO_WORDS: usize = 62;

/// Writes its argument words to memory.
pub(crate) struct Echo;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EchoArgs {
    pub(crate) x: DevPtr<u32>,
    pub(crate) words: [u32; ECHO_WORDS],
}

impl Kernel for Echo {
    type Args = EchoArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("echo", 1);
}

impl Gpu {
    /// Adds 1 to each of `len` words at `x`, which is of `stream`.
    pub(crate) fn add_one(&self, stream: &Stream, x: DevPtr<u32>, len: usize) {
        let kernel = self.module.kernel::<AddOne>().expect("add_one");
        let grid = [len.div_ceil(128) as u32, 1, 1];
        let args = AddOneArgs { x, len: len as u32, pad: 0 };
        // SAFETY: the callers pass the address of a buffer of `len` words.
        unsafe { kernel.launch(stream, grid, args) }.expect("launch");
    }

    /// Waits `ticks` cycles on `stream`, then stores `value` at `x`.
    pub(crate) fn spin_store(&self, stream: &Stream, x: DevPtr<u32>, value: u32, ticks: u32) {
        let kernel = self.module.kernel::<SpinStore>().expect("spin_store");
        // SAFETY: the callers pass the address of at least one word.
        unsafe { kernel.launch(stream, [1; 3], SpinStoreArgs { x, value, ticks }) }
            .expect("launch");
    }

    /// One more stream.
    pub(crate) fn new_stream(&self) -> Stream {
        Stream::new(&self.device, StreamOptions::default()).expect("a stream")
    }
}

/// Kernels written down as PTX, so that these tests test the driver layer and nothing else.
pub(crate) fn test_ptx() -> String {
    let mut echo = String::new();
    for i in 0..ECHO_WORDS {
        let (from, to) = (8 + 4 * i, 4 * i);
        echo += &format!("ld.param.u32 %r1, [args+{from}]; st.global.u32 [%rd2+{to}], %r1;\n");
    }
    let echo_bytes = size_of::<EchoArgs>();
    format!(
        "
.version 6.0
.target sm_53
.address_size 64
.extern .shared .align 16 .b8 dynamic[];

.visible .entry add_one(.param .align 8 .b8 args[16]) .reqntid 128, 1, 1
{{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [args];
    ld.param.u32 %r1, [args+8];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra ADDED;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r6, [%rd4];
    add.s32 %r7, %r6, 1;
    st.global.u32 [%rd4], %r7;
ADDED:
    ret;
}}

.visible .entry spin_store(.param .align 8 .b8 args[16]) .reqntid 32, 1, 1
{{
    .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<7>;
    ld.param.u64 %rd1, [args];
    ld.param.u32 %r1, [args+8];
    ld.param.u32 %r2, [args+12];
    cvt.u64.u32 %rd2, %r2;
    mov.u64 %rd3, %clock64;
SPIN:
    mov.u64 %rd4, %clock64;
    sub.s64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, %rd2;
    @%p1 bra SPIN;
    mov.u32 %r3, %tid.x;
    setp.ne.u32 %p2, %r3, 0;
    @%p2 bra STORED;
    cvta.to.global.u64 %rd6, %rd1;
    st.global.u32 [%rd6], %r1;
    membar.sys;
STORED:
    ret;
}}

.visible .entry big_smem(.param .align 8 .b8 args[8]) .reqntid 32, 1, 1
{{
    .reg .b32 %r<6>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [args];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, dynamic;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    st.shared.u32 [%r4+65408], %r1;
    bar.sync 0;
    ld.shared.u32 %r5, [%r4+65408];
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r5;
    ret;
}}

.visible .entry echo(.param .align 8 .b8 args[{echo_bytes}]) .reqntid 1, 1, 1
{{
    .reg .b32 %r<2>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [args];
    cvta.to.global.u64 %rd2, %rd1;
    {echo}
    ret;
}}
"
    )
}
