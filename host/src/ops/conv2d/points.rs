//! f16 and bf16 on a Hopper GPU by square tiles: see [`contract::conv2d::points`].

use contract::conv2d::points::{
    BLOCK, POSITIONS, PointsArgs, WHOLE_SIDE, WHOLE_SPLITS, WHOLE_STEPS,
};
use contract::conv2d::{
    Args, Conv2dPointsBf16, Conv2dPointsF16, Conv2dPointsNarrowBf16, Conv2dPointsNarrowF16,
    Conv2dPointsWholeBf16, Conv2dPointsWholeF16,
};
use contract::launch::{Kernel, TensorMap};
use contract::num::RowType;

use super::bulk_lines::{self, element, weights};
use super::{OP, shape};
use crate::driver::Mapped;
use crate::ops::{CudaBackend, OpError};

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Tile after tile, of 128 output channels.
    Wide,
    /// The same of 64.
    Narrow,
    /// All of a tile at once.
    Whole,
}

impl Form {
    const ALL: [Self; 3] = [Self::Wide, Self::Narrow, Self::Whole];

    const fn symbol(self, element: RowType) -> &'static str {
        let [bf16, f16] = match self {
            Self::Wide => [Conv2dPointsBf16::SPEC, Conv2dPointsF16::SPEC],
            Self::Narrow => [Conv2dPointsNarrowBf16::SPEC, Conv2dPointsNarrowF16::SPEC],
            Self::Whole => [Conv2dPointsWholeBf16::SPEC, Conv2dPointsWholeF16::SPEC],
        };
        if matches!(element, RowType::Bf16) { bf16.symbol } else { f16.symbol }
    }

    /// Output pixels and output channels of a tile.
    const fn tile(self) -> [u32; 2] {
        match self {
            Self::Wide => [POSITIONS, 2 * BLOCK],
            Self::Narrow => [POSITIONS, BLOCK],
            Self::Whole => [WHOLE_SIDE, BLOCK],
        }
    }

    /// The launches of `args` by it.
    fn launches(self, args: Args) -> impl Iterator<Item = PointsArgs> {
        let ([positions, channels], whole) = (self.tile(), self == Self::Whole);
        let splits: &[u32] = if whole { &[1, 2, 4, WHOLE_SPLITS] } else { &[1] };
        splits.iter().filter_map(move |&splits| {
            let args = PointsArgs::new(args, positions, channels)?.shared_by(splits);
            let fits = !whole || args.walk.share <= WHOLE_STEPS;
            (fits && splits <= args.walk.steps).then_some(args)
        })
    }

    /// About how many hundredths of a microsecond a launch takes; the numbers were fitted on an H100.
    fn cost(self, args: &PointsArgs, sms: u64) -> u64 {
        let (tiles, share) = (u64::from(args.walk.tiles), u64::from(args.walk.share));
        let rounds = tiles.div_ceil(sms);
        match self {
            Self::Wide => 350 + rounds * (32 * share + 35),
            Self::Narrow => {
                // Many blocks wait for each other's weights and pixels.
                let step = 13 + 9 * tiles.min(sms) / sms;
                let taps = if args.base.geometry.taps > 1 && rounds == 1 { 25 } else { 0 };
                330 + taps + rounds * (step * share + 15)
            }
            Self::Whole => {
                let blocks = tiles * u64::from(args.walk.splits);
                // Clusters are slow to start.
                let exchange = if args.walk.splits > 1 { 30 + blocks } else { 0 };
                355 + 15 * share + (blocks.div_ceil(sms) - 1) * (25 * share + 40) + exchange
            }
        }
    }
}

/// A launch that can be made.
pub(super) struct Points {
    args: PointsArgs,
    form: Form,
}

