//! The end of a residual block: a sum and its relu in one pass; then a bias for every row.
//!
//! `BITNET_DEVICE=cpu cargo run --example elementwise`, or `--features cuda` and `BITNET_DEVICE=cuda:0`

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::elementwise::{Elementwise, Function, Operand};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match BackendChoice::from_env()?.unwrap_or_default().resolve()? {
        device_choice::Backend::Cpu => elementwise(&CpuBackend::new(None)?),
        #[cfg(feature = "cuda")]
        device_choice::Backend::Cuda(ordinal) => {
            let options = bitnet_gpu::driver::CudaOptions::new(ordinal);
            elementwise(&bitnet_gpu::ops::CudaBackend::open(options)?)
        }
        #[cfg(not(feature = "cuda"))]
        device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
    }
}

fn elementwise<B: Backend>(backend: &B) -> Result<(), Box<dyn std::error::Error>> {
    let (m, k) = (2, 3);
    let mut a = backend.alloc("a", m * k)?;
    backend.write(&mut a, 0, &[1.0f32, -2.0, 3.0, -4.0, 5.0, -6.0])?;
    let mut b = backend.alloc("b", m * k)?;
    backend.write(&mut b, 0, &[0.5f32; 6])?;
    let mut y = backend.alloc("y", m * k)?;
    let mut values = vec![0.0; m * k];

    let function = Function::Add(Operand::Rows(&b));
    backend.elementwise(Elementwise { a: &a, function, relu: true, y: &mut y, m, k })?;
    backend.read(&y, 0, &mut values)?;
    println!("relu(a + b)        = {values:?}");

    let function = Function::Axpby { alpha: 2.0, beta: -1.0, b: Operand::Row(&b) };
    backend.elementwise(Elementwise { a: &a, function, relu: false, y: &mut y, m, k })?;
    backend.read(&y, 0, &mut values)?;
    println!("2 a - b, row by row = {values:?}");
    Ok(())
}
