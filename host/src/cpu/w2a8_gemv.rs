//! CPU side of [`contract::w2a8_gemv`].

use contract::w2a8::Segments;

use super::{Planes, Simd, Threads, w2a8};
use crate::ops::OpError;

/// `y[n] = dequantise(sum_k q[k] * t[n, k])` for one row of activations.
///
/// `words` holds `segments.rows()` packed rows of `k` codes, `acts` and `stats` one row in the
/// order of [`contract::w2a8`]; `y` takes `segments.rows()` values. `planes` is scratch that grows
/// once. Lengths are the caller's to check.
///
/// # Errors
/// No memory for `planes`.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn w2a8_gemv(
    threads: &Threads,
    simd: Simd,
    words: &[u32],
    k: usize,
    segments: &Segments,
    acts: &[u32],
    stats: [u32; 2],
    planes: &mut Planes,
    y: &mut [f32],
) -> Result<(), OpError> {
    let product =
        w2a8::Product { words: w2a8::Words::Bits2(words), k, segments, acts, stats: &[stats] };
    w2a8::multiply(threads, simd, &product, planes, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::every_way;
    use crate::reference;
    use crate::reference::w2a8_gemv::{Case, TEST_SHAPES};
    use proptest::prelude::*;

    fn check(case: &Case) {
        let want: Vec<u32> =
            reference::w2a8_gemv::w2a8_gemv(case).iter().map(|v| v.to_bits()).collect();
        let (words, acts, stats) = (case.words(), case.acts(), case.stats());
        every_way(|threads, simd| {
            let mut y = vec![f32::NAN; case.n];
            let mut planes = Planes::default();
            let segments = &case.segments;
            w2a8_gemv(
                threads,
                simd,
                &words,
                case.k,
                segments,
                &acts,
                stats[0],
                &mut planes,
                &mut y,
            )
            .expect("memory");
            let got: Vec<u32> = y.iter().map(|v| v.to_bits()).collect();
            assert_eq!(got, want, "n={} k={} {simd:?}", case.n, case.k);
        });
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &(n, k) in TEST_SHAPES {
            check(&Case::new(1, n, k, 7));
        }
    }

    #[test]
    fn extreme_sums_do_not_wrap() {
        for k in [64, 2560, 20_000] {
            let mut case = Case::new(1, 3, k, 1);
            case.q.fill(-128);
            case.t[..k].fill(-1);
            case.t[k..2 * k].fill(1);
            check(&case);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_the_reference_on_any_shape(n in 1usize..150, k in 1usize..1500, seed: u64) {
            check(&Case::new(1, n, k, seed));
        }
    }
}
