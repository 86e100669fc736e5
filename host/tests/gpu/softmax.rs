//! [`contract::softmax`]: plain, masked, causal, and the logarithm.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::softmax::{Mask, Softmax};
use bitnet_gpu::reference::softmax::{Mask as Values, TEST_SHAPES, softmax};
use bitnet_gpu::reference::{ELEMENTS, Inputs as Seeded, rounded};
use bitnet_gpu::selftest::{self, Output, softmax::Inputs};
use contract::row::{MAX_LEN, MAX_ROWS};

use crate::support::{
    around, check, dimension, due, generated, on_lane, refused, short, size, zeros,
};

on_lane! {
    listed_shapes
    unusual_values
    hidden_rows_and_hidden_nan
    sums_to_one
    many_rows
    short_rows
    rows_in_words
    rows_in_turn
    odd_rows
    unusual_values_in_long_rows
    parts_in_turn
    more_parts_than_blocks
    recorded_long_rows
    a_million_in_a_row
    generated_shapes
    refusals
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs, what: &str) {
    let &Inputs { element, m, k, log, .. } = inputs;
    let expected = [Output::floats("y", &[m, k], &softmax(inputs))];
    check(b, inputs, &expected, format!("{element:?} m={m} k={k} log={log} {what}"));
}

fn listed_shapes<B: Backend>(b: &B) {
    for (i, &(m, k)) in TEST_SHAPES.iter().enumerate() {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            for kind in (0..6).filter(|kind| due(18 * i + 6 * j + kind, 5)) {
                check_case(b, &Inputs::new(element, m, k, kind, 1), &format!("kind {kind}"));
            }
        }
    }
}

fn unusual_values<B: Backend>(b: &B) {
    let inf = f32::INFINITY;
    for value in [0.0, -0.0, 1e-42, 6e4, -6e4, f32::MAX, f32::MIN, inf, -inf, f32::NAN] {
        for element in ELEMENTS {
            for kind in [0, 1, 3, 4] {
                let mut inputs = Inputs::new(element, 3, 300, kind, 2);
                // A whole row of it, and one element of the next.
                let value = rounded(element, value);
                inputs.x[..300].fill(value);
                inputs.x[450] = value;
                check_case(b, &inputs, &format!("{value} kind {kind}"));
            }
        }
    }
}

/// The values of such rows, not only that all agree on them.
fn hidden_rows_and_hidden_nan<B: Backend>(b: &B) {
    let run = |inputs: &Inputs| {
        let outputs = selftest::run(b, inputs).expect("a softmax");
        outputs[0].bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>()
    };
    for element in ELEMENTS {
        for (m, k) in [(2, 40), (2, 1500), (2, 9000), (2, 17_000)] {
            let mut inputs = Inputs::new(element, m, k, 0, 3);
            inputs.x[..k].fill(f32::NEG_INFINITY);
            inputs.x[k + 1] = f32::NAN;
            let y = run(&inputs);
            assert!(y[..k].iter().all(|v| v.to_bits() == 0) && y[k..].iter().all(|v| v.is_nan()));
            inputs.log = true;
            let y = run(&inputs);
            assert!(y[..k].iter().all(|&v| v == f32::NEG_INFINITY));
            // Behind the causal mask NaN does no harm.
            let mut inputs = Inputs::new(element, m, k, 0, 4);
            inputs.mask = Values::Causal(2);
            inputs.x[k - 1] = f32::NAN;
            let y = run(&inputs);
            assert!(y.iter().all(|v| v.is_finite()) && y[k - 1].to_bits() == 0);
        }
    }
}

fn sums_to_one<B: Backend>(b: &B) {
    for (m, k) in [(4, 77), (3, 4096), (1, 100_000)] {
        let inputs = Inputs::new(ELEMENTS[0], m, k, 0, 6);
        let outputs = selftest::run(b, &inputs).expect("a softmax");
        for row in outputs[0].bits.chunks(k) {
            let sum: f64 = row.iter().map(|&bits| f64::from(f32::from_bits(bits))).sum();
            assert!((sum - 1.0).abs() < 1e-6, "m={m} k={k}: {sum}");
        }
    }
}

