//! Runs of [`crate::ops::sample`].

use contract::sample::{SampleParams, StepState, adjusted_len, groups};

use super::{Bed, Output, Run, RunError};
use crate::ops::sample::{Allow, Sample, SampleState, mask_words, param_words, state_words};
use crate::ops::{Backend, TokenLog};
use crate::reference::Inputs as Seeded;

/// Inputs of a run of several steps over the same logits.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Logits, with `logits_at` others in front.
    pub logits: Vec<f32>,
    /// First logit that is used.
    pub logits_at: usize,
    /// What is asked for.
    pub params: SampleParams,
    /// Where the sequence stands before.
    pub state: StepState,
    /// `[vocab]`: what is known of tokens.
    pub marks: Vec<u8>,
    /// `[vocab]`, or empty where there is none: what is added to logits.
    pub bias: Vec<f32>,
    /// A mask of what may be picked, told in front of every second step; or empty.
    pub allowed: Vec<u32>,
    /// Sequences, all alike.
    pub rows: usize,
    /// Steps to run.
    pub steps: usize,
    /// Entries of the token log of each.
    pub log: usize,
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (vocab, rows) = (self.logits.len() - self.logits_at, self.rows);
        let (front, row) = self.logits.split_at(self.logits_at);
        let logits = bed.input(&[front, &row.repeat(rows)].concat())?;
        let mut sampler = SampleState::<B> {
            state: bed.input(&state_words(&self.state).repeat(rows))?,
            params: bed.input(&param_words(&self.params).repeat(rows))?,
            marks: bed.input(&self.marks.repeat(rows))?,
            bias: match self.bias.is_empty() {
                true => None,
                false => Some(bed.input(&self.bias.repeat(rows))?),
            },
            adjusted: bed.output(rows * adjusted_len(vocab as u32) as usize)?,
            tops: bed.output(rows * groups(vocab as u32) as usize)?,
            best: bed.input(&vec![0; rows])?,
            rows,
        };
        let mut log = bed.backend().alloc_tokens(rows * self.log)?;
        log.clear();
        // A mask for each row, the last first; in front one for a row that is not there.
        let of_masks: Vec<u32> = (0..=rows as u32).rev().collect();
        let of_masks = bed.input(&of_masks)?;
        let allowed = bed.input(&self.allowed.repeat(rows + 1))?;
        for step in 0..self.steps {
            if step % 2 == 0 && !self.allowed.is_empty() {
                bed.backend().allow(Allow {
                    sampler: &mut sampler,
                    rows: &of_masks,
                    allowed: &allowed,
                    vocab,
                    masks: rows + 1,
                })?;
            }
            bed.backend().sample(Sample {
                logits: &logits,
                logits_at: self.logits_at,
                vocab,
                sampler: &mut sampler,
                row: 0,
                rows,
                out: &mut log,
            })?;
        }
        bed.keep_words("state", &[rows, 4], &sampler.state)?;
        let marks = bed.read("marks", &sampler.marks)?;
        bed.push(Output::words(
            "marks",
            &[rows, vocab],
            marks.into_iter().map(u32::from).collect(),
        ));
        if let Some(bias) = &sampler.bias {
            bed.keep_floats("bias", &[rows, vocab], bias)?;
        }
        let best = bed.read("best", &sampler.best)?;
        let best = best.into_iter().flat_map(|best| [best as u32, (best >> 32) as u32]).collect();
        bed.push(Output::words("best", &[rows, 2], best));
        bed.read("adjusted", &sampler.adjusted)?;
        bed.read("tops", &sampler.tops)?;
        bed.read("params", &sampler.params)?;
        let tokens = (0..rows * self.log).map(|step| log.get(step)).collect();
        bed.push(Output::words("out", &[rows, self.log], tokens));
        Ok(())
    }
}

/// Cases of the doctor: greedy and drawn, with a NaN and an infinity among the logits.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    use contract::launch::Kernel;
    use contract::sample::{
        MAX_STOP_IDS, ONE_WEIGHT, SampleAllow, SamplePick, SamplePickWide, SamplePrepare, WIDE_ROWS,
    };
    let mut list = Vec::new();
    let mut seeded = Seeded::new(7);
    let plain = SampleParams {
        seed: 0x0123_4567_89ab_cdef,
        top_p_q32: 1 << 32,
        temperature: 0.8,
        repetition_penalty: 1.0,
        top_k: 0,
        min_weight: 0,
        max_steps: 100,
        stop_len: 0,
        stop_ids: [0; MAX_STOP_IDS],
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        rests: 0,
        every: 0,
    };
    let all = SampleParams {
        top_k: 50,
        top_p_q32: 3_865_470_566,
        min_weight: ONE_WEIGHT / 50,
        repetition_penalty: -1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..plain
    };
    let greedy = SampleParams { temperature: 0.0, ..all };
    for (vocab, params) in [(1, plain), (1023, greedy), (1025, plain), (4097, all)] {
        let mut logits = seeded.floats(3 + vocab, 6.0);
        logits[3 + vocab / 2] = f32::NAN;
        logits[3 + vocab / 3] = f32::NEG_INFINITY;
        let inputs = Inputs {
            logits,
            logits_at: 3,
            params,
            state: StepState { pos: 7, ..StepState::default() },
            marks: if params.lowers() { seeded.biased_marks(vocab) } else { seeded.marks(vocab) },
            bias: if params.lowers() { seeded.floats(vocab, 3.0) } else { Vec::new() },
            allowed: Vec::new(),
            rows: 1,
            steps: 5,
            log: 4,
        };
        // Of few rows `sample_pick` takes those of devices without clusters.
        for (kernel, rows) in [
            (SamplePrepare::SPEC.symbol, 1),
            (SamplePickWide::SPEC.symbol, 2),
            (SamplePick::SPEC.symbol, WIDE_ROWS as usize + 1),
        ] {
            let what = format!("rows={rows} vocab={vocab} top_k={}", params.top_k);
            list.push((kernel, what, Inputs { rows, ..inputs.clone() }));
        }
        let allowed = (0..mask_words(vocab)).map(|_| seeded.bits() as u32).collect();
        let params = SampleParams { rests: 1, repetition_penalty: -1.3, ..params };
        let what = format!("rows=3 vocab={vocab}");
        let inputs = Inputs { allowed, params, rows: 3, ..inputs };
        list.push((SampleAllow::SPEC.symbol, what, inputs));
    }
    list
}
