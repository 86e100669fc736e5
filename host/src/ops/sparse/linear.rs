//! The product with a bitmap.

use contract::num::RowType;
use contract::sparse::{ALIGN, MAX_SIDE};

use super::{Bitmap, OP};
use crate::ops::error::{at_least, dimension};
use crate::ops::{Backend, Float, Math, OpError, Tensor};

/// A [`Bitmap`] on a backend.
pub struct SparseLinear<B: Backend, T: Float> {
    masks: B::Buf<u32>,
    starts: B::Buf<u32>,
    values: B::Buf<T>,
    n: usize,
    k: usize,
    /// Most units of a tile.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    most: usize,
}

impl<B: Backend, T: Float> SparseLinear<B, T> {
    /// Copies a bitmap to the backend.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    pub fn upload(backend: &B, label: &'static str, w: &Bitmap<T>) -> Result<Self, OpError> {
        let mut masks = backend.alloc(label, w.masks().len())?;
        backend.write(&mut masks, 0, w.masks())?;
        let mut starts = backend.alloc(label, w.starts().len())?;
        backend.write(&mut starts, 0, w.starts())?;
        // Never empty: a matrix of nothing but zeros has no values.
        let mut values = backend.alloc(label, w.values().len().max(1))?;
        backend.write(&mut values, 0, w.values())?;
        let units = |pair: &[u32]| (pair[1] - pair[0]) as usize * ALIGN;
        let most = w.starts().windows(2).map(units).max().unwrap_or(0);
        Ok(Self { masks, starts, values, n: w.n(), k: w.k(), most })
    }

    /// Output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Words of the mask.
    pub fn masks(&self) -> &B::Buf<u32> {
        &self.masks
    }

    /// Starts of the tiles.
    pub fn starts(&self) -> &B::Buf<u32> {
        &self.starts
    }

    /// Values of the stored units.
    pub fn values(&self) -> &B::Buf<T> {
        &self.values
    }
}

/// `y[m, n] = sum_k x[m, k] w[n, k]` over the stored weights, in the order of [`contract::sparse`].
///
/// A NaN or an infinity in `x` reaches the outputs that have a weight in its column, and no other.
/// [`Math::TensorCore`] needs bf16 for both `W` and `X`; then, with `S = sum_k |x w|`, every output is
/// within `S * 2^-18` of the exact sum wherever nothing overflows.
pub struct Linear<'a, B: Backend, W: Float, X: Float> {
    /// Weights.
    pub w: &'a SparseLinear<B, W>,
    /// Rows `[m, k]`.
    pub x: &'a B::Buf<X>,
    /// Output `[m, n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows; with none, nothing happens.
    pub m: usize,
    /// How.
    pub math: Math,
    /// Symbol of the kernel to run, for tests and measurements, where it takes the product; any other keeps those away that
    /// hold inputs. `None`: the shape chooses. The CPU has one way and takes any.
    pub kernel: Option<&'static str>,
}

impl<B: Backend, W: Float, X: Float> Linear<'_, B, W, X> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit; tensor cores with other types than bf16.
    pub fn check(&self) -> Result<(), OpError> {
        if self.m != 0 {
            dimension(OP, "m", self.m, MAX_SIDE, "0 to 2^24 rows are allowed")?;
        }
        at_least(OP, "x", self.x.len(), self.m * self.w.k)?;
        at_least(OP, "y", self.y.len(), self.m * self.w.n)?;
        check_math(self.math, W::TYPE, X::TYPE)
    }
}

/// Refuses tensor cores for other types than theirs.
pub(super) fn check_math(math: Math, w: RowType, x: RowType) -> Result<(), OpError> {
    if math == Math::TensorCore && (w, x) != (RowType::Bf16, RowType::Bf16) {
        let allowed = "tensor cores take bf16 weights and inputs; use Math::Exact";
        let (what, found) = ("bits of an element", 8 * w.bytes().max(x.bytes()));
        return Err(OpError::Dimension { op: OP, what, found, allowed });
    }
    Ok(())
}

#[cfg(feature = "cuda")]
impl<T: Float> SparseLinear<crate::ops::CudaBackend, T> {
    /// The parameter of a product with `m` rows at `x`.
    pub(super) fn args(
        &self,
        cuda: &crate::ops::CudaBackend,
        x: contract::launch::DevPtr<u8>,
        x_type: RowType,
        y: &crate::memory::DeviceBuffer<f32>,
        m: usize,
    ) -> contract::sparse::LinearArgs {
        let stream = cuda.stream();
        contract::sparse::LinearArgs {
            masks: self.masks.dev_ptr(stream),
            starts: self.starts.dev_ptr(stream),
            values: self.values.dev_ptr(stream).cast(),
            x,
            y: y.dev_ptr(stream),
            n: self.n as u32,
            k: self.k as u32,
            m: m as u32,
            x_type: x_type as u32,
            ring: contract::sparse::RING_BYTES,
        }
    }
}

/// Columns from which rows are long: measured on one H200 at 4,096 and 28,672, see the page of the family.
#[cfg(feature = "cuda")]
const LONG: usize = 16_384;

