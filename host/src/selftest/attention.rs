//! Runs of [`crate::ops::attention`].

use super::kv_append::Cache;
use super::{Bed, Output, Run, RunError};
use crate::ops::attention::Attention;
use crate::ops::kv_append::Heads;
use crate::ops::{Backend, Math};
use crate::reference::attention::fast_bounds;

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
    /// How scores and values are summed.
    pub math: Math,
    /// See [`Attention::tiled`].
    pub tiled: Option<bool>,
}

impl Inputs {
    /// Rows.
    pub fn m(&self) -> usize {
        self.qkv.len() / self.heads.qkv_len()
    }

    /// The output, with the bound that its math promises.
    pub fn output(&self, out: &[f32]) -> Output {
        let (heads, m) = (self.heads, self.m());
        let output = Output::floats("out", &[m, heads.heads, heads.head_dim], out);
        match self.math {
            Math::Exact => output,
            Math::TensorCore => {
                let (cache, start) = (&self.cache.values, self.start as usize);
                output.within(fast_bounds(&self.qkv, cache, start, m, heads, out))
            }
        }
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
            math: self.math,
            tiled: self.tiled,
        })?;
        let out = bed.read("out", &out)?;
        bed.push(self.output(&out));
        Ok(())
    }
}
