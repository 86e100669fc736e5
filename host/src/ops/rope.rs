//! Host side of [`contract::rope`].

use contract::w2a8::{MAX_K, MAX_ROWS};

use super::error::{at_least, dimension};
use super::{Backend, OpError, Tensor};

const OP: &str = "rope";

/// Tables of a rotary embedding for positions `0..positions`.
pub struct RopeTable<B: Backend> {
    /// `[positions, head_dim / 2]`.
    pub cos: B::Buf<f32>,
    /// `[positions, head_dim / 2]`.
    pub sin: B::Buf<f32>,
    /// Positions covered.
    pub positions: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl<B: Backend> RopeTable<B> {
    /// Angles `pos * theta^(-2 d / head_dim)`, computed in f64 and rounded once.
    ///
    /// # Errors
    /// An odd or empty head; out of memory.
    pub fn new(
        backend: &B,
        positions: usize,
        head_dim: usize,
        theta: f64,
    ) -> Result<Self, OpError> {
        dimension(OP, "positions", positions, MAX_ROWS, "1 to 2^24 positions are allowed")?;
        check_head_dim(head_dim)?;
        let half = head_dim / 2;
        let mut cos = backend.alloc("rope", positions * half)?;
        let mut sin = backend.alloc("rope", positions * half)?;
        let inv_freq: Vec<f64> =
            (0..half).map(|d| theta.powf(-2.0 * d as f64 / head_dim as f64)).collect();
        let (mut c, mut s) = (vec![0.0f32; half], vec![0.0f32; half]);
        for pos in 0..positions {
            for (d, freq) in inv_freq.iter().enumerate() {
                let (sine, cosine) = (pos as f64 * freq).sin_cos();
                c[d] = cosine as f32;
                s[d] = sine as f32;
            }
            backend.write(&mut cos, pos * half, &c)?;
            backend.write(&mut sin, pos * half, &s)?;
        }
        Ok(Self { cos, sin, positions, head_dim })
    }

    pub(crate) fn check(&self, op: &'static str) -> Result<(), OpError> {
        at_least(op, "cos", self.cos.len(), self.positions * self.head_dim / 2)?;
        at_least(op, "sin", self.sin.len(), self.positions * self.head_dim / 2)
    }
}

fn check_head_dim(head_dim: usize) -> Result<(), OpError> {
    if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_K {
        let allowed = "an even number from 2 to 2^20 is allowed";
        return Err(OpError::Dimension { op: OP, what: "head_dim", found: head_dim, allowed });
    }
    Ok(())
}

/// Rotates `heads` heads of each of `m` rows in place; row `i` stands at position `start + i`.
///
/// Positions past the table are left as they are: the caller bounds the context.
pub struct Rope<'a, B: Backend> {
    /// Rows of `row_stride` elements, the heads in front.
    pub x: &'a mut B::Buf<f32>,
    /// Angles.
    pub table: &'a RopeTable<B>,
    /// Holds the position of row 0 at `start_at`.
    pub start: &'a B::Buf<u32>,
    /// Where in `start`.
    pub start_at: usize,
    /// Rows.
    pub m: usize,
    /// Heads to rotate.
    pub heads: usize,
    /// Elements between two rows.
    pub row_stride: usize,
}

impl<B: Backend> Rope<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let width = self.heads.saturating_mul(self.table.head_dim);
        check_head_dim(self.table.head_dim)?;
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "heads * head_dim", width, MAX_K, "1 to 2^20 elements are allowed")?;
        dimension(OP, "row_stride", self.row_stride, MAX_K, "1 to 2^20 elements are allowed")?;
        at_least(OP, "row", self.row_stride, width)?;
        at_least(OP, "x", self.x.len(), (self.m - 1) * self.row_stride + width)?;
        at_least(OP, "start", self.start.len(), self.start_at.saturating_add(1))?;
        self.table.check(OP)
    }
}

#[cfg(feature = "cuda")]
impl Rope<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::rope::{Args, THREADS};
        self.check()?;
        let Self { x, table, start, start_at, m, heads, row_stride } = self;
        let stream = cuda.stream();
        let args = Args {
            x: x.dev_ptr(stream),
            cos: table.cos.dev_ptr(stream),
            sin: table.sin.dev_ptr(stream),
            start: super::cuda::at(start.dev_ptr(stream), start_at),
            m: m as u32,
            heads: heads as u32,
            head_dim: table.head_dim as u32,
            row_stride: row_stride as u32,
            positions: table.positions as u32,
        };
        let pairs = args.heads * (args.head_dim / 2);
        let grid = [args.m, pairs.div_ceil(THREADS), 1];
        // SAFETY: `check` compared `x` with `m` rows, the tables with `positions`, `start` with its
        // index; the kernel leaves positions past the table alone; `x` is borrowed exclusively.
        unsafe { cuda.launch::<contract::rope::Rope>(grid, args)? };
        Ok(())
    }
}
