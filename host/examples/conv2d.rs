//! A convolution with a folded batch norm, a bias, a residual and a ReLU: load, run, read back.
//!
//! `cargo run --features cuda --example conv2d -- auto|cpu|cuda[:N]`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::conv2d::{
    Activation, BatchNorm, Conv2d, Conv2dWeights, Images, Layout, Shape, Window, fold_batch_norm,
};
use bitnet_gpu::ops::{Backend, Math};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let choice = match std::env::args().nth(1) {
        Some(word) => word.parse()?,
        None => BackendChoice::from_env()?.unwrap_or_default(),
    };
    let y = match choice.resolve()? {
        device_choice::Backend::Cpu => block(&CpuBackend::new(None)?)?,
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            block(&bitnet_gpu::ops::CudaBackend::open(options)?)?
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    };
    println!("y[0..4] = {:?}", &y[..4]);
    Ok(())
}

/// The same code and the same bits on every backend.
fn block<B: Backend>(backend: &B) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    // Two images of 9 by 7 pixels with 16 channels, and 3 by 3 weights as PyTorch stores them.
    let images = Images { n: 2, h: 9, w: 7, layout: Layout::Nhwc };
    let (k, c) = (16, 16);
    let wave = |count: usize, step: f32| -> Vec<f32> {
        (0..count).map(|i| (i as f32 * step).sin()).collect()
    };
    let (x, w) = (wave(images.n * images.h * images.w * c, 0.1), wave(k * c * 9, 0.7));

    // The batch norm behind the convolution becomes part of it.
    let (gamma, mean, variance) = (wave(k, 0.3), wave(k, 0.5), vec![2.0; k]);
    let norm =
        BatchNorm { gamma: &gamma, beta: &mean, mean: &mean, variance: &variance, eps: 1e-5 };
    let folded = fold_batch_norm(&w, None, &norm)?;

    let weights = Conv2dWeights::from_oihw(backend, "weights", &folded.weights, [k, c, 3, 3], 1)?;
    let mut bias = backend.alloc("bias", k)?;
    backend.write(&mut bias, 0, &folded.bias)?;
    let mut input = backend.alloc("input", x.len())?;
    backend.write(&mut input, 0, &x)?;

    let window = Window::new(1, 1);
    let [n, k, p, q] = Shape { images, weights: *weights.packed(), window }.output()?;
    let mut output = backend.alloc("output", n * k * p * q)?;
    backend.conv2d(Conv2d {
        x: &input,
        w: &weights,
        bias: Some(&bias),
        // The output has the shape of the input, which is added to it.
        residual: Some(&input),
        y: &mut output,
        images,
        window,
        activation: Activation::Relu,
        math: Math::Exact,
        kernel: None,
    })?;
    let mut y = vec![0.0; n * k * p * q];
    backend.read(&output, 0, &mut y)?;
    println!("[{n}, {p}, {q}, {k}] on {}", backend.describe());
    Ok(y)
}
