//! [`contract::lut_matmul`]: both exact forms against the W2A8 oracle and against `w2a8_gemv` and
//! `w2a8_gemm` themselves, the bit-serial form against its own arithmetic and against the real product.

use bitnet_gpu::ops::lut_matmul::{
    LossyLinear, LossyTables, LutBuildLossy, LutLinear, LutMatmul, LutMatmulLossy,
};
use bitnet_gpu::ops::{Backend, QuantActs};
use bitnet_gpu::pack::PackedBits;
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::lut_matmul::{
    LOSSY_SHAPES, LossyCase, lut_matmul, lut_matmul_lossy, tiles,
};
use bitnet_gpu::reference::w2a8_gemv::{Case, TEST_SHAPES};
use bitnet_gpu::selftest::lut_matmul::Inputs;
use bitnet_gpu::selftest::{self, Output, difference};
use contract::lut_matmul::{Form, VARIANTS};
use contract::w2a8::{MAX_K, Segments};

use crate::support::{check, dimension, generated, on_lane, refused, repeats, short, size, zeros};

on_lane! {
    listed_shapes
    the_bits_of_w2a8
    extreme_values
    segments
    unusual_scales
    the_largest_k
    many_rows
    generated_shapes
    refusals
    lossy_listed_shapes
    lossy_special_values
    lossy_generated_shapes
    lossy_error
    lossy_refusals
}

/// Every kernel of both forms, and the automatic choice.
fn check_case<B: Backend>(b: &B, case: &Case) {
    let want = [Output::floats("y", &[case.m, case.n], &lut_matmul(case))];
    for form in Form::ALL {
        let all = (0..VARIANTS.len()).filter(|&v| VARIANTS[v].form == form).map(Some);
        for variant in all.chain([None]) {
            let symbol = variant.map_or("choose", |v| VARIANTS[v].spec.symbol);
            let what = format!("{symbol} {form:?} m={} n={} k={}", case.m, case.n, case.k);
            check(b, &Inputs { case, form, variant }, &want, what);
        }
    }
}

fn listed_shapes<B: Backend>(b: &B) {
    for &(n, k) in TEST_SHAPES {
        check_case(b, &Case::new(1 + n % 3, n, k, 1));
    }
}

/// The other road to the same numbers, bit for bit.
fn the_bits_of_w2a8<B: Backend>(b: &B) {
    for (m, n, k) in [(1, 640, 2560), (1, 100, 6912), (5, 130, 1111), (17, 65, 513)] {
        let case = Case::new(m, n, k, 11);
        let run = |result| match result {
            Ok(outputs) => outputs,
            Err(error) => panic!("m={m} n={n} k={k}: {error}"),
        };
        let mut want: Vec<Output> = match m {
            1 => run(selftest::run(b, &selftest::w2a8_gemv::Inputs { case: &case, variant: None })),
            _ => run(selftest::run(b, &selftest::w2a8_gemm::Inputs { case: &case, variant: None })),
        };
        want[0].dims = vec![m, n];
        for form in Form::ALL {
            let found = run(selftest::run(b, &Inputs { case: &case, form, variant: None }));
            assert_eq!(difference(&found, &want), None, "{form:?} m={m} n={n} k={k}");
        }
    }
}

fn extreme_values<B: Backend>(b: &B) {
    for (n, k) in [(1, 1), (5, 65), (33, 700), (4, 2560)] {
        for t in [-1, 0, 1] {
            for q in [-128, -1, 0, 127] {
                let mut case = Case::new(1, n, k, 2);
                case.t.fill(t);
                case.q.fill(q);
                check_case(b, &case);
            }
        }
    }
}

fn segments<B: Backend>(b: &B) {
    for rows in [&[1, 1][..], &[31, 1, 32], &[7, 1, 2, 3, 5, 11, 1, 40], &[1, 128, 1]] {
        let scales = [0.5, -3.0, 1e-20, 7e8, 1.0, 0.0, 1.0 / 3.0, 2.25];
        let parts: Vec<_> = rows.iter().copied().zip(scales).collect();
        let mut case = Case::new(1, rows.iter().sum(), 321, 3);
        case.segments = Segments::new(&parts).expect("parts of the contract");
        check_case(b, &case);
    }
}

