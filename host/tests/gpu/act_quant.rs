//! [`contract::act_quant`]: every source against the oracle.

use bitnet_gpu::ops::act_quant::{ActQuant, Gate, Source};
use bitnet_gpu::ops::{Backend, QuantActs, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::act_quant::{MANY_SHAPES, TEST_SHAPES, act_quant, gated, widened};
use bitnet_gpu::reference::layernorm::{self, layernorm};
use bitnet_gpu::reference::rmsnorm::{Case, rmsnorm};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::act_quant::{From, Inputs};
use contract::w2a8::{MAX_K, MAX_ROWS, act_bytes};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    many_rows
    broken_rows
    zero_rows
    subnormals_and_extremes
    generated_shapes
    refusals
}

/// What the oracle says, in the order in which a run keeps its tensors.
fn expected(inputs: &Inputs) -> Vec<Output> {
    let &Inputs { m, k, .. } = inputs;
    let x = inputs.x.clone();
    let (first, v) = match inputs.from.clone() {
        From::Plain => (("x", x.clone()), x),
        From::F16 => {
            let rounded: Vec<half::f16> = x.iter().map(|&v| half::f16::from_f32(v)).collect();
            (("x", x), widened(&rounded))
        }
        From::Bf16 => {
            let rounded: Vec<half::bf16> = x.iter().map(|&v| half::bf16::from_f32(v)).collect();
            (("x", x), widened(&rounded))
        }
        From::RmsNorm { delta, weight, eps } => {
            let (x, y) = rmsnorm(&Case { element: RowType::F32, m, k, x, delta, weight, eps });
            (("x", x), y)
        }
        From::LayerNorm { delta, weight, bias, eps } => {
            let element = RowType::F32;
            let case = layernorm::Case { element, m, k, x, delta, weight, bias, eps };
            let (x, y) = layernorm(&case);
            (("x", x), y)
        }
        From::Gated { gate, weight, eps } => {
            let (f, v) = gated(gate, &x, weight.as_deref(), eps, k);
            (("f", f), v)
        }
    };
    let rows = act_quant(&v, k);
    let width = act_bytes(k);
    let padding = vec![0; width - k];
    let acts = rows.iter().flat_map(|row| row.q.iter().chain(&padding)).map(|&q| q as u32);
    let scales: Vec<f32> = rows.iter().map(|row| row.scale).collect();
    vec![
        Output::floats(first.0, &[m, k], &first.1),
        Output::words("acts", &[m, width], acts.collect()),
        Output::floats("scale", &[m], &scales),
        Output::words("sum", &[m], rows.iter().map(|row| row.sum as u32).collect()),
    ]
}

const EPS: f32 = 1e-5;

/// Every source over rows of `m` by `k`, `x` changed by `spoil`.
fn check_sources<B: Backend>(
    b: &B,
    seeded: &mut Seeded,
    (m, k): (usize, usize),
    spoil: impl Fn(&mut [f32]),
) {
    for (name, width, from) in sources(seeded, m, k) {
        let mut x = seeded.floats(m * width, 4.0);
        spoil(&mut x);
        let inputs = Inputs { m, k, x, from };
        check(b, &inputs, &expected(&inputs), format!("{name} m={m} k={k}"));
    }
}

fn sources(seeded: &mut Seeded, m: usize, k: usize) -> Vec<(&'static str, usize, From)> {
    let mut gain = || seeded.floats(k, 2.0);
    let [a, b, c, d, e, f] = [gain(), gain(), gain(), gain(), gain(), gain()];
    let other = Some(seeded.floats(m * k, 2.0));
    let delta = Some(seeded.floats(m * k, 2.0));
    let gated = |gate, weight| From::Gated { gate, weight, eps: EPS };
    vec![
        ("plain", k, From::Plain),
        ("f16", k, From::F16),
        ("bf16", k, From::Bf16),
        ("rmsnorm", k, From::RmsNorm { delta: None, weight: a, eps: EPS }),
        ("rmsnorm with delta", k, From::RmsNorm { delta, weight: b, eps: 0.0 }),
        ("relu2", 2 * k, gated(Gate::Relu2, None)),
        ("relu2 with norm", 2 * k, gated(Gate::Relu2, Some(c))),
        ("silu", 2 * k, gated(Gate::Silu, None)),
        ("silu with norm", 2 * k, gated(Gate::Silu, Some(d))),
        ("layernorm", k, From::LayerNorm { delta: None, weight: Some(e), bias: Some(f), eps: EPS }),
        (
            "layernorm with delta",
            k,
            From::LayerNorm { delta: other, weight: None, bias: None, eps: EPS },
        ),
    ]
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &shape in TEST_SHAPES {
        check_sources(b, &mut seeded, shape, |_| {});
    }
}

/// Shapes of other kernels, with rows that are broken, zero and small among others.
fn many_rows<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(5);
    for (i, &(m, k)) in MANY_SHAPES.iter().enumerate() {
        check_sources(b, &mut seeded, (m, k), |x| {
            let width = x.len() / m;
            if m > 100 {
                x[width + width / 3] = [f32::NAN, f32::NEG_INFINITY][i % 2];
                x[5 * width..6 * width].fill(0.0);
                x[9 * width..10 * width].iter_mut().for_each(|v| *v *= 1e-39);
                x[x.len() - 1] = [f32::INFINITY, f32::NAN][i % 2];
            }
        });
    }
}

