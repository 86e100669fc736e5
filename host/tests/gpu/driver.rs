//! The driver layer: modules, launches, streams, events, graphs, profiling.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bitnet_gpu::driver::ptx::{IMAGES, Image};
use bitnet_gpu::driver::{
    CudaError, Device, DeviceError, Event, GraphError, LaunchError, Module, ModuleError,
    launch_count,
};
use bitnet_gpu::memory::{DeviceBuffer, MappedBuffer, MemoryError};
use contract::launch::{DevPtr, Kernel, LaunchSpec};

use crate::device::{
    AddOne, AddOneArgs, BigSmem, BigSmemArgs, ECHO_WORDS, Echo, EchoArgs, Gpu, assert_bits_eq, gpu,
    gpu_alone, test_ptx,
};

/// A tenth of a second or so.
const LONG: u32 = 200_000_000;

fn words(gpu: &Gpu, data: &[u32]) -> DeviceBuffer<u32> {
    gpu.pool.from_slice(&gpu.stream, data, "test").expect("upload")
}

#[test]
fn a_device_says_what_it_is() {
    let gpu = gpu();
    let info = gpu.device.info();
    assert!(info.sm >= 53 && info.sm_count > 0 && info.memory_bytes > 0 && info.l2_bytes > 0);
    assert!(info.uuid.starts_with("GPU-") && info.uuid.len() == 40, "{}", info.uuid);
    assert!(info.driver_version >= 11040, "{}", info.driver_version_text());
    assert_eq!(info.limits.block_threads, 1024);
    assert_eq!(info.limits.grid, [2147483647, 65535, 65535]);
    let (free, total) = gpu.device.memory_info().expect("memory_info");
    assert!(free <= total && total <= info.memory_bytes);
    let list = Device::list().expect("list");
    assert_eq!(list[0], *info);
    let asked = list.len() as u32;
    assert_eq!(
        Device::open(asked).expect_err("one past the last"),
        DeviceError::NoSuchDevice { asked, found: asked }
    );
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let gpu = gpu();
    let kernel = gpu.module.kernel::<Echo>().expect("echo");
    let words = std::array::from_fn(|i| 0x9E37_79B9u32.wrapping_mul(i as u32 + 1));
    let out = gpu.pool.alloc::<u32>(&gpu.stream, ECHO_WORDS, "out").expect("alloc");
    let args = EchoArgs { x: out.dev_ptr(&gpu.stream), words };
    // SAFETY: `out` has the words that the kernel writes.
    unsafe { kernel.launch(&gpu.stream, [1; 3], args) }.expect("launch");
    assert_bits_eq("echo", &out.download(&gpu.stream).expect("download"), &words);
}

#[test]
fn shared_memory_beyond_48_kib_is_opted_into() {
    let gpu = gpu();
    let kernel = gpu.module.kernel::<BigSmem>().expect("big_smem");
    assert!(kernel.blocks_per_sm().expect("occupancy") >= 1);
    assert_eq!(kernel.resources().expect("resources").local_bytes, 0);
    let out = gpu.pool.alloc::<u32>(&gpu.stream, 32, "out").expect("alloc");
    let args = BigSmemArgs { x: out.dev_ptr(&gpu.stream) };
    // SAFETY: `out` has the 32 words that the kernel writes.
    unsafe { kernel.launch(&gpu.stream, [1; 3], args) }.expect("launch");
    let wanted: Vec<u32> = (0..32).collect();
    assert_bits_eq("big_smem", &out.download(&gpu.stream).expect("download"), &wanted);
}

macro_rules! refused_kernel {
    ($name:ident, $spec:expr) => {
        #[derive(Debug)]
        struct $name;
        impl Kernel for $name {
            type Args = AddOneArgs;
            const SPEC: LaunchSpec = $spec;
        }
    };
}

refused_kernel!(FromTheFuture, LaunchSpec { min_sm: 990, ..LaunchSpec::new("add_one", 128) });
refused_kernel!(TooWide, LaunchSpec::new("add_one", 2048));
refused_kernel!(TooMuchShared, LaunchSpec::new("add_one", 128).with_smem(1 << 20));
refused_kernel!(Missing, LaunchSpec::new("no_such_kernel", 128));