/// A broken row has the scale 0 or NaN, an empty one 1.27e7: see `contract::num::quantise`.
fn unusual_scales<B: Backend>(b: &B) {
    for scale in [0.0, f32::NAN, f32::INFINITY, 1e-40, 1.27e7, f32::MIN_POSITIVE] {
        let mut case = Case::new(2, 9, 130, 4);
        case.s[0] = scale;
        check_case(b, &case);
    }
}

/// Sums of up to 2^27: not every integer there is an `f32`.
fn the_largest_k<B: Backend>(b: &B) {
    let mut case = Case::new(1, 2, MAX_K, 5);
    case.t.fill(1);
    case.q.fill(-128);
    case.q[77] = 127;
    case.t[MAX_K..].fill(-1);
    check_case(b, &case);
}

/// More rows than a grid has on its second axis.
fn many_rows<B: Backend>(b: &B) {
    check_case(b, &Case::new(repeats(65_537).max(300), 2, 5, 6));
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("lut_matmul") {
        let mut seeded = Seeded::new(1000 + i as u64);
        let (n, k) = (size(&mut seeded, 150), size(&mut seeded, 4000));
        let m = if k < 1000 { 1 + seeded.below(20) } else { 1 + i % 2 };
        let case = Case::new(m, n, k, i as u64);
        let want = [Output::floats("y", &[m, n], &lut_matmul(&case))];
        let variant = Some(i % VARIANTS.len());
        let form = VARIANTS[i % VARIANTS.len()].form;
        let other = Form::ALL[usize::from(form == Form::Tl1)];
        for (form, variant) in [(form, variant), (other, None)] {
            let what = format!("{form:?} {variant:?} m={m} n={n} k={k}");
            check(b, &Inputs { case: &case, form, variant }, &want, what);
        }
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, n, k) = (2, 40, 600);
    let case = Case::new(m, n, k, 7);
    let acts = QuantActs::alloc(b, m, k).expect("activations");
    let no_acts = QuantActs::<B> { acts: zeros(b, 511), stats: zeros(b, m) };
    let no_stats = QuantActs::<B> { acts: zeros(b, 512), stats: zeros(b, m - 1) };
    let (mut y, mut no_y) = (zeros::<B, f32>(b, m * n), zeros::<B, f32>(b, m * n - 1));
    for form in Form::ALL {
        let packed = tiles(&case, form).expect("a matrix");
        let w = &LutLinear::new(b, "test", &packed).expect("memory");
        let foreign = VARIANTS.iter().position(|v| v.form != form);
        let y = &mut y;
        let op = |acts: &QuantActs<B>, y: &mut B::Buf<f32>, m: usize, variant: Option<usize>| {
            b.lut_matmul(LutMatmul { w, acts, y, m, variant })
        };
        refused!(short("acts"), op(&no_acts, y, m, None));
        refused!(short("stats"), op(&no_stats, y, m, None));
        refused!(short("y"), op(&acts, &mut no_y, m, None));
        refused!(dimension("m"), op(&acts, y, 0, None));
        refused!(short("acts"), op(&acts, y, m + 1, None));
        refused!(dimension("variant"), op(&acts, y, m, Some(VARIANTS.len())));
        refused!(dimension("variant"), op(&acts, y, m, foreign));
    }
}

fn check_lossy<B: Backend>(b: &B, case: &LossyCase) {
    let want = [Output::floats("y", &[case.m, case.n], &lut_matmul_lossy(case))];
    let LossyCase { bits, m, n, k, act_group, group, .. } = case;
    check(b, case, &want, format!("bits={bits} m={m} n={n} k={k} groups {act_group} {group}"));
}

fn lossy_listed_shapes<B: Backend>(b: &B) {
    for (i, &shape) in LOSSY_SHAPES.iter().enumerate() {
        for bits in 1..=4 {
            check_lossy(b, &LossyCase::new(bits, shape, i as u64));
        }
    }
}

/// NaN and infinities reach every output of their row and no other; what vanishes or overflows does
/// so alike everywhere.
fn lossy_special_values<B: Backend>(b: &B) {
    let shape = (3, 37, 200, 64, 128);
    let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, f32::MAX, 1e-40, 1e-45, -0.0];
    for (i, value) in specials.into_iter().enumerate() {
        let mut case = LossyCase::new(1 + i % 4, shape, i as u64);
        case.x[200 + 70] = value;
        let y = lut_matmul_lossy(&case);
        let of_row = &y[37..2 * 37];
        if !value.is_finite() {
            assert!(of_row.iter().all(|v| v.is_nan()), "{value}");
        }
        assert!(y[..37].iter().chain(&y[2 * 37..]).all(|v| v.is_finite()));
        check_lossy(b, &case);
        case.x.fill(value);
        check_lossy(b, &case);
    }
    let mut case = LossyCase::new(2, shape, 1);
    case.x.fill(0.0);
    check_lossy(b, &case);
}

