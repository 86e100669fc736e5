//! The search over the variants for one problem: check, time, choose. What it times is behind [`Bench`].

use crate::ops::OpError;
use crate::ops::choices::{Family, Problem};
use crate::ops::w2a8_gemm::FEW_TOKENS;

/// How exactly to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// One launch: tells a clear loser only.
    Glance,
    /// One sample of many launches.
    Probe,
    /// A median of samples.
    Full,
}

/// Why a variant has no time.
#[derive(Debug)]
pub enum Failed {
    /// It was refused, or gave other bits. The search goes on.
    Variant(String),
    /// The device is lost. The search ends.
    Device(OpError),
}

/// What checks and times the variants of one problem.
pub trait Bench {
    /// Runs `variant` and compares every value of its output.
    ///
    /// # Errors
    /// Other bits, a refused launch, a lost device.
    fn check(&mut self, variant: usize) -> Result<(), Failed>;

    /// Microseconds of one launch of `variant`, which has passed its check.
    ///
    /// # Errors
    /// A failed launch, a lost device.
    fn time(&mut self, variant: usize, effort: Effort) -> Result<f64, Failed>;
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The variant to take; `None` when none passed.
    pub chosen: Option<usize>,
    /// Microseconds of each, or why it failed, in the order they were tried.
    pub tried: Vec<(usize, Result<f64, String>)>,
}

/// A glance counts the way to the device and cold caches: what it may be above the best, in microseconds and
/// as a factor, before the variant is a loser.
const GLANCE: (f64, f64) = (30.0, 3.0);
/// What a probe may be above the best.
const PROBE: f64 = 1.25;
/// What a variant has to be faster by before it replaces the default: it is timed alone, and beside other
/// kernels that overlap with it less is not kept.
pub const LEAST_GAIN: f64 = 1.1;
/// The same where the default was fitted to layers and the variants are timed alone: in a layer of 2B-4T, defaults that were
/// 1.2 to 1.27 times slower alone were faster.
const LEAST_GAIN_IN_LAYERS: f64 = 1.3;
/// Turns of the last comparison.
const TURNS: usize = 5;

/// What a variant for this problem has to be faster by.
pub fn least_gain(problem: &Problem) -> f64 {
    let fitted = problem.family() == Family::W2a8Gemm && problem.m() <= FEW_TOKENS as usize;
    if fitted { LEAST_GAIN_IN_LAYERS } else { LEAST_GAIN }
}

/// Tries `variants`, the default first, and chooses.
///
/// Each is checked before it is timed; one that fails is in the outcome with its reason and is never chosen.
/// The fastest then takes turns with the default, so that a drift of clocks meets both, and replaces it when
/// its median is lower by `gain`.
///
/// # Errors
/// A lost device.
pub fn search(
    default: usize,
    variants: impl IntoIterator<Item = usize>,
    gain: f64,
    bench: &mut impl Bench,
) -> Result<Outcome, OpError> {
    let others = variants.into_iter().filter(|&variant| variant != default);
    let mut tried: Vec<(usize, Result<f64, String>)> = Vec::new();
    let mut best: Option<(usize, f64)> = None;
    for variant in std::iter::once(default).chain(others) {
        let found = match measure(variant, best.map(|best| best.1), bench) {
            Ok((us, complete)) => {
                if complete && best.is_none_or(|best| us < best.1) {
                    best = Some((variant, us));
                }
                Ok(us)
            }
            Err(Failed::Variant(reason)) => Err(reason),
            Err(Failed::Device(error)) => return Err(error),
        };
        tried.push((variant, found));
    }
    let Some((best, _)) = best else { return Ok(Outcome { chosen: None, tried }) };
    if best == default || tried[0].1.is_err() {
        return Ok(Outcome { chosen: Some(best), tried });
    }
    let duel = match duel([default, best], bench) {
        Ok(duel) => duel,
        Err(Failed::Device(error)) => return Err(error),
        // Both ran before; what fails now and then is not to be chosen.
        Err(Failed::Variant(reason)) => {
            mark(&mut tried, best, Err(reason));
            return Ok(Outcome { chosen: Some(default), tried });
        }
    };
    mark(&mut tried, default, Ok(duel[0]));
    mark(&mut tried, best, Ok(duel[1]));
    let chosen = if duel[1] * gain <= duel[0] { best } else { default };
    Ok(Outcome { chosen: Some(chosen), tried })
}

