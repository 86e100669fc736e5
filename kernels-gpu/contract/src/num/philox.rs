//! Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011): random numbers from a counter.
//!
//! A number is a function of key and counter alone, so a seed gives the same text on every machine,
//! however the work is spread.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Four random words for `counter` under `key`.
#[inline(always)]
pub const fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k0, mut k1]) = (counter, key);
    let mut round = 0;
    while round < 10 {
        let x = (a as u64) * (MULTIPLIERS[0] as u64);
        let y = (c as u64) * (MULTIPLIERS[1] as u64);
        (a, b, c, d) = ((y >> 32) as u32 ^ b ^ k0, y as u32, (x >> 32) as u32 ^ d ^ k1, x as u32);
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
        round += 1;
    }
    [a, b, c, d]
}

/// The upper 24 bits of `word` as a number in `[0, 1)`.
#[inline(always)]
pub const fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the generator.
    #[test]
    fn known_answers() {
        let zero = philox4x32([0; 4], [0; 2]);
        assert_eq!(zero, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox4x32([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox4x32(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
        );
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn units_stay_below_one() {
        assert_eq!(unit(0), 0.0);
        assert_eq!(unit(u32::MAX), 1.0 - 1.0 / 16_777_216.0);
    }
}
