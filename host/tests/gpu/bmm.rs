//! [`contract::bmm`] against the oracle: bits, or for tensor cores the stated bound.

use bitnet_gpu::ops::bmm::{Bmm, Layout};
use bitnet_gpu::ops::{Backend, Math, OpError, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::bmm::TEST_SHAPES;
use bitnet_gpu::selftest::bmm::{Elements, Inputs};
use bitnet_gpu::selftest::{self, RunError, difference};
use contract::bmm::{Kind, MAX_DIM, VARIANTS};

use crate::support::{check, dimension, due, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    copied_factors
    copied_bytes
    widened_factors
    long_bytes
    every_variant
    small_matrices_in_pieces
    small_matrices_anywhere
    spans_of_chunks
    unusual_values
    generated_shapes
    interleaved_results
    large_strides
    refusals
}

const KINDS: [Kind; 4] =
    [Kind::Float(RowType::F32), Kind::Float(RowType::F16), Kind::Float(RowType::Bf16), Kind::I8];
const MATH: [Math; 2] = [Math::Exact, Math::TensorCore];

fn layout(rows: usize, columns: usize, transposed: bool) -> Layout {
    if transposed { Layout::columns(rows, columns) } else { Layout::rows(rows, columns) }
}

fn case(
    kind: Kind,
    (batch, m, n, k): (usize, usize, usize, usize),
    transposed: [bool; 2],
    seeded: &mut Seeded,
) -> Inputs {
    let a = layout(m, k, transposed[0]);
    let layouts = [a, layout(k, n, transposed[1]), Layout::rows(m, n)];
    Inputs::random(kind, layouts, [m, n, k], batch, seeded)
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs) {
    let Inputs { layouts, shape, batch, factors, math, .. } = inputs;
    let what = format!("{batch} of {shape:?} {layouts:?} {factors:?} {math:?}");
    check(b, inputs, &[inputs.expected()], what);
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for (i, &shape) in TEST_SHAPES.iter().enumerate() {
        for (j, kind) in KINDS.into_iter().enumerate() {
            for way in 0..4 {
                if !due(20 * i + 4 * j + way, 7) {
                    continue;
                }
                let mut inputs = case(kind, shape, [way & 1 == 1, way & 2 == 2], &mut seeded);
                inputs.math = MATH[(i + j + way / 2) % 2];
                inputs.factors = [[1.0, 0.0], [2.0, -1.0]][(i + way) % 2];
                check_case(b, &inputs);
            }
        }
    }
}

/// Each kernel by name, where it takes the case; the measured choice is none of its business.
fn every_variant<B: Backend>(b: &B) {
    let before = crate::lane::launches();
    let mut seeded = Seeded::new(2);
    let mut ran = [0; VARIANTS.len()];
    let shapes = [
        (3, 64, 64, 64),
        (2, 136, 264, 72),
        (1, 72, 300, 8),
        (2, 40, 24, 2056),
        (2, 5, 133, 70),
        (1, 150, 16, 5200),
        (2, 131, 67, 201),
        // Whole matrices: rows that start anywhere, and pieces of 16 bytes.
        (5, 31, 17, 63),
        (9, 13, 30, 31),
        (3, 50, 64, 37),
        (6, 16, 32, 48),
        // Of one row, in pieces and not.
        (2, 1, 136, 1100),
        (3, 1, 43, 40),
        // Pieces of 16 bytes for every type, and `C` read in them.
        (2, 144, 272, 80),
        // Chunks shared out: all at once, in several rounds of a cluster, of two blocks, and of one.
        (1, 70, 33, 7001),
        (1, 35, 6, 20003),
        (200, 3, 2, 4200),
        (540, 2, 3, 2100),
    ];
    for (j, shape) in shapes.into_iter().enumerate() {
        for (i, kind) in KINDS.into_iter().enumerate() {
            for transposed in (0..4).filter(|transposed| due(20 * j + 4 * i + transposed, 7)) {
                let transposed = [transposed & 1 == 1, transposed & 2 == 2];
                let mut inputs = case(kind, shape, transposed, &mut seeded);
                if [8, 80, 2056, 20003].contains(&shape.3) {
                    inputs.factors = [2.0, 3.0];
                }
                inputs.math = Math::TensorCore;
                let expected = [inputs.expected()];
                for index in 0..VARIANTS.len() {
                    inputs.variant = Some(index);
                    let symbol = VARIANTS[index].spec.symbol;
                    let [line_a, line_b] = [
                        if transposed[0] { shape.1 } else { shape.3 },
                        if transposed[1] { shape.3 } else { shape.2 },
                    ];
                    // Copies are the business of `copied_factors`.
                    if COPYING.contains(&symbol) && (line_a % 4 != 0 || line_b % 4 != 0) {
                        continue;
                    }
                    match selftest::run(b, &inputs) {
                        Ok(found) => {
                            ran[index] += 1;
                            if let Some(first) = difference(&found, &expected) {
                                panic!("{symbol} {shape:?} {transposed:?} {kind:?}: {first}");
                            }
                        }
                        Err(RunError::Op(OpError::Dimension { what: "variant", .. })) => {}
                        Err(RunError::Op(error))
                            if error.is_absent() && !crate::lane::has(symbol) => {}
                        Err(error) => panic!("{symbol} {shape:?} {transposed:?}: {error}"),
                    }
                    if crate::lane::launches() == before {
                        return; // a backend that has no kernels
                    }
                }
            }
        }
    }
    println!("bmm: cases by variant {ran:?}");
}

/// Small f32 in pieces of 16 bytes, by name: parts of sides and of slices, every layout, `C` read and not.
fn small_matrices_in_pieces<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(14);
    let small = [(9, 32, 32, 32), (6, 27, 12, 20), (5, 1, 4, 4), (2, 31, 16, 24), (3, 8, 28, 16)];
    let large = [(2, 64, 64, 64), (3, 59, 36, 44), (2, 4, 64, 52), (1, 63, 8, 16), (2, 33, 40, 4)];
    for (symbol, shapes) in [("bmm_f32_flow32", small), ("bmm_f32_flow64", large)] {
        let variant = VARIANTS.iter().position(|variant| variant.spec.symbol == symbol);
        assert!(variant.is_some(), "{symbol}");
        // Absent below sm_90a, where it is not asked for.
        let variant = variant.filter(|_| crate::lane::has(symbol));
        for (batch, m, n, k) in shapes {
            let rows: usize = m;
            for (way, factors) in (0..8).map(|i| (i / 2, [[1.0, 0.0], [2.0, -1.0]][i % 2])) {
                let transposed = [way & 1 == 1, way & 2 == 2];
                // Then its rows in memory are pieces too.
                let m = if transposed[0] { rows.next_multiple_of(4) } else { rows };
                let mut inputs = case(KINDS[0], (batch, m, n, k), transposed, &mut seeded);
                (inputs.factors, inputs.variant) = (factors, variant);
                check_case(b, &inputs);
            }
        }
    }
}

