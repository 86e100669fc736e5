//! [`contract::rope`], and the tables that the library makes for it.

use bitnet_gpu::ops::rope::{Rope, RopeTable};
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::rope::{TEST_POSITIONS, TEST_SHAPES, rope};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::rope::{Angles, Inputs};
use contract::w2a8::{MAX_K, MAX_ROWS};

use crate::support::{check, dimension, generated, on_lane, refused, short, zeros};

on_lane! {
    listed_shapes
    positions_past_the_table_stay
    tables_are_rounded_once
    generated_shapes
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let Inputs { angles, heads, row_stride, start, .. } = inputs;
    let mut x = inputs.x.clone();
    let tables = (&angles.cos[..], &angles.sin[..]);
    rope(&mut x, tables, *start as usize, *heads, angles.head_dim, *row_stride);
    vec![Output::floats("x", &[x.len()], &x)]
}

/// A case of `m` rows with `gap` elements between the heads of one row and the next.
fn case(seeded: &mut Seeded, m: usize, heads: usize, head_dim: usize, gap: usize) -> Inputs {
    let row_stride = heads * head_dim + gap;
    let x = seeded.floats((m - 1) * row_stride + heads * head_dim, 3.0);
    let angles = Angles::new(TEST_POSITIONS, head_dim, 10_000.0);
    Inputs { angles, x, m, heads, row_stride, start: 7 }
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs) {
    let Inputs { m, heads, row_stride, start, .. } = inputs;
    let (dim, positions) = (inputs.angles.head_dim, inputs.angles.positions);
    let what = format!(
        "m={m} heads={heads} head_dim={dim} row_stride={row_stride} start={start} of {positions}"
    );
    check(b, inputs, &expected(inputs), what);
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(m, heads, head_dim, start) in TEST_SHAPES {
        for gap in [0, 1, 2 * head_dim] {
            let inputs = case(&mut seeded, m, heads, head_dim, gap);
            check_case(b, &Inputs { start: start as u32, ..inputs });
        }
    }
}

fn positions_past_the_table_stay<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for start in [38, 39, 40, 41, u32::MAX - 1, u32::MAX] {
        let inputs = case(&mut seeded, 4, 2, 48, 3);
        check_case(b, &Inputs { start, ..inputs });
    }
}

/// At theta 10,000 and far positions `f32` angles would be wrong in every bit.
fn tables_are_rounded_once<B: Backend>(b: &B) {
    for (positions, head_dim, theta) in [(1, 2, 1e4), (300, 128, 5e5), (2100, 6, 1e4)] {
        let table = RopeTable::new(b, positions, head_dim, theta).expect("a table");
        let want = Angles::new(positions, head_dim, theta);
        for (name, buf, want) in [("cos", &table.cos, want.cos), ("sin", &table.sin, want.sin)] {
            let mut got = vec![0.0f32; positions * head_dim / 2];
            b.read(buf, 0, &mut got).expect("a table that is read");
            let differ = |i: &usize| got[*i].to_bits() != want[*i].to_bits();
            assert_eq!((0..got.len()).find(differ), None, "{name} of {positions} by {head_dim}");
        }
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("rope") {
        let mut seeded = Seeded::new(8000 + i as u64);
        let (m, heads) = (1 + seeded.below(5), 1 + seeded.below(9));
        let (head_dim, gap) = (2 * (1 + seeded.below(128)), seeded.below(200));
        let inputs = case(&mut seeded, m, heads, head_dim, gap);
        check_case(b, &Inputs { start: seeded.below(42) as u32, ..inputs });
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, heads, row_stride, start_at) = (2, 3, 20, 1);
    let table = &RopeTable::new(b, 9, 6, 1e4).expect("a table");
    let (start, no_start) = (&zeros::<B, u32>(b, 2), &zeros::<B, u32>(b, 1));
    let (x, few) = (&mut zeros::<B, f32>(b, 38), &mut zeros::<B, f32>(b, 37));
    for m in [0, MAX_ROWS + 1] {
        refused!(dimension("m"), b.rope(Rope { x, table, start, start_at, m, heads, row_stride }));
    }
    for heads in [0, MAX_K, usize::MAX] {
        let op = Rope { x, table, start, start_at, m, heads, row_stride };
        refused!(dimension("heads * head_dim"), b.rope(op));
    }
    for row_stride in [0, MAX_K + 1] {
        let op = Rope { x, table, start, start_at, m, heads, row_stride };
        refused!(dimension("row_stride"), b.rope(op));
    }
    let op = Rope { x, table, start, start_at, m, heads, row_stride: 17 };
    refused!(short("row"), b.rope(op));
    refused!(short("x"), b.rope(Rope { x: few, table, start, start_at, m, heads, row_stride }));
    let start = no_start;
    refused!(short("start"), b.rope(Rope { x, table, start, start_at, m, heads, row_stride }));
    let far = usize::MAX;
    refused!(short("start"), b.rope(Rope { x, table, start, start_at: far, m, heads, row_stride }));

    let start = &zeros::<B, u32>(b, 2);
    let cut = |cos, sin| RopeTable::<B> { cos, sin, positions: 9, head_dim: 6 };
    for (bad, table) in
        [("cos", cut(zeros(b, 26), zeros(b, 27))), ("sin", cut(zeros(b, 27), zeros(b, 26)))]
    {
        let table = &table;
        refused!(short(bad), b.rope(Rope { x, table, start, start_at, m, heads, row_stride }));
    }
    for head_dim in [0, 1, 7, MAX_K + 2] {
        refused!(dimension("head_dim"), RopeTable::new(b, 9, head_dim, 1e4).map(drop));
    }
    let positions = |e: &OpError| matches!(e, OpError::Dimension { what: "positions", .. });
    for count in [0, MAX_ROWS + 1] {
        refused!(positions, RopeTable::new(b, count, 6, 1e4).map(drop));
    }
}
