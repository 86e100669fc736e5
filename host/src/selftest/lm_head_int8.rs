//! Runs of [`crate::ops::lm_head_int8`].

use contract::lm_head_int8::{
    Asked, digit_words, groups, has_bounds, in_clusters, input_words, row_bytes,
};
use contract::sample::{SampleParams, StepState, adjusted_len};

use super::embed::{Table, table_on};
use super::{Bed, Output, Run, RunError};
use crate::ops::lm_head_int8::{HeadNorm, Int8Table, LmHeadInt8};
use crate::ops::sample::{SampleState, param_words, state_words};
use crate::ops::{Backend, RowType, TokenLog};
use crate::reference::Inputs as Seeded;

/// Inputs of one run: one step of each sequence.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The head `[vocab, k]`.
    pub table: Table,
    /// Values `[m, k]`, with `x_at` elements in front; or, with a norm, what is normed.
    pub x: Vec<f32>,
    /// First element that is used.
    pub x_at: usize,
    /// What is normed in front of the head, from the first element on.
    pub norm: Option<Norm>,
    /// `[m, vocab]`: what is known of tokens.
    pub marks: Vec<u8>,
    /// What is asked for with each input, and whether its text has ended.
    pub asked: Vec<(SampleParams, bool)>,
    /// `[m, vocab]`: what is added to the logits of tokens that are marked so; or empty.
    pub bias: Vec<f32>,
    /// Whether every logit that is needed stays, and the bias counts.
    pub every: bool,
}

/// A norm of [`Inputs`].
#[derive(Clone, Debug)]
pub struct Norm {
    /// Added first, `[m, k]`, or empty.
    pub delta: Vec<f32>,
    /// Gain `[k]`.
    pub weight: Vec<f32>,
}

/// Added to the mean square.
pub const EPS: f32 = 1e-5;
/// What stands for logits that nobody is to look at.
pub const ANY: f32 = 0.5;

/// Whether what a token is drawn from, of `m` inputs of `k` values, is left in the sampler's memory: not where the best is all that is asked, and not by the kernel
/// that picks it too, where that computes the logits. Of a floor that depends on the best bound alone, the scans of many inputs, which round bounds another way, may
/// leave a logit more that cannot be drawn.
pub fn leaves(params: &SampleParams, stats: [f32; 4], [vocab, k, m]: [usize; 3]) -> bool {
    let (asked, vocab) = (Asked::of(params), vocab as u32);
    let few = has_bounds(stats) && asked.wanted(vocab) != 0;
    let elsewhere = if asked.weighs(vocab) { m > 8 } else { in_clusters(m as u32, k as u32) };
    params.temperature > 0.0 && !(few && elsewhere)
}

