//! [`contract::rmsnorm`], with and without the residual add.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::rmsnorm::RmsNorm;
use bitnet_gpu::reference::rmsnorm::{TEST_SHAPES, rmsnorm};
use bitnet_gpu::reference::{ELEMENTS, Inputs as Seeded, rounded};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::rmsnorm::Inputs;
use contract::row::{MAX_LEN, MAX_ROWS};

use crate::support::{around, check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    unusual_values
    many_rows
    rows_in_words
    odd_rows
    rows_in_rings
    unusual_values_in_long_rows
    parts_in_turn
    more_parts_than_blocks
    generated_shapes
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let (x, y) = rmsnorm(inputs);
    let dims = [inputs.m, inputs.k];
    vec![Output::floats("x", &dims, &x), Output::floats("y", &dims, &y)]
}

/// With and without `delta`.
fn check_both<B: Backend>(b: &B, inputs: Inputs, delta: Vec<f32>) {
    for delta in [None, Some(delta)] {
        let inputs = Inputs { delta, ..inputs.clone() };
        let Inputs { m, k, .. } = inputs;
        let what = format!("m={m} k={k} delta={}", inputs.delta.is_some());
        check(b, &inputs, &expected(&inputs), what);
    }
}

fn random(seeded: &mut Seeded, m: usize, k: usize) -> (Inputs, Vec<f32>) {
    let element = ELEMENTS[seeded.below(3)];
    let mut inputs = Inputs::new(element, m, k, true, seeded.bits());
    let delta = inputs.delta.take().unwrap_or_default();
    (inputs, delta)
}

fn listed_shapes<B: Backend>(b: &B) {
    for &(m, k) in TEST_SHAPES {
        for element in ELEMENTS {
            for with_delta in [false, true] {
                let inputs = Inputs::new(element, m, k, with_delta, 1);
                let what = format!("{element:?} m={m} k={k} delta={with_delta}");
                check(b, &inputs, &expected(&inputs), what);
            }
        }
    }
}

fn unusual_values<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for value in [0.0, -0.0, 1e-42, 1e-30, 1e19, f32::MAX, f32::INFINITY, f32::NAN] {
        for eps in [1e-5, 0.0, 1.0] {
            let (mut inputs, delta) = random(&mut seeded, 3, 300);
            // A whole row of it, and one element of the next.
            let value = rounded(inputs.element, value);
            inputs.x[..300].fill(value);
            inputs.x[450] = value;
            inputs.eps = eps;
            check_both(b, inputs, delta);
        }
    }
}

/// More rows than a grid has on its second axis.
fn many_rows<B: Backend>(b: &B) {
    for element in ELEMENTS {
        let inputs = Inputs::new(element, 70_001, 3, true, 5);
        check(b, &inputs, &expected(&inputs), format!("{element:?} 70001 rows"));
        // So many that lanes have several of them at a time.
        let inputs = Inputs::new(element, 270_001, 8, false, 6);
        check(b, &inputs, &expected(&inputs), format!("{element:?} 270001 rows"));
        // With their neighbours, of every number of elements of a lane; with a residual also such as lie in pieces.
        let small =
            [(90_001, 1), (9001, 2), (7000, 4), (3001, 33), (5001, 16), (901, 129), (90, 255)];
        let more = [(91, 6), (90, 20), (90, 24), (91, 80), (90, 97), (91, 111), (70, 128)];
        let more = more.into_iter().chain([(51, 197), (50, 256), (41, 257), (33, 333), (32, 512)]);
        for (i, (m, k)) in small.into_iter().chain(more).enumerate() {
            let inputs = Inputs::new(element, m, k, i % 2 == 0, 7);
            check(b, &inputs, &expected(&inputs), format!("{element:?} m={m} k={k} small"));
        }
    }
}

/// Rows of 16 bits that go in words ([`contract::row::Small::paired`]): of every number of words and lanes, one of them alone, and numbers that are no multiple
/// of what a warp has; so many that warps have several turns.
fn rows_in_words<B: Backend>(b: &B) {
    let run = |inputs: Inputs| {
        let Inputs { element, m, k, .. } = inputs;
        check(b, &inputs, &expected(&inputs), format!("{element:?} m={m} k={k} in words"));
    };
    let ks = (17..=28).chain([31, 37, 45, 53, 65, 75, 83, 91, 101, 127, 129, 150, 173, 197, 206]);
    for (i, k) in ks.chain([209, 257, 291, 333, 377, 401, 415]).enumerate() {
        for (j, m) in [1, 2 + i % 7, 70 + i].into_iter().enumerate() {
            run(Inputs::new(ELEMENTS[1 + i % 2], m, k, (i + j) % 2 == 0, 12));
        }
    }
    for (i, (m, k)) in
        [(140_003, 33), (70_001, 83), (46_003, 197), (30_001, 257)].into_iter().enumerate()
    {
        run(Inputs::new(ELEMENTS[1 + i % 2], around(m), k, i % 2 == 0, 13));
    }
}

