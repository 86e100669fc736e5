//! [`contract::pool2d`]: maxima and averages, windows of every kind, both layouts.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::pool2d::{Kind, Layout, Pool2d, Pooling, Windows};
use bitnet_gpu::reference::pool2d::{output_size, pool2d, square};
use bitnet_gpu::reference::{ELEMENTS, Inputs as Seeded, rounded};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::pool2d::Inputs;
use contract::pool2d::MAX_SIDE;

use crate::support::{check, dimension, generated, on_lane, refused, short, zeros};

on_lane! {
    listed_shapes
    sizes_of_known_outputs
    unusual_values
    many_images
    pieces_of_channels
    tiles_of_large_windows
    tiles_of_planes
    windows_by_axes
    rows_longer_than_a_strip
    generated_shapes
    refusals
}

const AVERAGE: Kind = Kind::Average { count_include_pad: false };
const PADDED: Kind = Kind::Average { count_include_pad: true };
const LAYOUTS: [Layout; 2] = [Layout::Nchw, Layout::Nhwc];

fn check_case<B: Backend>(b: &B, inputs: &Inputs) {
    let Pooling { n, c, layout, .. } = inputs.pooling;
    let [h, w] = output_size(&inputs.pooling);
    let dims = match layout {
        Layout::Nchw => [n, c, h, w],
        Layout::Nhwc => [n, h, w, c],
    };
    let expected = [Output::floats("y", &dims, &pool2d(inputs))];
    check(b, inputs, &expected, format!("{:?} {:?}", inputs.element, inputs.pooling));
}

/// What networks use, and whole images.
fn listed_shapes<B: Backend>(b: &B) {
    for layout in LAYOUTS {
        for element in ELEMENTS {
            for dims in [
                [2, 3, 9, 7],
                [1, 16, 14, 15],
                [3, 1, 1, 5],
                [1, 24, 7, 7],
                [1, 5, 40, 33],
                [2, 3, 9, 24],
                [1, 2, 1, 8],
                [1, 3, 13, 56],
            ] {
                for kind in [Kind::Max, AVERAGE, PADDED] {
                    for window in [[1, 1, 0], [2, 2, 0], [3, 2, 1], [3, 1, 1], [5, 3, 2]] {
                        let pooling = square(dims, layout, kind, window);
                        if pooling.axes().is_ok() {
                            check_case(b, &Inputs::new(element, pooling, 1));
                        }
                    }
                    let shape = square(dims, layout, kind, [1, 1, 0]);
                    let pooling = Pooling { windows: Windows::Global, ..shape };
                    check_case(b, &Inputs::new(element, pooling, 2));
                }
            }
        }
    }
}

/// `(len, kernel, stride, padding, dilation, ceil_mode)` and the outputs that PyTorch gives.
fn sizes_of_known_outputs<B: Backend>(_: &B) {
    for (len, kernel, stride, padding, dilation, ceil_mode, outputs) in [
        (112, 3, 2, 1, 1, false, 56),
        (112, 3, 2, 1, 1, true, 57),
        (7, 2, 2, 0, 1, false, 3),
        (7, 2, 2, 0, 1, true, 4),
        (6, 3, 2, 0, 1, true, 3),
        (4, 2, 4, 1, 1, true, 2),
        (3, 2, 3, 1, 1, true, 2),
        (5, 3, 1, 1, 2, false, 3),
        (1, 1, 3, 0, 1, true, 1),
    ] {
        let windows = Windows::Sliding {
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [padding; 2],
            dilation: [dilation; 2],
            ceil_mode,
        };
        let layout = Layout::Nchw;
        let pooling = Pooling { n: 1, c: 1, h: len, w: len, layout, kind: Kind::Max, windows };
        let [h, w] = pooling.axes().expect("a shape");
        assert_eq!([h.out, w.out], [outputs; 2], "{pooling:?}");
        assert_eq!(output_size(&pooling), [outputs as usize; 2], "{pooling:?}");
    }
}

fn unusual_values<B: Backend>(b: &B) {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-42, f32::MAX];
    for layout in LAYOUTS {
        for element in ELEMENTS {
            for kind in [Kind::Max, AVERAGE] {
                for window in [[3, 2, 1], [2, 1, 0]] {
                    let sliding = square([2, 8, 9, 9], layout, kind, window);
                    for pooling in [sliding, Pooling { windows: Windows::Global, ..sliding }] {
                        let mut inputs = Inputs::new(element, pooling, 3);
                        for (i, value) in odd.into_iter().enumerate() {
                            inputs.x[i * 211 + 5] = rounded(element, value);
                        }
                        check_case(b, &inputs);
                        inputs.x.fill(f32::NEG_INFINITY);
                        check_case(b, &inputs);
                    }
                }
            }
        }
    }
}