/// Whether every logit of an input stays in memory, where that is asked for.
pub fn stays(params: &SampleParams, stats: [f32; 4], vocab: usize) -> bool {
    Asked::of(params).every(stats, vocab as u32)
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let w = table_on(bed.backend(), &self.table)?;
        let (vocab, k) = (w.rows(), w.width());
        let (bytes, rows) = (bed.output(vocab * row_bytes(k))?, bed.output(4 * vocab)?);
        let table = Int8Table::over(bed.backend(), &w, bytes, rows)?;
        let (m, every) = (self.asked.len(), self.every);
        let words = input_words(k, vocab as u32);
        let (given, mut input) = (bed.input(&self.x)?, bed.output(m * words)?);
        let (mut h, mut x) = match self.norm {
            Some(_) => (given, bed.output(m * k)?),
            None => (bed.output(1)?, given),
        };
        let beside = |values: &[f32]| bed.input(values);
        let norm = self.norm.as_ref();
        let delta = norm.map(|norm| beside(&norm.delta)).transpose()?;
        let weight = norm.map(|norm| beside(&norm.weight)).transpose()?;
        let adds = norm.is_some_and(|norm| !norm.delta.is_empty());
        let norm = weight.as_ref().map(|weight| HeadNorm {
            h: &mut h,
            delta: delta.as_ref().filter(|_| adds),
            weight,
            eps: EPS,
        });
        let state = |ended| state_words(&StepState { done: ended, ..StepState::default() });
        let states: Vec<_> = self.asked.iter().map(|asked| state(asked.1.into())).collect();
        let params: Vec<_> = self.asked.iter().map(|asked| param_words(&asked.0)).collect();
        let adjusted = adjusted_len(vocab as u32) as usize;
        let mut sampler = SampleState::<B> {
            state: bed.input(states.as_flattened())?,
            params: bed.input(params.as_flattened())?,
            marks: bed.input(&self.marks)?,
            bias: match self.bias.is_empty() {
                true => None,
                false => Some(bed.input(&self.bias)?),
            },
            adjusted: bed.output(m * adjusted)?,
            tops: bed.output(m * groups(vocab as u32) as usize)?,
            best: bed.input(&vec![0; m])?,
            rows: m,
        };
        let mut bounds = bed.output(m * vocab)?;
        let mut log = bed.backend().alloc_tokens(m)?;
        log.clear();
        bed.backend().lm_head_int8(LmHeadInt8 {
            norm,
            x: &mut x,
            x_at: self.x_at,
            w: &w,
            table: &table,
            input: &mut input,
            sampler: &mut sampler,
            row: 0,
            bounds: &mut bounds,
            every,
            out: &mut log,
            m,
        })?;
        let bytes = bed.read("bytes", &table.bytes)?;
        let bytes = bytes.into_iter().map(u32::from).collect();
        bed.push(Output::words("bytes", &[vocab, row_bytes(k)], bytes));
        bed.keep("rows", &[vocab, 4], &table.rows)?;
        bed.keep("x", &[self.x.len()], &x)?;
        // Behind the digits is scratch.
        let input = bed.read("input", &input)?;
        let kept: Vec<u32> =
            input.chunks(words).flat_map(|row| &row[..digit_words(k)]).copied().collect();
        // Of a text that has ended nothing is said.
        let mut drawn = bed.read("adjusted", &sampler.adjusted)?;
        let mut logits = bed.read("bounds", &bounds)?;
        let rows = drawn.chunks_mut(adjusted).zip(logits.chunks_mut(vocab));
        let rows = rows.zip(kept.chunks(digit_words(k)));
        for (((row, logits), input), (params, ended)) in rows.zip(&self.asked) {
            let stats = [0, 1, 2, 3].map(|i| f32::from_bits(input[i]));
            let left = leaves(params, stats, [vocab, k, m]) && !ended;
            row[if left { vocab } else { 0 }..].fill(ANY);
            if !stays(params, stats, vocab) || *ended {
                logits.fill(ANY);
            }
        }
        bed.push(Output::words("input", &[m, digit_words(k)], kept));
        bed.push(Output::floats("adjusted", &[m, adjusted], &drawn));
        bed.keep_words("state", &[m, 4], &sampler.state)?;
        let marks = bed.read("marks", &sampler.marks)?;
        bed.push(Output::words("marks", &[m, vocab], marks.into_iter().map(u32::from).collect()));
        let best = bed.read("best", &sampler.best)?;
        let best = best.into_iter().flat_map(|best| [best as u32, (best >> 32) as u32]).collect();
        bed.push(Output::words("best", &[m, 2], best));
        bed.read("tops", &sampler.tops)?;
        if every {
            bed.push(Output::floats("logits", &[m, vocab], &logits));
        }
        if let Some(bias) = &sampler.bias {
            bed.keep_floats("bias", &[m, vocab], bias)?;
        }
        bed.push(Output::words("out", &[m], (0..m).map(|row| log.get(row)).collect()));
        Ok(())
    }
}

