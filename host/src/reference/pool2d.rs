//! Reference for [`contract::pool2d`].

use contract::pool2d::Share;

use super::{Inputs, rounded};
use crate::ops::RowType;
use crate::ops::pool2d::{Kind, Layout, Pooling, Windows};

/// The tensors of one pooling.
#[derive(Clone, Debug)]
pub struct Case {
    /// Element type; every number below is one of it.
    pub element: RowType,
    /// The shape.
    pub pooling: Pooling,
    /// Images, in the layout of the shape.
    pub x: Vec<f32>,
}

impl Case {
    /// A seeded case.
    pub fn new(element: RowType, pooling: Pooling, seed: u64) -> Self {
        let Pooling { n, c, h, w, .. } = pooling;
        let x = Inputs::new(seed).floats(n * c * h * w, 5.0);
        Self { element, pooling, x: x.into_iter().map(|v| rounded(element, v)).collect() }
    }
}

/// A shape of sliding windows that are as high as they are wide; 1 for `dilation`, no `ceil_mode`.
pub fn square(
    [n, c, h, w]: [usize; 4],
    layout: Layout,
    kind: Kind,
    [kernel, stride, padding]: [usize; 3],
) -> Pooling {
    let windows = Windows::Sliding {
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [padding; 2],
        dilation: [1; 2],
        ceil_mode: false,
    };
    Pooling { n, c, h, w, layout, kind, windows }
}

/// Outputs along one axis, by trying every start.
fn outputs(len: usize, [kernel, stride, padding, dilation]: [usize; 4], ceil_mode: bool) -> usize {
    let reach = dilation * (kernel - 1) + 1;
    let fits = |out: &usize| {
        let start = out * stride;
        start + reach <= len + 2 * padding
            || ceil_mode && start < len + padding && (out - 1) * stride + reach < len + 2 * padding
    };
    // The first window was checked to fit.
    1 + (1..).take_while(fits).count()
}

/// Rows and columns of the output.
pub fn output_size(pooling: &Pooling) -> [usize; 2] {
    let lens = [pooling.h, pooling.w];
    match pooling.windows {
        Windows::Global => [1, 1],
        Windows::Sliding { kernel, stride, padding, dilation, ceil_mode } => {
            core::array::from_fn(|i| {
                outputs(lens[i], [kernel[i], stride[i], padding[i], dilation[i]], ceil_mode)
            })
        }
    }
}

/// Every output, from its definition.
pub fn pool2d(case: &Case) -> Vec<f32> {
    let p = &case.pooling;
    let (kernel, stride, padding, dilation) = match p.windows {
        Windows::Global => ([p.h, p.w], [1; 2], [0; 2], [1; 2]),
        Windows::Sliding { kernel, stride, padding, dilation, .. } => {
            (kernel, stride, padding, dilation)
        }
    };
    let [oh, ow] = output_size(p);
    let index = |[n, c, i, j]: [usize; 4], h: usize, w: usize| match p.layout {
        Layout::Nchw => ((n * p.c + c) * h + i) * w + j,
        Layout::Nhwc => ((n * h + i) * w + j) * p.c + c,
    };
    let mut y = vec![0.0; p.n * p.c * oh * ow];
    for (n, c, i, j) in places([p.n, p.c, oh, ow]) {
        let mut top = f32::NEG_INFINITY;
        let (mut partials, mut inside, mut padded) = ([0.0f32; 8], 0u32, 0u32);
        // Taps that are summed, zeros in the padding.
        let mut taps = vec![vec![0.0f32; kernel[1]]; kernel[0]];
        for a in 0..kernel[0] {
            for b in 0..kernel[1] {
                // Places of the padded image.
                let (u, v) = (i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1]);
                if u < p.h + 2 * padding[0] && v < p.w + 2 * padding[1] {
                    padded += 1;
                }
                let in_rows = u >= padding[0] && u < p.h + padding[0];
                if in_rows && v >= padding[1] && v < p.w + padding[1] {
                    let x = case.x[index([n, c, u - padding[0], v - padding[1]], p.h, p.w)];
                    inside += 1;
                    partials[(a * kernel[1] + b) % 8] += x;
                    taps[a][b] = x;
                    top = match (top.is_nan() || x.is_nan(), top == 0.0 && x == 0.0) {
                        (true, _) => f32::NAN,
                        // Plus zero is above minus zero.
                        (_, true) => top + x,
                        _ => top.max(x),
                    };
                }
            }
        }
        let count = match p.kind {
            Kind::Average { count_include_pad: true } => padded,
            _ => inside,
        };
        let value = if p.kind == Kind::Max {
            top
        } else if (kernel, [oh, ow]) == ([p.h, p.w], [1, 1]) && padding == [0; 2] {
            let [p0, p1, p2, p3, p4, p5, p6, p7] = partials;
            (((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7))) / count as f32
        } else {
            Share::of(count).take(pairs(taps.iter().map(|row| pairs(row.iter().copied()))))
        };
        y[index([n, c, i, j], oh, ow)] = rounded(case.element, value);
    }
    y
}

/// The sum of the sums of two and two, of which the last may be one.
fn pairs(values: impl Iterator<Item = f32>) -> f32 {
    let values: Vec<_> = values.collect();
    values.chunks(2).map(|pair| pair.iter().sum::<f32>()).fold(0.0, |sum, pair| sum + pair)
}

fn places([n, c, h, w]: [usize; 4]) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..n * c * h * w).map(move |i| (i / w / h / c, i / w / h % c, i / w % h, i % w))
}
