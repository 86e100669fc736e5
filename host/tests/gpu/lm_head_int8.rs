//! [`contract::lm_head_int8`]: the copy, the digits, which rows are computed, and the tokens.

use bitnet_gpu::ops::lm_head::LmHead;
use bitnet_gpu::ops::lm_head_int8::{Int8Table, LmHeadInt8};
use bitnet_gpu::ops::sample::{PARAM_WORDS, Sample, SampleState, param_words, state_words};
use bitnet_gpu::ops::{Backend, Dense, TokenLog};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::embed::ELEMENTS;
use bitnet_gpu::reference::lm_head_int8::{
    TEST_SHAPES, input, input_of, lm_head_int8, pack, padded,
};
use bitnet_gpu::reference::sample::{GREEDY, params};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::embed::Table;
use bitnet_gpu::selftest::lm_head_int8::Inputs;
use contract::lm_head_int8::{MAX_K, MAX_WANTED, input_words, row_bytes};
use contract::sample::{SampleParams, StepState};

use crate::support::{
    check, dimension, due, generated, on_lane, refused, repeats, short, size, zeros,
};

on_lane! {
    listed_shapes
    rows_and_inputs_without_a_bound
    several_inputs
    generated_cases
    tokens_are_those_of_the_plain_head
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let Inputs { table, seen, asked, .. } = inputs;
    let (x, k, m) = (&inputs.x[inputs.x_at..], table.width, asked.len());
    let copy = pack(table);
    let bytes: Vec<u32> = padded(&copy.values, k).into_iter().map(u32::from).collect();
    let (mut words, mut logits) = (Vec::new(), Vec::new());
    for ((x, seen), (params, ended)) in x.chunks(k).zip(seen.chunks(table.rows)).zip(asked) {
        let (p, stats) = input(x);
        words.extend(input_of(&p, stats));
        match ended {
            true => logits.extend(vec![0.5; table.rows]),
            false => logits.extend(lm_head_int8(table, x, seen, params)),
        }
    }
    vec![
        Output::words("bytes", &[table.rows, row_bytes(k)], bytes),
        Output::floats("rows", &[table.rows, 4], copy.rows.as_flattened()),
        Output::words("input", &[m, input_words(k)], words),
        Output::floats("logits", &[m, table.rows], &logits),
    ]
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs, what: &str) {
    let Inputs { table, asked, .. } = inputs;
    let what = format!(
        "{what}: {:?} [{}, {}] {} x {:?}",
        table.element,
        table.rows,
        table.width,
        asked.len(),
        asked[0]
    );
    check(b, inputs, &expected(inputs), what);
}

/// A case with some tokens seen.
fn case(table: Table, x: Vec<f32>, params: SampleParams, seeded: &mut Seeded) -> Inputs {
    let x_at = x.len() - table.width;
    let seen = (0..table.rows).map(|_| (seeded.below(3) == 0) as u8).collect();
    Inputs { table, x, x_at, seen, asked: vec![(params, false)] }
}

/// Several inputs, each with parameters of its own; some of the texts have ended.
fn several_inputs<B: Backend>(b: &B) {
    for i in 0..generated("several inputs of lm_head_int8").min(120) {
        let mut seeded = Seeded::new(77_000 + i as u64);
        let m = [2, 3, 8, 9, 20, 32, 33, 64, 65, 130][i % 10];
        let (vocab, k) = (size(&mut seeded, 1200), size(&mut seeded, 300));
        let table = Table::new(ELEMENTS[i % 3], vocab, k, seeded.bits());
        let all = params(seeded.bits());
        let asked = (0..m)
            .map(|_| {
                let params = match seeded.below(3) {
                    0 => all[seeded.below(all.len())],
                    _ => asked(seeded.below(vocab + 2) as u32),
                };
                (params, seeded.below(9) == 0)
            })
            .collect();
        let seen = (0..m * vocab).map(|_| (seeded.below(3) == 0) as u8).collect();
        let mut x = seeded.floats(m * k, 2.0);
        x[(m / 2) * k] = [1.0, f32::NAN, 3e38][i / 10 % 3];
        check_case(b, &Inputs { table, x, x_at: 0, seen, asked }, "several inputs");
    }
}

