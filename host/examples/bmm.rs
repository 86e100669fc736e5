//! Batched matrix products: plain, transposed without a copy, one factor for the whole batch, in
//! place on top of what is there, and int8.
//!
//! `cargo run --features cuda --example bmm -- auto|cpu|cuda[:N]`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::bmm::{Bmm, Layout};
use bitnet_gpu::ops::{Backend, Math, OpError};

/// Queries, keys and values of attention: `[HEADS, TOKENS, HEAD]`.
const HEADS: usize = 4;
const TOKENS: usize = 96;
const HEAD: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let choice = match std::env::args().nth(1) {
        Some(word) => word.parse()?,
        None => BackendChoice::from_env()?.unwrap_or_default(),
    };
    match choice.resolve()? {
        device_choice::Backend::Cpu => products(&CpuBackend::new(None)?)?,
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            products(&bitnet_gpu::ops::CudaBackend::open(options)?)?;
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
    Ok(())
}

fn upload<B: Backend, T: bitnet_gpu::ops::Element>(b: &B, v: &[T]) -> Result<B::Buf<T>, OpError> {
    let mut buf = b.alloc("example", v.len())?;
    b.write(&mut buf, 0, v)?;
    Ok(buf)
}

fn products<B: Backend>(b: &B) -> Result<(), OpError> {
    let len = HEADS * TOKENS * HEAD;
    let wave = |step: f32| (0..len).map(|i| (i as f32 * step).sin()).collect::<Vec<_>>();
    let (q, k, v) = (upload(b, &wave(0.37))?, upload(b, &wave(0.11))?, upload(b, &wave(0.73))?);

    // Scores: Q x K^T / sqrt(HEAD). K is read as it lies; no transpose is made.
    let mut scores = b.alloc("scores", HEADS * TOKENS * TOKENS)?;
    let b_layout = Layout::columns(HEAD, TOKENS);
    let alpha = 1.0 / (HEAD as f32).sqrt();
    let product = Bmm::new(&q, &k, &mut scores, [TOKENS, TOKENS, HEAD], HEADS);
    b.bmm(Bmm { b_layout, alpha, ..product })?;

    // Weighted values, written as [TOKENS, HEADS, HEAD]: the heads' rows lie side by side.
    let mut out = b.alloc("out", len)?;
    let c_layout = Layout { at: 0, stride: HEAD, ld: HEADS * HEAD, transposed: false };
    let product = Bmm::new(&scores, &v, &mut out, [TOKENS, HEAD, TOKENS], HEADS);
    b.bmm(Bmm { c_layout, ..product })?;

    // One matrix for every head, added to what is there; on tensor cores as TF32, by name.
    let w = upload(b, &wave(0.05)[..HEAD * HEAD])?;
    let mut sum = b.alloc("sum", len)?;
    b.write(&mut sum, 0, &vec![1.0; len])?;
    let product = Bmm::new(&v, &w, &mut sum, [TOKENS, HEAD, HEAD], HEADS);
    let b_layout = Layout::rows(HEAD, HEAD).broadcast();
    b.bmm(Bmm { b_layout, beta: 1.0, math: Math::TensorCore, ..product })?;

    let bytes: Vec<i8> = (0..TOKENS * TOKENS).map(|i| (i * 7) as i8).collect();
    let (x, y) = (upload(b, &bytes)?, upload(b, &bytes)?);
    let mut exact = b.alloc::<i32>("exact", TOKENS * TOKENS)?;
    b.bmm(Bmm::new(&x, &y, &mut exact, [TOKENS, TOKENS, TOKENS], 1))?;

    let (mut floats, mut ints) = ([0.0f32; 3], [0; 3]);
    b.read(&out, 0, &mut floats)?;
    println!("{HEADS} of {TOKENS}x{HEAD} on {}", b.describe());
    println!("out[0..3] = {floats:?}");
    b.read(&sum, 0, &mut floats)?;
    println!("sum[0..3] = {floats:?}");
    b.read(&exact, 0, &mut ints)?;
    println!("exact[0..3] = {ints:?}");
    Ok(())
}
