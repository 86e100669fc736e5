//! [`contract::lm_head_int8`]: the copy, what is kept of an input, which rows are computed, and the tokens.

use bitnet_gpu::ops::lm_head::LmHead;
use bitnet_gpu::ops::lm_head_int8::{HeadNorm, Int8Table, LmHeadInt8};
use bitnet_gpu::ops::sample::{PARAM_WORDS, Sample, SampleState, param_words, state_words};
use bitnet_gpu::ops::{Backend, Dense, RowType, TokenLog};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::embed::ELEMENTS;
use bitnet_gpu::reference::lm_head::lm_head;
use bitnet_gpu::reference::lm_head_int8::{
    TEST_SHAPES, input, input_of, lm_head_int8, pack, padded,
};
use bitnet_gpu::reference::rmsnorm::{self, rmsnorm};
use bitnet_gpu::reference::sample::{GREEDY, params, sample};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::embed::Table;
use bitnet_gpu::selftest::lm_head_int8::{ANY, EPS, Inputs, Norm, leaves, stays};
use contract::lm_head_int8::{LIST_ROWS, MAX_K, MAX_WANTED, digit_words, input_words, row_bytes};
use contract::sample::{
    ONE_WEIGHT, SampleParams, StepState, adjusted_len, counted, has_bias, penalise, temper,
};

use crate::support::{
    check, dimension, due, generated, on_lane, refused, repeats, short, size, zeros,
};

on_lane! {
    listed_shapes
    rows_and_inputs_without_a_bound
    several_inputs
    every_logit_of_several_inputs
    logits_that_stay
    long_lists_and_rows
    generated_cases
    tokens_are_those_of_the_plain_head
    refusals
}

/// What a log has where no token is.
const EMPTY: u32 = u32::MAX;

/// The step by the plain head; of what tokens are drawn from, which rows decide, where that is left.
fn expected(inputs: &Inputs) -> Vec<Output> {
    let Inputs { table, norm, asked, .. } = inputs;
    let (k, vocab, m) = (table.width, table.rows, asked.len());
    let copy = pack(table);
    let bytes: Vec<u32> = padded(&copy.values, k).into_iter().map(u32::from).collect();
    let all = match norm {
        Some(Norm { delta, weight }) => {
            let delta = (!delta.is_empty()).then(|| delta.clone());
            let (x, weight, element) = (inputs.x.clone(), weight.clone(), RowType::F32);
            rmsnorm(&rmsnorm::Case { element, m, k, x, delta, weight, eps: EPS }).1
        }
        None => inputs.x.clone(),
    };
    let len = adjusted_len(vocab as u32) as usize;
    let (mut words, mut drawn, mut states) = (Vec::new(), Vec::new(), Vec::new());
    let (mut marks, mut tokens, mut kept) = (inputs.marks.clone(), Vec::new(), Vec::new());
    let mut bias = inputs.bias.clone();
    let mut of_rows = bias.chunks_mut(vocab);
    let rows = all[inputs.x_at..].chunks(k).zip(marks.chunks_mut(vocab));
    for ((x, marks), (params, ended)) in rows.zip(asked) {
        let (p, stats) = input(x);
        let bias = of_rows.next().filter(|_| inputs.every).unwrap_or_default();
        words.extend(input_of(&p, stats));
        let mut row = vec![ANY; len];
        if leaves(params, stats, [vocab, k, m]) && !ended {
            let logits = lm_head_int8(table, x, marks, params);
            for (v, x) in row[..vocab].iter_mut().enumerate() {
                let penalty = params.repetition_penalty;
                let penalised = penalise(logits[v], counted(marks[v], penalty), penalty);
                let added = bias.get(v).filter(|_| has_bias(marks[v], penalty));
                *x = temper(added.map_or(penalised, |bias| penalised + bias), params.temperature);
            }
        }
        drawn.extend(row);
        let mut state = StepState { done: u32::from(*ended), ..StepState::default() };
        let (logits, mut out) = (lm_head(table, x, 1), [EMPTY]);
        sample(&logits, params, marks, bias, &mut state, &mut out);
        let stay = stays(params, stats, vocab) && !ended;
        kept.extend(if stay { logits } else { vec![ANY; vocab] });
        states.extend(state_words(&state));
        tokens.extend(out);
    }
    let mut outputs = vec![
        Output::words("bytes", &[vocab, row_bytes(k)], bytes),
        Output::floats("rows", &[vocab, 4], copy.rows.as_flattened()),
        Output::floats("x", &[all.len()], &all),
        Output::words("input", &[m, digit_words(k)], words),
        Output::floats("adjusted", &[m, len], &drawn),
        Output::words("state", &[m, 4], states),
        Output::words("marks", &[m, vocab], marks.into_iter().map(u32::from).collect()),
        Output::words("best", &[m, 2], vec![0; 2 * m]),
    ];
    if inputs.every {
        outputs.push(Output::floats("logits", &[m, vocab], &kept));
    }
    if !bias.is_empty() {
        outputs.push(Output::floats("bias", &[m, vocab], &bias));
    }
    outputs.push(Output::words("out", &[m], tokens));
    outputs
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

/// A case with some tokens seen and some forbidden.
fn case(table: Table, x: Vec<f32>, params: SampleParams, seeded: &mut Seeded) -> Inputs {
    let x_at = x.len() - table.width;
    let marks = seeded.marks(table.rows);
    Inputs { x_at, ..plain(table, x, None, marks, vec![(params, false)]) }
}

/// Inputs without a bias.
fn plain(
    table: Table,
    x: Vec<f32>,
    norm: Option<Norm>,
    marks: Vec<u8>,
    asked: Vec<(SampleParams, bool)>,
) -> Inputs {
    Inputs { table, x, x_at: 0, norm, marks, asked, bias: Vec::new(), every: false }
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
                let params = match seeded.below(4) {
                    0 => all[seeded.below(all.len())],
                    1 => weighing(seeded.below(3) as u32, ONE_WEIGHT >> seeded.below(32)),
                    _ => asked(seeded.below(vocab + 2) as u32),
                };
                (params, seeded.below(9) == 0)
            })
            .collect();
        let marks = seeded.marks(m * vocab);
        let mut x = seeded.floats(m * k, 2.0);
        x[(m / 2) * k] = [1.0, f32::NAN, 3e38][i / 10 % 3];
        let norm = (i % 3 == 1).then(|| norm_of(m, k, &mut seeded));
        check_case(b, &plain(table, x, norm, marks, asked), "several inputs");
    }
}

