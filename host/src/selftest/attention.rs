//! Runs of [`crate::ops::attention`].

use contract::attention::{KEY_BLOCK, partial_len};

use super::kv_append::Cache;
use super::{Bed, Run, RunError};
use crate::ops::Backend;
use crate::ops::attention::{Attention, AttentionScratch, Spread};
use crate::ops::kv_append::Heads;

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Heads of the layer.
    pub heads: Heads,
    /// Rows `[m, heads.qkv_len()]`; only q is read.
    pub qkv: Vec<f32>,
    /// The cache, holding the keys of these rows.
    pub cache: Cache,
    /// Position of row 0.
    pub start: u32,
    /// Positions that a spread over the keys reaches; `None` spreads over the rows.
    pub split: Option<usize>,
}

impl Inputs {
    /// Rows.
    pub fn m(&self) -> usize {
        self.qkv.len() / self.heads.qkv_len()
    }
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (heads, m) = (self.heads, self.m());
        let qkv = bed.input(&self.qkv)?;
        let cache = self.cache.on(bed, heads)?;
        let start = bed.input(&[u32::MAX, self.start])?;
        let mut out = bed.output(m * heads.q_len())?;
        let blocks = self.split.unwrap_or(0).div_ceil(KEY_BLOCK);
        let mut scratch = AttentionScratch::<B> {
            partial: bed.output(m * heads.heads * blocks * partial_len(heads.head_dim))?,
            counters: bed.input(&vec![0; m * heads.heads])?,
        };
        bed.backend().attention(Attention {
            qkv: &qkv,
            cache: &cache,
            out: &mut out,
            start: &start,
            start_at: 1,
            m,
            heads,
            spread: match self.split {
                Some(positions) => Spread::Keys { scratch: &mut scratch, positions },
                None => Spread::Rows,
            },
        })?;
        bed.keep("out", &[m, heads.heads, heads.head_dim], &out)?;
        bed.read("partial", &scratch.partial)?;
        bed.keep_words("counters", &[m, heads.heads], &scratch.counters)
    }
}
