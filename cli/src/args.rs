//! The command line: what every subcommand takes, and how a value is written.
//!
//! Every option is also an environment variable, `BITNET_` and its name. Ranges that the library
//! knows (sampling) are checked there, so that a program and the command line meet the same rules.

#[cfg(feature = "server")]
use crate::serve;
use crate::{chat, completions, convert, doctor, generate, inspect, perplexity, synth, tune};
use bitnet_gpu::device_choice::DeviceChoice;
use bitnet_gpu::text::{Grammar, MAX_GRAMMAR_BYTES, SamplingParams};
use clap::builder::{FalseyValueParser, Resettable};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs BitNet b1.58 models on NVIDIA GPUs and on the CPU, with the same result.
#[derive(Parser)]
#[command(name = "bitnet", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Print one JSON document on standard output instead of text
    #[arg(long, global = true, env = "BITNET_JSON", value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
    /// Print no progress and no statistics
    #[arg(short, long, global = true, env = "BITNET_QUIET", value_parser = FalseyValueParser::new())]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Every option is also an environment variable: --max-tokens is BITNET_MAX_TOKENS.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C.
Colours: NO_COLOR turns them off, CLICOLOR_FORCE=1 on.";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt
    Generate(generate::GenerateArgs),
    /// Talk with a model
    Chat(chat::ChatArgs),
    /// Serve a model over HTTP, with the completions of the OpenAI API
    #[cfg(feature = "server")]
    Serve(serve::ServeArgs),
    /// Measure how well a model knows a text
    Perplexity(perplexity::PerplexityArgs),
    /// Show what is in a checkpoint
    Inspect(inspect::InspectArgs),
    /// Write a checkpoint in another packed form, without loss
    Convert(convert::ConvertArgs),
    /// Write a checkpoint of seeded random weights
    Synth(synth::SynthArgs),
    /// Show driver, devices, kernels and settings, and check that they work
    Doctor(doctor::DoctorArgs),
    /// Measure which kernel variants are the fastest for a model on this GPU, once
    Tune(tune::TuneArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

/// Which model, and on what.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct EngineArgs {
    /// Folder, file, or hub name ORG/NAME or ORG/NAME@REVISION; the demo model when not given
    #[arg(short, long, env = "BITNET_MODEL", value_name = "PATH|ORG/NAME")]
    pub(crate) model: Option<String>,
    /// auto (the first GPU, else the CPU), cpu, cuda or cuda:N; with --prompts and in a server several GPUs too, each with the whole
    /// model: cuda:N,M and so on, or cuda:all
    #[arg(short, long, env = "BITNET_DEVICE", default_value = "auto")]
    pub(crate) device: DeviceChoice,
    /// Threads of the CPU backend [default: all cores]
    #[arg(long, env = "BITNET_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Longest context in tokens, prompt and answer together [default: the model's, at most 4096]
    #[arg(long, env = "BITNET_CTX", value_name = "TOKENS",
          value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub(crate) ctx: Option<u32>,
    /// Type of the key and value cache: bf16, f32, or with --prompts and in a server int8 (MXINT8: half the memory of bf16, rounded to some 7 bits)
    #[arg(long, env = "BITNET_KV", default_value = "bf16", hide_possible_values = true)]
    pub(crate) kv: KvChoice,
    /// exact: the same bits however a text runs; fast: attention of prompts, and of steps of more than a few texts, on tensor
    /// cores, where the GPU has them
    #[arg(long, env = "BITNET_ATTENTION", default_value = "exact", hide_possible_values = true)]
    pub(crate) attention: AttentionChoice,
    /// int8: next tokens by way of a copy of the head in memory; stored: the same tokens by the model's own table, slower;
    /// auto: int8 on a GPU with room for it
    #[arg(long, env = "BITNET_HEAD", default_value = "auto", hide_possible_values = true)]
    pub(crate) head: HeadChoice,
    /// Bits of a ternary weight on the device: 2bit, 1.6bit (a fifth less memory, the same tokens, slower where not measured
    /// to be faster), or auto, by what `bitnet tune` has measured
    #[arg(long, env = "BITNET_WEIGHTS", default_value = "auto", hide_possible_values = true)]
    pub(crate) weights: WeightsChoice,
    /// Guess up to N tokens at once by what stood behind the same words before, and check them together: the same text, several tokens at a time where it repeats its
    /// prompt or itself; 0 for none [default: 31 of chat and serve on a GPU that is fast at it, with exact attention; else 0]
    #[arg(long, env = "BITNET_LOOKUP", value_name = "N", value_parser = clap::value_parser!(u16).range(0..=255))]
    pub(crate) lookup: Option<u16>,
    /// Most device memory to use, such as 6GiB
    #[arg(long, env = "BITNET_POOL_CAP", value_name = "BYTES", value_parser = byte_count)]
    pub(crate) pool_cap: Option<u64>,
    /// Time every kernel: a table on standard error, a Chrome trace in FILE
    #[arg(long, env = "BITNET_PROFILE", value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Read the weights instead of mapping the file
    #[arg(long, env = "BITNET_NO_MMAP", value_parser = FalseyValueParser::new())]
    pub(crate) no_mmap: bool,
    /// Launch kernels one by one instead of as a CUDA graph
    #[arg(long, env = "BITNET_NO_GRAPH", value_parser = FalseyValueParser::new())]
    pub(crate) no_graph: bool,
    /// Start no kernel before its predecessor has ended
    #[arg(long, env = "BITNET_NO_PDL", value_parser = FalseyValueParser::new())]
    pub(crate) no_pdl: bool,
    /// Leave out what `bitnet tune` has measured
    #[arg(long, env = "BITNET_NO_TUNE", value_parser = FalseyValueParser::new())]
    pub(crate) no_tune: bool,
    /// Choose kernel variants by this record of `bitnet tune` alone
    #[arg(long, env = "BITNET_TUNE_FILE", value_name = "FILE", conflicts_with = "no_tune")]
    pub(crate) tune_file: Option<PathBuf>,
    /// Run the layers of a decode step as several kernels each
    #[arg(long, env = "BITNET_NO_ONE_KERNEL", value_parser = FalseyValueParser::new())]
    pub(crate) no_one_kernel: bool,
}

