//! [`contract::elementwise`]: every function, with two tensors, with one row for all, with relu.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::elementwise::{Elementwise, Function, Operand};
use bitnet_gpu::reference::elementwise::{TEST_SHAPES, elementwise};
use bitnet_gpu::reference::{ELEMENTS, Inputs as Seeded, rounded};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::elementwise::Inputs;
use contract::stream::{MAX_LEN, MAX_ROW};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    unusual_values
    many_rows
    generated_shapes
    refusals
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs, what: &str) {
    let &Inputs { element, form, m, k, relu, .. } = inputs;
    let row = inputs.b.len() < m * k;
    let expected = [Output::floats("y", &[m, k], &elementwise(inputs))];
    let what = format!("{form:?} {element:?} m={m} k={k} relu={relu} row={row} {what}");
    check(b, inputs, &expected, what);
}

fn listed_shapes<B: Backend>(b: &B) {
    for &(m, k) in TEST_SHAPES {
        for element in ELEMENTS {
            for kind in 0..16 {
                check_case(b, &Inputs::new(element, m, k, kind, 1), "");
            }
        }
    }
}

fn unusual_values<B: Backend>(b: &B) {
    let odd = [0.0, -0.0, 1e-42, -1e-30, 6e4, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for element in ELEMENTS {
        for kind in 0..16 {
            let mut inputs = Inputs::new(element, odd.len(), odd.len(), kind, 2);
            for (i, a) in inputs.a.iter_mut().enumerate() {
                *a = rounded(element, odd[i / odd.len()]);
            }
            for (i, b) in inputs.b.iter_mut().enumerate() {
                *b = rounded(element, odd[i % odd.len()]);
            }
            check_case(b, &inputs, "unusual");
        }
    }
}

/// More rows than a grid has on its second axis.
fn many_rows<B: Backend>(b: &B) {
    for element in ELEMENTS {
        check_case(b, &Inputs::new(element, 70_001, 3, 4, 5), "many rows");
        check_case(b, &Inputs::new(element, 70_001, 8, 12, 5), "many rows");
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("elementwise") {
        let mut seeded = Seeded::new(4400 + i as u64);
        let (m, k) = (1 + seeded.below(9), size(&mut seeded, 7000));
        let (element, kind) = (ELEMENTS[seeded.below(3)], seeded.below(16));
        check_case(b, &Inputs::new(element, m, k, kind, seeded.bits()), "generated");
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, k, relu) = (3, 100, false);
    let (a, y) = (&zeros::<B, f32>(b, m * k), &mut zeros::<B, f32>(b, m * k));
    let (few, less) = (&mut zeros::<B, f32>(b, m * k - 1), &zeros::<B, f32>(b, m * k - 1));
    let row = &zeros::<B, f32>(b, k - 1);
    let add = || Function::Add(Operand::Rows(a));
    let sizes = [
        ("m", 0, k),
        ("m", MAX_LEN + 1, k),
        ("k", m, 0),
        ("k", m, MAX_ROW + 1),
        ("k", 1, MAX_LEN + 1),
        ("m * k", 1 << 20, 1 << 21),
    ];
    for (bad, m, k) in sizes {
        let function = add();
        refused!(dimension(bad), b.elementwise(Elementwise { a, function, relu, y, m, k }));
    }
    let function = add();
    refused!(short("a"), b.elementwise(Elementwise { a: less, function, relu, y, m, k }));
    let function = Function::Mul(Operand::Rows(less));
    refused!(short("b"), b.elementwise(Elementwise { a, function, relu, y, m, k }));
    let function = Function::Axpby { alpha: 1.0, beta: 2.0, b: Operand::Row(row) };
    refused!(short("b"), b.elementwise(Elementwise { a, function, relu, y, m, k }));
    let function = Function::Affine { alpha: 1.0, beta: 2.0 };
    refused!(short("y"), b.elementwise(Elementwise { a, function, relu, y: few, m, k }));
}