/// Inputs that need every logit among others, fewer and more than are made together, of tables that tiles end and do not end with.
fn every_logit_of_several_inputs<B: Backend>(b: &B) {
    // Inputs, of which so many need every logit, rows, elements.
    let shapes = [
        (3, 3, 17, 256),
        (5, 2, 40, 300),
        (9, 8, 131, 70),
        (20, 16, 8, 513),
        (33, 17, 301, 33),
        (40, 40, 16, 1),
        (70, 35, 90, 260),
        (4, 4, 30, 3073),
        (3, 3, 20, 6145),
    ];
    for (i, (m, needing, vocab, k)) in shapes.into_iter().enumerate() {
        let mut seeded = Seeded::new(91_000 + i as u64);
        let table = Table::new(ELEMENTS[i % 3], vocab, k, seeded.bits());
        // They are spread among the others; some of both kinds have ended.
        let asked = (0..m).map(|row| {
            let needs = row * needing % m < needing;
            let temperature = [0.7, f32::INFINITY][usize::from(row % 7 == 3)];
            let every =
                SampleParams { temperature, repetition_penalty: 1.0 + (row % 2) as f32, ..GREEDY };
            let few = asked([0, 1, 3][row % 3].min(vocab as u32 - 1));
            (if needs { every } else { few }, needing > 8 && row % 11 == 5)
        });
        let asked = asked.collect();
        let marks = seeded.marks(m * vocab);
        let mut x = seeded.floats(m * k, 2.0);
        if i % 2 == 1 {
            x[(m - 1) * k] = f32::NAN;
        }
        check_case(b, &plain(table, x, None, marks, asked), "every logit");
    }
}

