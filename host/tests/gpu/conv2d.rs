//! [`contract::conv2d`] against the oracle.

use bitnet_gpu::ops::conv2d::{
    Activation, Conv2d, Conv2dWeights, Images, Layout, PadMode, Padding, Window, tensor_core_bound,
};
use bitnet_gpu::ops::{Backend, Math, OpError, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::conv2d::{Case, Extras, WholeCase, test_shapes};
use bitnet_gpu::selftest::RunError;
use bitnet_gpu::selftest::conv2d::{Inputs, WholeInputs};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    special_values
    weights_that_are_not_finite_meet_the_padding
    a_batch_has_the_bits_of_its_images
    generated_shapes
    whole_numbers_are_exact_on_tensor_cores
    lines_of_channels_in_eights
    squares_of_channels_in_eights
    tensor_cores_stay_within_their_bound
    whole_numbers
    ternaries_of_channels_in_128s
    ternaries_by_strips
    scales_that_are_not_ordinary
    no_images
    weights_are_refused
    refusals
}

pub(crate) const ELEMENTS: [RowType; 3] = [RowType::F32, RowType::F16, RowType::Bf16];

pub(crate) fn check_case<B: Backend>(b: &B, case: &Case) {
    let inputs = Inputs::exact(case);
    let what = format!(
        "{} {:?} {:?} groups={} {:?}",
        case.element.name(),
        case.images,
        case.oihw,
        case.groups,
        case.window
    );
    check(b, &inputs, &inputs.expected(), what);
}

fn listed_shapes<B: Backend>(b: &B) {
    for (i, (images, oihw, groups, window)) in test_shapes().into_iter().enumerate() {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            let extras = Extras {
                bias: (i + j) % 2 == 0,
                residual: (i + j) % 3 == 0,
                activation: Activation::ALL[(i + j) % 4],
            };
            check_case(b, &Case::new(element, images, oihw, groups, window, extras, i as u64));
        }
    }
}

pub(crate) const PLAIN: Extras =
    Extras { bias: false, residual: false, activation: Activation::None };

/// A case whose inputs hold `values` here and there.
fn sprinkled(
    element: RowType,
    oihw: [usize; 4],
    groups: usize,
    layout: Layout,
    values: &[f32],
) -> Case {
    let images = Images { n: 1, h: 7, w: 6, layout };
    let extras = Extras { bias: true, ..PLAIN };
    let mut case = Case::new(element, images, oihw, groups, Window::new(1, 1), extras, 9);
    for (i, &value) in values.iter().enumerate() {
        let (x, w) = (i * 53 % case.x.len(), i * 17 % case.w.len());
        case.x[x] = value;
        case.w[w] = value;
    }
    case
}

fn special_values<B: Backend>(b: &B) {
    let inf = f32::INFINITY;
    for values in [
        &[-0.0, 0.0, -0.0][..],
        &[f32::NAN],
        &[inf, -inf],
        &[1e-40, -1e-40, 1e-45],
        &[3e38, -3e38, 65504.0, -65504.0],
    ] {
        for element in ELEMENTS {
            for (oihw, groups) in [
                ([5, 3, 3, 3], 1),
                ([8, 4, 3, 3], 1),
                ([8, 1, 3, 3], 8),
                ([3, 1, 3, 3], 3),
                ([4, 1, 7, 7], 4),
            ] {
                for layout in [Layout::Nhwc, Layout::Nchw] {
                    let mut case = sprinkled(element, oihw, groups, layout, values);
                    let round =
                        |x: &mut f32| *x = bitnet_gpu::reference::conv2d::rounded(element, *x);
                    case.x.iter_mut().chain(&mut case.w).for_each(round);
                    check_case(b, &case);
                }
            }
        }
    }
    // Sums that underflow to -0, which a padded step must leave alone.
    let images = Images { n: 1, h: 2, w: 2, layout: Layout::Nhwc };
    for oihw in [[3, 5, 1, 1], [3, 4, 1, 1], [3, 1025, 1, 1], [3, 1, 1, 1]] {
        let mut case = Case::new(RowType::F32, images, oihw, 1, Window::default(), PLAIN, 1);
        case.x.fill(1e-30);
        case.w.fill(-1e-30);
        check_case(b, &case);
    }
}