/// NaN and infinities at every kind of place; rows beside them stay right.
fn broken_rows<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for (m, k) in [(3, 1), (3, 63), (4, 257), (3, 1000)] {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, k / 2, k - 1] {
                check_sources(b, &mut seeded, (m, k), |x| x[at] = bad);
            }
        }
        check_sources(b, &mut seeded, (m, k), |x| {
            x[0] = f32::INFINITY;
            x[k - 1] = f32::NAN;
        });
    }
}

fn zero_rows<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(3);
    for (m, k) in [(1, 1), (2, 64), (3, 513)] {
        for zero in [0.0, -0.0] {
            check_sources(b, &mut seeded, (m, k), |x| x.fill(zero));
        }
    }
}

fn subnormals_and_extremes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(4);
    for (m, k) in [(1, 7), (2, 300)] {
        // From below the floor of the scale to sums of squares that overflow.
        for by in [1e-45, 1e-39, 1e-20, 2e-6, 1e18, 8e37] {
            check_sources(b, &mut seeded, (m, k), |x| x.iter_mut().for_each(|v| *v *= by));
        }
        // Halves of every size: the largest is 127 and the scale 1.
        check_sources(b, &mut seeded, (m, k), |x| {
            for (i, v) in x.iter_mut().enumerate() {
                *v = if i == 0 { 127.0 } else { (i % 254) as f32 - 126.5 };
            }
        });
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("act_quant") {
        let mut seeded = Seeded::new(3000 + i as u64);
        let (m, k) = (1 + seeded.below(4), size(&mut seeded, 7000));
        let (name, width, from) = sources(&mut seeded, m, k).swap_remove(i % 11);
        let inputs = Inputs { m, k, x: seeded.floats(m * width, 3.0), from };
        check(b, &inputs, &expected(&inputs), format!("{name} m={m} k={k}"));
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, k) = (3, 100);
    let x = &mut zeros::<B, f32>(b, m * k);
    let f = &mut zeros::<B, f32>(b, m * k);
    let gate_up = &zeros::<B, f32>(b, 2 * m * k);
    let weight = &zeros::<B, f32>(b, k);
    let few = &mut zeros::<B, f32>(b, m * k - 1);
    let few_gate_up = &zeros::<B, f32>(b, 2 * m * k - 1);
    let few_weight = &zeros::<B, f32>(b, k - 1);
    let out = &mut QuantActs::alloc(b, m, k).expect("activations");
    let few_acts = &mut QuantActs::<B> { acts: zeros(b, m * 128 - 1), stats: zeros(b, m) };
    let few_stats = &mut QuantActs::<B> { acts: zeros(b, m * 128), stats: zeros(b, m - 1) };

    let plain = |x| Source::Plain { x };
    for (bad, over) in
        [("m", (0, k)), ("m", (MAX_ROWS + 1, k)), ("k", (m, 0)), ("k", (m, MAX_K + 1))]
    {
        let (m, k) = over;
        refused!(dimension(bad), b.act_quant(ActQuant { source: plain(x), out, m, k }));
    }
    refused!(short("x"), b.act_quant(ActQuant { source: plain(few), out, m, k }));
    refused!(short("acts"), b.act_quant(ActQuant { source: plain(x), out: few_acts, m, k }));
    refused!(short("stats"), b.act_quant(ActQuant { source: plain(x), out: few_stats, m, k }));

    let source = Source::RmsNorm { x: few, delta: None, weight, eps: EPS };
    refused!(short("x"), b.act_quant(ActQuant { source, out, m, k }));
    let source = Source::RmsNorm { x, delta: Some(few), weight, eps: EPS };
    refused!(short("delta"), b.act_quant(ActQuant { source, out, m, k }));
    let source = Source::RmsNorm { x, delta: None, weight: few_weight, eps: EPS };
    refused!(short("weight"), b.act_quant(ActQuant { source, out, m, k }));
    let source = Source::LayerNorm { x: few, delta: None, weight: None, bias: None, eps: EPS };
    refused!(short("x"), b.act_quant(ActQuant { source, out, m, k }));
    let source = Source::LayerNorm { x, delta: Some(few), weight: None, bias: None, eps: EPS };
    refused!(short("delta"), b.act_quant(ActQuant { source, out, m, k }));
    let weight_of = Some(few_weight);
    let source = Source::LayerNorm { x, delta: None, weight: weight_of, bias: None, eps: EPS };
    refused!(short("weight"), b.act_quant(ActQuant { source, out, m, k }));
    let source = Source::LayerNorm { x, delta: None, weight: None, bias: weight_of, eps: EPS };
    refused!(short("bias"), b.act_quant(ActQuant { source, out, m, k }));
    for gate in [Gate::Relu2, Gate::Silu] {
        let source = Source::Gated { gate, gate_up: few_gate_up, f, weight: None, eps: EPS };
        refused!(short("gate_up"), b.act_quant(ActQuant { source, out, m, k }));
        let source = Source::Gated { gate, gate_up, f: few, weight: None, eps: EPS };
        refused!(short("f"), b.act_quant(ActQuant { source, out, m, k }));
        let weight = Some(few_weight);
        let source = Source::Gated { gate, gate_up, f, weight, eps: EPS };
        refused!(short("weight"), b.act_quant(ActQuant { source, out, m, k }));
    }
}
