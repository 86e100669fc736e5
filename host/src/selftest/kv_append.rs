//! Runs of [`crate::ops::kv_append`].

use contract::kv_append::kv_stride;
use contract::num::f32_to_bf16;

use super::rope::Angles;
use super::{Bed, Output, Run, RunError};
use crate::ops::kv_append::{Heads, KvAppend, KvCache};
use crate::ops::{Backend, OpError, RowType};
use crate::reference::Inputs as Seeded;
use crate::reference::kv_append::kept;

pub use crate::reference::kv_append::Cache as Unpadded;

/// What a cache holds before a run.
#[derive(Clone, Debug)]
pub struct Cache {
    /// bf16 or f32.
    pub element: RowType,
    /// Keys and values `[kv_heads, capacity, head_dim]`.
    pub values: Unpadded,
    /// What stands between `head_dim` and `kv_stride(head_dim)`.
    pub padding: f32,
}

impl Cache {
    /// A cache of seeded numbers in `(-2, 2)`.
    pub fn random(element: RowType, heads: Heads, capacity: usize, seeded: &mut Seeded) -> Self {
        let len = heads.kv_heads * capacity * heads.head_dim;
        let mut side = || seeded.floats(len, 2.0).into_iter().map(|v| kept(element, v)).collect();
        Self { element, values: Unpadded { k: side(), v: side(), capacity }, padding: 0.0 }
    }

    /// Keys, or values, as one word for each element of the padded cache. Rows of a position for
    /// which `written` holds have a padding of zeros.
    pub fn padded(&self, heads: Heads, side: &[f32], written: impl Fn(usize) -> bool) -> Vec<u32> {
        let word = |v: f32| match self.element {
            RowType::F32 => v.to_bits(),
            _ => u32::from(f32_to_bf16(v)),
        };
        let rows = side.chunks_exact(heads.head_dim).enumerate().map(|(i, row)| {
            let zeros = written(i % self.values.capacity);
            (row, if zeros { 0.0 } else { self.padding })
        });
        let padding = kv_stride(heads.head_dim) - heads.head_dim;
        rows.flat_map(|(row, pad)| {
            row.iter().copied().chain(std::iter::repeat_n(pad, padding)).map(word)
        })
        .collect()
    }

    /// The words of one side as an output.
    pub fn output(&self, tensor: &'static str, heads: Heads, bits: Vec<u32>) -> Output {
        let dims = [heads.kv_heads, self.values.capacity, kv_stride(heads.head_dim)];
        Output {
            tensor,
            dims: dims.into(),
            float: self.element == RowType::F32,
            bits,
            within: None,
        }
    }

    pub(super) fn on<B: Backend>(
        &self,
        bed: &Bed<'_, B>,
        heads: Heads,
    ) -> Result<KvCache<B>, OpError> {
        let bytes = |side: &[f32]| -> Vec<u8> {
            let words = self.padded(heads, side, |_| false);
            let size = self.element.bytes();
            let mut bytes = vec![0; words.len() * size];
            for (to, word) in bytes.chunks_exact_mut(size).zip(words) {
                to.copy_from_slice(&word.to_le_bytes()[..size]);
            }
            bytes
        };
        let Self { element, values: Unpadded { k, v, capacity }, .. } = self;
        let (k, v) = (bed.input(&bytes(k))?, bed.input(&bytes(v))?);
        Ok(KvCache { k, v, element: *element, capacity: *capacity })
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
        let mut cache = self.cache.on(bed, heads)?;
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
        bed.keep_cache(&self.cache, heads, &cache)
    }
}

impl<B: Backend> Bed<'_, B> {
    /// Keeps both sides of a cache that was made from `before`.
    pub(super) fn keep_cache(
        &mut self,
        before: &Cache,
        heads: Heads,
        cache: &KvCache<B>,
    ) -> Result<(), RunError> {
        for (tensor, buf) in [("k_cache", &cache.k), ("v_cache", &cache.v)] {
            let bytes = self.read(tensor, buf)?;
            let word = |b: &[u8]| match *b {
                [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                [a, b] => u16::from_le_bytes([a, b]).into(),
                _ => unreachable!("elements of a cache have two or four bytes"),
            };
            let bits = bytes.chunks_exact(before.element.bytes()).map(word).collect();
            self.push(before.output(tensor, heads, bits));
        }
        Ok(())
    }
}
