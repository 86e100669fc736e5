//! `bitnet perplexity`: how well a model knows a text, window by window, as `llama-perplexity` counts it.

use crate::args::EngineArgs;
use crate::engine;
use crate::failure::Failure;
use crate::generate::read_text;
use crate::output::{Output, human_seconds};
use crate::progress::Progress;
use crate::{interrupt, locate};
use bitnet_gpu::session::{Lookup, SessionBuilder, SessionError, TokenLogprobs};
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Longest text.
const MAX_TEXT_BYTES: u64 = 256 << 20;
/// Windows that run at once, for each device.
const AT_ONCE: usize = 8;

#[derive(Args)]
pub(crate) struct PerplexityArgs {
    /// File with the text; - reads standard input
    #[arg(short, long, env = "BITNET_FILE", value_name = "FILE")]
    file: PathBuf,
    /// Tokens of a window. Each begins with the begin token, if the model has one, in the place of its first
    #[arg(long, env = "BITNET_WINDOW", value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    window: u32,
    /// Tokens of a window that are not counted, for want of what stands in front of them [default: half]
    #[arg(long, env = "BITNET_SKIP", value_name = "N")]
    skip: Option<u32>,
    /// Most windows to look at [default: all]
    #[arg(long, env = "BITNET_WINDOWS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    windows: Option<u32>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    model: String,
    device: String,
    perplexity: f64,
    /// Of the perplexity.
    standard_error: f64,
    /// Mean of the natural logarithms of the probabilities, with the sign turned.
    nats_per_token: f64,
    bits_per_byte: f64,
    /// Counted tokens that are the most likely ones of their places.
    top_1: f64,
    windows: usize,
    window: usize,
    skip: usize,
    /// Those that are counted.
    tokens: usize,
    seconds: f64,
    /// Of all tokens of the windows.
    tokens_per_second: f64,
}

pub(crate) fn run(args: PerplexityArgs, output: &Output) -> Result<(), Failure> {
    let window = args.window as usize;
    let skip = args.skip.map_or(window / 2, |skip| skip as usize);
    if skip + 1 >= window {
        return Err(Failure::new(
            "no token of a window is counted".to_owned(),
            format!("{skip} of {window} tokens are left out, and nothing stands behind the last"),
            "give a smaller --skip, or a larger --window",
        ));
    }
    let what = format!("the text in {}", args.file.display());
    let text = match args.file == Path::new("-") {
        true => read_text(Ok(std::io::stdin()), &what, MAX_TEXT_BYTES)?,
        false => read_text(File::open(&args.file), &what, MAX_TEXT_BYTES)?,
    };
    let path = locate::model(args.engine.model.as_deref(), output)?;
    interrupt::install();
    let devices = args.engine.device.resolve().map_err(SessionError::from)?.len();
    let mut settings = args.engine.clone();
    settings.ctx = settings.ctx.or(Some(args.window));
    let batch = |builder: SessionBuilder| builder.max_batch(AT_ONCE).prefix_cache(false);
    let mut engine = engine::open_batch(&path, &settings, Lookup::UpTo(0), batch, output)?;
    let ids = engine.encode(&text)?;
    let begin = engine.tokenizer().filter(|t| t.adds_bos()).and_then(|t| t.bos());
    let most = args.windows.map_or(usize::MAX, |most| most as usize);
    let whole = ids.chunks_exact(window).take(most);
    let windows: Vec<Vec<u32>> = whole
        .map(|ids| begin.into_iter().chain(ids[usize::from(begin.is_some())..].iter().copied()))
        .map(Iterator::collect)
        .collect();
    if windows.is_empty() {
        return Err(Failure::new(
            "the text is too short".to_owned(),
            format!("it has {} tokens, and a window {window}", ids.len()),
            "give a longer text, or a smaller --window",
        ));
    }
    let started = Instant::now();
    let mut progress = Progress::new(output);
    let (mut sum, mut squares, mut best, mut count, mut bytes) = (0.0, 0.0, 0, 0, 0);
    // Some at a time, so that it can be seen how far it is.
    for part in windows.chunks(AT_ONCE * devices * 4) {
        let flow = |_| match interrupt::asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let told = engine.score(part, 0, flow)?;
        if interrupt::asked() {
            return Err(Failure::Interrupted);
        }
        for (told, ids) in told.iter().zip(part) {
            // The first token is not told: what is told of token `i` stands at `i - 1`.
            let counted: &[TokenLogprobs] = told.get(skip..).unwrap_or_default();
            for told in counted {
                let nats = -f64::from(told.logprob);
                (sum, squares) = (sum + nats, squares + nats * nats);
                best += usize::from(told.rank == 1);
            }
            count += counted.len();
            let texts =
                ids[skip + 1..].iter().filter_map(|&id| engine.tokenizer()?.token_bytes(id));
            bytes += texts.map(<[u8]>::len).sum::<usize>();
        }
        progress.set("windows", (count / (window - 1 - skip)) as u64, windows.len() as u64);
    }
    drop(progress);
    let seconds = started.elapsed().as_secs_f64();
    let mean = sum / count as f64;
    let perplexity = mean.exp();
    let variance = (squares / count as f64 - mean * mean).max(0.0);
    let standard_error = perplexity * (variance / (count.max(2) - 1) as f64).sqrt();
    let document = Document {
        model: path.display().to_string(),
        device: engine.device(),
        perplexity,
        standard_error,
        nats_per_token: mean,
        bits_per_byte: sum / std::f64::consts::LN_2 / (bytes.max(1) as f64),
        top_1: best as f64 / count as f64,
        windows: windows.len(),
        window,
        skip,
        tokens: count,
        seconds,
        tokens_per_second: (windows.len() * window) as f64 / seconds.max(1e-9),
    };
    if output.json {
        return Ok(output.document(&document)?);
    }
    output.line(&format!("perplexity {perplexity:.4} +/- {standard_error:.4}"))?;
    output.line(&format!("bits a byte {:.4}", document.bits_per_byte))?;
    let line = format!(
        "{count} tokens of {} windows of {window}, {:.1} % of them the most likely ones; {} at {:.0} tok/s on {}",
        windows.len(),
        100.0 * document.top_1,
        human_seconds(seconds),
        document.tokens_per_second,
        document.device
    );
    output.note(&output.paint("2", &line));
    Ok(())
}
