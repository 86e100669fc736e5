//! From a checked product to its launches.

use contract::bmm::{Args, INTEGERS, Matrix, VARIANTS, Variant, parts_blocks, rounded};
use contract::launch::DevPtr;

use super::copies::Copies;
use super::*;
use crate::ops::CudaBackend;

type Launch = unsafe fn(&CudaBackend, [u32; 3], Args) -> Result<(), OpError>;
type Has = fn(&CudaBackend) -> bool;

macro_rules! kernels {
    ($($name:ident;)*) => {
        /// In the order of [`VARIANTS`].
        const KERNELS: &[(Launch, Has)] = &[$((
            super::bulk::launch::<contract::bmm::$name>,
            CudaBackend::has::<contract::bmm::$name>,
        )),*];
    };
}
contract::for_each_bmm!(kernels);

const _: () = assert!(KERNELS.len() == VARIANTS.len());

/// How the kernels find a matrix at `base`.
fn matrix(
    base: DevPtr<u8>,
    layout: &Layout,
    bytes: usize,
    batch: usize,
    rows: usize,
    columns: usize,
) -> Matrix {
    let [lines, len] = layout.lines(rows, columns);
    // What is never multiplied by anything but 0 says nothing about alignment.
    let stride = if batch > 1 { layout.stride } else { 0 };
    let ld = if lines > 1 { layout.ld } else { 0 };
    let addr = base.addr() + (layout.at * bytes) as u64;
    let all = addr | ((stride | ld | len) * bytes) as u64;
    Matrix {
        addr: DevPtr::from_addr(addr),
        stride: stride as u64,
        ld: ld as u64,
        transposed: layout.transposed.into(),
        unit: 1 << all.trailing_zeros().min(4),
    }
}

impl<T: Operand> Bmm<'_, CudaBackend, T> {
    pub(in crate::ops) fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        self.check()?;
        if self.is_empty() {
            return Ok(());
        }
        let Self { m, n, k, batch, .. } = self;
        let (stream, bytes) = (cuda.stream(), size_of::<T>());
        let (a, b) = (self.a.dev_ptr(stream).cast(), self.b.dev_ptr(stream).cast());
        let c = self.c.dev_ptr(stream).cast();
        let args = Args {
            a: matrix(a, &self.a_layout, bytes, batch, m, k),
            b: matrix(b, &self.b_layout, bytes, batch, k, n),
            c: matrix(c, &self.c_layout, size_of::<T::Out>(), batch, m, n),
            m: m as u32,
            n: n as u32,
            k: k as u32,
            batch: batch as u32,
            alpha: T::bits(self.alpha),
            beta: T::bits(self.beta),
            element: match T::KIND {
                Kind::Float(element) => element as u32,
                Kind::I8 => INTEGERS,
            },
            split: 0,
        };
        let tensor = self.math == Math::TensorCore;
        let sms = cuda.cuda().device().info().sm_count;
        // The level of wgmma is the one whose kernels share out sums in clusters.
        let clusters = cuda.has::<contract::bmm::BmmBf16Wgmma64>();
        let takes = |v: &Variant| v.takes(T::KIND, tensor, &args);
        // Factors in other pieces, lines or elements may be copied first; the bits of an exact sum are the same.
        let copied = Copies::of(cuda, T::KIND, &args).into_iter().flatten();
        let takes_copies = |v: &Variant, (copies, product): &(Copies, Args)| {
            copies.serve(v) && v.takes(copies.kind(), tensor, product)
        };
        let (index, copied) = match self.variant {
            Some(found) if takes(&VARIANTS[found]) => (found, None),
            Some(found) => {
                let mut copied = copied;
                let Some(copied) = copied.find(|copied| takes_copies(&VARIANTS[found], copied))
                else {
                    let allowed =
                        "this one does not take the type, math, alignment or beta; use None";
                    return Err(OpError::Dimension { op: OP, what: "variant", found, allowed });
                };
                (found, Some(copied))
            }
            None => {
                let has = |&i: &usize| (KERNELS[i].1)(cuda);
                let cheapest = |takes: &dyn Fn(&Variant) -> bool, args: &Args| {
                    let fits = (0..VARIANTS.len()).filter(|&i| takes(&VARIANTS[i])).filter(has);
                    fits.map(|i| (VARIANTS[i].cost(args, sms, clusters), i)).min()
                };
                // Of the general ones, which every device has, one takes everything.
                let (cost, index) = cheapest(&takes, &args).unwrap_or((u64::MAX, 0));
                let mut best = (cost, index, None);
                for copied in copied.filter(|(copies, _)| copies.unasked(tensor, &args)) {
                    // Copies also pass through the cache: they have to be worth an eighth, and two more launches a fifth.
                    let (part, of) = if copied.0.finishes() { (4, 5) } else { (7, 8) };
                    let most = best.0.min(cost / of * part);
                    let beside = copied.0.cost(&args);
                    if beside >= most {
                        continue;
                    }
                    let found = cheapest(&|v: &Variant| takes_copies(v, &copied), &copied.1);
                    if let Some((cost, index)) = found
                        && cost + beside < most
                    {
                        best = (cost + beside, index, Some(copied));
                    }
                }
                (best.1, best.2)
            }
        };
        let Some((mut copies, mut product)) = copied else {
            // SAFETY: `check` compared the buffers with the layouts, `C` is borrowed exclusively and has each element
            // once, `unit` was computed from the very addresses and strides.
            return unsafe { run(cuda, index, &args, None) };
        };
        let len = usize::try_from(copies.bytes() / 4).unwrap_or(usize::MAX);
        let scratch: crate::memory::DeviceBuffer<f32> = cuda.alloc(OP, len)?;
        copies.put(scratch.dev_ptr(stream).cast(), &mut product);
        // SAFETY: as above; the copies have a place each, and the launches are in order.
        unsafe {
            copies.launch(cuda)?;
            run(cuda, index, &product, copies.finishes().then_some(&args))
        }
    }
}

