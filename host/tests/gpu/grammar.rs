//! Texts that are held to a grammar: the tokens that a search through plain logits picks, whatever runs beside them.

use std::ops::ControlFlow;

use bitnet_gpu::device_choice::BackendChoice;
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::sample::pick;
use bitnet_gpu::session::{BatchEngine, Finish, Session, SessionBuilder};
use bitnet_gpu::text::{Grammar, GrammarCompiler, SamplingParams};
use contract::sample::{FORBIDDEN, ONE_WEIGHT, SEEN, SampleParams};
use serde_json::{Value, json};

use crate::lane;
use crate::model::files;
use crate::support::repeats;

fn builder() -> SessionBuilder {
    Session::builder().model(&files("demo").path).backend(lane::choice()).context(256)
}

/// Whether a whole text is what it has to be.
type Fits = fn(&str) -> bool;

/// Grammars, and what their texts have to be.
fn grammars() -> Vec<(Grammar, Fits)> {
    let object = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "size": { "type": "integer", "minimum": 0, "maximum": 999 },
            "kind": { "enum": ["fn", "struct", "impl"] },
        },
        "required": ["name", "size", "kind"],
        "additionalProperties": false,
    });
    let list = json!({ "$ref": "#/$defs/l", "$defs": { "l": {
        "type": "array", "items": { "type": "boolean" }, "minItems": 2, "maxItems": 5,
    } } });
    let words: Fits = |text| {
        let inner = text.strip_suffix(';').unwrap_or_default();
        inner.split(' ').all(|word| word.len() >= 2 && word.bytes().all(|b| b.is_ascii_lowercase()))
    };
    vec![
        (Grammar::JsonSchema(object), |text| {
            let value: Value = serde_json::from_str(text).expect("JSON");
            let kinds = ["fn", "struct", "impl"];
            value["name"].as_str().is_some_and(|name| name.chars().count() <= 12)
                && value["size"].as_u64().is_some_and(|size| size <= 999)
                && value["kind"].as_str().is_some_and(|kind| kinds.contains(&kind))
        }),
        (Grammar::JsonSchema(list), |text| {
            let value: Vec<bool> = serde_json::from_str(text).expect("JSON");
            (2..=5).contains(&value.len())
        }),
        (Grammar::Regex("[a-z]{2,9}( [a-z]{2,9}){0,3};".into()), words),
        (Grammar::choice(&["let mut x", "let x\n", "return \"ä\""]).expect("three"), |text| {
            ["let mut x", "let x\n", "return \"ä\""].contains(&text)
        }),
        (Grammar::Regex("[a-z]+".into()), |text| text.bytes().all(|b| b.is_ascii_lowercase())),
        // Its last token would end the text before it may end.
        (Grammar::Regex("ab?;".into()), |text| ["a", "ab"].contains(&text)),
    ]
}

/// Each grammar, greedy and drawn.
fn cases() -> Vec<(SamplingParams, Fits)> {
    let mut cases = Vec::new();
    for (i, (grammar, fits)) in grammars().into_iter().enumerate() {
        for (temperature, top_k, repetition_penalty) in
            [(0.0, 40, 1.0), (0.9, 40, 1.0), (1.5, 0, 1.2), (0.0, 0, 1.3)]
        {
            let params = SamplingParams {
                temperature,
                top_k,
                repetition_penalty,
                seed: i as u64,
                max_tokens: repeats(60),
                // An opening bracket and what stands behind names: in strings they would be text.
                stop_ids: vec![8, if i == 5 { 27 } else { 275 }],
                grammar: Some(grammar.clone()),
                ..SamplingParams::default()
            };
            cases.push((params, fits));
        }
    }
    cases
}

/// What a search through logits asks of the reference of the sampler: as `params` say, with marks, and no end.
pub(crate) fn asked(params: &SamplingParams) -> SampleParams {
    SampleParams {
        seed: params.seed,
        top_p_q32: (f64::from(params.top_p) * 4_294_967_296.0) as u64,
        temperature: params.temperature,
        repetition_penalty: -params.repetition_penalty,
        top_k: params.top_k,
        min_weight: (params.min_p * ONE_WEIGHT as f32) as u32,
        max_steps: u32::MAX,
        stop_len: 0,
        stop_ids: [0; 16],
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        rests: 0,
        every: 0,
    }
}

