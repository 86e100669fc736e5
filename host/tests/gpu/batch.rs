//! Batches: whatever decodes beside it, a sequence has the bits that it has alone, in plain CPU code on one
//! thread.
//!
//! Sequences of several lengths, with parameters of their own, come and go between steps; slots and pages
//! change hands. Compared are all tokens, and the logits behind every step.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use bitnet_gpu::checkpoint::Checkpoint;
use bitnet_gpu::cpu::{CpuBackend, CpuOptions, Simd};
use bitnet_gpu::device_choice::BackendChoice;
use bitnet_gpu::model::{
    Batch, BatchOptions, HeadKind, Model, ModelError, PAGE_SIZE, Sequence, SequenceOptions,
};
use bitnet_gpu::ops::attention_paged::PageType;
use bitnet_gpu::ops::{Backend, OpError, RowType, TokenLog};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::sample::GREEDY;
use bitnet_gpu::session::{Finish, KvType, Math, Session, SessionError};
use bitnet_gpu::text::SamplingParams;
use contract::sample::{ONE_WEIGHT, SampleParams};

use crate::lane;
use crate::model::files;
use crate::support::{due, repeats};

/// Positions of the longest sequence: no multiple of a page.
pub(crate) const CAPACITY: usize = 213;
/// Sequences at once: fewer than there are, and no size that steps are recorded for.
const MAX_BATCH: usize = 5;
/// Pages of the pool: too few for five of the longest sequences.
const PAGES: usize = 14;

/// A sequence, and what it gives alone.
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) params: SampleParams,
    /// Taken out after so many tokens.
    pub(crate) removed_after: usize,
    pub(crate) tokens: Vec<u32>,
    /// Bits of the logits from which each token was picked.
    pub(crate) logits: Vec<Vec<u32>>,
}

/// `(prompt, tokens asked for, removed after, parameters)`.
fn requests(vocab: usize) -> Vec<Request> {
    let sampled = SampleParams {
        seed: 7,
        temperature: 0.9,
        top_k: 40,
        top_p_q32: 4_080_218_931,
        min_weight: ONE_WEIGHT / 100,
        repetition_penalty: 1.1,
        ..GREEDY
    };
    let few = SampleParams { seed: 8, top_p_q32: 1 << 32, min_weight: 0, top_k: 5, ..sampled };
    let all = SampleParams { seed: 9, top_k: 0, ..few };
    let lowered = SampleParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..sampled };
    let mut seeded = Seeded::new(5);
    [
        (1, 90, 90, GREEDY),
        (70, 66, 66, sampled),
        (40, 200, 30, few),
        (63, 4, 4, GREEDY),
        (129, 300, 300, all), // until the context is full
        (64, 70, 70, sampled),
        (5, 1, 1, GREEDY),
        (100, 12, 5, all),
        (20, 50, 50, lowered),
        (33, 33, 33, GREEDY),
    ]
    .into_iter()
    .map(|(len, steps, removed, params)| Request {
        prompt: (0..repeats(len)).map(|_| seeded.below(vocab) as u32).collect(),
        params: SampleParams { max_steps: repeats(steps) as u32, ..params },
        removed_after: repeats(removed),
        tokens: Vec::new(),
        logits: Vec::new(),
    })
    .collect()
}

pub(crate) fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Runs every request alone.
pub(crate) fn truth(
    checkpoint: &Checkpoint,
    kv: RowType,
    mut requests: Vec<Request>,
) -> Vec<Request> {
    let options = CpuOptions { threads: Some(1), simd: Some(Simd::SCALAR) };
    let backend = CpuBackend::open(options).expect("a CPU");
    let model = Model::load(backend, checkpoint, &mut |_| {}).expect("the model loads");
    let options = SequenceOptions { capacity: CAPACITY, kv, chunk: 64, one_kernel: true };
    let mut sequence = Sequence::new(&model, options).expect("a sequence");
    for request in &mut requests {
        let Request { prompt, params, tokens, logits, .. } = request;
        let backend = model.backend();
        sequence.begin(backend, prompt, params).expect("a beginning");
        model.prefill(&mut sequence, prompt, 0).expect("a prefill");
        let limit = (CAPACITY - prompt.len() + 1).min(params.max_steps as usize);
        loop {
            logits.push(bits(&sequence.read_logits(backend).expect("logits")));
            model.sample(&mut sequence).expect("a token");
            tokens.push(sequence.tokens().get(tokens.len()));
            if tokens.len() == limit {
                break;
            }
            let pos = prompt.len() + tokens.len() - 1;
            let last = tokens[tokens.len() - 1];
            // The sampler moved the sequence on; its logits are wanted before the next token is picked.
            model.prefill(&mut sequence, &[last], pos).expect("a step");
        }
        if request.params.temperature == 0.0 && request.tokens.len() > 20 {
            // A text that the model ends.
            request.params.stop_ids[0] = request.tokens[20];
            request.params.stop_len = 1;
            let first = request.tokens.iter().position(|&t| t == request.tokens[20]);
            request.tokens.truncate(first.expect("it is there") + 1);
        }
        request.tokens.truncate(request.removed_after);
    }
    requests
}

