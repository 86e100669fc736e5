//! Elements of matrices, 16 bytes at a time.
//!
//! In every fragment of `A` and `B` four neighbouring lanes hold 16 bytes of neighbours in k: of `A`'s register
//! `i`, those of row `lane / 4 + 8 (i % 2)` in half `i / 2` of the 32 bytes; of `B`'s, those of column
//! `lane / 4` in half `i`. With `E` elements in 16 bytes, k is `2 E`.

/// 16 bytes, as words.
pub(super) type Piece = [u32; 4];

/// Rows of `A` that a warp has: `[row][half of k]`.
pub(super) type Left<T, const E: usize> = [[[T; E]; 2]; 16];

/// Eight columns of `B`: `[half of k][term][column]`.
pub(super) type Right<T, const E: usize> = [[[T; 8]; E]; 2];

/// The piece that lanes `4 group` to `4 group + 3` hold in a register.
#[inline(always)]
pub(super) fn of_lanes(register: &[u32; 32], group: usize) -> Piece {
    std::array::from_fn(|t| register[4 * group + t])
}

/// `A` of a warp, from its four registers.
#[inline(always)]
pub(super) fn left<T: Copy + Default, const E: usize>(
    registers: &[[u32; 32]; 4],
    decode: impl Fn(Piece) -> [T; E],
) -> Left<T, E> {
    let mut a = [[[T::default(); E]; 2]; 16];
    for (i, register) in registers.iter().enumerate() {
        for group in 0..8 {
            a[group + 8 * (i % 2)][i / 2] = decode(of_lanes(register, group));
        }
    }
    a
}

/// The two 16-bit halves of each word, the low one first.
#[inline(always)]
fn halves(piece: Piece) -> [u32; 8] {
    std::array::from_fn(|i| piece[i / 2] >> (16 * (i % 2)) & 0xffff)
}

/// bfloat16.
#[inline(always)]
pub(super) fn bf16(piece: Piece) -> [f64; 8] {
    halves(piece).map(|half| f32::from_bits(half << 16).into())
}

/// IEEE binary16.
#[inline(always)]
pub(super) fn f16(piece: Piece) -> [f64; 8] {
    // The bits are those of an f32 whose exponent is 112 too small, subnormal ones too.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    halves(piece).map(|half| {
        let number = f32::from_bits((half & 0x7fff) << 13) * SCALE;
        let special = if half & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(number.to_bits() | special | (half & 0x8000) << 16).into()
    })
}

/// tf32: the low 13 bits of a word are not looked at.
#[inline(always)]
pub(super) fn tf32(piece: Piece) -> [f64; 4] {
    piece.map(|word| f32::from_bits(word & 0xffff_e000).into())
}

/// Signed bytes.
#[inline(always)]
pub(super) fn s8(piece: Piece) -> [f32; 16] {
    std::array::from_fn(|i| f32::from((piece[i / 4] >> (8 * (i % 4))) as i8))
}

/// Unsigned bytes.
#[inline(always)]
pub(super) fn u8(piece: Piece) -> [f32; 16] {
    std::array::from_fn(|i| f32::from((piece[i / 4] >> (8 * (i % 4))) as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_is_decoded() {
        for bits in 0..=u16::MAX {
            let got = f16([u32::from(bits) << 16, 0, 0, 0])[1];
            let expected = half::f16::from_bits(bits).to_f64();
            assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan());
        }
    }

    #[test]
    fn every_bf16_is_decoded() {
        for bits in 0..=u16::MAX {
            let got = bf16([0, 0, 0, u32::from(bits)])[6];
            let expected = half::bf16::from_bits(bits).to_f64();
            assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan());
        }
    }

    #[test]
    fn bytes_are_decoded_in_order() {
        let piece = [0x8001_7fff, 0, 0, 0xfe00_0000];
        assert_eq!(s8(piece)[..4], [-1.0, 127.0, 1.0, -128.0]);
        assert_eq!(s8(piece)[15], -2.0);
        assert_eq!(u8(piece)[..4], [255.0, 127.0, 1.0, 128.0]);
    }

    #[test]
    fn tf32_has_ten_bits() {
        assert_eq!(tf32([0x3f80_3fff, 0, 0, 0])[0], 1.0 + f64::from(2.0f32.powi(-10)));
    }
}
