//! Blocks some of whose warps copy for the others.

use super::{Args, K_CHUNK, SPREAD, THIN_ROWS, thin_rows};
use crate::launch::LaunchSpec;

/// Barriers that a block has room for where some warps copy for the others.
pub const FED_BARRIERS: u32 = 32;
/// Words of a line of `depth` terms there: lanes that read lines side by side meet different banks.
pub const fn fed_line(depth: u32) -> u32 {
    depth + 4
}

/// Shared memory of a block some of whose warps copy for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed {
    /// Rows of a tile; 0: [`thin_rows`] of those that there are.
    pub rows: u32,
    /// Columns of a tile.
    pub columns: u32,
    /// Terms of a slice.
    pub depth: u32,
    /// Places of the ring.
    pub places: u32,
    /// Chunks that a block makes at a time.
    pub ways: u32,
    /// How often it does until their sums, which it keeps so long, are added up.
    pub rounds: u32,
}

impl Fed {
    /// Bytes of barriers, sums of chunks, the ring, and totals where sums are added up more than once.
    pub(super) const fn bytes(&self, args: &Args) -> u32 {
        let split = if args.split < SPREAD { args.split } else { 16 };
        let rounds = args.k.div_ceil(K_CHUNK as u32).div_ceil(self.ways << split);
        let rows = if self.rows == 0 { thin_rows(args.m) } else { self.rows };
        self.all(rows, self.width(rows), rounds > self.rounds)
    }

    const fn all(&self, rows: u32, columns: u32, more: bool) -> u32 {
        let ring = self.places * self.ways * (rows + columns) * fed_line(self.depth);
        let sums = (self.rounds * self.ways + more as u32) * rows * columns;
        8 * FED_BARRIERS + (sums + ring) * 4
    }

    /// Columns of a tile with so many rows.
    pub const fn width(&self, rows: u32) -> u32 {
        if self.rows == 0 && rows == THIN_ROWS { 8 } else { self.columns }
    }

    /// Tiles.
    pub const fn tiles(&self, m: u32, n: u32) -> u64 {
        let rows = if self.rows == 0 { thin_rows(m) } else { self.rows };
        m.div_ceil(rows) as u64 * n.div_ceil(self.width(rows)) as u64
    }

    /// Blocks of a multiprocessor, at least.
    pub const fn resident(&self) -> u32 {
        if self.ways > 1 { 1 } else { 2 }
    }

    /// A kernel with this memory, and so many warps that multiply.
    pub(super) const fn spec(&self, symbol: &'static str, warps: u32) -> LaunchSpec {
        let rows = if self.rows == 0 { THIN_ROWS } else { self.rows };
        let threads = 32 * (warps + if self.ways > 1 { 8 } else { 4 });
        let spec = LaunchSpec::new(symbol, threads).with_min_blocks(self.resident());
        spec.with_smem(self.all(rows, self.columns, true)).only_on(90)
    }
}

/// Few rows.
pub const FED_FEW: Fed = Fed { rows: 0, columns: 32, depth: 128, places: 4, ways: 1, rounds: 8 };
/// 16 by 16.
pub const FED_16: Fed = Fed { rows: 16, columns: 16, depth: 64, places: 8, ways: 1, rounds: 8 };
/// 32 by 32.
pub const FED_32: Fed = Fed { rows: 32, columns: 32, depth: 64, places: 5, ways: 1, rounds: 2 };
/// 8 by 8, of eight chunks at a time.
pub const FED_8: Fed = Fed { rows: 8, columns: 8, depth: 64, places: 4, ways: 8, rounds: 2 };