/// How tokens are chosen and when to stop.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Most tokens to generate
    #[arg(short = 'n', long, env = "BITNET_MAX_TOKENS", default_value_t = 256)]
    pub(crate) max_tokens: usize,
    /// 0 takes the most likely token
    #[arg(
        short,
        long,
        env = "BITNET_TEMPERATURE",
        allow_negative_numbers = true,
        default_value_t = 0.8
    )]
    pub(crate) temperature: f32,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, env = "BITNET_TOP_K", value_name = "K", default_value_t = 40)]
    pub(crate) top_k: u32,
    /// Keep the most likely tokens that together reach P
    #[arg(
        long,
        env = "BITNET_TOP_P",
        allow_negative_numbers = true,
        value_name = "P",
        default_value_t = 0.95
    )]
    pub(crate) top_p: f32,
    /// Drop tokens below P times the most likely one
    #[arg(
        long,
        env = "BITNET_MIN_P",
        allow_negative_numbers = true,
        value_name = "P",
        default_value_t = 0.0
    )]
    pub(crate) min_p: f32,
    /// Above 1: tokens already present become less likely
    #[arg(
        long,
        env = "BITNET_REPETITION_PENALTY",
        allow_negative_numbers = true,
        value_name = "X",
        default_value_t = 1.0
    )]
    pub(crate) repetition_penalty: f32,
    /// Above 0: tokens that the text has given become less likely
    #[arg(
        long,
        env = "BITNET_PRESENCE_PENALTY",
        allow_negative_numbers = true,
        value_name = "X",
        default_value_t = 0.0
    )]
    pub(crate) presence_penalty: f32,
    /// Above 0: tokens become less likely each time that the text gives them
    #[arg(
        long,
        env = "BITNET_FREQUENCY_PENALTY",
        allow_negative_numbers = true,
        value_name = "X",
        default_value_t = 0.0
    )]
    pub(crate) frequency_penalty: f32,
    /// Add X to the logit of token ID; may be given several times
    #[arg(long, env = "BITNET_LOGIT_BIAS", value_name = "ID=X", value_delimiter = ',', value_parser = bias_of)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text on every device [default: from the clock, and reported]
    #[arg(short, long, env = "BITNET_SEED")]
    pub(crate) seed: Option<u64>,
    /// Stop before this text; may be given several times
    #[arg(long, env = "BITNET_STOP", value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// The text is JSON of the schema in FILE
    #[arg(long, env = "BITNET_JSON_SCHEMA", value_name = "FILE", value_parser = schema_of,
          conflicts_with_all = ["regex", "grammar"])]
    pub(crate) json_schema: Option<serde_json::Value>,
    /// The text is what this regular expression matches as a whole
    #[arg(
        long,
        env = "BITNET_REGEX",
        value_name = "PATTERN",
        allow_hyphen_values = true,
        conflicts_with = "grammar"
    )]
    pub(crate) regex: Option<String>,
    /// The text is what the grammar in FILE says, in the form of Lark
    #[arg(long, env = "BITNET_GRAMMAR", value_name = "FILE", value_parser = grammar_of)]
    pub(crate) grammar: Option<String>,
    /// Go on after the model's end token
    #[arg(long, env = "BITNET_IGNORE_EOS", value_parser = FalseyValueParser::new())]
    pub(crate) ignore_eos: bool,
}