#[cfg(feature = "cuda")]
impl<T: Float> SparseLinear<crate::ops::CudaBackend, T> {
    /// On a Hopper GPU's tensor cores.
    ///
    /// # Safety
    ///
    /// As for [`crate::ops::CudaBackend::launch`]; a bf16 matrix and input, K a multiple of 8.
    unsafe fn bulk(
        &self,
        cuda: &crate::ops::CudaBackend,
        args: contract::sparse::LinearArgs,
        kernel: Option<&'static str>,
    ) -> Result<(), OpError> {
        use contract::launch::Kernel;
        use contract::sparse as kernels;
        let args = kernels::LinearArgs { ring: kernels::place_bytes(self.most), ..args };
        let sms = cuda.cuda().device().info().sm_count;
        let choice = super::cost::choose(&args, self.most, sms, kernel);
        macro_rules! chosen {
            ($args:expr; $($kernel:ident)*) => {
                match choice.symbol {
                    // SAFETY: the caller's promise.
                    $(symbol if symbol == kernels::$kernel::SPEC.symbol => unsafe {
                        cuda.launch::<kernels::$kernel>(choice.grid, $args)
                    },)*
                    other => unreachable!("{other} is no choice"),
                }
            };
        }
        match choice.held {
            Some(held) => {
                chosen! { held; SparseBf16Held8 SparseBf16Held8Pair SparseBf16Held16 SparseBf16Held16Pair }
            }
            None => {
                chosen! { args; SparseBf16Bulk8 SparseBf16Bulk8Short SparseBf16Bulk16 SparseBf16Bulk16Wide SparseBf16Bulk16Short }
            }
        }
    }

    /// On tensor cores before and after Hopper's.
    ///
    /// # Safety
    ///
    /// As for `bulk`.
    unsafe fn rings(
        &self,
        cuda: &crate::ops::CudaBackend,
        mut args: contract::sparse::LinearArgs,
    ) -> Result<(), OpError> {
        use contract::sparse as kernels;
        let m = args.m;
        let grid = |mb| kernels::linear_grid(args.n, m, mb);
        let [across, down, _] = grid(16);
        let of_two = [across.div_ceil(kernels::FEW16_GROUPS), down, 1];
        let (eight, sixteen) = (grid(8), grid(16));
        let few = self.most <= kernels::FEW_UNITS;
        if few {
            args.ring = kernels::ring_bytes(self.most);
        }
        // SAFETY: the caller's promise.
        unsafe {
            match m {
                9.. if few => cuda.launch::<kernels::SparseBf16Few16>(of_two, args),
                _ if few => cuda.launch::<kernels::SparseBf16Few8>(eight, args),
                // With five to eight rows too, where rows of weights are long.
                9.. => cuda.launch::<kernels::SparseBf16Mma16>(sixteen, args),
                5.. if self.k >= LONG => cuda.launch::<kernels::SparseBf16Mma16>(sixteen, args),
                _ => cuda.launch::<kernels::SparseBf16Mma8>(eight, args),
            }
        }
    }
}

#[cfg(feature = "cuda")]
impl<W: Float, X: Float> Linear<'_, crate::ops::CudaBackend, W, X> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use contract::sparse as kernels;
        self.check()?;
        let Self { w, x, y, m, math, kernel } = self;
        if m == 0 {
            return Ok(());
        }
        let args = w.args(cuda, x.dev_ptr(cuda.stream()).cast(), X::TYPE, y, m);
        let grid = |mb| kernels::linear_grid(args.n, args.m, mb);
        // Below sm_80 there is no such kernel; the exact one keeps its bound.
        let bulk = cuda.has::<kernels::SparseBf16Bulk8>();
        let tensor = math == Math::TensorCore && (bulk || cuda.has::<kernels::SparseBf16Mma8>());
        // SAFETY: `SparseLinear` holds a checked bitmap of `n` by `k`; `check` compared `x` and `y` with
        // `m` rows of each; allocations are 256-byte aligned; `y` is borrowed exclusively. Padded rows have the tiles
        // of others, and no weight behind the last column.
        unsafe {
            let product = |args| {
                if bulk { w.bulk(cuda, args, kernel) } else { w.rings(cuda, args) }
            };
            match W::TYPE {
                _ if tensor && w.k.is_multiple_of(kernels::PIECE as usize) => product(args),
                _ if tensor => {
                    let pitch = kernels::PadArgs::pitch(args.k);
                    let rows: crate::memory::DeviceBuffer<half::bf16> =
                        cuda.alloc("sparse inputs", m * pitch as usize)?;
                    let padded = rows.dev_ptr(cuda.stream()).cast();
                    let (k, m) = (args.k, args.m);
                    let pad = kernels::PadArgs { x: args.x.cast(), padded, k, m };
                    cuda.launch::<kernels::SparsePad>(pad.grid(), pad)?;
                    let args = kernels::LinearArgs { x: padded.cast(), k: pitch, ..args };
                    cuda.stream().close_behind(|| product(args))
                }
                RowType::Bf16 if m == 1 => cuda.launch::<kernels::SparseBf16M1>(grid(1), args),
                RowType::Bf16 => cuda.launch::<kernels::SparseBf16M4>(grid(4), args),
                RowType::F16 if m == 1 => cuda.launch::<kernels::SparseF16M1>(grid(1), args),
                RowType::F16 => cuda.launch::<kernels::SparseF16M4>(grid(4), args),
                RowType::F32 if m == 1 => cuda.launch::<kernels::SparseF32M1>(grid(1), args),
                RowType::F32 => cuda.launch::<kernels::SparseF32M4>(grid(4), args),
            }
        }
    }
}
