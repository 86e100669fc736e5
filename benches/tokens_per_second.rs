//! A whole model on a GPU: load time and memory, prefill and decode rates, time to the first token.
//!
//! The model is a checkpoint (`--model`) or one of seeded random weights at the full size of a
//! published model (`--config`, written to a temporary folder): speed does not depend on what the
//! weights say. Everything is measured through the public session, as a program would use it, except
//! the host's share of a token, which needs the steps one by one. Before anything is timed the
//! token ids of a short greedy text are compared over all settings: with and without graph, with
//! and without programmatic dependent launch, by the stored head and by its int8 copy.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, ensure};
use bitnet_benches::{Quantiles, Row, Suite, memory, reset_memory_peak, run};
use bitnet_gpu::checkpoint::synth::{self, NamedConfig};
use bitnet_gpu::checkpoint::{Checkpoint, ModelConfig, OpenOptions};
use bitnet_gpu::device_choice::{BackendChoice, DeviceChoice, cuda_count};
use bitnet_gpu::driver::CudaOptions;
use bitnet_gpu::model::{Model, Sequence, SequenceOptions};
use bitnet_gpu::ops::{Backend, CudaBackend, RowType};
use bitnet_gpu::reference::Inputs;
use bitnet_gpu::reference::sample::GREEDY;
use bitnet_gpu::session::{HeadKind, KvType, Math, Session};
use bitnet_gpu::text::SamplingParams;
use bitnet_gpu::tune::Tuning;
use contract::kv_append::kv_stride;
use contract::lm_head_int8::row_bytes;
use contract::w2a8::row_words;
use steps::Steps;

#[path = "tokens_per_second/drafts.rs"]
mod drafts;
#[path = "tokens_per_second/steps.rs"]
mod steps;

/// Positions of the context: prompts and texts end here at the latest.
const CONTEXT: usize = 4096;
/// Tokens that the rate at the end of the context is measured over.
const LAST: usize = 128;
/// Positions that decode rates are given up to.
const DECODE_TO: usize = 512;
/// Position windows that decode rates are given for.
const WINDOWS: &[(usize, usize)] = &[(16, 128), (128, 256), (256, 512), (16, 512)];
/// Prompt lengths of the prefill rates.
const PROMPTS: &[usize] = &[16, 64, 512];
/// Prompt lengths of the prefill rates with each kind of attention.
const LONG_PROMPTS: &[usize] = &[512, 2048];
/// Repetitions of each prefill.
const REPEATS: usize = 5;
/// Texts of each decode measurement.
const TEXTS: usize = 3;
/// Sequences at once.
const BATCHES: &[usize] = &[1, 4, 8, 12, 16, 32, 64];
/// Positions that each sequence of a batch has in front of the steps that are timed: these end at 512.
const BATCH_AT: usize = 512 - 2 * BATCH_STEPS;
/// Steps in front of those that are timed, and as many that are.
const BATCH_STEPS: usize = 32;
/// Sequences at once on each of several GPUs, texts for each place, and tokens of a text.
const EACH: &[usize] = &[8, 32, 64];
const TEXTS_A_PLACE: usize = 4;
const TEXT: usize = 256;
/// Tokens that every setting has to agree on.
const SAME_TOKENS: usize = 48;

/// How a step is launched.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    graph: bool,
    pdl: bool,
    head: HeadKind,
    one_kernel: bool,
    math: Math,
}

const SETTINGS: &[Setting] = &[
    Setting { name: "graph, PDL", ..FASTEST },
    Setting { name: "graph, PDL, int8 head", head: HeadKind::Int8, ..FASTEST },
    Setting {
        name: "graph, PDL, int8 head, attention fast",
        head: HeadKind::Int8,
        math: Math::TensorCore,
        ..FASTEST
    },
    Setting { name: "layers apart, graph, PDL", one_kernel: false, ..FASTEST },
    Setting {
        name: "layers apart, graph, PDL, int8 head",
        one_kernel: false,
        head: HeadKind::Int8,
        ..FASTEST
    },
    Setting { name: "graph", pdl: false, ..FASTEST },
    Setting { name: "PDL, no graph", graph: false, ..FASTEST },
];

