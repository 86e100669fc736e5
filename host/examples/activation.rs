//! Gelu of a vector, and the gated product of fused projections.
//!
//! `BITNET_DEVICE=cpu cargo run --example activation`, or `--features cuda` and `BITNET_DEVICE=cuda:0`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::activation::{Activation, Kind, Source};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match BackendChoice::from_env()?.unwrap_or_default().resolve()? {
        device_choice::Backend::Cpu => activation(&CpuBackend::new(None)?),
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            activation(&bitnet_gpu::ops::CudaBackend::open(options)?)
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
}

fn activation<B: Backend>(backend: &B) -> Result<(), Box<dyn std::error::Error>> {
    let k = 5;
    let mut x = backend.alloc("input", 2 * k)?;
    backend.write(&mut x, 0, &[-3.0f32, -1.0, 0.0, 1.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0])?;
    let mut y = backend.alloc("output", k)?;
    let mut read = |kind, source| -> Result<Vec<f32>, bitnet_gpu::ops::OpError> {
        backend.activation(Activation { kind, source, y: &mut y, m: 1, k })?;
        let mut values = vec![0.0; k];
        backend.read(&y, 0, &mut values)?;
        Ok(values)
    };
    println!("gelu(x)       = {:?}", read(Kind::Gelu, Source::Plain { x: &x })?);
    println!("silu(g) * u   = {:?}", read(Kind::Silu, Source::Fused { gate_up: &x })?);
    println!("relu(g)^2 * u = {:?}", read(Kind::Relu2, Source::Fused { gate_up: &x })?);
    Ok(())
}
