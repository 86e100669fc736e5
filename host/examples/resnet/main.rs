//! A ResNet (18, 34, 50, ...) forward on this library's kernels alone.
//!
//! Weights are a safetensors file with torchvision's names and f32 tensors; which network it is, the
//! names tell. Batch norms are folded into the convolutions while loading. Images are the f32 tensor
//! `input` `[n, 3, h, w]` of a second file, or seeded noise. `--out` writes the logits as f32.
//!
//! ```text
//! cargo run --release --features cuda --example resnet -- WEIGHTS.safetensors
//!     [--input FILE] [--batch N] [--size PIXELS] [--type f32|f16|bf16] [--math exact|tensor-core]
//!     [--device auto|cpu|cuda[:N]] [--repeat N] [--out FILE]
//! ```
//!
//! `tools/resnet.py` makes weights and images, runs this program, and holds logits and images per
//! second against PyTorch's.

mod network;

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::{Backend, Float, Math};
use bitnet_gpu::reference::Inputs as Seeded;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use network::{Network, Scratch, floats};

#[derive(Default)]
struct Options {
    weights: PathBuf,
    input: Option<PathBuf>,
    out: Option<PathBuf>,
    batch: usize,
    size: usize,
    element: String,
    math: Math,
    device: Option<BackendChoice>,
    repeat: usize,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options =
            Self { batch: 1, size: 224, element: "f32".into(), repeat: 1, ..Self::default() };
        while let Some(arg) = args.next() {
            if !arg.starts_with("--") {
                options.weights = arg.into();
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
            match arg.as_str() {
                "--input" => options.input = Some(value.into()),
                "--out" => options.out = Some(value.into()),
                "--batch" => options.batch = value.parse()?,
                "--size" => options.size = value.parse()?,
                "--type" => options.element = value,
                "--device" => options.device = Some(value.parse()?),
                "--repeat" => options.repeat = value.parse::<usize>()?.max(1),
                "--math" => {
                    options.math = match value.as_str() {
                        "exact" => Math::Exact,
                        "tensor-core" => Math::TensorCore,
                        _ => {
                            return Err(format!("--math is {value:?}: exact or tensor-core").into());
                        }
                    }
                }
                _ => return Err(format!("no option {arg}").into()),
            }
        }
        Ok(options)
    }
}

/// Images `[n, 3, h, w]`.
struct Batch {
    n: usize,
    h: usize,
    w: usize,
    values: Vec<f32>,
}

impl Batch {
    fn new(options: &Options) -> Result<Self, Box<dyn Error>> {
        let Some(path) = &options.input else {
            let (n, h, w) = (options.batch, options.size, options.size);
            return Ok(Self { n, h, w, values: Seeded::new(1).floats(n * 3 * h * w, 2.0) });
        };
        let file = std::fs::read(path)?;
        let file = SafeTensors::deserialize(&file)?;
        let (shape, values) = floats(&file, "input")?;
        match shape[..] {
            [n, 3, h, w] => Ok(Self { n, h, w, values }),
            _ => Err(format!("`input` is {shape:?}; [n, 3, h, w] is needed").into()),
        }
    }

    /// `[n, h, w, 3]` in the element type of the network.
    fn channels_last<T: Float>(&self) -> Vec<T> {
        let plane = self.h * self.w;
        let of_image = |image: &[f32]| -> Vec<T> {
            (0..plane).flat_map(|at| [0, 1, 2].map(|c| T::round(image[c * plane + at]))).collect()
        };
        self.values.chunks_exact(3 * plane).flat_map(of_image).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let choice = match options.device {
        Some(choice) => choice,
        None => BackendChoice::from_env()?.unwrap_or_default(),
    };
    match choice.resolve()? {
        device_choice::Backend::Cpu => typed(&CpuBackend::new(None)?, &options),
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let cuda = bitnet_gpu::driver::CudaOptions::new(ordinal).pdl(true);
            typed(&bitnet_gpu::ops::CudaBackend::open(cuda)?, &options)
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
}

fn typed<B: Backend>(backend: &B, options: &Options) -> Result<(), Box<dyn Error>> {
    match options.element.as_str() {
        "f32" => forward::<B, f32>(backend, options),
        "f16" => forward::<B, f16>(backend, options),
        "bf16" => forward::<B, bf16>(backend, options),
        other => Err(format!("--type is {other:?}: f32, f16 or bf16").into()),
    }
}

fn forward<B: Backend, T: Float>(backend: &B, options: &Options) -> Result<(), Box<dyn Error>> {
    let file = std::fs::read(&options.weights)?;
    let network = Network::<B, T>::load(backend, &SafeTensors::deserialize(&file)?, options.math)?;
    let batch = Batch::new(options)?;
    let mut scratch = Scratch::new(backend, &network, [batch.n, batch.h, batch.w])?;
    let images = batch.channels_last::<T>();

    backend.write(&mut scratch.x, 0, &images)?;
    network.run(backend, &mut scratch)?;
    let mut logits = vec![T::default(); batch.n * network.classes()];
    backend.read(&scratch.logits, 0, &mut logits)?;
    let logits: Vec<f32> = logits.into_iter().map(T::widen).collect();

    // The stem leaves its input alone, so a recording can run again and again.
    let recording = backend.record(|| network.run(backend, &mut scratch))?;
    let mut once = || match &recording {
        Some(recording) => backend.replay(recording),
        None => network.run(backend, &mut scratch),
    };
    once()?;
    backend.synchronize()?;
    let started = Instant::now();
    (0..options.repeat).try_for_each(|_| once())?;
    backend.synchronize()?;
    let rate = (options.repeat * batch.n) as f64 / started.elapsed().as_secs_f64();

    for (image, logits) in logits.chunks(network.classes()).enumerate().take(4) {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let top: Vec<_> = order.iter().take(5).map(|&i| format!("{i}: {:.4}", logits[i])).collect();
        println!("image {image}: {}", top.join(", "));
    }
    let (name, kind, math) = (network.name(), &options.element, options.math);
    println!(
        "{rate:.1} images/s: {name}, {kind}, {math:?}, batch {}, {}",
        batch.n,
        backend.describe()
    );
    if let Some(path) = &options.out {
        let bytes: Vec<u8> = logits.iter().flat_map(|v| v.to_le_bytes()).collect();
        let shape = vec![batch.n, network.classes()];
        let logits = TensorView::new(Dtype::F32, shape, &bytes)?;
        std::fs::write(path, safetensors::serialize([("logits", logits)], None)?)?;
    }
    Ok(())
}