/// With everything on.
const FASTEST: Setting = Setting {
    name: "",
    graph: true,
    pdl: true,
    head: HeadKind::Stored,
    one_kernel: true,
    math: Math::Exact,
};

fn main() -> ExitCode {
    run("tokens_per_second", |suite| {
        ensure!(!suite.options().check, "nothing to compare without times; leave out --check");
        let synthetic = tempfile::tempdir()?;
        let model = model(suite, synthetic.path())?;
        let mut expected = None;
        for setting in SETTINGS {
            if suite.options().wants(setting.name) {
                measure(suite, &model, *setting, &mut expected)?;
            }
        }
        let exact = [true, false].map(|one_kernel| {
            let [stored, int8] = [HeadKind::Stored, HeadKind::Int8].map(|head| Steps {
                head,
                one_kernel,
                math: Math::Exact,
                kv: KvType::Bf16,
            });
            [stored, int8]
        });
        let fast = [KvType::Bf16, KvType::Int8].map(|kv| Steps {
            head: HeadKind::Int8,
            one_kernel: true,
            math: Math::TensorCore,
            kv,
        });
        for steps in exact.concat().into_iter().chain(fast) {
            let wanted =
                |&&batch: &&usize| steps.takes(batch) && suite.options().wants(&steps.name(batch));
            let batches: Vec<usize> = BATCHES.iter().filter(wanted).copied().collect();
            if !batches.is_empty() {
                measure_batches(suite, &model, steps, &batches)?;
            }
        }
        for devices in several(cuda_count()?) {
            for &batch in EACH {
                if suite.options().wants(&several_name(devices, batch)) {
                    measure_several(suite, &model, devices, batch)?;
                }
            }
        }
        for (name, math) in [("prefill exact", Math::Exact), ("prefill fast", Math::TensorCore)] {
            if suite.options().wants(name) {
                long_prompts(suite, &model, name, math)?;
            }
        }
        drafts::measure(suite, &model)?;
        if suite.options().wants("host") {
            host_time(suite, &model)?;
        }
        suite.report().notes.push(format!(
            "medians of {REPEATS} prompts and {TEXTS} texts; a context of {CONTEXT} positions, one sequence, bf16 KV cache; \
             prompts of random token ids; time to the first token is from the call to the token on \
             the host"
        ));
        Ok(())
    })
}

/// The checkpoint that was asked for, or a synthetic one in `folder`.
fn model(suite: &mut Suite, folder: &Path) -> anyhow::Result<PathBuf> {
    if let Some(path) = suite.options().model.clone() {
        suite.report().notes.push("model: a checkpoint given by --model".into());
        return Ok(path);
    }
    let named = NamedConfig::find(&suite.options().config)?;
    let folder = folder.join(named.name);
    let started = Instant::now();
    synth::write(&folder, &named, 0, &mut |_, _| {})
        .with_context(|| format!("writing the synthetic model {}", named.name))?;
    println!("  wrote {} in {:.1} s", named.name, started.elapsed().as_secs_f64());
    let about = format!("model: seeded random weights at the size of {}", named.about);
    suite.report().notes.push(about);
    Ok(folder)
}

/// Positions to measure with.
fn context(path: &Path) -> anyhow::Result<usize> {
    let allowed = Checkpoint::open(path, &OpenOptions::default())?.config().max_positions;
    ensure!(allowed >= 128, "the model takes {allowed} positions; at least 128 are measured");
    Ok(allowed.min(CONTEXT))
}

