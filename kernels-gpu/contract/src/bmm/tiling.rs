//! How kernels cut a result.

use super::{QUICK_COLUMNS, QUICK_ROWS, THIN_ROWS};

/// How a kernel cuts the result: a block makes `tiles` tiles of `rows` by `columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Rows of a tile.
    pub rows: u32,
    /// Columns of a tile.
    pub columns: u32,
    /// Tiles of a block, of one matrix or of several.
    pub tiles: u32,
}

impl Tiling {
    /// Tiles of one matrix.
    pub const fn per_matrix(&self, m: u32, n: u32) -> u64 {
        m.div_ceil(self.rows) as u64 * n.div_ceil(self.columns) as u64
    }

    /// Blocks of a launch; more than a grid holds is the caller's to refuse.
    pub const fn blocks(&self, m: u32, n: u32, batch: u32) -> u64 {
        (self.per_matrix(m, n) * batch as u64).div_ceil(self.tiles as u64)
    }
}

/// 128 by 128.
pub const SIDE_128: Tiling = Tiling { rows: 128, columns: 128, tiles: 1 };
/// 64 by 64.
pub const SIDE_64: Tiling = Tiling { rows: 64, columns: 64, tiles: 1 };
/// Four tiles of 32 by 32, a warp each.
pub const SIDE_32: Tiling = Tiling { rows: 32, columns: 32, tiles: 4 };
/// Four tiles of 16 by 16, half a warp each.
pub const SIDE_16: Tiling = Tiling { rows: 16, columns: 16, tiles: 4 };
/// 32 by 32.
pub const ONE_32: Tiling = Tiling { rows: 32, columns: 32, tiles: 1 };
/// 16 by 16.
pub const ONE_16: Tiling = Tiling { rows: 16, columns: 16, tiles: 1 };
/// 8 by 8.
pub const ONE_8: Tiling = Tiling { rows: 8, columns: 8, tiles: 1 };
/// 80 by 96.
pub const WIDE_96: Tiling = Tiling { rows: 80, columns: 96, tiles: 1 };
/// 128 by 192.
pub const WIDE_192: Tiling = Tiling { rows: 128, columns: 192, tiles: 1 };
/// 192 by 192.
pub const SIDE_192: Tiling = Tiling { rows: 192, columns: 192, tiles: 1 };
/// 128 by 256.
pub const WIDE_256: Tiling = Tiling { rows: 128, columns: 256, tiles: 1 };
/// 16 by 32.
pub const QUICK: Tiling = Tiling { rows: QUICK_ROWS, columns: QUICK_COLUMNS, tiles: 1 };

/// Few rows by 32 columns, of which four warps share out the chunks of k.
pub const THIN_32: Tiling = Tiling { rows: THIN_ROWS, columns: 32, tiles: 1 };
/// Few rows by 128 columns, 32 of each warp.
pub const THIN_128: Tiling = Tiling { rows: THIN_ROWS, columns: 128, tiles: 1 };
