//! A ternary matrix times a vector on raw buffers: pack, quantise, multiply, read back.
//!
//! `cargo run --features cuda --example gemv -- auto|cpu|cuda[:N]`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::act_quant::{ActQuant, Source};
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, OpError, PackedLinear, QuantActs};
use bitnet_gpu::pack::PackedW2;

/// Output and input features: nothing about them is special.
const N: usize = 1000;
const K: usize = 777;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let choice = match std::env::args().nth(1) {
        Some(word) => word.parse()?,
        None => BackendChoice::from_env()?.unwrap_or_default(),
    };
    let y = match choice.resolve()? {
        device_choice::Backend::Cpu => gemv(&CpuBackend::new(None)?)?,
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            gemv(&bitnet_gpu::ops::CudaBackend::open(options)?)?
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    };
    println!("y[0..4] = {:?}", &y[..4]);
    Ok(())
}

/// The same code and the same bits on every backend.
fn gemv<B: Backend>(backend: &B) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    // Weights of -1, 0, 1 with the scale 0.05, and some input.
    let t: Vec<i8> = (0..N * K).map(|i| (i * i % 7 % 3) as i8 - 1).collect();
    let x: Vec<f32> = (0..K).map(|k| (k as f32 * 0.1).sin()).collect();

    let packed = PackedW2::from_ternaries(&t, K, &[(N, 0.05)])?;
    let mut w = PackedLinear::alloc(backend, "weights", K, packed.segments)?;
    w.write_rows(backend, 0, &packed.words)?;

    let mut input = backend.alloc("input", K)?;
    backend.write(&mut input, 0, &x)?;
    let mut acts = QuantActs::alloc(backend, 1, K)?;
    let source = Source::Plain { x: &input };
    backend.act_quant(ActQuant { source, out: &mut acts, m: 1, k: K })?;

    let mut output = backend.alloc("output", N)?;
    backend.w2a8_gemv(W2a8Gemv { w: &w, acts: &acts, y: &mut output, variant: None })?;

    let mut y = vec![0.0; N];
    backend.read(&output, 0, &mut y)?;

    // What does not fit is refused before anything runs.
    let mut short = backend.alloc("output", N - 1)?;
    let refused = backend.w2a8_gemv(W2a8Gemv { w: &w, acts: &acts, y: &mut short, variant: None });
    assert!(matches!(refused, Err(OpError::ShortTensor { tensor: "y", .. })));
    println!("{N}x{K} on {}", backend.describe());
    Ok(y)
}
