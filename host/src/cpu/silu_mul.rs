//! CPU side of [`contract::silu_mul`].

use contract::silu_mul::gated;

use super::simd::vectorised;
use super::{Simd, Threads};

vectorised! {
    /// One row: gates, then ups.
    pub(super) fn silu_row(gate_up: &[f32], f: &mut [f32]) {
        let (gates, ups) = gate_up.split_at(f.len());
        for ((f, gate), up) in f.iter_mut().zip(gates).zip(ups) {
            *f = gated(*gate, *up);
        }
    }
}

/// `f = silu(gate) * up` for rows of `gate_up` that hold `k` gates, then `k` ups.
pub fn silu_mul(threads: &Threads, simd: Simd, gate_up: &[f32], f: &mut [f32], k: usize) {
    threads.run_pieces(f, k, |i, f| {
        silu_row(simd, &gate_up[2 * k * i..][..2 * k], f);
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::{bits, every_backend, upload};
    use crate::ops::{Backend, silu_mul::SiluMul};
    use crate::reference::{Inputs, silu_mul as reference};
    use proptest::prelude::*;

    fn check(gate_up: &[f32], m: usize, k: usize) {
        let want = reference::silu_mul(gate_up, k);
        every_backend(|backend| {
            let gate_up = &upload(backend, gate_up);
            let mut f = upload(backend, &vec![7.0; m * k + 1]);
            backend.silu_mul(SiluMul { gate_up, f: &mut f, m, k }).expect("shapes fit");
            let (f, rest) = f.as_slice().split_at(m * k);
            assert_eq!(bits(f), bits(&want), "m={m} k={k}");
            assert_eq!(rest, [7.0]);
        });
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &(m, k) in reference::TEST_SHAPES {
            check(&Inputs::new(4).floats(2 * m * k, 20.0), m, k);
        }
    }

    #[test]
    fn odd_numbers() {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, 200.0, -200.0];
        let gate_up: Vec<f32> = odd.iter().chain(&[-1.5; 8]).copied().collect();
        check(&gate_up, 1, 8);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn equals_the_reference_on_any_shape(m in 1usize..4, k in 1usize..700, seed: u64) {
            check(&Inputs::new(seed).floats(2 * m * k, 20.0), m, k);
        }
    }
}
