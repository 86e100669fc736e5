//! [`contract::sample`]: which token is picked, and how the sequence moves on.

use bitnet_gpu::ops::sample::{Allow, PARAM_WORDS, STATE_WORDS, Sample, SampleState, state_words};
use bitnet_gpu::ops::{Backend, TokenLog};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::sample::{GREEDY, TEST_SHAPES, allow, logits, params, sample};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::sample::Inputs;
use contract::sample::{
    MAX_STOP_IDS, ONE_WEIGHT, SHORT_LIST, SampleParams, StepState, WIDE_ROWS, weight,
};
use contract::w2a8::MAX_ROWS;

use crate::support::{
    check, dimension, due, generated, on_lane, refused, repeats, short, size, zeros,
};

on_lane! {
    listed_shapes
    greedy_ties_go_to_the_lower_index
    logits_that_are_no_numbers
    penalties_and_seen_tokens
    what_is_added_and_what_a_text_takes_off
    texts_rest_until_they_are_told
    every_filter_with_every_other
    top_k_and_top_p_keep_ties
    min_p_keeps_a_token_of_just_that_weight
    as_many_candidates_as_the_short_list_holds
    stop_ids_and_the_last_step_end_the_text
    nothing_changes_once_done
    a_short_log_is_not_overrun
    generated_steps
    draws_follow_the_weights
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let (logits, params) = (&inputs.logits[inputs.logits_at..], &inputs.params);
    let (mut marks, mut state) = (inputs.marks.clone(), inputs.state);
    let mut bias = inputs.bias.clone();
    let mut out = vec![EMPTY; inputs.log];
    for step in 0..inputs.steps {
        if step % 2 == 0 && !inputs.allowed.is_empty() {
            allow(&inputs.allowed, &mut marks, &mut state);
        }
        sample(logits, params, &mut marks, &mut bias, &mut state, &mut out);
    }
    let (rows, words) = (inputs.rows, marks.iter().map(|&mark| mark.into()).collect::<Vec<u32>>());
    let mut outputs = vec![
        Output::words("state", &[rows, 4], state_words(&state).repeat(rows)),
        Output::words("marks", &[rows, marks.len()], words.repeat(rows)),
    ];
    if !bias.is_empty() {
        outputs.push(Output::floats("bias", &[rows, marks.len()], &bias.repeat(rows)));
    }
    outputs.push(Output::words("best", &[rows, 2], vec![0; 2 * rows]));
    outputs.push(Output::words("out", &[rows, inputs.log], out.repeat(rows)));
    outputs
}

/// What an entry of a token log holds before its token is there.
const EMPTY: u32 = u32::MAX;

/// A step on `logits`; nothing was seen.
fn one(logits: Vec<f32>, params: SampleParams) -> Inputs {
    let marks = vec![0; logits.len()];
    let state = StepState { pos: 11, ..StepState::default() };
    let (bias, allowed) = (Vec::new(), Vec::new());
    Inputs { logits, logits_at: 0, params, state, marks, bias, allowed, rows: 1, steps: 1, log: 4 }
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs, what: &str) {
    let (vocab, params) = (inputs.marks.len(), inputs.params);
    check(b, inputs, &expected(inputs), format!("{what}: vocab={vocab} {params:?}"));
}

/// The token that the first step of `inputs` picks on `b`.
fn picked<B: Backend>(b: &B, inputs: &Inputs) -> u32 {
    let outputs = bitnet_gpu::selftest::run(b, inputs).expect("the step runs");
    outputs.iter().find(|o| o.tensor == "out").expect("tokens").bits[0]
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for (i, &vocab) in TEST_SHAPES.iter().enumerate() {
        for (j, params) in params(seeded.bits()).into_iter().enumerate() {
            let logits = logits(vocab, seeded.bits());
            // So many rows have a block each.
            let rows = if vocab < 5000 { WIDE_ROWS as usize + 1 } else { 2 };
            if due(i + j, 3) {
                check_case(b, &Inputs { steps: 3, rows, ..one(logits.clone(), params) }, "rows");
            }
            check_case(b, &Inputs { steps: 3, ..one(logits, params) }, "listed");
        }
    }
}

