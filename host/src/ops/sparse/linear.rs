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
    /// Symbol of the kernel to run, for tests and measurements: of those that hold inputs, where it takes the product; any
    /// other keeps those away. `None`: the shape chooses. The CPU has one way and takes any.
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

/// Groups of rows of a block from which the kernels that hold inputs are faster than others where tiles have few units,
/// with at most eight inputs and with more; measured on one H100.
#[cfg(feature = "cuda")]
const HELD_ROWS: [u32; 2] = [2, 3];

/// Whether pairs of blocks that share groups of rows, of tiles of at most `units` units, are expected to be faster than other
/// kernels; `uneven`: those would be blocks of [`HELD_ROWS`] that share groups out badly. Measured on an H200 and an H100.
#[cfg(feature = "cuda")]
fn pairs_pay(pair: &contract::sparse::HeldArgs, units: usize, uneven: bool) -> bool {
    use contract::sparse::{FEW_UNITS, SHORT_UNITS, WAYS, steps};
    let (m, k, rows) = (pair.linear.m, pair.linear.k as usize, pair.rows);
    let (columns, long) = (steps(k, 2) * WAYS, k >= LONG);
    let (few, half) = (units <= FEW_UNITS, units <= SHORT_UNITS);
    // Few groups of long rows: there are twice the blocks.
    if rows <= 2 {
        return match m {
            0..=4 if few => rows == 1 && columns >= 48,
            5..=8 if few => rows == 1 && columns >= 48 || long,
            9.. if !half => columns >= 16,
            _ => columns >= 32,
        };
    }
    // Full tiles: more of them are under way at once, and groups are shared out better. The fewer units, the less that is
    // worth beside what blocks tell each other.
    let wide = columns > 16;
    rows as usize * columns >= 64
        && match m {
            _ if few => m > 8 && rows >= 5 && uneven,
            0..=4 => wide && rows >= 8 && !long,
            _ if half && long => rows <= 4,
            5..=8 if half => rows >= 8,
            5..=8 => rows >= 5 || wide,
            _ => half || rows >= 5 || wide,
        }
}

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
        use contract::sparse::{
            self as kernels, SparseBf16Bulk8 as Bulk8, SparseBf16Bulk8Short as Short8,
            SparseBf16Bulk16Short as Short16, SparseBf16Bulk16Wide as Wide,
        };
        let grid = |mb| kernels::linear_grid(args.n, args.m, mb);
        let ([across, down, _], eight) = (grid(16), grid(8));
        let sixteen = [across.div_ceil(kernels::BULK16_GROUPS), down, 1];
        let args = kernels::LinearArgs { ring: kernels::place_bytes(self.most), ..args };
        let (few, long) = (self.most <= kernels::FEW_UNITS, self.k >= LONG);
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { self.held(cuda, args, kernel) } {
            return result;
        }
        let sms = u64::from(cuda.cuda().device().info().sm_count);
        let at_once = |[across, down, _]: [u32; 3], each: u64| {
            u64::from(across) * u64::from(down) <= each * sms
        };
        // About 65 % zeros: as many warps as there can be, where all tiles of a way fit.
        let half = !few && self.most <= kernels::SHORT_UNITS;
        // Blocks of many warps where all are there at once, or where each has much to do; with tiles that are half
        // full also where those of few warps would come in turns.
        let short = if few {
            at_once(eight, 2) || long
        } else {
            (args.m <= 4 || half && !at_once(eight, u64::from(Bulk8::SPEC.min_blocks_per_sm)))
                && Short8::smem_bytes(&args) <= Short8::SPEC.smem_bytes
        };
        let half = half && Short16::smem_bytes(&args) <= Short16::SPEC.smem_bytes;
        let alone = at_once(sixteen, 1);
        let most = if alone { Wide::SPEC.smem_bytes } else { kernels::ONE_OF_TWO };
        // SAFETY: the caller's promise.
        unsafe {
            // Two groups of rows share what a warp loads of sixteen inputs: with five to eight inputs too
            // that is worth more than warps, where rows are long.
            match args.m {
                0..=8 if args.m <= 4 || !long => {
                    if short {
                        cuda.launch::<Short8>(eight, args)
                    } else {
                        cuda.launch::<Bulk8>(eight, args)
                    }
                }
                _ if alone && (few || half) => cuda.launch::<Short16>(sixteen, args),
                _ if Wide::smem_bytes(&args) <= most => cuda.launch::<Wide>(sixteen, args),
                _ => cuda.launch::<kernels::SparseBf16Bulk16>(sixteen, args),
            }
        }
    }

    /// By a kernel that holds inputs, where one takes the product and is expected to be the fastest, or is asked for.
    ///
    /// # Safety
    ///
    /// As for `bulk`.
    unsafe fn held(
        &self,
        cuda: &crate::ops::CudaBackend,
        args: contract::sparse::LinearArgs,
        kernel: Option<&'static str>,
    ) -> Option<Result<(), OpError>> {
        use contract::launch::Kernel;
        use contract::sparse::{
            FEW_UNITS, HELD_WARPS, HeldArgs, SparseBf16Held8 as One8, SparseBf16Held8Pair as Pair8,
            SparseBf16Held16 as One16, SparseBf16Held16Pair as Pair16, WAYS, steps,
        };
        let sms = cuda.cuda().device().info().sm_count;
        let (few, eight) = (self.most <= FEW_UNITS, args.m <= 8);
        let [symbol, by_pairs] = if eight {
            [One8::SPEC, Pair8::SPEC].map(|spec| spec.symbol)
        } else {
            [One16::SPEC, Pair16::SPEC].map(|spec| spec.symbol)
        };
        let columns = steps(self.k, 2) * WAYS;
        // With full tiles memory is what takes the time: there only more inputs, and rows that are not long, gain. With few
        // units short rows do not: warps read inputs for the tiles of few groups.
        let fastest = |held: &HeldArgs| {
            let fastest = if few {
                // A single group of long rows too: its warps have several column tiles.
                let (rows, warps) = (HELD_ROWS[usize::from(!eight)], HELD_WARPS as usize);
                held.rows >= rows && columns >= warps || eight && columns > warps
            } else {
                !eight && held.rows >= 2 && self.k < LONG
            };
            fastest && held.is_balanced(sms)
        };
        let held = HeldArgs::new(args, sms);
        let one = held.as_ref().is_some_and(fastest);
        let uneven = one && held.is_some_and(|held| held.wastes_a_sixth(sms));
        let pays = |pair: &HeldArgs| pair.fills_pairs(sms) && pairs_pay(pair, self.most, uneven);
        let pair = HeldArgs::pair(args, sms);
        let pair = pair.filter(|pair| kernel.map_or_else(|| pays(pair), |asked| asked == by_pairs));
        if let Some(pair) = pair {
            // SAFETY: the caller's promise.
            return Some(unsafe {
                if eight {
                    cuda.launch::<Pair8>(pair.pair_grid(), pair)
                } else {
                    cuda.launch::<Pair16>(pair.pair_grid(), pair)
                }
            });
        }
        let held = held.filter(|_| kernel.map_or(one, |asked| asked == symbol))?;
        // SAFETY: the caller's promise.
        Some(unsafe {
            if eight {
                cuda.launch::<One8>(held.grid(), held)
            } else {
                cuda.launch::<One16>(held.grid(), held)
            }
        })
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

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use contract::launch::DevPtr;
    use contract::sparse::{HeldArgs, LinearArgs, place_bytes};

    use super::*;

    #[test]
    fn pairs_run_where_they_were_faster() {
        // Units of the fullest tile at 90, 70 and 50 % zeros.
        const UNITS: [usize; 3] = [464, 1_128, 1_632];
        let pays = |[n, k]: [u32; 2], m: u32, zeros: usize, uneven: bool| {
            let (units, x_type) = (UNITS[zeros], RowType::Bf16 as u32);
            let (masks, starts, values) = (DevPtr::NULL, DevPtr::NULL, DevPtr::NULL);
            let (x, y, ring) = (DevPtr::NULL, DevPtr::NULL, place_bytes(units));
            let linear = LinearArgs { masks, starts, values, x, y, n, k, m, x_type, ring };
            let pair = HeldArgs::pair(linear, 132);
            pair.is_some_and(|pair| pair.fills_pairs(132) && pairs_pay(&pair, units, uneven))
        };
        for (shape, found) in [
            ([4096, 4096], [[false; 3], [false, false, true], [false; 3]]),
            ([11_008, 4096], [[false; 3], [false, true, true], [false, true, true]]),
            ([5120, 5120], [[false; 3], [false, false, true], [false, true, true]]),
            ([13_824, 5120], [[false; 3], [true, true, false], [true, true, false]]),
            ([8192, 28_672], [[false; 3], [false; 3], [false, true, true]]),
            ([1024, 28_672], [[true; 3]; 3]),
            ([1024, 8192], [[false, false, true], [true; 3], [true; 3]]),
            ([2048, 11_008], [[false, false, true], [true; 3], [true; 3]]),
            ([2048, 4096], [[false; 3], [false; 3], [false, false, true]]),
        ] {
            for (zeros, found) in found.into_iter().enumerate() {
                let ours = [1, 8, 16].map(|m| pays(shape, m, zeros, false));
                assert_eq!(ours, found, "{shape:?} {zeros}");
            }
        }
        assert!(pays([5120, 5120], 16, 0, true) && !pays([5120, 5120], 8, 0, true));
    }
}