/// More rows than a grid has on its second axis.
fn many_rows<B: Backend>(b: &B) {
    for element in ELEMENTS {
        check_case(b, &Inputs::new(element, 70_001, 3, 1, 5), "many rows");
        // So many that lanes have several of them at a time.
        for kind in [0, 1, 4] {
            check_case(b, &Inputs::new(element, 270_001, 8, kind, 6), "many rows");
            // Lengths that are in no pieces, short enough for lanes and just longer.
            let small = [(90_001, 1), (9001, 2), (7000, 4), (40_003, 7), (9001, 33), (77, 100)];
            for (m, k) in small.into_iter().chain([(8200, 127), (50, 129), (5001, 16)]) {
                check_case(b, &Inputs::new(element, m, k, kind, 9), "many odd rows");
            }
            // Longer, in the pieces that they lie in: up to the longest that does, and just longer.
            for (m, k) in [(300, 641), (301, 1001), (33, 1017), (33, 1019), (9, 1023)] {
                check_case(b, &Inputs::new(element, m, k, kind, 10), "odd rows in pieces");
            }
            // A warp's, with a piece more than its lanes have or none.
            for (m, k) in [(17, 1018), (16, 1020), (1, 1021), (7, 1022), (64, 1023)] {
                check_case(b, &Inputs::new(element, m, k, kind, 11), "odd rows of a warp");
            }
        }
    }
}

/// Short rows that come with their neighbours ([`contract::row::Small`]): of every number of elements of a lane, and all masks, which end among the rows of a
/// warp and begin anew; powers of two, which lie in the same banks; so many that a warp has them several times.
fn short_rows<B: Backend>(b: &B) {
    let ks =
        [5, 8, 13, 16, 17, 20, 24, 33, 37, 47, 53, 59, 65, 83, 129, 197, 257, 301, 513, 577, 639];
    for (i, k) in ks.into_iter().enumerate() {
        for kind in 0..6 {
            let element = ELEMENTS[(i + kind) % 3];
            check_case(b, &Inputs::new(element, 150, k, kind, 9 + kind as u64), "short rows");
        }
    }
    for (i, (m, k)) in [(70_003, 13), (30_001, 83), (9001, 257)].into_iter().enumerate() {
        check_case(b, &Inputs::new(ELEMENTS[2 - i], m, k, i, 8), "many short rows");
    }
}

/// Rows of 16 bits that go in words ([`contract::row::Small::paired`]), neither masked nor scaled: of every number of words and lanes, one of them alone, and
/// numbers that are no multiple of what a warp has; so many that warps have several turns; and unusual values beside each other.
fn rows_in_words<B: Backend>(b: &B) {
    let plain = |element: usize, m, k, log, seed| Inputs {
        scale: 1.0,
        log,
        ..Inputs::new(ELEMENTS[element], m, k, 0, seed)
    };
    let one = (17..=34).chain([35, 37, 39, 42, 45, 53, 59, 65, 67, 69, 71, 77, 83, 91, 101, 127]);
    let two = [129, 135, 137, 139, 150, 157, 179, 197, 201, 233, 257, 271, 273, 301, 333, 401];
    let ks = one.chain(two).chain([449, 511, 543, 545, 577, 609, 639]);
    for (i, k) in ks.enumerate() {
        let (element, log) = (1 + i % 2, i % 3 == 0);
        for m in [1, 2 + i % 7, 70 + i] {
            check_case(b, &plain(element, m, k, log, 15), "rows in words");
        }
    }
    for (i, (m, k)) in [(130_003, 33), (70_001, 83), (46_003, 197), (30_001, 257), (9001, 577)]
        .into_iter()
        .enumerate()
    {
        check_case(b, &plain(1 + i % 2, around(m), k, i == 1, 16), "many rows in words");
    }
    for value in [-0.0, -100.0, 6e4, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        for element in [1, 2] {
            for (k, log) in [(33, false), (53, true), (83, false), (301, true)] {
                let mut inputs = plain(element, 9, k, log, 17);
                // A whole row of it, and the ends of two more.
                let value = rounded(inputs.element, value);
                inputs.x[2 * k..3 * k].fill(value);
                inputs.x[5 * k] = value;
                inputs.x[8 * k - 1] = value;
                check_case(b, &inputs, &format!("{value} in words"));
            }
        }
    }
}