fn greedy_ties_go_to_the_lower_index<B: Backend>(b: &B) {
    for (vocab, ties) in [(1, vec![0]), (33, vec![31, 32]), (5000, vec![999, 1023, 1024, 4999])] {
        let mut logits = vec![-1.0; vocab];
        ties.iter().for_each(|&i| logits[i] = 2.5);
        let inputs = one(logits, GREEDY);
        check_case(b, &inputs, "ties");
        assert_eq!(picked(b, &inputs), ties[0] as u32);
    }
    // +0 is above -0.
    let inputs = one(vec![-0.0, -0.0, 0.0, 0.0, -0.0], GREEDY);
    check_case(b, &inputs, "zeros");
    assert_eq!(picked(b, &inputs), 2);
}

fn logits_that_are_no_numbers<B: Backend>(b: &B) {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (i, logits) in [
        vec![nan, 1.0, nan, 2.0, nan],
        vec![-inf, -inf, -3.0, -inf],
        vec![nan; 1030],
        vec![-inf; 70],
        vec![-inf, nan, -inf],
        vec![inf, 1.0, inf, nan],
        vec![-nan, f32::MIN, 1e-42, -1e-42],
    ]
    .into_iter()
    .enumerate()
    {
        for (_, params) in filters().into_iter().enumerate().filter(|(j, _)| due(i + j, 31)) {
            check_case(b, &Inputs { steps: 2, ..one(logits.clone(), params) }, "no numbers");
        }
    }
}

fn penalties_and_seen_tokens<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for penalty in [1.0, 1.3, 0.5, 1e30, -1.0, -1.3] {
        for temperature in [0.0, 0.7] {
            let params = SampleParams { repetition_penalty: penalty, temperature, ..GREEDY };
            let mut inputs = one(seeded.floats(300, 5.0), params);
            inputs.logits[17] = 0.0;
            inputs.marks = seeded.marks(300);
            // Each pick is seen by the next.
            (inputs.steps, inputs.log) = (repeats(8), 8);
            check_case(b, &inputs, "penalty");
        }
    }
}

/// A bias alone, under each penalty of the text alone, under both and under all; and no bias where tokens are marked seen.
fn what_is_added_and_what_a_text_takes_off<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(21);
    for (presence_penalty, frequency_penalty) in
        [(0.0, 0.0), (0.7, 0.0), (0.0, 0.9), (2.0, 2.0), (-2.0, -0.3), (0.0, f32::NAN)]
    {
        for repetition_penalty in [1.0, -1.0, 1.3, -1.3] {
            for (temperature, rows) in [(0.0, 1), (0.7, 2), (0.7, WIDE_ROWS as usize + 1)] {
                let params = SampleParams {
                    repetition_penalty,
                    temperature,
                    presence_penalty,
                    frequency_penalty,
                    ..GREEDY
                };
                let vocab = [40, 1100][rows % 2];
                let mut inputs = one(seeded.floats(vocab, 2.0), params);
                inputs.marks = seeded.biased_marks(vocab);
                inputs.bias = seeded.floats(vocab, 3.0);
                // Each pick lowers its own place.
                (inputs.rows, inputs.steps, inputs.log) = (rows, repeats(8), 8);
                check_case(b, &inputs, "bias");
                inputs.marks = seeded.marks(vocab);
                check_case(b, &inputs, "no bias yet");
            }
        }
    }
}

/// What may be picked is told as bits, in front of every second step: texts that rest give a token each time, others one in each step; an end stays one.
fn texts_rest_until_they_are_told<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(22);
    for (i, vocab) in [1, 31, 32, 33, 64, 2047, 2048, 2049, 5000].into_iter().enumerate() {
        for (rests, repetition_penalty) in [(1, -1.0), (0, -1.3), (7, 1.0)] {
            for (temperature, rows) in [(0.0, 1), (0.9, 2), (0.9, WIDE_ROWS as usize + 1)] {
                let params = SampleParams { repetition_penalty, temperature, rests, ..GREEDY };
                let mut inputs = one(seeded.floats(vocab, 3.0), params);
                inputs.marks = seeded.marks(vocab);
                inputs.allowed = seeded.masks(vocab);
                (inputs.rows, inputs.steps, inputs.log) = (rows, repeats(7), 8);
                check_case(b, &inputs, "masks");
                inputs.params.max_steps = 2 + i as u32 % 3;
                check_case(b, &inputs, "masks to an end");
            }
        }
    }
}

