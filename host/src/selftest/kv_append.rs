//! Runs of [`crate::ops::kv_append`].

use contract::kv_append::kv_stride;

use super::embed::to_bytes;
use super::rope::Angles;
use super::{Bed, Output, Run, RunError};
use crate::ops::kv_append::{Heads, KvAppend, KvCache};
use crate::ops::{Backend, OpError, RowType};
use crate::reference::Inputs as Seeded;

/// What a cache holds before a run.
#[derive(Clone, Debug)]
pub struct Cache {
    /// bf16 or f32.
    pub element: RowType,
    /// Positions.
    pub capacity: usize,
    /// Keys `[kv_heads, capacity, kv_stride(head_dim)]`, little-endian.
    pub k: Vec<u8>,
    /// Values, likewise.
    pub v: Vec<u8>,
}

impl Cache {
    /// A cache of seeded numbers in `(-2, 2)`, the padding of its rows zero.
    pub fn random(element: RowType, heads: Heads, capacity: usize, seeded: &mut Seeded) -> Self {
        let stride = kv_stride(heads.head_dim);
        let mut side = || {
            let mut values = seeded.floats(heads.kv_heads * capacity * stride, 2.0);
            values.chunks_exact_mut(stride).for_each(|row| row[heads.head_dim..].fill(0.0));
            to_bytes(element, &values)
        };
        Self { element, capacity, k: side(), v: side() }
    }

    pub(super) fn on<B: Backend>(&self, bed: &Bed<'_, B>) -> Result<KvCache<B>, OpError> {
        let &Self { element, capacity, .. } = self;
        Ok(KvCache { k: bed.input(&self.k)?, v: bed.input(&self.v)?, element, capacity })
    }

    /// One side of the cache as an output.
    pub fn output(&self, tensor: &'static str, heads: Heads, bytes: &[u8]) -> Output {
        let dims = [heads.kv_heads, self.capacity, kv_stride(heads.head_dim)];
        let word = |b: &[u8]| b.iter().rev().fold(0, |word, &b| word << 8 | u32::from(b));
        Output {
            tensor,
            dims: dims.into(),
            float: self.element == RowType::F32,
            bits: bytes.chunks_exact(self.element.bytes()).map(word).collect(),
        }
    }
}

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Heads of the layer.
    pub heads: Heads,
    /// Rows `[m, heads.qkv_len()]`.
    pub qkv: Vec<f32>,
    /// The cache before.
    pub cache: Cache,
    /// Angles, to rotate q and k.
    pub angles: Option<Angles>,
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
        let heads = self.heads;
        let mut qkv = bed.input(&self.qkv)?;
        let mut cache = self.cache.on(bed)?;
        let rope = self.angles.as_ref().map(|angles| angles.on(bed)).transpose()?;
        let start = bed.input(&[u32::MAX, self.start])?;
        bed.backend().kv_append(KvAppend {
            qkv: &mut qkv,
            cache: &mut cache,
            rope: rope.as_ref(),
            start: &start,
            start_at: 1,
            m: self.m(),
            heads,
        })?;
        bed.keep("qkv", &[self.m(), heads.qkv_len()], &qkv)?;
        for (tensor, buf) in [("k_cache", &cache.k), ("v_cache", &cache.v)] {
            let bytes = bed.read(tensor, buf)?;
            bed.push(self.cache.output(tensor, heads, &bytes));
        }
        Ok(())
    }
}
