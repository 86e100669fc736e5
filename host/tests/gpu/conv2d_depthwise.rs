//! Depthwise convolutions of [`contract::conv2d`] against the oracle.

use bitnet_gpu::ops::conv2d::{Activation, Images, Layout, PadMode, Padding, Window};
use bitnet_gpu::ops::{Backend, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::conv2d::{Case, Extras};

use crate::conv2d::{ELEMENTS, PLAIN, check_case};
use crate::support::{generated, on_lane};

on_lane! {
    depthwise_channels_in_fours
    depthwise_planes
    depthwise_tiles
    depthwise_of_many_outputs
}

/// Windows, steps and kinds of padding for which a thread takes four channels of four outputs, and some more.
fn depthwise_channels_in_fours<B: Backend>(b: &B) {
    let modes = [PadMode::Zeros, PadMode::Reflect, PadMode::Replicate];
    for (i, (window, stride, dilation)) in [
        ([5, 5], [1, 1], [1, 1]),
        ([5, 5], [2, 2], [1, 1]),
        ([3, 5], [3, 1], [2, 1]),
        ([2, 3], [1, 2], [1, 1]),
        ([3, 3], [1, 1], [3, 1]),
        ([3, 3], [2, 1], [1, 1]),
        ([5, 5], [1, 1], [1, 2]),
        ([210, 5], [1, 1], [1, 1]),
        ([7, 7], [1, 1], [1, 1]),
        ([7, 7], [2, 2], [1, 1]),
        ([3, 7], [1, 2], [2, 1]),
        ([5, 3], [2, 2], [1, 1]),
    ]
    .into_iter()
    .enumerate()
    {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            for (l, mode) in modes.into_iter().enumerate() {
                let (channels, high) = (4 * (1 + (i + j) % 5), window[0] > 200);
                let images = Images {
                    n: 1 + (i + l) % 3,
                    h: if high { 207 } else { 5 + i },
                    w: 5 + (i + 2 * j + l) % 6,
                    layout: Layout::Nhwc,
                };
                let padding = Padding::Sides { top: 2, bottom: 4, left: 3, right: 2 + l };
                let window_of = Window { stride, dilation, padding, mode };
                let extras = Extras {
                    bias: (i + j) % 2 == 0,
                    residual: (i + l) % 2 == 0,
                    activation: Activation::ALL[(i + j + l) % 4],
                };
                let oihw = [channels, 1, window[0], window[1]];
                let seed = (100 * i + 10 * j + l) as u64;
                check_case(b, &Case::new(element, images, oihw, channels, window_of, extras, seed));
            }
        }
    }
}

