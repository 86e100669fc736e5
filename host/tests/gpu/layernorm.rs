//! [`contract::layernorm`], with and without each of its tensors.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::layernorm::LayerNorm;
use bitnet_gpu::reference::layernorm::{TEST_SHAPES, layernorm};
use bitnet_gpu::reference::{ELEMENTS, Inputs as Seeded, rounded};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::layernorm::Inputs;
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

fn check_case<B: Backend>(b: &B, inputs: &Inputs, what: &str) {
    let (x, y) = layernorm(inputs);
    let &Inputs { element, m, k, .. } = inputs;
    let expected = [Output::floats("x", &[m, k], &x), Output::floats("y", &[m, k], &y)];
    check(b, inputs, &expected, format!("{element:?} m={m} k={k} {what}"));
}

fn listed_shapes<B: Backend>(b: &B) {
    for (i, &(m, k)) in TEST_SHAPES.iter().enumerate() {
        for element in ELEMENTS {
            for kind in [7, i % 7] {
                check_case(b, &Inputs::new(element, m, k, kind, 1), &format!("tensors {kind}"));
            }
        }
    }
}

fn unusual_values<B: Backend>(b: &B) {
    for value in [0.0, -0.0, 1e-42, 1e-30, 1e19, 6e4, f32::MAX, f32::INFINITY, f32::NAN] {
        for eps in [1e-5, 0.0, 1.0] {
            for element in ELEMENTS {
                let mut inputs = Inputs::new(element, 3, 300, 6, 2);
                // A whole row of it, and one element of the next.
                let value = rounded(element, value);
                inputs.x[..300].fill(value);
                inputs.x[450] = value;
                inputs.eps = eps;
                check_case(b, &inputs, &format!("{value} eps={eps}"));
            }
        }
    }
}

/// More rows than a grid has on its second axis.
fn many_rows<B: Backend>(b: &B) {
    for element in ELEMENTS {
        check_case(b, &Inputs::new(element, 70_001, 3, 7, 5), "many rows");
        // So many that lanes have several of them at a time.
        check_case(b, &Inputs::new(element, 270_001, 8, 7, 6), "many rows");
        // With their neighbours, of every number of elements of a lane; with a residual also such as lie in pieces.
        let small =
            [(90_001, 1), (9001, 2), (7000, 4), (3001, 33), (5001, 16), (901, 129), (90, 255)];
        let more = [(91, 6), (90, 20), (90, 24), (91, 80), (90, 97), (91, 111), (70, 128)];
        let more = more.into_iter().chain([(51, 197), (50, 256), (41, 257), (33, 333), (32, 512)]);
        for (i, (m, k)) in small.into_iter().chain(more).enumerate() {
            for kind in [7, i] {
                check_case(b, &Inputs::new(element, m, k, kind, 7), "small rows");
            }
        }
    }
}

/// Rows of 16 bits that go in words ([`contract::row::Small::paired`]): of every number of words and lanes, one of them alone, and numbers that are no multiple
/// of what a warp has; so many that warps have several turns; negative zeros, whose sum is none.
fn rows_in_words<B: Backend>(b: &B) {
    let ks = (17..=28).chain([31, 37, 45, 53, 65, 75, 83, 91, 101, 127, 129, 150, 173, 197, 206]);
    for (i, k) in ks.chain([209, 257, 291, 333, 377, 401, 415]).enumerate() {
        for (j, m) in [1, 2 + i % 7, 70 + i].into_iter().enumerate() {
            let kind = if (i + j) % 2 == 0 { 7 } else { (i + j) / 2 % 7 };
            check_case(b, &Inputs::new(ELEMENTS[1 + i % 2], m, k, kind, 12), "rows in words");
        }
    }
    for (i, (m, k)) in
        [(140_003, 33), (70_001, 83), (46_003, 197), (30_001, 257)].into_iter().enumerate()
    {
        let inputs = Inputs::new(ELEMENTS[1 + i % 2], around(m), k, 6 + i % 2, 13);
        check_case(b, &inputs, "many rows in words");
    }
    for (element, k) in [(1, 33), (2, 83), (2, 257)] {
        let mut inputs = Inputs::new(ELEMENTS[element], 9, k, 0, 14);
        inputs.x[2 * k..3 * k].fill(-0.0);
        inputs.x[5 * k] = f32::INFINITY;
        inputs.x[8 * k - 1] = f32::NAN;
        check_case(b, &inputs, "unusual rows in words");
    }
}

/// So many rows that a group of warps has several of them one after the other, in blocks of several numbers of groups.
fn rows_in_rings<B: Backend>(b: &B) {
    for (i, (m, k)) in [(9001, 257), (9001, 640), (2200, 1032), (1200, 4101), (290, 20_001)]
        .into_iter()
        .enumerate()
    {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            let kind = 6 + (i + j) % 2;
            check_case(b, &Inputs::new(element, around(m), k, kind, 9), "rings");
        }
    }
}