/// Small floats by name, wherever they lie: offsets, lines and matrices apart, one factor for all, `C` read and not.
fn small_matrices_anywhere<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(17);
    let symbols = [
        (0, ["bmm_f32_pack", "bmm_f32_quick", "bmm_f32_group64", "bmm_f32_whole64"]),
        (1, ["bmm_f16_whole32", "bmm_f16_whole64", "bmm_f16_quick", "bmm_f16_whole64"]),
        (2, ["bmm_bf16_whole32", "bmm_bf16_whole64", "bmm_bf16_quick", "bmm_bf16_whole64"]),
        (3, ["bmm_i8_mma32", "bmm_i8_long32", "bmm_i8_mma32", "bmm_i8_64"]),
    ];
    for (kind, symbol) in symbols.into_iter().flat_map(|(kind, s)| s.map(|symbol| (kind, symbol))) {
        let variant = VARIANTS.iter().position(|variant| variant.spec.symbol == symbol);
        assert!(variant.is_some(), "{symbol}");
        let variant = variant.filter(|_| crate::lane::has(symbol));
        for (i, (batch, m, n, k)) in
            [(7, 21, 30, 37), (3, 64, 50, 64), (70, 5, 6, 7), (9, 40, 24, 16), (2, 33, 1, 1)]
                .into_iter()
                .enumerate()
        {
            for way in 0..4 {
                let place = |layout: Layout, lines: usize, [at, apart, beside]: [usize; 3]| {
                    let ld = layout.ld + apart;
                    Layout { at, ld, stride: ld * lines + beside, ..layout }
                };
                let [ta, tb] = [way & 1 == 1, way & 2 == 2];
                let (a, b_layout) = (layout(m, k, ta), layout(k, n, tb));
                let lines = [if ta { k } else { m }, if tb { n } else { k }];
                let [a, b_layout, c] = match (i + way) % 4 {
                    0 => [a, b_layout, Layout::rows(m, n)].map(|layout| layout.at(1)),
                    1 => [a.broadcast().at(3), b_layout, Layout::rows(m, n)],
                    2 => [
                        place(a, lines[0], [4, 4, 0]),
                        b_layout.broadcast(),
                        place(Layout::rows(m, n), m, [2, 3, 5]),
                    ],
                    _ => [
                        place(a, lines[0], [0, 0, 1]),
                        place(b_layout, lines[1], [1, 1, 0]),
                        Layout { at: 0, stride: n, ld: batch * n, transposed: false },
                    ],
                };
                let layouts = [a, b_layout, c];
                let kind = KINDS[kind];
                let mut inputs = Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded);
                inputs.factors = [[1.0, 0.0], [2.0, -1.0]][(i + way / 2) % 2];
                inputs.math = MATH[usize::from(kind != KINDS[0])];
                // What is too large for it goes to whichever is chosen.
                inputs.variant = variant.filter(|&index| {
                    let longest = layouts[..2].iter().map(|layout| layout.ld).max();
                    let small =
                        longest.max(Some(m.max(n))) <= Some(VARIANTS[index].most_side() as usize);
                    kind == KINDS[0] || VARIANTS[index].most_k == 0 || small
                });
                check_case(b, &inputs);
            }
        }
    }
}