/// Square windows on images in planes: rows that start at multiples of four and others, padding of half a window
/// and not, one column, one row, planes smaller than the window, pieces of a plane, channel multipliers; and what
/// the kernels for planes leave to the general one.
fn depthwise_planes<B: Backend>(b: &B) {
    let both = Padding::both;
    let sides = |top, bottom, left, right| Padding::Sides { top, bottom, left, right };
    let zeros = PadMode::Zeros;
    let check =
        |element, [n, h, w]: [usize; 3], [k, groups]: [usize; 2], side, window, extras, seed| {
            for layout in [Layout::Nchw, Layout::Nhwc] {
                let images = Images { n, h, w, layout };
                // Channels last there is a kernel like these for this window.
                if layout == Layout::Nchw || side == 5 && element == RowType::F32 {
                    let oihw = [k, 1, side, side];
                    let case = Case::new(element, images, oihw, groups, window, extras, seed);
                    check_case(b, &case);
                }
            }
        };
    for (i, (size, channels, padding)) in [
        ([2, 9, 8], [5, 5], None),
        ([1, 7, 7], [6, 3], None),
        ([3, 5, 12], [4, 4], None),
        ([1, 14, 14], [7, 7], None),
        ([1, 61, 16], [2, 2], None),
        ([2, 1, 9], [3, 3], None),
        ([2, 9, 1], [3, 1], None),
        ([1, 2, 4], [9, 9], None),
        ([1, 9, 11], [2, 2], Some(both(0, 0))),
        ([1, 8, 12], [3, 3], Some(sides(0, 7, 1, 5))),
        ([1, 8, 8], [3, 3], Some(sides(9, 1, 9, 0))),
        ([1, 8, 8], [3, 3], Some(sides(1, 1, 1, 5))),
        ([2, 10, 12], [3, 3], Some(Padding::Same)),
    ]
    .into_iter()
    .enumerate()
    {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            for side in [3, 5, 7] {
                for stride in [1, 2] {
                    let [_, h, w] = size;
                    let mut padding = padding.unwrap_or(both(side / 2, side / 2));
                    if padding == both(0, 0) && side > h.min(w) {
                        padding = Padding::Same;
                    }
                    if let Padding::Sides { top, bottom, left, right } = padding
                        && (h + top + bottom < side || w + left + right < side)
                    {
                        continue;
                    }
                    let window = Window { padding, ..Window::new(stride, 0) };
                    let extras = Extras {
                        bias: (i + j) % 2 == 0,
                        residual: (i + side / 2) % 2 == 0,
                        activation: Activation::ALL[(i + j + stride) % 4],
                    };
                    check(element, size, channels, side, window, extras, (10 * i + j) as u64);
                }
            }
        }
    }
    let plain = Window { padding: both(2, 2), ..Window::default() };
    for window in [
        Window { dilation: [2, 1], ..plain },
        Window { dilation: [1, 2], ..plain },
        Window { stride: [2, 1], ..plain },
        Window { stride: [1, 2], ..plain },
        Window { stride: [3, 3], ..plain },
        Window { mode: PadMode::Reflect, ..plain },
        Window { mode: PadMode::Replicate, ..plain },
    ] {
        let extras = Extras { bias: true, ..PLAIN };
        check(RowType::F32, [2, 9, 8], [4, 4], 3, window, extras, 1);
        check(RowType::Bf16, [1, 7, 9], [4, 2], 3, window, extras, 2);
    }
    for i in 0..generated("conv2d in planes") {
        let mut seeded = Seeded::new(15_000 + i as u64);
        let seeded = &mut seeded;
        let (side, stride) = ([3, 5, 7][seeded.below(3)], 1 + seeded.below(2));
        let four = 4 * seeded.below(2);
        let size =
            [1 + seeded.below(2), 1 + seeded.below(40), (1 + seeded.below(12)) * four.max(1)];
        let mut pad = || if four > 0 { side / 2 } else { side / 2 + seeded.below(3) };
        let padding = sides(pad(), pad(), pad(), pad());
        let window = Window { padding, mode: zeros, ..Window::new(stride, 0) };
        let groups = 1 + seeded.below(5);
        let extras = Extras {
            bias: seeded.below(2) == 0,
            residual: seeded.below(2) == 0,
            activation: Activation::ALL[seeded.below(4)],
        };
        let channels = [groups * (1 + seeded.below(2)), groups];
        check(ELEMENTS[seeded.below(3)], size, channels, side, window, extras, i as u64);
    }
}

/// Tiles of channels last: one and several, whole and not, of one piece of channels and of more than a tile has, and so many
/// that a block has several.
fn depthwise_tiles<B: Backend>(b: &B) {
    let sides = |top, bottom, left, right| Padding::Sides { top, bottom, left, right };
    let mut i = 0;
    for ([n, h, w], channels, padding) in [
        ([2, 31, 37], 40, None),
        ([1, 7, 7], 8, None),
        ([3, 14, 15], 72, None),
        ([1, 29, 8], 32, Some(sides(0, 9, 5, 1))),
        ([2, 1, 9], 24, None),
        ([1, 9, 1], 64, Some(sides(9, 2, 8, 8))),
        ([40, 30, 29], 64, None),
    ] {
        for (side, stride) in [(5, 1), (5, 2), (7, 1), (7, 2), (3, 1), (3, 2)] {
            for element in ELEMENTS {
                let many = n == 40;
                if many && (stride == 2 || (side == 7) != (element == RowType::F32)) {
                    continue;
                }
                let images = Images { n, h, w, layout: Layout::Nhwc };
                let padding = padding.unwrap_or(Padding::both(side / 2, side / 2));
                let window = Window { padding, ..Window::new(stride, 0) };
                let extras = Extras {
                    bias: i % 2 == 0,
                    residual: i % 3 == 0,
                    activation: Activation::ALL[i % 4],
                };
                i += 1;
                let oihw = [channels, 1, side, side];
                check_case(
                    b,
                    &Case::new(element, images, oihw, channels, window, extras, i as u64),
                );
            }
        }
    }
}

/// So many outputs that a thread of the 3 by 3 kernels walks down some rows of them.
fn depthwise_of_many_outputs<B: Backend>(b: &B) {
    for (i, (element, [h, w], channels, stride)) in [
        (RowType::F32, [151, 140], 16, 1),
        (RowType::F16, [103, 63], 32, 1),
        (RowType::Bf16, [127, 101], 64, 2),
        (RowType::F32, [129, 163], 64, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let images = Images { n: 1, h, w, layout: Layout::Nhwc };
        let extras = Extras { bias: i % 2 == 0, residual: i == 3, activation: Activation::ALL[i] };
        let (oihw, window) = ([channels, 1, 3, 3], Window::new(stride, 1));
        check_case(b, &Case::new(element, images, oihw, channels, window, extras, i as u64));
    }
}
