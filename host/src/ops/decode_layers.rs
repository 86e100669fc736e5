//! Host side of [`contract::decode_layers`].

pub mod rows;

use contract::attention::KEY_BLOCK;
use contract::decode_layers::{LINEARS, Shape, partial_len};
use contract::num::RowType;

use super::act_quant::Gate;
use super::error::{at_least, same};
use super::kv_append::{Heads, KvCache};
use super::rope::RopeTable;
use super::{Backend, Math, OpError, PackedLinear, Tensor, WeightLayout};

const OP: &str = "decode_layers";
/// Words of a [`contract::decode_layers::Linear`].
const LINEAR_WORDS: usize = size_of::<contract::decode_layers::Linear>() / 4;

/// A ternary layer with the norm in front of it.
pub struct Linear<'a, B: Backend> {
    /// Ternary weights.
    pub w: &'a PackedLinear<B>,
    /// Gain of the norm.
    pub norm: Option<&'a B::Buf<f32>>,
}

/// The linear layers of a transformer block: qkv, output projection, gate and up, down.
pub type Layer<'a, B> = [Linear<'a, B>; LINEARS];

/// The sizes of a model of so many layers.
pub fn shape(layers: usize, hidden: usize, ffn: usize, heads: Heads) -> Shape {
    let fits = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Shape {
        layers: fits(layers),
        hidden: fits(hidden),
        ffn: fits(ffn),
        heads: fits(heads.heads),
        kv_heads: fits(heads.kv_heads),
        head_dim: fits(heads.head_dim),
    }
}

/// Where the layers of a model and their caches are, and what the blocks of a launch leave each other. Made once for a model and
/// a sequence.
pub struct DecodeTable<B: Backend>(Table<B>);

impl<B: Backend> DecodeTable<B> {
    /// A table of `layers` and their `caches`, for a model of `shape`.
    ///
    /// # Errors
    /// Sizes that the kernel does not take; layers that do not have them; out of memory.
    pub fn new(
        backend: &B,
        shape: Shape,
        layers: &[Layer<'_, B>],
        caches: &[KvCache<B>],
    ) -> Result<Self, OpError> {
        let capacity = check_layers(&shape, layers, caches)?;
        let words = words(backend, layers, caches);
        Ok(Self(Table::new(backend, shape, words, capacity, of_one_row(&shape))?))
    }
}

/// Rows, and words of the exchange, of a table for one row.
fn of_one_row(shape: &Shape) -> [usize; 2] {
    [1, 2 * shape.layers as usize * shape.exchange_len() as usize]
}

/// What is the same for one row and for several.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "what the kernel reads"))]
struct Table<B: Backend> {
    linears: B::Buf<u32>,
    caches: B::Buf<u32>,
    exchange: B::Buf<u32>,
    partial: B::Buf<u32>,
    epoch: B::Buf<u32>,
    /// What is in `linears` and `caches`.
    words: [Vec<u32>; 2],
    shape: Shape,
    capacity: usize,
}

impl<B: Backend> Table<B> {
    /// One for so many rows, with so many empty words of `exchange`.
    fn new(
        backend: &B,
        shape: Shape,
        words: [Vec<u32>; 2],
        capacity: usize,
        [rows, exchange]: [usize; 2],
    ) -> Result<Self, OpError> {
        let put = |words: &[u32]| {
            let mut buf = backend.alloc("decode", words.len())?;
            backend.write(&mut buf, 0, words)?;
            Ok::<_, OpError>(buf)
        };
        let blocks = rows * shape.heads as usize * capacity.div_ceil(KEY_BLOCK);
        let partial = blocks * partial_len(shape.head_dim as usize);
        // The kernels count their words of four bytes in 32 bits.
        if u32::try_from(2 * partial).is_err() {
            return Err(OpError::Dimension {
                op: OP,
                what: "capacity",
                found: capacity,
                allowed: "less than 2^32 words for the results of key blocks are allowed",
            });
        }
        Ok(Self {
            linears: put(&words[0])?,
            caches: put(&words[1])?,
            exchange: filled(backend, exchange, 0xff)?,
            partial: filled(backend, 2 * partial, 0)?,
            epoch: filled(backend, 1, 0)?,
            words,
            shape,
            capacity,
        })
    }