/// More chunks than a block, or a cluster, keeps the sums of: they are added up in several spans.
fn spans_of_chunks<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(16);
    for symbol in ["bmm_f32_fed", "bmm_f32_fed16", "bmm_f32_fed32", "bmm_f32_fed8"] {
        let variant = VARIANTS.iter().position(|variant| variant.spec.symbol == symbol);
        assert!(variant.is_some(), "{symbol}");
        let variant = variant.filter(|_| crate::lane::has(symbol));
        // By clusters of eight, and so many that each has a block of its own.
        for (i, (batch, k)) in [(1, 66_000), (134, 8200)].into_iter().enumerate() {
            let mut inputs = case(KINDS[0], (batch, 2, 3, k), [i == 1, i == 0], &mut seeded);
            (inputs.factors, inputs.variant) = ([2.0, -1.0], variant);
            check_case(b, &inputs);
        }
    }
}

/// Exact kernels that want lines of whole pieces of 16 bytes.
const COPYING: [&str; 5] =
    ["bmm_f32_128", "bmm_f32_64", "bmm_f32_64_hopper", "bmm_f32_32", "bmm_f32_16"];

/// Lines of any length for exact kernels that want whole pieces: they are copied, and sums keep their bits, that of -0 too.
fn copied_factors<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(15);
    for (i, symbol) in COPYING.into_iter().enumerate() {
        let variant = VARIANTS.iter().position(|variant| variant.spec.symbol == symbol);
        assert!(variant.is_some(), "{symbol}");
        // Where it is absent, the choice is as good a test as any.
        let variant = variant.filter(|_| crate::lane::has(symbol));
        for (j, shape) in
            [(2, 65, 67, 33), (1, 7, 130, 1025), (3, 16, 20, 5), (1, 1, 1, 1), (2, 9, 64, 64)]
                .into_iter()
                .enumerate()
        {
            for way in 0..4 {
                let transposed = [way & 1 == 1, way & 2 == 2];
                let mut inputs = case(KINDS[0], shape, transposed, &mut seeded);
                let factors = [[1.0, 0.0], [2.0, -1.0]][(i + j + way) % 2];
                (inputs.factors, inputs.variant) = (factors, variant);
                check_case(b, &inputs);
                let Elements::F32([a, b_values, _]) = &mut inputs.elements else { continue };
                a.fill(1e-30);
                b_values.fill(-1e-30);
                inputs.factors = [1.0, 0.0];
                check_case(b, &inputs);
            }
        }
    }
}