/// Every filter alone and with every other, drawn at two temperatures and greedy.
fn filters() -> Vec<SampleParams> {
    let mut list = Vec::new();
    for temperature in [0.0, 0.8, 5.0] {
        for top_k in [0, 1, 3, 50, 100_000] {
            for top_p in [0.0, 0.1, 0.9, 1.0f64] {
                for min_weight in [0, ONE_WEIGHT / 20, ONE_WEIGHT] {
                    let top_p_q32 = (top_p * 4_294_967_296.0) as u64;
                    list.push(SampleParams { temperature, top_k, top_p_q32, min_weight, ..GREEDY });
                }
            }
        }
    }
    list
}

fn every_filter_with_every_other<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(3);
    for (i, params) in filters().into_iter().enumerate().filter(|&(i, _)| due(i, 7)) {
        let vocab = [1, 40, 1025, 3000][i % 4];
        let params = SampleParams { seed: seeded.bits(), ..params };
        let inputs = one(seeded.floats(vocab, 6.0), params);
        check_case(b, &Inputs { steps: 4, ..inputs }, "filters");
    }
}

fn top_k_and_top_p_keep_ties<B: Backend>(b: &B) {
    // Five of the best, four of the next: k = 3 keeps five, k = 6 nine, p = 0.2 five.
    let logits: Vec<f32> = (0..2000)
        .map(|i| match i % 400 {
            7 => 3.0,
            9 if i > 400 => 2.0,
            _ => -4.0,
        })
        .collect();
    for (top_k, top_p_q32, kept) in [(3, 1 << 32, 5), (6, 1 << 32, 9), (0, 858_993_459, 5)] {
        let mut tokens = std::collections::BTreeSet::new();
        let draws = repeats(60);
        for seed in 0..draws as u64 {
            let params = SampleParams { seed, temperature: 1.0, top_k, top_p_q32, ..GREEDY };
            let inputs = one(logits.clone(), params);
            check_case(b, &inputs, "ties at the threshold");
            tokens.insert(picked(b, &inputs));
        }
        let allowed: Vec<u32> = match kept {
            5 => (0..5).map(|i| 400 * i + 7).collect(),
            _ => (0..5).map(|i| 400 * i + 7).chain((1..5).map(|i| 400 * i + 9)).collect(),
        };
        assert!(tokens.iter().all(|t| allowed.contains(t)), "{tokens:?} of {allowed:?}");
        let enough = draws < 60 || tokens.len() > kept / 2;
        assert!(enough, "only {tokens:?} of {kept} in {draws} draws");
    }
}

fn min_p_keeps_a_token_of_just_that_weight<B: Backend>(b: &B) {
    let logits = vec![1.0, 0.5, 0.4999, -8.0, 0.5];
    let least = weight(0.5, 1.0);
    for (min_weight, kept) in [(least, &[0, 1, 4][..]), (least + 1, &[0])] {
        let mut tokens = std::collections::BTreeSet::new();
        let draws = repeats(60);
        for seed in 0..draws as u64 {
            let params = SampleParams { seed, temperature: 1.0, min_weight, ..GREEDY };
            let inputs = one(logits.clone(), params);
            check_case(b, &inputs, "at the bar");
            tokens.insert(picked(b, &inputs));
        }
        assert!(tokens.iter().all(|token| kept.contains(token)), "{tokens:?} of {kept:?}");
        assert!(draws < 60 || tokens.len() == kept.len(), "{tokens:?} of {kept:?}");
    }
}

/// Candidates far above the rest: one fewer than the list of the kernel holds, as many, and more;
/// side by side and apart.
fn as_many_candidates_as_the_short_list_holds<B: Backend>(b: &B) {
    let (vocab, full) = (20_000, SHORT_LIST as usize);
    for (i, candidates) in [full - 1, full, full + 1].into_iter().enumerate() {
        for (_, apart) in [1, 32, 39].into_iter().enumerate().filter(|(j, _)| due(i + j, 2)) {
            let mut logits = vec![-60.0; vocab];
            (0..candidates).for_each(|i| logits[i * apart] = 3.0 + (i % 5) as f32 * 0.25);
            for (top_k, top_p) in [(0, 1.0), (0, 0.5), (40, 1.0), (candidates as u32 + 1, 0.9f64)] {
                let top_p_q32 = (top_p * 4_294_967_296.0) as u64;
                let params = SampleParams { temperature: 1.0, top_k, top_p_q32, ..GREEDY };
                check_case(b, &Inputs { steps: 3, ..one(logits.clone(), params) }, "short list");
            }
        }
    }
}