/// More images than a grid has blocks on its second axis.
fn many_images<B: Backend>(b: &B) {
    for layout in LAYOUTS {
        let sliding = square([70_001, 1, 2, 2], layout, Kind::Max, [2, 1, 0]);
        check_case(b, &Inputs::new(ELEMENTS[0], sliding, 4));
        let pooling = Pooling { windows: Windows::Global, kind: AVERAGE, ..sliding };
        check_case(b, &Inputs::new(ELEMENTS[2], pooling, 4));
    }
    // So many channels that a thread has 16 bytes of them, where they are last; of others a word, or an element.
    for (i, (n, c)) in [(16, 1024), (20, 1040), (3, 40), (2, 7)].into_iter().enumerate() {
        for (element, kind) in ELEMENTS.into_iter().zip([AVERAGE, Kind::Max, AVERAGE]) {
            let shape = square([n, c, 3 + 20 * (i / 2), 4], Layout::Nhwc, kind, [1, 1, 0]);
            let pooling = Pooling { windows: Windows::Global, ..shape };
            check_case(b, &Inputs::new(element, pooling, 6));
        }
    }
    // So many that each belongs to a lane: too large for eight lanes, aligned to 16 bytes and not, and as long as shared memory is wide.
    for (element, kind, [h, w]) in [
        (0, AVERAGE, [18, 18]),
        (1, Kind::Max, [8, 8]),
        (2, AVERAGE, [27, 25]),
        (2, Kind::Max, [8, 16]),
    ] {
        let shape = square([1 << 12, 8, h, w], Layout::Nchw, kind, [1, 1, 0]);
        let pooling = Pooling { windows: Windows::Global, ..shape };
        check_case(b, &Inputs::new(ELEMENTS[element], pooling, 5));
    }
    // Too few for that: four, two and one of a warp.
    for (element, kind, dims) in [
        (0, AVERAGE, [1 << 11, 8, 18, 18]),
        (1, AVERAGE, [521, 8, 27, 25]),
        (2, Kind::Max, [520, 8, 27, 25]),
        (2, AVERAGE, [1, 3, 150, 131]),
        (1, Kind::Max, [1, 2, 64, 64]),
    ] {
        let shape = square(dims, Layout::Nchw, kind, [1, 1, 0]);
        let pooling = Pooling { windows: Windows::Global, ..shape };
        check_case(b, &Inputs::new(ELEMENTS[element], pooling, 5));
    }
}

/// Channels last, in pieces of every size.
fn pieces_of_channels<B: Backend>(b: &B) {
    for (i, c) in [4, 6, 7, 12, 18, 24, 33, 72].into_iter().enumerate() {
        for element in ELEMENTS {
            let kind = [Kind::Max, AVERAGE, PADDED][i % 3];
            for window in [
                [1, 2, 0],
                [2, 1, 0],
                [2, 2, 1],
                [3, 1, 1],
                [3, 2, 1],
                [3, 4, 0],
                [5, 1, 2],
                [4, 3, 2],
            ] {
                let pooling = square([2, c, 11, 10], Layout::Nhwc, kind, window);
                check_case(b, &Inputs::new(element, pooling, 6));
            }
            for [h, w] in [[3, 3], [1, 9], [2, 4], [4, 4], [7, 7], [9, 15]] {
                let shape = square([3, c, h, w], Layout::Nhwc, kind, [1, 1, 0]);
                let pooling = Pooling { windows: Windows::Global, ..shape };
                check_case(b, &Inputs::new(element, pooling, 7));
            }
        }
    }
}

/// Windows that share taps with channels last: one band and several, whole and not, of one part of a column and of several, of one piece of
/// channels and of more than a band has.
fn tiles_of_large_windows<B: Backend>(b: &B) {
    for (i, window) in [
        [5, 1, 2],
        [5, 2, 2],
        [7, 1, 3],
        [7, 2, 3],
        [5, 1, 0],
        [7, 2, 1],
        [3, 1, 1],
        [6, 2, 2],
        [4, 4, 0],
        [9, 1, 4],
        [13, 1, 5],
        [6, 2, 3],
    ]
    .into_iter()
    .enumerate()
    {
        for (j, dims) in
            [[2, 40, 31, 37], [1, 8, 7, 5], [3, 72, 12, 34], [1, 16, 20, 8], [150, 72, 14, 9]]
                .into_iter()
                .enumerate()
        {
            for (l, kind) in [Kind::Max, AVERAGE, PADDED].into_iter().enumerate() {
                let element = ELEMENTS[(i + j + l) % 3];
                let mut pooling = square(dims, Layout::Nhwc, kind, window);
                if let Windows::Sliding { ceil_mode, .. } = &mut pooling.windows {
                    *ceil_mode = j % 2 == 1;
                }
                let mut inputs = Inputs::new(element, pooling, 8);
                if pooling.axes().is_ok() {
                    check_case(b, &inputs);
                    for (at, value) in [f32::NAN, f32::NEG_INFINITY, -0.0].into_iter().enumerate() {
                        inputs.x[at * 97 + 11] = value;
                    }
                    check_case(b, &inputs);
                    inputs.x.fill(-0.0);
                    check_case(b, &inputs);
                }
            }
        }
    }
}