/// The best, the best few, as many as are looked for, and more.
fn asked(top_k: u32) -> SampleParams {
    let temperature = if top_k == 0 { 0.0 } else { 0.8 };
    SampleParams { top_k, temperature, repetition_penalty: 1.25, ..GREEDY }
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for (i, &(vocab, k)) in TEST_SHAPES.iter().enumerate() {
        let each = ELEMENTS.into_iter().zip([0, 2, 40]).enumerate();
        for (_, (element, top_k)) in each.filter(|(j, _)| due(3 * i + j, 4)) {
            let table = Table::new(element, vocab, k, seeded.bits());
            let x_at = seeded.below(5);
            let x = seeded.floats(x_at + k, 2.0);
            check_case(b, &case(table, x, asked(top_k), &mut seeded), "listed");
        }
    }
    for top_k in [1, MAX_WANTED, MAX_WANTED + 1, 8999, 9000, 9001] {
        let table = Table::new(ELEMENTS[0], 9000, 33, 5);
        let x = seeded.floats(33, 2.0);
        check_case(b, &case(table, x, asked(top_k), &mut seeded), "listed");
    }
}

fn rows_and_inputs_without_a_bound<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, 1e-42, 3e38, 1e-20];
    for (i, value) in odd.into_iter().enumerate() {
        for element in ELEMENTS {
            let (vocab, k) = (700, 70);
            let mut table = Table::new(element, vocab, k, seeded.bits());
            let bits = Table::new(element, 1, 1, 0).bits[0]; // a subnormal
            for (row, at) in [(3, 0), (40, 69), (699, 33)] {
                table.bits[row * k + at] = match element {
                    bitnet_gpu::ops::RowType::F32 => value.to_bits(),
                    _ if value.is_nan() => 0x7fff,
                    _ if value.is_infinite() => [0x7f80, 0x7c00][(element == ELEMENTS[1]) as usize],
                    _ => bits,
                };
            }
            table.bits[50 * k..53 * k].fill(0);
            let x = seeded.floats(k, 2.0);
            let few = asked([0, 5][i % 2]);
            check_case(b, &case(table.clone(), x.clone(), few, &mut seeded), "odd rows");
            let mut one = x.clone();
            one[66] = value;
            check_case(b, &case(table.clone(), one, few, &mut seeded), "odd input");
            check_case(b, &case(table, vec![value; k], few, &mut seeded), "odd inputs");
        }
    }
    // What keeps no order is not searched.
    for (temperature, repetition_penalty) in [
        (0.0, 0.0),
        (0.0, -1.5),
        (0.0, f32::NAN),
        (f32::INFINITY, 1.0),
        (f32::NAN, 1.5),
        (1e-42, 0.3),
    ] {
        let params = SampleParams { temperature, repetition_penalty, top_k: 3, ..GREEDY };
        let table = Table::new(ELEMENTS[1], 500, 40, 3);
        let x = seeded.floats(40, 2.0);
        check_case(b, &case(table, x, params, &mut seeded), "odd parameters");
    }
}

fn generated_cases<B: Backend>(b: &B) {
    for i in 0..generated("lm_head_int8") {
        let mut seeded = Seeded::new(31_000 + i as u64);
        let (vocab, k) = (size(&mut seeded, 3000), size(&mut seeded, 600));
        let mut table = Table::new(ELEMENTS[i % 3], vocab, k, seeded.bits());
        // Equal rows: ties.
        for _ in 0..seeded.below(4) {
            let (from, to) = (seeded.below(vocab), seeded.below(vocab));
            table.bits.copy_within(from * k..(from + 1) * k, to * k);
        }
        let reach = [2.0, 1e-9, 1e9][seeded.below(3)];
        let x_at = seeded.below(2 * k);
        let x = seeded.floats(x_at + k, reach);
        let all = params(seeded.bits());
        let params = match seeded.below(3) {
            0 => all[seeded.below(all.len())],
            _ => asked(seeded.below(vocab + 2) as u32),
        };
        check_case(b, &case(table, x, params, &mut seeded), "generated");
    }
}