/// So many rows that a group of warps has several of them one after the other, in blocks of several numbers of groups; the last ones with a gain of 16 bits
/// in registers.
fn rows_in_rings<B: Backend>(b: &B) {
    let shapes =
        [(9001, 257), (9001, 512), (2200, 1032), (1200, 4101), (290, 20_001), (271, 45_003)];
    for (i, (m, k)) in shapes.into_iter().enumerate() {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            let inputs = Inputs::new(element, around(m), k, (i + j) % 2 == 0, 9);
            check(b, &inputs, &expected(&inputs), format!("{element:?} m={m} k={k} rings"));
        }
    }
}

/// Rows that lie in pieces wherever they start: with and without room for what is in front of them, in registers and in shared memory.
fn odd_rows<B: Backend>(b: &B) {
    let short = [(33, 129), (70, 1001), (33, 1017), (33, 1018), (33, 1023), (21, 1025), (9, 2045)];
    let longer = [(9, 2047), (5, 4081), (5, 4095), (7, 5003), (4, 8177), (4, 8191), (3, 9001)];
    let longest = [(3, 16_377), (2, 16_391), (2, 28_671), (1, 40_001), (1, 65_521), (1, 65_531)];
    let shapes = [&short[..], &longer, &longest].concat();
    for (m, k) in shapes {
        for element in ELEMENTS {
            for with_delta in [false, true] {
                let inputs = Inputs::new(element, m, k, with_delta, 8);
                check(b, &inputs, &expected(&inputs), format!("{element:?} m={m} k={k}"));
            }
        }
    }
}

/// Rows with sums for each segment: [`contract::rmsnorm::WHOLE`].
fn unusual_values_in_long_rows<B: Backend>(b: &B) {
    let values = [0.0, -0.0, 1e-42, 1e19, f32::INFINITY, f32::NAN];
    for (i, value) in values.into_iter().enumerate() {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            let k = [65_537, 65_544, 66_001, 73_728][(i + j) % 4];
            let mut inputs = Inputs::new(element, 4, k, i % 2 == 0, 9);
            // A whole row of it, a segment of the next, and one element of the one after that.
            let value = rounded(element, value);
            inputs.x[..k].fill(value);
            inputs.x[k + 1024..k + 2048].fill(value);
            inputs.x[3 * k - 1] = value;
            check(b, &inputs, &expected(&inputs), format!("{element:?} k={k} {value}"));
        }
    }
}

/// So many rows that a block has several parts, in all ways that they can lie.
fn parts_in_turn<B: Backend>(b: &B) {
    for (delta, element, m, k) in [
        (true, 2, 401, 28_680),
        (false, 0, 203, 29_696),
        (true, 1, 301, 30_001),
        (false, 2, 120, 50_257),
        (true, 0, 61, 70_001),
        (false, 0, 9, 270_001),
        (true, 2, 17, 263_168),
    ] {
        let inputs = Inputs::new(ELEMENTS[element], around(m), k, delta, 10);
        check(b, &inputs, &expected(&inputs), format!("m={m} k={k} parts in turn"));
    }
}

/// So that each block goes through its parts of a row twice, on GPUs of up to 152 multiprocessors.
fn more_parts_than_blocks<B: Backend>(b: &B) {
    let inputs = Inputs::new(ELEMENTS[2], 2, 8 * around(312_501), true, 11);
    check(b, &inputs, &expected(&inputs), "more parts than blocks");
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("rmsnorm") {
        let mut seeded = Seeded::new(4000 + i as u64);
        let (m, k) = (1 + seeded.below(5), size(&mut seeded, 7000));
        let (inputs, delta) = random(&mut seeded, m, k);
        check_both(b, inputs, delta);
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, k, eps) = (3, 100, 1e-5);
    let (x, y) = (&mut zeros::<B, f32>(b, m * k), &mut zeros::<B, f32>(b, m * k));
    let (weight, few_weight) = (&zeros::<B, f32>(b, k), &zeros::<B, f32>(b, k - 1));
    let (few, fewer) = (&mut zeros::<B, f32>(b, m * k - 1), &zeros::<B, f32>(b, m * k - 1));
    let delta = None;
    for (bad, m, k) in [("m", 0, k), ("m", MAX_ROWS + 1, k), ("k", m, 0), ("k", m, MAX_LEN + 1)] {
        refused!(dimension(bad), b.rmsnorm(RmsNorm { x, delta, weight, y, m, k, eps }));
    }
    refused!(short("x"), b.rmsnorm(RmsNorm { x: few, delta, weight, y, m, k, eps }));
    refused!(short("y"), b.rmsnorm(RmsNorm { x, delta, weight, y: few, m, k, eps }));
    let delta = Some(fewer);
    refused!(short("delta"), b.rmsnorm(RmsNorm { x, delta, weight, y, m, k, eps }));
    let weight = few_weight;
    refused!(short("weight"), b.rmsnorm(RmsNorm { x, delta: None, weight, y, m, k, eps }));
}
