//! Shapes of a convolution: what is allowed, what comes out, and the kernel's geometry.

use contract::conv2d::weights::Packed;
use contract::conv2d::{Divisor, Edge, Geometry, Layout, PadMode};

use super::OpError;
use crate::ops::error::dimension;

/// Number, size and layout of input images. Their channels are those of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// Images; 0 is allowed.
    pub n: usize,
    /// Height in pixels.
    pub h: usize,
    /// Width in pixels.
    pub w: usize,
    /// Order of the dimensions, of the output too.
    pub layout: Layout,
}

/// Pixels around an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// As many on each side.
    Sides {
        /// Above.
        top: usize,
        /// Below.
        bottom: usize,
        /// To the left.
        left: usize,
        /// To the right.
        right: usize,
    },
    /// So many that the output has `ceil(size / stride)` pixels; of an odd number, the smaller half
    /// stands before. With a stride of 1 this is PyTorch's `same`, else TensorFlow's `SAME`.
    Same,
}

impl Padding {
    /// None.
    pub const NONE: Self = Self::both(0, 0);

    /// `h` above and below, `w` to the left and right.
    pub const fn both(h: usize, w: usize) -> Self {
        Self::Sides { top: h, bottom: h, left: w, right: w }
    }
}

/// How the window moves over the padded image. The size of the window is that of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns between two outputs; may be larger than the window.
    pub stride: [usize; 2],
    /// Rows and columns between two taps.
    pub dilation: [usize; 2],
    /// Pixels around the image; may be larger than the window.
    pub padding: Padding,
    /// What they hold. [`PadMode::Reflect`] needs less padding than the image is large.
    pub mode: PadMode,
}

impl Default for Window {
    /// Every position, neighbouring taps, no padding.
    fn default() -> Self {
        Self { stride: [1; 2], dilation: [1; 2], padding: Padding::NONE, mode: PadMode::Zeros }
    }
}

impl Window {
    /// Steps of `stride` with `padding` zeros on each side.
    pub fn new(stride: usize, padding: usize) -> Self {
        let padding = Padding::both(padding, padding);
        Self { stride: [stride; 2], padding, ..Self::default() }
    }
}

/// A whole convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The input.
    pub images: Images,
    /// Channels, groups, and the size of the window.
    pub weights: Packed,
    /// How it moves.
    pub window: Window,
}

/// One axis: padding before, padding after, outputs.
struct Axis {
    before: usize,
    outputs: usize,
}

const COORDINATE: &str = "1 to 2^24 are allowed";

/// A grid of one axis.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs have grids"))]
pub(super) fn grid(op: &'static str, blocks: u64) -> Result<[u32; 3], OpError> {
    let found = usize::try_from(blocks).unwrap_or(usize::MAX);
    let allowed = "a grid has at most 2^31 - 1; split the batch";
    dimension(op, "blocks", found, i32::MAX as usize, allowed)?;
    Ok([found as u32, 1, 1])
}

impl Shape {
    /// `[n, k, p, q]`: images, channels, height and width of the output, whatever the layout.
    ///
    /// # Errors
    /// A dimension that is not allowed, named.
    pub fn output(&self) -> Result<[usize; 4], OpError> {
        let [p, q] = self.axes(super::OP)?;
        Ok([self.images.n, self.weights.k, p.outputs, q.outputs])
    }

    /// Whether `count` channels of a pixel stand side by side, aligned to their size, wherever a
    /// group of `count` starts.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a choice among kernels"))]
    pub(super) fn channels_together(&self, count: usize) -> bool {
        let Packed { c, groups, .. } = self.weights;
        let channels = if self.weights.depthwise() { groups } else { c };
        self.images.layout == Layout::Nhwc && channels.is_multiple_of(count)
    }

    /// The same, where padding is zeros.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a choice among kernels"))]
    pub(super) fn pieces(&self, count: usize) -> bool {
        self.window.mode == PadMode::Zeros && self.channels_together(count)
    }

    pub(super) fn input_len(&self, op: &'static str) -> Result<usize, OpError> {
        let Images { n, h, w, .. } = self.images;
        product(op, "elements of x", &[n, h, w, self.weights.c, self.weights.groups])
    }

    pub(super) fn output_len(&self, op: &'static str) -> Result<usize, OpError> {
        let [p, q] = self.axes(op)?;
        product(op, "elements of y", &[self.images.n, p.outputs, q.outputs, self.weights.k])
    }

    fn axes(&self, op: &'static str) -> Result<[Axis; 2], OpError> {
        let Window { stride, dilation, padding, mode } = self.window;
        let (sizes, window) = ([self.images.h, self.images.w], self.weights.window);
        let names = [["h", "w"], ["stride h", "stride w"], ["dilation h", "dilation w"]];
        let max = Geometry::MAX_COORDINATE;
        let axis = |i: usize| {
            for (name, value) in names.iter().zip([sizes[i], stride[i], dilation[i]]) {
                dimension(op, name[i], value, max, COORDINATE)?;
            }
            // At most 2^48: no overflow.
            let spans = (window[i] - 1) * dilation[i] + 1;
            let (before, after) = match padding {
                Padding::Sides { top, bottom, left, right } => [(top, bottom), (left, right)][i],
                Padding::Same => {
                    let outputs = sizes[i].div_ceil(stride[i]);
                    let all = ((outputs - 1) * stride[i] + spans).saturating_sub(sizes[i]);
                    (all / 2, all - all / 2)
                }
            };
            for (what, pad) in [("padding before", before), ("padding after", after)] {
                let (most, allowed) = match mode {
                    PadMode::Reflect => {
                        (sizes[i] - 1, "reflection needs less than the image's size")
                    }
                    PadMode::Zeros | PadMode::Replicate => (max, "0 to 2^24 are allowed"),
                };
                if pad > most {
                    return Err(OpError::Dimension { op, what, found: pad, allowed });
                }
            }
            let padded = before + sizes[i] + after;
            let allowed = "it may not span more than the padded image; pad more, or dilate less";
            dimension(op, ["window h", "window w"][i], spans, padded, allowed)?;
            Ok(Axis { before, outputs: (padded - spans) / stride[i] + 1 })
        };
        Ok([axis(0)?, axis(1)?])
    }

