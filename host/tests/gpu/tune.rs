//! Tuning on a device: what is measured is equal in its bits, is kept, and runs afterwards.

use std::time::Duration;

use bitnet_gpu::driver::CudaOptions;
use bitnet_gpu::ops::bit_linear::{BitLinear, Finish};
use bitnet_gpu::ops::choices::{Choices, Family, Problem};
use bitnet_gpu::ops::w2a8_gemm::W2a8Gemm;
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::w2a8_trits::W2a8Trits;
use bitnet_gpu::ops::{Backend, CudaBackend, PackedLinear, QuantActs, WeightLayout};
use bitnet_gpu::reference::Inputs;
use bitnet_gpu::tune::record::Record;
use bitnet_gpu::tune::{self, Options, Shape, TuneError, Tuning, store};
use contract::w2a8::Segments;

const SHAPE: Shape = Shape { n: 192, k: 320 };

/// Runs `family` once with whatever is chosen and returns its output and the kernels that ran.
fn run(gpu: &CudaBackend, family: Family, m: usize) -> (Vec<u32>, Vec<&'static str>) {
    let (n, k) = (SHAPE.n, SHAPE.k);
    let mut inputs = Inputs::new(7);
    let segments = Segments::new(&[(n, 0.5)]).unwrap();
    let mut w = PackedLinear::alloc(gpu, "test", k, segments).unwrap();
    let words = inputs.packed_words(n, k);
    w.write_rows(gpu, 0, &words).unwrap();
    let layout = WeightLayout::Trits;
    let mut trits = PackedLinear::alloc_in(gpu, "test", k, segments, layout).unwrap();
    trits.write_rows(gpu, 0, &words).unwrap();
    let (words, stats) = inputs.packed_acts(m, k);
    let mut acts = QuantActs::alloc(gpu, m, k).unwrap();
    gpu.write(&mut acts.acts, 0, &words).unwrap();
    gpu.write(&mut acts.stats, 0, &stats).unwrap();
    let mut x = gpu.alloc("test", k).unwrap();
    gpu.write(&mut x, 0, &inputs.floats(k, 2.0)).unwrap();
    let mut y = gpu.alloc("test", m * n).unwrap();
    gpu.fill(&mut y, 0xff).unwrap();
    gpu.cuda().profiler().expect("opened with it").reset();
    let w = &w;
    match family {
        Family::BitLinear => {
            gpu.bit_linear(BitLinear { x: &x, norm: None, w, finish: Finish::Store { y: &mut y } })
        }
        Family::W2a8Gemv => gpu.w2a8_gemv(W2a8Gemv { w, acts: &acts, y: &mut y, variant: None }),
        Family::W2a8Gemm => gpu.w2a8_gemm(W2a8Gemm {
            chained: true,
            behind: Default::default(),
            w,
            acts: &acts,
            y: &mut y,
            m,
            variant: None,
        }),
        Family::W2a8Trits => {
            let (w, unpacked) = (&trits, &mut gpu.alloc("test", 1).unwrap());
            gpu.w2a8_trits(W2a8Trits { w, acts: &acts, y: &mut y, m, unpacked, variant: None })
        }
    }
    .unwrap();
    let names = gpu.profile().unwrap().unwrap().rows.iter().map(|row| row.name).collect();
    let mut values = vec![0.0f32; m * n];
    gpu.read(&y, 0, &mut values).unwrap();
    (values.iter().map(|v| v.to_bits()).collect(), names)
}

/// The kernel of a variant; some variants share one.
fn kernel(family: Family, index: usize) -> &'static str {
    family.spec(index).unwrap().symbol
}

fn open() -> CudaBackend {
    CudaBackend::open(CudaOptions::default().profile(true)).expect("the GPU tests need a GPU")
}