/// So many that a block has several one after the other, the last one fewer: [`contract::row::grid_of_blocks`].
fn rows_in_turn<B: Backend>(b: &B) {
    for (m, k) in [(8195, 1032), (4099, 2056), (1601, 4104), (1201, 8192)] {
        let inputs = Inputs::new(ELEMENTS[2], around(m), k, 0, 8);
        check_case(b, &inputs, "rows in turn");
    }
    // A warp's: so many that it has two of them.
    for kind in [0, 4] {
        let inputs = Inputs::new(ELEMENTS[2], around(16_399), 1021, kind, 8);
        check_case(b, &inputs, "rows of a warp in turn");
    }
    // The same of rows that start anywhere, with and without room for all that lies in front of them.
    for (i, (m, k)) in
        [(1703, 1025), (50, 2047), (803, 4095), (420, 5003), (401, 8191)].into_iter().enumerate()
    {
        for kind in [0, 2, 5] {
            let inputs = Inputs::new(ELEMENTS[1 + i % 2], around(m), k, kind, 8);
            check_case(b, &inputs, "odd rows in turn");
        }
    }
}

/// Longer rows that lie in pieces wherever they start, also behind masks.
fn odd_rows<B: Backend>(b: &B) {
    let shapes = [
        (33, 1018),
        (9, 1023),
        (7, 2047),
        (5, 4095),
        (3, 8191),
        (3, 9001),
        (3, 16_377),
        (2, 16_383),
    ];
    for (i, (m, k)) in shapes.into_iter().enumerate() {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            for kind in (0..6).filter(|kind| due(18 * i + 6 * j + kind, 3)) {
                check_case(b, &Inputs::new(element, m, k, kind, 14), "odd rows");
            }
        }
    }
}

/// Rows with a sum for each segment: [`contract::softmax::WHOLE`].
fn unusual_values_in_long_rows<B: Backend>(b: &B) {
    let inf = f32::INFINITY;
    for (i, value) in [-0.0, 6e4, f32::MAX, f32::MIN, inf, -inf, f32::NAN].into_iter().enumerate() {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            for (k, kind) in [(16_385, 0), (16_385, 3), (20_480, 2), (17_000, 1), (17_000, 5)] {
                if !due(15 * i + 5 * j + kind, 4) {
                    continue;
                }
                let mut inputs = Inputs::new(element, 4, k, kind, 9);
                // A whole row of it, a segment of the next, and one element of the one after that.
                let value = rounded(element, value);
                inputs.x[..k].fill(value);
                inputs.x[k + 1024..k + 2048].fill(value);
                inputs.x[3 * k - 1] = value;
                check_case(b, &inputs, &format!("{value} kind {kind}"));
            }
        }
    }
}

/// So many rows that a block has several parts, in all ways that they can lie.
fn parts_in_turn<B: Backend>(b: &B) {
    for (kind, element, m, k) in
        [(0, 2, 101, 16_392), (1, 0, 93, 17_411), (2, 1, 101, 20_001), (3, 2, 70, 33_001)]
    {
        let inputs = Inputs::new(ELEMENTS[element], around(m), k, kind, 10);
        check_case(b, &inputs, "parts in turn");
    }
}

/// So that each block goes through its parts of a row twice, on GPUs of up to 152 multiprocessors.
fn more_parts_than_blocks<B: Backend>(b: &B) {
    let inputs = Inputs::new(ELEMENTS[2], 2, around(2_500_003), 0, 11);
    check_case(b, &inputs, "more parts than blocks");
}