/// The launch of `args`, where these kernels take it, by the way that is expected to be the fastest, or asked for.
pub(super) fn halves(
    cuda: &CudaBackend,
    args: Args,
    asked: Option<&'static str>,
) -> Option<Points> {
    if !cuda.has::<Conv2dPointsBf16>() {
        return None;
    }
    let sms = u64::from(cuda.cuda().device().info().sm_count);
    let g = &args.geometry;
    // Few channels of several taps fill no step.
    if asked.is_none() && g.taps > 1 && g.c < 40 {
        return None;
    }
    let way = choice(args, asked, sms)?;
    // Nor a few more the second one: for many tiles that is too much.
    let empty = g.taps > 1 && g.c > 64 && g.c <= 80 && way.form != Form::Whole;
    if asked.is_none() && empty {
        return None;
    }
    let lines = if asked.is_none() { bulk_lines::cost(args, sms) } else { None };
    if lines.is_some_and(|lines| lines < way.form.cost(&way.args, sms)) {
        return None;
    }
    way.mapped()
}

/// The same but for the maps.
fn choice(args: Args, asked: Option<&'static str>, sms: u64) -> Option<Points> {
    let forms = Form::ALL.into_iter();
    let forms = forms.filter(|form| asked.is_none_or(|asked| asked == form.symbol(args.element)));
    let ways = forms.flat_map(|form| form.launches(args).map(move |args| Points { args, form }));
    ways.min_by_key(|way| way.form.cost(&way.args, sms))
}

impl Points {
    /// With its maps; `None` where the driver makes none.
    fn mapped(self) -> Option<Self> {
        let Self { args, form } = self;
        let (base, g) = (&args.base, &args.base.geometry);
        let pixel = 2 * u64::from(g.k) * u64::from(g.groups);
        let outputs = |address: u64| -> Option<TensorMap> {
            let outputs = Mapped {
                element: element(base),
                address,
                sizes: [g.k.into(), g.groups.into(), g.pixels.into(), 1],
                strides: [2 * u64::from(g.k), pixel, pixel * u64::from(g.pixels)],
            };
            outputs.tiles([64, 1, POSITIONS, 1])
        };
        let y = outputs(base.y.addr())?;
        let residuals = if base.residual.is_null() { y } else { outputs(base.residual.addr())? };
        let entries = entries(base, form.tile()[0])?;
        let weights = weights(base)?;
        Some(Self { args: PointsArgs { entries, weights, outputs: y, residuals, ..args }, form })
    }

    /// # Safety
    /// As for the kernels: the pointers of the arguments cover the contract's table, and `y` is borrowed
    /// exclusively.
    pub(super) unsafe fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        let Self { args, form } = self;
        let sms = u64::from(cuda.cuda().device().info().sm_count);
        let (tiles, splits) = (u64::from(args.walk.tiles), u64::from(args.walk.splits));
        let blocks = if form == Form::Whole { tiles * splits } else { tiles.min(sms) };
        let grid = shape::grid(OP, blocks)?;
        let bf16 = args.base.element == RowType::Bf16;
        macro_rules! run {
            ($bf16:ident $f16:ident) => {
                // SAFETY: the contract's grid; by the caller.
                unsafe {
                    if bf16 {
                        cuda.launch::<$bf16>(grid, args)
                    } else {
                        cuda.launch::<$f16>(grid, args)
                    }
                }
            };
        }
        match form {
            Form::Wide => run!(Conv2dPointsBf16 Conv2dPointsF16),
            Form::Narrow => run!(Conv2dPointsNarrowBf16 Conv2dPointsNarrowF16),
            Form::Whole => run!(Conv2dPointsWholeBf16 Conv2dPointsWholeF16),
        }
    }
}

/// The map of the images by so many output pixels of 64 channels; `None` where a number has no place in one, or where
/// the driver knows none.
fn entries(base: &Args, pixels: u32) -> Option<TensorMap> {
    let g = &base.geometry;
    let [height, width] = g.edges.map(|edge| edge.len);
    let last = [0, 1].map(|axis| (g.out[axis] as i32 - 1) * g.stride[axis] + 1 - g.pad[axis]);
    let (low, high) = ([-g.pad[1], -g.pad[0]], [last[1] - width, last[0] - height]);
    if low.iter().chain(&high).any(|corner| !(-128..=127).contains(corner)) {
        return None;
    }
    let images = Mapped {
        element: element(base),
        address: base.x.addr(),
        sizes: [g.x_step[1].into(), width as u64, height as u64, base.images.into()],
        strides: [u64::from(g.x_step[1]), u64::from(g.x_step[0]), g.x_image].map(|s| 2 * s),
    };
    images.pixels([64, pixels], low, high, [g.stride[1], g.stride[0]].map(|step| step as u32))
}