/// Loads the model under one setting and fills the row of that setting.
fn measure(
    suite: &mut Suite,
    path: &Path,
    setting: Setting,
    expected: &mut Option<Vec<u32>>,
) -> anyhow::Result<()> {
    let device = BackendChoice::Cuda(suite.options().device);
    let (free_before, _) = suite.gpu().cuda().device().memory_info()?;
    let peak_is_of_load = reset_memory_peak();
    let host_before = memory();
    let context = context(path)?;
    let started = Instant::now();
    let mut session = Session::builder()
        .model(path)
        .backend(device)
        .context(context)
        .graph(setting.graph)
        .pdl(setting.pdl)
        .head(setting.head)
        .tuning(if suite.options().no_tune { Tuning::Off } else { Tuning::Auto })
        .one_kernel(setting.one_kernel)
        .attention(setting.math)
        .build()?;
    let tuning = session.load_stats().tuning.clone();
    // Of a record the name of its file: where it stands is this machine's.
    let sources: Vec<_> =
        tuning.sources.iter().map(|source| source.rsplit('/').next().unwrap_or_default()).collect();
    let note = format!("tuning: {} choices of {sources:?}", tuning.choices);
    if !suite.report().notes.contains(&note) {
        suite.report().notes.push(note);
    }
    let load_seconds = started.elapsed().as_secs_f64();
    let host = memory();
    let vocab = session.config().vocab_size;
    let mut row = Row { case: setting.name.to_owned(), ..Row::default() };

    let text = generate(&mut session, &prompt(0, 16, vocab), SAME_TOKENS, 0.0)?.tokens;
    ensure!(text.len() == SAME_TOKENS, "{} of {SAME_TOKENS} tokens came", text.len());
    match expected {
        // Within a bound, which a token may lie inside of.
        _ if setting.math == Math::TensorCore => {}
        Some(tokens) => ensure!(*tokens == text, "{}: other tokens than before", setting.name),
        None => *expected = Some(text),
    }
    row.compared = if setting.math == Math::Exact { SAME_TOKENS as u64 } else { 0 };

    let load = session.load_stats();
    row.set("load_s", load_seconds);
    row.set("load_gb_per_s", load.file_bytes as f64 / load_seconds / 1e9);
    row.set("file_mb", load.file_bytes as f64 / 1e6);
    if let (Some(before), Some(host), true) = (host_before, host, peak_is_of_load) {
        let added = host.peak_bytes.saturating_sub(before.resident_bytes) as f64;
        row.set("host_peak_mb", host.peak_bytes as f64 / 1e6);
        row.set("host_peak_added_mb", added / 1e6);
        row.set("host_peak_added_of_file", added / load.file_bytes as f64);
        row.set("host_anonymous_mb", host.anonymous_bytes as f64 / 1e6);
    }
    for &len in PROMPTS.iter().filter(|&&len| len < context) {
        let mut seconds = Vec::new();
        for repeat in 0..REPEATS {
            let ids = prompt(1 + (repeat * 1000 + len) as u64, len, vocab);
            seconds.push(generate(&mut session, &ids, 1, 0.0)?.first_s);
        }
        let seconds = median(seconds)?;
        row.set(&format!("first_token_{len}_ms"), 1e3 * seconds);
        row.set(&format!("prefill_{len}_tok_per_s"), len as f64 / seconds);
    }
    if context == CONTEXT {
        let mut rates = Vec::new();
        for repeat in 0..TEXTS {
            let ids = prompt(55 + repeat as u64, CONTEXT - LAST, vocab);
            let text = generate(&mut session, &ids, LAST, 0.0)?;
            if let [first, .., last] = text.times[..] {
                rates.push((text.times.len() - 1) as f64 / (last - first));
            }
        }
        row.set(&format!("decode_greedy_to_{CONTEXT}_tok_per_s"), median(rates)?);
    }
    for (name, temperature) in [("greedy", 0.0), ("sampled", 0.8)] {
        let to = DECODE_TO.min(context);
        let mut rates = vec![Vec::new(); WINDOWS.len()];
        for repeat in 0..TEXTS {
            let ids = prompt(77 + repeat as u64, 16, vocab);
            let text = generate(&mut session, &ids, to - 16, temperature)?;
            for (rates, &(from, end)) in rates.iter_mut().zip(WINDOWS) {
                // The token at position p is the text's token p - 16.
                let at = |p: usize| text.times.get(p - 16).copied();
                if let (Some(start), Some(end_s)) = (at(from), at(end - 1)) {
                    rates.push((end - 1 - from) as f64 / (end_s - start));
                }
            }
        }
        for (rates, (from, end)) in rates.into_iter().zip(WINDOWS) {
            if let Some(rate) = Quantiles::of(rates) {
                row.set(&format!("decode_{name}_{from}_to_{end}_tok_per_s"), rate.median);
            }
        }
    }
    if let Some(rate) =
        row.columns.get("decode_greedy_16_to_512_tok_per_s").and_then(|v| v.as_f64())
    {
        // Every weight once for each token; the table, or its copy, is read as the head.
        let weights = weights_bytes(session.config()) - saved(session.config(), setting.head);
        row.set("decode_weights_gb_per_s", rate * weights as f64 / 1e9);
    }
    memory_columns(&mut row, &session);
    let (free_after, _) = suite.gpu().cuda().device().memory_info()?;
    row.set("device_taken_mb", free_before.saturating_sub(free_after) as f64 / 1e6);
    for (name, value) in &row.columns {
        println!("  {:<14} {name:<36} {:.2}", row.case, value.as_f64().unwrap_or_default());
    }
    suite.report().rows.push(row);
    Ok(())
}

