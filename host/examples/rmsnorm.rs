//! RMSNorm of f16 rows, with a gain.
//!
//! `BITNET_DEVICE=cpu cargo run --example rmsnorm`, or `--features cuda` and `BITNET_DEVICE=cuda:0`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::rmsnorm::RmsNorm;
use bitnet_gpu::ops::{Backend, Float};
use half::f16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match BackendChoice::from_env()?.unwrap_or_default().resolve()? {
        device_choice::Backend::Cpu => rmsnorm(&CpuBackend::new(None)?),
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            rmsnorm(&bitnet_gpu::ops::CudaBackend::open(options)?)
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
}

fn rmsnorm<B: Backend>(backend: &B) -> Result<(), Box<dyn std::error::Error>> {
    let (m, k) = (1, 4);
    let halves = |values: [f32; 4]| values.map(f16::from_f32);
    let mut x = backend.alloc("input", m * k)?;
    backend.write(&mut x, 0, &halves([1.0, -2.0, 3.0, -4.0]))?;
    let mut weight = backend.alloc("gain", k)?;
    backend.write(&mut weight, 0, &halves([1.0, 0.5, 2.0, 1.0]))?;
    let mut y = backend.alloc("output", m * k)?;
    let (x, y_out) = (&mut x, &mut y);
    backend.rmsnorm(RmsNorm { x, delta: None, weight: &weight, y: y_out, m, k, eps: 1e-5 })?;
    let mut normed = [f16::default(); 4];
    backend.read(&y, 0, &mut normed)?;
    println!("{:?}", normed.map(Float::widen));
    Ok(())
}
