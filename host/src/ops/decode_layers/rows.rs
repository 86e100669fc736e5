//! Host side of [`contract::decode_layers::rows`].

use contract::attention_paged::PAGE;
use contract::decode_layers::rows::{MAX_ROWS, NO_ACTS, RING};
use contract::decode_layers::{LINEARS, Shape, partial_len};
use contract::num::RowType;

use super::{Layer, OP, check_linears, heads_of, linear_words, pair_words};
use crate::ops::act_quant::Gate;
use crate::ops::attention::scale;
use crate::ops::attention_paged::PagedCache;
use crate::ops::error::{at_least, dimension, same};
use crate::ops::kv_append::Heads;
use crate::ops::rope::RopeTable;
use crate::ops::{Backend, OpError, RowWords, Tensor};

/// Where the layers of a model and their pages are, and what the blocks of a launch leave each other. Made once for a model and a
/// batch.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "what the kernel reads"))]
pub struct RowsTable<B: Backend> {
    linears: B::Buf<u32>,
    caches: B::Buf<u32>,
    exchange: B::Buf<u32>,
    acts: B::Buf<u32>,
    partial: B::Buf<u32>,
    epoch: B::Buf<u32>,
    /// What is in `linears` and `caches`.
    words: [Vec<u32>; 2],
    shape: Shape,
    capacity: usize,
}

impl<B: Backend> RowsTable<B> {
    /// A table of `layers` and their `caches`, for a model of `shape` and sequences of up to `capacity` positions.
    ///
    /// # Errors
    /// Sizes that the kernel does not take; layers that do not have them; out of memory.
    pub fn new(
        backend: &B,
        shape: Shape,
        layers: &[Layer<'_, B>],
        caches: &[PagedCache<B>],
        capacity: usize,
    ) -> Result<Self, OpError> {
        check_layers(&shape, layers, caches)?;
        let words = words(backend, layers, caches);
        let put = |words: &[u32]| {
            let mut buf = backend.alloc("decode", words.len())?;
            backend.write(&mut buf, 0, words)?;
            Ok::<_, OpError>(buf)
        };
        let filled = |len: usize, byte: u8| {
            let mut buf = backend.alloc("decode", len)?;
            backend.fill(&mut buf, byte)?;
            Ok::<_, OpError>(buf)
        };
        let allowed = "1 to 2^24 positions are allowed";
        dimension(OP, "capacity", capacity, contract::w2a8::MAX_ROWS, allowed)?;
        let rows = MAX_ROWS as usize * shape.heads as usize * capacity.div_ceil(PAGE);
        let partial = rows * partial_len(shape.head_dim as usize);
        // The kernel counts their words of four bytes in 32 bits.
        if u32::try_from(2 * partial).is_err() {
            return Err(OpError::Dimension {
                op: OP,
                what: "capacity",
                found: capacity,
                allowed: "less than 2^32 words for the results of key blocks are allowed",
            });
        }
        let ring = RING as usize;
        Ok(Self {
            linears: put(&words[0])?,
            caches: put(&words[1])?,
            exchange: filled(ring * shape.slot_words() as usize, 0xff)?,
            acts: filled(ring * shape.acts_at(LINEARS as u32) as usize, NO_ACTS as u8)?,
            partial: filled(2 * partial, 0)?,
            epoch: filled(1, 0)?,
            words,
            shape,
            capacity,
        })
    }
}

/// Compares layers and caches with the sizes.
fn check_layers<B: Backend>(
    shape: &Shape,
    layers: &[Layer<'_, B>],
    caches: &[PagedCache<B>],
) -> Result<(), OpError> {
    check_linears(shape, layers)?;
    same(OP, "number of caches", caches.len(), layers.len())?;
    for cache in caches {
        cache.check(heads_of(shape))?;
        same(OP, "number of pages", cache.pages, caches[0].pages)?;
        if cache.element != RowType::Bf16 {
            let (what, found) = ("bits of a cache", 8 * cache.element.bytes());
            let allowed = "a cache of bf16 is taken; use attention_paged for others";
            return Err(OpError::Dimension { op: OP, what, found, allowed });
        }
    }
    Ok(())
}

/// The words of the tables.
fn words<B: Backend>(
    backend: &B,
    layers: &[Layer<'_, B>],
    caches: &[PagedCache<B>],
) -> [Vec<u32>; 2] {
    [linear_words(backend, layers), pair_words(backend, caches.iter().map(|c| [&c.k, &c.v]))]
}

/// All layers of a model on up to eight rows, which have a sequence each, over a cache in pages.
///
/// The bits are those of each row alone. Positions and tables are read on the device.
pub struct DecodeRows<'a, B: Backend> {
    /// Linear layers.
    pub layers: &'a [Layer<'a, B>],
    /// Pages of the layers.
    pub caches: &'a mut [PagedCache<B>],
    /// The table that was made of both.
    pub table: &'a mut RowsTable<B>,
    /// Angles for at least as many positions as the table was made for.
    pub rope: &'a RopeTable<B>,
    /// Residual streams `[m, hidden]`.
    pub h: &'a mut B::Buf<f32>,
    /// Position of each row; [`contract::attention_paged::ABSENT`] for one that is not there.
    pub positions: RowWords<'a, B>,
    /// Pages of each row's sequence.
    pub tables: RowWords<'a, B>,
    /// Rows.
    pub m: usize,
    /// The activation of the gate.
    pub gate: Gate,
    /// Added to the mean square of the norms.
    pub eps: f32,
}

impl<B: Backend> DecodeRows<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let (shape, capacity) = (self.table.shape, self.table.capacity);
        check_layers(&shape, self.layers, self.caches)?;
        dimension(OP, "m", self.m, MAX_ROWS as usize, "1 to 8 rows are allowed")?;
        at_least(OP, "h", self.h.len(), self.m * shape.hidden as usize)?;
        self.positions.check(OP, "positions", self.m, 1)?;
        self.tables.check(OP, "tables", self.m, capacity.div_ceil(PAGE))?;
        same(OP, "head_dim", self.rope.head_dim, shape.head_dim as usize)?;
        at_least(OP, "positions", self.rope.positions, capacity)?;
        self.rope.check(OP)
    }

    /// Multiplier of the scores: `1 / sqrt(head_dim)`, rounded once.
    pub fn scale(&self) -> f32 {
        scale(self.table.shape.head_dim as usize)
    }

    /// Heads of every layer.
    pub fn heads(&self) -> Heads {
        heads_of(&self.table.shape)
    }

    /// Positions of a table.
    pub fn capacity(&self) -> usize {
        self.table.capacity
    }
}