fn lossy_generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("lut_matmul_lossy") {
        let mut seeded = Seeded::new(5000 + i as u64);
        let (n, k) = (size(&mut seeded, 100), size(&mut seeded, 3000));
        let m = 1 + seeded.below(if k < 300 { 9 } else { 2 });
        let act_group = if seeded.below(4) == 0 { k } else { 32 * (1 + seeded.below(5)) };
        let group = act_group * (1 + seeded.below(4));
        check_lossy(b, &LossyCase::new(1 + i % 4, (m, n, k, act_group, group), i as u64));
    }
}

/// The published criterion: a normalised mean square error of at most 5e-4 against the real
/// product, with the published activation group and with one scale for a whole row.
fn lossy_error<B: Backend>(b: &B) {
    for bits in 1..=4 {
        for (act_group, limit) in [(64, 5e-4), (2560, 5e-4)] {
            let case = LossyCase::new(bits, (2, 64, 2560, act_group, 2560), 2 + bits as u64);
            let outputs = selftest::run(b, &case).expect("a run");
            let (mut error, mut power) = (0.0, 0.0);
            for (bits, exact) in outputs[0].bits.iter().zip(case.exact()) {
                error += (f64::from(f32::from_bits(*bits)) - exact).powi(2);
                power += exact.powi(2);
            }
            let nmse = error / power;
            println!("{bits} bits, groups of {act_group}: NMSE {nmse:.2e}");
            assert!(nmse < limit, "{bits} bits, groups of {act_group}: {nmse:e}");
            assert!(nmse > 1e-9, "int8 tables cannot be exact: {nmse:e}");
        }
    }
}

fn lossy_refusals<B: Backend>(b: &B) {
    let (m, n, k) = (2, 40, 256);
    let packed = PackedBits::from_codes(2, &vec![1; n * k], k, 64, vec![1.0; n * 4], None);
    let w = &LossyLinear::new(b, "test", &packed.expect("codes")).expect("memory");
    let mut tables = LossyTables::published(b, m, k).expect("memory");
    let (x, no_x) = (zeros::<B, f32>(b, m * k), zeros::<B, f32>(b, m * k - 1));
    let (mut y, mut no_y) = (zeros::<B, f32>(b, m * n), zeros::<B, f32>(b, m * n - 1));
    let t = &mut tables;
    refused!(short("x"), b.lut_build_lossy(LutBuildLossy { x: &no_x, tables: t, m }));
    refused!(dimension("m"), b.lut_build_lossy(LutBuildLossy { x: &x, tables: t, m: 0 }));
    let (t, y) = (&tables, &mut y);
    refused!(short("y"), b.lut_matmul_lossy(LutMatmulLossy { w, tables: t, y: &mut no_y, m }));
    refused!(dimension("m"), b.lut_matmul_lossy(LutMatmulLossy { w, tables: t, y, m: 0 }));
    refused!(short("tables"), b.lut_matmul_lossy(LutMatmulLossy { w, tables: t, y, m: 3 }));
    let narrow = LossyTables::alloc(b, m, k - 32, 32).expect("memory");
    let mismatch = |e: &bitnet_gpu::ops::OpError| {
        matches!(e, bitnet_gpu::ops::OpError::Mismatch { what: "k", .. })
    };
    refused!(mismatch, b.lut_matmul_lossy(LutMatmulLossy { w, tables: &narrow, y, m }));
    let wide = LossyTables::alloc(b, m, k, 128).expect("memory");
    let op = LutMatmulLossy { w, tables: &wide, y, m };
    refused!(dimension("act_group"), b.lut_matmul_lossy(op));
    for act_group in [0, 31, 100] {
        let made = LossyTables::alloc(b, m, k, act_group).map(drop);
        refused!(dimension("act_group"), made);
    }
    refused!(dimension("rows"), LossyTables::alloc(b, 0, k, 64).map(drop));
    refused!(dimension("k"), LossyTables::alloc(b, 1, MAX_K + 1, 64).map(drop));
}