/// Cases of the doctor: the best token, the best few, all of them, and those that weigh enough.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    use contract::launch::Kernel;
    use contract::lm_head::{LmHeadTileBf16, LmHeadTileF16, LmHeadTileF32};
    use contract::lm_head_int8::{
        Input, PackBf16, PackF16, PackF32, PickBf16, PickF16, PickF32, RescoreBf16, RescoreF16,
        RescoreF32, Scan, ScanFew, ScanMany, ScanSome, ScanWide, ScanWideSome,
    };
    let mut seeded = Seeded::new(21);
    let mut list = Vec::new();
    let greedy = crate::reference::sample::GREEDY;
    let few = SampleParams { temperature: 0.7, top_k: 3, repetition_penalty: 1.2, ..greedy };
    let all = SampleParams { temperature: 0.7, ..greedy };
    let weighing = SampleParams { min_weight: contract::sample::ONE_WEIGHT / 20, ..all };
    let barred = SampleParams { repetition_penalty: -1.0, ..greedy };
    let lowering = SampleParams { frequency_penalty: 0.5, every: 1, ..barred };
    let told = SampleParams { every: 1, ..few };
    for (element, kernels) in [
        (RowType::Bf16, [PackBf16::SPEC, RescoreBf16::SPEC]),
        (RowType::F16, [PackF16::SPEC, RescoreF16::SPEC]),
        (RowType::F32, [PackF32::SPEC, RescoreF32::SPEC]),
    ] {
        for (vocab, k, params) in [
            (1, 1, greedy),
            (700, 63, few),
            (2049, 1027, greedy),
            (515, 70, barred),
            (97, 640, all),
            (500, 65, weighing),
        ] {
            let inputs = Inputs {
                table: Table::new(element, vocab, k, seeded.bits()),
                x: seeded.floats(3 + k, 2.0),
                x_at: 3,
                norm: None,
                marks: seeded.marks(vocab),
                asked: vec![(params, false)],
                bias: Vec::new(),
                every: false,
            };
            let what = format!("vocab={vocab} k={k} top_k={}", params.top_k);
            for kernel in [Input::SPEC, Scan::SPEC].iter().chain(&kernels) {
                list.push((kernel.symbol, what.clone(), inputs.clone()));
            }
        }
    }
    // Of the scans of many inputs a device runs the one made for it.
    for (m, kernel, element) in [
        (5, ScanFew::SPEC.symbol, RowType::Bf16),
        (17, ScanSome::SPEC.symbol, RowType::Bf16),
        (18, ScanWideSome::SPEC.symbol, RowType::Bf16),
        (70, ScanMany::SPEC.symbol, RowType::Bf16),
        (71, ScanWide::SPEC.symbol, RowType::Bf16),
        (34, PickBf16::SPEC.symbol, RowType::Bf16),
        (35, PickF16::SPEC.symbol, RowType::F16),
        (72, PickF32::SPEC.symbol, RowType::F32),
    ] {
        let (vocab, k) = (700, 75);
        let asked =
            (0..m).map(|i| ([greedy, few, all, weighing, barred][i % 5], i % 7 == 4)).collect();
        let inputs = Inputs {
            table: Table::new(element, vocab, k, seeded.bits()),
            x: seeded.floats(m * k, 2.0),
            x_at: 0,
            norm: (m % 2 == 1).then(|| Norm {
                delta: seeded.floats(if m == 5 { 0 } else { m * k }, 1.0),
                weight: seeded.floats(k, 1.0),
            }),
            marks: seeded.marks(m * vocab),
            asked,
            bias: Vec::new(),
            every: false,
        };
        list.push((kernel, format!("m={m} vocab={vocab} k={k}"), inputs));
    }
    // Those that need every logit by tiles.
    for (m, kernel, element) in [
        (2, LmHeadTileBf16::SPEC.symbol, RowType::Bf16),
        (40, LmHeadTileBf16::SPEC.symbol, RowType::Bf16),
        (9, LmHeadTileF16::SPEC.symbol, RowType::F16),
        (3, LmHeadTileF32::SPEC.symbol, RowType::F32),
    ] {
        let (vocab, k) = (515, 70);
        let asked = (0..m).map(|i| ([lowering, few, barred, told][i % 4], i % 7 == 4)).collect();
        let inputs = Inputs {
            table: Table::new(element, vocab, k, seeded.bits()),
            x: seeded.floats(m * k, 2.0),
            x_at: 0,
            norm: None,
            marks: seeded.biased_marks(m * vocab),
            asked,
            bias: seeded.floats(m * vocab, 3.0),
            every: true,
        };
        list.push((kernel, format!("m={m} vocab={vocab} k={k} every logit"), inputs));
    }
    list
}
