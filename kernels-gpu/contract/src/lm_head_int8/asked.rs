//! What the sampler asks of the head, and the floor that rows have to reach for it.

use super::{FLOOR_BITS, MAX_WANTED, REACH, has_bounds};
use crate::num::{fma, order_key, order_value};
use crate::sample::{SampleParams, penalise, temper};

/// What the sampler asks of this head.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// As in [`SampleParams`].
    pub temperature: f32,
    /// As in [`SampleParams`].
    pub penalty: f32,
    /// As in [`SampleParams`].
    pub top_k: u32,
    /// What a token weighs at least to be drawn, where the weight of the others does not matter: [`Asked::least`].
    pub least: u32,
    /// Whether every logit has to be there ([`SampleParams::every`]).
    pub whole: bool,
}

/// The key of a token that is forbidden for certain: its bounds are minus infinity, as its logit is then.
pub const BARRED: u32 = order_key(f32::NEG_INFINITY);

impl Asked {
    /// The part of `params` that matters.
    pub const fn of(params: &SampleParams) -> Self {
        Self {
            temperature: params.temperature,
            penalty: params.repetition_penalty,
            top_k: params.top_k,
            least: Self::least(params.min_weight, params.top_p_q32),
            whole: params.every != 0,
        }
    }

    /// [`Asked::least`] for the least weight and the top-p of [`SampleParams`]: top-p takes the weight of every token, and what comes
    /// behind it then drops none for certain.
    #[inline(always)]
    pub const fn least(min_weight: u32, top_p_q32: u64) -> u32 {
        if top_p_q32 >> 32 == 0 { 0 } else { min_weight }
    }

    /// What only changes bounds.
    #[inline(always)]
    pub const fn of_bounds(temperature: f32, penalty: f32) -> Self {
        Self { temperature, penalty, top_k: 0, least: 0, whole: false }
    }

    /// Whether the best `top_k` are few enough to be looked for.
    #[inline(always)]
    const fn few(&self, vocab: u32) -> bool {
        self.top_k != 0 && self.top_k < vocab && self.top_k <= MAX_WANTED
    }

    /// How many of the best logits decide the token; 0 when all may, or when no order is kept. Of those that
    /// [weigh enough](Asked::weighs) beside the best, the best.
    #[inline(always)]
    pub fn wanted(&self, vocab: u32) -> u32 {
        let penalty = self.penalty.abs();
        let monotone = !self.whole
            && penalty > 0.0
            && penalty < f32::INFINITY
            && self.temperature != f32::INFINITY;
        if !monotone {
            0
        } else if self.temperature > 0.0 {
            if self.few(vocab) { self.top_k } else { u32::from(self.least > 0) }
        } else {
            1 // NaN too
        }
    }

    /// Whether the token is drawn from those that weigh [`Asked::least`] at least.
    #[inline(always)]
    pub fn weighs(&self, vocab: u32) -> bool {
        self.temperature > 0.0 && !self.few(vocab) && self.least > 0
    }

    /// The floor where one logit is [wanted](Asked::wanted), and reaches `key`.
    ///
    /// With `least >= 2^i` and `d > (31 - i) ln 2`: `x < fl(key - d)` means `x < key - d`, as rounding keeps the order, and `key` is at most the best. So
    /// the rounded `x - best` is at most `-d`, and its exponential times `2^31` less than `2^i`, by more than the error of `exp`.
    #[inline(always)]
    pub fn floor(&self, key: u32, vocab: u32) -> u32 {
        if !self.weighs(vocab) {
            return floor_of(key);
        }
        let halvings = (self.least.leading_zeros() as f32) * core::f32::consts::LN_2;
        floor_of(order_key(order_value(key) - fma(halvings, REACH, 1.0 / 64.0)))
    }

    /// Whether the sampler takes every logit of an input of these statistics.
    #[inline(always)]
    pub fn every(&self, input: [f32; 4], vocab: u32) -> bool {
        !self.alone(vocab) && (!has_bounds(input) || self.wanted(vocab) == 0)
    }