#[test]
fn a_launch_that_does_not_fit_never_reaches_the_driver() {
    let gpu = gpu_alone();
    let kernel = gpu.module.kernel::<AddOne>().expect("add_one");
    let x = words(&gpu, &[5; 4]);
    let args = AddOneArgs { x: x.dev_ptr(&gpu.stream), len: 4, pad: 0 };
    let before = launch_count();
    for grid in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
        // SAFETY: refused before anything runs.
        let error = unsafe { kernel.launch(&gpu.stream, grid, args) }.expect_err("empty grid");
        assert_eq!(error, LaunchError::EmptyGrid { kernel: "add_one", grid });
    }
    for grid in [[1 << 31, 1, 1], [1, 65536, 1], [1, 1, 65536]] {
        // SAFETY: refused before anything runs.
        let error = unsafe { kernel.launch(&gpu.stream, grid, args) }.expect_err("large grid");
        assert!(matches!(error, LaunchError::GridTooLarge { kernel: "add_one", .. }));
    }
    let sm = gpu.device.sm();
    assert_eq!(
        gpu.module.kernel::<FromTheFuture>().expect_err("sm"),
        LaunchError::UnsupportedSm { kernel: "add_one", need: 990, only: false, found: sm }
    );
    let error = gpu.module.kernel::<TooWide>().expect_err("block");
    assert!(matches!(error, LaunchError::BlockTooLarge { .. }));
    let error = gpu.module.kernel::<TooMuchShared>().expect_err("shared memory");
    assert!(matches!(error, LaunchError::SharedMemory { asked: 1048576, .. }));
    let error = gpu.module.kernel::<Missing>().expect_err("symbol");
    assert!(matches!(
        error,
        LaunchError::Module(ModuleError::MissingKernel { symbol: "no_such_kernel", .. })
    ));
    assert_eq!(launch_count(), before);
    assert_eq!(x.download(&gpu.stream).expect("download"), [5; 4]);
    gpu.add_one(&gpu.stream, x.dev_ptr(&gpu.stream), 4);
    assert_eq!(launch_count(), before + 1);
    assert_eq!(x.download(&gpu.stream).expect("download"), [6; 4]);
}

#[test]
fn broken_ptx_comes_back_with_the_compilers_log() {
    let gpu = gpu();
    let broken = test_ptx().replace("mad.lo.s32", "mad.wrong.s32");
    let error = Module::from_ptx(&gpu.device, "broken", &broken).expect_err("broken");
    let ModuleError::Jit { level, log, source } = &error else { panic!("{error:?}") };
    assert_eq!((level.as_str(), source.code), ("broken", 218));
    assert!(log.contains("wrong") || log.contains("syntax"), "{log}");
    assert_eq!(
        Module::from_ptx(&gpu.device, "zero", "a\0b").expect_err("zero byte"),
        ModuleError::NotText { level: "zero".into(), at: 1 }
    );
}

#[test]
fn the_loader_falls_to_a_lower_level_and_says_why() {
    let gpu = gpu();
    let good: &'static str = test_ptx().leak();
    let future: &'static str = good.replace(".version 6.0", ".version 99.0").leak();
    let images = [Image::new("sm_53", "6.0", good), Image::new("sm_61", "99.0", future)];
    if gpu.device.sm() < 61 {
        return;
    }
    let module = Module::load_images(&gpu.device, &images, None).expect("falls back");
    assert_eq!((module.loaded_level(), module.loaded_isa()), ("sm_53", "6.0"));
    let [skipped] = module.skipped() else { panic!("{:?}", module.skipped()) };
    assert_eq!((skipped.level.as_str(), skipped.isa.as_str()), ("sm_61", "99.0"));
    assert!(matches!(skipped.reason.code, 218 | 222), "{skipped}");
    assert!(module.has("echo") && !module.has("nothing"));
    let error = Module::load_images(&gpu.device, &images, Some("sm_61")).expect_err("forced");
    assert!(matches!(error, ModuleError::AllRefused { .. }), "{error}");
}

#[test]
fn every_embedded_level_that_fits_loads() {
    let gpu = gpu();
    for image in IMAGES.iter().filter(|image| image.fits(gpu.device.sm())) {
        let module = Module::load_images(&gpu.device, IMAGES, Some(image.level)).expect("loads");
        assert_eq!(module.loaded_level(), image.level);
    }
}

#[test]
fn streams_run_beside_each_other_and_events_order_them() {
    let gpu = gpu_alone();
    let (a, b) = (&gpu.stream, gpu.new_stream());
    let x = words(&gpu, &[1, 1]);
    a.synchronize().expect("sync");
    // Unordered: b is done while a still spins. A try may fail where this thread was not run for as
    // long as a spins; streams that wait for each other fail them all.
    let beside = (0..5).any(|_| {
        a.synchronize().expect("sync");
        gpu.spin_store(a, x.dev_ptr(a), 7, LONG);
        gpu.add_one(&b, x.slice(1..).expect("slice").dev_ptr(&b), 1);
        b.synchronize().expect("sync");
        !a.is_idle().expect("query")
    });
    assert!(beside, "a non-blocking stream waited for another one");
    let added = x.download(&b).expect("download")[1];
    // Ordered: b adds to what a stores.
    b.wait(a).expect("wait");
    gpu.add_one(&b, x.dev_ptr(&b), 1);
    assert_eq!(x.download(&b).expect("download"), [8, added]);
    assert!(a.is_idle().expect("query"));
}

