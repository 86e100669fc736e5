//! Weights of 1 to 4 bits in the tiles of [`contract::lut_matmul::lossy`].
//!
//! A code `u` of `b` bits stands for `u - 2^(b-1)`; the real weight is that times the scale of its
//! group, less the group's zero point where there is one. A group is a whole number of 32-column
//! steps, or the whole row. Rows past N and columns past K hold code 0, which meets activations of 0.

use contract::lut_matmul::TILE;
use contract::lut_matmul::lossy::{
    GROUP, MAX_BITS, STEP_COLUMNS, STEP_TABLES, packed_bytes, step_bytes, steps,
};

use super::{PackError, PackedW2, check_len, check_shape};

/// A matrix of `bits`-bit weights in tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedBits {
    bits: usize,
    n: usize,
    k: usize,
    group: usize,
    bytes: Vec<u8>,
    scales: Vec<f32>,
    zeros: Option<Vec<f32>>,
}

impl PackedBits {
    /// Packs `codes` (`[n, k]`, row-major), with `scales` and `zeros` (`[n, ceil(k / group)]`).
    ///
    /// The published convention for a quantiser with integer zero points `q` is
    /// `zeros = (q - 2^(bits-1)) * scale`.
    ///
    /// # Errors
    /// Bits other than 1 to 4, a shape outside of the contract, a group that is no multiple of 32
    /// and does not take the whole row, buffers of another length, a code of more bits, a scale or
    /// zero point that is not finite.
    pub fn from_codes(
        bits: usize,
        codes: &[u8],
        k: usize,
        group: usize,
        scales: Vec<f32>,
        zeros: Option<Vec<f32>>,
    ) -> Result<Self, PackError> {
        check_bits(bits)?;
        let n = codes.len().checked_div(k).unwrap_or(0);
        check_shape(n, k)?;
        check_len("codes", codes.len(), n * k)?;
        let whole = group >= k;
        if group == 0 || !whole && !group.is_multiple_of(STEP_COLUMNS) {
            let (layout, dim) = ("the bit-serial layout", "a weight group");
            let (multiple, found) = (STEP_COLUMNS, group);
            return Err(PackError::Multiple { layout, dim, multiple, found });
        }
        let group = if whole { k.next_multiple_of(STEP_COLUMNS) } else { group };
        let groups = k.div_ceil(group);
        check_values("scale", &scales, n, groups)?;
        zeros.as_deref().map_or(Ok(()), |zeros| check_values("zero point", zeros, n, groups))?;
        let mut bytes = vec![0; packed_bytes(bits, n, k)];
        let step_bytes = step_bytes(bits);
        for (row, codes) in codes.chunks_exact(k).enumerate() {
            let tile = &mut bytes[row / TILE * steps(k) * step_bytes..][..steps(k) * step_bytes];
            for (col, &code) in codes.iter().enumerate() {
                if code >> bits != 0 {
                    return Err(PackError::CodeBits { row, col, code, bits });
                }
                for bit in 0..bits {
                    let (at, shift) = place(bits, row % TILE, col, bit);
                    tile[at] |= (code >> bit & 1) << shift;
                }
            }
        }
        Ok(Self { bits, n, k, group, bytes, scales, zeros })
    }

    /// A ternary matrix as 2-bit weights, `u = t + 2`, with one scale for each row.
    ///
    /// # Errors
    /// As [`PackedBits::from_codes`].
    pub fn from_w2(packed: &PackedW2) -> Result<Self, PackError> {
        let codes: Vec<u8> = packed.to_ternaries().iter().map(|&t| (t + 2) as u8).collect();
        let scales = (0..packed.n).map(|row| packed.segments.scale_of(row as u32)).collect();
        Self::from_codes(2, &codes, packed.k, packed.k, scales, None)
    }

