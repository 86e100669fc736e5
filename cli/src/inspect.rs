//! `bitnet inspect`: what is in a checkpoint, and what it would take on the device.
//!
//! Every ternary and every scale is read, so that a file which passes is known to be whole.

use crate::failure::Failure;
use crate::locate;
use crate::output::{Output, human_bytes};
use crate::progress::Progress;
use bitnet_gpu::checkpoint::{Checkpoint, OpenOptions, Report, inspect};
use bitnet_gpu::text::Tokenizer;
use clap::Args;
use clap::builder::FalseyValueParser;
use serde::Serialize;

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// Folder, file, or hub name ORG/NAME or ORG/NAME@REVISION; the demo model when not given
    #[arg(env = "BITNET_MODEL", value_name = "PATH|ORG/NAME")]
    model: Option<String>,
    /// List every tensor and every projection
    #[arg(long, env = "BITNET_TENSORS", value_parser = FalseyValueParser::new())]
    tensors: bool,
    /// Round float weights to ternaries even when nothing says they were trained for it
    #[arg(long, env = "BITNET_TERNARISE_ANY", value_parser = FalseyValueParser::new())]
    ternarise_any: bool,
    /// Read the weights instead of mapping the file
    #[arg(long, env = "BITNET_NO_MMAP", value_parser = FalseyValueParser::new())]
    no_mmap: bool,
}

/// The tokenizer beside the weights or inside the file.
#[derive(Serialize)]
struct TokenizerReport {
    ids: usize,
    bos: Option<u32>,
    adds_bos: bool,
    stop_ids: Vec<u32>,
    chat_template: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    report: Report,
    tokenizer: Option<TokenizerReport>,
}

pub(crate) fn run(args: InspectArgs, output: &Output) -> Result<(), Failure> {
    let path = locate::model(args.model.as_deref(), output)?;
    let options = OpenOptions::default().mmap(!args.no_mmap).ternarise_any(args.ternarise_any);
    let checkpoint = Checkpoint::open(&path, &options)?;
    let tokenizer = tokenizer(&checkpoint)?;
    let mut progress = Progress::new(output);
    let report = inspect(&checkpoint, &mut |done, total| progress.set("reading", done, total))?;
    drop(progress);
    let document = Document { report, tokenizer };
    if output.json {
        output.document(&document)?;
    } else {
        output.stream(&text(&document, args.tensors, output))?;
    }
    Ok(())
}

fn tokenizer(checkpoint: &Checkpoint) -> Result<Option<TokenizerReport>, Failure> {
    let Some(tokenizer) = Tokenizer::of_checkpoint(checkpoint)? else { return Ok(None) };
    Ok(Some(TokenizerReport {
        ids: tokenizer.vocab_len(),
        bos: tokenizer.bos(),
        adds_bos: tokenizer.adds_bos(),
        stop_ids: tokenizer.stop_ids().to_vec(),
        chat_template: tokenizer.chat_template().is_some(),
    }))
}

fn text(document: &Document, tensors: bool, output: &Output) -> String {
    let Document { report, tokenizer } = document;
    let config = &report.config;
    let head = |title: &str| format!("{}\n", output.paint("1", title));
    let mut out = head(&report.path.display().to_string());
    let mut row = |name: &str, value: String| out += &format!("  {name:<12} {value}\n");
    row("family", format!("{}, stored as {}", config.model_type, name(&report.kind)));
    let heads =
        format!("{} heads of {} over {}", config.num_heads, config.head_dim, config.num_kv_heads);
    row(
        "sizes",
        format!(
            "{} layers, hidden {}, feed-forward {}, {heads}, vocabulary {}",
            config.num_layers, config.hidden_size, config.intermediate_size, config.vocab_size
        ),
    );
    let sub_norms = if config.sub_norms { "with" } else { "without" };
    let tied = if config.tie_word_embeddings { "tied" } else { "own" };
    row("form", format!("{}, {sub_norms} sub-norms, {tied} head", name(&config.activation)));
    row("context", format!("{} tokens, rotary base {}", config.max_positions, config.rope_theta));
    row(
        "tokenizer",
        match tokenizer {
            None => "none".into(),
            Some(t) => {
                let bos = t.bos.map_or("none".into(), |id| id.to_string());
                let chat = if t.chat_template { "with" } else { "without" };
                format!("{} ids, begin {bos}, end {:?}, {chat} chat template", t.ids, t.stop_ids)
            }
        },
    );
    let files: u64 = report.files.iter().map(|(_, bytes)| bytes).sum();
    row("files", format!("{} in {} with weights", human_bytes(files), report.files.len()));
    let device = &report.device;
    row(
        "on device",
        format!(
            "{}: projections {}, embedding {}, head {}, norms {}",
            human_bytes(device.weights()),
            human_bytes(device.projections),
            human_bytes(device.embedding),
            human_bytes(device.head),
            human_bytes(device.norms)
        ),
    );
    let saved = device.projections.saturating_sub(device.projections_trits);
    row(
        "1.6 bits",
        format!(
            "projections {}, {} less, with --weights 1.6bit",
            human_bytes(device.projections_trits),
            human_bytes(saved)
        ),
    );
    row(
        "int8 head",
        format!("{} more, on a GPU with room (--head)", human_bytes(device.head_int8)),
    );
    row(
        "per token",
        format!(
            "{} of keys and values in bf16, {} in f32, {} in int8",
            human_bytes(device.kv_per_token_bf16),
            human_bytes(device.kv_per_token_f32),
            human_bytes(device.kv_per_token_int8)
        ),
    );
    out += &head(&format!("Projections ({} ternaries)", report.ternaries));
    for p in &report.projections {
        out += &format!(
            "  {:<5} {:>6} x {:<6} scale {:.4e} to {:.4e}, {:>5.2} % zeros\n",
            p.proj.to_string(),
            p.n,
            p.k,
            p.scale_min,
            p.scale_max,
            100.0 * p.zeros
        );
    }
    if tensors {
        out += &head("Each projection");
        for l in &report.linears {
            let zeros = 100.0 * l.zeros();
            out += &format!("  {} scale {:.6e}, {zeros:.2} % zeros\n", l.tensor, l.scale);
        }
        out += &head(&format!("Tensors ({})", report.tensors.len()));
        for t in &report.tensors {
            out += &format!("  {} {} {:?} {}\n", t.name, t.stored, t.shape, human_bytes(t.bytes));
        }
    }
    out
}

/// The name that a value has in the JSON document.
fn name(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}
