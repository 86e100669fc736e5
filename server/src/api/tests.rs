//! What requests are taken for.

use super::*;

fn read(document: Value, chat: bool) -> Result<Asked, Refusal> {
    Asked::read(document.to_string().as_bytes(), chat, &Settings::new("m"))
}

#[test]
fn what_is_asked_is_taken() {
    let asked = read(
        json!({
            "model": "m", "prompt": ["a", "b"], "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1,
            "repetition_penalty": 1.5, "seed": 9, "ignore_eos": true, "stop": "x", "stream": true, "n": 1, "user": "me",
            "stream_options": {"include_usage": true}, "presence_penalty": 0, "logit_bias": {}, "logprobs": null,
        }),
        false,
    );
    let Asked { prompts, n, params, echo, prediction, stream, usage, chat, .. } =
        asked.expect("a request");
    assert_eq!((prediction, n, echo, params.logprobs), (None, 1, false, None));
    assert!(matches!(&prompts[..], [Prompt::Text(a), Prompt::Text(b)] if a == "a" && b == "b"));
    assert_eq!((params.max_tokens, params.seed, params.top_k), (7, 9, 3));
    assert_eq!((params.temperature, params.top_p, params.min_p), (0.5, 0.9, 0.1));
    assert_eq!((params.repetition_penalty, params.ignore_eos), (1.5, true));
    assert_eq!(params.stop, ["x"]);
    assert!(stream && usage && !chat);

    let ids = |document| read(document, false).expect("a request").prompts;
    assert!(matches!(&ids(json!({"prompt": [1, 2]}))[..], [Prompt::Ids(ids)] if ids == &[1, 2]));
    assert!(matches!(&ids(json!({"prompt": [[1], [2, 3]]}))[..], [Prompt::Ids(_), Prompt::Ids(_)]));

    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let said = json!([{"role": "system", "content": "s"}, {"role": "user", "content": parts}]);
    let asked = read(
        json!({
            "messages": said, "max_completion_tokens": 5, "prediction": {"type": "content", "content": "so"},
        }),
        true,
    );
    let asked = asked.expect("one");
    assert_eq!((asked.params.max_tokens, asked.prediction.as_deref()), (5, Some("so")));
    let Prompt::Chat(messages) = &asked.prompts[0] else { panic!("a conversation") };
    assert_eq!((&*messages[1].role, &*messages[1].content), ("user", "ab"));
}

#[test]
fn what_is_told_and_added_is_taken() {
    let asked = read(
        json!({
            "prompt": "a", "n": 3, "echo": true, "max_tokens": 0, "logprobs": 2, "presence_penalty": 0.5, "frequency_penalty": -2,
            "logit_bias": {"17": -100, "3": 1.5},
        }),
        false,
    );
    let Asked { n, params, echo, nothing, .. } = asked.expect("a request");
    assert_eq!((n, echo, nothing, params.max_tokens), (3, true, true, 1));
    assert_eq!((params.logprobs, params.prompt_logprobs), (Some(2), Some(2)));
    assert_eq!((params.presence_penalty, params.frequency_penalty), (0.5, -2.0));
    assert_eq!(params.logit_bias, [(17, -100.0), (3, 1.5)]);
    let said = json!([{"role": "user", "content": "a"}]);
    let chat = json!({"messages": said, "logprobs": true, "top_logprobs": 20, "n": 2});
    let Asked { n, params, .. } = read(chat, true).expect("a request");
    assert_eq!((n, params.logprobs, params.prompt_logprobs), (2, Some(20), None));
    for (logprobs, expected) in [(json!(0), Some(0)), (json!(false), None), (json!(true), Some(0))]
    {
        let asked = read(json!({"prompt": "a", "logprobs": logprobs}), false);
        assert_eq!(asked.expect("a request").params.logprobs, expected);
    }
}

