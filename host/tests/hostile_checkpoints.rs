//! Checkpoint files that were damaged at random: every one is opened and read whole, and must end in
//! an error or in success, never in a panic, and never in more memory than the files justify.
//!
//! This is a test binary of its own because it counts every allocation. The allocator's counters are
//! per thread, so tests that run side by side do not disturb each other.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    path::Path,
};

use bitnet_gpu::{
    checkpoint::{
        Checkpoint, CheckpointError, DenseSlot, FloatType, LinearSlot, OpenOptions, Proj, Target,
        convert,
        synth::{self, NamedConfig, SynthOptions},
    },
    pack::{PackedW2, W2Builder, ternary_sha256},
};
use proptest::{prelude::*, test_runner::TestRunner};

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn count(freed: usize, taken: usize) {
    // A thread that is ending has no counters any more; nothing is measured there.
    let _ = LIVE.try_with(|live| {
        live.set(live.get().saturating_sub(freed) + taken);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller's promises are the ones `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), size);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work`; the most bytes that were live on this thread beyond those before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let value = work();
    (value, PEAK.with(Cell::get) - before)
}

/// One block of everything, every size fit for every form.
fn small() -> NamedConfig {
    let mut named = NamedConfig::find("tiny-blocks").unwrap().with_layers(1);
    named.config.intermediate_size = 256;
    named.config.vocab_size = 264;
    named
}

fn nothing(_: u64, _: u64) {}

/// `(file to damage, path to open)`, both relative.
const TARGETS: [(&str, &str); 9] = [
    ("hf/model.safetensors", "hf"),
    ("hf/config.json", "hf"),
    ("hf/generation_config.json", "hf"),
    ("shards/model-00001-of-00002.safetensors", "shards"),
    ("shards/model.safetensors.index.json", "shards"),
    ("int2/model.safetensors", "int2"),
    ("i2s.gguf", "i2s.gguf"),
    ("tq1.gguf", "tq1.gguf"),
    ("tq2.gguf", "tq2.gguf"),
];

fn originals() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    synth::write(&at("hf"), &small(), 3, &mut nothing).unwrap();
    let shards = SynthOptions { masters: Some(FloatType::Bf16), shards: 2 };
    synth::write_with(&at("shards"), &small(), 3, &shards, &mut nothing).unwrap();
    let start = Checkpoint::open(at("hf"), &OpenOptions::default()).unwrap();
    for (name, target) in [
        ("i2s.gguf", Target::GgufI2S),
        ("tq1.gguf", Target::GgufTq1),
        ("tq2.gguf", Target::GgufTq2),
        ("int2", Target::Int2),
    ] {
        convert(&start, &at(name), target, &mut nothing).unwrap();
    }
    folder
}

/// Reads everything there is.
fn read_whole(path: &Path, mmap: bool) -> Result<(), CheckpointError> {
    let checkpoint = Checkpoint::open(path, &OpenOptions::default().mmap(mmap))?;
    for slot in checkpoint.linear_slots() {
        let rows = checkpoint.linear(slot)?;
        assert_eq!((rows.n(), rows.k()), checkpoint.config().linear_shape(slot.proj));
        assert!(rows.scale().is_finite() && rows.scale() > 0.0);
        ternary_sha256(&rows)?;
    }
    for slot in checkpoint.norm_slots() {
        assert!(checkpoint.norm(slot)?.iter().all(|gain| gain.is_finite()));
    }
    for slot in [DenseSlot::Embedding, DenseSlot::Head] {
        let view = checkpoint.dense(slot)?;
        let mut row = vec![0.0; view.cols];
        view.rows_f32(view.rows - 1..view.rows, &mut row)?;
    }
    if let Some(tokenizer) = checkpoint.gguf_tokenizer()? {
        assert!(tokenizer.tokens.len() <= checkpoint.config().vocab_size);
    }
    Ok(())
}

/// What is done to a file.
#[derive(Clone, Debug)]
enum Damage {
    /// Other bytes, near the front (where the headers are) or anywhere.
    Flip(Vec<(prop::sample::Index, bool, u8)>),
    /// The end is missing.
    Cut(prop::sample::Index),
    /// Bytes behind the end.
    Grow(Vec<u8>),
    /// A number in the front becomes an extreme one.
    Number(prop::sample::Index, u64, bool),
    /// A piece of the front is repeated over another.
    Copy(prop::sample::Index, prop::sample::Index, usize),
    /// A decimal digit of a header becomes another.
    Digit(prop::sample::Index, u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let extreme = prop_oneof![
        Just(0u64),
        Just(1),
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 32),
        Just(u32::MAX.into()),
        any::<u64>(),
    ];
    prop_oneof![
        prop::collection::vec((index(), any::<bool>(), 1u8..), 1..6).prop_map(Damage::Flip),
        index().prop_map(Damage::Cut),
        prop::collection::vec(any::<u8>(), 1..100).prop_map(Damage::Grow),
        (index(), extreme, any::<bool>()).prop_map(|(at, v, wide)| Damage::Number(at, v, wide)),
        (index(), index(), 1usize..64).prop_map(|(a, b, n)| Damage::Copy(a, b, n)),
        (index(), 0u8..10).prop_map(|(at, digit)| Damage::Digit(at, digit)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let front = bytes.len().min(6000);
    match damage {
        Damage::Flip(places) => {
            for (at, near, flip) in places {
                let at = at.index(if *near { front } else { bytes.len() });
                bytes[at] ^= flip;
            }
        }
        Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Damage::Grow(more) => bytes.extend(more),
        Damage::Number(at, value, wide) => {
            let width = if *wide { 8 } else { 4 };
            let at = at.index(front - width);
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        Damage::Copy(from, to, len) => {
            let len = *len.min(&(front / 2));
            let (from, to) = (from.index(front - len), to.index(front - len));
            bytes.copy_within(from..from + len, to);
        }
        Damage::Digit(at, digit) => {
            let digits: Vec<usize> = (0..front).filter(|&i| bytes[i].is_ascii_digit()).collect();
            if !digits.is_empty() {
                bytes[digits[at.index(digits.len())]] = b'0' + digit;
            }
        }
    }
}

/// Four times what `PROPTEST_CASES` asks for (256 when it is not set).
fn cases() -> u32 {
    4 * ProptestConfig::default().cases
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

#[test]
fn damaged_files_end_in_an_error_or_in_success_and_in_bounded_memory() {
    let originals = originals();
    let root = originals.path();
    for (_, open) in TARGETS {
        read_whole(&root.join(open), true).unwrap();
        read_whole(&root.join(open), false).unwrap();
    }
    let pristine = TARGETS.map(|(file, _)| fs::read(root.join(file)).unwrap());
    let refused = Cell::new(0);
    let cases = cases();
    let strategy = (0..TARGETS.len(), damage(), any::<bool>());
    let outcome = runner(cases).run(&strategy, |(which, damage, mmap)| {
        let (file, open) = TARGETS[which];
        let mut bytes = pristine[which].clone();
        apply(&mut bytes, &damage);
        let len = bytes.len();
        fs::write(root.join(file), bytes).unwrap();
        let (result, peak) = peak_of(|| read_whole(&root.join(open), mmap));
        fs::write(root.join(file), &pristine[which]).unwrap();
        if let Err(error) = &result {
            refused.set(refused.get() + 1);
            prop_assert!(error.to_string().len() < 20_000, "{}", error.to_string().len());
        }
        // Headers become tables of about four times their size; rows pass through 1 MiB.
        let allowed = 4 * len + (3 << 20);
        prop_assert!(peak < allowed, "{file}: {peak} bytes live, {allowed} allowed");
        Ok(())
    });
    outcome.unwrap();
    assert!(refused.get() > cases / 4, "only {} of {cases} were refused", refused.get());
}

#[test]
fn a_few_bytes_never_ask_for_much_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let byte = prop_oneof![3 => Just(0u8), 1 => Just(255u8), 2 => any::<u8>()];
    let bytes = prop::collection::vec(byte, 0..200);
    let outcome = runner(2 * cases()).run(&(bytes, any::<bool>()), |(tail, mmap)| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tail);
        fs::write(&path, &bytes).unwrap();
        let (result, peak) = peak_of(|| read_whole(&path, mmap));
        prop_assert!(result.is_err());
        prop_assert!(peak < 1 << 18, "{peak}");
        Ok(())
    });
    outcome.unwrap();
}

/// Loading as the model loader does it: everything packed and held, with room for one piece.
#[test]
fn loading_holds_less_than_a_fifth_more_than_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut named = NamedConfig::find("tiny").unwrap().with_layers(4);
    named.config.hidden_size = 768;
    named.config.num_heads = 16;
    named.config.num_kv_heads = 4;
    named.config.intermediate_size = 2048;
    named.config.vocab_size = 6001;
    synth::write(dir.path(), &named, 1, &mut nothing).unwrap();
    let options = OpenOptions::default().mmap(false);
    let ((held, file), peak) = peak_of(|| {
        let checkpoint = Checkpoint::open(dir.path(), &options).unwrap();
        let mut matrices = Vec::new();
        for layer in 0..checkpoint.config().num_layers {
            let groups: [&[Proj]; 4] =
                [&[Proj::Q, Proj::K, Proj::V], &[Proj::O], &[Proj::Gate, Proj::Up], &[Proj::Down]];
            for projs in groups {
                let rows = projs.iter().map(|&proj| LinearSlot { layer, proj });
                let rows: Vec<_> = rows.map(|slot| checkpoint.linear(slot).unwrap()).collect();
                let n = rows.iter().map(|rows| rows.n()).sum();
                let mut builder = W2Builder::new(rows[0].k()).unwrap().with_rows(n).unwrap();
                for rows in &rows {
                    builder.push(rows).unwrap();
                }
                matrices.push(builder.finish().unwrap());
            }
        }
        let head = checkpoint.dense(DenseSlot::Head).unwrap();
        let head = head.bytes(0..head.rows).unwrap().into_owned();
        let held = matrices.iter().map(PackedW2::bytes).sum::<usize>() + head.len();
        (held, checkpoint.file_bytes() as usize)
    });
    assert!(held > file / 10 * 9, "{held} of {file}: the test must hold the whole model");
    assert!(peak < file / 10 * 12, "{peak} bytes live for a file of {file}");
}