/// A tap in the padding is a term: `0 * inf` is NaN there, as on an image padded beforehand.
fn weights_that_are_not_finite_meet_the_padding<B: Backend>(b: &B) {
    let (nhwc, nchw) = (Layout::Nhwc, Layout::Nchw);
    for (layout, w, oihw, groups) in [
        (nhwc, 3, [2, 4, 3, 3], 1),
        (nhwc, 3, [4, 1, 3, 3], 4),
        (nhwc, 3, [3, 1, 3, 3], 3),
        (nchw, 3, [3, 1, 3, 3], 3),
        (nchw, 4, [3, 1, 3, 3], 3),
    ] {
        let images = Images { n: 1, h: 3, w, layout };
        let mut case = Case::new(RowType::F32, images, oihw, groups, Window::new(1, 1), PLAIN, 3);
        // Tap (0, 0) of channel 0: outside for the first row and column.
        case.w[0] = f32::INFINITY;
        case.x.iter_mut().for_each(|x| *x = x.abs() + 0.5);
        let inputs = Inputs::exact(&case);
        let expected = inputs.expected();
        let nan = |place: usize| f32::from_bits(expected[0].bits[place]).is_nan();
        let middle = if layout == nhwc { 4 * oihw[0] } else { w + 1 };
        assert!(nan(0) && !nan(middle), "the oracle says so itself");
        check(b, &inputs, &expected, "padding");
    }
}

fn a_batch_has_the_bits_of_its_images<B: Backend>(b: &B) {
    let window = Window::new(1, 1);
    for (oihw, n) in [([64, 16, 3, 3], 40), ([4, 1, 3, 3], 40)] {
        let groups = if oihw[1] == 1 { oihw[0] } else { 1 };
        let images = Images { n, h: 14, w: 14, layout: Layout::Nhwc };
        let whole = Case::new(RowType::F32, images, oihw, groups, window, PLAIN, 5);
        let found = bitnet_gpu::selftest::run(b, &Inputs::exact(&whole)).expect("a batch runs");
        let (x_len, y_len) = (whole.x.len() / n, whole.output_len() / n);
        for image in [0, n - 1] {
            let one = Images { n: 1, ..images };
            let case = Case {
                images: one,
                x: whole.x[image * x_len..][..x_len].to_vec(),
                ..whole.clone()
            };
            let alone = bitnet_gpu::selftest::run(b, &Inputs::exact(&case)).expect("it runs");
            assert_eq!(alone[0].bits, found[0].bits[image * y_len..][..y_len], "{oihw:?} {image}");
        }
    }
}

/// A window and images of any kind that is allowed.
fn any_case(seeded: &mut Seeded, i: u64) -> Case {
    let element = ELEMENTS[seeded.below(3)];
    let layout = [Layout::Nhwc, Layout::Nhwc, Layout::Nchw][seeded.below(3)];
    let (groups, k, c) = match seeded.below(4) {
        0 => {
            let groups = size(seeded, 70);
            (groups, groups * (1 + seeded.below(2)), 1)
        }
        1 => {
            let groups = 1 + seeded.below(4);
            (groups, groups * size(seeded, 20), size(seeded, 12))
        }
        _ => (1, size(seeded, 140), size(seeded, 150)),
    };
    let window = match seeded.below(3) {
        0 => [1, 1],
        1 => [3, 3],
        _ => [1 + seeded.below(5), 1 + seeded.below(5)],
    };
    let mut images =
        Images { n: 1 + seeded.below(3), h: size(seeded, 30), w: size(seeded, 30), layout };
    let mode =
        [PadMode::Zeros, PadMode::Zeros, PadMode::Reflect, PadMode::Replicate][seeded.below(4)];
    let dilation =
        if seeded.below(3) == 0 { [1 + seeded.below(3), 1 + seeded.below(3)] } else { [1, 1] };
    let stride =
        if seeded.below(2) == 0 { [1, 1] } else { [1 + seeded.below(4), 1 + seeded.below(4)] };
    // Large in few directions at a time: the oracle is plain loops.
    while images.n * images.h * images.w * k * (c * window[0] * window[1]) > 250_000 {
        (images.h, images.w, images.n) = (images.h.div_ceil(2), images.w.div_ceil(2), 1);
        if images.h * images.w == 1 {
            break;
        }
    }
    let mut pad = |i: usize, size: usize| {
        let spans = (window[i] - 1) * dilation[i] + 1;
        let reach = if mode == PadMode::Reflect { size } else { spans + 3 };
        seeded.below(reach)
    };
    let (top, bottom) = (pad(0, images.h), pad(0, images.h));
    let (left, right) = (pad(1, images.w), pad(1, images.w));
    let mut padding = Padding::Sides { top, bottom, left, right };
    if mode != PadMode::Reflect && seeded.below(4) == 0 {
        padding = Padding::Same;
    }
    let spans = |i: usize| (window[i] - 1) * dilation[i] + 1;
    if padding != Padding::Same {
        // The window has to fit.
        images.h = images.h.max(spans(0).saturating_sub(top + bottom)).max(1);
        images.w = images.w.max(spans(1).saturating_sub(left + right)).max(1);
    }
    let window_of = Window { stride, dilation, padding, mode };
    let extras = Extras {
        bias: seeded.below(2) == 0,
        residual: seeded.below(2) == 0,
        activation: Activation::ALL[seeded.below(4)],
    };
    Case::new(element, images, [k, c, window[0], window[1]], groups, window_of, extras, i)
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("conv2d") {
        let mut seeded = Seeded::new(11_000 + i as u64);
        check_case(b, &any_case(&mut seeded, i as u64));
    }
}

