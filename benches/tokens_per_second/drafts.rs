//! Steps of guessed tokens: what one takes, and what comes of it when all guesses are right, or none.

use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use bitnet_benches::{Row, Suite};
use bitnet_gpu::checkpoint::{Checkpoint, OpenOptions};
use bitnet_gpu::driver::CudaOptions;
use bitnet_gpu::model::{Batch, BatchOptions, Draft, HeadKind, Model, PAGE_SIZE};
use bitnet_gpu::ops::{CudaBackend, RowType};
use bitnet_gpu::reference::sample::GREEDY;
use contract::sample::SampleParams;

use crate::{median, prompt};

/// Positions in front of the steps.
const AT: usize = 480;
/// Tokens of a text.
const TOKENS: usize = 160;
/// Texts at once, and tokens that are guessed of each.
const CASES: &[(usize, usize)] =
    &[(1, 0), (1, 1), (1, 3), (1, 7), (1, 15), (1, 31), (8, 0), (8, 1), (8, 3)];
/// Rows of a step at most.
const ROWS: usize = 32;

pub(crate) fn name(texts: usize, guessed: usize) -> String {
    format!("lookup, {texts} x {guessed} guessed")
}

/// By the int8 head. A step without guesses is one as every other, each waited for.
pub(crate) fn measure(suite: &mut Suite, path: &Path) -> anyhow::Result<()> {
    let options = CudaOptions::new(suite.options().device).pdl(true);
    let checkpoint = Checkpoint::open(path, &OpenOptions::default())?;
    let model = Model::load(CudaBackend::open(options)?, &checkpoint, &mut |_| {})?;
    let model = model.with_head(HeadKind::Int8)?;
    let (backend, vocab) = (model.backend(), model.config().vocab_size);
    let most = CASES.iter().map(|case| case.0).max().unwrap_or(1);
    let capacity = AT + TOKENS;
    let mut batch = Batch::new(
        &model,
        BatchOptions {
            max_batch: most,
            capacity,
            pages: most * capacity.div_ceil(PAGE_SIZE),
            kv: RowType::Bf16.into(),
            chunk: AT,
            prompt_share: most * AT,
            prefix_cache: false,
            one_kernel: true,
            draft_rows: ROWS,
        },
    )?;
    let prompts: Vec<_> = (0..most).map(|i| prompt(40 + i as u64, AT, vocab)).collect();
    let params = SampleParams { max_steps: TOKENS as u32, ..GREEDY };
    let mut texts: Vec<Vec<u32>> = Vec::new();
    let begin = |batch: &mut Batch<CudaBackend>, count: usize| -> anyhow::Result<()> {
        for slot in 0..most {
            batch.remove(backend, slot)?;
        }
        for prompt in &prompts[..count] {
            model.admit(batch, prompt, &params)?;
        }
        Ok(model.decode_batch(batch, true)?)
    };
    for &(count, guessed) in CASES {
        for right in [true, false] {
            if !suite.options().wants(&name(count, guessed)) || guessed == 0 && !right {
                continue;
            }
            begin(&mut batch, count)?;
            if texts.len() < count {
                // What each text gives, step by step.
                while batch.queued(0) < TOKENS {
                    model.decode_batch(&mut batch, true)?;
                }
                let token = |slot, at| batch.wait(backend, slot, at);
                texts = (0..count)
                    .map(|slot| (0..TOKENS).filter_map(|at| token(slot, at).transpose()).collect())
                    .collect::<Result<_, _>>()?;
                begin(&mut batch, count)?;
            }
            let mut times = Vec::new();
            while batch.queued(0) + guessed + 1 < TOKENS && times.len() < 40 {
                let at = batch.queued(0);
                batch.wait(backend, 0, at - 1)?;
                let change = u32::from(!right);
                let guess = |text: &Vec<u32>| {
                    text[at..at + guessed].iter().map(|id| (id + change) % vocab as u32).collect()
                };
                let guesses: Vec<Vec<u32>> = texts[..count].iter().map(guess).collect();
                let started = Instant::now();
                if guessed == 0 {
                    model.decode_batch(&mut batch, true)?;
                    batch.wait(backend, 0, at)?;
                } else {
                    let drafts = guesses.iter().enumerate();
                    let drafts = drafts.map(|(slot, tokens)| Draft { slot, tokens });
                    let got = model.verify(&mut batch, &drafts.collect::<Vec<_>>(), true)?;
                    let expected = if right { guessed + 1 } else { 1 };
                    ensure!(got.iter().all(|&got| got == expected), "{count} x {guessed}: {got:?}");
                }
                times.push(started.elapsed().as_secs_f64());
            }
            let steps = times.len();
            let seconds = median(times)?;
            let tokens = if right { guessed + 1 } else { 1 };
            let of_which = match (guessed, right) {
                (0, _) => "",
                (_, true) => ", all right",
                (_, false) => ", none right",
            };
            let case = name(count, guessed) + of_which;
            let mut row = Row { case, compared: (steps * count) as u64, ..Row::default() };
            row.set("batch_step_us", 1e6 * seconds);
            row.set("batch_tok_per_s", (count * tokens) as f64 / seconds);
            println!(
                "  {:<40} {:>8.1} us {:>10.0} tok/s",
                row.case,
                1e6 * seconds,
                (count * tokens) as f64 / seconds
            );
            suite.report().rows.push(row);
        }
    }
    Ok(())
}
