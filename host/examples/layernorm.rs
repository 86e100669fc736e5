//! A residual add and the LayerNorm behind it, in one pass over memory.
//!
//! `BITNET_DEVICE=cpu cargo run --example layernorm`, or `--features cuda` and `BITNET_DEVICE=cuda:0`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::layernorm::LayerNorm;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match BackendChoice::from_env()?.unwrap_or_default().resolve()? {
        device_choice::Backend::Cpu => layernorm(&CpuBackend::new(None)?),
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            layernorm(&bitnet_gpu::ops::CudaBackend::open(options)?)
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
}

fn layernorm<B: Backend>(backend: &B) -> Result<(), Box<dyn std::error::Error>> {
    let (m, k) = (2, 6);
    let mut x = backend.alloc("residual stream", m * k)?;
    backend.write(&mut x, 0, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0])?;
    let mut delta = backend.alloc("delta", m * k)?;
    backend.write(&mut delta, 0, &[1.0f32; 12])?;
    let mut y = backend.alloc("output", m * k)?;
    backend.layernorm(LayerNorm {
        x: &mut x,
        delta: Some(&delta),
        weight: None,
        bias: None,
        y: &mut y,
        m,
        k,
        eps: 1e-5,
    })?;
    let (mut sum, mut normed) = (vec![0.0; m * k], vec![0.0; m * k]);
    backend.read(&x, 0, &mut sum)?;
    backend.read(&y, 0, &mut normed)?;
    println!("x + delta = {:?}", &sum[..k]);
    println!("normed    = {:?}", &normed[..k]);
    assert!(normed[k..].iter().all(|&v| v == 0.0), "a row of one value has no deviation");
    Ok(())
}
