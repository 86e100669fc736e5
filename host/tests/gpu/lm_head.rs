//! [`contract::lm_head`] for the three element types.

use bitnet_gpu::ops::lm_head::LmHead;
use bitnet_gpu::ops::{Backend, Dense};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::embed::ELEMENTS;
use bitnet_gpu::reference::lm_head::{TEST_SHAPES, lm_head};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::embed::Table;
use bitnet_gpu::selftest::lm_head::Inputs;
use contract::w2a8::MAX_ROWS;

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    unusual_values
    generated_shapes
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let (m, table) = (inputs.m(), &inputs.table);
    let logits = lm_head(table, &inputs.x[inputs.x_at..], m);
    vec![Output::floats("logits", &[m, table.rows], &logits)]
}

fn check_case<B: Backend>(b: &B, table: Table, x: Vec<f32>, x_at: usize) {
    let what = format!("{:?} [{}, {}] x_at={x_at}", table.element, table.rows, table.width);
    let inputs = Inputs { table, x, x_at };
    check(b, &inputs, &expected(&inputs), what);
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(m, vocab, k) in TEST_SHAPES {
        for element in ELEMENTS {
            let table = Table::new(element, vocab, k, seeded.bits());
            check_case(b, table, seeded.floats(m * k, 2.0), 0);
        }
    }
}

fn unusual_values<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for value in [0.0, -0.0, 1e-42, 1e38, f32::INFINITY, f32::NAN] {
        for element in ELEMENTS {
            let table = Table::new(element, 19, 333, seeded.bits());
            let mut x = seeded.floats(3 * 333, 2.0);
            x[..333].fill(value);
            x[500] = value;
            check_case(b, table, x, 0);
        }
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("lm_head") {
        let mut seeded = Seeded::new(7000 + i as u64);
        let (m, vocab, k) = (1 + seeded.below(9), size(&mut seeded, 150), size(&mut seeded, 3000));
        let table = Table::new(ELEMENTS[i % 3], vocab, k, seeded.bits());
        // Rows that start anywhere, odd places among them.
        let x_at = seeded.below(2 * k);
        check_case(b, table, seeded.floats(x_at + m * k, 2.0), x_at);
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, x_at) = (2, 5);
    for element in ELEMENTS {
        let w = &Dense::alloc(b, "test", element, 10, 33).expect("a table");
        let (x, few_x) = (&zeros::<B, f32>(b, 71), &zeros::<B, f32>(b, 70));
        let (logits, few) = (&mut zeros::<B, f32>(b, 20), &mut zeros::<B, f32>(b, 19));
        for m in [0, MAX_ROWS + 1] {
            refused!(dimension("m"), b.lm_head(LmHead { x, x_at, w, logits, m }));
        }
        refused!(short("x"), b.lm_head(LmHead { x: few_x, x_at, w, logits, m }));
        refused!(short("x"), b.lm_head(LmHead { x, x_at: usize::MAX, w, logits, m }));
        refused!(short("logits"), b.lm_head(LmHead { x, x_at, w, logits: few, m }));
    }
}
