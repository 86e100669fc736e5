//! [`contract::embed`] for the three element types.

use bitnet_gpu::ops::embed::Embed;
use bitnet_gpu::ops::{Backend, Dense, OpError, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::embed::{ELEMENTS, TEST_SHAPES, embed, ids};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::embed::{Inputs, Table};
use contract::w2a8::{MAX_K, MAX_ROWS};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    every_pattern_of_16_bits
    ids_past_the_table_give_nan
    generated_shapes
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let ids = &inputs.ids[inputs.ids_at..];
    let dims = [ids.len(), inputs.table.width];
    vec![Output::floats("out", &dims, &embed(&inputs.table, ids))]
}

fn check_case<B: Backend>(b: &B, table: Table, ids: Vec<u32>, ids_at: usize) {
    let what = format!("{:?} [{}, {}], {} ids", table.element, table.rows, table.width, ids.len());
    let inputs = Inputs { table, ids, ids_at };
    check(b, &inputs, &expected(&inputs), what);
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(m, rows, width) in TEST_SHAPES {
        for element in ELEMENTS {
            let table = Table::new(element, rows, width, seeded.bits());
            check_case(b, table, ids(m, rows, seeded.bits()), 0);
        }
    }
}

/// Subnormals, infinities and every NaN among them.
fn every_pattern_of_16_bits<B: Backend>(b: &B) {
    for element in [RowType::Bf16, RowType::F16] {
        let bits = (0..=0xffff).collect();
        let table = Table { element, rows: 64, width: 1024, bits };
        check_case(b, table, (0..64).collect(), 0);
    }
}

fn ids_past_the_table_give_nan<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for element in ELEMENTS {
        let table = Table::new(element, 5, 77, seeded.bits());
        check_case(b, table, vec![4, 5, 0, u32::MAX, 1 << 31, 4], 1);
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("embed") {
        let mut seeded = Seeded::new(6000 + i as u64);
        let (rows, width) = (size(&mut seeded, 300), size(&mut seeded, 3000));
        let table = Table::new(ELEMENTS[i % 3], rows, width, seeded.bits());
        let count = 1 + seeded.below(9);
        let ids = (0..count).map(|_| seeded.below(rows) as u32).collect();
        let ids_at = seeded.below(count);
        check_case(b, table, ids, ids_at);
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, first, ids_at, ids_stride) = (3, 0, 2, 1);
    for element in ELEMENTS {
        let table = &Dense::alloc(b, "test", element, 10, 33).expect("a table");
        let (ids, few_ids) = (&zeros::<B, u32>(b, 5), &zeros::<B, u32>(b, 4));
        let (out, few) = (&mut zeros::<B, f32>(b, 99), &mut zeros::<B, f32>(b, 98));
        for m in [0, MAX_ROWS + 1] {
            refused!(
                dimension("m"),
                b.embed(Embed { ids, ids_at, ids_stride, table, out, first, m })
            );
        }
        refused!(
            short("ids"),
            b.embed(Embed { ids: few_ids, ids_at, ids_stride, table, out, first, m })
        );
        refused!(
            short("ids"),
            b.embed(Embed { ids, ids_at: usize::MAX, ids_stride, table, out, first, m })
        );
        refused!(
            short("out"),
            b.embed(Embed { ids, ids_at, ids_stride, table, out: few, first, m })
        );
        refused!(short("out"), b.embed(Embed { ids, ids_at, ids_stride, table, out, first: 1, m }));
        let first = usize::MAX;
        refused!(
            dimension("first + m"),
            b.embed(Embed { ids, ids_at, ids_stride, table, out, first, m })
        );

        for (bad, rows, width) in
            [("rows", 0, 1), ("rows", MAX_ROWS + 1, 1), ("width", 1, 0), ("width", 1, MAX_K + 1)]
        {
            refused!(dimension(bad), Dense::alloc(b, "test", element, rows, width).map(drop));
        }
        let mut table = Dense::alloc(b, "test", element, 10, 33).expect("a table");
        let row = vec![0; 33 * element.bytes()];
        let part = |e: &OpError| matches!(e, OpError::Mismatch { .. });
        let outside = |e: &OpError| matches!(e, OpError::Range { at: 10, count: 1, len: 10, .. });
        refused!(part, table.write_rows(b, 0, &row[1..]));
        refused!(outside, table.write_rows(b, 10, &row));
    }
}
