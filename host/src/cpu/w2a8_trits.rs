//! CPU side of [`contract::w2a8_trits`]: the rows of a task into the 2-bit layout, then the tiles of the others.

use contract::w2a8::Segments;

use super::{Planes, Simd, Threads, w2a8};
use crate::ops::OpError;

/// `y[m, n] = dequantise(sum_k q[m, k] * t[n, k])` for one row of activations per element of `stats`.
///
/// As [`super::w2a8_gemm::w2a8_gemm`], with `words` of 1.6 bits a weight.
///
/// # Errors
/// No memory for `planes`.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn w2a8_trits(
    threads: &Threads,
    simd: Simd,
    words: &[u32],
    k: usize,
    segments: &Segments,
    acts: &[u32],
    stats: &[[u32; 2]],
    planes: &mut Planes,
    y: &mut [f32],
) -> Result<(), OpError> {
    let product = w2a8::Product { words: w2a8::Words::Trits(words), k, segments, acts, stats };
    w2a8::multiply(threads, simd, &product, planes, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::every_way;
    use crate::reference::w2a8_gemv::Case;
    use crate::reference::w2a8_trits::{self as reference, TEST_SHAPES};
    use proptest::prelude::*;

    fn check(case: &Case) {
        let want: Vec<u32> = reference::w2a8_trits(case).iter().map(|v| v.to_bits()).collect();
        let (words, acts, stats) = (reference::words(case), case.acts(), case.stats());
        every_way(|threads, simd| {
            let mut y = vec![f32::NAN; case.m * case.n];
            let mut planes = Planes::default();
            let segments = &case.segments;
            w2a8_trits(threads, simd, &words, case.k, segments, &acts, &stats, &mut planes, &mut y)
                .expect("memory");
            let got: Vec<u32> = y.iter().map(|v| v.to_bits()).collect();
            assert_eq!(got, want, "m={} n={} k={} {simd:?}", case.m, case.n, case.k);
        });
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &(m, n, k) in TEST_SHAPES {
            check(&Case::new(m, n, k, 7));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn equals_the_reference_on_any_shape(
            m in 1usize..20, n in 1usize..100, k in 1usize..1200, seed: u64,
        ) {
            check(&Case::new(m, n, k, seed));
        }
    }
}
