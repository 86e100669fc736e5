//! Host side of [`contract::bit_linear`].

use contract::bit_linear::{BitLinearLong, BitLinearShort, Finish as Kind, MAX_K, SHORT_K};
use contract::launch::{Kernel as _, LaunchSpec};

use super::act_quant::Gate;
use super::error::{at_least, dimension};
use super::{Backend, OpError, PackedLinear, Tensor, WeightLayout};

const OP: &str = "bit_linear";

/// RMSNorm in front of a layer.
pub struct Norm<'a, B: Backend> {
    /// Gain `[k]`.
    pub weight: &'a B::Buf<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// What becomes of the product.
pub enum Finish<'a, B: Backend> {
    /// `y = product`.
    Store {
        /// Output `[w.n()]`.
        y: &'a mut B::Buf<f32>,
    },
    /// `y += product`.
    Add {
        /// The residual stream `[w.n()]`.
        y: &'a mut B::Buf<f32>,
    },
    /// `y = act(gate) * up`, where the first half of the product is the gate, the second the up part.
    Gated {
        /// The activation.
        gate: Gate,
        /// Output `[w.n() / 2]`.
        y: &'a mut B::Buf<f32>,
    },
}

/// One row through a ternary layer: norm, quantising, product and what follows.
///
/// The bits are those of [`super::act_quant`], [`super::w2a8_gemv`] and an addition or a gate.
pub struct BitLinear<'a, B: Backend> {
    /// Input `[k]`.
    pub x: &'a B::Buf<f32>,
    /// A norm in front.
    pub norm: Option<Norm<'a, B>>,
    /// Ternary weights.
    pub w: &'a PackedLinear<B>,
    /// Where the product goes.
    pub finish: Finish<'a, B>,
}

/// Whether a row of `k` is short enough.
pub const fn takes(k: usize) -> bool {
    k <= MAX_K
}

/// The kernels of the family: for rows of up to [`SHORT_K`], and for all.
pub const VARIANTS: &[LaunchSpec] = &[BitLinearShort::SPEC, BitLinearLong::SPEC];

/// Whether variant `index` takes rows of `k`.
pub const fn variant_takes(index: usize, k: usize) -> bool {
    match index {
        0 => k <= SHORT_K,
        1 => takes(k),
        _ => false,
    }
}

/// The variant for rows of `k` when nobody chose one: an index into [`VARIANTS`].
pub const fn choose_index(k: usize) -> usize {
    if k <= SHORT_K { 0 } else { 1 }
}

impl<B: Backend> Finish<'_, B> {
    /// The contract's name for it.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Store { .. } => Kind::Store,
            Self::Add { .. } => Kind::Add,
            Self::Gated { gate: Gate::Relu2, .. } => Kind::Relu2,
            Self::Gated { gate: Gate::Silu, .. } => Kind::Silu,
        }
    }

    fn y(&self) -> &B::Buf<f32> {
        match self {
            Self::Store { y } | Self::Add { y } | Self::Gated { y, .. } => y,
        }
    }
}

impl<B: Backend> BitLinear<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        self.w.check_layout(OP, WeightLayout::Bits2)?;
        let (n, k) = (self.w.n(), self.w.k());
        dimension(
            OP,
            "k",
            k,
            MAX_K,
            "1 to 28672 elements are allowed; use act_quant and w2a8_gemv",
        )?;
        at_least(OP, "x", self.x.len(), k)?;
        if let Some(norm) = &self.norm {
            at_least(OP, "norm", norm.weight.len(), k)?;
        }
        let rows = self.finish.kind().rows() as usize;
        if !n.is_multiple_of(rows) {
            let allowed = "a gated product has as many rows of gates as of ups";
            return Err(OpError::Dimension { op: OP, what: "n", found: n, allowed });
        }
        at_least(OP, "y", self.finish.y().len(), n / rows)
    }
}

#[cfg(feature = "cuda")]
impl BitLinear<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use super::choices::Family;
        use contract::bit_linear::blocks;
        use contract::launch::DevPtr;
        self.check()?;
        let Self { x, norm, w, finish } = self;
        let stream = cuda.stream();
        let kind = finish.kind();
        let n = w.n() as u32 / kind.rows();
        let blocks = blocks(n, kind.rows(), cuda.cuda().device().sm_count().max(1));
        let (Finish::Store { y } | Finish::Add { y } | Finish::Gated { y, .. }) = finish;
        let args = contract::bit_linear::Args {
            x: x.dev_ptr(stream),
            norm: norm.as_ref().map_or(DevPtr::NULL, |norm| norm.weight.dev_ptr(stream)),
            w: w.words().dev_ptr(stream),
            y: y.dev_ptr(stream),
            n,
            k: w.k() as u32,
            finish: kind as u32,
            eps: norm.map_or(0.0, |norm| norm.eps),
            segments: *w.segments(),
        };
        let grid = [blocks, 1, 1];
        let chosen = cuda.choices().get(Family::BitLinear, 1, w.n(), w.k());
        let index = chosen.unwrap_or_else(|| choose_index(w.k()));
        // SAFETY: `PackedLinear` holds `n` rows of `k`, or pairs of them, by construction; `check` compared
        // the row and the gain with `k`, which the variant takes (`MAX_K`, `Choices::insert`), and `y` with `n`;
        // `y` is borrowed exclusively.
        unsafe {
            match index {
                0 => cuda.launch::<BitLinearShort>(grid, args),
                _ => cuda.launch::<BitLinearLong>(grid, args),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::bit_linear::{MAX_ROWS_OF_BLOCK, blocks, first_output};

    #[test]
    fn blocks_have_work_and_no_more_rows_than_they_take() {
        for n in [1, 2, 131, 132, 133, 2560, 6912, 55_296, 1 << 24] {
            for (rows, sms) in [(1, 132), (2, 132), (1, 1), (2, 1), (1, 100_000)] {
                let blocks = blocks(n, rows, sms);
                assert!(blocks <= n && (blocks == n || blocks.is_multiple_of(sms)));
                for block in [0, blocks / 2, blocks - 1] {
                    let outputs =
                        first_output(n, block + 1, blocks) - first_output(n, block, blocks);
                    assert!(
                        outputs >= 1 && outputs * rows <= MAX_ROWS_OF_BLOCK,
                        "{n} {rows} {sms}"
                    );
                }
            }
        }
    }
}
