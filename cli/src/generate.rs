//! `bitnet generate`: continues a prompt, streaming the text as it comes.

use crate::args::{EngineArgs, SamplingArgs};
use crate::engine::{self, Stats};
use crate::failure::Failure;
use crate::output::Output;
use crate::{batch, interrupt, locate, logits};
use bitnet_gpu::session::{Finish, Generated, Lookup, Session, TokenLogprobs};
use bitnet_gpu::text::{MAX_LOGPROBS, Message, SamplingParams};
use clap::Args;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest prompt read from a file or from standard input.
pub(crate) const MAX_PROMPT_BYTES: u64 = 16 << 20;

#[derive(Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Send the prompt as one user turn of the model's chat template
    #[arg(long, help_heading = "Prompt", env = "BITNET_CHAT", value_parser = FalseyValueParser::new(), conflicts_with = "raw")]
    pub(crate) chat: bool,
    /// Send the prompt as it is (the default)
    #[arg(long, help_heading = "Prompt", env = "BITNET_RAW", value_parser = FalseyValueParser::new())]
    raw: bool,
    /// System message in front of the prompt; needs --chat
    #[arg(
        long,
        help_heading = "Prompt",
        env = "BITNET_SYSTEM",
        value_name = "TEXT",
        requires = "chat"
    )]
    pub(crate) system: Option<String>,
    /// Most prompts of --prompts that run at once, on each device
    #[arg(long, help_heading = "Prompt", env = "BITNET_BATCH", value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) batch: u16,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// With --json: tell the log probability of every token, and the N most likely ones in its place
    #[arg(long, env = "BITNET_LOGPROBS", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_LOGPROBS)))]
    pub(crate) logprobs: Option<u32>,
    /// Write the logits of every generated token to FILE (safetensors), for comparing programs
    #[arg(long, env = "BITNET_LOGITS", value_name = "FILE", conflicts_with = "lookup")]
    logits: Option<PathBuf>,
}

#[derive(Args)]
#[command(next_help_heading = "Prompt")]
#[group(required = true, multiple = false)]
struct PromptArgs {
    /// Text to continue; - reads standard input
    #[arg(short, long, env = "BITNET_PROMPT", value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the text to continue; - reads standard input
    #[arg(short = 'f', long, env = "BITNET_PROMPT_FILE", value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// File with a prompt in each line, continued side by side; - reads standard input
    #[arg(long, env = "BITNET_PROMPTS", value_name = "FILE", conflicts_with = "logits")]
    prompts: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    model: String,
    prompt: &'a str,
    text: &'a str,
    tokens: &'a [u32],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    logprobs: &'a [TokenLogprobs],
    finish: Finish,
    params: &'a SamplingParams,
    stats: Stats,
}

pub(crate) fn run(args: GenerateArgs, output: &Output) -> Result<(), Failure> {
    let sampling = args.sampling.params(seed_from_clock());
    let params = SamplingParams { logprobs: args.logprobs, ..sampling };
    params.validate()?;
    if let Some(file) = &args.prompt.prompts {
        return batch::run(&args, file, &params, output);
    }
    let prompt = read_prompt(&args.prompt)?;
    let place = args.logits.as_deref().map(logits::Place::new).transpose()?;
    let path = locate::model(args.engine.model.as_deref(), output)?;
    interrupt::install();
    let mut session = engine::open(&path, &args.engine, Lookup::default(), output)?;
    if let Some(file) = &args.engine.profile {
        engine::expect_profile(session.profile()?, &session.device(), file)?;
    }
    let ids = if args.chat {
        let system = args.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain([Message::new("user", &*prompt)]).collect();
        session.encode_chat(&messages)?
    } else {
        session.encode(&prompt)?
    };
    let generated = stream(&mut session, &ids, &params, output)?;
    let stats = Stats::of(&session, &generated.stats);
    if output.json {
        output.document(&Document {
            model: path.display().to_string(),
            prompt: &prompt,
            text: &generated.text,
            tokens: &generated.tokens,
            logprobs: &generated.logprobs,
            finish: generated.finish,
            params: &params,
            stats,
        })?;
    } else {
        output.line("")?;
        report(&stats, &params, output);
    }
    if let Some(place) = place {
        place.write(&mut session, &ids, &generated.tokens)?;
    }
    if let Some(file) = &args.engine.profile {
        engine::write_profile(session.profile()?, file, output)?;
    }
    if interrupt::asked() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Generates and writes every piece at once, unless a document is wanted.
pub(crate) fn stream(
    session: &mut Session,
    prompt: &[u32],
    params: &SamplingParams,
    output: &Output,
) -> Result<Generated, Failure> {
    let mut failed = None;
    let generated = session.generate(prompt, params, |piece| {
        if !output.json
            && let Err(error) = output.stream(piece.text)
        {
            failed = Some(error);
            return ControlFlow::Break(());
        }
        if interrupt::asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(generated),
    }
}

/// Statistics of the last answer on standard error.
pub(crate) fn report(stats: &Stats, params: &SamplingParams, output: &Output) {
    for line in stats.lines() {
        output.note(&output.paint("2", &line));
    }
    if !params.is_greedy() {
        output.note(&output.paint("2", &format!("seed     {}", params.seed)));
    }
}

fn read_prompt(args: &PromptArgs) -> Result<String, Failure> {
    let is_stdin = |path: &Path| path == Path::new("-");
    match (&args.prompt, &args.prompt_file) {
        (Some(text), _) if text != "-" => Ok(text.clone()),
        (None, Some(path)) if !is_stdin(path) => {
            let file = std::fs::File::open(path);
            read_text(file, &format!("the prompt file {}", path.display()), MAX_PROMPT_BYTES)
        }
        _ => read_text(Ok(std::io::stdin()), "the prompt on standard input", MAX_PROMPT_BYTES),
    }
}

/// The prompts of a file: its lines, without those that are blank.
pub(crate) fn read_prompts(file: &Path) -> Result<Vec<String>, Failure> {
    let text = if file == Path::new("-") {
        read_text(Ok(std::io::stdin()), "the prompts on standard input", MAX_PROMPT_BYTES)?
    } else {
        let what = format!("the prompts in {}", file.display());
        read_text(std::fs::File::open(file), &what, MAX_PROMPT_BYTES)?
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let prompts: Vec<_> = lines.map(str::to_owned).collect();
    if prompts.is_empty() {
        return Err(Failure::new(
            format!("there is no prompt in {}", file.display()),
            "all of its lines are blank",
            "write a prompt in each line",
        ));
    }
    Ok(prompts)
}

/// Reads a text of at most `most` bytes.
pub(crate) fn read_text(
    from: std::io::Result<impl Read>,
    what: &str,
    most: u64,
) -> Result<String, Failure> {
    let mut data = Vec::new();
    from.and_then(|from| from.take(most + 1).read_to_end(&mut data)).map_err(|error| {
        let try_this = "check the path and its permissions";
        Failure::new(format!("cannot read {what}"), error.to_string(), try_this)
    })?;
    if data.len() as u64 > most {
        return Err(Failure::new(
            format!("{what} is too long"),
            format!("it has more than {most} bytes"),
            "pass a shorter text",
        ));
    }
    String::from_utf8(data).map_err(|error| {
        let because = format!("byte {} does not fit", error.utf8_error().valid_up_to());
        Failure::new(format!("{what} is not UTF-8"), because, "convert the text to UTF-8")
    })
}

/// A seed for runs that did not ask for one; it is reported, so that the run can be repeated.
pub(crate) fn seed_from_clock() -> u64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    // Short enough to type.
    nanos / 1_000 % 1_000_000_000
}
