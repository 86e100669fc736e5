//! [`contract::w2a8_gemm`] against the oracle, and against the bits of [`contract::w2a8_gemv`].

use bitnet_gpu::ops::w2a8_gemm::W2a8Gemm;
use bitnet_gpu::ops::{Backend, PackedLinear, QuantActs};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::w2a8_gemm::{TEST_SHAPES, w2a8_gemm};
use bitnet_gpu::reference::w2a8_gemv::Case;
use bitnet_gpu::selftest::w2a8_gemm::Inputs;
use bitnet_gpu::selftest::w2a8_gemv;
use bitnet_gpu::selftest::{self, Output};
use contract::w2a8::{MAX_ROWS, Segments};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    extreme_values
    unusual_scales
    one_row_has_the_bits_of_gemv
    generated_shapes
    refusals
}

fn check_case<B: Backend>(b: &B, case: &Case) {
    let want = [Output::floats("y", &[case.m, case.n], &w2a8_gemm(case))];
    check(b, &Inputs { case }, &want, format!("m={} n={} k={}", case.m, case.n, case.k));
}

fn listed_shapes<B: Backend>(b: &B) {
    for &(m, n, k) in TEST_SHAPES {
        check_case(b, &Case::new(m, n, k, 1));
    }
}

fn extreme_values<B: Backend>(b: &B) {
    for (m, n, k) in [(2, 1, 1), (9, 33, 700), (3, 70, 65)] {
        for t in [-1, 0, 1] {
            for q in [-128, 0, 127] {
                let mut case = Case::new(m, n, k, 2);
                case.t.fill(t);
                case.q.fill(q);
                check_case(b, &case);
            }
        }
    }
}

fn unusual_scales<B: Backend>(b: &B) {
    let mut case = Case::new(6, 37, 130, 3);
    case.s = vec![0.0, f32::NAN, f32::INFINITY, 1e-40, 1.27e7, f32::MIN_POSITIVE];
    let parts = [(1, -2.5), (30, 1e-20), (6, 3e30)];
    case.segments = Segments::new(&parts).expect("parts of the contract");
    check_case(b, &case);
}

fn one_row_has_the_bits_of_gemv<B: Backend>(b: &B) {
    for (n, k) in [(1, 1), (40, 513), (131, 2049)] {
        let case = Case::new(1, n, k, 4);
        let gemv =
            selftest::run(b, &w2a8_gemv::Inputs { case: &case, variant: None }).expect("gemv runs");
        let want = [Output { dims: vec![1, n], ..gemv[0].clone() }];
        check(b, &Inputs { case: &case }, &want, format!("n={n} k={k}"));
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("w2a8_gemm") {
        let mut seeded = Seeded::new(2000 + i as u64);
        let [m, n, k] = [70, 140, 2600].map(|end| size(&mut seeded, end));
        // Large in one direction at a time: the oracle is plain loops.
        let k = k.min(2_000_000 / (m * n));
        check_case(b, &Case::new(m, n, k, i as u64));
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, n, k) = (3, 40, 600);
    let segments = Segments::new(&[(n, 1.0)]).expect("one segment");
    let w = PackedLinear::alloc(b, "test", k, segments).expect("a matrix");
    let good = QuantActs::alloc(b, m, k).expect("activations");
    let no_acts = QuantActs::<B> { acts: zeros(b, 3 * 256 - 1), stats: zeros(b, m) };
    let no_stats = QuantActs::<B> { acts: zeros(b, 3 * 256), stats: zeros(b, m - 1) };
    let (mut y, mut no_y) = (zeros::<B, f32>(b, m * n), zeros::<B, f32>(b, m * n - 1));
    let y = &mut y;
    refused!(dimension("m"), b.w2a8_gemm(W2a8Gemm { w: &w, acts: &good, y, m: 0 }));
    refused!(dimension("m"), b.w2a8_gemm(W2a8Gemm { w: &w, acts: &good, y, m: MAX_ROWS + 1 }));
    refused!(short("acts"), b.w2a8_gemm(W2a8Gemm { w: &w, acts: &good, y, m: m + 1 }));
    refused!(short("acts"), b.w2a8_gemm(W2a8Gemm { w: &w, acts: &no_acts, y, m }));
    refused!(short("stats"), b.w2a8_gemm(W2a8Gemm { w: &w, acts: &no_stats, y, m }));
    let y = &mut no_y;
    refused!(short("y"), b.w2a8_gemm(W2a8Gemm { w: &w, acts: &good, y, m }));
}
