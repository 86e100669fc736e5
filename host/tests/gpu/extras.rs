//! Texts that are told log probabilities, and whose logits have something added to them or taken off: what plain logits say, whatever runs beside them.

use std::ops::ControlFlow;

use bitnet_gpu::device_choice::BackendChoice;
use bitnet_gpu::reference::logprobs::tell;
use bitnet_gpu::reference::sample::pick;
use bitnet_gpu::session::{
    Generated, HeadKind, Session, SessionBuilder, SessionError, TokenLogprobs,
};
use bitnet_gpu::text::{Grammar, MAX_LOGPROBS, SamplingParams, TextError};
use contract::logprobs::{ENTRY_WORDS, LIST, LOGPROB, RANK};
use contract::sample::{BIASED, GIVEN, SEEN, given, lowered};

use crate::grammar::asked;
use crate::lane;
use crate::model::files;
use crate::support::repeats;

fn builder() -> SessionBuilder {
    Session::builder().model(&files("demo").path).backend(lane::choice()).context(256)
}

/// What the contract says of `token` behind `logits`.
fn told(logits: &[f32], token: u32, top: u32) -> TokenLogprobs {
    let mut entry = [0; ENTRY_WORDS];
    tell(logits, (token, 1, 1 + top), &mut 0, &mut entry);
    let pairs = entry[LIST..].chunks(2).take(top as usize);
    TokenLogprobs {
        logprob: f32::from_bits(entry[LOGPROB]),
        rank: entry[RANK],
        top: pairs.map(|pair| (pair[0], f32::from_bits(pair[1]))).collect(),
    }
}

/// What is told of each token of `text` but the first.
fn told_of(exact: &mut Session, text: &[u32], top: u32) -> Vec<TokenLogprobs> {
    let mut all = Vec::new();
    exact.logits(&text[..text.len() - 1], |logits| all.push(logits.to_vec())).expect("logits");
    all.iter().zip(&text[1..]).map(|(logits, &token)| told(logits, token, top)).collect()
}

/// Requests with and without.
fn cases() -> Vec<SamplingParams> {
    let bias = |id: u32| vec![(id, 4.5), (id + 60, -100.0), (7, 0.25)];
    let mut cases = Vec::new();
    for (i, (presence, frequency, repetition, bias)) in [
        (0.0, 0.0, 1.0, Vec::new()),
        (1.5, 0.0, 1.0, Vec::new()),
        (0.0, 0.7, 1.0, Vec::new()),
        (0.5, 0.5, 1.2, Vec::new()),
        (0.0, 0.0, 1.0, bias(300)),
        (-1.0, 2.0, 0.9, bias(275)),
    ]
    .into_iter()
    .enumerate()
    {
        for (temperature, top_k) in [(0.0, 40), (0.9, 40), (1.2, 0)] {
            cases.push(SamplingParams {
                temperature,
                top_k,
                seed: i as u64,
                presence_penalty: presence,
                frequency_penalty: frequency,
                repetition_penalty: repetition,
                logit_bias: bias.clone(),
                logprobs: [Some(3), None, Some(0), Some(MAX_LOGPROBS)][cases.len() % 4],
                max_tokens: repeats(40),
                ignore_eos: true,
                ..SamplingParams::default()
            });
        }
    }
    cases
}

/// The tokens that follow `prompt`, by the logits of plain prompts, with marks and a bias that are kept here.
fn search(exact: &mut Session, prompt: &[u32], params: &SamplingParams) -> Vec<u32> {
    let vocab = exact.config().vocab_size;
    let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
    let asked = asked(params);
    let (mut marks, mut bias) = (vec![0; vocab], vec![0.0; vocab]);
    prompt.iter().for_each(|&token| marks[token as usize] = SEEN);
    for &(token, value) in &params.logit_bias {
        marks[token as usize] |= BIASED;
        bias[token as usize] = value;
    }
    let mut text = prompt.to_vec();
    for step in 0..params.max_tokens {
        let mut last = Vec::new();
        exact.logits(&text, |logits| last = logits.to_vec()).expect("logits");
        let token = pick(&last, &marks, &bias, &asked, step as u32);
        let (mark, bias) = (&mut marks[token as usize], &mut bias[token as usize]);
        if asked.lowers() {
            *bias = lowered(*mark, *bias, presence, frequency);
        }
        *mark = given(*mark, asked.lowers());
        assert_eq!(*mark & GIVEN != 0, asked.lowers());
        text.push(token);
    }
    text[prompt.len()..].to_vec()
}

