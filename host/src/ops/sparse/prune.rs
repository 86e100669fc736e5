//! Pruning by magnitude: which weights to drop, for those who want to try.

use super::SparseError;
use crate::ops::Float;

/// Sets the smallest `round(sparsity * len)` weights (halves up) to +0 and returns how many those are.
///
/// Small is by magnitude; among equal magnitudes the earlier weight goes first. Zeros of either sign
/// are the smallest, infinities come after every number, and a NaN goes last of all. So the count is
/// exact and the same weights go on every machine.
///
/// # Errors
/// A sparsity outside of 0 to 1.
///
/// # Examples
/// ```
/// let mut w = [0.5f32, -2.0, 0.25, 0.5];
/// assert_eq!(bitnet_gpu::ops::sparse::prune(&mut w, 0.5).unwrap(), 2);
/// assert_eq!(w, [0.0, -2.0, 0.0, 0.5]);
/// ```
pub fn prune<T: Float>(weights: &mut [T], sparsity: f64) -> Result<usize, SparseError> {
    if !(0.0..=1.0).contains(&sparsity) {
        return Err(SparseError::Sparsity { asked: sparsity });
    }
    let count = ((sparsity * weights.len() as f64).round() as usize).min(weights.len());
    if count == 0 {
        return Ok(0);
    }
    // The widened bits order magnitudes of every type; NaN stand above infinity.
    let magnitude = |weight: &T| {
        let value = weight.widen();
        if value.is_nan() { u32::MAX } else { value.abs().to_bits() }
    };
    let mut sorted: Vec<u32> = weights.iter().map(magnitude).collect();
    let (below, &mut edge, _) = sorted.select_nth_unstable(count - 1);
    // Of those at the edge, as many as the ones below it leave.
    let mut left = count - below.iter().filter(|&&bits| bits < edge).count();
    for weight in weights {
        let bits = magnitude(weight);
        if bits < edge || bits == edge && left > 0 {
            left -= usize::from(bits == edge);
            *weight = T::zeroed();
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Inputs;
    use half::bf16;

    #[test]
    fn the_count_is_exact_and_the_rest_is_not_smaller() {
        for (len, seed) in [(1, 1), (7, 2), (1000, 3), (4096, 4)] {
            let weights: Vec<bf16> =
                Inputs::new(seed).floats(len, 1.0).into_iter().map(bf16::from_f32).collect();
            for sparsity in [0.0, 0.001, 0.3, 0.5, 0.777, 0.9, 1.0] {
                let mut pruned = weights.clone();
                let count = prune(&mut pruned, sparsity).unwrap();
                assert_eq!(count, (sparsity * len as f64).round() as usize);
                let gone = |i: &usize| pruned[*i] != weights[*i] || weights[*i].to_f32() == 0.0;
                let most = (0..len).filter(gone).map(|i| weights[i].to_f32().abs());
                let most = most.fold(0.0, f32::max);
                let least = pruned.iter().map(|w| w.to_f32().abs()).filter(|&w| w != 0.0);
                assert!(least.fold(f32::INFINITY, f32::min) >= most, "{len} {sparsity}");
                assert!(pruned.iter().filter(|w| w.to_f32() == 0.0).count() >= count);
            }
        }
    }

    #[test]
    fn ties_zeros_and_what_is_not_finite() {
        let mut w = [1.0f32, -1.0, 1.0, 1.0];
        assert_eq!(prune(&mut w, 0.5).unwrap(), 2);
        assert_eq!(w, [0.0, 0.0, 1.0, 1.0], "the earlier of equals");
        let mut w = [f32::NAN, f32::NEG_INFINITY, -0.0, 3.0];
        assert_eq!(prune(&mut w, 0.75).unwrap(), 3);
        assert!(w[0].is_nan() && w[1..] == [0.0; 3] && w[2].to_bits() == 0);
        assert_eq!(prune::<f32>(&mut [], 0.5).unwrap(), 0);
        for bad in [-0.1, 1.1, f64::NAN] {
            assert!(prune(&mut [1.0f32], bad).is_err());
        }
    }
}