/// Sums that are exact in any order have the bits of the one arithmetic on tensor cores too.
fn whole_numbers_are_exact_on_tensor_cores<B: Backend>(b: &B) {
    let check = |case: Case| {
        let inputs = Inputs { case: case.whole(), math: Math::TensorCore, kernel: None };
        let what =
            format!("{:?} {:?} {:?}", inputs.case.images, inputs.case.oihw, inputs.case.window);
        check(b, &inputs, &inputs.expected(), what);
    };
    for (i, (images, oihw, groups, window)) in test_shapes().into_iter().enumerate() {
        for (j, element) in ELEMENTS.into_iter().enumerate() {
            let extras = Extras {
                bias: (i + j) % 2 == 0,
                residual: (i + j) % 3 == 0,
                activation: Activation::ALL[(i + j) % 4],
            };
            check(Case::new(element, images, oihw, groups, window, extras, i as u64));
        }
    }
    for i in 0..generated("conv2d on tensor cores") {
        let mut seeded = Seeded::new(12_000 + i as u64);
        let mut case = any_case(&mut seeded, i as u64);
        case.element = ELEMENTS[1 + i % 2];
        check(case);
    }
}

/// What the kernels in lines take: channels in eights, zeros around, steps of 1 and 2, a few dilated.
fn lines_of_channels_in_eights<B: Backend>(b: &B) {
    for i in 0..generated("conv2d in lines") {
        let mut seeded = Seeded::new(14_000 + i as u64);
        let seeded = &mut seeded;
        let groups = [1, 1, 1, 2][seeded.below(4)];
        let c = if groups == 2 { 64 } else { 8 * (5 + seeded.below(9)) };
        let side = |seeded: &mut Seeded| 1 + seeded.below(5);
        let (window, stride) = ([1 + side(seeded) % 4, side(seeded)], 1 + seeded.below(2));
        let dilation = if stride == 1 { 1 + seeded.below(2) } else { 1 };
        let images = Images {
            n: 1 + seeded.below(3),
            h: 1 + seeded.below(7) + (window[0] - 1) * dilation,
            w: 1 + seeded.below(7) + (window[1] - 1) * dilation,
            layout: Layout::Nhwc,
        };
        let mut pad = || seeded.below(4);
        let padding = Padding::Sides { top: pad(), bottom: pad(), left: pad(), right: pad() };
        let window_of =
            Window { stride: [stride; 2], dilation: [dilation; 2], padding, mode: PadMode::Zeros };
        let most = if seeded.below(8) == 0 { 140 } else { 20 };
        let k = groups * (1 + seeded.below(most));
        let extras = Extras {
            bias: seeded.below(2) == 0,
            residual: seeded.below(2) == 0,
            activation: Activation::ALL[seeded.below(4)],
        };
        let (element, oihw) = (ELEMENTS[1 + i % 2], [k, c, window[0], window[1]]);
        let case = Case::new(element, images, oihw, groups, window_of, extras, i as u64).whole();
        let what = format!("{element:?} {images:?} {oihw:?} groups={groups} {window_of:?}");
        let inputs = Inputs { case, math: Math::TensorCore, kernel: None };
        check(b, &inputs, &inputs.expected(), what);
    }
}