/// All tokens per second of batches whose sequences stand at position 512, graph and PDL, greedy.
fn measure_batches(
    suite: &mut Suite,
    path: &Path,
    steps: Steps,
    batches: &[usize],
) -> anyhow::Result<()> {
    let Steps { head, one_kernel, math, kv } = steps;
    let params = |seed| SamplingParams {
        temperature: 0.0,
        max_tokens: 3 * BATCH_STEPS,
        seed,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let most = batches.iter().copied().max().unwrap_or(1);
    let context = BATCH_AT + 3 * BATCH_STEPS;
    ensure!(context <= self::context(path)?, "batches are measured at position 512");
    let builder =
        Session::builder().model(path).backend(BackendChoice::Cuda(suite.options().device));
    let builder = builder.context(context).head(head).one_kernel(one_kernel);
    // What a sequence gives alone.
    let mut session = builder.clone().build()?;
    let vocab = session.config().vocab_size;
    let prompts: Vec<_> =
        (0..most).map(|i| prompt(900 + i as u64, BATCH_AT - i % 7, vocab)).collect();
    let alone = session.generate(&prompts[0], &params(0), |_| ControlFlow::Continue(()))?.tokens;
    drop(session);
    // All sequences begin with the first step.
    let builder = builder.attention(math).kv(kv).prompt_share(usize::MAX);
    let mut engine = builder.max_batch(most).build_batch()?;
    for &batch in batches {
        let (mut seconds, mut same) = (Vec::new(), 0);
        for _ in 0..TEXTS {
            let first = engine.add_request(&prompts[0], &params(0))?;
            for prompt in &prompts[1..batch] {
                engine.add_request(prompt, &params(0))?;
            }
            let (mut text, mut step) = (Vec::new(), 0);
            let mut started = Instant::now();
            while !engine.is_empty() {
                if step == BATCH_STEPS {
                    started = Instant::now();
                }
                for output in engine.step()? {
                    if output.id == first {
                        text.push(output.token);
                    }
                }
                step += 1;
                if step == 2 * BATCH_STEPS {
                    seconds.push(started.elapsed().as_secs_f64() / BATCH_STEPS as f64);
                }
            }
            // Within a bound, not of the same bits: a text may go another way somewhere.
            same = text.iter().zip(&alone).take_while(|(a, b)| a == b).count();
            let exact = math == Math::Exact;
            ensure!(!exact || text == alone, "batch {batch}: other tokens than alone");
        }
        let seconds = median(seconds)?;
        let case = steps.name(batch);
        let mut row = Row { case, compared: same as u64, ..Row::default() };
        row.set("batch_step_us", 1e6 * seconds);
        row.set("batch_tok_per_s", batch as f64 / seconds);
        for (name, value) in &row.columns {
            println!("  {:<22} {name:<28} {:.2}", row.case, value.as_f64().unwrap_or_default());
        }
        suite.report().rows.push(row);
    }
    Ok(())
}

/// Numbers of GPUs to measure on a machine with `count`: none where there is one.
fn several(count: u32) -> Vec<u32> {
    let mut devices: Vec<u32> = [1, 2, 4, count].into_iter().filter(|&n| n <= count).collect();
    devices.sort_unstable();
    devices.dedup();
    if count > 1 { devices } else { Vec::new() }
}

fn several_name(devices: u32, batch: usize) -> String {
    let gpus = if devices == 1 { "GPU" } else { "GPUs" };
    format!("{devices} {gpus}, batches of {batch}, int8 head")
}

/// Tokens per second of whole texts, prompts included, over several GPUs with a replica each.
fn measure_several(
    suite: &mut Suite,
    path: &Path,
    devices: u32,
    batch: usize,
) -> anyhow::Result<()> {
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: TEXT,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let builder = Session::builder().model(path).context(TEXT + 32).head(HeadKind::Int8);
    let mut session = builder.clone().backend(BackendChoice::Cuda(0)).build()?;
    let vocab = session.config().vocab_size;
    let texts = devices as usize * batch * TEXTS_A_PLACE;
    let prompts: Vec<_> = (0..texts).map(|i| prompt(300 + i as u64, 8 + i % 16, vocab)).collect();
    let alone = session.generate(&prompts[0], &params, |_| ControlFlow::Continue(()))?.tokens;
    drop(session);
    let builder = builder.backend(DeviceChoice::Cuda((0..devices).collect())).max_batch(batch);
    let mut engine = builder.build_batch()?;
    let params = vec![params; texts];
    // The first texts record the steps.
    let warm = devices as usize * batch;
    engine.generate(&prompts[..warm], &params[..warm], |_, _| ControlFlow::Continue(()))?;
    let started = Instant::now();
    let made = engine.generate(&prompts, &params, |_, _| ControlFlow::Continue(()))?;
    let seconds = started.elapsed().as_secs_f64();
    let name = several_name(devices, batch);
    ensure!(made[0].tokens == alone, "{name}: other tokens than alone");
    let tokens: usize = made.iter().map(|text| text.tokens.len()).sum();
    let mut row = Row { case: name, ..Row::default() };
    row.compared = alone.len() as u64;
    row.set("texts_tok_per_s", tokens as f64 / seconds);
    println!("  {:<36} {:.0} tok/s", row.case, tokens as f64 / seconds);
    suite.report().rows.push(row);
    Ok(())
}

/// Rates of long prompts, by attention that is exact or on tensor cores.
fn long_prompts(suite: &mut Suite, path: &Path, name: &str, math: Math) -> anyhow::Result<()> {
    let device = BackendChoice::Cuda(suite.options().device);
    let allowed = Checkpoint::open(path, &OpenOptions::default())?.config().max_positions;
    let context = allowed.min(LONG_PROMPTS.iter().max().copied().unwrap_or(0) + 64);
    let builder = Session::builder().model(path).backend(device).context(context);
    let mut session = builder.attention(math).build()?;
    let vocab = session.config().vocab_size;
    let mut row = Row { case: name.to_owned(), ..Row::default() };
    for &len in LONG_PROMPTS.iter().filter(|&&len| len < context) {
        let mut seconds = Vec::new();
        for repeat in 0..=REPEATS {
            let ids = prompt(1 + (repeat * 1000 + len) as u64, len, vocab);
            seconds.push(generate(&mut session, &ids, 1, 0.0)?.first_s);
        }
        // The first one may load kernels.
        let seconds = median(seconds.split_off(1))?;
        row.set(&format!("first_token_{len}_ms"), 1e3 * seconds);
        row.set(&format!("prefill_{len}_tok_per_s"), len as f64 / seconds);
    }
    memory_columns(&mut row, &session);
    for (column, value) in &row.columns {
        println!("  {name:<14} {column:<36} {:.2}", value.as_f64().unwrap_or_default());
    }
    suite.report().rows.push(row);
    Ok(())
}

/// Device memory against what weights and cache need.
fn memory_columns(row: &mut Row, session: &Session) {
    let usage = session.memory();
    let need = weights_bytes(session.config()) + kv_bytes(session.config(), session.context());
    row.set("device_in_use_mb", usage.in_use_bytes as f64 / 1e6);
    row.set("device_reserved_mb", usage.reserved_bytes as f64 / 1e6);
    row.set("weights_and_kv_mb", need as f64 / 1e6);
    row.set("device_in_use_of_weights_and_kv", usage.in_use_bytes as f64 / need as f64);
    row.set("device_reserved_of_weights_and_kv", usage.reserved_bytes as f64 / need as f64);
}

/// Packed projections and the tables, as they have to be on the device.
fn weights_bytes(config: &ModelConfig) -> usize {
    let linear: usize = bitnet_gpu::checkpoint::Proj::ALL
        .into_iter()
        .map(|proj| config.linear_shape(proj))
        .map(|(n, k)| 4 * n * row_words(k))
        .sum();
    let tables = if config.tie_word_embeddings { 1 } else { 2 };
    config.num_layers * linear + tables * 2 * config.vocab_size * config.hidden_size
}

/// Bytes of a token that the int8 copy of the head spares.
fn saved(config: &ModelConfig, head: HeadKind) -> usize {
    match head {
        HeadKind::Stored => 0,
        HeadKind::Int8 => {
            config.vocab_size * (2 * config.hidden_size - row_bytes(config.hidden_size))
        }
    }
}

/// Keys and values of `positions` positions in bf16.
fn kv_bytes(config: &ModelConfig, positions: usize) -> usize {
    2 * 2 * config.num_layers * config.num_kv_heads * positions * kv_stride(config.head_dim)
}

/// A text: its tokens, and when each was on the host, in seconds since the first.
struct Text {
    tokens: Vec<u32>,
    first_s: f64,
    times: Vec<f64>,
}

fn generate(
    session: &mut Session,
    prompt: &[u32],
    max_tokens: usize,
    temperature: f32,
) -> anyhow::Result<Text> {
    let params = SamplingParams {
        temperature,
        max_tokens,
        seed: 1,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let started = Instant::now();
    let mut at = Vec::with_capacity(max_tokens);
    let generated = session.generate(prompt, &params, |_| {
        if at.len() < max_tokens {
            at.push(started.elapsed().as_secs_f64());
        }
        ControlFlow::Continue(())
    })?;
    let first_s = *at.first().context("no token was generated")?;
    let times = at.iter().map(|t| t - first_s).collect();
    Ok(Text { tokens: generated.tokens, first_s, times })
}

/// Random token ids. Another seed gives another first token, so that no cache can be reused.
fn prompt(seed: u64, len: usize, vocab: usize) -> Vec<u32> {
    let mut inputs = Inputs::new(seed);
    (0..len).map(|_| inputs.below(vocab) as u32).collect()
}

fn median(samples: Vec<f64>) -> anyhow::Result<f64> {
    Ok(Quantiles::of(samples).context("nothing was measured")?.median)
}

/// What the host does for a token: the time to queue a step, while the device is busy with earlier
/// ones, and the time to record one.
fn host_time(suite: &mut Suite, path: &Path) -> anyhow::Result<()> {
    /// Steps queued without waiting: few enough for the driver's queue, with and without graph.
    const STEPS: usize = 2;
    let options = CudaOptions::new(suite.options().device).pdl(true);
    let checkpoint = Checkpoint::open(path, &OpenOptions::default())?;
    let model = Model::load(CudaBackend::open(options)?, &checkpoint, &mut |_| {})?;
    let capacity = context(path)?;
    let chunk = 256.min(capacity);
    let mut sequence = Sequence::new(
        &model,
        SequenceOptions { capacity, kv: RowType::Bf16, chunk, one_kernel: true },
    )?;
    let ids = prompt(3, 16, model.config().vocab_size);
    sequence.begin(model.backend(), &ids, &GREEDY)?;
    model.prefill(&mut sequence, &ids, 0)?;
    model.sample(&mut sequence)?;
    model.backend().synchronize()?;
    let mut pos = ids.len();
    let mut row = Row { case: "host".into(), ..Row::default() };
    for (name, graph) in [("no_graph", false), ("graph", true)] {
        if graph {
            let started = Instant::now();
            model.decode(&mut sequence, pos, true)?;
            row.set("record_and_first_step_ms", 1e3 * started.elapsed().as_secs_f64());
            model.backend().synchronize()?;
            pos += 1;
        }
        let (mut queue_us, mut step_us) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let started = Instant::now();
            for _ in 0..STEPS {
                model.decode(&mut sequence, pos, graph)?;
                pos += 1;
            }
            queue_us.push(1e6 * started.elapsed().as_secs_f64() / STEPS as f64);
            model.backend().synchronize()?;
            step_us.push(1e6 * started.elapsed().as_secs_f64() / STEPS as f64);
        }
        row.set(&format!("host_us_per_token_{name}"), median(queue_us)?);
        row.set(&format!("step_us_{name}_with_wait"), median(step_us)?);
    }
    for (name, value) in &row.columns {
        println!("  {:<14} {name:<36} {:.2}", row.case, value.as_f64().unwrap_or_default());
    }
    suite.report().rows.push(row);
    Ok(())
}