/// i8 that is copied to lines of terms for a kernel that wants those: every layout, `C` of any width.
fn copied_bytes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(18);
    let symbol = "bmm_i8_wgmma128";
    let variant = VARIANTS.iter().position(|variant| variant.spec.symbol == symbol);
    assert!(variant.is_some(), "{symbol}");
    let variant = variant.filter(|_| crate::lane::has(symbol));
    for (i, shape) in
        [(2, 65, 67, 33), (1, 7, 130, 145), (3, 16, 20, 5), (1, 1, 1, 1), (2, 9, 64, 64)]
            .into_iter()
            .enumerate()
    {
        for way in 0..4 {
            let mut inputs = case(KINDS[3], shape, [way & 1 == 1, way & 2 == 2], &mut seeded);
            (inputs.factors, inputs.variant) = ([[1.0, 0.0], [2.0, -1.0]][(i + way) % 2], variant);
            if way == 3 {
                inputs.layouts[1] = inputs.layouts[1].broadcast();
            }
            check_case(b, &inputs);
        }
    }
}

/// 16-bit floats by kernels of f32: their factors widen first, and what they sum is rounded last. Every layout, chunks, sums that are
/// spread, -0, NaN, and a `C` that is read.
fn widened_factors<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(19);
    let symbols =
        ["bmm_f32_fed16", "bmm_f32_ring64", "bmm_f32_64", "bmm_f32_quick", "bmm_f32_thin"];
    let shapes = [
        (2, 9, 67, 33),
        (3, 16, 20, 8),
        (1, 3, 130, 2053),
        (1, 5, 4, 1100),
        (1, 2, 3, 30_001),
        (7, 1, 1, 1),
    ];
    for (i, symbol) in symbols.into_iter().enumerate() {
        let variant = VARIANTS.iter().position(|variant| variant.spec.symbol == symbol);
        assert!(variant.is_some(), "{symbol}");
        let variant = variant.filter(|_| crate::lane::has(symbol) && crate::lane::has("bmm_parts"));
        for (j, (batch, m, n, k)) in shapes.into_iter().enumerate() {
            for way in 0..4 {
                let [ta, tb] = [way & 1 == 1, way & 2 == 2];
                let apart = |layout: Layout, lines: usize, [at, ld, beside]: [usize; 3]| {
                    let ld = layout.ld + ld;
                    Layout { at, ld, stride: ld * lines + beside, ..layout }
                };
                let (a, b_layout, c) = (layout(m, k, ta), layout(k, n, tb), Layout::rows(m, n));
                let lines = [if ta { k } else { m }, if tb { n } else { k }];
                let layouts = match (i + j + way) % 4 {
                    0 => [a, b_layout, c],
                    1 => [a.at(1), b_layout.broadcast().at(3), c.at(2)],
                    2 => [apart(a, lines[0], [8, 8, 0]), b_layout.at(8), apart(c, m, [0, 3, 5])],
                    _ => [apart(a, lines[0], [0, 0, 1]), apart(b_layout, lines[1], [1, 1, 0]), c],
                };
                let kind = KINDS[1 + (i + way) % 2];
                let mut inputs = Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded);
                inputs.factors = [[1.0, 0.0], [2.0, -1.0], [-0.5, 3.0]][(j + way) % 3];
                // Few terms, or few rows, are all that some take.
                inputs.variant = variant.filter(|_| match symbol {
                    "bmm_f32_quick" => k <= 252,
                    "bmm_f32_thin" => m.min(n) <= 16,
                    _ => true,
                });
                check_case(b, &inputs);
                if let Elements::Bf16([a, b_values, c]) = &mut inputs.elements {
                    let last = b_values.len() - 1;
                    a.fill(half::bf16::from_f32(1e-30));
                    b_values.fill(half::bf16::from_f32(-1e-30));
                    b_values[last] = half::bf16::NAN;
                    c.fill(half::bf16::INFINITY);
                    inputs.factors[1] = 0.0;
                    check_case(b, &inputs);
                }
            }
        }
    }
    // The choice, which leaves small ones where they are.
    for (i, shape) in [(1, 8, 8, 9000), (1, 257, 33, 1030), (3, 5, 6, 7)].into_iter().enumerate() {
        let mut inputs = case(KINDS[1 + i % 2], shape, [i == 1, i == 0], &mut seeded);
        inputs.factors = [2.0, -1.0];
        check_case(b, &inputs);
    }
}

