//! The average of a window, from its sum.

use crate::num::{fma, reciprocal};

/// `1 / count` in two numbers: the largest below it, and what is missing.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    high: f32,
    low: f32,
}

impl Share {
    /// That of `count` taps, at least one.
    #[inline(always)]
    pub fn of(count: u32) -> Self {
        let count = count as f32;
        let nearest = reciprocal(count);
        // Below it also where the nearest is exact: so that what is missing is above zero, and infinities stay what they are.
        let high = if fma(-nearest, count, 1.0) > 0.0 {
            nearest
        } else {
            f32::from_bits(nearest.to_bits() - 1)
        };
        Self { high, low: fma(-high, count, 1.0) * nearest }
    }

    /// Both numbers, the larger one first.
    #[inline(always)]
    pub const fn parts(self) -> [f32; 2] {
        [self.high, self.low]
    }

    /// From [`Share::parts`].
    #[inline(always)]
    pub const fn from_parts([high, low]: [f32; 2]) -> Self {
        Self { high, low }
    }

    /// Its part of `sum`: `sum / count`, rounded, where that is 2^-100 or more and `count` less than 2^16; zero is plus zero.
    ///
    /// The product is right to some 2^-46 of itself before it is rounded. A quotient that is so near to the middle of two numbers,
    /// and not in it, has a larger divisor; in it is none.
    #[inline(always)]
    pub fn take(self, sum: f32) -> f32 {
        fma(sum, self.high, fma(sum, self.low, 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_rounded_quotient() {
        let mut state = 1u32;
        let mut bits = || {
            state = state.wrapping_mul(0x9e37_79b1) ^ (state >> 15);
            state = state.wrapping_add(0x85eb_ca6b);
            state
        };
        for count in (1..1200).chain((1200..1 << 16).step_by(97)) {
            let share = Share::of(count);
            for _ in 0..200 {
                let sum = f32::from_bits(bits());
                let exact = sum / count as f32;
                if exact.is_nan() || exact.abs() >= f32::from_bits(27 << 23) {
                    assert!(
                        share.take(sum) == exact || exact.is_nan() && share.take(sum).is_nan(),
                        "{sum} / {count}"
                    );
                }
            }
            // Multiples, and their neighbours.
            for k in 1..50u32 {
                for near in [-1i32, 0, 1] {
                    let sum =
                        f32::from_bits(((k * count) as f32).to_bits().wrapping_add_signed(near));
                    assert_eq!(share.take(sum), sum / count as f32, "{sum} / {count}");
                }
            }
        }
    }

    #[test]
    fn odd_sums() {
        for count in [1, 2, 3, 9, 16, 49, 1000] {
            let share = Share::of(count);
            assert_eq!([share.take(0.0), share.take(-0.0)].map(f32::to_bits), [0, 0]);
            assert_eq!(share.take(f32::INFINITY), f32::INFINITY);
            assert_eq!(share.take(f32::NEG_INFINITY), f32::NEG_INFINITY);
            assert!(share.take(f32::NAN).is_nan());
            assert_eq!(share.take(f32::MAX), f32::MAX / count as f32);
        }
    }
}
