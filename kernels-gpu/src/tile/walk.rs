//! Which tile a block makes: tiles that run at the same time share rows and columns, so that what
//! one of them read is in L2 for the others.

/// Tiles that stand in one column before the next column begins.
const BAND: u32 = 8;

/// Row and column of tile `index` among `rows` by `columns` tiles: bands of eight tile rows, down
/// each column of a band first.
#[inline(always)]
pub fn tile_at(index: u32, rows: u32, columns: u32) -> [u32; 2] {
    let band = index / (BAND * columns);
    let first = band * BAND;
    let height = (rows - first).min(BAND);
    let within = index - band * (BAND * columns);
    [first + within % height, within / height]
}