/// The tokens that follow `prompt`, by the logits of plain prompts and a look at every token; and whether they are all.
fn search(
    plain: &mut Session,
    prompt: &[u32],
    params: &SamplingParams,
) -> (Vec<u32>, Option<Finish>) {
    let vocab = plain.config().vocab_size;
    let tokenizer = plain.tokenizer().expect("the demo model has one");
    let stops = [tokenizer.stop_ids(), &params.stop_ids].concat();
    let compiler = GrammarCompiler::new(tokenizer, vocab).expect("its tokens");
    let grammar = params.grammar.as_ref().expect("a grammar");
    let mut constraint = compiler.compile(grammar).expect("a grammar that is right");
    let asked = asked(params);
    let mut text = prompt.to_vec();
    while text.len() - prompt.len() < params.max_tokens {
        let mut last = Vec::new();
        plain.logits(&text, |logits| last = logits.to_vec()).expect("logits");
        let marks: Vec<u8> = (0..vocab as u32)
            .map(|token| {
                let allowed = match stops.contains(&token) {
                    true => constraint.may_end(),
                    false => constraint.allows(token),
                };
                u8::from(text.contains(&token)) * SEEN + u8::from(!allowed) * FORBIDDEN
            })
            .collect();
        if marks.iter().all(|mark| mark & FORBIDDEN != 0) {
            return (text[prompt.len()..].to_vec(), Some(Finish::GrammarLimit));
        }
        let token = pick(&last, &marks, &[], &asked, (text.len() - prompt.len()) as u32);
        text.push(token);
        if stops.contains(&token) {
            return (text[prompt.len()..].to_vec(), Some(Finish::StopToken));
        }
        constraint.push(token).expect("it was allowed");
        if constraint.is_complete() {
            return (text[prompt.len()..].to_vec(), Some(Finish::Grammar));
        }
    }
    (text[prompt.len()..].to_vec(), None)
}

#[test]
fn texts_are_what_a_search_through_all_logits_picks() {
    let _shared = lane::shared();
    let mut plain = builder().build().expect("a session");
    let prompt = plain.encode("fn main() {\n    let ").expect("a prompt");
    let mut exact = builder().backend(BackendChoice::Cpu).build().expect("a session");
    let mut given = Vec::new();
    let mut ends = [0; 4];
    for (params, fits) in cases() {
        let text = plain.generate(&prompt, &params, |_| ControlFlow::Continue(()));
        let text = text.expect("a text");
        let (tokens, finish) = search(&mut exact, &prompt, &params);
        let expected = finish.unwrap_or(Finish::MaxTokens);
        assert_eq!((&text.tokens, text.finish), (&tokens, expected), "{params:?}: {}", text.text);
        ends[[Finish::Grammar, Finish::StopToken, Finish::GrammarLimit, Finish::MaxTokens]
            .iter()
            .position(|end| *end == expected)
            .expect("one of four")] += 1;
        assert!(finish.is_none() || fits(&text.text), "{params:?}: {}", text.text);
        given.push((params, text));
    }
    println!("ended by their grammar, by a stop token, stuck, and cut: {ends:?}");
    assert!(repeats(60) < 60 || ends[..3].iter().all(|&count| count > 0), "{ends:?}");
    drop(plain);

    // Side by side with others that have none, more than there is room for; with guesses for these; alone in a batch.
    let engine = |lookup: usize, size| builder().lookup(lookup).max_batch(size).build_batch();
    for (lookup, size) in [(0, 4), (0, 16), (12, 7), (0, 1)] {
        let mut engine: BatchEngine = engine(lookup, size).expect("a batch");
        let free = SamplingParams { max_tokens: repeats(40), ..SamplingParams::default() };
        let some = given.iter().step_by(if size == 1 { 3 } else { 1 });
        let all: Vec<_> = some.flat_map(|(params, _)| [params.clone(), free.clone()]).collect();
        let prompts = vec![prompt.clone(); all.len()];
        let texts = engine.generate(&prompts, &all, |_, _| ControlFlow::Continue(()));
        let texts = texts.expect("texts");
        let some = given.iter().step_by(if size == 1 { 3 } else { 1 });
        for ((params, expected), text) in some.zip(texts.iter().step_by(2)) {
            let found = (&text.tokens, text.finish, &text.text);
            let expected = (&expected.tokens, expected.finish, &expected.text);
            assert_eq!(found, expected, "{lookup} {size} {params:?}");
        }
        let first = &texts[1].tokens;
        assert!(texts.iter().skip(1).step_by(2).all(|text| &text.tokens == first));
    }

    // One at a time with guesses for texts without a grammar.
    let mut solo = builder().lookup(8).build().expect("a session");
    for (params, expected) in given.iter().step_by(4) {
        let text = solo.generate(&prompt, params, |_| ControlFlow::Continue(())).expect("a text");
        assert_eq!((&text.tokens, text.finish), (&expected.tokens, expected.finish));
    }
}

