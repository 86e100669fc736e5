//! The permuted weights of T-MAC (arXiv 2407.00088), as its offline preprocessing writes them.
//!
//! Bit `i` of weight row `r` is *bit row* `R = r / 8 * 8 bits + 8 i + r mod 8`. A nibble holds bit row
//! `R` of four columns, the first in the lowest bit; bytes run over blocks of `bm` bit rows, blocks of
//! `kfactor` column groups, 32 bit rows, the column groups of a block, then 16 bit rows, with those 16
//! further on in the high nibble. `bm` and `kfactor` were tuned for a machine and are not in the data.
//! Scales run over blocks of rows, weight groups, and eights of rows; where there are zero points, an
//! eight of them follows each eight of scales.

use contract::lut_matmul::lossy::GROUP;

use super::bits::{PackedBits, check_bits};
use super::{PackError, check_len, check_shape};

/// How a matrix was permuted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bits of a weight.
    pub bits: usize,
    /// Bit rows of a block.
    pub bm: usize,
    /// Groups of four columns of a block.
    pub kfactor: usize,
}

impl Layout {
    fn check(&self, n: usize, k: usize) -> Result<(), PackError> {
        let &Self { bits, bm, kfactor } = self;
        check_bits(bits)?;
        check_shape(n, k)?;
        let layout = "T-MAC's layout";
        let multiple_of = |dim, found: usize, multiple: usize| {
            if found == 0 || multiple == 0 || !found.is_multiple_of(multiple) {
                return Err(PackError::Multiple { layout, dim, multiple, found });
            }
            Ok(())
        };
        multiple_of("bm", bm, 32)?;
        multiple_of("bm", bm, 8 * bits)?;
        multiple_of("bits x N", bits * n, bm)?;
        multiple_of("kfactor", kfactor, 1)?;
        multiple_of("K", k, kfactor.saturating_mul(GROUP))
    }

    /// Byte and first bit of the nibble of bit `bit` of row `row` and column group `group`.
    fn place(&self, k: usize, row: usize, bit: usize, group: usize) -> (usize, usize) {
        let &Self { bits, bm, kfactor } = self;
        let bit_row = row / 8 * 8 * bits + 8 * bit + row % 8;
        let at = bit_row / bm * (k / GROUP / kfactor) + group / kfactor;
        let at = at * (bm / 32) + bit_row % bm / 32;
        let at = (at * kfactor + group % kfactor) * 16 + bit_row % 16;
        (at, bit_row % 32 / 16 * 4)
    }

    /// Where the scale of weight group `group` of `groups` of row `row` stands, with zero points
    /// between or not; the zero point stands eight further.
    fn scale_at(&self, groups: usize, row: usize, group: usize, zeros: bool) -> usize {
        let rows = self.bm / self.bits;
        let at = (row / rows * groups + group) * (rows / 8) + row % rows / 8;
        at * if zeros { 16 } else { 8 } + row % 8
    }
}

/// Reads an `n` by `k` matrix whose weight groups have `group` columns.
///
/// `scales` holds one value for each row and group, in the order of the layout, or two with
/// `zero_points`.
///
/// # Errors
/// A layout that the shape does not fill, buffers of another length, and what
/// [`PackedBits::from_codes`] refuses.
pub fn import(
    layout: Layout,
    bytes: &[u8],
    scales: &[f32],
    [n, k]: [usize; 2],
    group: usize,
    zero_points: bool,
) -> Result<PackedBits, PackError> {
    layout.check(n, k)?;
    check_len("T-MAC weights", bytes.len(), n * k * layout.bits / 8)?;
    let groups = k.div_ceil(group.max(1));
    check_len("T-MAC scales", scales.len(), n * groups * if zero_points { 2 } else { 1 })?;
    let mut codes = vec![0; n * k];
    for (row, codes) in codes.chunks_exact_mut(k).enumerate() {
        for (group, codes) in codes.chunks_exact_mut(GROUP).enumerate() {
            for bit in 0..layout.bits {
                let (byte, shift) = layout.place(k, row, bit, group);
                for (j, code) in codes.iter_mut().enumerate() {
                    *code |= (bytes[byte] >> (shift + j) & 1) << bit;
                }
            }
        }
    }
    let values = |offset| {
        let of = |i: usize| {
            scales[layout.scale_at(groups, i / groups, i % groups, zero_points) + offset]
        };
        (0..n * groups).map(of).collect()
    };
    let zeros = zero_points.then(|| values(8));
    PackedBits::from_codes(layout.bits, &codes, k, group, values(0), zeros)
}

/// A matrix as T-MAC has it: weights, and scales with their zero points.
///
/// # Errors
/// A layout of other bits, or that the shape does not fill.
pub fn export(layout: Layout, packed: &PackedBits) -> Result<(Vec<u8>, Vec<f32>), PackError> {
    let (n, k) = (packed.n(), packed.k());
    layout.check(n, k)?;
    if layout.bits != packed.bits() {
        return Err(PackError::Bits { bits: layout.bits });
    }
    let mut bytes = vec![0; n * k * layout.bits / 8];
    for (row, codes) in packed.to_codes().chunks_exact(k).enumerate() {
        for (group, codes) in codes.chunks_exact(GROUP).enumerate() {
            for bit in 0..layout.bits {
                let (byte, shift) = layout.place(k, row, bit, group);
                for (j, code) in codes.iter().enumerate() {
                    bytes[byte] |= (code >> bit & 1) << (shift + j);
                }
            }
        }
    }
    let groups = k.div_ceil(packed.group());
    let zeros = packed.zeros();
    let mut scales = vec![0.0; n * groups * if zeros.is_some() { 2 } else { 1 }];
    for (i, scale) in packed.scales().iter().enumerate() {
        let at = layout.scale_at(groups, i / groups, i % groups, zeros.is_some());
        scales[at] = *scale;
        if let Some(zeros) = zeros {
            scales[at + 8] = zeros[i];
        }
    }
    Ok((bytes, scales))
}
