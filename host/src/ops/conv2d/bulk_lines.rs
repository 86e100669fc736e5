//! Launches of convolutions in lines: see [`contract::conv2d::bulk_lines`].

use contract::conv2d::bulk_lines::{CLUSTER, HalfLines, LINES, POINTS, TernaryLines, Walk};
use contract::conv2d::{
    Args, Conv2dLinesBf16, Conv2dLinesF16, Conv2dLinesPairBf16, Conv2dLinesPairF16,
    Conv2dLinesSplitBf16, Conv2dLinesSplitF16, Conv2dTernaryPoints, Geometry, int8,
};
use contract::launch::{Kernel, TensorMap};
use contract::num::RowType;

use super::{OP, shape};
use crate::driver::{MapElement, Mapped};
use crate::ops::{CudaBackend, OpError};

/// The kernels of a form: a block for each tile, or two, or up to [`CLUSTER`].
pub(in crate::ops) struct Forms {
    symbols: [&'static str; 3],
}

impl Forms {
    /// From the three kernels.
    pub(in crate::ops) const fn of<A: Kernel, B: Kernel, C: Kernel>() -> Self {
        Self { symbols: [A::SPEC.symbol, B::SPEC.symbol, C::SPEC.symbol] }
    }

    /// How many blocks share a tile; `None` where another kernel is asked for.
    pub(in crate::ops) fn splits(
        &self,
        asked: Option<&'static str>,
        walk: &Walk,
        sms: u64,
    ) -> Option<u32> {
        let Some(symbol) = asked else { return Some(splits(walk, sms)) };
        let which = self.symbols.iter().position(|&of| of == symbol)?;
        Some([1, 2, splits(walk, sms).max(4)][which])
    }
}

/// How many blocks share a tile: as many as there are multiprocessors for, and two steps for each at least.
/// Of larger clusters fewer are there at once: an H200 has place for 14 of eight blocks, not for 16.
fn splits(walk: &Walk, sms: u64) -> u32 {
    let (mut splits, steps) = (1, walk.round * walk.rounds);
    while splits < CLUSTER && 4 * splits <= steps {
        let blocks = u64::from(walk.tiles) * u64::from(2 * splits);
        if blocks > if splits == 1 { sms } else { 7 * sms / 8 } {
            break;
        }
        splits *= 2;
    }
    splits
}

/// Runs the kernel for the splits of a walk.
///
/// # Safety
/// As for the kernels, but for the grid.
pub(in crate::ops) unsafe fn launch<A, B, C>(
    cuda: &CudaBackend,
    op: &'static str,
    args: A::Args,
    walk: &Walk,
) -> Result<(), OpError>
where
    A: Kernel,
    B: Kernel<Args = A::Args>,
    C: Kernel<Args = A::Args>,
{
    let sms = u64::from(cuda.cuda().device().info().sm_count);
    let (tiles, splits) = (u64::from(walk.tiles), u64::from(walk.splits));
    let clusters =
        |cluster: u32| shape::grid(op, (tiles * splits).next_multiple_of(cluster.into()));
    // SAFETY: a block for each multiprocessor at most, or whole clusters of a block for each split of each
    // tile; by the caller.
    unsafe {
        match splits {
            1 => cuda.launch::<A>(shape::grid(op, tiles.min(sms))?, args),
            2 => cuda.launch::<B>(clusters(2)?, args),
            _ => cuda.launch::<C>(clusters(CLUSTER)?, args),
        }
    }
}

/// Runs the kernel whose warpgroups have tiles of their own.
///
/// # Safety
/// As for the kernel, but for the grid.
pub(super) unsafe fn apart<K: Kernel>(
    cuda: &CudaBackend,
    op: &'static str,
    args: K::Args,
    walk: &Walk,
) -> Result<(), OpError> {
    let sms = u64::from(cuda.cuda().device().info().sm_count);
    let grid = shape::grid(op, u64::from(walk.tiles).min(sms))?;
    // SAFETY: a block for each multiprocessor at most; by the caller.
    unsafe { cuda.launch::<K>(grid, args) }
}

/// The map of the images by entries of `channels` channels of `bytes` bytes; `None` where a number has no
/// place in one, or where the driver knows none.
pub(in crate::ops) fn entries(
    g: &Geometry,
    walk: &Walk,
    address: u64,
    (element, bytes): (MapElement, u64),
) -> Option<TensorMap> {
    let [height, width] = g.edges.map(|edge| edge.len);
    let [rows, columns] = [walk.of_image, walk.line].map(|count| count as i32 - 1);
    let low = [-g.pad[1], -g.pad[0]];
    let high =
        [columns * g.stride[1] + 1 - width - g.pad[1], rows * g.stride[0] + 1 - height - g.pad[0]];
    if low.iter().chain(&high).any(|corner| !(-128..=127).contains(corner)) {
        return None;
    }
    let images = Mapped {
        element,
        address,
        sizes: [g.x_step[1].into(), width as u64, height as u64, walk.images.into()],
        strides: [u64::from(g.x_step[1]), u64::from(g.x_step[0]), g.x_image].map(|s| s * bytes),
    };
    let steps = [g.stride[1], g.stride[0]].map(|step| step as u32);
    images.pixels([128 / bytes as u32, walk.entries], low, high, steps)
}

/// Tiles from which kernels in lines are faster than others, at one H200.
const LEAST_TILES: u32 = 16;

/// Whether warpgroups are to have tiles of their own, for windows of one tap: where that is asked for, or `good`.
fn is_apart(walk: &Walk, good: bool, asked: Option<&str>, symbol: &str) -> bool {
    walk.round == 1 && asked.map_or(good, |asked| asked == symbol)
}

/// A launch for halves that can be made.
pub(super) struct Halves(HalfLines);

/// The launch of `args`, where these kernels take it and are expected to be the fastest, or are asked for.
pub(super) fn halves(
    cuda: &CudaBackend,
    args: Args,
    asked: Option<&'static str>,
) -> Option<Halves> {
    let bf16 = args.element == RowType::Bf16;
    let (there, forms) = if bf16 {
        let forms = Forms::of::<Conv2dLinesBf16, Conv2dLinesPairBf16, Conv2dLinesSplitBf16>();
        (cuda.has::<Conv2dLinesBf16>(), forms)
    } else {
        let forms = Forms::of::<Conv2dLinesF16, Conv2dLinesPairF16, Conv2dLinesSplitF16>();
        (cuda.has::<Conv2dLinesF16>(), forms)
    };
    let sms = u64::from(cuda.cuda().device().info().sm_count);
    let HalfLines { base, walk, .. } = HalfLines::new(args, LINES).filter(|_| there)?;
    let g = &base.geometry;
    // Windows of one tap have nothing to share, few channels fill no entry, few tiles are for smaller blocks.
    if asked.is_none() && (g.taps == 1 || g.c < 40 || walk.tiles < LEAST_TILES) {
        return None;
    }
    let splits = forms.splits(asked, &walk, sms)?;
    let images = entries(g, &walk, base.x.addr(), (element(&base), 2));
    let walk = walk.shared_by(splits);
    let both = images.zip(weights(&base));
    both.map(|(entries, weights)| Halves(HalfLines { entries, weights, base, walk }))
}

/// About how many hundredths of a microsecond a launch of `args` takes, where nobody asks for a kernel and these take it;
/// the numbers were fitted on an H100.
pub(super) fn cost(args: Args, sms: u64) -> Option<u64> {
    let walk = HalfLines::new(args, LINES)?.walk;
    let g = &args.geometry;
    if g.taps == 1 || g.c < 40 || walk.tiles < LEAST_TILES {
        return None;
    }
    let walk = walk.shared_by(splits(&walk, sms));
    let step = if g.stride == [1; 2] { 30 } else { 45 };
    let rounds = u64::from(walk.tiles * walk.splits).div_ceil(sms);
    let exchange = if walk.splits > 1 { 100 } else { 0 };
    Some(590 + rounds * u64::from(walk.share) * step + exchange)
}

/// The element of a map.
pub(super) fn element(base: &Args) -> MapElement {
    if base.element == RowType::Bf16 { MapElement::Bf16 } else { MapElement::F16 }
}

/// The map of the weights, by 64 output channels by 64 channels; `None` as for [`entries`].
pub(super) fn weights(base: &Args) -> Option<TensorMap> {
    let (g, row) = (&base.geometry, 2 * u64::from(base.columns));
    let weights = Mapped {
        element: element(base),
        address: base.w.addr(),
        sizes: [base.columns.into(), g.c.into(), g.taps.into(), g.groups.into()],
        strides: [row, u64::from(g.c) * row, u64::from(base.rows) * row],
    };
    weights.tiles([64, 64, 1, 1])
}

impl Halves {
    /// # Safety
    /// As for the kernels: the pointers of the arguments cover the contract's table, and `y` is borrowed
    /// exclusively.
    pub(super) unsafe fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        let Self(args) = self;
        let (walk, bf16) = (&args.walk, args.base.element == RowType::Bf16);
        // SAFETY: by the caller.
        unsafe {
            if bf16 {
                type Split = Conv2dLinesSplitBf16;
                launch::<Conv2dLinesBf16, Conv2dLinesPairBf16, Split>(cuda, OP, args, walk)
            } else {
                type Split = Conv2dLinesSplitF16;
                launch::<Conv2dLinesF16, Conv2dLinesPairF16, Split>(cuda, OP, args, walk)
            }
        }
    }
}

/// The launch of ternary weights on `images` images, by windows of one tap, where it is expected to be the fastest, or
/// is asked for: many tiles of short sums, outputs of 32 bits.
pub(super) fn ternary(
    cuda: &CudaBackend,
    args: int8::Args,
    images: u32,
    asked: Option<&'static str>,
) -> Option<TernaryLines> {
    let there = cuda.has::<Conv2dTernaryPoints>();
    let sms = u64::from(cuda.cuda().device().info().sm_count);
    let points = TernaryLines::new(args, images, POINTS).filter(|_| there)?;
    // Entries that are half empty are for smaller blocks.
    let full = args.geometry.c.is_multiple_of(128);
    let many = points.walk.rounds <= 2 && u64::from(points.walk.tiles) >= 3 * sms;
    let good = full && many && args.element == RowType::F32;
    if !is_apart(&points.walk, good, asked, Conv2dTernaryPoints::SPEC.symbol) {
        return None;
    }
    let (x, element) = (args.x.addr(), (MapElement::U8, 1));
    let entries = entries(&args.geometry, &points.walk, x, element);
    entries.map(|entries| TernaryLines { entries, ..points })
}
