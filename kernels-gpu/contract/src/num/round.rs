//! Rounding to whole numbers, halves to even, by adding and taking away 1.5 * 2^23.
//!
//! Exact for |x| < 2^22 and the same two additions on every machine. Minus zero, and what rounds to
//! it, gives plus zero.

/// 1.5 * 2^23: the numbers around it are 1 apart.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// The nearest whole number, halves to even, for |x| < 2^22.
#[inline(always)]
pub const fn round_even(x: f32) -> f32 {
    (x + MAGIC) - MAGIC
}

/// [`round_even`] as an integer, for |x| < 2^22. Outside, the result means nothing but is defined.
#[inline(always)]
pub const fn round_even_i32(x: f32) -> i32 {
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_standard_library() {
        let mut x = -4_194_303.5f32;
        while x < 4_194_303.5 {
            assert_eq!(round_even(x), x.round_ties_even(), "{x}");
            assert_eq!(round_even_i32(x), x.round_ties_even() as i32, "{x}");
            x += 7.25;
        }
        for i in -20_000i32..20_000 {
            let x = i as f32 / 64.0;
            assert_eq!(round_even(x), x.round_ties_even(), "{x}");
            assert_eq!(round_even_i32(x), x.round_ties_even() as i32, "{x}");
        }
        assert_eq!(round_even(-0.25).to_bits(), 0, "plus zero");
    }
}