/// Inputs whose logits stay in memory, with a bias and without, one alone among others and all of them, by the kernel that picks in clusters too.
fn logits_that_stay<B: Backend>(b: &B) {
    for i in 0..generated("logits that stay of lm_head_int8").min(120) {
        let mut seeded = Seeded::new(88_000 + i as u64);
        let m = [2, 3, 8, 9, 20, 33, 64, 70][i % 8];
        let (vocab, k) = (7 + size(&mut seeded, 1200), size(&mut seeded, 300));
        let table = Table::new(ELEMENTS[i % 3], vocab, k, seeded.bits());
        let w = Dense::<B>::alloc(b, "test", table.element, vocab, k).expect("a table");
        if !b.keeps_logits(&w, m) {
            return; // no tiles
        }
        let needing = [1, 2, m / 2, m][i / 8 % 4];
        let asked = (0..m).map(|row| {
            let needs = row * needing % m < needing;
            let few = asked([0, 1, 3][row % 3].min(vocab as u32 - 1));
            let lowers = [0.0, 0.7][seeded.below(2)];
            let params =
                SampleParams { presence_penalty: lowers, frequency_penalty: -lowers, ..few };
            let ended = seeded.below(12) == 0;
            (
                if needs {
                    SampleParams { repetition_penalty: -1.1, every: 1, ..params }
                } else {
                    few
                },
                ended,
            )
        });
        let asked: Vec<_> = asked.collect();
        let marks = seeded.biased_marks(m * vocab);
        let mut x = seeded.floats(m * k, 2.0);
        x[(m / 2) * k] = [1.0, f32::NAN, 3e38][i % 3];
        let norm = (i % 4 == 1).then(|| norm_of(m, k, &mut seeded));
        let bias = seeded.floats(m * vocab, 3.0);
        // Where they do not stay, there is no bias.
        let every = i % 5 != 4;
        let inputs = Inputs { table, x, x_at: 0, norm, marks, asked, bias, every };
        check_case(b, &inputs, "logits that stay");
    }
}

/// A norm, now and then with something to add.
fn norm_of(m: usize, k: usize, seeded: &mut Seeded) -> Norm {
    let len = seeded.below(2) * m * k;
    Norm { delta: seeded.floats(len, 1.0), weight: seeded.floats(k, 2.0) }
}

/// Longer lists than there is room for, of equal rows; rows of every length around those that the kernels take, with a norm.
fn long_lists_and_rows<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(3);
    for (i, m) in [1, 3, 20, 40].into_iter().enumerate() {
        let (vocab, k) = (LIST_ROWS as usize + 700, 5);
        let mut table = Table::new(ELEMENTS[i % 3], vocab, k, seeded.bits());
        for row in 100..vocab {
            table.bits.copy_within(3 * k..4 * k, row * k);
        }
        let x = seeded.floats(m * k, 2.0);
        let marks = seeded.marks(m * vocab);
        let of = |i: usize| if i.is_multiple_of(2) { GREEDY } else { asked(0) };
        let asked = (0..m).map(|i| (of(i), false)).collect();
        check_case(b, &plain(table, x, None, marks, asked), "equal rows");
    }
    for (i, k) in [511, 512, 2561, 4096, 4101, 65_536, 65_537].into_iter().enumerate() {
        let (vocab, m) = (67, if k < 5000 { 1 + i % 3 } else { 1 });
        let table = Table::new(ELEMENTS[i % 3], vocab, k, seeded.bits());
        let x = seeded.floats(m * k, 2.0);
        let marks = vec![0; m * vocab];
        let params = [GREEDY, asked(0), asked(3)];
        let asked = (0..m).map(|row| (params[(i + row) % 3], false)).collect();
        let norm = Some(norm_of(m, k, &mut seeded));
        check_case(b, &plain(table, x, norm, marks, asked), "long rows");
    }
}

/// The best, the best few, as many as are looked for, and more.
fn asked(top_k: u32) -> SampleParams {
    let temperature = if top_k == 0 { 0.0 } else { 0.8 };
    SampleParams { top_k, temperature, repetition_penalty: 1.25, ..GREEDY }
}

