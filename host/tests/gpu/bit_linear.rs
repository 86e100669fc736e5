//! [`contract::bit_linear`]: every finish against the oracle.

use bitnet_gpu::ops::act_quant::Gate;
use bitnet_gpu::ops::bit_linear::{BitLinear, Finish, Norm};
use bitnet_gpu::ops::{Backend, OpError, PackedLinear};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::bit_linear::{Case, Finish as Then, TEST_SHAPES, bit_linear};
use bitnet_gpu::selftest::Output;
use contract::bit_linear::MAX_K;
use contract::w2a8::Segments;

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    many_rows
    extreme_weights
    segments
    unusual_rows
    generated_shapes
    refusals
}

fn check_case<B: Backend>(b: &B, case: &Case) {
    let want = [Output::floats("y", &[case.y.len()], &bit_linear(case))];
    let (n, k) = (case.product.n, case.product.k);
    let what = format!("n={n} k={k} norm={} {:?}", case.norm.is_some(), case.finish);
    check(b, case, &want, what);
}

fn listed_shapes<B: Backend>(b: &B) {
    for (i, &(n, k)) in TEST_SHAPES.iter().enumerate() {
        for then in Then::ALL {
            check_case(b, &Case::new(n, k, i % 2 == 0, then, 1));
            check_case(b, &Case::new(n, k, i % 2 == 1, then, 2));
        }
    }
}

/// More rows than fill a GPU once, and blocks with more outputs than threads.
fn many_rows<B: Backend>(b: &B) {
    for (n, k) in [(6912, 70), (70_000, 1), (50_002, 130)] {
        for then in [Then::Add, Then::Gated(Gate::Relu2)] {
            check_case(b, &Case::new(n, k, false, then, 3));
        }
    }
}

fn extreme_weights<B: Backend>(b: &B) {
    for (n, k) in [(2, 1), (6, 65), (34, 700), (4, 28_672)] {
        for t in [-1, 0, 1] {
            for x in [-7.0, 0.0, 7.0] {
                let mut case = Case::new(n, k, false, Then::Store, 4);
                case.product.t.fill(t);
                case.x.fill(x);
                check_case(b, &case);
            }
        }
    }
}

fn segments<B: Backend>(b: &B) {
    for rows in [&[1, 1][..], &[31, 1, 32], &[7, 1, 2, 3, 5, 11, 1, 40], &[1, 128, 1]] {
        let scales = [0.5, -3.0, 1e-20, 7e8, 1.0, 0.0, 1.0 / 3.0, 2.25];
        let parts: Vec<_> = rows.iter().copied().zip(scales).collect();
        for then in Then::ALL {
            let mut case = Case::new(rows.iter().sum(), 321, true, then, 5);
            case.product.segments = Segments::new(&parts).expect("parts of the contract");
            check_case(b, &case);
        }
    }
}

/// Rows of zeros, of subnormals, with NaN and infinity; norms that divide by zero; sums with what is not
/// finite.
fn unusual_rows<B: Backend>(b: &B) {
    for k in [5, 2560, 3000] {
        for (i, v) in
            [0.0, 1e-39, f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate()
        {
            for norm in [false, true] {
                let mut case = Case::new(10, k, norm, Then::ALL[i % 4], 6);
                case.eps = if i % 2 == 0 { 0.0 } else { 1e-5 };
                if i < 2 {
                    case.x.fill(v)
                } else {
                    case.x[k / 2] = v
                }
                case.y[0] = f32::NEG_INFINITY;
                check_case(b, &case);
            }
        }
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("bit_linear") {
        let mut seeded = Seeded::new(11_000 + i as u64);
        let (n, k) = (2 * size(&mut seeded, 150), size(&mut seeded, 9000));
        let then = Then::ALL[seeded.below(4)];
        let case = Case::new(n, k, seeded.below(2) == 0, then, i as u64);
        check_case(b, &case);
    }
}

fn refusals<B: Backend>(b: &B) {
    let (n, k) = (41, 600);
    let matrix = |n, k| {
        let segments = Segments::new(&[(n, 1.0)]).expect("one segment");
        PackedLinear::<B>::alloc(b, "test", k, segments).expect("a matrix")
    };
    let w = &matrix(n, k);
    let (x, few_x) = (&zeros::<B, f32>(b, k), &zeros::<B, f32>(b, k - 1));
    let (out, few) = (&mut zeros::<B, f32>(b, n), &mut zeros::<B, f32>(b, n - 1));
    let op = BitLinear { x: few_x, norm: None, w, finish: Finish::Store { y: out } };
    refused!(short("x"), b.bit_linear(op));
    let norm = Some(Norm { weight: few_x, eps: 0.0 });
    let op = BitLinear { x, norm, w, finish: Finish::Add { y: out } };
    refused!(short("norm"), b.bit_linear(op));
    let op = BitLinear { x, norm: None, w, finish: Finish::Add { y: few } };
    refused!(short("y"), b.bit_linear(op));
    let gate = Gate::Silu;
    let op = BitLinear { x, norm: None, w, finish: Finish::Gated { gate, y: out } };
    refused!(dimension("n"), b.bit_linear(op));
    let half = &mut zeros::<B, f32>(b, 19);
    let finish = Finish::Gated { gate, y: half };
    refused!(short("y"), b.bit_linear(BitLinear { x, norm: None, w: &matrix(40, k), finish }));
    let (long, w) = (&zeros::<B, f32>(b, MAX_K + 1), &matrix(1, MAX_K + 1));
    let finish = Finish::Store { y: out };
    let op = BitLinear { x: long, norm: None, w, finish };
    let too_long = |e: &OpError| dimension("k")(e) && e.to_string().contains("w2a8_gemv");
    refused!(too_long, b.bit_linear(op));
}
