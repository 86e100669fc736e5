//! Channels in no eights on tensor cores: copied to eights before the convolution, and its outputs back behind it. See
//! [`contract::conv2d::runs`].

use contract::conv2d::runs::Runs;
use contract::conv2d::weights::Packed;
use contract::conv2d::{Conv2dRuns, Layout, PadMode};
use contract::launch::{DevPtr, Kernel};
use contract::num::RowType;

use super::launch::{Tensors, run};
use super::{Conv2d, Images, OP, Padding, Shape, Window, shape};
use crate::memory::DeviceBuffer;
use crate::ops::{Backend, CudaBackend, Float, Math, OpError};

/// A convolution that is made by another one, all of whose channels are in eights.
pub(super) struct ByRuns {
    /// The other one.
    shape: Shape,
    /// What becomes of images, of a residual, of the outputs of the other one, and of the bias, by halves.
    images: Runs,
    residual: Runs,
    outputs: Runs,
    bias: Runs,
}

impl<T: Float> Conv2d<'_, CudaBackend, T> {
    /// How it is made so: 16 bits with channels last on tensor cores, zeros for padding, where channels or output channels of a
    /// group are in no eights.
    pub(super) fn runs(&self, cuda: &CudaBackend) -> Option<ByRuns> {
        let asked = self.kernel.is_none_or(|symbol| symbol == Conv2dRuns::SPEC.symbol);
        let good = self.math == Math::TensorCore
            && T::TYPE != RowType::F32
            && self.images.layout == Layout::Nhwc
            && self.window.mode == PadMode::Zeros;
        if !good || !asked || !cuda.has::<Conv2dRuns>() {
            return None;
        }
        ByRuns::of(&self.shape(), self.w.wide().map(|(_, packed)| packed))
    }

    /// The convolution by `runs`.
    pub(super) fn by_runs(self, cuda: &CudaBackend, runs: ByRuns) -> Result<(), OpError> {
        let stream = cuda.stream();
        let copy = |runs: &Runs, from: DevPtr<u16>, to: DevPtr<u16>| {
            let allowed = "this many elements have no place; split the batch";
            let found = usize::try_from(runs.count()).unwrap_or(usize::MAX);
            let too_large = OpError::Dimension { op: OP, what: "elements", found, allowed };
            let args = runs.args(from, to).ok_or(too_large)?;
            let grid = shape::grid(OP, args.blocks().into())?;
            // SAFETY: a block for so many places; the tensors hold them, as `check` and the lengths here say.
            unsafe { cuda.launch::<Conv2dRuns>(grid, args) }
        };
        let placed = |runs: &Runs, from: DevPtr<u16>| -> Result<_, OpError> {
            if runs.is_there() {
                return Ok((None, from));
            }
            let places: DeviceBuffer<T> = cuda.alloc("conv2d runs", runs.count() as usize)?;
            let to = places.dev_ptr(stream).cast();
            copy(runs, from, to)?;
            Ok((Some(places), to))
        };
        let w = self.w.wide().map_or(self.w.data(), |(wide, _)| wide);
        let (x, x_at) = placed(&runs.images, self.x.dev_ptr(stream).cast())?;
        let mut kept = vec![x];
        let (mut residual, mut bias) = (DevPtr::NULL, DevPtr::NULL);
        if let Some(of) = self.residual {
            let (places, at) = placed(&runs.residual, of.dev_ptr(stream).cast())?;
            kept.push(places);
            residual = at.cast();
        }
        if let Some(of) = self.bias {
            let (places, at) = placed(&runs.bias, of.dev_ptr(stream).cast())?;
            kept.push(places);
            bias = at.cast();
        }
        let y_at: DevPtr<u16> = self.y.dev_ptr(stream).cast();
        let outputs: Option<DeviceBuffer<T>> = if runs.outputs.is_there() {
            None
        } else {
            Some(cuda.alloc("conv2d runs", runs.residual.count() as usize)?)
        };
        let y: DevPtr<u16> =
            outputs.as_ref().map_or(y_at, |outputs| outputs.dev_ptr(stream).cast());
        let w = w.dev_ptr(stream).cast();
        let tensors = Tensors { x: x_at.cast(), w, bias, residual, y: y.cast() };
        let args = tensors.args(&runs.shape, T::TYPE, self.activation)?;
        // SAFETY: places and weights are those of the shape; `y` is borrowed exclusively, or scratch.
        unsafe { run(cuda, args, &runs.shape, self.math, None)? };
        if outputs.is_some() { copy(&runs.outputs, y, y_at) } else { Ok(()) }
    }
}