fn stop_ids_and_the_last_step_end_the_text<B: Backend>(b: &B) {
    let mut logits = vec![0.0; 100];
    logits[42] = 1.0;
    for stop_len in [0, 1, 5, MAX_STOP_IDS as u32] {
        // The stop stands last; entries past `stop_len` are not looked at.
        let mut stop_ids = [42; MAX_STOP_IDS];
        stop_ids[..stop_len as usize].fill(41);
        if let Some(last) = stop_len.checked_sub(1) {
            stop_ids[last as usize] = 42;
        }
        let params = SampleParams { stop_len, stop_ids, ..GREEDY };
        check_case(b, &Inputs { steps: 3, ..one(logits.clone(), params) }, "stop ids");
    }
    for max_steps in [0, 1, 2, 3, 4] {
        let params = SampleParams { max_steps, ..GREEDY };
        check_case(b, &Inputs { steps: 4, ..one(logits.clone(), params) }, "last step");
    }
}

fn nothing_changes_once_done<B: Backend>(b: &B) {
    let params = SampleParams { temperature: 1.0, ..GREEDY };
    for done in [1, 2, u32::MAX] {
        let mut inputs = one(Seeded::new(4).floats(2000, 3.0), params);
        inputs.state = StepState { pos: 5, token: 77, step: 2, done };
        inputs.steps = 3;
        check_case(b, &inputs, "done");
    }
}

fn a_short_log_is_not_overrun<B: Backend>(b: &B) {
    for log in [1, 2, 5] {
        let mut inputs = one(Seeded::new(5).floats(50, 3.0), GREEDY);
        (inputs.log, inputs.steps) = (log, 4);
        check_case(b, &inputs, "short log");
        inputs.state.step = u32::MAX - 1;
        inputs.steps = 1;
        check_case(b, &inputs, "late step");
    }
}

fn generated_steps<B: Backend>(b: &B) {
    for i in 0..generated("sample") {
        let mut seeded = Seeded::new(11_000 + i as u64);
        let vocab = size(&mut seeded, 6000);
        let logits_at = seeded.below(5);
        // Few distinct values make ties everywhere.
        let levels = [3.0, 20.0, 1e6][i % 3];
        let mut logits = seeded.floats(logits_at + vocab, 8.0);
        logits.iter_mut().for_each(|x| *x = (*x * levels).round() / levels);
        if i % 5 == 0 {
            logits[logits_at + seeded.below(vocab)] = f32::NAN;
        }
        let params = SampleParams {
            seed: seeded.bits(),
            temperature: [0.0, 0.4, 1.0, 3.0][seeded.below(4)],
            top_k: [0, 1, 7, 40, 1000][seeded.below(5)],
            top_p_q32: [1 << 32, 4_080_218_931, 2 << 30, 1][seeded.below(4)],
            min_weight: [0, 1, ONE_WEIGHT / 10, ONE_WEIGHT / 2][seeded.below(4)],
            repetition_penalty: [1.0, 1.1, 2.0, -1.0, -2.0][seeded.below(5)],
            ..GREEDY
        };
        let marks = seeded.marks(vocab);
        let state = StepState { pos: 3, token: 1, step: seeded.below(100) as u32, done: 0 };
        let rows = [1, 1, 1, WIDE_ROWS as usize + 1][i % 4];
        let (bias, allowed, steps, log) = (Vec::new(), Vec::new(), 6, 106);
        let mut inputs =
            Inputs { logits, logits_at, params, state, marks, bias, allowed, rows, steps, log };
        if i % 3 == 0 {
            inputs.marks = seeded.biased_marks(vocab);
            inputs.bias = seeded.floats(vocab, 8.0);
            inputs.params.presence_penalty = [0.0, 0.5, -1.0][seeded.below(3)];
            inputs.params.frequency_penalty = [0.0, 0.1, 2.0][seeded.below(3)];
        }
        if i % 4 == 1 {
            let words = seeded.masks(vocab);
            inputs.allowed = words;
            inputs.params.rests = seeded.below(2) as u32;
        }
        check_case(b, &inputs, "generated");
    }
}