    /// Whether the best is all that is asked, and is found by its bounds.
    #[inline(always)]
    pub fn alone(&self, vocab: u32) -> bool {
        let draws = self.temperature > 0.0;
        !draws && self.wanted(vocab) != 0
    }

    /// Whether the sampler sees every logit as it is.
    #[inline(always)]
    pub fn keeps(&self) -> bool {
        let tempers = self.temperature > 0.0;
        self.penalty == 1.0 && !tempers
    }

    /// A bound as the sampler will see the logit, by [`crate::sample::counted`] marks.
    #[inline(always)]
    pub fn adjust(&self, bound: f32, marks: u8) -> f32 {
        temper(penalise(bound, marks, self.penalty), self.temperature)
    }
}

/// The floor that a key of the table above stands for.
#[inline(always)]
pub const fn floor_of(key: u32) -> u32 {
    key >> FLOOR_BITS << FLOOR_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_keeps_the_order_is_searched() {
        let asked = |temperature, penalty, top_k| {
            let bounds = Asked::of_bounds(temperature, penalty);
            Asked { top_k, ..bounds }
        };
        let weighing = |top_k, least| Asked { top_k, least, ..Asked::of_bounds(0.5, 1.3) };
        for (asked, vocab, want) in [
            (asked(0.0, 1.0, 0), 9, 1),
            (asked(-1.0, 1.0, 7), 9, 1),
            (asked(f32::NAN, 1.3, 7), 9, 1),
            (asked(0.5, 1.3, 7), 9, 7),
            (asked(0.5, 1.3, 9), 9, 0),
            (asked(0.5, 1.3, 0), 9, 0),
            (asked(0.5, 1.3, MAX_WANTED), 1000, MAX_WANTED),
            (asked(0.5, 1.3, MAX_WANTED + 1), 1000, 0),
            (asked(0.0, 0.0, 0), 9, 0),
            (asked(0.0, -1.0, 0), 9, 1),
            (asked(0.5, -1.3, 7), 9, 7),
            (Asked { whole: true, ..asked(0.5, -1.3, 7) }, 9, 0),
            (Asked { whole: true, ..asked(0.0, 1.0, 0) }, 9, 0),
            (asked(0.0, f32::NEG_INFINITY, 0), 9, 0),
            (asked(0.0, f32::NAN, 0), 9, 0),
            (asked(0.0, f32::INFINITY, 0), 9, 0),
            (asked(f32::INFINITY, 1.0, 3), 9, 0),
            (weighing(0, 1), 9, 1),
            (weighing(MAX_WANTED + 1, 5), 1000, 1),
            (weighing(7, 5), 1000, 7),
        ] {
            assert_eq!(asked.wanted(vocab), want, "{asked:?}");
            let weighs = asked.least > 0 && asked.top_k != 7;
            assert_eq!(asked.weighs(vocab), weighs, "{asked:?}");
        }
        assert_eq!([0, 1 << 32].map(|top_p| Asked::least(7, top_p)), [0, 7]);
    }

    #[test]
    fn what_is_below_the_floor_weighs_less() {
        use crate::sample::{ONE_WEIGHT, weight};
        for least in [1, 2, 3, 1000, 1 << 20, (1 << 30) - 1, 1 << 30, ONE_WEIGHT - 1, ONE_WEIGHT] {
            let asked = Asked { least, ..Asked::of_bounds(0.5, 1.0) };
            for best in [0.0, -0.0, 1.0, -1.0, 17.3, 1e-40, 3e5, -2e7, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let floor = asked.floor(order_key(best), 100);
                assert!(floor <= order_key(best) || best.is_nan());
                for below in [1, 2, 5, 100, 5000, 1 << 20] {
                    let x = order_value(floor.saturating_sub(below));
                    let below = order_key(x) < floor;
                    assert!(!below || weight(x, best) < least, "{x} {best} {least}");
                }
            }
        }
    }
}
