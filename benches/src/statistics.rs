//! Medians and the spread around them.

use serde::Serialize;

/// Median, tenth and ninetieth percentile of a set of measurements, in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half of the measurements are not above this.
    pub median: f64,
    /// A tenth of the measurements is not above this.
    pub p10: f64,
    /// Nine tenths of the measurements are not above this.
    pub p90: f64,
}

impl Quantiles {
    /// Of `samples`, in any order. `None` when there are none.
    pub fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)?;
        let at = |q: f64| samples[(q * last as f64).round() as usize];
        Some(Self { median: at(0.5), p10: at(0.1), p90: at(0.9) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_of_the_sorted_set() {
        assert_eq!(Quantiles::of(vec![]), None);
        let one = Quantiles::of(vec![3.0]).unwrap();
        assert_eq!((one.median, one.p10, one.p90), (3.0, 3.0, 3.0));
        let samples = (0..=100).rev().map(f64::from).collect();
        let all = Quantiles::of(samples).unwrap();
        assert_eq!((all.median, all.p10, all.p90), (50.0, 10.0, 90.0));
    }
}