fn generate(session: &mut Session, prompt: &[u32], params: &SamplingParams) -> Generated {
    let mut pieces = Vec::new();
    let text = session.generate(prompt, params, |piece| {
        pieces.extend(piece.logprobs.cloned());
        ControlFlow::Continue(())
    });
    let text = text.expect("a text");
    assert_eq!(pieces, text.logprobs);
    text
}

#[test]
fn texts_are_what_plain_logits_say() {
    let _shared = lane::shared();
    let mut exact = builder().backend(BackendChoice::Cpu).build().expect("a session");
    let prompt = exact.encode("fn main() {\n    let ").expect("a prompt");
    let mut given = Vec::new();
    let mut plain = builder().build().expect("a session");
    for params in cases() {
        let text = generate(&mut plain, &prompt, &params);
        assert_eq!(text.tokens, search(&mut exact, &prompt, &params), "{params:?}");
        let whole = [&prompt[..], &text.tokens].concat();
        let told = params.logprobs.map(|top| told_of(&mut exact, &whole, top));
        let told = told.map_or(Vec::new(), |told| told[prompt.len() - 1..].to_vec());
        assert_eq!(text.logprobs, told, "{params:?}");
        given.push((params, text));
    }
    drop(plain);

    // By the other head; with guesses for those that can have them.
    let others =
        [builder().head(HeadKind::Int8), builder().head(HeadKind::Stored), builder().lookup(8)];
    for other in others {
        let mut session = other.build().expect("a session");
        for (params, expected) in given.iter().step_by(2) {
            let text = generate(&mut session, &prompt, params);
            assert_eq!((&text.tokens, &text.logprobs), (&expected.tokens, &expected.logprobs));
        }
    }

    // Side by side with others that ask for nothing and with some that have a grammar, more than there is room for; places are taken again and again.
    let words = Grammar::Regex("[a-z]{2,9}( [a-z]{2,9}){0,3};".into());
    for (lookup, size) in [(0, 4), (12, 7), (0, 20), (0, 1)] {
        let engine = builder().lookup(lookup).head(HeadKind::Int8).max_batch(size).build_batch();
        let mut engine = engine.expect("a batch");
        let free = SamplingParams { max_tokens: repeats(30), ..SamplingParams::default() };
        let held = SamplingParams { grammar: Some(words.clone()), ..free.clone() };
        let all: Vec<_> = given
            .iter()
            .flat_map(|(params, _)| [params.clone(), free.clone(), held.clone()])
            .collect();
        let prompts = vec![prompt.clone(); all.len()];
        let mut streamed = vec![Vec::new(); all.len()];
        let texts = engine.generate(&prompts, &all, |index, output| {
            streamed[index].extend(output.logprobs.clone());
            ControlFlow::Continue(())
        });
        let texts = texts.expect("texts");
        for (i, (params, expected)) in given.iter().enumerate() {
            let text = &texts[3 * i];
            assert_eq!(text.tokens, expected.tokens, "{lookup} {size} {params:?}");
            assert_eq!(text.logprobs, expected.logprobs, "{lookup} {size} {params:?}");
            assert_eq!(streamed[3 * i], text.logprobs);
            assert!(texts[3 * i + 1].logprobs.is_empty() && text.prompt_logprobs.is_empty());
            assert_eq!(texts[3 * i + 1].tokens, texts[1].tokens);
            assert_eq!(texts[3 * i + 2].tokens, texts[2].tokens);
        }
    }
}

