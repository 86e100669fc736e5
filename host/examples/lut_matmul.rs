//! The same ternary product three ways: multiplied, by exact lookup tables, by lossy ones.
//!
//! `cargo run --features cuda --example lut_matmul -- auto|cpu|cuda[:N]`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::act_quant::{ActQuant, Source};
use bitnet_gpu::ops::lut_matmul::{
    Form, LossyLinear, LossyTables, LutBuildLossy, LutLinear, LutMatmul, LutMatmulLossy,
};
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, PackedLinear, QuantActs};
use bitnet_gpu::pack::{PackedBits, PackedTl, PackedW2};
use bitnet_gpu::reference::Inputs;

/// Output and input features: nothing about them is special.
const N: usize = 1000;
const K: usize = 777;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let choice = match std::env::args().nth(1) {
        Some(word) => word.parse()?,
        None => BackendChoice::from_env()?.unwrap_or_default(),
    };
    match choice.resolve()? {
        device_choice::Backend::Cpu => products(&CpuBackend::new(None)?),
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            products(&bitnet_gpu::ops::CudaBackend::open(options)?)
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
}

fn products<B: Backend>(backend: &B) -> Result<(), Box<dyn std::error::Error>> {
    // Weights of -1, 0, 1 with the scale 0.05, and some input, quantised to int8.
    let mut seeded = Inputs::new(1);
    let (t, x) = (seeded.ternaries(N * K), seeded.floats(K, 2.0));
    let packed = PackedW2::from_ternaries(&t, K, &[(N, 0.05)])?;
    let mut input = backend.alloc("input", K)?;
    backend.write(&mut input, 0, &x)?;
    let mut acts = QuantActs::alloc(backend, 1, K)?;
    let source = Source::Plain { x: &input };
    backend.act_quant(ActQuant { source, out: &mut acts, m: 1, k: K })?;
    let mut output = backend.alloc("output", N)?;
    let mut y = vec![0.0f32; N];

    let mut w = PackedLinear::alloc(backend, "weights", K, packed.segments)?;
    w.write_rows(backend, 0, &packed.words)?;
    backend.w2a8_gemv(W2a8Gemv { w: &w, acts: &acts, y: &mut output, variant: None })?;
    backend.read(&output, 0, &mut y)?;
    let multiplied = y.clone();

    for form in Form::ALL {
        let tiles = PackedTl::from_w2(form, &packed)?;
        println!("{}: {} bytes for {N}x{K}", form.name(), tiles.bytes().len());
        let w = LutLinear::new(backend, "weights", &tiles)?;
        let op = LutMatmul { w: &w, acts: &acts, y: &mut output, m: 1, variant: None };
        backend.lut_matmul(op)?;
        backend.read(&output, 0, &mut y)?;
        assert!(y.iter().zip(&multiplied).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
    println!("TL1 and TL2: the bits of w2a8_gemv");

    // The bit-serial form takes the f32 input itself; ternaries are 2-bit weights to it.
    let w = LossyLinear::new(backend, "weights", &PackedBits::from_w2(&packed)?)?;
    let mut tables = LossyTables::published(backend, 1, K)?;
    backend.lut_build_lossy(LutBuildLossy { x: &input, tables: &mut tables, m: 1 })?;
    let op = LutMatmulLossy { w: &w, tables: &tables, y: &mut output, m: 1 };
    backend.lut_matmul_lossy(op)?;
    backend.read(&output, 0, &mut y)?;
    let exact = |n: usize| -> f64 {
        let row = t[n * K..][..K].iter().zip(&x);
        row.map(|(&t, &x)| f64::from(t) * 0.05 * f64::from(x)).sum()
    };
    let error: f64 = (0..N).map(|n| (f64::from(y[n]) - exact(n)).powi(2)).sum();
    let power: f64 = (0..N).map(|n| exact(n).powi(2)).sum();
    println!("lossy: NMSE {:.1e} on {}", error / power, backend.describe());
    Ok(())
}
