//! The poolings of ResNet: 3 by 3 maxima with stride 2, and the average of whole images.
//!
//! `BITNET_DEVICE=cpu cargo run --example pool2d`, or `--features cuda` and `BITNET_DEVICE=cuda:0`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::pool2d::{Kind, Layout, Pool2d, Pooling, Windows};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match BackendChoice::from_env()?.unwrap_or_default().resolve()? {
        device_choice::Backend::Cpu => pool2d(&CpuBackend::new(None)?),
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            pool2d(&bitnet_gpu::ops::CudaBackend::open(options)?)
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
}

fn pool2d<B: Backend>(backend: &B) -> Result<(), Box<dyn std::error::Error>> {
    let windows = Windows::Sliding {
        kernel: [3, 3],
        stride: [2, 2],
        padding: [1, 1],
        dilation: [1, 1],
        ceil_mode: false,
    };
    let layout = Layout::Nhwc;
    let maxima = Pooling { n: 1, c: 8, h: 6, w: 6, layout, kind: Kind::Max, windows };
    let [inputs, outputs] = maxima.lens()?;
    let image: Vec<f32> = (0..inputs).map(|i| (i * i % 97) as f32).collect();
    let mut x = backend.alloc("image", inputs)?;
    backend.write(&mut x, 0, &image)?;
    let mut y = backend.alloc("maxima", outputs)?;
    backend.pool2d(Pool2d { pooling: maxima, x: &x, y: &mut y })?;

    // What came out is an image again: 3 by 3, still 8 channels.
    let kind = Kind::Average { count_include_pad: false };
    let average = Pooling { h: 3, w: 3, kind, windows: Windows::Global, ..maxima };
    let mut z = backend.alloc("averages", average.lens()?[1])?;
    backend.pool2d(Pool2d { pooling: average, x: &y, y: &mut z })?;
    let mut averages = vec![0.0f32; 8];
    backend.read(&z, 0, &mut averages)?;
    println!("{averages:?}");
    Ok(())
}