/// Windows over rows that are innermost: several planes a tile, one, a part of one; widths of every remainder, so that rows start
/// anywhere in a word; rows that are longer than a tile; steps and distances without a form of their own. Each window over each kind of
/// planes once, with one element and one kind, which change from one to the next: all of them were 672 launches.
fn tiles_of_planes<B: Backend>(b: &B) {
    for (i, window) in [
        [5, 1, 2],
        [7, 1, 3],
        [3, 1, 1],
        [2, 2, 0],
        [5, 2, 2],
        [7, 2, 3],
        [13, 1, 6],
        [9, 2, 4],
        [4, 4, 0],
        [3, 3, 1],
        [16, 1, 8],
        [13, 13, 0],
        [3, 2, 0],
        [11, 1, 5],
        [6, 2, 2],
        [4, 2, 1],
        [8, 8, 0],
    ]
    .into_iter()
    .enumerate()
    {
        for (j, dims) in [
            [2, 5, 28, 48],
            [2, 3, 31, 37],
            [1, 70, 13, 16],
            [3, 1, 150, 131],
            [1, 2, 18, 34],
            [1, 1, 21, 2201],
            [610, 1, 13, 13],
            [1210, 1, 13, 7],
            [3, 5, 16, 40],
            [3, 3, 19, 64],
        ]
        .into_iter()
        .enumerate()
        {
            let kind = [Kind::Max, AVERAGE, PADDED][(i + j) % 3];
            let mut pooling = square(dims, Layout::Nchw, kind, window);
            if let Windows::Sliding { ceil_mode, dilation, .. } = &mut pooling.windows {
                *ceil_mode = j % 2 == 1;
                *dilation = [1 + usize::from(kind == Kind::Max && i + j == 9); 2];
            }
            if pooling.axes().is_err() {
                continue;
            }
            let mut inputs = Inputs::new(ELEMENTS[(i + j / 3) % 3], pooling, 9);
            for (at, value) in [f32::NAN, f32::NEG_INFINITY, -0.0].into_iter().enumerate() {
                inputs.x[at * 97 + 11] = value;
            }
            check_case(b, &inputs);
        }
    }
}

/// Windows of any kind, one axis after the other: both layouts, one tile and several, steps, distances and sides that differ.
fn windows_by_axes<B: Backend>(b: &B) {
    for (i, (kernel, stride, padding, dilation)) in [
        ([9, 9], [1, 1], [4, 4], 1),
        ([13, 13], [1, 1], [6, 6], 1),
        ([4, 4], [4, 4], [0, 0], 1),
        ([5, 7], [1, 2], [2, 3], 1),
        ([1, 9], [1, 1], [0, 4], 1),
        ([6, 5], [3, 1], [3, 0], 1),
        ([8, 4], [2, 5], [1, 2], 1),
        ([4, 5], [1, 1], [3, 2], 2),
        ([7, 10], [2, 2], [3, 0], 1),
        ([12, 5], [2, 1], [6, 2], 1),
        ([2, 2], [1, 1], [1, 0], 1),
    ]
    .into_iter()
    .enumerate()
    {
        for (j, (n, c, h, w)) in
            [(2, 40, 31, 29), (1, 8, 18, 15), (3, 16, 14, 47), (1, 72, 16, 100)]
                .into_iter()
                .enumerate()
        {
            for layout in LAYOUTS {
                let kind = [Kind::Max, AVERAGE, PADDED][if dilation > 1 { 0 } else { (i + j) % 3 }];
                let ceil_mode = j % 2 == 1;
                let dilation = [dilation; 2];
                let windows = Windows::Sliding { kernel, stride, padding, dilation, ceil_mode };
                let pooling = Pooling { n, c, h, w, layout, kind, windows };
                if pooling.axes().is_err() {
                    continue;
                }
                let mut inputs = Inputs::new(ELEMENTS[(i + j / 2) % 3], pooling, 12);
                for (at, value) in [f32::NAN, f32::NEG_INFINITY, -0.0].into_iter().enumerate() {
                    inputs.x[at * 97 + 11] = value;
                }
                check_case(b, &inputs);
            }
        }
    }
}