/// What the kernels by square tiles take, each by its name: channels and output channels in eights, zeros around.
fn squares_of_channels_in_eights<B: Backend>(b: &B) {
    for i in 0..generated("conv2d by square tiles") {
        let mut seeded = Seeded::new(15_000 + i as u64);
        let seeded = &mut seeded;
        let groups = [1, 1, 1, 2][seeded.below(4)];
        let c = if groups == 2 { 64 } else { 8 * (1 + seeded.below(17)) };
        let window = if seeded.below(2) == 0 { [1; 2] } else { [1 + seeded.below(3), 3] };
        let (stride, dilation) = ([1, 1, 2, 3][seeded.below(4)], 1 + seeded.below(2));
        let images = Images {
            n: 1 + seeded.below(3),
            h: 1 + seeded.below(9) + (window[0] - 1) * dilation,
            w: 1 + seeded.below(9) + (window[1] - 1) * dilation,
            layout: Layout::Nhwc,
        };
        let mut pad = || seeded.below(3);
        let padding = Padding::Sides { top: pad(), bottom: pad(), left: pad(), right: pad() };
        let window_of =
            Window { stride: [stride; 2], dilation: [dilation; 2], padding, mode: PadMode::Zeros };
        let k = groups * 8 * (1 + seeded.below(20));
        let extras = Extras {
            bias: seeded.below(2) == 0,
            residual: seeded.below(2) == 0,
            activation: Activation::ALL[seeded.below(2)],
        };
        let (element, oihw) = (ELEMENTS[1 + i % 2], [k, c, window[0], window[1]]);
        let case = Case::new(element, images, oihw, groups, window_of, extras, i as u64).whole();
        let names = match element {
            RowType::Bf16 => {
                ["conv2d_points_bf16", "conv2d_points_narrow_bf16", "conv2d_points_whole_bf16"]
            }
            _ => ["conv2d_points_f16", "conv2d_points_narrow_f16", "conv2d_points_whole_f16"],
        };
        let kernel = Some(names[i / 2 % 3]).filter(|&symbol| crate::lane::has(symbol));
        let what = format!("{kernel:?} {images:?} {oihw:?} groups={groups} {window_of:?}");
        let inputs = Inputs { case, math: Math::TensorCore, kernel };
        check(b, &inputs, &inputs.expected(), what);
    }
}

fn tensor_cores_stay_within_their_bound<B: Backend>(b: &B) {
    for (i, (element, half_step)) in
        [(RowType::F16, 2f64.powi(-11)), (RowType::Bf16, 2f64.powi(-8))].into_iter().enumerate()
    {
        for (j, (oihw, size)) in
            [([40, 64, 3, 3], 9), ([72, 520, 3, 3], 5), ([64, 3, 7, 7], 17), ([130, 256, 1, 1], 8)]
                .into_iter()
                .enumerate()
        {
            let images = Images { n: 2, h: size, w: size, layout: Layout::Nhwc };
            let extras = Extras { bias: true, residual: true, activation: Activation::None };
            let seed = (10 * i + j) as u64;
            let case = Case::new(element, images, oihw, 1, Window::new(1, 1), extras, seed);
            let inputs = Inputs { case, math: Math::TensorCore, kernel: None };
            let found = bitnet_gpu::selftest::run(b, &inputs).expect("it runs");
            let terms = oihw[1] * oihw[2] * oihw[3];
            for (place, &(value, magnitude)) in inputs.case.wide().iter().enumerate() {
                let y = f64::from(f32::from_bits(found[0].bits[place]));
                // The sum; bias and residual, each sum rounded; the last rounding.
                let sum = tensor_core_bound(terms, magnitude);
                let epilogue = (value.abs() + sum + 6.0) * 2f64.powi(-23);
                let bound = (sum + epilogue) * (1.0 + half_step) + value.abs() * half_step;
                assert!((y - value).abs() <= bound, "{oihw:?} {place}: {y} {value} {bound}");
            }
        }
    }
}

