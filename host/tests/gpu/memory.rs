//! Pool, buffers, copies.

use bitnet_gpu::driver::{GraphError, Stream, StreamOptions};
use bitnet_gpu::memory::{DeviceBuffer, MemoryError, PinnedBuffer, Pool, PoolOptions};

use crate::device::{assert_bits_eq, gpu, gpu_alone};

const LONG: u32 = 200_000_000;

fn pattern(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| i.wrapping_mul(2654435761).wrapping_add(seed)).collect()
}

#[test]
fn data_goes_up_and_comes_down_at_every_size() {
    let gpu = gpu();
    let s = &gpu.stream;
    // Around the staging chunk of 4 MiB (1 Mi words), and odd ones.
    for len in [0, 1, 3, 63, 64, 65, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20, 9999999]
    {
        let data = pattern(len, 1);
        let x = gpu.pool.from_slice(s, &data, "x").expect("upload");
        assert_eq!(x.dev_ptr(s).addr() % 256, 0);
        assert_bits_eq("round trip", &x.download(s).expect("download"), &data);
    }
    assert_eq!(gpu.pool.usage().in_use_bytes, 0);
}

#[test]
fn pageable_uploads_never_race_with_the_kernels_behind_them() {
    let gpu = gpu();
    let s = &gpu.stream;
    for (bytes, repeats) in [(64 << 10, 200), (256 << 10, 200), (1 << 20, 200), (64 << 20, 10)] {
        let len = bytes / 4;
        let mut x = gpu.pool.alloc::<u32>(s, len, "x").expect("alloc");
        for round in 0..repeats {
            let mut data = pattern(len, round);
            x.upload(s, &data).expect("upload");
            // The host may do what it likes with its memory once `upload` is back.
            data.fill(0xDEAD_BEEF);
            drop(data);
            gpu.add_one(s, x.dev_ptr(s), len);
            let wanted: Vec<u32> =
                pattern(len, round).into_iter().map(|v| v.wrapping_add(1)).collect();
            let found = x.download(s).expect("download");
            assert_bits_eq(&format!("{bytes} bytes, round {round}"), &found, &wanted);
        }
    }
}

#[test]
fn uploads_queue_without_a_wait() {
    let gpu = gpu();
    let (a, b) = (&gpu.stream, gpu.new_stream());
    // More copies than there are staging slots; the second stream's stand in slots of their own.
    let (parts, len) = (300, 700);
    let mut x = gpu.pool.alloc::<u32>(a, parts * len, "x").expect("alloc");
    let mut y = gpu.pool.alloc::<u32>(&b, parts * len, "y").expect("alloc");
    let slow = gpu.pool.alloc::<u32>(a, 1, "slow").expect("alloc");
    gpu.spin_store(a, slow.dev_ptr(a), 1, LONG);
    let (of_x, of_y) = (pattern(parts * len, 6), pattern(parts * len, 7));
    for (i, part) in of_x.chunks_exact(len).enumerate() {
        x.slice_mut(i * len..(i + 1) * len).and_then(|mut to| to.upload(a, part)).expect("upload");
    }
    assert!(!a.is_idle().expect("query"), "uploads stand behind the spin, and the host does not");
    for (i, part) in of_y.chunks_exact(len).enumerate() {
        y.slice_mut(i * len..(i + 1) * len).and_then(|mut to| to.upload(&b, part)).expect("upload");
        if i % 100 == 0 {
            x.slice_mut(..1).and_then(|mut to| to.upload(a, &of_x[..1])).expect("upload");
        }
    }
    assert_bits_eq("the other stream's", &y.download(&b).expect("download"), &of_y);
    assert_bits_eq("behind the spin", &x.download(a).expect("download"), &of_x);
}

