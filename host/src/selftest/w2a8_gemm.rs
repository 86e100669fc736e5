//! Runs of [`crate::ops::w2a8_gemm`].

use super::w2a8_gemv::{Product, tensors};
use super::{Bed, Run, RunError};
use crate::ops::attention_paged::PagedCache;
use crate::ops::kv_append::Heads;
use crate::ops::w2a8_gemm::{Behind, KeysAhead, W2a8Gemm};
use crate::ops::{Backend, RowType, RowWords};
use contract::attention_paged::ABSENT;

/// All rows of activations, by a variant.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The product.
    pub case: &'a Product,
    /// Index into [`contract::w2a8_gemm::VARIANTS`].
    pub variant: Option<usize>,
}

impl Run for Inputs<'_> {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (m, n) = (self.case.m, self.case.n);
        let variant = self.variant;
        let (w, acts) = tensors(bed, self.case)?;
        let mut y = bed.output(m * n)?;
        // Keys that are asked for ahead change nothing: of rows that are not there, too short, and whose page is not there as well.
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 136 };
        let cache = PagedCache::alloc(bed.backend(), heads, 3, RowType::Bf16)?;
        let pages: Vec<u32> = (0..2 * m as u32).map(|i| i / 2 % 5).collect();
        let rows: Vec<u32> = (0..m).map(|i| [ABSENT, 63, 128, 4095][i % 4]).collect();
        let (positions, tables) = (bed.input(&rows)?, bed.input(&pages)?);
        bed.backend().w2a8_gemm(W2a8Gemm {
            // Of a variant that is asked for this changes the shared memory of its blocks alone.
            chained: variant.is_some(),
            behind: Behind::Keys(KeysAhead {
                cache: &cache,
                positions: RowWords { words: &positions, at: 0, stride: 1 },
                tables: RowWords { words: &tables, at: 0, stride: 2 },
                block: 1,
            }),
            w: &w,
            acts: &acts,
            y: &mut y,
            m,
            variant,
        })?;
        bed.keep("y", &[m, n], &y)
    }
}
