//! Reference for [`contract::conv2d`]: six loops over unpacked tensors.

use contract::conv2d::{Activation, Layout, PadMode};
use contract::num::RowType;

use super::Inputs;
use super::activation::value;
use crate::ops::activation::Kind;
use crate::ops::conv2d::{Images, Padding, Window};

/// One convolution, unpacked, every element an `f32` that its element type holds exactly.
#[derive(Clone, Debug)]
pub struct Case {
    /// Element type of `x`, `w`, `residual` and `y`.
    pub element: RowType,
    /// Input images.
    pub images: Images,
    /// Output channels, input channels of a group, height and width of the window.
    pub oihw: [usize; 4],
    /// Groups.
    pub groups: usize,
    /// How the window moves.
    pub window: Window,
    /// Last step.
    pub activation: Activation,
    /// Images, in the layout of `images`.
    pub x: Vec<f32>,
    /// Weights `[k, c, r, s]`.
    pub w: Vec<f32>,
    /// One for each output channel.
    pub bias: Option<Vec<f32>>,
    /// In the layout of the output.
    pub residual: Option<Vec<f32>>,
}

/// What a case has beside its shape.
#[derive(Clone, Copy, Debug)]
pub struct Extras {
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether there is a residual.
    pub residual: bool,
    /// Last step.
    pub activation: Activation,
}

