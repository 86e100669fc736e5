//! The CPU backend: every operation of [`crate::ops`] on slices, with threads and vectors.
//!
//! Each operation has one file of the family's name. The bits are those of the contract whatever
//! the level of [`Simd`] and the number of [`Threads`]: the order of a sum never depends on them.

pub mod act_quant;
pub mod activation;
pub mod attention;
pub mod attention_paged;
pub mod attention_step;
pub mod bit_linear;
pub mod bmm;
mod backend;
mod buffer;
pub mod conv2d;
pub mod conv2d_int8;
mod dense;
mod products;
pub mod decode_layers;
pub mod elementwise;
pub mod embed;
pub mod logprobs;
pub mod kv_append;
pub mod layernorm;
pub mod lm_head;
pub mod lm_head_int8;
pub mod pool2d;
pub mod lut_lossy;
pub mod lut_matmul;
#[cfg(target_arch = "aarch64")]
mod lut_neon;
#[cfg(target_arch = "x86_64")]
mod lut_x86;
pub mod rmsnorm;
pub mod rope;
pub mod image_quant;
pub mod sample;
pub mod softmax;
mod simd;
pub mod sparse;
mod threads;
mod w2a8;
pub mod w2a8_gemm;
pub mod w2a8_gemv;
pub mod w2a8_trits;
#[cfg(target_arch = "aarch64")]
mod w2a8_neon;
#[cfg(target_arch = "x86_64")]
mod w2a8_x86;

pub use backend::{CpuBackend, CpuError, CpuOptions, MAX_THREADS, NoRecording, SIMD_VAR};
pub use buffer::{Buffer, CpuTokens};
pub use dense::Table;
pub use lut_matmul::Tables;
pub use simd::{Level, Simd, SimdError};
pub use threads::Threads;
pub use w2a8::Planes;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ops::{Backend, Element};
    use crate::selftest::{self, Output, Run};

    /// Every level of this machine, with one thread and with three.
    pub(crate) fn every_way(mut check: impl FnMut(&Threads, Simd)) {
        for count in [1, 3] {
            let count = std::num::NonZeroUsize::new(count).expect("not zero");
            let threads = Threads::new(count).expect("threads start");
            Simd::available().for_each(|simd| check(&threads, simd));
        }
    }

    /// A backend of each of these.
    pub(crate) fn every_backend(mut check: impl FnMut(&CpuBackend)) {
        for threads in [1, 3] {
            for simd in Simd::available() {
                let options = CpuOptions { threads: Some(threads), simd: Some(simd) };
                check(&CpuBackend::open(options).expect("a backend"));
            }
        }
    }

    /// Holds a case against what it should give, on every backend.
    pub(crate) fn check_everywhere(case: &impl Run, expected: &[Output]) {
        every_backend(|backend| {
            let found = selftest::run(backend, case).expect("the case runs");
            let first = selftest::difference(&found, expected);
            assert!(first.is_none(), "{}: {}", backend.describe(), first.expect("one"));
        });
    }

    /// A buffer with these contents.
    pub(crate) fn upload<T: Element>(backend: &CpuBackend, values: &[T]) -> Buffer<T> {
        let mut buffer = backend.alloc("test", values.len()).expect("memory");
        backend.write(&mut buffer, 0, values).expect("in range");
        buffer
    }

    /// Bits to compare by; which NaN it is does not count.
    pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
        let bits = |v: &f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
        values.iter().map(bits).collect()
    }
}