/// The command line's definition. The variables are named by a rule, so the help does not list them.
pub(crate) fn command() -> clap::Command {
    let hide = |command: clap::Command| command.mut_args(|arg| arg.hide_env(true));
    hide(Cli::command()).mut_subcommands(hide)
}

/// Options that say different things about one matter.
const RIVALS: [&[&str]; 7] = [
    &["json_schema", "regex", "grammar"],
    &["prompt", "prompt_file", "prompts"],
    &["chat", "raw"],
    &["logits", "prompts"],
    &["logits", "lookup"],
    &["tune_file", "no_tune"],
    &["kernel", "no_checks"],
];

/// Reads the command line, which wins over the environment: where it has an option, the variables of that option's
/// rivals are not looked at, nor is `BITNET_SYSTEM` by a `generate` that sends no conversation.
pub(crate) fn parse(words: Vec<OsString>) -> ArgMatches {
    let definition = command();
    // A look at the words alone. Help and mistakes are the second reading's.
    let deaf = |command: clap::Command| command.mut_args(|arg| arg.env(Resettable::Reset));
    let alone = deaf(definition.clone()).mut_subcommands(deaf).ignore_errors(true);
    let Ok(first) = alone.try_get_matches_from(&words) else {
        return definition.get_matches_from(words);
    };
    let Some((name, found)) = first.subcommand() else {
        return definition.get_matches_from(words);
    };
    let options = definition.find_subcommand(name).into_iter().flat_map(|c| c.get_arguments());
    let options: Vec<String> = options.map(|option| option.get_id().to_string()).collect();
    let known = |id: &str| options.iter().any(|option| option == id);
    let given = |id: &str| known(id) && found.value_source(id) == Some(ValueSource::CommandLine);
    let rivals = RIVALS.iter().filter(|group| group.iter().any(|id| given(id)));
    let mut unheard: Vec<&str> = rivals.flat_map(|group| *group).copied().collect();
    let chat = given("chat") || !given("raw") && is_on("BITNET_CHAT");
    if known("chat") && !chat {
        unheard.push("system");
    }
    unheard.retain(|id| known(id) && !given(id));
    definition
        .mut_subcommand(name, |command| {
            unheard
                .iter()
                .fold(command, |command, id| command.mut_arg(id, |arg| arg.env(Resettable::Reset)))
        })
        .get_matches_from(words)
}

/// Whether a variable switches its flag on, by the rule of [`FalseyValueParser`].
fn is_on(variable: &str) -> bool {
    let off = ["", "0", "f", "false", "n", "no", "off"];
    std::env::var(variable).is_ok_and(|value| !off.contains(&value.to_lowercase().as_str()))
}

