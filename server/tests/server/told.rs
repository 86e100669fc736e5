//! What is told beside a text, and what changes it.

use super::*;

/// Log probabilities are the library's, in the forms of both paths; a prompt that is given back begins the text.
#[test]
fn log_probabilities_are_told() {
    let server = Server::demo(2);
    let mut engine = builder(&demo()).max_batch(1).build_batch().expect("the demo model");
    let ids = engine.encode(PROMPT).expect("ids");
    let asking = SamplingParams { logprobs: Some(2), prompt_logprobs: Some(2), ..params(1) };
    let texts =
        engine.generate(std::slice::from_ref(&ids), &[asking], |_, _| ControlFlow::Continue(()));
    let alone = texts.expect("a text").remove(0);
    let tokenizer = engine.tokenizer().expect("the demo model has one");
    let text_of = |id: u32| {
        let bytes = tokenizer.token_bytes(id).expect("a token");
        String::from_utf8_lossy(bytes).into_owned()
    };
    let numbers = |told: &Value| -> Vec<Option<f32>> {
        let told = told["token_logprobs"].as_array().expect("numbers");
        told.iter().map(|number| number.as_f64().map(|number| number as f32)).collect()
    };
    let expected: Vec<_> = alone.logprobs.iter().map(|told| Some(told.logprob)).collect();
    let of_prompt = alone.prompt_logprobs.iter().map(|told| Some(told.logprob));
    let of_prompt: Vec<_> = std::iter::once(None).chain(of_prompt).collect();

    let mut request = asked(&json!(PROMPT), 1);
    request["logprobs"] = json!(2);
    let (status, body) = server.post("/v1/completions", &request);
    assert_eq!(status, 200, "{body}");
    let choice = document(&body)["choices"][0].clone();
    assert_eq!(choice["text"], json!(alone.text));
    let told = &choice["logprobs"];
    assert_eq!(numbers(told), expected);
    let tokens: Vec<_> = alone.tokens.iter().map(|&id| text_of(id)).collect();
    assert_eq!(told["tokens"], json!(tokens));
    for (i, logprobs) in alone.logprobs.iter().enumerate() {
        let top = told["top_logprobs"][i].as_object().expect("tokens");
        let likely = top[&text_of(logprobs.top[0].0)].as_f64().expect("a number");
        assert_eq!(likely as f32, logprobs.top[0].1);
        assert!(top.contains_key(&tokens[i]) && (1..=3).contains(&top.len()), "{top:?}");
    }
    let lengths = tokens.iter().map(|token| token.chars().count());
    let offsets: Vec<_> =
        lengths.scan(0, |at, len| Some(std::mem::replace(at, *at + len))).collect();
    assert_eq!(told["text_offset"], json!(offsets));

    // A token at a time.
    request["stream"] = json!(true);
    let (_, body) = server.post("/v1/completions", &request);
    let all = events(&body);
    let told: Vec<_> = all.iter().map(|event| &event["choices"][0]["logprobs"]).collect();
    let of_events: Vec<_> =
        told.iter().filter(|told| !told.is_null()).flat_map(|told| numbers(told)).collect();
    assert_eq!(of_events, expected);
    let of_events: Vec<_> =
        told.iter().flat_map(|told| told["text_offset"].as_array()).flatten().collect();
    assert_eq!(json!(of_events), json!(offsets));

    // With the prompt, of a text and of no tokens, by words and by ids.
    request = asked(&json!(PROMPT), 1);
    (request["logprobs"], request["echo"]) = (json!(2), json!(true));
    let (_, body) = server.post("/v1/completions", &request);
    let choice = document(&body)["choices"][0].clone();
    assert_eq!(choice["text"], json!(format!("{PROMPT}{}", alone.text)));
    assert_eq!(numbers(&choice["logprobs"]), [&of_prompt[..], &expected[..]].concat());
    assert_eq!(choice["logprobs"]["top_logprobs"][0], Value::Null);
    (request["max_tokens"], request["prompt"]) = (json!(0), json!(ids));
    let (_, body) = server.post("/v1/completions", &request);
    let answer = document(&body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(PROMPT), &json!("length")));
    assert_eq!(numbers(&choice["logprobs"]), of_prompt);
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    request["logprobs"] = Value::Null;
    let (_, body) = server.post("/v1/completions", &request);
    assert_eq!(document(&body)["choices"][0]["logprobs"], Value::Null);

    // A conversation has a form of its own.
    let folder = templated();
    let server = Server::start(folder.path(), 2, Settings::new("demo"));
    let mut request = json!({
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "logprobs": true, "top_logprobs": 1, "temperature": 0,
    });
    let (_, body) = server.post("/v1/chat/completions", &request);
    let choice = document(&body)["choices"][0].clone();
    let content = choice["logprobs"]["content"].as_array().expect("tokens").clone();
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect();
    let text = choice["message"]["content"].as_str().expect("a text");
    assert!(
        !text.is_empty() && String::from_utf8(bytes).expect("UTF-8").starts_with(text),
        "{body}"
    );
    for token in &content {
        // The most likely one was taken.
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
    }
    request["stream"] = json!(true);
    let (_, body) = server.post("/v1/chat/completions", &request);
    let all = events(&body);
    let streamed =
        all.iter().flat_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(streamed.flatten().collect::<Vec<_>>(), content.iter().collect::<Vec<_>>());
}

/// Several choices are those of seeds behind each other; what is added to logits and taken off them counts.
#[test]
fn choices_biases_and_penalties() {
    let server = Server::demo(3);
    let mut request = asked(&json!([PROMPT, "use std::"]), 5);
    request["n"] = json!(3);
    let (status, body) = server.post("/v1/completions", &request);
    assert_eq!(status, 200, "{body}");
    let several = document(&body);
    for (i, prompt) in [PROMPT, "use std::"].iter().enumerate() {
        for j in 0..3 {
            let choice = &several["choices"][3 * i + j];
            let wanted = alone(prompt, &params(5 + j as u64));
            assert_eq!((&choice["index"], &choice["text"]), (&json!(3 * i + j), &json!(wanted)));
        }
    }
    let changed = SamplingParams {
        logit_bias: vec![(300, 3.5), (275, -100.0)],
        presence_penalty: 0.5,
        frequency_penalty: 1.25,
        ..params(5)
    };
    request = asked(&json!(PROMPT), 5);
    request["logit_bias"] = json!({"300": 3.5, "275": -100});
    (request["presence_penalty"], request["frequency_penalty"]) = (json!(0.5), json!(1.25));
    let (status, body) = server.post("/v1/completions", &request);
    assert_eq!(status, 200, "{body}");
    let wanted = alone(PROMPT, &changed);
    assert_eq!(document(&body)["choices"][0]["text"], json!(wanted));
    assert_ne!(wanted, alone(PROMPT, &params(5)));
    request["logit_bias"] = json!({"123456789": 1});
    let (status, body) = server.post("/v1/completions", &request);
    assert!(status == 400 && body.contains("logit_bias"), "{body}");
}