/// What weighs enough beside the best, and as many as are looked for.
fn weighing(top_k: u32, least: u32) -> SampleParams {
    SampleParams { min_weight: least, temperature: 0.8, top_k, ..GREEDY }
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
    for (i, least) in [1, 3 << 12, ONE_WEIGHT / 20, ONE_WEIGHT].into_iter().enumerate() {
        for top_k in [0, 7, MAX_WANTED + 1] {
            let table = Table::new(ELEMENTS[i % 3], 9000, 33, 5);
            let x = seeded.floats(33, 2.0);
            check_case(b, &case(table, x, weighing(top_k, least), &mut seeded), "least weight");
        }
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
        let params = match seeded.below(4) {
            0 => all[seeded.below(all.len())],
            1 => weighing(seeded.below(3) as u32, ONE_WEIGHT >> seeded.below(32)),
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
        let weighing = weighing(0, ONE_WEIGHT >> seeded.below(32));
        let few = asked(seeded.below(vocab + 2) as u32);
        let params = [all[i % all.len()], few, weighing][i / 3 % 3];
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
                let (x_at, w, logits) = (step * k, &w, &mut logits);
                let (sampler, out) = (&mut sampler, &mut log);
                if int8 {
                    let (table, input, norm, x) = (&table, &mut input, None, &mut x);
                    let (row, bounds, every, m) = (0, logits, false, 1);
                    #[rustfmt::skip]
                    let op = LmHeadInt8 { norm, x, x_at, w, table, input, sampler, row, bounds, every, out, m };
                    b.lm_head_int8(op).expect("a token");
                } else {
                    b.lm_head(LmHead { x: &x, x_at, w, logits, m: 1 }).expect("logits");
                    b.sample(Sample { logits, logits_at: 0, vocab, sampler, row: 0, rows: 1, out })
                        .expect("a token");
                }
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
    let [mut x, mut few_x] = [0, 1].map(|less| zeros::<B, f32>(b, x_at + k - less));
    let words = input_words(k, vocab as u32);
    let [mut input, mut few_input] = [0, 1].map(|less| zeros::<B, u32>(b, words - less));
    let [mut bounds, mut few_bounds] = [0, 1].map(|less| zeros::<B, f32>(b, vocab - less));
    let mut log = b.alloc_tokens(1).expect("a log");
    let sampler = &mut good();
    let mismatch = |error: &bitnet_gpu::ops::OpError| {
        matches!(error, bitnet_gpu::ops::OpError::Mismatch { .. })
    };
    macro_rules! refuse {
        ($what:expr; $($field:ident: $value:expr),*) => {{
            let op = LmHeadInt8 {
                norm: None,
                x: &mut x,
                x_at,
                w: &w,
                table: &table,
                input: &mut input,
                sampler: &mut *sampler,
                row: 0,
                bounds: &mut bounds,
                every: false,
                out: &mut log,
                m: 1,
            };
            let op = LmHeadInt8 { $($field: $value,)* ..op };
            refused!($what, b.lm_head_int8(op));
        }};
    }
    refuse!(short("x"); x: &mut few_x);
    refuse!(short("x"); x_at: usize::MAX);
    refuse!(mismatch; table: &wider);
    refuse!(mismatch; table: &longer);
    refuse!(short("input"); input: &mut few_input);
    refuse!(short("bounds"); bounds: &mut few_bounds);
    if !b.keeps_logits(&w, 1) {
        refuse!(dimension("m"); every: true);
    }
    let (mut h, weight) = (zeros::<B, f32>(b, k), zeros::<B, f32>(b, k));
    let (mut few_h, few_weight) = (zeros::<B, f32>(b, k - 1), zeros::<B, f32>(b, k - 1));
    let eps = 1e-5;
    refuse!(dimension("x_at"); norm: Some(HeadNorm { h: &mut h, delta: None, weight: &weight, eps }));
    for (what, h, delta, weight) in
        [("h", &mut few_h, None, &weight), ("delta", &mut h, Some(&few_weight), &weight)]
    {
        refuse!(short(what); x_at: 0, norm: Some(HeadNorm { h, delta, weight, eps }));
    }
    refuse!(short("weight"); x_at: 0, norm: Some(HeadNorm { h: &mut h, delta: None, weight: &few_weight, eps }));
    for (bad, mut sampler) in [
        ("marks", SampleState::<B> { marks: zeros(b, vocab - 1), ..good() }),
        ("adjusted", SampleState::<B> { adjusted: zeros(b, vocab - 1), ..good() }),
        ("tops", SampleState::<B> { tops: zeros(b, vocab.div_ceil(32) - 1), ..good() }),
        ("params", SampleState::<B> { params: zeros(b, PARAM_WORDS - 1), ..good() }),
    ] {
        refuse!(short(bad); sampler: &mut sampler);
    }
}