#[cfg(test)]
mod tests {
    use contract::conv2d::Activation;
    use contract::conv2d::weights::Packed;
    use contract::launch::DevPtr;

    use super::super::{Images, Layout, Shape, Window};
    use super::*;

    fn args(n: usize, [c, size, k, window, stride]: [usize; 5]) -> Args {
        let images = Images { n, h: size, w: size, layout: Layout::Nhwc };
        let weights = Packed { k, c, window: [window; 2], groups: 1 };
        let shape = Shape { images, weights, window: Window::new(stride, window / 2) };
        Args {
            x: DevPtr::NULL,
            w: DevPtr::NULL,
            bias: DevPtr::NULL,
            residual: DevPtr::NULL,
            y: DevPtr::NULL,
            geometry: shape.geometry(OP).unwrap(),
            images: n as u32,
            rows: weights.rows() as u32,
            columns: weights.columns() as u32,
            element: RowType::Bf16,
            activation: Activation::None,
            vectors: 1,
            partial: DevPtr::NULL,
            splits: 1,
            split_terms: u32::MAX / 2,
            column_tiles: 0,
            pixel_tiles: 0,
        }
    }

    /// What was the fastest on an H100, where that is not the one or the other.
    #[test]
    fn layers_go_where_they_are_fast() {
        use Form::{Narrow, Whole, Wide};
        for (n, layer, form, splits) in [
            (32, [64, 56, 64, 1, 1], Narrow, 1),
            (32, [64, 56, 256, 1, 1], Wide, 1),
            (32, [256, 56, 64, 1, 1], Narrow, 1),
            (32, [128, 28, 512, 1, 1], Wide, 1),
            (32, [512, 28, 128, 1, 1], Narrow, 1),
            (32, [256, 14, 1024, 1, 1], Wide, 1),
            (32, [512, 7, 2048, 1, 1], Wide, 1),
            (32, [2048, 7, 512, 1, 1], Narrow, 1),
            (32, [128, 28, 128, 3, 1], Narrow, 1),
            (32, [256, 28, 256, 3, 1], Wide, 1),
            (32, [512, 14, 512, 3, 2], Narrow, 1),
            (8, [256, 14, 256, 3, 1], Narrow, 1),
            (1, [64, 56, 256, 1, 1], Narrow, 1),
            (1, [512, 28, 128, 1, 1], Narrow, 1),
            (1, [64, 56, 64, 3, 1], Whole, 1),
            (1, [1024, 14, 256, 1, 1], Whole, 4),
            (1, [2048, 7, 512, 1, 1], Whole, 8),
            (1, [128, 28, 128, 3, 1], Whole, 4),
            (1, [256, 28, 256, 3, 1], Narrow, 1),
            (1, [512, 7, 512, 3, 1], Whole, 8),
        ] {
            let way = choice(args(n, layer), None, 132).unwrap();
            assert_eq!((way.form, way.args.walk.splits), (form, splits), "{n} {layer:?}");
        }
        let cost = |n, layer| {
            let way = choice(args(n, layer), None, 132).unwrap();
            (way.form.cost(&way.args, 132), bulk_lines::cost(args(n, layer), 132).unwrap())
        };
        for n in [32, 8] {
            let (squares, of_lines) = cost(n, [512, 7, 512, 3, 1]);
            assert!(of_lines < squares, "{n}");
        }
        let (squares, of_lines) = cost(32, [256, 14, 256, 3, 1]);
        assert!(squares < of_lines);
    }
}