    /// Compares what a launch is given with what this was made of.
    #[cfg(feature = "cuda")]
    fn check(&self, found: &[Vec<u32>; 2]) -> Result<(), OpError> {
        if *found == self.words {
            return Ok(());
        }
        let differ = |i: usize| self.words[i] != found[i];
        let (what, found) = ("table", usize::from(differ(0)) + usize::from(differ(1)));
        let allowed = "it has to be made of these layers and caches; make a new one";
        Err(OpError::Dimension { op: OP, what, found, allowed })
    }
}

/// `len` words of equal bytes.
fn filled<B: Backend>(backend: &B, len: usize, byte: u8) -> Result<B::Buf<u32>, OpError> {
    let mut buf = backend.alloc("decode", len)?;
    backend.fill(&mut buf, byte)?;
    Ok(buf)
}

/// Compares layers and caches with the sizes; the positions of the caches.
fn check_layers<B: Backend>(
    shape: &Shape,
    layers: &[Layer<'_, B>],
    caches: &[KvCache<B>],
) -> Result<usize, OpError> {
    check_linears(shape, layers)?;
    same(OP, "number of caches", caches.len(), layers.len())?;
    let capacity = caches[0].capacity;
    for cache in caches {
        cache.check(OP, heads_of(shape))?;
        same(OP, "capacity", cache.capacity, capacity)?;
        if cache.element != RowType::Bf16 {
            let (what, found) = ("bits of a cache", 8 * cache.element.bytes());
            let allowed = "a cache of bf16 is taken; use attention_step for others";
            return Err(OpError::Dimension { op: OP, what, found, allowed });
        }
    }
    Ok(capacity)
}

/// The heads of every layer.
fn heads_of(shape: &Shape) -> Heads {
    let Shape { heads, kv_heads, head_dim, .. } = *shape;
    Heads { heads: heads as usize, kv_heads: kv_heads as usize, head_dim: head_dim as usize }
}

/// Compares layers with the sizes.
fn check_linears<B: Backend>(shape: &Shape, layers: &[Layer<'_, B>]) -> Result<(), OpError> {
    // As many multiprocessors as it takes: how many there are is the backend's matter.
    if shape.blocks(u32::MAX).is_none() {
        let allowed = "rows of at most 2560 (7168 for the gated product) and heads of 8, 16, ... 128 elements are allowed";
        return Err(OpError::Dimension {
            op: OP,
            what: "width of the model",
            found: shape.hidden as usize,
            allowed,
        });
    }
    same(OP, "number of layers", layers.len(), shape.layers as usize)?;
    for layer in layers {
        for (kind, linear) in layer.iter().enumerate() {
            let [n, k, rows] = shape.linear(kind);
            linear.w.check_layout(OP, WeightLayout::Bits2)?;
            same(OP, "n", linear.w.n(), (n * rows) as usize)?;
            same(OP, "k", linear.w.k(), k as usize)?;
            let ends = [linear, &layers[0][kind]].map(|linear| linear.w.segments().end);
            if ends[0] != ends[1] {
                let differs = (0..ends[0].len()).find(|&i| ends[0][i] != ends[1][i]).unwrap_or(0);
                let (found, expected) = (ends[0][differs] as usize, ends[1][differs] as usize);
                same(OP, "end of a segment", found, expected)?;
            }
            if let Some(norm) = linear.norm {
                at_least(OP, "norm", norm.len(), k as usize)?;
            }
        }
    }
    Ok(())
}

/// The words of the tables.
fn words<B: Backend>(backend: &B, layers: &[Layer<'_, B>], caches: &[KvCache<B>]) -> [Vec<u32>; 2] {
    [linear_words(backend, layers), pair_words(backend, caches.iter().map(|c| [&c.k, &c.v]))]
}

/// An address as two words.
fn halves(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}

/// The words of [`contract::decode_layers::Linear`], of all layers.
fn linear_words<B: Backend>(backend: &B, layers: &[Layer<'_, B>]) -> Vec<u32> {
    let mut linears = Vec::with_capacity(layers.len() * LINEARS * LINEAR_WORDS);
    for linear in layers.iter().flatten() {
        linears.extend(halves(backend.address(linear.w.words())));
        linears.extend(halves(linear.norm.map_or(0, |norm| backend.address(norm))));
        let segments = linear.w.segments();
        linears.extend(segments.end);
        linears.extend(segments.scale.map(f32::to_bits));
    }
    linears
}

/// The addresses of keys and values, of all layers.
pub(super) fn pair_words<'a, B: Backend>(
    backend: &B,
    caches: impl Iterator<Item = [&'a B::Buf<u8>; 2]>,
) -> Vec<u32> {
    caches.flatten().flat_map(|side| halves(backend.address(side))).collect()
}

/// All layers of a model on one row.
///
/// The bits are those of [`super::bit_linear`] and [`super::attention_step`], layer after layer; with [`Math::TensorCore`] what attention
/// makes is within [`contract::attention_paged::fast_bound`] of them.
pub struct DecodeLayers<'a, B: Backend> {
    /// Linear layers.
    pub layers: &'a [Layer<'a, B>],
    /// Caches of the layers.
    pub caches: &'a mut [KvCache<B>],
    /// The table that was made of both.
    pub table: &'a mut DecodeTable<B>,
    /// Angles for at least as many positions as the caches have.
    pub rope: &'a RopeTable<B>,
    /// Residual stream.
    pub h: &'a mut B::Buf<f32>,
    /// Holds the position of the row at `start_at`.
    pub start: &'a B::Buf<u32>,
    /// Where in `start`.
    pub start_at: usize,
    /// The activation of the gate.
    pub gate: Gate,
    /// Added to the mean square of the norms.
    pub eps: f32,
    /// How attention is computed. On tensor cores heads of 128 elements are; others exactly, and all by a backend without them.
    pub math: Math,
}

impl<B: Backend> DecodeLayers<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let shape = self.table.0.shape;
        let capacity = check_layers(&shape, self.layers, self.caches)?;
        same(OP, "capacity", capacity, self.table.0.capacity)?;
        at_least(OP, "h", self.h.len(), shape.hidden as usize)?;
        at_least(OP, "start", self.start.len(), self.start_at.saturating_add(1))?;
        same(OP, "head_dim", self.rope.head_dim, shape.head_dim as usize)?;
        at_least(OP, "positions", self.rope.positions, capacity)?;
        self.rope.check(OP)
    }

    /// Heads of every layer.
    pub fn heads(&self) -> Heads {
        heads_of(&self.table.0.shape)
    }
}

#[cfg(feature = "cuda")]
impl Gate {
    /// As a finish of the product.
    fn finish(self) -> contract::bit_linear::Finish {
        use contract::bit_linear::Finish;
        match self {
            Self::Relu2 => Finish::Relu2,
            Self::Silu => Finish::Silu,
        }
    }
}

#[cfg(feature = "cuda")]
impl DecodeLayers<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        self.check()?;
        self.table.0.check(&words(cuda, self.layers, self.caches))?;
        let Self { table: DecodeTable(table), rope, h, start, start_at, gate, eps, math, .. } =
            self;
        let start = super::cuda::at(start.dev_ptr(cuda.stream()), start_at);
        // SAFETY: `check` compared the weights, gains, caches and angles with the sizes, and the table holds the addresses of
        // these very buffers; what the kernel writes is borrowed exclusively.
        unsafe { table.launch_row(cuda, rope, h, start, None, (gate, eps, math)) }
    }
}

