//! The epilogue of a convolution by itself: [`bitnet_gpu::ops::conv2d::Finish`].

use bitnet_gpu::ops::conv2d::{Activation, Finish, Images, Layout};
use bitnet_gpu::ops::{Backend, Float};
use bitnet_gpu::reference::Inputs;
use contract::conv2d::finish;
use half::{bf16, f16};

use crate::support::{dimension, on_lane, refused, short};

on_lane! {
    it_is_the_formula
    refusals
}

/// Elements behind the end of the output, which stay.
const BEHIND: usize = 7;

fn case<B: Backend, T: Float>(b: &B, images: Images, k: usize, which: usize) {
    let Images { n, h, w, layout } = images;
    let (pixels, len) = (n * h * w, n * h * w * k);
    let mut inputs = Inputs::new(which as u64 + 1);
    let sums = inputs.floats(len, 2.0);
    let bias = inputs.floats(k, 1.0);
    let residual: Vec<T> = inputs.floats(len, 1.0).into_iter().map(T::round).collect();
    let (has_bias, has_residual) = (which.is_multiple_of(2), !which.is_multiple_of(3));
    let activation = Activation::ALL[which % 4];
    let mut wanted = vec![T::round(77.0); len + BEHIND];
    for (i, &sum) in sums.iter().enumerate() {
        let (pixel, channel) = (i / k, i % k);
        let at = match layout {
            Layout::Nhwc => i,
            Layout::Nchw => pixel / (h * w) * k * h * w + channel * h * w + pixel % (h * w),
        };
        let bias = if has_bias { bias[channel] } else { -0.0 };
        let residual = if has_residual { residual[at].widen() } else { -0.0 };
        wanted[at] = T::round(finish(sum, bias, residual, activation));
    }
    fn put<B: Backend, E: bitnet_gpu::ops::Element>(b: &B, data: &[E]) -> B::Buf<E> {
        let mut buffer = b.alloc("test", data.len().max(1)).expect("memory");
        b.write(&mut buffer, 0, data).expect("a copy");
        buffer
    }
    let (sums, bias, residual) = (put(b, &sums), put(b, &bias), put(b, &residual));
    let mut y = put(b, &vec![T::round(77.0); len + BEHIND]);
    b.conv2d_finish(Finish {
        sums: &sums,
        bias: has_bias.then_some(&bias),
        residual: has_residual.then_some(&residual),
        y: &mut y,
        images,
        channels: k,
        activation,
    })
    .expect("an epilogue");
    let mut found = vec![T::round(0.0); len + BEHIND];
    b.read(&y, 0, &mut found).expect("a copy");
    let bits = |v: &[T]| bytemuck::cast_slice::<T, u8>(v).to_vec();
    assert!(bits(&found) == bits(&wanted), "{images:?} of {k}, {pixels} pixels, case {which}");
}

fn it_is_the_formula<B: Backend>(b: &B) {
    let shapes = [(1, 1, 1, 1), (17, 1, 1, 4096), (2, 7, 5, 33), (3, 1, 9, 64), (0, 4, 4, 8)];
    for (i, (n, h, w, k)) in shapes.into_iter().enumerate() {
        for (j, layout) in [Layout::Nhwc, Layout::Nchw].into_iter().enumerate() {
            for which in [i + j, i + j + 5, i + j + 6] {
                case::<B, f32>(b, Images { n, h, w, layout }, k, which);
                case::<B, f16>(b, Images { n, h, w, layout }, k, which);
                case::<B, bf16>(b, Images { n, h, w, layout }, k, which);
            }
        }
    }
}

fn refusals<B: Backend>(b: &B) {
    let [sums, bias, residual] = [12, 3, 12].map(|len| b.alloc("test", len).expect("memory"));
    let mut y = b.alloc("test", 12).expect("memory");
    let mut run = |change: &dyn Fn(&mut Finish<'_, B, f32>)| {
        let mut op = Finish {
            sums: &sums,
            bias: Some(&bias),
            residual: Some(&residual),
            y: &mut y,
            images: Images { n: 2, h: 2, w: 1, layout: Layout::Nhwc },
            channels: 3,
            activation: Activation::None,
        };
        change(&mut op);
        b.conv2d_finish(op)
    };
    run(&|_| {}).expect("it fits");
    refused!(short("sums"), run(&|op| op.images.n = 3));
    refused!(dimension("k"), run(&|op| op.channels = 0));
    refused!(dimension("k"), run(&|op| op.channels = 1 << 25));
    refused!(dimension("w"), run(&|op| op.images.w = 0));
}