#[test]
fn borrowed_memory_serves_on_a_foreign_stream_and_is_not_freed() {
    let gpu = gpu_alone();
    let s = &gpu.stream;
    let theirs = gpu.pool.from_slice(s, &pattern(1000, 5), "theirs").expect("upload");
    let addr = theirs.dev_ptr(s).addr();
    s.synchronize().expect("uploaded");
    let before = gpu.pool.usage();
    let owner = Stream::new(&gpu.device, StreamOptions::default()).expect("a stream");
    // SAFETY: `owner` is a stream of the device and outlives the other handle of it.
    let foreign = unsafe { Stream::foreign(&gpu.device, owner.handle()) };
    let borrow = |addr, len| {
        // SAFETY: `theirs` outlives what is queued here, and its own stream has nothing to do.
        unsafe { DeviceBuffer::<u32>::borrowed(&gpu.pool, &foreign, addr, len, "borrowed") }
    };
    let x = borrow(addr, 500).expect("borrowed");
    gpu.add_one(&foreign, x.dev_ptr(&foreign), 500);
    // On another stream as well, in order.
    s.wait(&foreign).expect("ordered");
    gpu.add_one(s, x.dev_ptr(s), 250);
    foreign.wait(s).expect("ordered");
    foreign.synchronize().expect("done");
    for bad in [0, addr + 4, addr + 128] {
        assert!(matches!(borrow(bad, 1), Err(MemoryError::Misaligned { .. })), "{bad}");
    }
    drop(x);
    drop(foreign);
    assert_eq!(gpu.pool.usage(), before);
    let mut wanted = pattern(1000, 5);
    wanted[..500].iter_mut().for_each(|v| *v = v.wrapping_add(1));
    wanted[..250].iter_mut().for_each(|v| *v = v.wrapping_add(1));
    assert_bits_eq("theirs", &theirs.download(s).expect("download"), &wanted);
}

#[test]
fn slices_are_parts_and_refuse_what_is_not() {
    let gpu = gpu();
    let s = &gpu.stream;
    let mut x = gpu.pool.from_slice(s, &pattern(100, 0), "x").expect("upload");
    x.slice_mut(10..20).expect("slice").upload(s, &[7; 10]).expect("upload");
    gpu.add_one(s, x.slice(15..).expect("slice").dev_ptr(s), 3);
    let mut wanted = pattern(100, 0);
    wanted[10..20].fill(7);
    wanted[15..18].fill(8);
    assert_bits_eq("slices", &x.download(s).expect("download"), &wanted);
    assert_bits_eq(
        "part",
        &x.slice(14..=15).expect("slice").download(s).expect("download"),
        &[7, 8],
    );
    let (a, mut b) = x.as_slice_mut().split_at(40).expect("split");
    b.reborrow().slice_mut(..40).expect("slice").copy_from(s, a.as_slice()).expect("copy");
    wanted.copy_within(0..40, 40);
    assert_bits_eq("copy", &x.download(s).expect("download"), &wanted);
    assert!(matches!(
        x.slice(50..101).expect_err("beyond the end"),
        MemoryError::OutOfRange { start: 50, end: 101, len: 100, label: "x" }
    ));
    #[allow(clippy::reversed_empty_ranges, reason = "what is refused")]
    let backwards = x.slice(5..4);
    assert!(backwards.is_err());
    assert_eq!(
        x.upload(s, &[1, 2]).expect_err("too short"),
        MemoryError::Length { what: "upload", need: 100, have: 2 }
    );
}

#[test]
fn fills_set_every_byte() {
    let gpu = gpu();
    let s = &gpu.stream;
    let mut x = gpu.pool.alloc::<u8>(s, 777, "x").expect("alloc");
    x.fill_bytes(s, 0xA5).expect("fill");
    x.slice_mut(1..3).expect("slice").fill_bytes(s, 0x7F).expect("fill");
    let mut wanted = vec![0xA5; 777];
    wanted[1..3].fill(0x7F);
    assert_bits_eq("fill", &x.download(s).expect("download"), &wanted);
}

