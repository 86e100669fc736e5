//! Guesses that are checked together: whatever is guessed, a text has the tokens that it has alone.

use std::ops::ControlFlow;

use bitnet_gpu::device_choice::BackendChoice;
use bitnet_gpu::model::{Batch, BatchOptions, Draft, HeadKind, Model, ModelError, PAGE_SIZE};
use bitnet_gpu::ops::attention_paged::PageType;
use bitnet_gpu::ops::{Backend, OpError, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::sample::GREEDY;
use bitnet_gpu::session::{Lookup, Math, Session, SessionError};
use bitnet_gpu::text::SamplingParams;
use contract::sample::SampleParams;

use crate::batch::{CAPACITY, Request, truth};
use crate::lane;
use crate::model::files;
use crate::support::{due, repeats};

fn options(kv: RowType) -> BatchOptions {
    BatchOptions {
        max_batch: 3,
        capacity: CAPACITY,
        pages: 8,
        kv: PageType::Float(kv),
        chunk: 48,
        prompt_share: 64,
        prefix_cache: true,
        one_kernel: true,
        draft_rows: 24,
    }
}

/// Two that draw, one of them with a penalty, and two that do not, of which one ends by a stop token and one with its context.
fn requests(vocab: usize) -> Vec<Request> {
    let drawn =
        SampleParams { seed: 3, temperature: 0.9, top_k: 40, top_p_q32: 4_080_218_931, ..GREEDY };
    let penalised = SampleParams { seed: 4, repetition_penalty: 1.3, top_k: 0, ..drawn };
    let mut seeded = Seeded::new(21);
    [(9, 40, GREEDY), (70, 33, drawn), (61, 50, penalised), (170, 90, GREEDY)]
        .into_iter()
        .map(|(len, steps, params)| Request {
            prompt: (0..repeats(len)).map(|_| seeded.below(vocab) as u32).collect(),
            params: SampleParams { max_steps: repeats(steps) as u32, ..params },
            removed_after: steps,
            tokens: Vec::new(),
            logits: Vec::new(),
        })
        .collect()
}

/// Steps of drafts that are right for any number of tokens, between other steps.
#[test]
fn right_and_wrong_drafts_give_the_same_tokens() {
    let _shared = lane::shared();
    let files = files("tiny");
    let checkpoint = files.open();
    let vocab = checkpoint.config().vocab_size;
    let truths =
        [RowType::Bf16, RowType::F32].map(|kv| (kv, truth(&checkpoint, kv, requests(vocab))));
    let mut index = 0;
    for (way, backend) in lane::ways() {
        let mut model = Model::load(backend, &checkpoint, &mut |_| {}).expect("the model loads");
        for head in [HeadKind::Stored, HeadKind::Int8] {
            model = model.with_head(head).expect("a head");
            let backend = model.backend();
            let ways =
                truths.iter().flat_map(|truth| lane::RECORD.iter().map(move |r| (truth, *r)));
            for ((kv, truth), record) in ways {
                index += 1;
                if !due(index, 3) {
                    continue;
                }
                let what = format!("{way}, {head:?}, {kv:?}, recorded {record}");
                let mut seeded = Seeded::new(index as u64);
                let mut batch = Batch::new(&model, options(*kv)).expect("a batch");
                let mut waiting: Vec<&Request> = truth.iter().rev().collect();
                let mut running: Vec<(usize, &Request)> = Vec::new();
                let (mut checked, mut whole) = (0, 0);
                while !(waiting.is_empty() && running.is_empty()) {
                    while let Some(next) = waiting.pop() {
                        let Ok(slot) = model.admit(&mut batch, &next.prompt, &next.params) else {
                            waiting.push(next);
                            break;
                        };
                        running.push((slot, next));
                    }
                    // A step of all, until no prompt waits, and now and then.
                    let mut steps = seeded.below(3);
                    while steps > 0 || running.iter().any(|&(slot, _)| batch.waits(slot)) {
                        model.decode_batch(&mut batch, true).expect("a step");
                        steps = steps.saturating_sub(1);
                    }
                    // Some are left out.
                    let mut drafts: Vec<(usize, Vec<u32>, usize)> = Vec::new();
                    for &(slot, request) in &running {
                        if seeded.below(5) == 0 {
                            continue;
                        }
                        let (given, len) = (batch.queued(slot), seeded.below(8));
                        let rest = request.tokens.get(given..).unwrap_or(&[]);
                        let mut tokens: Vec<u32> = rest.iter().copied().take(len).collect();
                        let right = seeded.below(len + 1).min(tokens.len());
                        if let Some(wrong) = tokens.get_mut(right) {
                            *wrong = (*wrong + 1) % vocab as u32;
                        }
                        // What comes behind a wrong one is never looked at.
                        tokens.resize(len, 5);
                        let got = rest.len().min(right + 1);
                        drafts.push((slot, tokens, got));
                    }
                    let given =
                        drafts.iter().map(|(slot, tokens, _)| Draft { slot: *slot, tokens });
                    let got = model.verify(&mut batch, &given.collect::<Vec<_>>(), record);
                    let expected: Vec<usize> = drafts.iter().map(|draft| draft.2).collect();
                    assert_eq!(got.expect("a step of drafts"), expected, "{what}: {drafts:?}");
                    checked += drafts.len();
                    whole += drafts.iter().filter(|draft| draft.2 == draft.1.len() + 1).count();
                    backend.synchronize().expect("the steps end");
                    running.retain(|&(slot, request)| {
                        let given = batch.queued(slot).min(request.tokens.len());
                        let tokens: Vec<_> = (0..given).map(|i| batch.token(slot, i)).collect();
                        assert_eq!(tokens, request.tokens[..given], "{what}, slot {slot}");
                        let stays = given < request.tokens.len();
                        assert!(stays || batch.remove(backend, slot).expect("it goes"));
                        stays
                    });
                }
                if repeats(64) == 64 {
                    assert!(checked > 10 && whole > 0, "{what}: {checked} drafts, {whole} right");
                }
                assert_eq!(batch.pages().in_use, 0, "{what}");
            }
        }
    }
}

#[test]
fn refusals() {
    let _shared = lane::shared();
    let files = files("tiny");
    let checkpoint = files.open();
    let (_, backend) = lane::ways().remove(0);
    let model = Model::load(backend, &checkpoint, &mut |_| {}).expect("the model loads");
    let too_many = BatchOptions { draft_rows: 49, ..options(RowType::Bf16) };
    assert!(matches!(
        Batch::new(&model, too_many),
        Err(OpError::Dimension { what: "draft_rows", found: 49, .. })
    ));
    let mut batch = Batch::new(&model, options(RowType::Bf16)).expect("a batch");
    let params = SampleParams { max_steps: 60, ..GREEDY };
    let prompt = [1, 2, 3, 4, 5];
    let slots = [(); 2].map(|()| model.admit(&mut batch, &prompt, &params).expect("there is room"));
    let draft = |slot, tokens| Draft { slot, tokens };
    let refused = |batch: &mut Batch<_>, drafts: &[Draft<'_>], what| match model
        .verify(batch, drafts, false)
    {
        Err(ModelError::Op(OpError::Dimension { what: found, .. })) => assert_eq!(found, what),
        other => panic!("{what}: {other:?}"),
    };
    // Its prompt has not run.
    refused(&mut batch, &[draft(slots[0], &[1])], "slot of a draft");
    model.decode_batch(&mut batch, false).expect("a step");
    let before = slots.map(|slot| batch.queued(slot));
    refused(&mut batch, &[draft(2, &[1])], "slot of a draft");
    refused(&mut batch, &[draft(7, &[1])], "slot of a draft");
    refused(&mut batch, &[draft(0, &[1]), draft(0, &[])], "slot of a draft");
    refused(&mut batch, &[draft(0, &[1; 12]), draft(1, &[1; 11])], "rows of drafts");
    let vocab = checkpoint.config().vocab_size;
    let unknown = [1, vocab as u32];
    assert!(matches!(
        model.verify(&mut batch, &[draft(0, &unknown)], false),
        Err(ModelError::TokenOutOfVocabulary { index: 1, .. })
    ));
    assert_eq!(slots.map(|slot| batch.queued(slot)), before);
    assert!(model.verify(&mut batch, &[], false).expect("nothing to do").is_empty());
    let most = [draft(0, &[1; 12]), draft(1, &[1; 10])];
    let got = model.verify(&mut batch, &most, false).expect("as many as there is room for");
    assert!(got.iter().all(|&got| got > 0));
    // What may follow each of its rows would have to be known.
    let rests = SampleParams { rests: 1, ..GREEDY };
    batch.remove(model.backend(), slots[0]).expect("a sequence is there");
    let slot = model.admit(&mut batch, &[1, 2], &rests).expect("a place");
    let mask = vec![u32::MAX; vocab.div_ceil(32)];
    batch.allow(model.backend(), &[(slot, &mask)]).expect("it rests");
    model.decode_batch(&mut batch, false).expect("its prompt");
    assert_eq!(batch.queued(slot), 1);
    refused(&mut batch, &[draft(slot, &[1])], "slot of a draft");
    let [long, other] = [[&mask[..], &[0]].concat(), mask.clone()];
    for masks in [
        &[(slot, &mask[1..])][..],
        &[(slot, &long)],
        &[(slots[1], &mask)],
        &[(2, &mask)],
        &[(9, &mask)],
        &[(slot, &mask), (slot, &other)],
    ] {
        assert!(batch.allow(model.backend(), masks).is_err(), "{:?}", masks[0].0);
    }
}

/// Sessions and engines that look up give what those give that do not, and fewer steps where a text repeats itself.
#[test]
fn texts_by_lookup() {
    let _shared = lane::shared();
    let files = files("tiny");
    let builder = || Session::builder().model(&files.path).backend(lane::choice()).context(300);
    let mut plain = builder().build().expect("a session");
    let vocab = plain.config().vocab_size;
    let mut seeded = Seeded::new(8);
    let mut ids = |n: usize| (0..n).map(|_| seeded.below(vocab) as u32).collect::<Vec<u32>>();
    let (short, long) = (ids(5), ids(90));
    let twice = [&long[..], &long[..60]].concat();
    let params = |i: usize| SamplingParams {
        temperature: [0.0, 0.0, 0.3, 1.0][i % 4],
        repetition_penalty: if i == 3 { 1.2 } else { 1.0 },
        seed: i as u64,
        max_tokens: repeats(120),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let prompts = [&short, &long, &twice, &twice, &long, &short, &twice];
    let texts: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let text = plain.generate(prompt, &params(i), |_| ControlFlow::Continue(()));
            text.expect("a text").tokens
        })
        .collect();
    drop(plain);

    let mut solo = builder().lookup(20).build().expect("a session");
    let mut counts = [0; 3];
    for (i, (prompt, expected)) in prompts.iter().zip(&texts).enumerate() {
        let mut seen = Vec::new();
        let text = solo.generate(prompt, &params(i), |piece| {
            seen.push(piece.token);
            ControlFlow::Continue(())
        });
        let text = text.expect("a text");
        assert_eq!((&text.tokens, &seen), (expected, expected), "text {i}");
        assert!(text.stats.accepted_tokens <= text.stats.drafted_tokens);
        assert!(text.stats.accepted_tokens < text.tokens.len());
        counts[0] += text.stats.drafted_tokens;
        counts[1] += text.stats.accepted_tokens;
        counts[2] += text.stats.cached_tokens;
    }
    println!("{} drafted, {} of them right, {} cached", counts[0], counts[1], counts[2]);
    if repeats(120) == 120 {
        // A greedy text of so small a model goes round in circles.
        assert!(counts[1] > 30 && counts[1] < counts[0], "{counts:?}");
    }
    // A prompt that was there is there still, in whole pages.
    assert!(counts[2] >= 2 * PAGE_SIZE, "{counts:?}");
    // One that is cut short, and what comes behind it.
    let cut = solo.generate(&short, &params(0), |_| ControlFlow::Break(())).expect("a text");
    assert_eq!(cut.tokens, texts[0][..1]);
    let again = solo.generate(&short, &params(0), |_| ControlFlow::Continue(()));
    assert_eq!(again.expect("a text").tokens, texts[0]);
    // A stop token in the middle.
    if let Some(&stop) = texts[0].get(repeats(60)) {
        let first = texts[0].iter().position(|&token| token == stop).expect("it is there");
        let params = SamplingParams { stop_ids: vec![stop], ..params(0) };
        let text = solo.generate(&short, &params, |_| ControlFlow::Continue(()));
        assert_eq!(text.expect("a text").tokens, texts[0][..=first]);
    }
    assert!(builder().lookup(256).build().is_err());
    let refused = solo.logits(&short, |_| ());
    assert!(matches!(refused, Err(SessionError::LogitsOfLookup)));
    drop(solo);

    // By itself where it is fast, and attention exact.
    let there = lane::choice() != BackendChoice::Cpu && lane::has("attention_paged_split_bf16");
    for (math, expected) in [(Math::Exact, there), (Math::TensorCore, false)] {
        let session = builder().lookup(Lookup::Auto).attention(math).build();
        let mut session = session.expect("a session");
        let refused = session.logits(&short, |_| ());
        assert_eq!(matches!(refused, Err(SessionError::LogitsOfLookup)), expected, "{math:?}");
    }

    for max_batch in [1, 3, 8] {
        let batch = builder().lookup(7).max_batch(max_batch).build_batch();
        let mut batch = batch.expect("an engine");
        let all: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.to_vec()).collect();
        let params: Vec<_> = (0..all.len()).map(params).collect();
        let mut pieces = vec![Vec::new(); all.len()];
        let found = batch.generate(&all, &params, |i, output| {
            pieces[i].push(output.token);
            ControlFlow::Continue(())
        });
        let found: Vec<_> = found.expect("texts").into_iter().map(|text| text.tokens).collect();
        assert_eq!((&found, &pieces), (&texts, &texts), "{max_batch} at once");
    }
}