/// int8 and ternary weights: exact on every kernel.
fn whole_numbers<B: Backend>(b: &B) {
    let check = |case: &Case, seed| {
        for ternary in [false, true] {
            let inputs =
                WholeInputs { whole: WholeCase::new(case.clone(), ternary, seed), kernel: None };
            let what =
                format!("ternary={ternary} {:?} {:?} {:?}", case.images, case.oihw, case.window);
            check(b, &inputs, &inputs.expected(), what);
        }
    };
    for (i, (images, oihw, groups, window)) in test_shapes().into_iter().enumerate() {
        let extras =
            Extras { bias: i % 2 == 0, residual: i % 3 == 0, activation: Activation::ALL[i % 4] };
        let element = ELEMENTS[i / 2 % 3];
        let case = Case::new(element, images, oihw, groups, window, extras, i as u64);
        check(&case, i as u64);
    }
    for i in 0..generated("conv2d of whole numbers") {
        let mut seeded = Seeded::new(13_000 + i as u64);
        check(&any_case(&mut seeded, i as u64), i as u64);
    }
    // Extreme values, where padding is the only zero.
    let images = Images { n: 1, h: 5, w: 6, layout: Layout::Nhwc };
    for c in [16, 100] {
        let case = Case::new(RowType::F32, images, [70, c, 3, 3], 1, Window::new(1, 1), PLAIN, 1);
        for (x, w) in [(-128.0, -128.0), (127.0, -128.0), (-128.0, 1.0)] {
            for ternary in [false, true] {
                let mut whole = WholeCase::new(case.clone(), ternary, 1);
                whole.case.x.fill(x);
                whole.case.w.fill(if ternary { f32::signum(w) } else { w });
                let inputs = WholeInputs { whole, kernel: None };
                support_check(b, &inputs, c);
            }
        }
    }
}

/// What the kernels that ask for all of a tile at once take: channels of a group in 128s, zeros around, steps of 1
/// and 2, a few dilated; tiles and output channels that end anywhere.
fn ternaries_of_channels_in_128s<B: Backend>(b: &B) {
    let compare = |images, oihw, groups, window, seed: u64| {
        let i = seed as usize;
        let extras = Extras {
            bias: !i.is_multiple_of(2),
            residual: i.is_multiple_of(3),
            activation: Activation::ALL[i % 4],
        };
        let element = ELEMENTS[i / 2 % 3];
        let case = Case::new(element, images, oihw, groups, window, extras, seed);
        let inputs = WholeInputs { whole: WholeCase::new(case, true, seed), kernel: None };
        let what = format!("{element:?} {images:?} {oihw:?} groups={groups} {window:?}");
        check(b, &inputs, &inputs.expected(), what);
    };
    let (plain, same, half) = (Window::new(1, 0), Window::new(1, 1), Window::new(2, 1));
    for (i, ([n, h, w], oihw, groups, window)) in [
        ([1, 14, 14], [70, 256, 3, 3], 1, same),
        ([2, 7, 7], [130, 384, 1, 1], 1, plain),
        ([1, 9, 11], [33, 128, 3, 3], 1, half),
        ([3, 5, 6], [64, 128, 3, 3], 2, same),
        ([1, 1, 1], [65, 128, 1, 1], 1, plain),
        ([2, 6, 9], [4, 256, 1, 1], 1, Window::new(2, 0)),
        ([1, 8, 8], [200, 640, 2, 3], 1, half),
        ([1, 11, 10], [64, 128, 3, 3], 1, Window { dilation: [2, 3], ..Window::new(1, 3) }),
        ([1, 9, 9], [66, 128, 7, 7], 1, Window::new(2, 3)),
        ([9, 13, 13], [128, 128, 3, 3], 1, same),
        ([40, 15, 15], [64, 128, 1, 1], 1, plain),
    ]
    .into_iter()
    .enumerate()
    {
        compare(Images { n, h, w, layout: Layout::Nhwc }, oihw, groups, window, i as u64);
    }
    for i in 0..generated("ternaries of channels in 128s") {
        let mut seeded = Seeded::new(16_000 + i as u64);
        let seeded = &mut seeded;
        let groups = [1, 1, 1, 2][seeded.below(4)];
        let (window, stride) = ([1 + seeded.below(4), 1 + seeded.below(4)], 1 + seeded.below(2));
        let dilation = if stride == 1 { 1 + seeded.below(2) } else { 1 };
        let images = Images {
            n: 1 + seeded.below(4),
            h: 1 + seeded.below(9) + (window[0] - 1) * dilation,
            w: 1 + seeded.below(9) + (window[1] - 1) * dilation,
            layout: Layout::Nhwc,
        };
        let mut pad = || seeded.below(4);
        let padding = Padding::Sides { top: pad(), bottom: pad(), left: pad(), right: pad() };
        let window_of =
            Window { stride: [stride; 2], dilation: [dilation; 2], padding, mode: PadMode::Zeros };
        let k = groups * (1 + seeded.below(80));
        let oihw = [k, 128 * (1 + seeded.below(2)), window[0], window[1]];
        compare(images, oihw, groups, window_of, i as u64);
    }
}