#[test]
fn pinned_memory_is_waited_for() {
    let gpu = gpu_alone();
    let s = &gpu.stream;
    let len = 1 << 20;
    let mut host = PinnedBuffer::<u32>::new(&gpu.device, len).expect("pinned");
    assert!(host.as_slice().expect("ready").iter().all(|&v| v == 0));
    host.as_mut_slice().expect("ready").copy_from_slice(&pattern(len, 3));
    let mut x = gpu.pool.alloc::<u32>(s, len, "x").expect("alloc");
    let slow = gpu.pool.alloc::<u32>(s, 1, "slow").expect("alloc");
    gpu.spin_store(s, slow.dev_ptr(s), 1, LONG);
    x.as_slice_mut().copy_from_pinned(s, &mut host).expect("copy");
    assert!(!host.is_ready().expect("query"), "the copy stands behind the spin");
    // Writing waits until the copy has read.
    host.as_mut_slice().expect("ready").fill(0);
    assert_bits_eq("up", &x.download(s).expect("download"), &pattern(len, 3));
    gpu.spin_store(s, slow.dev_ptr(s), 1, LONG);
    gpu.add_one(s, x.dev_ptr(s), len);
    x.as_slice().copy_to_pinned(s, &mut host).expect("copy");
    let wanted: Vec<u32> = pattern(len, 3).into_iter().map(|v| v.wrapping_add(1)).collect();
    assert_bits_eq("down", host.as_slice().expect("ready"), &wanted);
}

#[test]
fn the_pool_reuses_and_counts() {
    let gpu = gpu();
    let s = &gpu.stream;
    let pool = &gpu.pool;
    let round = || {
        let small: Vec<DeviceBuffer<u8>> =
            (1..60).map(|i| pool.alloc(s, i * 100, "small").expect("alloc")).collect();
        let large: DeviceBuffer<u8> = pool.alloc(s, 40 << 20, "large").expect("alloc");
        let usage = pool.usage();
        let held: usize = small.iter().map(|b| b.len()).sum::<usize>() + large.len();
        assert!(usage.in_use_bytes >= held && usage.in_use_bytes <= held + held / 16 + 60 * 256);
        assert_eq!(usage.per_label.values().sum::<usize>(), usage.in_use_bytes);
        assert_eq!(usage.largest(1)[0].0, "large");
        usage
    };
    let first = round();
    assert_eq!(pool.usage().in_use_bytes, 0);
    assert!(pool.usage().per_label.is_empty());
    assert_eq!(pool.usage().reserved_bytes, first.reserved_bytes);
    for _ in 0..1000 {
        assert_eq!(round(), first, "no growth after the first round");
    }
    assert_eq!(pool.trim().expect("trim"), first.reserved_bytes);
    let usage = pool.usage();
    assert_eq!((usage.reserved_bytes, usage.peak_bytes), (0, first.peak_bytes));
}

#[test]
fn a_capped_pool_refuses_with_numbers_and_recovers() {
    let gpu = gpu();
    let s = &gpu.stream;
    let pool = Pool::new(&gpu.device, PoolOptions::default().cap_bytes(8 << 20));
    let held: DeviceBuffer<u8> = pool.alloc(s, 6 << 20, "weights").expect("fits");
    let error = pool.alloc::<u8>(s, 3 << 20, "kv").expect_err("does not fit");
    let MemoryError::OutOfMemory { asked, label, cap, in_use, reserved, largest, free } = error
    else {
        panic!("{error}")
    };
    assert_eq!((asked, label, cap), (3 << 20, "kv", Some(8 << 20)));
    assert_eq!((in_use, reserved), (6 << 20, 6 << 20));
    assert_eq!(largest, [("weights", 6 << 20)]);
    assert!(free > 0);
    drop(held);
    let again: DeviceBuffer<u8> = pool.alloc(s, 8 << 20, "kv").expect("fits after the drop");
    assert_eq!(pool.usage().reserved_bytes, 8 << 20);
    drop(again);
    let error = pool.alloc::<u64>(s, usize::MAX / 4, "huge").expect_err("no address");
    assert!(matches!(error, MemoryError::TooLarge { elem_bytes: 8, .. }));
}

