//! Loads of fragments, and stores: `ldmatrix`, `stmatrix` ("Warp-level matrix load instruction: ldmatrix" and the like).

/// Four 8 by 8 matrices of 16-bit elements (`m8n8.x4.b16`): register `i` of each lane. `rows[8 i + r]` is
/// row `r` of matrix `i`: the 16 bytes at the address of lane `8 i + r`.
///
/// Lane `l` gets elements `2 (l % 4)` and the next of row `l / 4`; where `transposed`, of column `l / 4`. The first
/// one is in the low bits. `.x1` and `.x2` are the first registers of this.
pub(crate) fn ldmatrix(rows: &[[u8; 16]; 32], transposed: bool) -> [[u32; 32]; 4] {
    std::array::from_fn(|i| {
        std::array::from_fn(|lane| {
            let element = |row: usize, column: usize| {
                let row = &rows[8 * i + row];
                u32::from(u16::from_le_bytes([row[2 * column], row[2 * column + 1]]))
            };
            let (g, t) = (lane / 4, lane % 4);
            if transposed {
                element(2 * t, g) | element(2 * t + 1, g) << 16
            } else {
                element(g, 2 * t) | element(g, 2 * t + 1) << 16
            }
        })
    })
}

/// The rows that `stmatrix.m8n8.x4.trans.b16` writes: row `8 i + r`, at the address of lane `8 i + r`, is row `r` of
/// matrix `i`. What transposed [`ldmatrix`] reads.
pub(crate) fn stmatrix(words: &[[u32; 32]; 4]) -> [[u8; 16]; 32] {
    std::array::from_fn(|row| {
        let (i, r) = (row / 8, row % 8);
        std::array::from_fn(|byte| {
            // Element (row `r`, column `c`) is in the lane of column `c`.
            let word = words[i][4 * (byte / 2) + r / 2];
            (word >> (16 * (r % 2) + 8 * (byte % 2))) as u8
        })
    })
}

/// What `movmatrix.m8n8.trans` makes of an 8 by 8 matrix whose row `l / 4` lane `l` holds two elements of, `2 (l % 4)` and the next: two of
/// column `l / 4`.
pub(crate) fn movmatrix(words: &[u32; 32]) -> [u32; 32] {
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        let element = |row: usize| words[4 * row + g / 2] >> (16 * (g % 2)) & 0xffff;
        element(2 * t) | element(2 * t + 1) << 16
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row `r` of matrix `m` has elements `256 m + 16 r + column`.
    fn rows() -> [[u8; 16]; 32] {
        std::array::from_fn(|row| {
            std::array::from_fn(|byte| match byte % 2 {
                0 => (16 * (row % 8) + byte / 2) as u8,
                _ => (row / 8) as u8,
            })
        })
    }

    #[test]
    fn lanes_get_neighbours_of_a_row() {
        let got = ldmatrix(&rows(), false);
        assert_eq!(got[0][..5], [0x0001_0000, 0x0003_0002, 0x0005_0004, 0x0007_0006, 0x0011_0010]);
        assert_eq!(got[3][31], 0x0377_0376);
    }

    #[test]
    fn lanes_get_neighbours_of_a_column() {
        let got = ldmatrix(&rows(), true);
        assert_eq!(got[0][..5], [0x0010_0000, 0x0030_0020, 0x0050_0040, 0x0070_0060, 0x0011_0001]);
        assert_eq!(got[2][30], 0x0257_0247);
    }

    #[test]
    fn stores_are_loads_backwards() {
        assert_eq!(stmatrix(&ldmatrix(&rows(), true)), rows());
    }

    #[test]
    fn a_matrix_is_turned_as_a_transposed_load_turns_it() {
        let rows = rows();
        let [straight, ..] = ldmatrix(&rows, false);
        let [turned, ..] = ldmatrix(&rows, true);
        assert_eq!(movmatrix(&straight), turned);
        assert_eq!(movmatrix(&turned), straight);
    }
}