/// i8 of few outputs and long sums: shared out in a block, a cluster, and spread; the largest terms, which wrap.
fn long_bytes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(20);
    for symbol in ["bmm_i8_long32", "bmm_i8_mma32"] {
        let variant = VARIANTS.iter().position(|variant| variant.spec.symbol == symbol);
        assert!(variant.is_some(), "{symbol}");
        let variant = variant.filter(|_| crate::lane::has(symbol));
        for (i, shape) in [
            (1, 8, 8, 66_000),
            (1, 1, 15, 9001),
            (2, 33, 65, 1340),
            (134, 3, 2, 700),
            (1, 40, 6, 15),
        ]
        .into_iter()
        .enumerate()
        {
            for way in 0..4 {
                let mut inputs = case(KINDS[3], shape, [way & 1 == 1, way & 2 == 2], &mut seeded);
                inputs.factors = [[1.0, 0.0], [3.0, -2.0]][(i + way) % 2];
                inputs.variant = variant;
                check_case(b, &inputs);
                let Elements::I8([a, b_values], c) = &mut inputs.elements else { continue };
                if i != 1 {
                    continue;
                }
                inputs.factors = [1e9, 0.0];
                a.fill(-128);
                b_values.fill(-128);
                c.fill(7);
                check_case(b, &inputs);
            }
        }
    }
}

/// NaN and infinity where they reach a result, and where zero factors or `beta` hide them.
fn unusual_values<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(3);
    let unusual = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-42, 3e38];
    for (i, value) in unusual.into_iter().enumerate() {
        for shape in [(2, 5, 6, 33), (1, 64, 64, 64), (1, 128, 132, 1028)] {
            for beta in [0.0, 1.0] {
                let mut inputs = case(KINDS[0], shape, [i % 2 == 1, i % 3 == 1], &mut seeded);
                inputs.factors = [1.0, beta];
                let Elements::F32([a, b_values, c]) = &mut inputs.elements else { continue };
                let (first, last) = (a.len() / 3, b_values.len() - 1);
                a[first] = value;
                b_values[last] = value;
                // Read only where beta is not 0.
                c.fill(value);
                check_case(b, &inputs);
            }
        }
    }
    // A sum of nothing but the smallest negative products ends in -0, whatever its padding.
    for k in [1, 3, 17, 1025] {
        let mut inputs = case(KINDS[0], (1, 3, 4, k), [false; 2], &mut seeded);
        let Elements::F32([a, b_values, _]) = &mut inputs.elements else { return };
        a.fill(-1e-40);
        b_values.fill(1e-40);
        check_case(b, &inputs);
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("bmm") {
        let mut seeded = Seeded::new(9000 + i as u64);
        let (m, n, batch) = (size(&mut seeded, 150), size(&mut seeded, 150), 1 + seeded.below(3));
        // Some sums of several chunks; never more than the oracle can do in a moment.
        let end = if i % 8 == 0 { 3000 } else { 300 };
        let k = size(&mut seeded, end).min(1 + 400_000 / (m * n * batch));
        let [ta, tb] = [seeded.below(2) == 1, seeded.below(2) == 1];
        // Offsets and leading dimensions that keep, or break, every alignment.
        let step = [1, 1, 2, 4, 8, 16][seeded.below(6)];
        let [m, n, k] = match step {
            1 | 2 => [m, n, k],
            step => [m, n, k].map(|side: usize| side.next_multiple_of(step)),
        };
        let mut place = |layout: Layout, rows: usize, columns: usize, broadcast: bool| {
            let ld = layout.ld + step * seeded.below(3);
            let lines = if layout.transposed { columns } else { rows };
            let stride = if broadcast { 0 } else { ld * lines + step * seeded.below(3) };
            Layout { at: step * seeded.below(5), stride, ld, ..layout }
        };
        let layouts = [
            place(layout(m, k, ta), m, k, i % 5 == 1),
            place(layout(k, n, tb), k, n, i % 5 == 2),
            place(Layout::rows(m, n), m, n, false),
        ];
        let kind = KINDS[i % 4];
        let mut inputs = Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded);
        inputs.factors = [[1.0, 0.0], [1.0, 0.0], [-2.0, 0.0], [0.5, 1.0], [0.0, 3.0]][i % 5];
        inputs.math = MATH[seeded.below(2)];
        check_case(b, &inputs);
    }
}

