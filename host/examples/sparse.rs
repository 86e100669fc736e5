//! Pruning a dense layer by magnitude, and multiplying by what is left.
//!
//! `cargo run --features cuda --example sparse -- auto|cpu|cuda[:N]`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::sparse::{Bitmap, Linear, SparseLinear, pays_off, prune};
use bitnet_gpu::ops::{Backend, Math};
use half::bf16;

/// Output and input features, and inputs.
const N: usize = 500;
const K: usize = 777;
const M: usize = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let choice = match std::env::args().nth(1) {
        Some(word) => word.parse()?,
        None => BackendChoice::from_env()?.unwrap_or_default(),
    };
    let y = match choice.resolve()? {
        device_choice::Backend::Cpu => product(&CpuBackend::new(None)?)?,
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            product(&bitnet_gpu::ops::CudaBackend::open(options)?)?
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    };
    println!("y[0, 0..4] = {:?}", &y[..4]);
    Ok(())
}

/// The same code and the same bits on every backend.
fn product<B: Backend>(backend: &B) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let value = |i: usize| ((i * 37 % 101) as f32 * 0.02 - 1.0) * (i as f32).cos();
    let mut dense: Vec<bf16> = (0..N * K).map(|i| bf16::from_f32(value(i))).collect();
    let gone = prune(&mut dense, 0.8)?;
    let bitmap = Bitmap::from_dense(N, K, &dense)?;
    println!(
        "{gone} of {} weights pruned; {} bytes instead of {}; faster than dense on a GPU: {}",
        N * K,
        bitmap.bytes(),
        2 * N * K,
        pays_off([N, K], M, bitmap.sparsity(), Math::Exact),
    );

    let w = SparseLinear::upload(backend, "weights", &bitmap)?;
    let mut x = backend.alloc("input", M * K)?;
    let input: Vec<f32> = (0..M * K).map(|i| (i as f32 * 0.1).sin()).collect();
    backend.write(&mut x, 0, &input)?;
    let mut y = backend.alloc("output", M * N)?;
    let math = Math::Exact;
    backend.sparse_linear(Linear { w: &w, x: &x, y: &mut y, m: M, math, kernel: None })?;

    let mut out = vec![0.0; M * N];
    backend.read(&y, 0, &mut out)?;
    println!("{M}x{N}x{K} on {}", backend.describe());
    Ok(out)
}
