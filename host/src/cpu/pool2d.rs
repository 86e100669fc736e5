//! CPU side of [`contract::pool2d`]: a channel (channels first) or a row of outputs (channels last) a task.
#![allow(clippy::needless_range_loop, reason = "channels are indexed")]

use contract::num::DOT_PARTIALS;
use contract::pool2d::{Axis, average, max};

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::Float;
use crate::ops::pool2d::Kind;

/// The windows of one pooling.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Images.
    pub n: usize,
    /// Channels.
    pub c: usize,
    /// Rows and columns.
    pub axes: [Axis; 2],
    /// What is taken.
    pub kind: Kind,
    /// Whether channels are innermost.
    pub channels_last: bool,
}

/// Channels that are taken together when they are innermost.
const LANES: usize = 16;

/// Taps inside of the image: place along the axis, for taps from the first one inside on.
#[inline(always)]
fn inside(axis: &Axis, out: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let start = axis.at(out as u32, 0);
    let (step, len) = (axis.dilation as i32, axis.len as i32);
    let first = if start < 0 { (-start + step - 1) / step } else { 0 };
    let end = ((len - start + step - 1) / step).clamp(first, (axis.kernel as i32).max(first));
    (first..end).map(move |tap| (tap as usize, (start + tap * step) as usize))
}

/// The count of an average.
fn count(shape: &Shape, i: usize, j: usize) -> u32 {
    let padded = shape.kind == Kind::Average { count_include_pad: true };
    let [h, w] = &shape.axes;
    h.taps(i as u32, padded) * w.taps(j as u32, padded)
}

vectorised! {
    /// `L` channels of one output; `x` starts at the first of them, and taps are `stride` apart.
    fn lanes<T: Float>(shape: &Shape, x: &[T], stride: usize, at: [usize; 2], y: &mut [T]) {
        let ([h, w], [i, j]) = (&shape.axes, at);
        let width = w.len as usize;
        let kernel = w.kernel as usize;
        let len = y.len();
        if shape.kind == Kind::Max {
            let mut top = [f32::NEG_INFINITY; LANES];
            for (_, row) in inside(h, i) {
                for (_, column) in inside(w, j) {
                    let tap = &x[(row * width + column) * stride..];
                    for (top, x) in top.iter_mut().zip(&tap[..len]) {
                        *top = max(*top, x.widen());
                    }
                }
            }
            for (y, top) in y.iter_mut().zip(top) {
                *y = T::round(top);
            }
        } else {
            let mut partials = [[0.0; LANES]; DOT_PARTIALS];
            for (a, row) in inside(h, i) {
                for (b, column) in inside(w, j) {
                    let tap = &x[(row * width + column) * stride..];
                    let partial = &mut partials[(a * kernel + b) % DOT_PARTIALS];
                    for (acc, x) in partial.iter_mut().zip(&tap[..len]) {
                        *acc += x.widen();
                    }
                }
            }
            let count = count(shape, i, j);
            for (lane, y) in y.iter_mut().enumerate() {
                let partials = core::array::from_fn(|p| partials[p][lane]);
                *y = T::round(average(partials, count));
            }
        }
    }
}

/// Pools `x` into `y`.
pub fn pool2d<T: Float>(threads: &Threads, simd: Simd, shape: Shape, x: &[T], y: &mut [T]) {
    let [h, w] = shape.axes;
    let image = h.len as usize * w.len as usize;
    let (rows, columns) = (h.out as usize, w.out as usize);
    if !shape.channels_last {
        threads.run_pieces(y, rows * columns, |plane, y| {
            let x = &x[plane * image..][..image];
            for (o, y) in y.iter_mut().enumerate() {
                let at = [o / columns, o % columns];
                lanes(simd, &shape, x, 1, at, std::slice::from_mut(y));
            }
        });
        return;
    }
    let c = shape.c;
    threads.run_pieces(y, columns * c, |task, y| {
        let (n, i) = (task / rows, task % rows);
        let x = &x[n * image * c..][..image * c];
        for (j, y) in y.chunks_mut(c).enumerate() {
            for (piece, y) in y.chunks_mut(LANES).enumerate() {
                lanes(simd, &shape, &x[piece * LANES..], c, [i, j], y);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::check_everywhere;
    use crate::ops::pool2d::{Kind, Layout, Pooling, Windows};
    use crate::reference::ELEMENTS;
    use crate::reference::pool2d::{Case, output_size, pool2d, square};
    use crate::selftest::Output;

    #[test]
    fn equals_the_reference_in_both_layouts() {
        let average = Kind::Average { count_include_pad: false };
        for (i, window) in [[3, 2, 1], [2, 2, 0], [5, 1, 2], [4, 3, 1]].into_iter().enumerate() {
            for kind in [Kind::Max, average] {
                let first = square([2, 19, 9, 12], Layout::Nchw, kind, window);
                let last = Pooling { layout: Layout::Nhwc, ..first };
                let global = Pooling { windows: Windows::Global, ..first };
                for pooling in [first, last, global, Pooling { windows: Windows::Global, ..last }] {
                    let mut case = Case::new(ELEMENTS[i % 3], pooling, 1);
                    case.x[100] = f32::NAN;
                    let ([h, w], Pooling { n, c, layout, .. }) = (output_size(&pooling), pooling);
                    let dims = match layout {
                        Layout::Nchw => [n, c, h, w],
                        Layout::Nhwc => [n, h, w, c],
                    };
                    check_everywhere(&case, &[Output::floats("y", &dims, &pool2d(&case))]);
                }
            }
        }
    }
}
