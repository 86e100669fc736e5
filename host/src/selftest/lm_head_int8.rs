//! Runs of [`crate::ops::lm_head_int8`].

use contract::lm_head_int8::{groups, input_words, row_bytes};
use contract::sample::{SampleParams, StepState, adjusted_len};

use super::embed::{Table, table_on};
use super::{Bed, Output, Run, RunError};
use crate::ops::lm_head_int8::{Int8Table, LmHeadInt8};
use crate::ops::sample::{SampleState, param_words, state_words};
use crate::ops::{Backend, RowType};
use crate::reference::Inputs as Seeded;

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The head `[vocab, k]`.
    pub table: Table,
    /// Values `[m, k]`, with `x_at` elements in front.
    pub x: Vec<f32>,
    /// First element that is used.
    pub x_at: usize,
    /// `[m, vocab]`: 1 for tokens that were seen.
    pub seen: Vec<u8>,
    /// What is asked for with each input, and whether its text has ended.
    pub asked: Vec<(SampleParams, bool)>,
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let w = table_on(bed.backend(), &self.table)?;
        let (vocab, k) = (w.rows(), w.width());
        let (bytes, rows) = (bed.output(vocab * row_bytes(k))?, bed.output(4 * vocab)?);
        let table = Int8Table::over(bed.backend(), &w, bytes, rows)?;
        let m = self.asked.len();
        let (x, mut input) = (bed.input(&self.x)?, bed.output(m * input_words(k))?);
        let state = |ended| state_words(&StepState { done: ended, ..StepState::default() });
        let states: Vec<_> = self.asked.iter().map(|asked| state(asked.1.into())).collect();
        let params: Vec<_> = self.asked.iter().map(|asked| param_words(&asked.0)).collect();
        let mut sampler = SampleState::<B> {
            state: bed.input(states.as_flattened())?,
            params: bed.input(params.as_flattened())?,
            seen: bed.input(&self.seen)?,
            adjusted: bed.output(m * adjusted_len(vocab as u32) as usize)?,
            tops: bed.output(m * groups(vocab as u32) as usize)?,
            best: bed.input(&vec![0; m])?,
            rows: m,
        };
        // Rows of a text that has ended keep what they have.
        let mut logits = bed.input(&vec![0.5; m * vocab])?;
        bed.backend().lm_head_int8(LmHeadInt8 {
            x: &x,
            x_at: self.x_at,
            w: &w,
            table: &table,
            input: &mut input,
            sampler: &mut sampler,
            row: 0,
            logits: &mut logits,
            m,
        })?;
        let bytes = bed.read("bytes", &table.bytes)?;
        let words = bytes.into_iter().map(u32::from).collect();
        bed.push(Output::words("bytes", &[vocab, row_bytes(k)], words));
        bed.keep("rows", &[vocab, 4], &table.rows)?;
        bed.keep_words("input", &[m, input_words(k)], &input)?;
        bed.read("tops", &sampler.tops)?;
        bed.read("seen", &sampler.seen)?;
        bed.keep("logits", &[m, vocab], &logits)
    }
}

/// Cases of the doctor: the best token, the best few, and all of them.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    use contract::launch::Kernel;
    use contract::lm_head_int8::{
        Input, PackBf16, PackF16, PackF32, RescoreBf16, RescoreF16, RescoreF32, Scan, ScanFew,
        ScanMany, ScanSome, ScanWide, ScanWideSome,
    };
    let mut seeded = Seeded::new(21);
    let mut list = Vec::new();
    let greedy = crate::reference::sample::GREEDY;
    let few = SampleParams { temperature: 0.7, top_k: 3, repetition_penalty: 1.2, ..greedy };
    let all = SampleParams { temperature: 0.7, ..greedy };
    for (element, pack, rescore) in [
        (RowType::Bf16, PackBf16::SPEC.symbol, RescoreBf16::SPEC.symbol),
        (RowType::F16, PackF16::SPEC.symbol, RescoreF16::SPEC.symbol),
        (RowType::F32, PackF32::SPEC.symbol, RescoreF32::SPEC.symbol),
    ] {
        for (vocab, k, params) in
            [(1, 1, greedy), (700, 63, few), (2049, 1027, greedy), (97, 640, all)]
        {
            let inputs = Inputs {
                table: Table::new(element, vocab, k, seeded.bits()),
                x: seeded.floats(3 + k, 2.0),
                x_at: 3,
                seen: (0..vocab).map(|_| seeded.below(2) as u8).collect(),
                asked: vec![(params, false)],
            };
            let what = format!("vocab={vocab} k={k} top_k={}", params.top_k);
            for kernel in [pack, Input::SPEC.symbol, Scan::SPEC.symbol, rescore] {
                list.push((kernel, what.clone(), inputs.clone()));
            }
        }
    }
    // Of the scans of many inputs a device runs the one made for it.
    for (m, kernel) in [
        (5, ScanFew::SPEC.symbol),
        (17, ScanSome::SPEC.symbol),
        (18, ScanWideSome::SPEC.symbol),
        (70, ScanMany::SPEC.symbol),
        (71, ScanWide::SPEC.symbol),
    ] {
        let (vocab, k) = (700, 75);
        let asked = (0..m).map(|i| ([greedy, few, all][i % 3], i % 5 == 4)).collect();
        let inputs = Inputs {
            table: Table::new(RowType::Bf16, vocab, k, seeded.bits()),
            x: seeded.floats(m * k, 2.0),
            x_at: 0,
            seen: (0..m * vocab).map(|_| seeded.below(2) as u8).collect(),
            asked,
        };
        list.push((kernel, format!("m={m} vocab={vocab} k={k}"), inputs));
    }
    list
}
