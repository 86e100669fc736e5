//! [`contract::activation`]: every function, plain, gated and fused.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::activation::{Activation, Kind, Source};
use bitnet_gpu::reference::activation::{TEST_SHAPES, activation};
use bitnet_gpu::reference::{ELEMENTS, Inputs as Seeded, rounded};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::activation::Inputs;
use contract::stream::{MAX_LEN, MAX_ROW};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    every_kind_of_number
    many_rows
    generated_shapes
    refusals
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs, what: &str) {
    let &Inputs { element, kind, m, k, fused, .. } = inputs;
    let expected = [Output::floats("y", &[m, k], &activation(inputs))];
    check(b, inputs, &expected, format!("{kind:?} {element:?} m={m} k={k} fused={fused} {what}"));
}

fn listed_shapes<B: Backend>(b: &B) {
    for &(m, k) in TEST_SHAPES {
        for element in ELEMENTS {
            for (i, kind) in Kind::ALL.into_iter().enumerate() {
                for form in [2, i % 2] {
                    check_case(b, &Inputs::new(element, kind, m, k, form, 1), "");
                }
            }
        }
    }
}

/// Inputs of every sign and exponent; all numbers of the 16-bit types. Then factors that are unusual.
fn every_kind_of_number<B: Backend>(b: &B) {
    for element in ELEMENTS {
        let number = |i: u32| rounded(element, f32::from_bits(i << 16 | 0x5a5a));
        let all: Vec<f32> = match element {
            bitnet_gpu::ops::RowType::F16 => {
                (0..=u16::MAX).map(|bits| half::f16::from_bits(bits).to_f32()).collect()
            }
            bitnet_gpu::ops::RowType::Bf16 => {
                (0..=u16::MAX).map(|bits| half::bf16::from_bits(bits).to_f32()).collect()
            }
            bitnet_gpu::ops::RowType::F32 => (0..1 << 16).map(number).collect(),
        };
        for kind in Kind::ALL {
            let mut inputs = Inputs::new(element, kind, 1, all.len(), 0, 2);
            inputs.x.clone_from(&all);
            check_case(b, &inputs, "every number");
            let ups = [1.0, -0.75, 0.0, -0.0, 1e-40, 3e38, f32::INFINITY, f32::NAN];
            inputs.up = Some((0..all.len()).map(|i| rounded(element, ups[i % 8])).collect());
            check_case(b, &inputs, "every number, gated");
        }
    }
}

/// More rows than a grid has on its second axis.
fn many_rows<B: Backend>(b: &B) {
    for element in ELEMENTS {
        check_case(b, &Inputs::new(element, Kind::Silu, 70_001, 3, 2, 5), "many rows");
        check_case(b, &Inputs::new(element, Kind::Gelu, 70_001, 8, 2, 5), "many rows");
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("activation") {
        let mut seeded = Seeded::new(4300 + i as u64);
        let (m, k) = (1 + seeded.below(9), size(&mut seeded, 7000));
        let (element, kind) = (ELEMENTS[seeded.below(3)], Kind::ALL[seeded.below(5)]);
        let form = seeded.below(3);
        check_case(b, &Inputs::new(element, kind, m, k, form, seeded.bits()), "generated");
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, k, kind) = (3, 100, Kind::Relu2);
    let (x, y) = (&zeros::<B, f32>(b, m * k), &mut zeros::<B, f32>(b, m * k));
    let (few, less) = (&mut zeros::<B, f32>(b, m * k - 1), &zeros::<B, f32>(b, m * k - 1));
    let plain = || Source::Plain { x };
    let sizes = [
        ("m", 0, k),
        ("m", MAX_LEN + 1, k),
        ("k", m, 0),
        ("k", m, MAX_ROW + 1),
        ("k", 1, MAX_LEN + 1),
        ("m * k", 1 << 20, 1 << 21),
        ("m * k", 1 << 39, 3),
    ];
    for (bad, m, k) in sizes {
        refused!(dimension(bad), b.activation(Activation { kind, source: plain(), y, m, k }));
    }
    let source = Source::Plain { x: less };
    refused!(short("x"), b.activation(Activation { kind, source, y, m, k }));
    let source = Source::Gated { gate: less, up: x };
    refused!(short("gate"), b.activation(Activation { kind, source, y, m, k }));
    let source = Source::Gated { gate: x, up: less };
    refused!(short("up"), b.activation(Activation { kind, source, y, m, k }));
    let source = Source::Fused { gate_up: x };
    refused!(short("gate_up"), b.activation(Activation { kind, source, y, m, k }));
    refused!(short("y"), b.activation(Activation { kind, source: plain(), y: few, m, k }));
}
