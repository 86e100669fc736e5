//! Channels in no eights on tensor cores, copied to eights and back: [`bitnet_gpu::ops::conv2d`].

use bitnet_gpu::ops::conv2d::{Activation, Images, Layout, Padding, Window};
use bitnet_gpu::ops::{Backend, Math};
use bitnet_gpu::reference::conv2d::{Case, Extras};
use bitnet_gpu::selftest::conv2d::Inputs;

use crate::conv2d::ELEMENTS;
use crate::support::{check, on_lane};

on_lane! {
    whole_numbers_keep_their_bits_in_eights
}

fn whole_numbers_keep_their_bits_in_eights<B: Backend>(b: &B) {
    let odd = Window { dilation: [2, 1], padding: Padding::both(2, 1), ..Window::new(2, 0) };
    let same = Window { padding: Padding::Same, ..Window::new(3, 0) };
    let apart = Window { dilation: [1, 2], ..Window::new(1, 0) };
    for (i, ([n, h, w], oihw, groups, window)) in [
        // First layers: rows of windows together, windows that touch, as they are or not.
        ([2, 30, 30], [64, 3, 7, 7], 1, Window::new(2, 3)),
        ([1, 33, 31], [32, 3, 3, 3], 1, Window::new(2, 1)),
        ([2, 32, 32], [72, 3, 16, 16], 1, Window::new(16, 0)),
        ([2, 28, 28], [65, 3, 14, 14], 1, Window::new(14, 0)),
        ([2, 12, 14], [96, 3, 4, 4], 1, Window::new(4, 0)),
        ([1, 10, 9], [7, 5, 4, 4], 1, same),
        ([2, 9, 9], [40, 20, 3, 3], 1, odd),
        ([2, 20, 20], [17, 2, 2, 9], 1, Window { stride: [5, 1], ..Window::new(1, 0) }),
        // Gathered: taps apart along a row.
        ([1, 10, 9], [8, 5, 1, 3], 1, apart),
        // Pixel by pixel.
        ([2, 9, 11], [64, 33, 3, 3], 1, Window::new(1, 1)),
        ([1, 14, 15], [65, 65, 3, 3], 1, Window::new(1, 1)),
        ([3, 7, 7], [100, 100, 1, 1], 1, Window::new(1, 0)),
        ([2, 17, 19], [136, 66, 3, 3], 2, Window::new(2, 1)),
        ([2, 9, 9], [30, 12, 3, 3], 3, Window::new(1, 1)),
        // Groups together: in eights, or not, or in one.
        ([2, 9, 9], [128, 4, 3, 3], 32, Window::new(1, 1)),
        ([2, 8, 7], [128, 32, 3, 3], 4, Window::new(2, 1)),
        ([1, 9, 9], [24, 3, 3, 3], 8, Window::new(1, 1)),
        ([1, 7, 7], [50, 6, 1, 1], 10, Window::new(1, 0)),
        // Output channels alone.
        ([2, 9, 9], [255, 64, 1, 1], 1, Window::new(1, 0)),
        ([2, 9, 9], [3, 320, 3, 3], 1, Window::new(1, 1)),
    ]
    .into_iter()
    .enumerate()
    {
        let layout = if i % 5 == 4 { Layout::Nchw } else { Layout::Nhwc };
        let images = Images { n, h, w, layout };
        let activation = Activation::ALL[i % 4];
        let extras = Extras { bias: i % 2 == 0, residual: i % 3 != 0, activation };
        let element = ELEMENTS[1 + i % 2];
        let case = Case::new(element, images, oihw, groups, window, extras, i as u64).whole();
        let inputs = Inputs { case, math: Math::TensorCore, kernel: None };
        check(b, &inputs, &inputs.expected(), format!("{element:?} {layout:?} {oihw:?}"));
    }
}