/// Rows that lie in pieces wherever they start: with and without room for what is in front of them, in registers and in shared memory.
fn odd_rows<B: Backend>(b: &B) {
    let short = [(33, 129), (70, 1001), (33, 1017), (33, 1018), (33, 1023), (21, 1025), (9, 2045)];
    let longer = [(9, 2047), (5, 4081), (5, 4095), (7, 5003), (4, 8177), (4, 8191), (3, 9001)];
    let longest = [(3, 16_377), (2, 16_391), (2, 28_667), (2, 28_671)];
    let shapes = [&short[..], &longer, &longest].concat();
    for (i, (m, k)) in shapes.into_iter().enumerate() {
        for element in ELEMENTS {
            for kind in [7, i % 7] {
                check_case(b, &Inputs::new(element, m, k, kind, 8), "odd rows");
            }
        }
    }
}

/// Rows with sums for each segment: [`contract::layernorm::WHOLE`].
fn unusual_values_in_long_rows<B: Backend>(b: &B) {
    let values = [0.0, -0.0, 1e-42, 6e4, 1e19, f32::INFINITY, f32::NAN];
    for (i, value) in values.into_iter().enumerate() {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            let k = [28_673, 28_680, 30_001, 32_768][(i + j) % 4];
            let mut inputs = Inputs::new(element, 4, k, i, 9);
            // A whole row of it, a segment of the next, and one element of the one after that.
            let value = rounded(element, value);
            inputs.x[..k].fill(value);
            inputs.x[k + 1024..k + 2048].fill(value);
            inputs.x[3 * k - 1] = value;
            check_case(b, &inputs, &format!("{value}"));
        }
    }
}

/// So many rows that a block has several parts, in all ways that they can lie.
fn parts_in_turn<B: Backend>(b: &B) {
    for (kind, element, m, k) in [
        (7, 2, 201, 28_680),
        (6, 0, 150, 29_696),
        (2, 1, 150, 30_001),
        (7, 2, 90, 50_257),
        // Of `f32` in no pieces, and with and without what is beside the rows.
        (7, 0, 130, 30_001),
        (0, 0, 75, 50_257),
        (1, 2, 75, 50_258),
        // More parts than a lane each hears.
        (6, 0, 9, 270_001),
        (0, 2, 17, 263_168),
        (7, 2, 9, 270_003),
    ] {
        check_case(b, &Inputs::new(ELEMENTS[element], around(m), k, kind, 10), "parts in turn");
    }
}

/// So that each block goes through its parts of a row twice, on GPUs of up to 152 multiprocessors.
fn more_parts_than_blocks<B: Backend>(b: &B) {
    let inputs = Inputs::new(ELEMENTS[2], 2, 8 * around(312_501), 7, 11);
    check_case(b, &inputs, "more parts than blocks");
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("layernorm") {
        let mut seeded = Seeded::new(4100 + i as u64);
        let (m, k) = (1 + seeded.below(9), size(&mut seeded, 9500));
        let (element, kind) = (ELEMENTS[seeded.below(3)], seeded.below(8));
        check_case(b, &Inputs::new(element, m, k, kind, seeded.bits()), "generated");
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, k, eps) = (3, 100, 1e-5);
    let (x, y) = (&mut zeros::<B, f32>(b, m * k), &mut zeros::<B, f32>(b, m * k));
    let few = &mut zeros::<B, f32>(b, m * k - 1);
    let (fewer, row) = (&zeros::<B, f32>(b, m * k - 1), &zeros::<B, f32>(b, k - 1));
    let (delta, weight, bias) = (None, None, None);
    for (bad, m, k) in [("m", 0, k), ("m", MAX_ROWS + 1, k), ("k", m, 0), ("k", m, MAX_LEN + 1)] {
        refused!(dimension(bad), b.layernorm(LayerNorm { x, delta, weight, bias, y, m, k, eps }));
    }
    refused!(short("x"), b.layernorm(LayerNorm { x: few, delta, weight, bias, y, m, k, eps }));
    refused!(short("y"), b.layernorm(LayerNorm { x, delta, weight, bias, y: few, m, k, eps }));
    let delta = Some(fewer);
    refused!(short("delta"), b.layernorm(LayerNorm { x, delta, weight, bias, y, m, k, eps }));
    let (delta, weight) = (None, Some(row));
    refused!(short("weight"), b.layernorm(LayerNorm { x, delta, weight, bias, y, m, k, eps }));
    let (weight, bias) = (None, Some(row));
    refused!(short("bias"), b.layernorm(LayerNorm { x, delta, weight, bias, y, m, k, eps }));
}
