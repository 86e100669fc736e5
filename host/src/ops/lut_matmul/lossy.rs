//! The bit-serial form of [`contract::lut_matmul::lossy`]: weights of 1 to 4 bits, f32 activations,
//! int8 tables. Lossy, as published; every backend gives the same bits.

use contract::lut_matmul::lossy::{ACT_GROUP, STEP_COLUMNS, STEP_TABLES, steps};
use contract::w2a8::{MAX_K, MAX_ROWS};

use crate::ops::error::{at_least, dimension, same};
use crate::ops::{Backend, OpError, Tensor};
use crate::pack::PackedBits;

const OP: &str = "lut_matmul_lossy";

/// A matrix of 1 to 4 bit weights in tiles, with scales and optional zero points for each weight
/// group of columns.
pub struct LossyLinear<B: Backend> {
    tiles: B::Buf<u8>,
    scales: B::Buf<f32>,
    zeros: Option<B::Buf<f32>>,
    bits: usize,
    n: usize,
    k: usize,
    group: usize,
}

impl<B: Backend> LossyLinear<B> {
    /// Uploads a matrix.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    pub fn new(backend: &B, label: &'static str, packed: &PackedBits) -> Result<Self, OpError> {
        let upload = |values: &[f32]| {
            let mut buf = backend.alloc(label, values.len())?;
            backend.write(&mut buf, 0, values).map(|()| buf)
        };
        let mut tiles = backend.alloc(label, packed.bytes().len())?;
        backend.write(&mut tiles, 0, packed.bytes())?;
        Ok(Self {
            tiles,
            scales: upload(packed.scales())?,
            zeros: packed.zeros().map(upload).transpose()?,
            bits: packed.bits(),
            n: packed.n(),
            k: packed.k(),
            group: packed.group(),
        })
    }

    /// The tiles.
    pub fn tiles(&self) -> &B::Buf<u8> {
        &self.tiles
    }

    /// Scales `[n, weight groups]`.
    pub fn scales(&self) -> &B::Buf<f32> {
        &self.scales
    }

    /// Zero points, in units of the real weight.
    pub fn zeros(&self) -> Option<&B::Buf<f32>> {
        self.zeros.as_ref()
    }

    /// Bits of a weight.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns of a weight group, a multiple of 32.
    pub fn group(&self) -> usize {
        self.group
    }
}

/// int8 tables of up to `rows` rows of activations of one width.
pub struct LossyTables<B: Backend> {
    /// `[rows, tables, 16]`.
    pub(crate) tables: B::Buf<u32>,
    /// `[rows, activation groups]`: bits of scale and bias.
    pub(crate) heads: B::Buf<[u32; 2]>,
    k: usize,
    act_group: usize,
}

impl<B: Backend> LossyTables<B> {
    /// Reserves tables for `rows` rows of `k` activations; `act_group` columns share a scale
    /// ([`ACT_GROUP`] where published; `k` for one scale a row).
    ///
    /// # Errors
    /// A dimension of 0 or above the contract's limits; a group that is no multiple of 32 and does
    /// not take the whole row; out of memory.
    pub fn alloc(backend: &B, rows: usize, k: usize, act_group: usize) -> Result<Self, OpError> {
        dimension(OP, "rows", rows, MAX_ROWS, "1 to 2^24 are allowed")?;
        dimension(OP, "k", k, MAX_K, "1 to 2^20 are allowed")?;
        let allowed = "a multiple of 32, or all columns, is allowed";
        let whole = act_group >= k;
        if act_group == 0 || !whole && !act_group.is_multiple_of(STEP_COLUMNS) {
            return Err(OpError::Dimension {
                op: OP,
                what: "act_group",
                found: act_group,
                allowed,
            });
        }
        let act_group = if whole { k.next_multiple_of(STEP_COLUMNS) } else { act_group };
        let words = rows * steps(k) * STEP_TABLES * 4;
        Ok(Self {
            tables: backend.alloc("lookup tables", words)?,
            heads: backend.alloc("lookup tables", rows * k.div_ceil(act_group))?,
            k,
            act_group,
        })
    }

    /// The same with the published activation group.
    ///
    /// # Errors
    /// As [`LossyTables::alloc`].
    pub fn published(backend: &B, rows: usize, k: usize) -> Result<Self, OpError> {
        Self::alloc(backend, rows, k, ACT_GROUP)
    }

    /// Columns of an activation group, a multiple of 32.
    pub fn act_group(&self) -> usize {
        self.act_group
    }

    /// Columns of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Words of the tables of `rows` rows.
    pub(crate) fn words(&self, rows: usize) -> usize {
        rows * steps(self.k) * STEP_TABLES * 4
    }

    /// Activation groups of `rows` rows.
    pub(crate) fn groups(&self, rows: usize) -> usize {
        rows * self.k.div_ceil(self.act_group)
    }

