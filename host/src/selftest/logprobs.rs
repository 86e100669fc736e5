//! Runs of [`crate::ops::logprobs`].

use contract::logprobs::{ENTRY_WORDS, blocks, groups};

use super::{Bed, Output, Run, RunError};
use crate::ops::logprobs::{LogprobScratch, Logprobs};
use crate::ops::{Backend, RowWords, TokenLog};
use crate::reference::Inputs as Seeded;
use crate::reference::sample::logits;

/// What is asked of a row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The token.
    pub id: u32,
    /// Its number in its text.
    pub step: u32,
    /// 0, or 1 and the number of likely tokens.
    pub wanted: u32,
    /// Number of the token that was told before.
    pub last: u32,
}

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// Number of logits of a row.
    pub vocab: usize,
    /// What is asked.
    pub rows: Vec<Row>,
    /// Rows of the entries in front of them.
    pub first: usize,
    /// Entries of a row.
    pub ring: usize,
    /// Words between the words of two rows, and in front of the first.
    pub stride: usize,
}

impl Inputs {
    /// A word of each row, `stride` apart.
    fn words(&self, of: impl Fn(&Row) -> u32) -> Vec<u32> {
        let mut words = vec![0x5555; self.stride * (self.rows.len() + 1)];
        self.rows.iter().zip(1..).for_each(|(row, i)| words[i * self.stride] = of(row));
        words
    }
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (rows, stride) = (self.rows.len(), self.stride);
        let logits = bed.input(&self.logits)?;
        let ids = bed.input(&self.words(|row| row.id))?;
        let steps = bed.input(&self.words(|row| row.step))?;
        let wanted = bed.input(&self.words(|row| row.wanted))?;
        let last = self.rows.iter().map(|row| row.last);
        let last: Vec<u32> = std::iter::repeat_n(0x77, self.first).chain(last).collect();
        let mut last = bed.input(&last)?;
        let words = (self.first + rows) * self.ring * ENTRY_WORDS;
        // One entry behind them must stay as it is.
        let mut out = bed.backend().alloc_tokens(words + ENTRY_WORDS)?;
        out.clear();
        let at = |words| RowWords::<B> { words, at: stride, stride };
        let (ids, steps, wanted) = (at(&ids), at(&steps), at(&wanted));
        let (vocab, first, ring) = (self.vocab, self.first, self.ring);
        let (of_groups, of_blocks) = (groups(vocab as u32), blocks(vocab as u32));
        let mut scratch = LogprobScratch::<B> {
            bests: bed.output(rows * of_groups as usize)?,
            parts: bed.output(2 * rows * of_blocks as usize)?,
            tickets: bed.input(&vec![0; rows])?,
        };
        let logits = &logits;
        let (last_of, out_of) = (&mut last, &mut out);
        bed.backend().logprobs(Logprobs {
            logits,
            vocab,
            ids,
            steps,
            wanted,
            last: last_of,
            out: out_of,
            scratch: &mut scratch,
            first,
            rows,
            ring,
        })?;
        bed.keep_words("tickets", &[rows], &scratch.tickets)?;
        bed.read("bests", &scratch.bests)?;
        bed.read("parts", &scratch.parts)?;
        bed.keep_words("last", &[first + rows], &last)?;
        let entries = (0..words + ENTRY_WORDS).map(|i| out.get(i)).collect();
        bed.push(Output::words("out", &[words / ENTRY_WORDS + 1, ENTRY_WORDS], entries));
        Ok(())
    }
}

/// Cases of the doctor: tokens of several kinds, with a NaN and infinities among the logits.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    use contract::launch::Kernel;
    let mut seeded = Seeded::new(19);
    let shapes = [(1, 3), (257, 2), (33_000, 3)];
    let cases = shapes.into_iter().flat_map(|(vocab, rows)| {
        let of_rows = (0..rows).flat_map(|_| logits(vocab, seeded.bits() & !3));
        let logits: Vec<f32> = of_rows.collect();
        let rows = (0..rows as u32).map(|i| {
            let id = seeded.below(vocab) as u32;
            Row { id, step: 3 + i, wanted: [21, 1, 6][i as usize], last: 2 }
        });
        let inputs = Inputs { logits, vocab, rows: rows.collect(), first: 1, ring: 2, stride: 3 };
        let what = format!("rows={} vocab={vocab}", inputs.rows.len());
        use contract::logprobs::{Groups, Tell};
        [Groups::SPEC.symbol, Tell::SPEC.symbol]
            .map(|kernel| (kernel, what.clone(), inputs.clone()))
    });
    cases.collect()
}