#[test]
fn events_tell_done_and_time() {
    let gpu = gpu_alone();
    let x = words(&gpu, &[0]);
    let start = Event::with_timing(&gpu.device).expect("event");
    let end = Event::with_timing(&gpu.device).expect("event");
    assert!(end.is_done().expect("query"), "never recorded");
    start.record(&gpu.stream).expect("record");
    gpu.spin_store(&gpu.stream, x.dev_ptr(&gpu.stream), 1, LONG);
    end.record(&gpu.stream).expect("record");
    assert!(!end.is_done().expect("query"));
    let us = end.elapsed_us(&start).expect("elapsed");
    // LONG cycles take 33 ms at 6 GHz and 400 ms at 500 MHz.
    assert!(us > 33_000.0, "{us}");
    let plain = Event::new(&gpu.device).expect("event");
    plain.record(&gpu.stream).expect("record");
    assert!(plain.elapsed_us(&start).is_err(), "an event without timing has no time");
}

#[test]
fn a_graph_replays_and_keeps_its_buffers() {
    let gpu = gpu();
    let s = &gpu.stream;
    let len = 1000;
    let x = words(&gpu, &vec![10; len]);
    let mut y = gpu.pool.alloc_zeroed::<u32>(s, len, "y").expect("alloc");
    let (graph, ()) = s
        .capture(|s| -> Result<(), CudaError> {
            for _ in 0..3 {
                gpu.add_one(s, x.dev_ptr(s), len);
            }
            y.as_slice_mut().copy_from(s, x.as_slice())?;
            Ok(())
        })
        .expect("capture");
    assert_eq!(graph.node_count(), 4);
    assert_eq!(graph.kept_count(), 3, "x, y and the module");
    assert_eq!(y.download(s).expect("download"), vec![0; len], "captured work does not run");
    let in_use = gpu.pool.usage().in_use_bytes;
    drop(x);
    assert_eq!(gpu.pool.usage().in_use_bytes, in_use, "the graph holds x");
    // What would have taken the place of x.
    let mut other = gpu.pool.alloc::<u32>(s, len, "other").expect("alloc");
    other.fill_bytes(s, 0xFF).expect("fill");
    for _ in 0..5 {
        graph.launch(s).expect("launch");
    }
    assert_eq!(y.download(s).expect("download"), vec![10 + 3 * 5; len]);
    assert_eq!(other.download(s).expect("download"), vec![u32::MAX; len]);
    drop(graph);
    assert!(gpu.pool.usage().in_use_bytes < in_use + other.len_bytes(), "x is free now");
}

#[test]
fn a_captured_fork_joins_back() {
    let gpu = gpu();
    let (a, b) = (&gpu.stream, gpu.new_stream());
    let x = words(&gpu, &[1]);
    let y = words(&gpu, &[100]);
    let (graph, ()) = a
        .capture(|a| -> Result<(), CudaError> {
            gpu.add_one(a, x.dev_ptr(a), 1);
            b.wait(a)?;
            assert!(b.is_capturing());
            gpu.add_one(&b, y.dev_ptr(&b), 1);
            gpu.add_one(a, x.dev_ptr(a), 1);
            a.wait(&b)?;
            Ok(())
        })
        .expect("capture");
    assert!(!b.is_capturing() && !a.is_capturing());
    assert_eq!(graph.kept_count(), 3, "x, y and the module");
    graph.launch(a).expect("launch");
    graph.launch(a).expect("launch");
    assert_eq!(x.download(a).expect("download"), [5]);
    assert_eq!(y.download(a).expect("download"), [102]);
    b.synchronize().expect("b is usable");

    let error = a
        .capture(|a| -> Result<(), CudaError> {
            b.wait(a)?;
            gpu.add_one(&b, y.dev_ptr(&b), 1);
            Ok(())
        })
        .expect_err("not joined back");
    assert!(matches!(error, CudaError::Graph(GraphError::Unjoined { .. })), "{error}");
    a.synchronize().expect("a is usable");
    b.synchronize().expect("b is usable");
}

#[test]
fn an_aborted_capture_ends_cleanly() {
    let gpu = gpu();
    let s = &gpu.stream;
    let mut x = words(&gpu, &[1]);
    let error = s
        .capture(|s| -> Result<(), CudaError> {
            gpu.add_one(s, x.dev_ptr(s), 1);
            let nested = s.capture(|_| Ok::<_, GraphError>(())).expect_err("nested");
            assert_eq!(nested, GraphError::AlreadyCapturing);
            assert_eq!(s.synchronize().expect_err("synchronize").code, 900);
            x.upload(s, &[3])?;
            Ok(())
        })
        .expect_err("upload");
    assert_eq!(error, CudaError::Memory(MemoryError::Capturing { what: "upload" }));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = s.capture(|s| -> Result<(), GraphError> {
            gpu.add_one(s, x.dev_ptr(s), 1);
            panic!("inside a capture");
        });
    }));
    assert!(panicked.is_err());
    assert!(!s.is_capturing());
    gpu.add_one(s, x.dev_ptr(s), 1);
    assert_eq!(x.download(s).expect("download"), [2], "only the launch outside has run");
}

