//! Runs of [`crate::ops::sample`].

use contract::sample::{SampleParams, StepState, adjusted_len, groups};

use super::{Bed, Output, Run, RunError};
use crate::ops::sample::{Sample, SampleState, param_words, state_words};
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
    /// `[vocab]`: 1 for tokens that were seen.
    pub seen: Vec<u8>,
    /// Steps to run.
    pub steps: usize,
    /// Entries of the token log.
    pub log: usize,
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let vocab = self.logits.len() - self.logits_at;
        let logits = bed.input(&self.logits)?;
        let mut sampler = SampleState::<B> {
            state: bed.input(&state_words(&self.state))?,
            params: bed.input(&param_words(&self.params))?,
            seen: bed.input(&self.seen)?,
            adjusted: bed.output(adjusted_len(vocab as u32) as usize)?,
            tops: bed.output(groups(vocab as u32) as usize)?,
            best: bed.input(&[0])?,
            rows: 1,
        };
        let mut log = bed.backend().alloc_tokens(self.log)?;
        log.clear();
        for _ in 0..self.steps {
            bed.backend().sample(Sample {
                logits: &logits,
                logits_at: self.logits_at,
                vocab,
                sampler: &mut sampler,
                row: 0,
                rows: 1,
                out: &mut log,
            })?;
        }
        bed.keep_words("state", &[4], &sampler.state)?;
        let seen = bed.read("seen", &sampler.seen)?;
        bed.push(Output::words("seen", &[vocab], seen.into_iter().map(u32::from).collect()));
        let best = bed.read("best", &sampler.best)?;
        bed.push(Output::words("best", &[1, 2], vec![best[0] as u32, (best[0] >> 32) as u32]));
        bed.read("adjusted", &sampler.adjusted)?;
        bed.read("tops", &sampler.tops)?;
        bed.read("params", &sampler.params)?;
        let tokens = (0..self.log).map(|step| log.get(step)).collect();
        bed.push(Output::words("out", &[self.log], tokens));
        Ok(())
    }
}

/// Cases of the doctor: greedy and drawn, with a NaN and an infinity among the logits.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    use contract::launch::Kernel;
    use contract::sample::{MAX_STOP_IDS, ONE_WEIGHT, SamplePick, SamplePrepare};
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
    };
    let all = SampleParams {
        top_k: 50,
        top_p_q32: 3_865_470_566,
        min_weight: ONE_WEIGHT / 50,
        repetition_penalty: 1.3,
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
            seen: (0..vocab).map(|_| seeded.below(2) as u8).collect(),
            steps: 5,
            log: 4,
        };
        for kernel in [SamplePrepare::SPEC.symbol, SamplePick::SPEC.symbol] {
            let what = format!("vocab={vocab} top_k={}", params.top_k);
            list.push((kernel, what, inputs.clone()));
        }
    }
    list
}
