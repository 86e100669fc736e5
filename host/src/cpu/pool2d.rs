//! CPU side of [`contract::pool2d`]: a plane (channels first) or a row of outputs (channels last) a task.
#![allow(clippy::needless_range_loop, reason = "channels are indexed")]

use contract::num::DOT_PARTIALS;
use contract::pool2d::{Axis, Share, average, max};

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
        } else if whole(shape) {
            let mut partials = [[0.0; LANES]; DOT_PARTIALS];
            for (a, row) in inside(h, i) {
                for (b, column) in inside(w, j) {
                    let tap = &x[(row * width + column) * stride..];
                    let partial = &mut partials[(a * width + b) % DOT_PARTIALS];
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
        } else {
            let on = |axis: &Axis, out: usize, tap: u32| {
                let place = axis.at(out as u32, tap);
                (tap < axis.kernel && (0..axis.len as i32).contains(&place)).then_some(place as usize)
            };
            let mut sum = [0.0; LANES];
            for a in (0..h.kernel).step_by(2) {
                let mut lines = [[0.0; LANES]; 2];
                for (line, a) in lines.iter_mut().zip(a..) {
                    let Some(row) = on(h, i, a) else { continue };
                    for b in (0..w.kernel).step_by(2) {
                        let tap = |b: u32| {
                            on(w, j, b).map(|column| &x[(row * width + column) * stride..][..len])
                        };
                        // What is outside leaves a sum as it is.
                        match (tap(b), tap(b + 1)) {
                            (Some(x), Some(y)) => {
                                let pairs = x.iter().zip(y);
                                line.iter_mut()
                                    .zip(pairs)
                                    .for_each(|(sum, (x, y))| *sum += x.widen() + y.widen());
                            }
                            (Some(x), None) | (None, Some(x)) => {
                                line.iter_mut().zip(x).for_each(|(sum, x)| *sum += x.widen());
                            }
                            (None, None) => {}
                        }
                    }
                }
                for (lane, sum) in sum.iter_mut().enumerate() {
                    *sum += lines[0][lane] + lines[1][lane];
                }
            }
            let share = Share::of(count(shape, i, j));
            for (y, sum) in y.iter_mut().zip(sum) {
                *y = T::round(share.take(sum));
            }
        }
    }
}

/// Whether the one window is the image.
fn whole(shape: &Shape) -> bool {
    shape.axes.iter().all(Axis::covered)
}

vectorised! {
    /// What the windows of a row of outputs have of row `x` of the image: two and two taps. `wide` is room for a row with its padding.
    fn across<T: Float>(w: &Axis, kind: Kind, x: &[T], wide: &mut [f32], line: &mut [f32]) {
        let padding = w.padding as usize;
        let (step, apart) = (w.stride as usize, w.dilation as usize);
        for (wide, x) in wide[padding..].iter_mut().zip(x) {
            *wide = x.widen();
        }
        if kind == Kind::Max {
            line.fill(f32::NEG_INFINITY);
            for b in 0..w.kernel as usize {
                let taps = wide[b * apart..].iter().step_by(step);
                line.iter_mut().zip(taps).for_each(|(top, x)| *top = max(*top, *x));
            }
            return;
        }
        line.fill(0.0);
        for b in (0..w.kernel as usize).step_by(2) {
            let first = wide[b..].iter().step_by(step);
            if b + 1 == w.kernel as usize {
                line.iter_mut().zip(first).for_each(|(sum, x)| *sum += *x);
            } else {
                let pairs = first.zip(wide[b + 1..].iter().step_by(step));
                line.iter_mut().zip(pairs).for_each(|(sum, (x, y))| *sum += x + y);
            }
        }
    }
}

vectorised! {
    /// The windows of a plane: each row of the image is taken together once.
    fn plane<T: Float>(level: Simd, shape: &Shape, x: &[T], y: &mut [T]) {
        let [h, w] = &shape.axes;
        let (width, columns) = (w.len as usize, w.out as usize);
        let nothing = if shape.kind == Kind::Max { f32::NEG_INFINITY } else { 0.0 };
        let reach = |axis: &Axis| (axis.kernel as usize - 1) * axis.dilation as usize + 1;
        let slots = reach(h).min(h.len as usize);
        let mut lines = vec![0.0; slots * columns];
        let mut held = vec![usize::MAX; slots];
        // What is outside of the image stays as it is.
        let all = (columns - 1) * w.stride as usize + reach(w);
        let mut wide = vec![nothing; all.max(width + w.padding as usize)];
        let outside = vec![nothing; columns];
        let mut sums = vec![0.0; columns];
        for (i, y) in y.chunks_mut(columns).enumerate() {
            sums.fill(nothing);
            let row = |a: u32| {
                let row = h.at(i as u32, a);
                (a < h.kernel && (0..h.len as i32).contains(&row)).then_some(row as usize)
            };
            for a in (0..h.kernel).step_by(2) {
                let rows = [row(a), row(a + 1)];
                for row in rows.into_iter().flatten() {
                    if held[row % slots] == row {
                        continue;
                    }
                    held[row % slots] = row;
                    let line = &mut lines[row % slots * columns..][..columns];
                    across(level, w, shape.kind, &x[row * width..][..width], &mut wide, line);
                }
                let [first, second] = rows.map(|row| match row {
                    Some(row) => &lines[row % slots * columns..][..columns],
                    None => &outside[..],
                });
                let pairs = first.iter().zip(second);
                if shape.kind == Kind::Max {
                    sums.iter_mut().zip(pairs).for_each(|(s, (a, b))| *s = max(*s, max(*a, *b)));
                } else {
                    sums.iter_mut().zip(pairs).for_each(|(s, (a, b))| *s += a + b);
                }
            }
            if shape.kind == Kind::Max {
                y.iter_mut().zip(&sums).for_each(|(y, top)| *y = T::round(*top));
                continue;
            }
            let (mut taps, mut share) = (0, Share::of(1));
            for (j, (y, sum)) in y.iter_mut().zip(&sums).enumerate() {
                let count = count(shape, i, j);
                if count != taps {
                    (taps, share) = (count, Share::of(count));
                }
                *y = T::round(share.take(*sum));
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
            if whole(&shape) {
                lanes(simd, &shape, x, 1, [0; 2], y);
            } else {
                self::plane(simd, simd, &shape, x, y);
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