#[test]
fn every_variant_that_is_chosen_runs_with_the_same_bits() {
    let _alone = crate::device::alone();
    let mut gpu = open();
    let one = [Family::BitLinear, Family::W2a8Gemv, Family::W2a8Trits].map(|family| (family, 1));
    for (family, m) in one.into_iter().chain([(Family::W2a8Gemm, 20)]) {
        let problem = Problem::of(family, m, SHAPE.n, SHAPE.k).unwrap();
        gpu.set_choices(Choices::default()).unwrap();
        let (expected, names) = run(&gpu, family, m);
        let (sms, pdl) = (gpu.cuda().device().sm_count(), gpu.cuda().stream().pdl());
        let default = problem.default_variant(sms, pdl, |index| gpu.runs(&problem, index));
        assert_eq!(names, [kernel(family, default)]);
        let mut ran = 0;
        for index in 0..family.variants_len() {
            let mut choices = Choices::default();
            choices.insert(problem, index).unwrap();
            if !gpu.runs(&problem, index) {
                gpu.set_choices(choices).expect_err("this device does not have it");
                continue;
            }
            gpu.set_choices(choices).unwrap();
            let (found, names) = run(&gpu, family, m);
            assert_eq!(names, [kernel(family, index)]);
            assert!(found == expected, "{problem} by {}", family.symbol(index));
            ran += 1;
        }
        assert!(ran >= 1, "{problem}");
    }
}

#[test]
fn what_is_tuned_is_kept_and_runs() {
    let _alone = crate::device::alone();
    let folder = std::env::temp_dir().join(format!("bitnet-tune-test-{}", std::process::id()));
    let options = Options {
        max_rows: 24,
        budget: Duration::from_secs(600),
        folder: Some(folder.clone()),
        ..Options::default()
    };
    let mut seen = 0;
    let cold = tune::tune(&[SHAPE], &options, &mut |_| seen += 1).unwrap();
    assert!(cold.notes.is_empty() && cold.kept == 0 && cold.left == 0, "{:?}", cold.notes);
    // bit_linear and the GEMV, and the GEMM in three classes of rows where the device has tensor cores.
    assert!(cold.measured >= 2 && seen == cold.measured && cold.problems.len() == seen);
    for entry in &cold.record.entries {
        let chosen = entry.chosen_us().expect("something passed");
        let least = entry.tried.iter().filter_map(|tried| tried.us).fold(f64::INFINITY, f64::min);
        assert!(entry.tried.iter().all(|tried| tried.failed.is_none()), "{entry:?}");
        assert!(least <= chosen && chosen <= entry.default_us().unwrap(), "{entry:?}");
    }
    // Warm: nothing is measured, the file is what was measured.
    let warm = tune::tune(&[SHAPE], &options, &mut |_| panic!("measured again")).unwrap();
    assert_eq!((warm.measured, warm.kept), (0, cold.measured));
    assert_eq!(store::read(&cold.path).unwrap(), Some(warm.record.clone()));

    // The slowest variant of each problem, so that it is not what runs anyway.
    let mut record = warm.record.clone();
    for entry in &mut record.entries {
        let us = |name: &String| entry.tried.iter().find(|t| t.variant == *name).and_then(|t| t.us);
        let names = entry.tried.iter().map(|tried| tried.variant.clone());
        entry.chosen = names.max_by(|a, b| us(a).partial_cmp(&us(b)).unwrap());
    }
    let file = folder.join("slow.json");
    store::write(&file, &record).unwrap();
    let mut gpu = open();
    let state = tune::apply(&mut gpu, &Tuning::File(file.clone())).unwrap();
    assert_eq!((state.choices, state.notes.len()), (record.entries.len(), 0));
    for entry in &record.entries {
        let (_, names) = run(&gpu, entry.family, entry.m);
        let chosen = entry.family.find(entry.chosen.as_deref().unwrap()).unwrap();
        assert_eq!(names, [kernel(entry.family, chosen)]);
    }
    assert_eq!(tune::apply(&mut gpu, &Tuning::Off).unwrap().choices, 0);
    assert!(gpu.choices().is_empty());

    // A record of another device or of other kernels is refused by name, and changes nothing.
    let refused = |change: &dyn Fn(&mut Record)| {
        let mut other = record.clone();
        change(&mut other);
        store::write(&file, &other).unwrap();
        let mut gpu = open();
        let error = tune::apply(&mut gpu, &Tuning::File(file.clone())).unwrap_err();
        assert!(matches!(error, TuneError::Unusable { .. }), "{error}");
        assert!(gpu.choices().is_empty());
    };
    refused(&|record| record.device.name = "another".into());
    refused(&|record| record.device.sm_count += 1);
    refused(&|record| record.ptx_sha256.values_mut().for_each(|hash| *hash = "0".repeat(64)));
    refused(&|record| {
        let entry = &mut record.entries[0];
        entry.tried[0].variant = "no_such_kernel".into();
        entry.default = "no_such_kernel".into();
        entry.tried[0].us = Some(1.0);
        entry.chosen = Some("no_such_kernel".into());
    });
    std::fs::remove_dir_all(&folder).unwrap();
}