/// Microseconds, and whether they are of full effort.
fn measure(
    variant: usize,
    best: Option<f64>,
    bench: &mut impl Bench,
) -> Result<(f64, bool), Failed> {
    bench.check(variant)?;
    if let Some(best) = best {
        let us = valid(bench.time(variant, Effort::Glance)?)?;
        if us > GLANCE.0 + GLANCE.1 * best {
            return Ok((us, false));
        }
        let us = valid(bench.time(variant, Effort::Probe)?)?;
        if us > PROBE * best {
            return Ok((us, false));
        }
    }
    Ok((valid(bench.time(variant, Effort::Full)?)?, true))
}

/// Medians of `pair`, timed in turns.
fn duel(pair: [usize; 2], bench: &mut impl Bench) -> Result<[f64; 2], Failed> {
    let mut times = [[0.0; TURNS]; 2];
    for turn in 0..TURNS {
        for (variant, times) in pair.iter().zip(&mut times) {
            times[turn] = valid(bench.time(*variant, Effort::Probe)?)?;
        }
    }
    Ok(times.map(|mut times| median(&mut times)))
}

fn valid(us: f64) -> Result<f64, Failed> {
    match us.is_finite() && us > 0.0 {
        true => Ok(us),
        false => Err(Failed::Variant(format!("a time of {us} us"))),
    }
}

fn mark(tried: &mut [(usize, Result<f64, String>)], variant: usize, found: Result<f64, String>) {
    if let Some(slot) = tried.iter_mut().find(|slot| slot.0 == variant) {
        slot.1 = found;
    }
}