#[cfg(feature = "cuda")]
impl Table<super::CudaBackend> {
    /// All layers on one row at `start`; over pages with their table and number.
    ///
    /// # Safety
    /// Weights, gains, caches, angles and pages have the sizes; the table was made for one row and of these buffers, which nothing else uses.
    unsafe fn launch_row(
        &mut self,
        cuda: &super::CudaBackend,
        rope: &RopeTable<super::CudaBackend>,
        h: &mut super::cuda::Buf<f32>,
        start: contract::launch::DevPtr<u32>,
        pages: Option<(contract::launch::DevPtr<u32>, u32)>,
        (gate, eps, math): (Gate, f32, Math),
    ) -> Result<(), OpError> {
        use contract::decode_layers::{
            Args, DecodeLayers, DecodeLayersFast, DecodeLayersPaged, DecodeLayersPagedFast,
            FAST_HEAD_DIM,
        };
        let shape = self.shape;
        let sms = cuda.cuda().device().sm_count().max(1);
        let blocks = shape.blocks(sms).ok_or(OpError::Dimension {
            op: OP,
            what: "number of multiprocessors",
            found: sms as usize,
            allowed: "a block makes at most 256 outputs of a layer; run the layers one by one",
        })?;
        let fast = math == Math::TensorCore
            && shape.head_dim == FAST_HEAD_DIM
            && cuda.has::<DecodeLayersFast>();
        let (stream, paged) = (cuda.stream(), pages.is_some());
        let (tables, pages) = pages.unwrap_or((contract::launch::DevPtr::NULL, 0));
        let args = Args {
            linears: self.linears.dev_ptr(stream).cast(),
            caches: self.caches.dev_ptr(stream).cast(),
            h: h.dev_ptr(stream),
            cos: rope.cos.dev_ptr(stream),
            sin: rope.sin.dev_ptr(stream),
            start,
            tables,
            exchange: self.exchange.dev_ptr(stream),
            partial: self.partial.dev_ptr(stream).cast(),
            epoch: self.epoch.dev_ptr(stream),
            shape,
            group: shape.heads / shape.kv_heads,
            capacity: self.capacity as u32,
            key_blocks: self.capacity.div_ceil(KEY_BLOCK) as u32,
            pages,
            gate: gate.finish() as u32,
            eps,
            scale: super::attention::scale(shape.head_dim as usize),
            smem_bytes: shape.smem_bytes(blocks),
        };
        // SAFETY: the caller's promise. The table's own buffers were made for the sizes, and each launch leaves them as the next one
        // expects them.
        unsafe {
            match (paged, fast) {
                (false, false) => cuda.launch::<DecodeLayers>([blocks, 1, 1], args),
                (false, true) => cuda.launch::<DecodeLayersFast>([blocks, 1, 1], args),
                (true, false) => cuda.launch::<DecodeLayersPaged>([blocks, 1, 1], args),
                (true, true) => cuda.launch::<DecodeLayersPagedFast>([blocks, 1, 1], args),
            }
        }
    }
}
