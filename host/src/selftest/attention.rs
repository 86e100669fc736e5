//! Runs of [`crate::ops::attention`].

use super::kv_append::Cache;
use super::{Bed, Run, RunError};
use crate::ops::Backend;
use crate::ops::attention::Attention;
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
        bed.backend().attention(Attention {
            qkv: &qkv,
            cache: &cache,
            out: &mut out,
            start: &start,
            start_at: 1,
            m,
            heads,
        })?;
        bed.keep("out", &[m, heads.heads, heads.head_dim], &out)
    }
}
