//! `bitnet generate --prompts`: continues the prompts of a file side by side.

use crate::engine;
use crate::failure::Failure;
use crate::generate::{GenerateArgs, read_prompts};
use crate::output::{Output, human_bytes, human_seconds};
use crate::{interrupt, locate};
use bitnet_gpu::session::{
    Finish, GenerateStats, LoadStats, Lookup, SessionBuilder, SessionError, TokenLogprobs,
};
use bitnet_gpu::text::{Message, SamplingParams};
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    model: String,
    device: String,
    /// The same, one by one.
    devices: Vec<String>,
    texts: Vec<Text<'a>>,
    params: &'a SamplingParams,
    load: LoadStats,
    seconds: f64,
    generated_tokens: usize,
    tokens_per_second: f64,
    memory_bytes: usize,
    host_peak_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Text<'a> {
    prompt: &'a str,
    text: &'a str,
    tokens: &'a [u32],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    logprobs: &'a [TokenLogprobs],
    finish: Finish,
    stats: &'a GenerateStats,
}

/// Each prompt gives the text that it gives alone, with the same parameters.
pub(crate) fn run(
    args: &GenerateArgs,
    file: &Path,
    params: &SamplingParams,
    output: &Output,
) -> Result<(), Failure> {
    let prompts = read_prompts(file)?;
    let path = locate::model(args.engine.model.as_deref(), output)?;
    interrupt::install();
    let devices = args.engine.device.resolve().map_err(SessionError::from)?;
    let most = usize::from(args.batch).min(prompts.len().div_ceil(devices.len()));
    let batch = |builder: SessionBuilder| builder.max_batch(most);
    let mut engine = engine::open_batch(&path, &args.engine, Lookup::default(), batch, output)?;
    if let Some(file) = &args.engine.profile {
        engine::expect_profile(engine.profile()?, &engine.device(), file)?;
    }
    let ids: Vec<_> = if args.chat {
        let system = args.system.iter().map(|text| Message::new("system", text));
        let encoded = prompts.iter().map(|prompt| {
            let messages: Vec<Message> =
                system.clone().chain([Message::new("user", &**prompt)]).collect();
            engine.encode_chat(&messages)
        });
        encoded.collect::<Result<_, _>>()?
    } else {
        prompts.iter().map(|prompt| engine.encode(prompt)).collect::<Result<_, _>>()?
    };
    let started = Instant::now();
    let same = vec![params.clone(); prompts.len()];
    let texts = engine.generate(&ids, &same, |_, _| match interrupt::asked() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let tokens: usize = texts.iter().map(|text| text.tokens.len()).sum();
    let rate = tokens as f64 / seconds.max(1e-9);
    let memory = engine.memory();
    if output.json {
        let texts = prompts.iter().zip(&texts).map(|(prompt, text)| Text {
            prompt,
            text: &text.text,
            tokens: &text.tokens,
            logprobs: &text.logprobs,
            finish: text.finish,
            stats: &text.stats,
        });
        output.document(&Document {
            model: path.display().to_string(),
            device: engine.device(),
            devices: engine.devices(),
            texts: texts.collect(),
            params,
            load: engine.load_stats().clone(),
            seconds,
            generated_tokens: tokens,
            tokens_per_second: rate,
            memory_bytes: memory.in_use_bytes,
            host_peak_bytes: engine::host_peak_bytes(),
        })?;
    } else {
        for (i, (prompt, text)) in prompts.iter().zip(&texts).enumerate() {
            output.line(&format!("[{}] {prompt}\n{}\n", i + 1, text.text))?;
        }
        let (took, pages) = (human_seconds(seconds), engine.pages());
        for line in [
            format!(
                "texts    {} on {}, at most {} at once",
                texts.len(),
                engine.device(),
                engine.max_batch()
            ),
            format!("decode   {tokens} tokens in {took} with their prompts, {rate:.1} tok/s"),
            format!(
                "memory   {} for the model; at most {} of {} pages of the cache in use",
                human_bytes(memory.in_use_bytes as u64),
                pages.peak,
                pages.total
            ),
        ] {
            output.note(&output.paint("2", &line));
        }
        if !params.is_greedy() {
            output.note(&output.paint("2", &format!("seed     {}", params.seed)));
        }
    }
    if let Some(file) = &args.engine.profile {
        engine::write_profile(engine.profile()?, file, output)?;
    }
    if interrupt::asked() { Err(Failure::Interrupted) } else { Ok(()) }
}