impl SamplingArgs {
    /// What the text has to be.
    fn grammar(&self) -> Option<Grammar> {
        let schema = self.json_schema.clone().map(Grammar::JsonSchema);
        let regex = || self.regex.clone().map(Grammar::Regex);
        schema.or_else(regex).or_else(|| self.grammar.clone().map(Grammar::Lark))
    }

    /// The library's parameters, with `seed` where none was given.
    pub(crate) fn params(&self, seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            logprobs: None,
            prompt_logprobs: None,
            seed: self.seed.unwrap_or(seed),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            stop_ids: Vec::new(),
            ignore_eos: self.ignore_eos,
            grammar: self.grammar(),
        }
    }
}

/// `17=-100`: a token and what is added to its logit.
fn bias_of(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("this is not ID=X, such as 17=-100")?;
    let id = id.trim().parse().map_err(|e| format!("the token: {e}"))?;
    Ok((id, bias.trim().parse().map_err(|e| format!("what is added: {e}"))?))
}

/// The text of a file with a grammar.
fn grammar_of(path: &str) -> Result<String, String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let most = MAX_GRAMMAR_BYTES as u64 + 1;
    file.take(most).read_to_string(&mut text).map_err(|e| e.to_string())?;
    match text.len() > MAX_GRAMMAR_BYTES {
        true => Err(format!("it has more than {MAX_GRAMMAR_BYTES} bytes")),
        false => Ok(text),
    }
}

/// The schema in a file.
fn schema_of(path: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(&grammar_of(path)?).map_err(|e| e.to_string())
}

/// Type of the key and value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvChoice {
    Bf16,
    F32,
    Int8,
}

/// How attention of prompts and batches is summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttentionChoice {
    Exact,
    Fast,
}

/// How the next token is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeadChoice {
    Auto,
    Stored,
    Int8,
}

/// How ternary weights lie on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightsChoice {
    Auto,
    #[value(name = "2bit")]
    Bits2,
    #[value(name = "1.6bit")]
    Trits,
}

/// `512`, `64MiB`, `6GiB`, `1.5G`: binary multiples, whatever the spelling.
pub(crate) fn byte_count(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        other => return Err(format!("{other:?} is no unit; use B, KiB, MiB, GiB or TiB")),
    };
    let value: f64 = number.parse().map_err(|_| "expected a size such as 6GiB".to_owned())?;
    let bytes = value * (1_u64 << shift) as f64;
    if !(1.0..9.0e15).contains(&bytes) {
        return Err("expected a size between 1 byte and 8191 TiB".into());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_option_has_its_variable() {
        for command in std::iter::once(&Cli::command()).chain(Cli::command().get_subcommands()) {
            for arg in command.get_arguments().filter(|a| a.get_long().is_some()) {
                let long = arg.get_long().unwrap();
                if ["help", "version"].contains(&long) {
                    continue;
                }
                let expected = format!("BITNET_{}", long.to_uppercase().replace('-', "_"));
                let env = arg.get_env().and_then(|e| e.to_str());
                assert_eq!(env, Some(expected.as_str()), "--{long} of {}", command.get_name());
            }
        }
    }

    /// One variable sets the option of every command that has it, so it must mean the same to all of them.
    #[test]
    fn a_variable_takes_the_same_values_everywhere() {
        let mut seen = std::collections::BTreeMap::new();
        for command in Cli::command().get_subcommands() {
            for arg in command.get_arguments() {
                let Some(env) = arg.get_env().and_then(|e| e.to_str()) else { continue };
                let values: Vec<_> =
                    arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect();
                let first = seen.entry(env.to_owned()).or_insert_with(|| values.clone());
                assert_eq!(*first, values, "{env} of {}", command.get_name());
            }
        }
    }

    #[test]
    fn sizes_are_read_and_refused() {
        assert_eq!(byte_count("512"), Ok(512));
        assert_eq!(byte_count("1.5GiB"), Ok(3 << 29));
        assert_eq!(byte_count("6 gb"), Ok(6 << 30));
        for bad in ["", "GiB", "1x", "-1", "0", "1e3", "99999999T", "1.2.3"] {
            assert!(byte_count(bad).is_err(), "{bad}");
        }
    }
}