    /// The same over other buffers, which have a guard behind them.
    pub(crate) fn with_buffers(self, tables: B::Buf<u32>, heads: B::Buf<[u32; 2]>) -> Self {
        Self { tables, heads, ..self }
    }

    /// Refuses fewer than `rows` rows.
    fn check(&self, rows: usize) -> Result<(), OpError> {
        at_least(OP, "tables", self.tables.len(), self.words(rows))?;
        at_least(OP, "heads", self.heads.len(), self.groups(rows))
    }
}

/// Builds the tables of `m` rows of activations.
pub struct LutBuildLossy<'a, B: Backend> {
    /// Activations `[m, k]`, `k` that of the tables.
    pub x: &'a B::Buf<f32>,
    /// Where the tables go.
    pub tables: &'a mut LossyTables<B>,
    /// Rows.
    pub m: usize,
}

impl<B: Backend> LutBuildLossy<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        at_least(OP, "x", self.x.len(), self.m * self.tables.k)?;
        self.tables.check(self.m)
    }
}

/// `y[m, n] = sum_k x[m, k] (w[n, k] s - z)`, read from int8 tables: lossy.
pub struct LutMatmulLossy<'a, B: Backend> {
    /// Weights of 1 to 4 bits.
    pub w: &'a LossyLinear<B>,
    /// Tables of `m` rows, built by [`LutBuildLossy`].
    pub tables: &'a LossyTables<B>,
    /// Output `[m, n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows of activations.
    pub m: usize,
}

impl<B: Backend> LutMatmulLossy<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit; a weight group that is no whole number of
    /// activation groups.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        same(OP, "k", self.tables.k, self.w.k)?;
        self.tables.check(self.m)?;
        if self.w.group < self.w.k && !self.w.group.is_multiple_of(self.tables.act_group) {
            let (found, allowed) =
                (self.tables.act_group, "a divisor of the weights' group is allowed");
            return Err(OpError::Dimension { op: OP, what: "act_group", found, allowed });
        }
        at_least(OP, "y", self.y.len(), self.m.saturating_mul(self.w.n))
    }

    /// Activation groups of a weight group.
    pub(crate) fn per_weight_group(&self) -> usize {
        self.w.group.div_ceil(self.tables.act_group)
    }
}

/// Rows of a grid; kernels go on from there.
#[cfg(feature = "cuda")]
const GRID_ROWS: usize = 65_535;

#[cfg(feature = "cuda")]
impl LutBuildLossy<'_, crate::ops::CudaBackend> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use contract::lut_matmul::lossy;
        self.check()?;
        let Self { x, tables, m } = self;
        let stream = cuda.stream();
        let (k, act_group) = (tables.k, tables.act_group);
        let args = lossy::BuildArgs {
            x: x.dev_ptr(stream),
            tables: tables.tables.dev_ptr(stream),
            heads: tables.heads.dev_ptr(stream).cast(),
            k: k as u32,
            m: m as u32,
            act_group: act_group as u32,
        };
        let grid = [k.div_ceil(act_group) as u32, m.min(GRID_ROWS) as u32, 1];
        // SAFETY: `check` compared `x`, tables and heads with `m` rows of `k`; the tables are
        // borrowed exclusively.
        unsafe { cuda.launch::<lossy::LossyTables>(grid, args) }
    }
}

#[cfg(feature = "cuda")]
impl LutMatmulLossy<'_, crate::ops::CudaBackend> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use contract::launch::DevPtr;
        use contract::lut_matmul::{TILE, lossy};
        self.check()?;
        let per_weight_group = self.per_weight_group() as u32;
        let Self { w, tables, y, m } = self;
        let stream = cuda.stream();
        let args = lossy::Args {
            w: w.tiles.dev_ptr(stream),
            tables: tables.tables.dev_ptr(stream),
            heads: tables.heads.dev_ptr(stream).cast(),
            s: w.scales.dev_ptr(stream),
            z: w.zeros.as_ref().map_or(DevPtr::NULL, |z| z.dev_ptr(stream)),
            y: y.dev_ptr(stream),
            n: w.n as u32,
            k: w.k as u32,
            m: m as u32,
            act_group: tables.act_group as u32,
            per_weight_group,
        };
        let grid = [w.n.div_ceil(TILE) as u32, m.min(GRID_ROWS) as u32, 1];
        // SAFETY: `LossyLinear` holds `n` rows of `k` columns and their scales by construction;
        // `check` compared the tables with `m` rows of the same `k` and `y` with `m * n`; `y` is
        // borrowed exclusively.
        unsafe {
            match w.bits {
                1 => cuda.launch::<lossy::LossyB1>(grid, args),
                2 => cuda.launch::<lossy::LossyB2>(grid, args),
                3 => cuda.launch::<lossy::LossyB3>(grid, args),
                _ => cuda.launch::<lossy::LossyB4>(grid, args),
            }
        }
    }
}
