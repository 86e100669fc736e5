//! Buffers that every layer of a model shares.

use crate::ops::attention_paged::{PagedCache, PagedRows};
use crate::ops::attention_step::AttentionScratch;
use crate::ops::kv_append::{Heads, KvCache};
use crate::ops::w2a8_gemm::{Behind, KeysAhead};
use crate::ops::{Backend, OpError, QuantActs, RowWords, bit_linear};
use contract::attention_paged::PAGE;
use contract::attention_step::MAX_HEAD_DIM;

/// Intermediate tensors for up to `rows` rows.
pub struct Activations<B: Backend> {
    /// Residual stream `[rows, hidden]`.
    pub h: B::Buf<f32>,
    /// In turn: the attention output `[rows, heads.q_len()]`, the gated product `[rows, ffn]`, and after either
    /// what the residual stream takes up next `[rows, hidden]`.
    pub delta: B::Buf<f32>,
    /// In turn: fused projections `[rows, heads.qkv_len()]`, fused gate and up projections `[rows, 2 ffn]`, and
    /// rows after the last norm `[rows, hidden]`.
    pub wide: B::Buf<f32>,
    /// Quantised input of the next linear layer.
    pub acts: QuantActs<B>,
    /// A matrix of 1.6 bits a weight in the 2-bit layout, for several rows.
    pub unpacked: B::Buf<u32>,
    /// For attention of one row.
    pub scratch: AttentionScratch<B>,
    /// Rows that fit.
    pub rows: usize,
    /// Whether a single row can take the fused operations.
    fuses: bool,
}

/// Sizes that [`Activations`] are made for.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the gated product.
    pub ffn: usize,
    /// Heads of every attention layer.
    pub heads: Heads,
    /// Words of the largest matrix in the 2-bit layout where weights take 1.6 bits, else 0.
    pub unpacked: usize,
}

impl Widths {
    /// Elements of a row of [`Activations::delta`], and of what is quantised.
    fn widest(&self) -> usize {
        self.hidden.max(self.ffn).max(self.heads.q_len())
    }

    /// Elements of a row of [`Activations::wide`].
    fn wide(&self) -> usize {
        self.heads.qkv_len().max(2 * self.ffn).max(self.hidden)
    }

    /// Bytes that a row takes, but for a few words.
    pub fn row_bytes(&self) -> usize {
        4 * (self.hidden + self.widest() + self.wide()) + self.widest()
    }

    /// Whether `bit_linear` and `attention_step` take these sizes and weights.
    fn fuses(&self) -> bool {
        let rows = [self.hidden, self.heads.q_len(), self.ffn];
        self.unpacked == 0
            && rows.into_iter().all(bit_linear::takes)
            && self.heads.head_dim <= MAX_HEAD_DIM as usize
    }
}

impl<B: Backend> Activations<B> {
    /// Whether a step of `m` rows runs as the five fused operations of a block: a single row does, whose
    /// sizes they take. The bits are the same.
    pub fn fused(&self, m: usize) -> bool {
        m == 1 && self.fuses
    }

    /// Reserves buffers for `rows` rows, and attention scratch for one row over `positions`.
    ///
    /// # Errors
    /// Out of memory; sizes that the kernels do not take.
    pub fn alloc(
        backend: &B,
        widths: Widths,
        rows: usize,
        positions: usize,
    ) -> Result<Self, OpError> {
        let Widths { hidden, heads, unpacked, .. } = widths;
        let buf = |len: usize| backend.alloc("activations", rows * len);
        let (widest, wide) = (widths.widest(), widths.wide());
        Ok(Self {
            h: buf(hidden)?,
            delta: buf(widest)?,
            wide: buf(wide)?,
            acts: QuantActs::alloc(backend, rows, widest)?,
            // One row needs none.
            unpacked: backend
                .alloc("unpacked weights", if rows > 1 { unpacked.max(1) } else { 1 })?,
            scratch: AttentionScratch::alloc(backend, heads, positions)?,
            rows,
            fuses: widths.fuses(),
        })
    }
}

/// The keys and values of one layer, and where in them the rows of a step stand.
pub enum Past<'a, B: Backend> {
    /// One sequence, whose positions stand one behind the other; the rows are neighbours.
    Run {
        /// The sequence's cache.
        cache: &'a mut KvCache<B>,
        /// Holds the position of the first row at `start_at`.
        start: &'a B::Buf<u32>,
        /// Where in `start`.
        start_at: usize,
        /// Positions that attention has to reach: at least the last row's position plus one.
        reach: usize,
    },
    /// Sequences in pages; each row anywhere in any of them.
    Paged {
        /// The pages.
        cache: &'a mut PagedCache<B>,
        /// The rows of a step.
        step: Option<PagedPart<'a, B>>,
        /// Rows of prompts, behind those.
        prompts: Option<PagedPart<'a, B>>,
    },
}

/// Rows side by side.
pub struct PagedPart<'a, B: Backend> {
    /// How many.
    pub m: usize,
    /// Position of each row.
    pub positions: RowWords<'a, B>,
    /// Pages of each row's sequence.
    pub tables: RowWords<'a, B>,
    /// Positions that a table covers.
    pub capacity: usize,
    /// What is known of them.
    pub rows: PagedRows<'a, B>,
}

impl<'a, B: Backend> Past<'a, B> {
    /// What the two products of the feed-forward part do for the next layer's attention: each brings the keys of one page of every row, the last but one
    /// of what the row's second block takes, and of what its first one takes ([`PagedStep::share`]). Their own weights leave memory little to do.
    pub(super) fn behind_mlp(&self) -> [Behind<'a, B>; 2] {
        let Self::Paged { step: Some(part), prompts: None, .. } = self else {
            return Default::default();
        };
        let PagedPart { positions, tables, rows: PagedRows::Step(step), .. } = part else {
            return Default::default();
        };
        let (Some(share), Some(cache)) = (step.share, step.next) else {
            return Default::default();
        };
        [2 * share, share].map(|end| match end.checked_sub(2) {
            Some(block) if block < step.reach / PAGE => {
                Behind::Keys(KeysAhead { cache, positions: *positions, tables: *tables, block })
            }
            _ => Behind::Nothing,
        })
    }
}