/// One case by a kernel that is asked for, where the device has it.
fn check_asked<B: Backend>(b: &B, inputs: &WholeInputs, what: String) {
    match bitnet_gpu::selftest::run(b, inputs) {
        Err(RunError::Op(OpError::Dimension { what: "kernel", .. })) => {}
        _ => check(b, inputs, &inputs.expected(), what),
    }
}

/// What the kernels in strips take: one tap, 128 channels and more, outputs of 16 bits in eights. The others for ternary weights
/// take it too.
fn ternaries_by_strips<B: Backend>(b: &B) {
    for i in 0..generated("ternaries by strips") {
        let mut seeded = Seeded::new(17_000 + i as u64);
        let seeded = &mut seeded;
        let (n, stride) = (1 + seeded.below(5), 1 + seeded.below(2));
        let [h, w] = [1 + seeded.below(17), 1 + seeded.below(17)];
        let images = Images { n, h, w, layout: Layout::Nhwc };
        let mut pad = || [0, 0, 1, 2][seeded.below(4)];
        let padding = Padding::Sides { top: pad(), bottom: pad(), left: pad(), right: pad() };
        let window = Window { stride: [stride; 2], padding, ..Window::new(1, 0) };
        let oihw = [8 * (1 + seeded.below(40)), 128 + 16 * seeded.below(17), 1, 1];
        let activation = [Activation::None, Activation::Relu, Activation::Relu2][seeded.below(3)];
        let extras = Extras { bias: seeded.below(2) == 0, residual: false, activation };
        let element = ELEMENTS[1 + i % 2];
        let case = Case::new(element, images, oihw, 1, window, extras, i as u64);
        let whole = WholeCase::new(case, true, i as u64);
        let kernel = [
            "conv2d_ternary_strips",
            "conv2d_ternary_strips96",
            "conv2d_ternary_whole32",
            "conv2d_ternary_whole48",
            "conv2d_ternary_whole64",
            "conv2d_ternary_whole96",
            "conv2d_ternary_whole128",
        ][i / 2 % 7];
        let inputs = WholeInputs { whole, kernel: Some(kernel) };
        check_asked(b, &inputs, format!("{element:?} {images:?} {oihw:?} {window:?}"));
    }
}

/// Sums of images whose scale is far from one are divided exactly all the same.
fn scales_that_are_not_ordinary<B: Backend>(b: &B) {
    let images = Images { n: 4, h: 5, w: 6, layout: Layout::Nhwc };
    let extras = Extras { bias: true, residual: false, activation: Activation::Relu };
    let [strips, strips96] = ["conv2d_ternary_strips", "conv2d_ternary_strips96"].map(Some);
    let whole96 = Some("conv2d_ternary_whole96");
    for (i, (element, kernel)) in ELEMENTS
        .into_iter()
        .map(|element| (element, None))
        .chain([(RowType::F16, strips), (RowType::Bf16, strips), (RowType::Bf16, strips96)])
        .chain(ELEMENTS.map(|element| (element, whole96)))
        .enumerate()
    {
        let case = Case::new(element, images, [72, 128, 1, 1], 1, Window::new(1, 0), extras, 3);
        let mut whole = WholeCase::new(case, true, i as u64);
        if let Some(scales) = &mut whole.ternary {
            scales.images = vec![1e-25, 40.0, 1e25, f32::INFINITY];
        }
        let inputs = WholeInputs { whole, kernel };
        check_asked(b, &inputs, format!("{element:?} {kernel:?}"));
    }
}

fn support_check<B: Backend>(b: &B, inputs: &WholeInputs, c: usize) {
    check(b, inputs, &inputs.expected(), format!("extreme values, {c} channels"));
}

fn no_images<B: Backend>(b: &B) {
    let images = Images { n: 0, h: 5, w: 5, layout: Layout::Nhwc };
    for (oihw, groups) in [([4, 4, 3, 3], 1), ([4, 1, 3, 3], 4)] {
        check_case(b, &Case::new(RowType::F32, images, oihw, groups, Window::new(1, 1), PLAIN, 1));
    }
}