#[test]
fn refusals_inside_a_capture_do_not_break_it() {
    let gpu = gpu();
    let s = &gpu.stream;
    let x = words(&gpu, &[1]);
    let (graph, ()) = s
        .capture(|s| -> Result<(), CudaError> {
            assert!(s.synchronize().is_err() && s.is_idle().is_err());
            assert!(matches!(x.download(s), Err(MemoryError::Capturing { .. })));
            gpu.add_one(s, x.dev_ptr(s), 1);
            // A new page while capturing, and a buffer that dies inside.
            let inner = gpu.pool.alloc::<u32>(s, 50 << 20, "inner")?;
            gpu.add_one(s, inner.dev_ptr(s), 1);
            Ok(())
        })
        .expect("capture");
    graph.launch(s).expect("launch");
    assert_eq!(x.download(s).expect("download"), [2]);
}

#[test]
fn the_host_reads_words_behind_the_stream() {
    let gpu = gpu();
    let s = &gpu.stream;
    let flags = MappedBuffer::<u32>::new(&gpu.device, 4).expect("mapped");
    assert_eq!(flags.load(3), Some(0));
    assert_eq!(flags.load(4), None);
    gpu.spin_store(s, flags.dev_ptr(s), 42, LONG / 10);
    let start = std::time::Instant::now();
    while flags.load(0) != Some(42) {
        assert!(start.elapsed().as_secs() < 10, "the word never arrived");
        std::hint::spin_loop();
    }
    assert!(flags.store(1, 9));
    gpu.add_one(s, flags.dev_ptr(s), 4);
    s.synchronize().expect("sync");
    assert_eq!([0, 1, 2, 3].map(|i| flags.load(i)), [43, 10, 1, 1].map(Some));
    // Dropped while a kernel still writes to it: the drop waits.
    gpu.spin_store(s, flags.dev_ptr(s), 1, LONG);
    drop(flags);
    assert!(s.is_idle().expect("query"));
}

#[test]
fn the_profiler_times_every_launch() {
    let gpu = gpu_alone();
    // A handle of its own: the profiler stays on for that one only.
    let device = Device::open(0).expect("device");
    device.enable_profiler();
    let module = Module::from_ptx(&device, "test", &test_ptx()).expect("module");
    let x = words(&gpu, &[0; 256]);
    let kernel = module.kernel::<AddOne>().expect("add_one");
    for _ in 0..5 {
        let args = AddOneArgs { x: x.dev_ptr(&gpu.stream), len: 256, pad: 0 };
        // SAFETY: `x` has 256 words.
        unsafe { kernel.launch(&gpu.stream, [2, 1, 1], args) }.expect("launch");
    }
    let profile = device.profiler().expect("on").report().expect("report");
    let [row] = &profile.rows[..] else { panic!("{profile}") };
    assert_eq!((row.name, row.calls), ("add_one", 5));
    assert!(row.min_us > 0.0 && row.min_us <= row.mean_us && row.mean_us <= row.max_us);
    assert!(profile.samples.windows(2).all(|w| w[0].start_us < w[1].start_us));
    assert_eq!(x.download(&gpu.stream).expect("download"), [5; 256]);
}

/// Run again as a process of its own, because it loses the context.
#[test]
fn an_illegal_access_is_a_typed_lost_context() {
    const CHILD: &str = "BITNET_TEST_FAULT";
    if std::env::var_os(CHILD).is_none() {
        let program = std::env::current_exe().expect("this program");
        let status = std::process::Command::new(program)
            .args(["--exact", "driver::an_illegal_access_is_a_typed_lost_context"])
            .env(CHILD, "1")
            .status()
            .expect("starts");
        assert!(status.success(), "{status}");
        return;
    }
    let gpu = gpu();
    let x = words(&gpu, &[1]);
    gpu.add_one(&gpu.stream, DevPtr::from_addr(0x100), 1);
    let error = gpu.stream.synchronize().expect_err("an illegal access");
    assert!(error.is_sticky(), "{error}");
    assert!(matches!(error.code, 700 | 717 | 719), "{error}");
    assert!(x.download(&gpu.stream).is_err(), "the context is lost");
    // Everything is dropped on the way out, without a panic.
}