#[test]
fn what_an_answer_has_to_be() {
    let schema = json!({"type": "integer"});
    let named = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
    let a_schema = Some(Grammar::JsonSchema(schema.clone()));
    let object = Some(Grammar::json_object());
    for (name, value, expected) in [
        ("response_format", json!({"type": "text"}), None),
        ("response_format", json!({"type": "json_object"}), object.clone()),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "n"}}),
            object.clone(),
        ),
        ("response_format", named, a_schema.clone()),
        ("structured_outputs", json!({"json": schema}), a_schema.clone()),
        ("structured_outputs", json!({"json": schema.to_string()}), a_schema),
        ("structured_outputs", json!({"json_object": true}), object),
        ("structured_outputs", json!({"json_object": false}), None),
        ("structured_outputs", json!({"regex": "a+"}), Some(Grammar::Regex("a+".into()))),
        ("structured_outputs", json!({"choice": ["a", "b"]}), Grammar::choice(&["a", "b"]).ok()),
        (
            "structured_outputs",
            json!({"grammar": "start: /a/"}),
            Some(Grammar::Lark("start: /a/".into())),
        ),
    ] {
        let asked = read(json!({"prompt": "a", name: value}), false).expect("a request");
        assert_eq!(asked.params.grammar, expected, "{name} {value}");
    }
    for (name, value) in [
        ("response_format", json!({"type": "xml"})),
        ("response_format", json!({"type": "json_schema"})),
        ("structured_outputs", json!({"json": "{"})),
        ("structured_outputs", json!({"json": {}, "regex": "a"})),
        ("structured_outputs", json!({"choice": []})),
        ("structured_outputs", json!({"structural_tag": "a"})),
    ] {
        let refusal = read(json!({"prompt": "a", name: value}), false).expect_err("a refusal");
        assert_eq!(
            (refusal.status.as_u16(), refusal.param.as_deref()),
            (400, Some(name)),
            "{value}"
        );
    }
    let both = json!({"prompt": "a", "response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}});
    assert!(read(both, false).is_err());
}

#[test]
fn seeds_are_drawn_and_defaults_kept() {
    let [a, b] = [0; 2].map(|_| read(json!({"prompt": "a"}), false).expect("a request").params);
    assert_ne!(a.seed, b.seed);
    let defaults = SamplingParams::default();
    assert_eq!((a.temperature, a.max_tokens), (defaults.temperature, defaults.max_tokens));
}

#[test]
fn what_is_not_supported_is_refused_by_its_name() {
    let many: Vec<String> = (0..65).map(|i| i.to_string()).collect();
    let wrong = [
        (json!({}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": many}), "prompt"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": [-1]}), "prompt"),
        (json!({"prompt": "a", "model": "other"}), "model"),
        (json!({"prompt": "a", "n": 0}), "n"),
        (json!({"prompt": "a", "n": 129}), "n"),
        (json!({"prompt": ["a", "b"], "n": 65}), "n"),
        (json!({"prompt": "a", "best_of": 2}), "best_of"),
        (json!({"prompt": "a", "n": 1.5}), "n"),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs"),
        (json!({"prompt": "a", "logprobs": -1}), "logprobs"),
        (json!({"prompt": "a", "top_logprobs": 1}), "top_logprobs"),
        (json!({"prompt": "a", "presence_penalty": 2.5}), "presence_penalty"),
        (json!({"prompt": "a", "logit_bias": {"1": 101}}), "logit_bias"),
        (json!({"prompt": "a", "logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"prompt": "a", "logit_bias": [1]}), "logit_bias"),
        (json!({"prompt": "a", "echo": true, "stream": true}), "echo"),
        (json!({"prompt": "a", "max_tokens": -1}), "max_tokens"),
        (json!({"prompt": "a", "max_tokens": 1e30}), "max_tokens"),
        (json!({"prompt": "a", "seed": "x"}), "seed"),
        (json!({"prompt": "a", "stop": [1]}), "stop"),
        (json!({"prompt": "a", "stop": many}), "stop"),
        (json!({"prompt": "a", "stream": 1}), "stream"),
        (json!({"prompt": "a", "stream_options": {}}), "stream_options"),
        (json!({"prompt": "a", "stream": true, "stream_options": {"x": 1}}), "stream_options"),
        (json!({"prompt": "a", "max_completion_tokens": 3}), "max_completion_tokens"),
        (json!({"prompt": "a", "messages": []}), "messages"),
        (json!({"prompt": "a", "temprature": 0.5}), "temprature"),
    ];
    for (document, name) in wrong {
        let refusal = read(document.clone(), false).expect_err("a refusal");
        assert_eq!(refusal.param.as_deref(), Some(name), "{document}: {refusal:?}");
        assert!(refusal.words.contains(name), "{refusal:?}");
    }
    for document in [
        json!({"prompt": "a", "temperature": -1}),
        json!({"prompt": "a", "max_tokens": 0}),
        json!([1]),
        json!("a"),
    ] {
        assert_eq!(read(document, false).expect_err("a refusal").status, 400);
    }
    for document in [
        json!({}),
        json!({"messages": []}),
        json!({"messages": [{"role": "user"}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}),
        json!({"messages": [{"role": "user", "content": "a"}], "prompt": "a"}),
        json!({"messages": [{"role": "user", "content": "a"}], "tools": [{}]}),
        json!({"messages": [{"role": "user", "content": "a"}], "echo": true}),
        json!({"messages": [{"role": "user", "content": "a"}], "logprobs": 3}),
        json!({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3}),
        json!({"messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 21}),
    ] {
        assert_eq!(read(document, true).expect_err("a refusal").status, 400);
    }
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    assert!(Asked::read(deep.as_bytes(), false, &Settings::new("m")).is_err());
}