/// What is recorded shares nothing with what runs between its replays.
fn recorded_long_rows<B: Backend>(b: &B) {
    let (m, k, scale, log) = (3, 20_001, 1.0, false);
    let values = [12, 13].map(|seed| Inputs::new(ELEMENTS[0], m, k, 0, seed).x);
    let x = values.map(|values| {
        let mut x = zeros::<B, f32>(b, m * k);
        b.write(&mut x, 0, &values).expect("a copy");
        x
    });
    let mut y = [0; 3].map(|_| zeros::<B, f32>(b, m * k));
    let mask = || Mask::None;
    let [eager, recorded, between] = &mut y;
    b.softmax(Softmax { x: &x[0], mask: mask(), y: eager, m, k, scale, log }).expect("softmax");
    let recording = b
        .record(|| b.softmax(Softmax { x: &x[0], mask: mask(), y: recorded, m, k, scale, log }))
        .expect("record");
    let Some(recording) = recording else { return };
    for _ in 0..3 {
        b.replay(&recording).expect("replay");
        b.softmax(Softmax { x: &x[1], mask: mask(), y: between, m, k, scale, log })
            .expect("softmax");
    }
    let bits = |y: &B::Buf<f32>| -> Vec<u32> {
        let mut values = vec![0.0; m * k];
        b.read(y, 0, &mut values).expect("a copy");
        values.into_iter().map(f32::to_bits).collect()
    };
    assert_eq!(bits(recorded), bits(eager), "the recorded rows");
    b.softmax(Softmax { x: &x[1], mask: mask(), y: eager, m, k, scale, log }).expect("softmax");
    assert_eq!(bits(between), bits(eager), "those between the replays");
}

fn a_million_in_a_row<B: Backend>(b: &B) {
    for (kind, element) in ELEMENTS.into_iter().enumerate().filter(|&(i, _)| due(i, 3)) {
        check_case(b, &Inputs::new(element, 1, 1_000_003, kind, 7), "a million");
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("softmax") {
        let mut seeded = Seeded::new(4200 + i as u64);
        let (m, k) = (1 + seeded.below(9), size(&mut seeded, 9500));
        let (element, kind) = (ELEMENTS[seeded.below(3)], seeded.below(6));
        check_case(b, &Inputs::new(element, m, k, kind, seeded.bits()), "generated");
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, k, scale, log) = (3, 100, 1.0, false);
    let (x, y) = (&zeros::<B, f32>(b, m * k), &mut zeros::<B, f32>(b, m * k));
    let (few, less) = (&mut zeros::<B, f32>(b, m * k - 1), &zeros::<B, f32>(b, m * k - 1));
    for (bad, m, k) in [("m", 0, k), ("m", MAX_ROWS + 1, k), ("k", m, 0), ("k", m, MAX_LEN + 1)] {
        refused!(dimension(bad), b.softmax(Softmax { x, mask: Mask::None, y, m, k, scale, log }));
    }
    refused!(short("x"), b.softmax(Softmax { x: less, mask: Mask::None, y, m, k, scale, log }));
    refused!(short("y"), b.softmax(Softmax { x, mask: Mask::None, y: few, m, k, scale, log }));
    let mask = |rows| Mask::Added { mask: less, rows };
    refused!(short("mask"), b.softmax(Softmax { x, mask: mask(3), y, m, k, scale, log }));
    refused!(dimension("mask rows"), b.softmax(Softmax { x, mask: mask(0), y, m, k, scale, log }));
    for queries in [0, k + 1] {
        let mask = Mask::Causal { queries };
        refused!(dimension("queries"), b.softmax(Softmax { x, mask, y, m, k, scale, log }));
    }
    let huge = usize::MAX / 4;
    refused!(dimension("m"), b.softmax(Softmax { x, mask: Mask::None, y, m: huge, k, scale, log }));
}