/// 10,000 draws from known odds: each count within five standard deviations.
fn draws_follow_the_weights<B: Backend>(b: &B) {
    let odds = [0.5f64, 0.25, 0.15, 0.07, 0.03];
    let logits: Vec<f32> = odds.iter().map(|p| p.ln() as f32).collect();
    let draws = repeats(10_000);
    let params = SampleParams { temperature: 1.0, ..GREEDY };
    let inputs = Inputs { steps: draws, log: draws, ..one(logits, params) };
    let outputs = bitnet_gpu::selftest::run(b, &inputs).expect("the steps run");
    let tokens = &outputs.iter().find(|o| o.tensor == "out").expect("tokens").bits;
    for (token, p) in odds.iter().enumerate() {
        let count = tokens.iter().filter(|&&t| t == token as u32).count() as f64;
        let (mean, sigma) = (p * draws as f64, (p * (1.0 - p) * draws as f64).sqrt());
        assert!((count - mean).abs() < 5.0 * sigma, "token {token}: {count}, expected {mean}");
    }
}

fn refusals<B: Backend>(b: &B) {
    let (vocab, logits_at, row, rows) = (100, 3, 0, 1);
    let (logits, few) = (&zeros::<B, f32>(b, 103), &zeros::<B, f32>(b, 102));
    let out = &mut b.alloc_tokens(4).expect("a log");
    let good = || SampleState::alloc(b, vocab, 1).expect("a sampler");
    let sampler = &mut good();
    for vocab in [0, MAX_ROWS + 1] {
        refused!(
            dimension("vocab"),
            b.sample(Sample { logits, logits_at, vocab, sampler, row, rows, out })
        );
        refused!(dimension("vocab"), SampleState::alloc(b, vocab, 1).map(drop));
    }
    refused!(
        short("logits"),
        b.sample(Sample { logits: few, logits_at, vocab, sampler, row, rows, out })
    );
    let far = usize::MAX;
    refused!(
        short("logits"),
        b.sample(Sample { logits, logits_at: far, vocab, sampler, row, rows, out })
    );
    for (bad, mut sampler) in [
        ("marks", SampleState::<B> { marks: zeros(b, vocab - 1), ..good() }),
        ("adjusted", SampleState::<B> { adjusted: zeros(b, vocab - 1), ..good() }),
        ("tops", SampleState::<B> { tops: zeros(b, vocab.div_ceil(32) - 1), ..good() }),
        ("state", SampleState::<B> { state: zeros(b, STATE_WORDS - 1), ..good() }),
        ("params", SampleState::<B> { params: zeros(b, PARAM_WORDS - 1), ..good() }),
        ("best", SampleState::<B> { best: zeros(b, 0), ..good() }),
    ] {
        let sampler = &mut sampler;
        refused!(
            short(bad),
            b.sample(Sample { logits, logits_at, vocab, sampler, row, rows, out })
        );
    }
    assert!((0..4).all(|step| out.get(step) == EMPTY));

    let words = vocab.div_ceil(32);
    let (rows, allowed) = (&zeros::<B, u32>(b, 2), &zeros::<B, u32>(b, 2 * words));
    let few = &zeros::<B, u32>(b, 2 * words - 1);
    refused!(dimension("vocab"), b.allow(Allow { sampler, rows, allowed, vocab: 0, masks: 1 }));
    refused!(dimension("masks"), b.allow(Allow { sampler, rows, allowed, vocab, masks: 0 }));
    refused!(dimension("masks"), b.allow(Allow { sampler, rows, allowed, vocab, masks: 65_536 }));
    refused!(short("rows"), b.allow(Allow { sampler, rows, allowed, vocab, masks: 3 }));
    refused!(short("allowed"), b.allow(Allow { sampler, rows, allowed: few, vocab, masks: 2 }));
    let sampler = &mut SampleState::<B> { marks: zeros(b, vocab - 1), ..good() };
    refused!(short("marks"), b.allow(Allow { sampler, rows, allowed, vocab, masks: 2 }));
}
