//! Host side of [`contract::decode_layers::rows`].

use contract::attention_paged::PAGE;
use contract::decode_layers::rows::{MAX_ROWS, MAX_TILES, NO_ACTS, RING, Tiles};
use contract::decode_layers::{LINEARS, Shape};
use contract::num::RowType;

use super::{
    Layer, OP, Table, check_linears, filled, heads_of, linear_words, of_one_row, pair_words,
};
use crate::ops::act_quant::Gate;
use crate::ops::attention_paged::PagedCache;
use crate::ops::error::{at_least, dimension, same};
use crate::ops::kv_append::Heads;
use crate::ops::rope::RopeTable;
use crate::ops::{Backend, Math, OpError, RowWords, Tensor};

/// What a table is made for, and so which kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsKernel {
    /// One row: the kernel of [`super::DecodeLayers`].
    One,
    /// Tiles of eight rows.
    Tiles(Tiles),
}

impl RowsKernel {
    /// All there are, from the fewest rows on.
    pub const ALL: [Self; 1 + MAX_TILES as usize] =
        [Self::One, Self::Tiles(Tiles(1)), Self::Tiles(Tiles(2))];

    /// That for so many rows.
    pub fn of(rows: usize) -> Self {
        if rows <= 1 { Self::One } else { Self::Tiles(Tiles::of(rows as u32)) }
    }

    /// Most rows.
    pub fn rows(self) -> usize {
        match self {
            Self::One => 1,
            Self::Tiles(tiles) => tiles.rows() as usize,
        }
    }
}

/// Where the layers of a model and their pages are, and what the blocks of a launch leave each other. Made once for a model and a
/// batch.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "what the kernel reads"))]
pub struct RowsTable<B: Backend> {
    table: Table<B>,
    /// Quantised rows, where there are several.
    acts: B::Buf<u32>,
    kernel: RowsKernel,
}

impl<B: Backend> RowsTable<B> {
    /// A table of `layers` and their `caches`, for a model of `shape` and up to `rows` sequences of up to `capacity` positions. One for
    /// up to eight rows runs as a faster kernel than one for more, one for one row as a faster kernel still.
    ///
    /// # Errors
    /// Sizes that the kernel does not take; layers that do not have them; out of memory.
    pub fn new(
        backend: &B,
        shape: Shape,
        layers: &[Layer<'_, B>],
        caches: &[PagedCache<B>],
        capacity: usize,
        rows: usize,
    ) -> Result<Self, OpError> {
        check_layers(&shape, layers, caches)?;
        let allowed = "1 to 2^24 positions are allowed";
        dimension(OP, "capacity", capacity, contract::w2a8::MAX_ROWS, allowed)?;
        dimension(OP, "rows", rows, MAX_ROWS as usize, "1 to 16 rows are allowed")?;
        let (ring, kernel) = (RING as usize, RowsKernel::of(rows));
        let (sizes, acts) = match kernel {
            RowsKernel::One => {
                // That kernel counts them in 32 bits.
                let found = caches[0].pages.saturating_mul(shape.kv_heads as usize * PAGE);
                if u32::try_from(found).is_err() {
                    let (what, allowed) = ("positions of all heads", "less than 2^32 are allowed");
                    return Err(OpError::Dimension { op: OP, what, found, allowed });
                }
                (of_one_row(&shape), 0)
            }
            RowsKernel::Tiles(tiles) => (
                [kernel.rows(), ring * shape.slot_words(tiles) as usize],
                ring * shape.acts_at(tiles, LINEARS as u32) as usize,
            ),
        };
        Ok(Self {
            table: Table::new(backend, shape, words(backend, layers, caches), capacity, sizes)?,
            acts: filled(backend, acts, NO_ACTS as u8)?,
            kernel,
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
            let (what, found) = ("bits of a cache", cache.element.bits());
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

/// All layers of a model on up to sixteen rows, which have a sequence each, over a cache in pages.
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
    /// How attention is computed: as of [`super::DecodeLayers`] by a table for one row; exactly by one for several.
    pub math: Math,
}

impl<B: Backend> DecodeRows<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let (shape, capacity) = (self.table.table.shape, self.table.table.capacity);
        check_layers(&shape, self.layers, self.caches)?;
        let rows = self.table.kernel.rows();
        dimension(OP, "m", self.m, rows, "as many rows as the table is for are allowed")?;
        at_least(OP, "h", self.h.len(), self.m * shape.hidden as usize)?;
        self.positions.check(OP, "positions", self.m, 1)?;
        self.tables.check(OP, "tables", self.m, capacity.div_ceil(PAGE))?;
        same(OP, "head_dim", self.rope.head_dim, shape.head_dim as usize)?;
        at_least(OP, "positions", self.rope.positions, capacity)?;
        self.rope.check(OP)
    }

    /// Heads of every layer.
    pub fn heads(&self) -> Heads {
        heads_of(&self.table.table.shape)
    }

    /// Positions of a table.
    pub fn capacity(&self) -> usize {
        self.table.table.capacity
    }
}

#[cfg(feature = "cuda")]
impl DecodeRows<'_, crate::ops::CudaBackend> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        self.check()?;
        self.table.table.check(&words(cuda, self.layers, self.caches))?;
        match self.table.kernel {
            RowsKernel::One => self.launch_one(cuda),
            RowsKernel::Tiles(tiles) => self.launch_tiles(cuda, tiles),
        }
    }