/// `[m, batch, n]`: rows of one matrix between those of the others.
fn interleaved_results<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(4);
    for kind in KINDS {
        let (batch, m, n, k) = (5, 20, 8, 24);
        let c = Layout { at: 0, stride: n, ld: batch * n, transposed: false };
        let layouts = [Layout::rows(m, k), Layout::rows(k, n), c];
        check_case(b, &Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded));
    }
}

/// More than 65,535 rows, and more than as many matrices.
fn large_strides<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(5);
    for shape in [(1, 70_001, 3, 2), (70_001, 2, 1, 3), (1, 2, 70_001, 3)] {
        for kind in [KINDS[0], KINDS[3]] {
            check_case(b, &case(kind, shape, [false, true], &mut seeded));
        }
    }
}

fn refusals<B: Backend>(b: &B) {
    let (a, w, few) = (&zeros::<B, f32>(b, 60), &zeros::<B, f32>(b, 40), &zeros::<B, f32>(b, 39));
    let (c, short_c) = (&mut zeros::<B, f32>(b, 48), &mut zeros::<B, f32>(b, 47));
    // Two of [6, 5] times [5, 4].
    let shape = [6, 4, 5];
    refused!(short("b"), b.bmm(Bmm::new(a, few, c, shape, 2)));
    refused!(short("c"), b.bmm(Bmm::new(a, w, short_c, shape, 2)));
    refused!(short("a"), b.bmm(Bmm::new(few, w, c, shape, 2)));
    let op = |at, stride, ld| Layout { at, stride, ld, transposed: false };
    let (far, odd) = (op(usize::MAX, 30, 5), op(0, usize::MAX, 5));
    for a_layout in [op(1, 30, 5), op(0, 31, 5), op(0, 30, 6), far, odd, op(0, 30, usize::MAX)] {
        refused!(short("a"), b.bmm(Bmm { a_layout, ..Bmm::new(a, w, c, shape, 2) }));
    }
    let a_layout = op(0, 30, 4);
    refused!(dimension("a_layout.ld"), b.bmm(Bmm { a_layout, ..Bmm::new(a, w, c, shape, 2) }));
    for stride in [0, 3, 4, 23] {
        let c_layout = op(0, stride, 4);
        let run = b.bmm(Bmm { c_layout, ..Bmm::new(a, w, c, shape, 2) });
        refused!(dimension("c_layout.stride"), run);
    }
    let c_layout = Layout::columns(6, 4);
    let run = b.bmm(Bmm { c_layout, ..Bmm::new(a, w, c, shape, 2) });
    refused!(dimension("c_layout.transposed"), run);
    let huge = [MAX_DIM + 1, 4, 5];
    refused!(dimension("m"), b.bmm(Bmm::new(a, w, c, huge, 1)));
    refused!(dimension("batch"), b.bmm(Bmm::new(a, w, c, shape, MAX_DIM + 1)));
    let variant = Some(VARIANTS.len());
    refused!(dimension("variant"), b.bmm(Bmm { variant, ..Bmm::new(a, w, c, shape, 2) }));
    // Nothing to do is not an error, and not a launch.
    let before = crate::lane::launches();
    for (shape, batch) in [([0, 4, 5], 2), ([6, 0, 5], 2), ([6, 4, 5], 0)] {
        b.bmm(Bmm::new(a, w, c, shape, batch)).expect("an empty product");
    }
    assert_eq!(crate::lane::launches(), before);
}
