//! Causal attention weights of four queries, in bf16.
//!
//! `BITNET_DEVICE=cpu cargo run --example softmax`, or `--features cuda` and `BITNET_DEVICE=cuda:0`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::softmax::{Mask, Softmax};
use bitnet_gpu::ops::{Backend, Float, OpError};
use half::bf16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match BackendChoice::from_env()?.unwrap_or_default().resolve()? {
        device_choice::Backend::Cpu => softmax(&CpuBackend::new(None)?),
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            softmax(&bitnet_gpu::ops::CudaBackend::open(options)?)
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
}

fn softmax<B: Backend>(backend: &B) -> Result<(), Box<dyn std::error::Error>> {
    const N: usize = 4;
    let scores: Vec<bf16> = (0..N * N).map(|i| bf16::from_f32((i % 3) as f32)).collect();
    let mut x = backend.alloc("scores", N * N)?;
    backend.write(&mut x, 0, &scores)?;
    let mut y = backend.alloc("weights", N * N)?;
    let (m, k, scale, log) = (N, N, 0.5, false);
    let mask = Mask::Causal { queries: N };
    backend.softmax(Softmax { x: &x, mask, y: &mut y, m, k, scale, log })?;

    let mut weights = vec![bf16::default(); N * N];
    backend.read(&y, 0, &mut weights)?;
    for row in weights.chunks(N) {
        println!("{:?}", row.iter().map(|w| w.widen()).collect::<Vec<_>>());
    }

    // More queries than keys cannot be causal.
    let mask = Mask::Causal { queries: N + 1 };
    let refused = backend.softmax(Softmax { x: &x, mask, y: &mut y, m, k, scale, log });
    assert!(matches!(refused, Err(OpError::Dimension { what: "queries", .. })));
    Ok(())
}