#[cfg(feature = "cuda")]
impl DecodeRows<'_, crate::ops::CudaBackend> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use crate::ops::cuda::at;
        self.check()?;
        let found = words(cuda, self.layers, self.caches);
        if found != self.table.words {
            let differ = |i: usize| self.table.words[i] != found[i];
            let (what, found) = ("table", usize::from(differ(0)) + usize::from(differ(1)));
            let allowed = "it has to be made of these layers and caches; make a new one";
            return Err(OpError::Dimension { op: OP, what, found, allowed });
        }
        let shape = self.table.shape;
        let sms = cuda.cuda().device().sm_count().max(1);
        let blocks = shape.rows_blocks(sms).ok_or(OpError::Dimension {
            op: OP,
            what: "number of multiprocessors",
            found: sms as usize,
            allowed: "a block makes at most 96 outputs of a layer; run the layers one by one",
        })?;
        let (scale, gate) = (self.scale(), self.gate.finish() as u32);
        let Self { caches, table, rope, h, positions, tables, m, eps, .. } = self;
        let stream = cuda.stream();
        let args = contract::decode_layers::rows::Args {
            linears: table.linears.dev_ptr(stream).cast(),
            caches: table.caches.dev_ptr(stream).cast(),
            h: h.dev_ptr(stream),
            cos: rope.cos.dev_ptr(stream),
            sin: rope.sin.dev_ptr(stream),
            positions: at(positions.words.dev_ptr(stream), positions.at),
            tables: at(tables.words.dev_ptr(stream), tables.at),
            exchange: table.exchange.dev_ptr(stream),
            acts: table.acts.dev_ptr(stream),
            partial: table.partial.dev_ptr(stream).cast(),
            epoch: table.epoch.dev_ptr(stream),
            shape,
            m: m as u32,
            group: shape.heads / shape.kv_heads,
            position_stride: positions.stride as u32,
            table_stride: tables.stride as u32,
            pages: caches[0].pages as u32,
            capacity: table.capacity as u32,
            key_blocks: table.capacity.div_ceil(PAGE) as u32,
            gate,
            eps,
            scale,
            smem_bytes: shape.rows_smem_bytes(blocks),
        };
        // SAFETY: `check` compared the weights, gains, pages, angles, positions and tables with the sizes, and the table holds
        // the addresses of these very buffers; what the kernel writes is borrowed exclusively, and a page past their number
        // is not looked at. The table's own buffers were made for the sizes, and each launch leaves them as the next one
        // expects them.
        unsafe { cuda.launch::<contract::decode_layers::DecodeLayersRows>([blocks, 1, 1], args) }
    }
}
