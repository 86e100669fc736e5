//! [`contract::w2a8_gemv`]: every variant against the oracle.

use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, OpError, PackedLinear, QuantActs};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::w2a8_gemv::{Case, TEST_SHAPES, w2a8_gemv};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::w2a8_gemv::Inputs;
use contract::w2a8::{MAX_K, Segments};
use contract::w2a8_gemv::VARIANTS;

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    extreme_values
    segments
    unusual_scales
    the_largest_k
    generated_shapes
    refusals
}

/// One variant, or all of them and the automatic choice.
fn check_case<B: Backend>(b: &B, case: &Case, variants: impl Iterator<Item = Option<usize>>) {
    let want = [Output::floats("y", &[case.n], &w2a8_gemv(case))];
    for variant in variants {
        let symbol = variant.map_or("choose", |v| VARIANTS[v].spec.symbol);
        let what = format!("{symbol} n={} k={}", case.n, case.k);
        check(b, &Inputs { case, variant }, &want, what);
    }
}

fn all() -> impl Iterator<Item = Option<usize>> {
    std::iter::once(None).chain((0..VARIANTS.len()).map(Some))
}

fn listed_shapes<B: Backend>(b: &B) {
    for &(n, k) in TEST_SHAPES {
        check_case(b, &Case::new(1, n, k, 1), all());
    }
}

fn extreme_values<B: Backend>(b: &B) {
    for (n, k) in [(1, 1), (5, 65), (33, 700), (4, 2560)] {
        for t in [-1, 0, 1] {
            for q in [-128, -1, 0, 127] {
                let mut case = Case::new(1, n, k, 2);
                case.t.fill(t);
                case.q.fill(q);
                check_case(b, &case, all());
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
        check_case(b, &case, all());
    }
}

/// A broken row has the scale 0 or NaN, an empty one 1.27e7: see `contract::num::quantise`.
fn unusual_scales<B: Backend>(b: &B) {
    for scale in [0.0, f32::NAN, f32::INFINITY, 1e-40, 1.27e7, f32::MIN_POSITIVE] {
        let mut case = Case::new(1, 9, 130, 4);
        case.s[0] = scale;
        check_case(b, &case, all());
    }
}

/// Sums of up to 2^27: not every integer there is an `f32`.
fn the_largest_k<B: Backend>(b: &B) {
    let mut case = Case::new(1, 2, MAX_K, 5);
    case.t.fill(1);
    case.q.fill(-128);
    case.q[77] = 127;
    check_case(b, &case, all());
    case.t[..MAX_K].fill(-1);
    check_case(b, &case, all());
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("w2a8_gemv") {
        let mut seeded = Seeded::new(1000 + i as u64);
        let (n, k) = (size(&mut seeded, 200), size(&mut seeded, 7000));
        let variants = [None, Some(i % VARIANTS.len())];
        // More rows of activations than are used.
        check_case(b, &Case::new(1 + i % 2, n, k, i as u64), variants.into_iter());
    }
}

fn refusals<B: Backend>(b: &B) {
    let (n, k) = (40, 600);
    let segments = Segments::new(&[(n, 1.0)]).expect("one segment");
    let w = PackedLinear::alloc(b, "test", k, segments).expect("a matrix");
    let good = QuantActs::alloc(b, 1, k).expect("activations");
    let no_acts = QuantActs::<B> { acts: zeros(b, 255), stats: zeros(b, 1) };
    let no_stats = QuantActs::<B> { acts: zeros(b, 256), stats: zeros(b, 0) };
    let (mut y, mut no_y) = (zeros::<B, f32>(b, n), zeros::<B, f32>(b, n - 1));
    let over = Some(VARIANTS.len());
    let y = &mut y;
    refused!(short("acts"), b.w2a8_gemv(W2a8Gemv { w: &w, acts: &no_acts, y, variant: None }));
    refused!(short("stats"), b.w2a8_gemv(W2a8Gemv { w: &w, acts: &no_stats, y, variant: None }));
    refused!(dimension("variant"), b.w2a8_gemv(W2a8Gemv { w: &w, acts: &good, y, variant: over }));
    let y = &mut no_y;
    refused!(short("y"), b.w2a8_gemv(W2a8Gemv { w: &w, acts: &good, y, variant: Some(3) }));

    for bad in [0, MAX_K + 1] {
        refused!(dimension("k"), PackedLinear::alloc(b, "test", bad, segments).map(drop));
        refused!(dimension("k"), QuantActs::alloc(b, 1, bad).map(drop));
    }
    refused!(dimension("rows"), QuantActs::alloc(b, 0, k).map(drop));
    let mut w = w;
    let row = contract::w2a8::row_words(k);
    let part = |e: &OpError| matches!(e, OpError::Mismatch { .. });
    let outside = |e: &OpError| matches!(e, OpError::Range { at: 39, count: 2, len: 40, .. });
    refused!(part, w.write_rows(b, 0, &vec![0; row + 1]));
    refused!(outside, w.write_rows(b, 39, &vec![0; 2 * row]));
}