/// Sequences in a batch, as somebody who serves them would run it.
fn check_batch<B: Backend>(
    model: &Model<B>,
    requests: &[Request],
    kv: PageType,
    record: bool,
    what: &str,
) {
    let backend = model.backend();
    let options = BatchOptions {
        max_batch: MAX_BATCH,
        capacity: CAPACITY,
        pages: PAGES,
        kv,
        chunk: 48,
        prompt_share: 48,
        prefix_cache: true,
        one_kernel: true,
        draft_rows: 0,
    };
    let mut batch = Batch::new(model, options).expect("a batch");
    let mut waiting: VecDeque<usize> = (0..requests.len()).collect();
    // (slot, request, tokens seen)
    let mut running: Vec<(usize, usize, usize)> = Vec::new();
    let (mut step, mut refused, mut at_once) = (0, [0; 2], 0);
    while !(waiting.is_empty() && running.is_empty()) {
        // One comes every third step, as soon as there is room.
        if let Some(&next) = waiting.front().filter(|_| step % 3 == 0 || running.is_empty()) {
            let Request { prompt, params, .. } = &requests[next];
            let before = (batch.len(), batch.pages());
            let admitted = model.admit(&mut batch, prompt, params);
            let changed = before != (batch.len(), batch.pages());
            assert_eq!(changed, admitted.is_ok(), "{what}: a refusal changes nothing");
            match admitted {
                Ok(slot) => {
                    waiting.pop_front();
                    running.push((slot, next, 0));
                }
                Err(ModelError::BatchFull { max_batch: MAX_BATCH }) => refused[0] += 1,
                Err(ModelError::PagesFull { needed, free, total: PAGES }) if needed > free => {
                    refused[1] += 1;
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
        at_once = at_once.max(running.len());
        model.decode_batch(&mut batch, record).expect("a step");
        backend.synchronize().expect("the step ends");
        let mut gone = Vec::new();
        for (slot, request, seen) in &mut running {
            let expected = &requests[*request];
            let queued = batch.queued(*slot);
            assert_eq!(batch.waits(*slot), queued == 0, "{what}, request {request}");
            let before = std::mem::replace(seen, queued.min(expected.tokens.len()));
            for at in before..*seen {
                let what = format!("{what}, request {request}, token {at}");
                assert_eq!(batch.token(*slot, at), expected.tokens[at], "{what}");
            }
            // The first token is not picked in a step.
            if queued > 1 && *seen == queued && before < queued {
                let found = batch.read_logits(backend, *slot);
                let what = format!("{what}, request {request}, step {seen}");
                match found {
                    // Also where a bias beside it asks for the stored head.
                    Ok(found) => {
                        let (found, expected) = (bits(&found), &expected.logits[queued - 1]);
                        let differ = |i: &usize| found[*i] != expected[*i];
                        if let Some(i) = (0..found.len()).find(differ) {
                            panic!("{what}: logit {i} differs");
                        }
                    }
                    Err(error) => {
                        assert!(matches!(error, OpError::NoLogits { .. }), "{what}: {error}");
                        assert_eq!(model.head_kind(), HeadKind::Int8, "{what}");
                    }
                }
            }
            if *seen == expected.tokens.len() {
                gone.push(*slot);
            }
        }
        for slot in gone {
            assert!(batch.remove(backend, slot).expect("it goes"), "{what}: slot {slot}");
            assert!(!batch.remove(backend, slot).expect("it is gone"), "{what}: slot {slot}");
            running.retain(|run| run.0 != slot);
        }
        assert_eq!(batch.len(), running.len());
        step += 1;
    }
    let pages = batch.pages();
    assert_eq!(pages.in_use, 0, "{what}");
    assert!(pages.peak <= PAGES && at_once <= MAX_BATCH);
    if repeats(64) == 64 {
        assert!(at_once >= 3 && refused.iter().sum::<i32>() > 0, "{what}: {at_once} {refused:?}");
    }
}

fn sequences_do_not_see_each_other(name: &str) {
    let _shared = lane::shared();
    let files = files(name);
    let checkpoint = files.open();
    let requests = || requests(checkpoint.config().vocab_size);
    let truths = [RowType::Bf16, RowType::F32].map(|kv| (kv, truth(&checkpoint, kv, requests())));
    let mut index = 0;
    for (way, backend) in lane::ways() {
        let mut model = Model::load(backend, &checkpoint, &mut |_| {}).expect("the model loads");
        for head in [HeadKind::Stored, HeadKind::Int8] {
            model = model.with_head(head).expect("a head");
            for (kv, truth) in &truths {
                for &record in lane::RECORD {
                    index += 1;
                    if !due(index, 3) {
                        continue;
                    }
                    let what = format!("{name}, {way}, {head:?}, {kv:?}, recorded {record}");
                    check_batch(&model, truth, (*kv).into(), record, &what);
                }
            }
        }
    }
}

macro_rules! models {
    ($($test:ident = $name:literal;)*) => { $(
        #[test]
        fn $test() {
            sequences_do_not_see_each_other($name);
        }
    )* };
}

models! {
    demo = "demo";
    bitnet_family = "tiny";
    falcon3_family = "tiny-falcon3";
}

/// Greedy requests of so many random ids and tokens.
fn drawn(seed: u64, checkpoint: &Checkpoint, sizes: &[(usize, usize)]) -> Vec<Request> {
    let (mut seeded, vocab) = (Seeded::new(seed), checkpoint.config().vocab_size);
    let request = |&(len, steps): &(usize, usize)| Request {
        prompt: (0..len).map(|_| seeded.below(vocab) as u32).collect(),
        params: SampleParams { max_steps: steps as u32, ..GREEDY },
        removed_after: steps,
        tokens: Vec::new(),
        logits: Vec::new(),
    };
    sizes.iter().map(request).collect()
}

/// A prompt runs in parts, beside steps that give the others their tokens; one that is taken out before its end leaves nothing behind.
#[test]
fn prompts_run_beside_steps() {
    let _shared = lane::shared();
    let files = files("tiny");
    let checkpoint = files.open();
    let requests = drawn(6, &checkpoint, &[(3, 14), (150, 5), (60, 9), (17, 4)]);
    let [short, long, lost, last] = &truth(&checkpoint, RowType::Bf16, requests)[..] else {
        panic!("four")
    };
    for (way, backend) in lane::ways() {
        let model = Model::load(backend, &checkpoint, &mut |_| {}).expect("the model loads");
        let backend = model.backend();
        let options = BatchOptions {
            max_batch: 3,
            capacity: CAPACITY,
            pages: 7,
            kv: RowType::Bf16.into(),
            chunk: 70,
            prompt_share: 40,
            prefix_cache: true,
            one_kernel: true,
            draft_rows: 0,
        };
        let mut batch = Batch::new(&model, options).expect("a batch");
        let add = |batch: &mut Batch<_>, request: &Request| {
            model.admit(batch, &request.prompt, &request.params).expect("there is room")
        };
        let step = |batch: &mut Batch<_>| model.decode_batch(batch, true).expect("a step");
        let a = add(&mut batch, short);
        step(&mut batch);
        assert_eq!(batch.queued(a), 2, "{way}: its prompt, and a step");
        // 64 tokens are the least that run beside a step.
        let b = add(&mut batch, long);
        for i in 0..2 {
            step(&mut batch);
            assert_eq!([batch.queued(a), batch.queued(b)], [3 + i, 0], "{way}");
        }
        // It takes what the other leaves of its last part, and goes before it has run.
        let c = add(&mut batch, lost);
        step(&mut batch);
        assert_eq!([a, b, c].map(|slot| batch.queued(slot)), [5, 1, 0], "{way}");
        assert!(batch.waits(c) && batch.remove(backend, c).expect("it goes"), "{way}");
        let d = add(&mut batch, last);
        assert_eq!(c, d, "{way}: the slot is free");
        for _ in 0..9 {
            step(&mut batch);
        }
        backend.synchronize().expect("the steps end");
        for (slot, request) in [(a, short), (b, long), (d, last)] {
            let tokens: Vec<_> = (0..request.tokens.len()).map(|i| batch.token(slot, i)).collect();
            assert_eq!(tokens, request.tokens, "{way}, slot {slot}");
            assert_eq!(batch.queued(slot), batch.limit(slot), "{way}, slot {slot}");
            assert!(batch.remove(backend, slot).expect("it goes"));
        }
        assert_eq!(batch.pages().in_use, 0, "{way}");
        // One that is left alone in a slot that is not the first.
        let [a, b] = [short, long].map(|request| add(&mut batch, request));
        while batch.queued(b) < 2 {
            step(&mut batch);
        }
        assert!(a == 0 && batch.remove(backend, a).expect("it goes"));
        for _ in 0..long.tokens.len() {
            step(&mut batch);
            if model.head_kind() == HeadKind::Stored && batch.queued(b) < batch.limit(b) {
                let logits = batch.read_logits(backend, b).expect("logits");
                assert_eq!(bits(&logits), long.logits[batch.queued(b) - 1], "{way}");
                assert!(batch.read_logits(backend, a).is_err(), "{way}: it has no row");
            }
        }
        backend.synchronize().expect("the steps end");
        let tokens: Vec<_> = (0..long.tokens.len()).map(|i| batch.token(b, i)).collect();
        assert_eq!(tokens, long.tokens, "{way}: alone in slot {b}");
        assert!(batch.remove(backend, b).expect("it goes"));
    }
}

/// Short prompts run together, whichever slots they have: beside a step, or in front of it.
#[test]
fn short_prompts_run_together() {
    let _shared = lane::shared();
    let files = files("tiny");
    let checkpoint = files.open();
    let requests = drawn(7, &checkpoint, &[(3, 14), (17, 4)]);
    let [long, short] = &truth(&checkpoint, RowType::Bf16, requests)[..] else { panic!("two") };
    for (way, backend) in lane::ways() {
        let mut model = Model::load(backend, &checkpoint, &mut |_| {}).expect("the model loads");
        let heads = [HeadKind::Stored, HeadKind::Int8];
        for (head, prompt_share) in heads.into_iter().flat_map(|head| [(head, 40), (head, 1000)]) {
            model = model.with_head(head).expect("a head");
            let backend = model.backend();
            let options = BatchOptions {
                max_batch: 3,
                capacity: CAPACITY,
                pages: 7,
                kv: RowType::Bf16.into(),
                chunk: 70,
                prompt_share,
                prefix_cache: true,
                one_kernel: true,
                draft_rows: 0,
            };
            let way = format!("{way}, {head:?}, share {prompt_share}");
            let mut batch = Batch::new(&model, options).expect("a batch");
            let add = |batch: &mut Batch<_>, request: &Request| {
                model.admit(batch, &request.prompt, &request.params).expect("there is room")
            };
            let step = |batch: &mut Batch<_>| model.decode_batch(batch, true).expect("a step");
            let slots = [short, long, short].map(|request| add(&mut batch, request));
            step(&mut batch);
            assert_eq!(slots.map(|slot| batch.queued(slot)), [2; 3], "{way}");
            let gone = |slot: &usize| batch.remove(backend, *slot).expect("it goes");
            assert!([slots[0], slots[2]].iter().all(gone));
            let again = [long, short].map(|request| add(&mut batch, request));
            assert_eq!([again[0], again[1]], [slots[0], slots[2]], "{way}");
            step(&mut batch);
            // In front of the step they have their first token already.
            let queued = if prompt_share == 40 { [1, 3, 1] } else { [2, 3, 2] };
            assert_eq!(slots.map(|slot| batch.queued(slot)), queued, "{way}");
            for _ in 0..long.tokens.len() {
                step(&mut batch);
            }
            backend.synchronize().expect("the steps end");
            for (slot, request) in [(again[0], long), (slots[1], long), (again[1], short)] {
                let tokens: Vec<_> =
                    (0..request.tokens.len()).map(|i| batch.token(slot, i)).collect();
                assert_eq!(tokens, request.tokens, "{way}: beside others, slot {slot}");
            }
        }
    }
}

/// What cannot be run is refused, and changes nothing.
#[test]
fn refusals() {
    let _shared = lane::shared();
    let files = files("tiny");
    let checkpoint = files.open();
    let (_, backend) = lane::ways().remove(0);
    let model = Model::load(backend, &checkpoint, &mut |_| {}).expect("the model loads");
    let options = BatchOptions {
        max_batch: 2,
        capacity: 130,
        pages: 4,
        kv: RowType::Bf16.into(),
        chunk: 32,
        prompt_share: 32,
        prefix_cache: true,
        one_kernel: true,
        draft_rows: 0,
    };
    for bad in [
        BatchOptions { max_batch: 0, ..options },
        BatchOptions { max_batch: 1025, ..options },
        BatchOptions { pages: 0, ..options },
        BatchOptions { capacity: 0, ..options },
    ] {
        assert!(Batch::new(&model, bad).is_err(), "{bad:?}");
    }
    let mut batch = Batch::new(&model, options).expect("a batch");
    let vocab = checkpoint.config().vocab_size as u32;
    let params = SampleParams { max_steps: 2 * PAGE_SIZE as u32, ..GREEDY };
    let mut refused = |prompt: &[u32], is: fn(&ModelError) -> bool| {
        let error = model.admit(&mut batch, prompt, &params).expect_err("this is not allowed");
        assert!(is(&error), "{error}");
        assert!(batch.is_empty() && batch.pages().in_use == 0);
    };
    refused(&[], |e| matches!(e, ModelError::EmptyInput));
    refused(&[1; 131], |e| matches!(e, ModelError::ContextFull { needed: 131, capacity: 130 }));
    refused(&[0, vocab], |e| matches!(e, ModelError::TokenOutOfVocabulary { index: 1, .. }));
    // 2 + 128 - 1 positions: three pages.
    let first = model.admit(&mut batch, &[1, 2], &params).expect("there is room");
    let error = model.admit(&mut batch, &[1, 2], &params).expect_err("one page is left");
    assert!(matches!(error, ModelError::PagesFull { needed: 3, free: 1, total: 4 }), "{error}");
    let short = SampleParams { max_steps: 3, ..GREEDY };
    let second = model.admit(&mut batch, &[1, 2], &short).expect("one page is enough");
    assert_ne!(first, second);
    let error = model.admit(&mut batch, &[1], &short).expect_err("both slots are taken");
    assert!(matches!(error, ModelError::BatchFull { max_batch: 2 }), "{error}");
    assert_eq!((batch.pages().in_use, batch.limit(second), batch.queued(second)), (4, 3, 0));
    let none = <lane::Lane as Backend>::TokenLog::EMPTY;
    assert_eq!([batch.token(second, 130), batch.token(9, 0)], [none; 2]);
    assert!(batch.remove(model.backend(), first).expect("it goes"));
    assert!(!batch.remove(model.backend(), 9).expect("there is none"));
    assert_eq!((batch.len(), batch.pages().in_use), (1, 1));
}

/// Texts of an engine are those of a session, whatever runs beside them.
#[test]
fn an_engine_gives_the_texts_of_a_session() {
    let _shared = lane::shared();
    let files = files("demo");
    let builder =
        || Session::builder().model(&files.path).backend(lane::choice()).context(150).threads(2);
    let prompts = ["fn main() {", "use std::", "struct Point", "//! A", "impl ", "pub fn new("];
    let params: Vec<_> = (0..prompts.len())
        .map(|i| SamplingParams {
            // Four steps of the first and the third are looked at.
            max_tokens: repeats([40, 3, 200, 25, 1, 60][i]).max([8, 1][i % 2]),
            temperature: [0.0, 0.8][i % 2],
            seed: i as u64,
            stop: if i == 3 { vec!["e".into()] } else { Vec::new() },
            ..SamplingParams::default()
        })
        .collect();
    let mut session = builder().build().expect("a session");
    let ids: Vec<_> = prompts.iter().map(|text| session.encode(text).expect("ids")).collect();
    let alone: Vec<_> = ids
        .iter()
        .zip(&params)
        .map(|(ids, params)| {
            session.generate(ids, params, |_| ControlFlow::Continue(())).expect("a text")
        })
        .collect();
    drop(session);
    for (max_batch, pages) in [(1, 3), (3, 4), (6, 18)] {
        let mut engine =
            builder().max_batch(max_batch).pages(pages).build_batch().expect("an engine");
        if max_batch == 1 {
            engine.warm_up().expect("a warm engine");
            assert_eq!((engine.len(), engine.pages().in_use), (0, 0));
        }
        let mut streamed = vec![String::new(); prompts.len()];
        let together = engine
            .generate(&ids, &params, |index, output| {
                streamed[index].push_str(&output.text);
                ControlFlow::Continue(())
            })
            .expect("texts");
        for (i, (alone, found)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(
                (&found.tokens, &found.text, found.finish),
                (&alone.tokens, &alone.text, alone.finish),
                "prompt {i} of a batch of {max_batch}"
            );
            assert_eq!(streamed[i], found.text, "prompt {i} of a batch of {max_batch}");
        }
        assert_eq!((engine.len(), engine.pages().in_use), (0, 0));

        // One that is taken out has given the beginning of its text, and leaves the others alone.
        let added: Vec<_> = (0..max_batch.min(2))
            .map(|i| engine.add_request(&ids[2 * i], &params[2 * i]).expect("there is room"))
            .collect();
        for _ in 0..repeats(4).min(4) {
            assert_eq!(engine.step().expect("a step").len(), added.len());
        }
        let gone = engine.remove_request(added[0]).expect("it goes").expect("it was there");
        assert_eq!(gone.finish, Finish::Cancelled);
        assert_eq!(gone.tokens, alone[0].tokens[..gone.tokens.len()]);
        assert!(engine.remove_request(added[0]).expect("nothing fails").is_none());
        let mut last = None;
        while !engine.is_empty() {
            last = engine.step().expect("a step").pop().and_then(|output| output.finished);
        }
        assert_eq!(last.map(|text| text.tokens), added.get(1).map(|_| alone[2].tokens.clone()));
    }
    // A prompt that never fits is refused when it is alone; nothing is left behind.
    let fast = || builder().attention(Math::TensorCore).max_batch(3).pages(18);
    assert!(fast().kv(KvType::F32).build_batch().is_err(), "tensor cores take a bf16 cache");
    let mut texts = Vec::new();
    for _ in 0..2 {
        let mut engine = fast().build_batch().expect("an engine");
        let made = engine.generate(&ids[..2], &params[..2], |_, _| ControlFlow::Continue(()));
        let made = made.expect("texts").into_iter().map(|text| text.tokens);
        texts.push(made.collect::<Vec<_>>());
    }
    assert_eq!(texts[0], texts[1], "the same batch gives the same texts");
    assert!(texts[0].iter().zip(&params).all(|(text, params)| text.len() <= params.max_tokens));
    let mut engine = builder().max_batch(2).pages(2).build_batch().expect("an engine");
    let mut long = params.clone();
    long[2].max_tokens = 140;
    let error = engine.generate(&ids, &long, |_, _| ControlFlow::Continue(()));
    assert!(error.expect_err("three pages are needed").is_full());
    assert_eq!((engine.len(), engine.pages().in_use), (0, 0));
    let error = engine.generate(&ids, &params[1..], |_, _| ControlFlow::Continue(()));
    assert!(matches!(error, Err(SessionError::ParamsCount { prompts: 6, params: 5 })));
    let texts = engine.generate(&ids[..2], &params[..2], |_, _| ControlFlow::Break(()));
    let finish: Vec<_> = texts.expect("no error").iter().map(|text| text.finish).collect();
    assert_eq!(finish, [Finish::Cancelled; 2]);
}

/// A batch with a cache of 8 bits gives the same texts on every backend, whatever runs beside them; one text alone is refused such a cache.
#[test]
fn a_cache_of_eight_bits() {
    let _shared = lane::shared();
    let files = files("demo");
    let builder = |device| {
        Session::builder()
            .model(&files.path)
            .backend(device)
            .context(90)
            .threads(2)
            .kv(KvType::Int8)
    };
    let error = builder(lane::choice()).build().map(drop).expect_err("a text alone");
    let what = matches!(&error, SessionError::Op(OpError::Dimension { found: 8, .. }));
    assert!(what, "{error}");
    let params: Vec<_> = (0..3)
        .map(|i| SamplingParams {
            max_tokens: repeats(24).max(4),
            temperature: [0.0, 0.8][i % 2],
            seed: i as u64,
            ..SamplingParams::default()
        })
        .collect();
    let texts = |device, max_batch| {
        let mut engine = builder(device).max_batch(max_batch).build_batch().expect("an engine");
        let ids = ["fn main() {", "use std::", "impl "].map(|t| engine.encode(t).expect("ids"));
        let made = engine.generate(&ids, &params, |_, _| ControlFlow::Continue(()));
        made.expect("texts").into_iter().map(|text| text.tokens).collect::<Vec<_>>()
    };
    let alone = texts(BackendChoice::Cpu, 1);
    assert!(alone.iter().all(|text| !text.is_empty()));
    assert_eq!(texts(lane::choice(), 3), alone);
}