/// Steps of a sampler behind either head: the same tokens, and the same tokens seen.
fn tokens_are_those_of_the_plain_head<B: Backend>(b: &B) {
    let steps = repeats(6);
    for i in 0..generated("tokens of lm_head_int8").min(200) {
        let mut seeded = Seeded::new(57_000 + i as u64);
        let (vocab, k) = (size(&mut seeded, 4000), size(&mut seeded, 300));
        let host = Table::new(ELEMENTS[i % 3], vocab, k, seeded.bits());
        let mut w = Dense::alloc(b, "test", host.element, vocab, k).expect("a table");
        w.write_rows(b, 0, &host.bytes()).expect("rows");
        let table = Int8Table::new(b, &w).expect("a copy");
        let all = params(seeded.bits());
        let params = [all[i % all.len()], asked(seeded.below(vocab + 2) as u32)][i / 3 % 2];
        let inputs = seeded.floats(steps * k, 1.5);
        let mut x = b.alloc("test", inputs.len()).expect("inputs");
        b.write(&mut x, 0, &inputs).expect("inputs");
        let tokens = [false, true].map(|int8| {
            let mut sampler = SampleState::alloc(b, vocab, 1).expect("a sampler");
            b.write(&mut sampler.params, 0, &param_words(&params)).expect("parameters");
            b.write(&mut sampler.state, 0, &state_words(&StepState::default())).expect("a state");
            let mut log = b.alloc_tokens(steps).expect("a log");
            let mut input = table.input(b, 1).expect("scratch");
            let mut logits = zeros::<B, f32>(b, vocab);
            for step in 0..steps {
                let (x, x_at, w, logits) = (&x, step * k, &w, &mut logits);
                if int8 {
                    let (table, input, sampler) = (&table, &mut input, &mut sampler);
                    b.lm_head_int8(LmHeadInt8 {
                        x,
                        x_at,
                        w,
                        table,
                        input,
                        sampler,
                        row: 0,
                        logits,
                        m: 1,
                    })
                } else {
                    b.lm_head(LmHead { x, x_at, w, logits, m: 1 })
                }
                .expect("logits");
                let (sampler, out) = (&mut sampler, &mut log);
                b.sample(Sample { logits, logits_at: 0, vocab, sampler, row: 0, rows: 1, out })
                    .expect("a token");
            }
            b.synchronize().expect("the steps end");
            (0..steps).map(|step| log.get(step)).collect::<Vec<_>>()
        });
        assert_eq!(tokens[0], tokens[1], "case {i}: vocab={vocab} k={k} {params:?}");
    }
}

fn refusals<B: Backend>(b: &B) {
    let (vocab, k, x_at) = (100, 33, 5);
    let table_of = |vocab, k| {
        let mut table = Dense::<B>::alloc(b, "test", ELEMENTS[0], vocab, k).expect("a table");
        table.write_rows(b, 0, &vec![0; vocab * k * ELEMENTS[0].bytes()]).expect("zeros");
        table
    };
    let long = table_of(1, MAX_K + 1);
    refused!(dimension("k"), Int8Table::new(b, &long).map(drop));
    let w = table_of(vocab, k);
    let [table, wider, longer] = [(vocab, k), (vocab, k + 1), (vocab + 1, k)]
        .map(|(vocab, k)| Int8Table::new(b, &table_of(vocab, k)).expect("a copy"));
    let good = || SampleState::alloc(b, vocab, 1).expect("a sampler");
    let (x, few_x) = (zeros::<B, f32>(b, x_at + k), zeros::<B, f32>(b, x_at + k - 1));
    let [mut words, mut few_words] = [0, 1].map(|less| zeros::<B, u32>(b, input_words(k) - less));
    let [mut logits, mut few] = [0, 1].map(|less| zeros::<B, f32>(b, vocab - less));
    let sampler = &mut good();
    let mismatch = |error: &bitnet_gpu::ops::OpError| {
        matches!(error, bitnet_gpu::ops::OpError::Mismatch { .. })
    };
    for (x, x_at, table, is_x) in [
        (&few_x, x_at, &table, true),
        (&x, usize::MAX, &table, true),
        (&x, x_at, &wider, false),
        (&x, x_at, &longer, false),
    ] {
        let (w, input, logits) = (&w, &mut words, &mut logits);
        let op = LmHeadInt8 { x, x_at, w, table, input, sampler, row: 0, logits, m: 1 };
        match is_x {
            true => refused!(short("x"), b.lm_head_int8(op)),
            false => refused!(mismatch, b.lm_head_int8(op)),
        }
    }
    let (w, table, x) = (&w, &table, &x);
    {
        let (input, logits) = (&mut few_words, &mut logits);
        let op = LmHeadInt8 { x, x_at, w, table, input, sampler, row: 0, logits, m: 1 };
        refused!(short("input"), b.lm_head_int8(op));
    }
    {
        let (input, logits) = (&mut words, &mut few);
        let op = LmHeadInt8 { x, x_at, w, table, input, sampler, row: 0, logits, m: 1 };
        refused!(short("logits"), b.lm_head_int8(op));
    }
    for (bad, mut sampler) in [
        ("seen", SampleState::<B> { seen: zeros(b, vocab - 1), ..good() }),
        ("tops", SampleState::<B> { tops: zeros(b, vocab.div_ceil(32) - 1), ..good() }),
        ("params", SampleState::<B> { params: zeros(b, PARAM_WORDS - 1), ..good() }),
    ] {
        let (input, logits, sampler) = (&mut words, &mut logits, &mut sampler);
        let op = LmHeadInt8 { x, x_at, w, table, input, sampler, row: 0, logits, m: 1 };
        refused!(short(bad), b.lm_head_int8(op));
    }
}