    /// What the kernels take.
    pub(crate) fn geometry(&self, op: &'static str) -> Result<Geometry, OpError> {
        let [rows, columns] = self.axes(op)?;
        let Packed { k, c, window, groups } = self.weights;
        let Images { n, h, w, layout } = self.images;
        let (p, q, channels) = (rows.outputs, columns.outputs, c * groups);
        let terms = self.weights.terms();
        dimension(op, "terms", terms, Geometry::MAX_TERMS, "a sum has at most 2^24")?;
        let most = "an image has at most 2^31 - 1; cut it into tiles";
        let x_image = product(op, "elements of an image of x", &[h, w, channels])?;
        dimension(op, "elements of an image of x", x_image, Geometry::MAX_IMAGE, most)?;
        let y_image = product(op, "elements of an image of y", &[p, q, k])?;
        dimension(op, "elements of an image of y", y_image, Geometry::MAX_IMAGE, most)?;
        let pixels = product(op, "output pixels", &[n, p, q])?;
        let most = "at most 2^31 - 1 in all images; split the batch";
        dimension(op, "output pixels", pixels.max(1), Geometry::MAX_PIXELS, most)?;
        let (x_step, y_step) = match layout {
            Layout::Nhwc => ([w * channels, channels, 1], [k, 1]),
            Layout::Nchw => ([w, 1, h * w], [1, p * q]),
        };
        let pair = |values: [usize; 2]| values.map(|v| v as i32);
        Ok(Geometry {
            edges: [h, w].map(|len| Edge::new(self.window.mode, len as i32)),
            c: c as u32,
            k: (k / groups) as u32,
            groups: groups as u32,
            s: window[1] as u32,
            taps: (window[0] * window[1]) as u32,
            terms: terms as u32,
            pixels: pixels as u32,
            out: [p as u32, q as u32],
            stride: pair(self.window.stride),
            dilation: pair(self.window.dilation),
            pad: pair([rows.before, columns.before]),
            x_step: x_step.map(|v| v as u32),
            y_step: y_step.map(|v| v as u32),
            x_image: x_image as u64,
            y_image: y_image as u64,
            by_image: Divisor::new((p * q) as u32),
            by_width: Divisor::new(q as u32),
            by_c: Divisor::new(c as u32),
            by_s: Divisor::new(window[1] as u32),
        })
    }
}

/// A product that a `usize` may not hold.
fn product(op: &'static str, what: &'static str, factors: &[usize]) -> Result<usize, OpError> {
    let all = factors.iter().try_fold(1usize, |all, &f| all.checked_mul(f));
    let allowed = "this machine cannot address so many; split the batch";
    all.ok_or(OpError::Dimension { op, what, found: usize::MAX, allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(
        size: usize,
        window: usize,
        stride: usize,
        dilation: usize,
        padding: Padding,
    ) -> usize {
        let weights = Packed { k: 1, c: 1, window: [window; 2], groups: 1 };
        let images = Images { n: 1, h: size, w: size, layout: Layout::Nhwc };
        let window =
            Window { stride: [stride; 2], dilation: [dilation; 2], padding, mode: PadMode::Zeros };
        Shape { images, weights, window }.output().expect("a shape")[2]
    }

    #[test]
    fn outputs_are_those_of_the_frameworks() {
        let both = |p| Padding::both(p, p);
        assert_eq!(output(224, 7, 2, 1, both(3)), 112);
        assert_eq!(output(56, 3, 1, 1, both(1)), 56);
        assert_eq!(output(56, 3, 2, 1, both(1)), 28);
        assert_eq!(output(56, 1, 2, 1, both(0)), 28);
        assert_eq!(output(10, 3, 1, 3, both(0)), 4);
        assert_eq!(output(10, 2, 5, 1, both(0)), 2);
        assert_eq!(output(1, 1, 1, 1, both(7)), 15);
        for (size, window, stride, dilation) in
            [(10, 3, 1, 1), (10, 4, 1, 2), (11, 3, 2, 1), (7, 2, 3, 1)]
        {
            assert_eq!(
                output(size, window, stride, dilation, Padding::Same),
                size.div_ceil(stride)
            );
        }
    }

    #[test]
    fn of_an_odd_padding_the_smaller_half_stands_before() {
        let weights = Packed { k: 1, c: 1, window: [4, 2], groups: 1 };
        let images = Images { n: 1, h: 9, w: 9, layout: Layout::Nhwc };
        let window = Window { padding: Padding::Same, ..Window::default() };
        let geometry = Shape { images, weights, window }.geometry("conv2d").expect("a shape");
        assert_eq!(geometry.pad, [1, 0]);
    }
}