/// The middle one; 0 of none.
pub(super) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of five variants with a clock of its own.
    struct Fake {
        us: [f64; 5],
        /// Added to every other sample of the variant.
        noise: [f64; 5],
        wrong: Vec<usize>,
        lost_at: Option<usize>,
        checked: Vec<usize>,
        timed: Vec<(usize, Effort)>,
    }

    impl Fake {
        fn new(us: [f64; 5]) -> Self {
            let (checked, timed) = (Vec::new(), Vec::new());
            Self { us, noise: [0.0; 5], wrong: Vec::new(), lost_at: None, checked, timed }
        }

        fn search(&mut self, default: usize) -> Outcome {
            search(default, 0..5, LEAST_GAIN, self).expect("the device is not lost")
        }
    }

    fn lost() -> OpError {
        OpError::HostMemory { label: "lost", bytes: 1 }
    }

    impl Bench for Fake {
        fn check(&mut self, variant: usize) -> Result<(), Failed> {
            self.checked.push(variant);
            if self.lost_at == Some(variant) {
                return Err(Failed::Device(lost()));
            }
            match self.wrong.contains(&variant) {
                true => Err(Failed::Variant("other bits".into())),
                false => Ok(()),
            }
        }

        fn time(&mut self, variant: usize, effort: Effort) -> Result<f64, Failed> {
            assert!(self.checked.contains(&variant), "timed before it was checked");
            assert!(!self.wrong.contains(&variant), "timed although it is wrong");
            self.timed.push((variant, effort));
            let odd = self.timed.len() % 2 == 1;
            let glance = if effort == Effort::Glance { 20.0 } else { 0.0 };
            Ok(self.us[variant] + glance + if odd { self.noise[variant] } else { 0.0 })
        }
    }

    #[test]
    fn the_fastest_is_chosen_and_all_are_recorded() {
        let mut fake = Fake::new([5.0, 4.0, 3.0, 8.0, 400.0]);
        let outcome = fake.search(1);
        assert_eq!(outcome.chosen, Some(2));
        assert_eq!(outcome.tried.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 0, 2, 3, 4]);
        assert!(outcome.tried.iter().all(|t| t.1.is_ok()));
        // The clear loser has cost one launch.
        let last: Vec<_> = fake.timed.iter().filter(|t| t.0 == 4).map(|t| t.1).collect();
        assert_eq!(last, [Effort::Glance]);
        assert!(!fake.timed.contains(&(3, Effort::Full)));
    }

    #[test]
    fn a_wrong_variant_is_recorded_and_never_chosen_or_timed() {
        let mut fake = Fake::new([5.0, 4.0, 0.5, 8.0, 4.5]);
        fake.wrong = vec![2];
        let outcome = fake.search(0);
        assert_eq!(outcome.chosen, Some(1));
        assert_eq!(outcome.tried[2], (2, Err("other bits".into())));
    }

    #[test]
    fn a_wrong_default_is_replaced_whatever_the_others_take() {
        let mut fake = Fake::new([1.0, 4.0, 9.0, 8.0, 400.0]);
        fake.wrong = vec![0];
        assert_eq!(fake.search(0).chosen, Some(1));
        fake.wrong = vec![0, 1, 2, 3];
        assert_eq!(fake.search(0).chosen, Some(4));
        fake.wrong = vec![0, 1, 2, 3, 4];
        let outcome = fake.search(0);
        assert_eq!(outcome.chosen, None);
        assert!(outcome.tried.iter().all(|t| t.1.is_err()));
    }

    #[test]
    fn what_is_hardly_faster_does_not_replace_the_default() {
        assert_eq!(Fake::new([5.0, 4.60, 6.0, 7.0, 8.0]).search(0).chosen, Some(0));
        assert_eq!(Fake::new([5.0, 4.50, 6.0, 7.0, 8.0]).search(0).chosen, Some(1));
    }

    #[test]
    fn products_of_layers_ask_for_more() {
        let gain = |family, m| least_gain(&Problem::of(family, m, 2560, 2560).unwrap());
        assert_eq!(gain(Family::W2a8Gemm, 64), LEAST_GAIN_IN_LAYERS);
        assert_eq!(gain(Family::W2a8Gemm, 96), LEAST_GAIN);
        assert_eq!(gain(Family::W2a8Gemv, 1), LEAST_GAIN);
        let mut fake = Fake::new([5.0, 4.0, 6.0, 7.0, 8.0]);
        assert_eq!(search(0, 0..5, LEAST_GAIN_IN_LAYERS, &mut fake).unwrap().chosen, Some(0));
        let mut fake = Fake::new([5.0, 3.8, 6.0, 7.0, 8.0]);
        assert_eq!(search(0, 0..5, LEAST_GAIN_IN_LAYERS, &mut fake).unwrap().chosen, Some(1));
    }

    #[test]
    fn the_choice_does_not_hang_on_one_disturbed_sample() {
        // Samples of the default and of the challenger are disturbed in turn.
        for noisy in [0, 1] {
            let mut fake = Fake::new([5.0, 4.0, 9.0, 9.0, 9.0]);
            fake.noise[noisy] = 0.5;
            assert_eq!(fake.search(0).chosen, Some(1));
        }
    }

    #[test]
    fn a_lost_device_ends_the_search() {
        let mut fake = Fake::new([1.0; 5]);
        fake.lost_at = Some(3);
        assert!(search(0, 0..5, LEAST_GAIN, &mut fake).is_err());
        assert_eq!(fake.checked, [0, 1, 2, 3]);
    }

    #[test]
    fn a_time_that_cannot_be_is_a_failure() {
        for us in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
            let outcome = Fake::new([5.0, us, 6.0, 6.0, 6.0]).search(0);
            assert_eq!(outcome.chosen, Some(0), "{us}");
            assert!(outcome.tried[1].1.is_err(), "{us}");
        }
    }
}