fn weights_are_refused<B: Backend>(b: &B) {
    let make = |oihw: [usize; 4], groups, len| -> Result<(), OpError> {
        Conv2dWeights::<B, f32>::from_oihw(b, "test", &vec![0.0; len], oihw, groups).map(|_| ())
    };
    refused!(dimension("groups"), make([4, 2, 3, 3], 3, 72));
    refused!(dimension("groups"), make([4, 2, 3, 3], 0, 72));
    refused!(dimension("k"), make([0, 2, 3, 3], 1, 0));
    refused!(dimension("r"), make([4, 2, 0, 3], 1, 0));
    refused!(dimension("c"), make([4, usize::MAX, 3, 3], 1, 0));
    refused!(dimension("terms"), make([1, 1 << 20, 5, 5], 1, 0));
    refused!(|e| matches!(e, OpError::Mismatch { .. }), make([4, 2, 3, 3], 1, 71));
}

fn refusals<B: Backend>(b: &B) {
    let (k, c) = (4, 4);
    let w = Conv2dWeights::<B, f32>::from_oihw(b, "test", &vec![0.0; k * c * 9], [k, c, 3, 3], 1)
        .expect("weights");
    let images = Images { n: 2, h: 5, w: 6, layout: Layout::Nhwc };
    let len = 2 * 5 * 6 * 4;
    let (good, few) = (zeros::<B, f32>(b, len), zeros::<B, f32>(b, len - 1));
    let (bias, few_bias) = (zeros::<B, f32>(b, k), zeros::<B, f32>(b, k - 1));
    let (mut y, mut few_y) = (zeros::<B, f32>(b, len), zeros::<B, f32>(b, len - 1));
    macro_rules! op {
        ($($field:ident: $value:expr),*) => {{
            #[allow(unused_mut, reason = "not every case changes something")]
            let mut op = Conv2d {
                x: &good, w: &w, bias: Some(&bias), residual: Some(&good), y: &mut y, images,
                window: Window::new(1, 1), activation: Activation::None, math: Math::Exact, kernel: None,
            };
            $(op.$field = $value;)*
            op
        }};
    }
    b.conv2d(op!()).expect("this one is allowed");
    refused!(short("x"), b.conv2d(op!(x: &few)));
    refused!(short("bias"), b.conv2d(op!(bias: Some(&few_bias))));
    refused!(short("residual"), b.conv2d(op!(residual: Some(&few))));
    refused!(short("y"), b.conv2d(op!(y: &mut few_y)));
    let with = |change: &dyn Fn(&mut Window)| {
        let mut window = Window::new(1, 1);
        change(&mut window);
        window
    };
    let reflect = |h, w| {
        with(&move |x| {
            (x.mode, x.padding) = (PadMode::Reflect, Padding::both(h, w));
        })
    };
    refused!(dimension("stride h"), b.conv2d(op!(window: with(&|w| w.stride = [0, 1]))));
    refused!(dimension("stride w"), b.conv2d(op!(window: with(&|w| w.stride = [1, 1 << 25]))));
    refused!(dimension("dilation h"), b.conv2d(op!(window: with(&|w| w.dilation = [0, 1]))));
    refused!(dimension("window w"), b.conv2d(op!(window: with(&|w| w.dilation = [1, 4]))));
    refused!(dimension("window h"), b.conv2d(op!(window: with(&|w| w.dilation = [1 << 24, 1]))));
    refused!(dimension("padding before"), b.conv2d(op!(window: reflect(5, 0))));
    refused!(dimension("padding before"), b.conv2d(op!(window: reflect(0, 6))));
    refused!(
        dimension("padding before"),
        b.conv2d(op!(window: with(&|w| w.padding = Padding::both(usize::MAX, 0))))
    );
    refused!(
        dimension("elements of an image of y"),
        b.conv2d(op!(window: with(&|w| w.padding = Padding::both(1 << 24, 1 << 24))))
    );
    refused!(dimension("h"), b.conv2d(op!(images: Images { h: 0, ..images })));
    refused!(dimension("w"), b.conv2d(op!(images: Images { w: 1 << 25, ..images })));
    refused!(dimension("output pixels"), b.conv2d(op!(images: Images { n: 1 << 30, ..images })));
    refused!(dimension("output pixels"), b.conv2d(op!(images: Images { n: usize::MAX, ..images })));
}
