//! Host side of [`contract::lm_head`].

use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::{Backend, Dense, OpError, Tensor};

const OP: &str = "lm_head";

/// `logits[m, v] = dot(x[m], w[v])` for `m` rows.
pub struct LmHead<'a, B: Backend> {
    /// Rows `[x_at.., k]`.
    pub x: &'a B::Buf<f32>,
    /// First element of row 0 in `x`.
    pub x_at: usize,
    /// Table `[vocab, k]`.
    pub w: &'a Dense<B>,
    /// Output `[m, vocab]`.
    pub logits: &'a mut B::Buf<f32>,
    /// Rows.
    pub m: usize,
}

impl<B: Backend> LmHead<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        let len = self.m * self.w.width();
        at_least(OP, "x", self.x.len(), self.x_at.saturating_add(len))?;
        at_least(OP, "logits", self.logits.len(), self.m * self.w.rows())
    }
}

#[cfg(feature = "cuda")]
impl LmHead<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::lm_head::{
            LmHeadBf16, LmHeadF16, LmHeadF32, LmHeadManyBf16, LmHeadManyF16, LmHeadManyF32,
            LmHeadTileBf16, Only, TileArgs, tile_grid,
        };
        use contract::num::RowType;
        self.check()?;
        let Self { x, x_at, w, logits, m } = self;
        let stream = cuda.stream();
        let args = contract::lm_head::Args {
            x: super::cuda::at(x.dev_ptr(stream), x_at),
            w: w.data().dev_ptr(stream),
            logits: logits.dev_ptr(stream),
            vocab: w.rows() as u32,
            k: w.width() as u32,
            stride: w.stride() as u32,
            m: m as u32,
        };
        let grid = contract::lm_head::grid(args.vocab);
        let tiles = tile_grid(args.m, args.vocab, args.k, cuda.cuda().device().sm_count())
            .filter(|_| cuda.has::<LmHeadTileBf16>());
        // SAFETY: `check` compared `x` from `x_at` on and `logits` with `m` rows; `Dense` holds
        // `vocab` rows of `stride` elements of its type by construction; `logits` is borrowed
        // exclusively.
        unsafe {
            if let Some(grid) = tiles {
                let args = TileArgs { base: args, only: Only::ALL };
                return launch_tiles(cuda, w.element(), grid, args);
            }
            match w.element() {
                RowType::Bf16 if m == 1 => cuda.launch::<LmHeadBf16>(grid, args)?,
                RowType::F16 if m == 1 => cuda.launch::<LmHeadF16>(grid, args)?,
                RowType::F32 if m == 1 => cuda.launch::<LmHeadF32>(grid, args)?,
                RowType::Bf16 => cuda.launch::<LmHeadManyBf16>(grid, args)?,
                RowType::F16 => cuda.launch::<LmHeadManyF16>(grid, args)?,
                RowType::F32 => cuda.launch::<LmHeadManyF32>(grid, args)?,
            }
        }
        Ok(())
    }
}

/// Launches the kernel that makes tiles of a table of `element`.
///
/// # Safety
/// As for the kernel.
#[cfg(feature = "cuda")]
pub(super) unsafe fn launch_tiles(
    cuda: &super::CudaBackend,
    element: contract::num::RowType,
    grid: [u32; 3],
    args: contract::lm_head::TileArgs,
) -> Result<(), OpError> {
    use contract::lm_head::{LmHeadTileBf16, LmHeadTileF16, LmHeadTileF32};
    use contract::num::RowType;
    // SAFETY: the caller's promise.
    unsafe {
        match element {
            RowType::Bf16 => cuda.launch::<LmHeadTileBf16>(grid, args),
            RowType::F16 => cuda.launch::<LmHeadTileF16>(grid, args),
            RowType::F32 => cuda.launch::<LmHeadTileF32>(grid, args),
        }
    }
}