#[test]
fn what_is_no_grammar_is_refused() {
    let _shared = lane::shared();
    let mut session = builder().build().expect("a session");
    let prompt = session.encode("fn").expect("a prompt");
    let long = "a".repeat(300 << 10);
    for grammar in [
        Grammar::Regex("(".into()),
        Grammar::Regex(long.clone()),
        Grammar::Regex(String::new()),
        Grammar::Lark("start: nothing".into()),
        Grammar::Lark("no grammar".into()),
        Grammar::JsonSchema(json!({ "type": "nothing" })),
        Grammar::JsonSchema(json!({ "$ref": "https://example.com/schema.json" })),
        Grammar::JsonSchema(json!({ "type": "string", "unheard": 1, "not": {} })),
        Grammar::JsonSchema(json!(false)),
        Grammar::JsonSchema(json!(7)),
    ] {
        let shown = format!("{grammar:?}").chars().take(100).collect::<String>();
        let params = SamplingParams { grammar: Some(grammar), ..SamplingParams::default() };
        let refused = session.generate(&prompt, &params, |_| ControlFlow::Continue(()));
        let Err(error) = refused else { panic!("{shown} was taken") };
        println!("{shown}: {error}");
    }
    assert!(Grammar::choice::<&str>(&[]).is_err() && Grammar::choice(&["a", ""]).is_err());
    // The session can be used as before.
    let params = SamplingParams { max_tokens: 3, ..SamplingParams::default() };
    assert!(session.generate(&prompt, &params, |_| ControlFlow::Continue(())).is_ok());
}

/// Texts are taken out at any time, also while somebody looks for what may follow, and others come in their places, beside texts without a grammar.
#[test]
fn texts_that_leave_are_forgotten() {
    let _shared = lane::shared();
    let mut plain = builder().build().expect("a session");
    let prompt = plain.encode("fn main() {\n    let ").expect("a prompt");
    let mut all: Vec<_> = cases().into_iter().step_by(3).map(|(params, _)| params).collect();
    all.iter_mut().for_each(|params| params.max_tokens = 12);
    all.push(SamplingParams { grammar: None, max_tokens: 20, ..all[0].clone() });
    let given: Vec<_> = all
        .iter()
        .map(|params| plain.generate(&prompt, params, |_| ControlFlow::Continue(())))
        .map(|text| text.expect("a text"))
        .collect();
    drop(plain);
    let mut engine = builder().max_batch(3).build_batch().expect("a batch");
    // What was compiled for others is refused.
    let tokenizer = engine.tokenizer().expect("the demo model has one");
    let other = GrammarCompiler::new(tokenizer, engine.config().vocab_size - 1).expect("tokens");
    let grammar = Grammar::Regex("[a-z]+".into());
    let mut made = Some(other.compile(&grammar).expect("a grammar"));
    assert!(engine.add_constrained(&prompt, &all[0], &mut made).is_err() && engine.is_empty());
    let mut seeded = Seeded::new(7);
    let (mut there, mut whole, mut cut) = (Vec::new(), 0, 0);
    while whole < repeats(60) {
        while there.len() < 3 {
            let (of, grammars) = (seeded.below(all.len()), engine.grammars());
            // Some are compiled aside.
            let aside = all[of].grammar.as_ref().filter(|_| seeded.below(2) == 0);
            let mut made = aside.map(|grammar| grammars.compile(grammar).expect("a grammar"));
            let id = engine.add_constrained(&prompt, &all[of], &mut made).expect("a place");
            assert!(made.is_none());
            there.push((id, of, Vec::new()));
        }
        for output in engine.step().expect("a step") {
            let at = there.iter().position(|(id, ..)| *id == output.id).expect("it is there");
            there[at].2.push(output.token);
            if let Some(text) = output.finished {
                let (_, of, _) = there.remove(at);
                let found = (&text.tokens, text.finish);
                assert_eq!(found, (&given[of].tokens, given[of].finish), "{of}");
                whole += 1;
            }
        }
        if seeded.below(4) == 0 && !there.is_empty() {
            let (id, of, tokens) = there.remove(seeded.below(there.len()));
            let text = engine.remove_request(id).expect("no failure").expect("it is there");
            assert_eq!(text.tokens, tokens);
            assert!(given[of].tokens.starts_with(&tokens), "{of}");
            cut += 1;
        }
    }
    assert!(cut > 0 || whole < 10);
}