impl ByRuns {
    /// The convolution of `shape` by channels in eights, its weights as they are for those (`wide`) where its channels are in
    /// none; `None` where all of them are, or a number is too large.
    fn of(shape: &Shape, wide: Option<Packed>) -> Option<Self> {
        let Shape { images, weights, window } = *shape;
        let narrow = weights.depthwise() && wide.is_none();
        let weights = if wide.is_some() { weights.together() } else { weights };
        let Packed { k, window: [r, s], groups, .. } = weights;
        let of_group = k / groups;
        let places = of_group.next_multiple_of(8);
        if narrow || (wide.is_none() && places == of_group) {
            return None;
        }
        let number = |count: usize| count as u64;
        let channels = number(weights.c);
        let [n, h, w] = [images.n, images.h, images.w];
        let [_, _, p, q] = shape.output().ok()?;
        let other = Packed { k: places * groups, ..wide.unwrap_or(weights) };
        let together = other.window != weights.window;
        let (shape, of_images) = if together {
            let [top, left] = shape.geometry(OP).ok()?.pad.map(|pad| pad as usize);
            let [down, across] = window.stride;
            if window.dilation[1] != 1 {
                return None;
            }
            let spans = (p - 1) * down + (r - 1) * window.dilation[0] + 1;
            let bottom = spans.saturating_sub(top + h);
            // Windows that touch are images of their own.
            let apart = top == 0 && window.dilation[0] == 1 && down == r && h == p * r;
            let (n, of_images) = if apart { (n * p, r) } else { (n, h) };
            let window = Window {
                stride: [if apart { 1 } else { down }, 1],
                dilation: [window.dilation[0], 1],
                padding: Padding::Sides { top, bottom, left: 0, right: 0 },
                ..window
            };
            let images = Images { n, h: of_images, w: q, ..images };
            let runs = Runs {
                rows: number(n * of_images),
                runs: number(q),
                row: number(w) * channels,
                step: number(across) * channels,
                lead: number(left) * channels,
                take: number(s) * channels,
                place: number(other.c),
            };
            (Shape { images, weights: other, window }, runs)
        } else {
            let runs = number(h * w * groups);
            let runs = Runs::dense(number(n), runs, channels, number(other.c));
            (Shape { images, weights: other, window }, runs)
        };
        let pixels = number(n * p * q * groups);
        let (of_group, places) = (number(of_group), number(places));
        let by_runs = Self {
            shape,
            images: of_images,
            residual: Runs::dense(1, pixels, of_group, places),
            outputs: Runs::dense(1, pixels, places, of_group).taking(of_group),
            bias: Runs::dense(1, number(groups), 2 * of_group, 2 * places),
        };
        let all = [&by_runs.images, &by_runs.residual, &by_runs.outputs];
        let fits = all.iter().all(|runs| runs.args(DevPtr::NULL, DevPtr::NULL).is_some());
        (fits && by_runs.shape.geometry(OP).is_ok()).then_some(by_runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(
        images: [usize; 3],
        [k, c, r, s]: [usize; 4],
        groups: usize,
        window: Window,
    ) -> Option<ByRuns> {
        let [n, h, w] = images;
        let images = Images { n, h, w, layout: Layout::Nhwc };
        let weights = Packed { k, c, window: [r, s], groups };
        let wide = weights.together().in_eights();
        ByRuns::of(&Shape { images, weights, window }, (wide != weights).then_some(wide))
    }

    #[test]
    fn a_row_of_a_window_is_a_pixel_of_more_channels() {
        let layer = of([2, 224, 224], [64, 3, 7, 7], 1, Window::new(2, 3)).unwrap();
        let Shape { images, weights, window } = layer.shape;
        assert_eq!((images.n, images.h, images.w), (2, 224, 112));
        assert_eq!((weights.c, weights.window, window.stride), (24, [7, 1], [2, 1]));
        assert_eq!(layer.shape.output().unwrap(), [2, 64, 112, 112]);
        let Runs { rows, runs, row, step, lead, take, place } = layer.images;
        assert_eq!((rows, runs, row), (448, 112, 672));
        assert_eq!((step, lead, take, place), (6, 9, 21, 24));
        assert!(layer.outputs.is_there() && layer.residual.is_there() && layer.bias.is_there());
    }

    #[test]
    fn patches_are_images_where_they_are() {
        let layer = of([2, 224, 224], [768, 3, 16, 16], 1, Window::new(16, 0)).unwrap();
        let Images { n, h, w, .. } = layer.shape.images;
        assert_eq!((n, h, w, layer.shape.weights.c), (28, 16, 14, 48));
        assert_eq!(layer.shape.output().unwrap(), [28, 768, 1, 14]);
        assert!(layer.images.is_there());
        let patches = of([1, 28, 28], [65, 3, 14, 14], 1, Window::new(14, 0)).unwrap();
        assert!(!patches.images.is_there() && !patches.outputs.is_there());
        assert_eq!((patches.images.take, patches.images.place), (42, 48));
        assert_eq!(patches.shape.weights.k, 72);
    }

    #[test]
    fn what_is_in_eights_stays() {
        let plain = Window::new(1, 1);
        assert!(of([2, 9, 9], [64, 32, 3, 3], 1, plain).is_none());
        assert!(of([2, 9, 9], [36, 1, 3, 3], 36, plain).is_none());
        let outputs = of([2, 9, 9], [255, 64, 1, 1], 1, Window::new(1, 0)).unwrap();
        assert!(outputs.images.is_there());
        assert_eq!((outputs.outputs.step, outputs.outputs.place), (256, 255));
        let groups = of([2, 9, 9], [128, 4, 3, 3], 32, plain).unwrap();
        assert!(groups.images.is_there() && groups.outputs.is_there() && groups.bias.is_there());
        assert_eq!((groups.shape.weights.c, groups.shape.weights.groups), (64, 2));
        let pixels = of([2, 9, 9], [64, 33, 3, 3], 1, plain).unwrap();
        assert_eq!((pixels.images.take, pixels.images.place), (33, 40));
    }
}