/// Rows in whole pieces, too long for a strip: the usual windows are made otherwise.
fn rows_longer_than_a_strip<B: Backend>(b: &B) {
    for (element, width) in ELEMENTS.into_iter().zip([4112, 8208, 8208]) {
        for kind in [Kind::Max, AVERAGE, PADDED] {
            for window in [[3, 1, 1], [3, 2, 1], [2, 2, 0], [5, 1, 2]] {
                let pooling = square([1, 2, 5, width], Layout::Nchw, kind, window);
                check_case(b, &Inputs::new(element, pooling, 11));
            }
        }
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("pool2d") {
        let mut seeded = Seeded::new(4500 + i as u64);
        let kind = [Kind::Max, AVERAGE, PADDED][seeded.below(3)];
        let side = |seeded: &mut Seeded| 1 + seeded.below(24);
        let (n, c) = (1 + seeded.below(3), [1, 3, 8, 16, 20, 40][seeded.below(6)]);
        let (h, mut w) = (side(&mut seeded), side(&mut seeded));
        let mut pair = |from: usize, end: usize| [(); 2].map(|()| from + seeded.below(end));
        let (mut kernel, mut stride) = (pair(1, 6), pair(1, 4));
        let mut dilation = if kind == Kind::Max { pair(1, 3) } else { [1; 2] };
        // Some in tiles, where channels are last.
        if i % 4 == 1 {
            (kernel, stride, dilation) = ([5 + i / 4 % 2 * 2; 2], [1 + i / 8 % 2; 2], [1; 2]);
        }
        // Every third: the usual windows over rows in pieces.
        if i % 3 == 0 {
            let usual = [[3, 2], [3, 1], [2, 2]][i / 3 % 3];
            (kernel, stride[1], dilation, w) = ([usual[0]; 2], usual[1], [1; 2], 8 * w.div_ceil(3));
        }
        let reach = |i: usize| dilation[i] * (kernel[i] - 1) + 1;
        let wide = pair(0, 8);
        let mut padding = [wide[0] % (reach(0) / 2 + 1), wide[1] % (reach(1) / 2 + 1)];
        if i % 3 == 0 {
            padding[1] = kernel[1] - 2;
        }
        let ceil_mode = seeded.below(2) == 1;
        let windows = match seeded.below(5) {
            0 => Windows::Global,
            _ => Windows::Sliding { kernel, stride, padding, dilation, ceil_mode },
        };
        let layout = LAYOUTS[seeded.below(2)];
        let mut pooling = Pooling { n, c, h, w, layout, kind, windows };
        if pooling.axes().is_err() {
            // The window is larger than the image: an image that holds it.
            (pooling.h, pooling.w) = (h + reach(0), w + reach(1));
        }
        check_case(b, &Inputs::new(ELEMENTS[seeded.below(3)], pooling, seeded.bits()));
    }
}

fn refusals<B: Backend>(b: &B) {
    let shape = square([2, 3, 8, 8], Layout::Nchw, Kind::Max, [3, 2, 1]);
    let [inputs, outputs] = shape.lens().expect("a shape");
    let (x, y) = (&zeros::<B, f32>(b, inputs), &mut zeros::<B, f32>(b, outputs));
    let (few, less) = (&mut zeros::<B, f32>(b, outputs - 1), &zeros::<B, f32>(b, inputs - 1));
    refused!(short("x"), b.pool2d(Pool2d { pooling: shape, x: less, y }));
    refused!(short("y"), b.pool2d(Pool2d { pooling: shape, x, y: few }));
    let sliding = |kernel, stride, padding, dilation| Windows::Sliding {
        kernel: [3, kernel],
        stride: [2, stride],
        padding: [1, padding],
        dilation: [1, dilation],
        ceil_mode: false,
    };
    for (bad, pooling) in [
        ("n", Pooling { n: 0, ..shape }),
        ("c", Pooling { c: 0, ..shape }),
        ("h", Pooling { h: 0, ..shape }),
        ("w", Pooling { w: MAX_SIDE + 1, ..shape }),
        ("kernel", Pooling { windows: sliding(0, 2, 0, 1), ..shape }),
        ("stride", Pooling { windows: sliding(3, 0, 1, 1), ..shape }),
        ("dilation", Pooling { windows: sliding(3, 2, 1, 0), ..shape }),
        ("padding", Pooling { windows: sliding(3, 2, 2, 1), ..shape }),
        ("window", Pooling { windows: sliding(9, 2, 0, 1), ..shape }),
        ("window", Pooling { windows: sliding(3, 2, 1, MAX_SIDE), ..shape }),
        ("dilation", Pooling { windows: sliding(3, 2, 1, 2), kind: AVERAGE, ..shape }),
    ] {
        refused!(dimension(bad), b.pool2d(Pool2d { pooling, x, y }));
    }
}