#[test]
fn a_buffer_used_on_another_stream_is_not_reused_too_early() {
    let gpu = gpu();
    let (a, b) = (&gpu.stream, gpu.new_stream());
    let len = 1 << 20;
    let x = gpu.pool.alloc::<u32>(a, len, "x").expect("alloc");
    let addr = x.dev_ptr(a).addr();
    b.wait(a).expect("wait");
    gpu.spin_store(&b, x.dev_ptr(&b), 7, LONG);
    drop(x);
    let mut y = gpu.pool.alloc::<u32>(a, len, "y").expect("alloc");
    assert_eq!(y.dev_ptr(a).addr(), addr, "the pool reuses the range at once");
    y.fill_bytes(a, 0).expect("fill");
    b.synchronize().expect("sync");
    let found = y.download(a).expect("download");
    assert_bits_eq("reused memory", &found, &vec![0; len]);
}

#[test]
fn memory_freed_on_a_busy_stream_serves_another_after_it() {
    let gpu = gpu_alone();
    let (a, b) = (&gpu.stream, gpu.new_stream());
    let pool = Pool::new(&gpu.device, PoolOptions::default().cap_bytes(4 << 20));
    let x = pool.alloc::<u32>(a, 1 << 20, "x").expect("alloc");
    gpu.spin_store(a, x.dev_ptr(a), 7, LONG);
    drop(x);
    // The cap leaves only the range that a is still using: b waits for it on the device.
    let mut y = pool.alloc::<u32>(&b, 1 << 20, "y").expect("alloc");
    assert!(!a.is_idle().expect("query"), "the host did not wait");
    y.fill_bytes(&b, 0).expect("fill");
    assert_bits_eq("adopted", &y.download(&b).expect("download"), &vec![0; 1 << 20]);
}

#[test]
fn a_captured_stream_delays_the_reuse_of_what_it_used_before() {
    let gpu = gpu();
    let (a, b) = (&gpu.stream, gpu.new_stream());
    let x = gpu.pool.alloc_zeroed::<u32>(a, 1 << 20, "x").expect("alloc");
    b.wait(a).expect("wait");
    gpu.spin_store(&b, x.dev_ptr(&b), 7, LONG);
    let z = gpu.pool.from_slice(a, &[1u32], "z").expect("upload");
    b.wait(a).expect("wait");
    let in_use = gpu.pool.usage().in_use_bytes;
    let x_bytes = x.len_bytes();
    let (graph, ()) = b
        .capture(|b| {
            gpu.add_one(b, z.dev_ptr(b), 1);
            drop(x);
            assert_eq!(gpu.pool.usage().in_use_bytes, in_use, "b cannot be ordered now");
            Ok::<_, GraphError>(())
        })
        .expect("capture");
    assert_eq!(graph.kept_count(), 3, "x, z and the module");
    graph.launch(&b).expect("launch");
    drop(graph);
    assert_eq!(gpu.pool.usage().in_use_bytes, in_use - x_bytes);
    assert_eq!(z.download(&b).expect("download"), [2]);
}

#[test]
fn many_threads_share_a_pool() {
    let gpu = gpu();
    std::thread::scope(|scope| {
        for t in 0..4u32 {
            let (gpu, pool) = (&gpu, &gpu.pool);
            scope.spawn(move || {
                let s = gpu.new_stream();
                for round in 0..50 {
                    let len = 1000 + 7919 * ((t + round) as usize % 13);
                    let data = pattern(len, t << 16 | round);
                    let x = pool.from_slice(&s, &data, "thread").expect("upload");
                    gpu.add_one(&s, x.dev_ptr(&s), len);
                    let wanted: Vec<u32> = data.iter().map(|v| v.wrapping_add(1)).collect();
                    assert_bits_eq("thread", &x.download(&s).expect("download"), &wanted);
                }
            });
        }
    });
    assert_eq!(gpu.pool.usage().in_use_bytes, 0);
}
