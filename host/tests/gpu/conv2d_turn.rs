//! Images in planes on tensor cores, turned to channels last and back: [`bitnet_gpu::ops::conv2d`].

use bitnet_gpu::ops::conv2d::{Activation, Images, Layout, Window};
use bitnet_gpu::ops::{Backend, Math, OpError};
use bitnet_gpu::reference::conv2d::{Case, Extras};
use bitnet_gpu::selftest::RunError;
use bitnet_gpu::selftest::conv2d::Inputs;

use crate::conv2d::ELEMENTS;
use crate::support::{check, on_lane};

on_lane! {
    whole_numbers_keep_their_bits
}

fn whole_numbers_keep_their_bits<B: Backend>(b: &B) {
    for (i, ([n, h, w], oihw, groups, window)) in [
        ([1, 1, 1], [8, 8, 1, 1], 1, Window::new(1, 0)),
        ([3, 9, 15], [33, 16, 3, 3], 1, Window::new(2, 1)),
        ([2, 13, 11], [72, 72, 1, 1], 1, Window::new(1, 0)),
        ([2, 8, 8], [70, 40, 3, 2], 2, Window::new(1, 1)),
        ([1, 33, 35], [136, 24, 5, 5], 1, Window::new(1, 2)),
        // Gathered, where it is not asked for; turned, then copied to eights.
        ([2, 7, 5], [9, 5, 3, 3], 1, Window::new(1, 1)),
        ([2, 7, 5], [9, 11, 3, 3], 1, Window::new(1, 1)),
    ]
    .into_iter()
    .enumerate()
    {
        for (element, kernel) in [(ELEMENTS[1], None), (ELEMENTS[2], Some("conv2d_turn"))] {
            let images = Images { n, h, w, layout: Layout::Nchw };
            let activation = Activation::ALL[i % 4];
            let extras = Extras { bias: i % 2 == 0, residual: i % 3 != 0, activation };
            let case = Case::new(element, images, oihw, groups, window, extras, i as u64).whole();
            let inputs = Inputs { case, math: Math::TensorCore, kernel };
            match bitnet_gpu::selftest::run(b, &inputs) {
                // Below sm_80.
                Err(RunError::Op(OpError::Dimension { what: "kernel", .. })) => {}
                _ => check(b, &inputs, &inputs.expected(), format!("{element:?} {oihw:?}")),
            }
        }
    }
}