    fn launch_one(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use crate::ops::cuda::at;
        let Self { caches, table, rope, h, positions, tables, gate, eps, math, .. } = self;
        let (stream, table) = (cuda.stream(), &mut table.table);
        let start = at(positions.words.dev_ptr(stream), positions.at);
        let pages = (at(tables.words.dev_ptr(stream), tables.at), caches[0].pages as u32);
        // SAFETY: `check` compared the weights, gains, pages, angles, position and table with the sizes, and the table holds the
        // addresses of these very buffers; what the kernel writes is borrowed exclusively, and a page past their number is not
        // looked at.
        unsafe { table.launch_row(cuda, rope, h, start, Some(pages), (gate, eps, math)) }
    }

    fn launch_tiles(self, cuda: &crate::ops::CudaBackend, tiles: Tiles) -> Result<(), OpError> {
        use crate::ops::cuda::at;
        let shape = self.table.table.shape;
        let sms = cuda.cuda().device().sm_count().max(1);
        let m = self.m as u32;
        let blocks = shape.rows_blocks(tiles, sms, m).ok_or(OpError::Dimension {
            op: OP,
            what: "number of multiprocessors",
            found: sms as usize,
            allowed: "a block has too many outputs of a layer; run the layers one by one",
        })?;
        let (scale, gate) =
            (crate::ops::attention::scale(shape.head_dim as usize), self.gate.finish() as u32);
        let Self {
            caches,
            table: RowsTable { table, acts, .. },
            rope,
            h,
            positions,
            tables,
            eps,
            ..
        } = self;
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
            acts: acts.dev_ptr(stream),
            partial: table.partial.dev_ptr(stream).cast(),
            epoch: table.epoch.dev_ptr(stream),
            shape,
            m,
            group: shape.heads / shape.kv_heads,
            position_stride: positions.stride as u32,
            table_stride: tables.stride as u32,
            pages: caches[0].pages as u32,
            capacity: table.capacity as u32,
            key_blocks: table.capacity.div_ceil(PAGE) as u32,
            gate,
            eps,
            scale,
            smem_bytes: shape.rows_smem_bytes(tiles, blocks),
        };
        let grid = [blocks + tiles.quantisers(m), 1, 1];
        // SAFETY: `check` compared the weights, gains, pages, angles, positions and tables with the sizes, and the table holds
        // the addresses of these very buffers; what the kernel writes is borrowed exclusively, and a page past their number
        // is not looked at. The table's own buffers were made for the sizes, and each launch leaves them as the next one
        // expects them.
        unsafe {
            if tiles == Tiles(1) {
                cuda.launch::<contract::decode_layers::DecodeLayersRows>(grid, args)
            } else {
                cuda.launch::<contract::decode_layers::DecodeLayersRows16>(grid, args)
            }
        }
    }
}

/// Whether one kernel runs all layers of a model of these sizes on so many rows.
#[cfg(feature = "cuda")]
pub(in crate::ops) fn runs_together(
    cuda: &crate::ops::CudaBackend,
    shape: &contract::decode_layers::Shape,
    rows: usize,
) -> bool {
    use contract::decode_layers::DecodeLayersPaged;
    use contract::decode_layers::rows::{DecodeLayersRows, DecodeLayersRows16, Tiles};
    let sms = cuda.cuda().device().sm_count().max(1);
    let RowsKernel::Tiles(tiles) = RowsKernel::of(rows) else {
        return shape.blocks(sms).is_some() && cuda.has::<DecodeLayersPaged>();
    };
    let takes = shape.rows_blocks(tiles, sms, tiles.rows()).is_some();
    takes
        && match tiles {
            Tiles(1) => cuda.has::<DecodeLayersRows>(),
            _ => cuda.has::<DecodeLayersRows16>(),
        }
}
