//! Runs of [`crate::ops::attention_step`].

use contract::attention_step::{AttentionStepBf16, AttentionStepF32, KEY_BLOCK, partial_len};
use contract::launch::Kernel;

use super::kv_append::Cache;
use super::rope::Angles;
use super::{Bed, Run, RunError};
use crate::ops::attention_step::{AttentionScratch, AttentionStep};
use crate::ops::kv_append::Heads;
use crate::ops::{Backend, RowType};
use crate::reference::Inputs as Seeded;

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Heads of the layer.
    pub heads: Heads,
    /// The row `[heads.qkv_len()]`.
    pub qkv: Vec<f32>,
    /// The cache before.
    pub cache: Cache,
    /// Angles.
    pub angles: Angles,
    /// Position of the row.
    pub start: u32,
    /// Positions that the launch reaches.
    pub positions: usize,
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let heads = self.heads;
        let qkv = bed.input(&self.qkv)?;
        let mut cache = self.cache.on(bed, heads)?;
        let rope = self.angles.on(bed)?;
        let start = bed.input(&[u32::MAX, self.start])?;
        let mut out = bed.output(heads.q_len())?;
        let blocks = self.positions.div_ceil(KEY_BLOCK);
        let mut scratch = AttentionScratch::<B> {
            partial: bed.output(heads.heads * blocks * partial_len(heads.head_dim))?,
            counters: bed.input(&vec![0; heads.heads])?,
        };
        bed.backend().attention_step(AttentionStep {
            qkv: &qkv,
            cache: &mut cache,
            rope: &rope,
            out: &mut out,
            start: &start,
            start_at: 1,
            heads,
            scratch: &mut scratch,
            positions: self.positions,
        })?;
        bed.keep("out", &[heads.heads, heads.head_dim], &out)?;
        bed.keep("qkv", &[heads.qkv_len()], &qkv)?;
        bed.keep_cache(&self.cache, heads, &cache)?;
        bed.read("partial", &scratch.partial)?;
        bed.keep_words("counters", &[heads.heads], &scratch.counters)
    }
}

/// Cases of the doctor: symbol, shape, inputs.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    let mut seeded = Seeded::new(14);
    let mut cases = Vec::new();
    for (heads, kv_heads, head_dim, start, capacity) in
        [(1, 1, 2, 0, 1), (4, 2, 50, 62, 130), (3, 1, 100, 128, 200), (2, 2, 256, 200, 200)]
    {
        let heads = Heads { heads, kv_heads, head_dim };
        for (element, kernel) in [
            (RowType::Bf16, AttentionStepBf16::SPEC.symbol),
            (RowType::F32, AttentionStepF32::SPEC.symbol),
        ] {
            let cache = Cache::random(element, heads, capacity, &mut seeded);
            let inputs = Inputs {
                heads,
                qkv: seeded.floats(heads.qkv_len(), 2.0),
                cache: Cache { padding: 5.0, ..cache },
                angles: Angles::new(capacity, head_dim, 10_000.0),
                start,
                // A recorded step reaches further than its position.
                positions: capacity,
            };
            cases.push((kernel, format!("{heads:?} start={start} capacity={capacity}"), inputs));
        }
    }
    cases
}