/// Launches a variant. With `asked`, the product's sums go to scratch memory, and become the result that was asked for.
///
/// # Safety
///
/// As [`CudaBackend::launch`]: the matrices cover what `args` says, and `C` overlaps no other; of `asked` too.
unsafe fn run(
    cuda: &CudaBackend,
    index: usize,
    args: &Args,
    asked: Option<&Args>,
) -> Result<(), OpError> {
    let (variant, sms) = (&VARIANTS[index], cuda.cuda().device().info().sm_count);
    let clusters = cuda.has::<contract::bmm::BmmBf16Wgmma64>();
    let (product, mut sums, grid) = if variant.spreads(args, sms, clusters) {
        let (product, sums) = variant.spread(args);
        (product, sums, variant.spread_grid(args))
    } else {
        let product = variant.args(args, sms, clusters);
        let grid = variant.grid(&product, sms);
        if asked.is_none() {
            // SAFETY: the caller's promise.
            return unsafe { (KERNELS[index].0)(cuda, [whole_grid(grid)?, 1, 1], product) };
        }
        (product, rounded(args).0, grid)
    };
    if let Some(asked) = asked {
        let Args { c, alpha, beta, element, .. } = *asked;
        sums = Args { c, alpha, beta, element, ..sums };
    }
    let len = usize::try_from(sums.a.stride * u64::from(sums.k)).unwrap_or(usize::MAX);
    let scratch: crate::memory::DeviceBuffer<f32> = cuda.alloc(OP, len)?;
    let parts = scratch.dev_ptr(cuda.stream()).cast();
    let product = Args { c: Matrix { addr: parts, ..product.c }, ..product };
    let sums = Args { a: Matrix { addr: parts, ..sums.a }, ..sums };
    let grids = (whole_grid(grid)?, whole_grid(parts_blocks(&sums))?);
    // SAFETY: the caller's promise; every part has a place of its own, and the launches are in order.
    unsafe {
        (KERNELS[index].0)(cuda, [grids.0, 1, 1], product)?;
        cuda.launch::<contract::bmm::BmmParts>([grids.1, 1, 1], sums)
    }
}

/// Blocks of a launch.
fn whole_grid(blocks: u64) -> Result<u32, OpError> {
    i32::try_from(blocks).map(|grid| grid as u32).map_err(|_| {
        let allowed = "tiles of the result, at most 2^31 - 1; split the batch";
        let found = usize::try_from(blocks).unwrap_or(usize::MAX);
        OpError::Dimension { op: OP, what: "m n batch", found, allowed }
    })
}