/// With a grammar too: what it forbids is not picked whatever is added, and what is told is of all tokens.
#[test]
fn grammars_and_biases_meet() {
    let _shared = lane::shared();
    let mut session = builder().build().expect("a session");
    let prompt = session.encode("fn main() {\n    let ").expect("a prompt");
    let params = SamplingParams {
        grammar: Some(Grammar::Regex("[ab]{12};".into())),
        logit_bias: vec![(300, 100.0)],
        frequency_penalty: 2.0,
        temperature: 0.0,
        logprobs: Some(1),
        ..SamplingParams::default()
    };
    let text = generate(&mut session, &prompt, &params);
    let inner = text.text.strip_suffix(';').expect("the whole");
    assert!(inner.len() == 12 && inner.bytes().all(|b| b == b'a' || b == b'b'), "{inner}");
    // Each is given about as often as the other.
    let plain = SamplingParams { frequency_penalty: 0.0, ..params.clone() };
    let plain = generate(&mut session, &prompt, &plain);
    assert_ne!(plain.tokens, text.tokens);
    assert_eq!(text.logprobs.len(), text.tokens.len());
    assert!(text.logprobs.iter().any(|told| told.rank > 1), "the model would say something else");
    let mut batch = builder().max_batch(3).build_batch().expect("a batch");
    let texts =
        batch.generate(&vec![prompt; 4], &vec![params; 4], |_, _| ControlFlow::Continue(()));
    for found in texts.expect("texts") {
        assert_eq!((found.tokens, found.logprobs), (text.tokens.clone(), text.logprobs.clone()));
    }
}

/// Prompts of many lengths, together and beside texts, in parts, and ones that begin like others.
#[test]
fn prompts_are_told() {
    let _shared = lane::shared();
    let mut exact = builder().backend(BackendChoice::Cpu).build().expect("a session");
    let long = exact.encode(&"pub fn new(x: u32) -> Self {\n".repeat(12)).expect("ids");
    let lens = [150, 1, 2, 64, 65, 129, 150, 33].map(repeats).map(|len| len.clamp(1, long.len()));
    let prompts: Vec<Vec<u32>> = lens.iter().map(|&len| long[..len].to_vec()).collect();
    for (head, size, share) in
        [(HeadKind::Stored, 3, 64), (HeadKind::Int8, 8, 96), (HeadKind::Int8, 1, 768)]
    {
        let engine = builder().head(head).max_batch(size).prompt_share(share).build_batch();
        let mut engine = engine.expect("a batch");
        let params: Vec<_> = (0..prompts.len())
            .map(|i| SamplingParams {
                prompt_logprobs: [Some(2), None, Some(0)][i % 3],
                logprobs: [None, Some(1)][i % 2],
                temperature: 0.0,
                max_tokens: 4,
                ignore_eos: true,
                ..SamplingParams::default()
            })
            .collect();
        let texts = engine.generate(&prompts, &params, |_, _| ControlFlow::Continue(()));
        for ((prompt, params), text) in prompts.iter().zip(&params).zip(texts.expect("texts")) {
            let whole = [&prompt[..], &text.tokens].concat();
            let of_prompt = params.prompt_logprobs.map(|top| told_of(&mut exact, &whole, top));
            let of_prompt = of_prompt.map_or(Vec::new(), |told| told[..prompt.len() - 1].to_vec());
            assert_eq!(text.prompt_logprobs, of_prompt, "{} of {size}", prompt.len());
            let of_text = params.logprobs.map(|top| told_of(&mut exact, &whole, top));
            let of_text = of_text.map_or(Vec::new(), |told| told[prompt.len() - 1..].to_vec());
            assert_eq!(text.logprobs, of_text, "{} of {size}", prompt.len());
            // What is told comes of its rows.
            assert!(params.prompt_logprobs.is_none() || text.stats.cached_tokens == 0);
        }
    }
}

#[test]
fn what_cannot_be_told_or_added_is_refused() {
    let _shared = lane::shared();
    let mut session = builder().build().expect("a session");
    let prompt = session.encode("fn").expect("a prompt");
    let vocab = session.config().vocab_size as u32;
    let mut ask = |params: SamplingParams| {
        session
            .generate(&prompt, &params, |_| ControlFlow::Continue(()))
            .map(|text| text.tokens.len())
    };
    let plain = SamplingParams { max_tokens: 3, ..SamplingParams::default() };
    let far = SamplingParams { logit_bias: vec![(vocab, 1.0)], ..plain.clone() };
    let refused =
        |error| matches!(error, SessionError::Text(TextError::Setting { name: "logit_bias", .. }));
    assert!(refused(ask(far.clone()).expect_err("no such token")));
    let of_prompt = SamplingParams { prompt_logprobs: Some(1), ..plain.clone() };
    assert!(matches!(ask(of_prompt), Err(SessionError::PromptLogprobs)));
    assert!(ask(plain).is_ok());
    drop(session);
    let mut engine = builder().max_batch(1).build_batch().expect("a batch");
    assert!(refused(engine.add_request(&prompt, &far).expect_err("no such token")));
    assert!(engine.is_empty() && engine.pages().in_use == 0);
}