/// `x` as its element type holds it.
pub fn rounded(element: RowType, x: f32) -> f32 {
    match element {
        RowType::F32 => x,
        RowType::F16 => half::f16::from_f32(x).to_f32(),
        RowType::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

impl Case {
    /// A seeded case.
    ///
    /// # Panics
    /// The window does not fit the images.
    pub fn new(
        element: RowType,
        images: Images,
        oihw: [usize; 4],
        groups: usize,
        window: Window,
        extras: Extras,
        seed: u64,
    ) -> Self {
        let mut inputs = Inputs::new(seed);
        let mut floats = |count, reach| -> Vec<f32> {
            inputs.floats(count, reach).into_iter().map(|x| rounded(element, x)).collect()
        };
        let [k, c, r, s] = oihw;
        let x = floats(images.n * images.h * images.w * c * groups, 2.0);
        let w = floats(k * c * r * s, 1.0);
        let bias = extras.bias.then(|| floats(k, 3.0));
        let activation = extras.activation;
        let mut case =
            Self { element, images, oihw, groups, window, activation, x, w, bias, residual: None };
        let [p, q] = case.output();
        case.residual = extras.residual.then(|| floats(images.n * k * p * q, 3.0));
        case
    }

    /// Padding before, and outputs, of axis `i`.
    fn axis(&self, i: usize) -> (i64, usize) {
        let size = [self.images.h, self.images.w][i];
        let spans = (self.oihw[2 + i] - 1) * self.window.dilation[i] + 1;
        let stride = self.window.stride[i];
        match (self.window.padding, i) {
            (Padding::Sides { top, bottom, .. }, 0) => {
                (top as i64, (top + size + bottom - spans) / stride + 1)
            }
            (Padding::Sides { left, right, .. }, _) => {
                (left as i64, (left + size + right - spans) / stride + 1)
            }
            (Padding::Same, _) => {
                let outputs = size.div_ceil(stride);
                let reach = (outputs - 1) * stride + spans;
                let padding = reach.saturating_sub(size);
                ((padding / 2) as i64, outputs)
            }
        }
    }

    /// Height and width of the output.
    pub fn output(&self) -> [usize; 2] {
        [self.axis(0).1, self.axis(1).1]
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        let [p, q] = self.output();
        self.images.n * self.oihw[0] * p * q
    }

    /// The output in its layout, from what `output` makes of the terms of a sum (`x`, `w`), its channel
    /// and its place.
    fn each<V: Copy + Default>(
        &self,
        mut output: impl FnMut(&[(f32, f32)], usize, usize) -> V,
    ) -> Vec<V> {
        let Images { n, h, w, layout } = self.images;
        let [k, c, r, s] = self.oihw;
        let channels = c * self.groups;
        let ((pad_h, p), (pad_w, q)) = (self.axis(0), self.axis(1));
        let at = |[a, b, y, x]: [usize; 4], [height, width, depth]: [usize; 3]| match layout {
            Layout::Nhwc => ((a * height + y) * width + x) * depth + b,
            Layout::Nchw => ((a * depth + b) * height + y) * width + x,
        };
        let mut out = vec![V::default(); self.output_len()];
        let mut terms = Vec::new();
        for image in 0..n {
            for y in 0..p {
                for x in 0..q {
                    for channel in 0..k {
                        terms.clear();
                        for i in 0..r {
                            for j in 0..s {
                                for in_group in 0..c {
                                    let group = channel / (k / self.groups);
                                    let row = (y * self.window.stride[0]
                                        + i * self.window.dilation[0])
                                        as i64
                                        - pad_h;
                                    let column = (x * self.window.stride[1]
                                        + j * self.window.dilation[1])
                                        as i64
                                        - pad_w;
                                    let source = inside(self.window.mode, row, h).zip(inside(
                                        self.window.mode,
                                        column,
                                        w,
                                    ));
                                    let value = source.map_or(0.0, |(row, column)| {
                                        let place = [image, group * c + in_group, row, column];
                                        self.x[at(place, [h, w, channels])]
                                    });
                                    let weight = self.w[((channel * c + in_group) * r + i) * s + j];
                                    terms.push((value, weight));
                                }
                            }
                        }
                        let place = at([image, channel, y, x], [p, q, k]);
                        out[place] = output(&terms, channel, place);
                    }
                }
            }
        }
        out
    }

    /// What the epilogue makes of the sum of output channel `channel` at `place`.
    fn finished(&self, sum: f32, channel: usize, place: usize) -> f32 {
        let mut v = sum;
        if let Some(bias) = &self.bias {
            v += bias[channel];
        }
        if let Some(residual) = &self.residual {
            v += residual[place];
        }
        match self.activation {
            Activation::None => v,
            // Unlike the family `activation`, -0 stays.
            Activation::Relu if v < 0.0 => 0.0,
            Activation::Relu => v,
            Activation::Relu2 => value(Kind::Relu2, v),
            Activation::Silu => value(Kind::Silu, v),
        }
    }

    /// For each output, before the activation and the last rounding, in `f64`: its value, and the sum
    /// of the magnitudes of all products.
    pub fn wide(&self) -> Vec<(f64, f64)> {
        self.each(|terms, channel, place| {
            let products = || terms.iter().map(|&(x, w)| f64::from(x) * f64::from(w));
            let of = |values: &Option<Vec<f32>>, i: usize| values.as_ref().map_or(0.0, |v| v[i]);
            let extra = f64::from(of(&self.bias, channel)) + f64::from(of(&self.residual, place));
            (products().sum::<f64>() + extra, products().map(f64::abs).sum())
        })
    }

    /// The same case with small whole numbers for all inputs: every sum is exact in any order.
    #[must_use]
    pub fn whole(mut self) -> Self {
        let inputs =
            [Some(&mut self.x), Some(&mut self.w), self.bias.as_mut(), self.residual.as_mut()];
        for values in inputs.into_iter().flatten() {
            values.iter_mut().for_each(|v| *v = (*v * 1.5).round());
        }
        self
    }
}

/// Where coordinate `i` is read; `None`: a zero.
fn inside(mode: PadMode, i: i64, len: usize) -> Option<usize> {
    let last = len as i64 - 1;
    let i = match mode {
        PadMode::Zeros => i,
        PadMode::Replicate => i.clamp(0, last),
        PadMode::Reflect if i < 0 => -i,
        PadMode::Reflect if i > last => last - (i - last),
        PadMode::Reflect => i,
    };
    (0..=last).contains(&i).then_some(i as usize)
}

/// The convolution of a case, in the layout of its images.
pub fn conv2d(case: &Case) -> Vec<f32> {
    case.each(|terms, channel, place| {
        let mut sum = None;
        for chunk in terms.chunks(1024) {
            let chain = chunk.iter().fold(0.0f32, |acc, (x, w)| x.mul_add(*w, acc));
            sum = Some(sum.map_or(chain, |before: f32| before + chain));
        }
        rounded(case.element, case.finished(sum.unwrap_or(0.0), channel, place))
    })
}

/// A convolution of whole numbers.
#[derive(Clone, Debug)]
pub struct WholeCase {
    /// Its tensors: `x` holds int8 values, `w` int8 values or ternaries.
    pub case: Case,
    /// What ternary weights have beside; none: int8 weights.
    pub ternary: Option<Scales>,
}

/// The scales of a ternary convolution.
#[derive(Clone, Debug, Default)]
pub struct Scales {
    /// Quantisation multiplier of each image.
    pub images: Vec<f32>,
    /// Output channels, and their scale, in order.
    pub segments: Vec<(usize, f32)>,
}

impl WholeCase {
    /// A case of the shape of `case`: all int8 values in `x`, and in `w` where it is not ternary.
    pub fn new(mut case: Case, ternary: bool, seed: u64) -> Self {
        let mut inputs = Inputs::new(seed);
        case.x.iter_mut().for_each(|x| *x = f32::from(inputs.bits() as i8));
        let mut weight =
            || if ternary { inputs.below(3) as f32 - 1.0 } else { f32::from(inputs.bits() as i8) };
        case.w.iter_mut().for_each(|w| *w = weight());
        let k = case.oihw[0];
        let segments = match k {
            0..3 => vec![(k, 0.75)],
            _ => vec![(k / 2, 0.013), (k / 3, 1.25), (k - k / 2 - k / 3, 3.0)],
        };
        let images =
            inputs.floats(case.images.n, 60.0).into_iter().map(|s| s.abs() + 1.0).collect();
        Self { case, ternary: ternary.then_some(Scales { images, segments }) }
    }
}

/// The exact sums of a case, in the layout of its images.
pub fn conv2d_i8(whole: &WholeCase) -> Vec<i32> {
    let sum = |terms: &[(f32, f32)]| terms.iter().map(|(x, w)| *x as i64 * *w as i64).sum::<i64>();
    whole.case.each(|terms, _, _| sum(terms) as i32)
}

/// The output of a case with ternary weights, rounded to its element, in the layout of its images.
pub fn conv2d_ternary(whole: &WholeCase) -> Vec<f32> {
    let Scales { images, segments } = whole.ternary.clone().unwrap_or_default();
    let case = &whole.case;
    let [p, q] = case.output();
    let of_image = case.oihw[0] * p * q;
    let mut scale_of = Vec::new();
    for (channels, scale) in segments {
        scale_of.extend(std::iter::repeat_n(scale, channels));
    }
    let sums = conv2d_i8(whole);
    case.each(|_, channel, place| {
        let value = (sums[place] as f32 / images[place / of_image]) * scale_of[channel];
        rounded(case.element, case.finished(value, channel, place))
    })
}

/// `[channels, size, output channels, window, stride]` of ResNet-50, padded by half of the window.
pub const BENCH_SHAPES: &[[usize; 5]] = &[
    [3, 224, 64, 7, 2],
    [64, 56, 64, 1, 1],
    [64, 56, 64, 3, 1],
    [64, 56, 256, 1, 1],
    [256, 56, 64, 1, 1],
    [256, 56, 128, 1, 1],
    [128, 56, 128, 3, 2],
    [128, 28, 512, 1, 1],
    [256, 56, 512, 1, 2],
    [512, 28, 128, 1, 1],
    [128, 28, 128, 3, 1],
    [256, 28, 256, 3, 2],
    [256, 14, 1024, 1, 1],
    [1024, 14, 256, 1, 1],
    [256, 14, 256, 3, 1],
    [512, 14, 512, 3, 2],
    [512, 7, 2048, 1, 1],
    [2048, 7, 512, 1, 1],
    [512, 7, 512, 3, 1],
];

/// The same for depthwise layers of MobileNets, EfficientNets and ConvNeXts.
pub const DEPTHWISE_SHAPES: &[[usize; 5]] = &[
    [96, 112, 96, 3, 1],
    [96, 112, 96, 3, 2],
    [144, 56, 144, 3, 1],
    [192, 28, 192, 3, 1],
    [384, 14, 384, 3, 1],
    [576, 14, 576, 3, 2],
    [960, 7, 960, 3, 1],
    [240, 28, 240, 5, 1],
    [672, 14, 672, 5, 2],
    [96, 56, 96, 7, 1],
    [384, 14, 384, 7, 1],
    [768, 7, 768, 7, 1],
];

/// The same for channels, or output channels, in no eights: first layers, and the last of a detector.
pub const UNEVEN_SHAPES: &[[usize; 5]] = &[
    [3, 224, 32, 3, 2],
    [3, 224, 768, 16, 16],
    [33, 28, 64, 3, 1],
    [100, 14, 200, 3, 1],
    [100, 28, 100, 1, 1],
    [256, 40, 255, 1, 1],
];

/// The same for images in planes on tensor cores.
pub const PLANES_SHAPES: &[[usize; 5]] = &[
    [64, 56, 64, 3, 1],
    [64, 28, 48, 3, 1],
    [384, 33, 64, 3, 2],
    [64, 56, 256, 1, 1],
    [256, 14, 1024, 1, 1],
];

/// The same for ResNeXt-50's 32 groups, of 4 to 32 channels.
pub const GROUPED_SHAPES: &[[usize; 5]] = &[
    [128, 56, 128, 3, 1],
    [256, 56, 256, 3, 2],
    [256, 28, 256, 3, 1],
    [512, 14, 512, 3, 1],
    [1024, 7, 1024, 3, 1],
];

/// The same for ternary weights.
pub const TERNARY_SHAPES: &[[usize; 5]] = &[
    [256, 14, 256, 3, 1],
    [256, 28, 256, 3, 1],
    [512, 7, 512, 3, 1],
    [256, 56, 256, 3, 1],
    [256, 56, 64, 1, 1],
    [256, 56, 128, 1, 1],
    [256, 56, 512, 1, 2],
    [512, 7, 2048, 1, 1],
    [512, 28, 128, 1, 1],
    [256, 14, 1024, 1, 1],
    [1024, 14, 256, 1, 1],
    [2048, 7, 512, 1, 1],
];

const NHWC: Layout = Layout::Nhwc;
const NCHW: Layout = Layout::Nchw;

/// `(layout, [n, h, w], [k, c, r, s], groups, window)`: around the edges of tiles, steps and chunks,
/// and every odd window.
pub fn test_shapes() -> Vec<(Images, [usize; 4], usize, Window)> {
    let window =
        |stride: [usize; 2], padding, mode, dilation| Window { stride, dilation, padding, mode };
    let plain = |stride, padding: usize| Window::new(stride, padding);
    let zeros = PadMode::Zeros;
    [
        (NHWC, [1, 1, 1], [1, 1, 1, 1], 1, plain(1, 0)),
        (NHWC, [1, 5, 4], [3, 2, 3, 3], 1, plain(1, 1)),
        (NCHW, [2, 5, 7], [5, 3, 3, 2], 1, plain(2, 1)),
        (NHWC, [2, 9, 9], [65, 4, 3, 3], 1, plain(1, 1)),
        (NHWC, [1, 12, 11], [64, 64, 1, 1], 1, plain(1, 0)),
        (NHWC, [1, 13, 13], [70, 3, 7, 7], 1, plain(2, 3)),
        (NCHW, [1, 9, 8], [24, 40, 3, 3], 1, plain(1, 1)),
        // More than one chunk, of a whole and of a broken number of steps.
        (NHWC, [1, 4, 5], [20, 128, 3, 3], 1, plain(1, 1)),
        (NHWC, [1, 3, 3], [9, 333, 2, 4], 1, plain(1, 2)),
        (NCHW, [1, 2, 3], [4, 1030, 1, 1], 1, plain(1, 0)),
        (NHWC, [1, 2, 2], [4, 1024, 1, 2], 1, plain(1, 0)),
        // Whole pairs of 64 channels: steps of 1 and 2, padding that images share or do not, more images
        // than a tile, windows that are no square, an odd number of pairs.
        (NHWC, [3, 7, 7], [70, 64, 3, 3], 1, plain(1, 1)),
        (NHWC, [2, 8, 9], [33, 128, 3, 3], 1, plain(2, 1)),
        (NHWC, [2, 5, 6], [72, 192, 2, 3], 1, window([1, 1], Padding::both(1, 3), zeros, [2, 1])),
        (NHWC, [1, 9, 4], [132, 64, 1, 1], 2, plain(2, 0)),
        (NHWC, [2, 6, 5], [12, 64, 4, 2], 1, window([2, 1], Padding::Same, zeros, [1, 2])),
        // Groups, and channel multipliers.
        (NHWC, [2, 6, 5], [8, 4, 3, 3], 2, plain(1, 1)),
        (NCHW, [1, 6, 5], [9, 5, 2, 3], 3, plain(1, 1)),
        (NHWC, [1, 6, 7], [12, 1, 3, 3], 12, plain(1, 1)),
        (NHWC, [2, 7, 6], [12, 1, 3, 3], 12, plain(2, 1)),
        (NHWC, [1, 9, 9], [36, 1, 3, 3], 36, plain(1, 0)),
        (NCHW, [2, 6, 7], [5, 1, 3, 3], 5, plain(1, 1)),
        (NHWC, [1, 6, 7], [12, 1, 3, 3], 4, plain(1, 1)),
        (NCHW, [1, 40, 40], [3, 1, 33, 35], 3, plain(3, 1)),
        // A stride beyond the window, padding beyond it, dilation, one row, one column.
        (NHWC, [1, 17, 19], [8, 4, 2, 2], 1, plain(5, 0)),
        (NHWC, [1, 3, 3], [4, 8, 2, 2], 1, plain(3, 7)),
        (NHWC, [1, 11, 12], [6, 8, 3, 3], 1, window([1, 2], Padding::both(2, 3), zeros, [2, 3])),
        (NCHW, [1, 1, 33], [7, 6, 1, 5], 1, window([1, 1], Padding::both(0, 2), zeros, [1, 1])),
        (NHWC, [3, 33, 1], [7, 6, 5, 1], 1, window([2, 1], Padding::both(2, 0), zeros, [1, 1])),
        (
            NHWC,
            [1, 6, 6],
            [4, 4, 3, 3],
            1,
            window(
                [1, 1],
                Padding::Sides { top: 0, bottom: 3, left: 2, right: 1 },
                PadMode::Replicate,
                [1, 1],
            ),
        ),
        (NHWC, [1, 6, 5], [4, 4, 3, 4], 1, window([1, 1], Padding::Same, zeros, [2, 1])),
        (
            NCHW,
            [1, 7, 5],
            [4, 4, 3, 4],
            1,
            window([2, 3], Padding::Same, PadMode::Replicate, [1, 1]),
        ),
        (
            NHWC,
            [1, 4, 5],
            [5, 4, 3, 3],
            1,
            window([1, 1], Padding::both(3, 4), PadMode::Reflect, [1, 1]),
        ),
        (
            NCHW,
            [2, 4, 5],
            [4, 1, 3, 3],
            4,
            window([1, 1], Padding::both(2, 1), PadMode::Reflect, [1, 1]),
        ),
        (
            NHWC,
            [1, 2, 2],
            [8, 1, 3, 3],
            8,
            window([1, 1], Padding::both(9, 9), PadMode::Replicate, [1, 1]),
        ),
    ]
    .into_iter()
    .map(|(layout, [n, h, w], oihw, groups, window)| {
        (Images { n, h, w, layout }, oihw, groups, window)
    })
    .collect()
}
