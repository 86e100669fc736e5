//! [`contract::relu2_mul`] against the oracle.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::relu2_mul::Relu2Mul;
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::relu2_mul::{TEST_SHAPES, relu2_mul};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::relu2_mul::Inputs;
use contract::w2a8::{MAX_K, MAX_ROWS};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    every_kind_of_gate
    generated_shapes
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    vec![Output::floats("f", &[inputs.m, inputs.k], &relu2_mul(&inputs.gate_up, inputs.k))]
}

fn check_case<B: Backend>(b: &B, m: usize, k: usize, gate_up: Vec<f32>) {
    let inputs = Inputs { m, k, gate_up };
    check(b, &inputs, &expected(&inputs), format!("m={m} k={k}"));
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(m, k) in TEST_SHAPES {
        check_case(b, m, k, seeded.floats(2 * m * k, 9.0));
    }
}

/// Gates of every sign and exponent, times ordinary and unusual factors.
fn every_kind_of_gate<B: Backend>(b: &B) {
    let k = 1 << 12;
    let ups = [1.0, -0.75, 0.0, -0.0, 1e-40, 3e38, f32::INFINITY, f32::NAN];
    let gate = (0..k).map(|i| f32::from_bits((i as u32) << 20 | 0x5_a5a5));
    let gate: Vec<f32> = gate.collect();
    let mut rows = Vec::new();
    for up in ups {
        rows.extend_from_slice(&gate);
        rows.extend(std::iter::repeat_n(up, k));
    }
    check_case(b, ups.len(), k, rows);
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];
    check_case(b, 1, 6, [special, [2.0, -2.0, 0.5, 1.0, 1.0, -1.0]].concat());
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("relu2_mul") {
        let mut seeded = Seeded::new(5000 + i as u64);
        let (m, k) = (1 + seeded.below(5), size(&mut seeded, 7000));
        let reach = [1e-3, 1.0, 20.0, 200.0][seeded.below(4)];
        check_case(b, m, k, seeded.floats(2 * m * k, reach));
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, k) = (3, 100);
    let (gate_up, f) = (&zeros::<B, f32>(b, 2 * m * k), &mut zeros::<B, f32>(b, m * k));
    let (few_gate_up, few) = (&zeros(b, 2 * m * k - 1), &mut zeros::<B, f32>(b, m * k - 1));
    for (bad, m, k) in [("m", 0, k), ("m", MAX_ROWS + 1, k), ("k", m, 0), ("k", m, MAX_K + 1)] {
        refused!(dimension(bad), b.relu2_mul(Relu2Mul { gate_up, f, m, k }));
    }
    refused!(short("gate_up"), b.relu2_mul(Relu2Mul { gate_up: few_gate_up, f, m, k }));
    refused!(short("f"), b.relu2_mul(Relu2Mul { gate_up, f: few, m, k }));
}