    /// All codes, row-major.
    pub fn to_codes(&self) -> Vec<u8> {
        let tile_bytes = steps(self.k) * step_bytes(self.bits);
        let mut codes = vec![0; self.n * self.k];
        for (row, codes) in codes.chunks_exact_mut(self.k).enumerate() {
            let tile = &self.bytes[row / TILE * tile_bytes..][..tile_bytes];
            for (col, code) in codes.iter_mut().enumerate() {
                for bit in 0..self.bits {
                    let (at, shift) = place(self.bits, row % TILE, col, bit);
                    *code |= (tile[at] >> shift & 1) << bit;
                }
            }
        }
        codes
    }

    /// The tiles.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Scales `[n, groups]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Zero points `[n, groups]`, in units of the real weight.
    pub fn zeros(&self) -> Option<&[f32]> {
        self.zeros.as_deref()
    }

    /// Bits of a weight.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns of a weight group, a multiple of 32.
    pub fn group(&self) -> usize {
        self.group
    }
}

/// Byte of a tile, and bit in it, of bit `bit` of column `col` of row `r`.
const fn place(bits: usize, r: usize, col: usize, bit: usize) -> (usize, usize) {
    let (step, table) = (col / STEP_COLUMNS, col / GROUP % STEP_TABLES);
    let vector = table / 2 * bits + bit;
    (step * step_bytes(bits) + vector * TILE + r, table % 2 * 4 + col % GROUP)
}

/// Refuses a width of weights that there is no kernel for.
pub(crate) fn check_bits(bits: usize) -> Result<(), PackError> {
    match bits {
        1..=MAX_BITS => Ok(()),
        _ => Err(PackError::Bits { bits }),
    }
}

fn check_values(
    what: &'static str,
    values: &[f32],
    n: usize,
    groups: usize,
) -> Result<(), PackError> {
    check_len(what, values.len(), n * groups)?;
    match values.iter().position(|v| !v.is_finite()) {
        Some(at) => {
            let (row, group, value) = (at / groups, at % groups, values[at]);
            Err(PackError::GroupValue { what, row, group, value })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference::Inputs;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn tiles_keep_the_codes(bits in 1usize..=4, n in 1usize..80, k in 1usize..200, seed: u64) {
            let mut inputs = Inputs::new(seed);
            let codes: Vec<u8> = (0..n * k).map(|_| inputs.below(1 << bits) as u8).collect();
            let packed = PackedBits::from_codes(bits, &codes, k, k, vec![1.0; n], None).unwrap();
            prop_assert_eq!(packed.to_codes(), codes);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let codes = vec![1u8; 2 * 100];
        let pack = |bits, codes: &[u8], group, scales| {
            PackedBits::from_codes(bits, codes, 100, group, scales, None)
        };
        assert!(pack(2, &codes, 32, vec![1.0; 8]).is_ok());
        assert_eq!(pack(0, &codes, 32, vec![1.0; 8]), Err(PackError::Bits { bits: 0 }));
        assert_eq!(pack(5, &codes, 32, vec![1.0; 8]), Err(PackError::Bits { bits: 5 }));
        for group in [0, 31, 50, 99] {
            let refused = pack(2, &codes, group, vec![1.0; 8]);
            assert!(matches!(refused, Err(PackError::Multiple { .. })), "{group}: {refused:?}");
        }
        let refused = pack(2, &codes, 64, vec![1.0; 8]);
        assert!(matches!(refused, Err(PackError::Length { expected: 4, found: 8, .. })));
        let mut bad = vec![1.0; 8];
        bad[5] = f32::INFINITY;
        let refused = pack(2, &codes, 32, bad);
        assert!(matches!(refused, Err(PackError::GroupValue { row: 1, group: 1, .. })));
        let mut bad = codes.clone();
        bad[103] = 4;
        let refused = pack(2, &bad, 32, vec![1.0; 8]);
        assert_eq!(refused, Err(PackError::CodeBits { row: 1, col: 3, code: 4, bits: 2 }));
        let refused = pack(2, &codes[1..], 32, vec![1.0; 8]);
        assert!(matches!(refused, Err(PackError::Length { .. })));
        assert!(matches!(pack(2, &[], 32, Vec::new()), Err(PackError::Shape { .. })));
    }
}
