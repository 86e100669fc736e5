//! How the families without a reduction spread elements over threads: activation, elementwise.
//!
//! A tensor of `n` elements is rows of `k`, or one row of all. The output is cut into pieces of 16 bytes, whatever
//! rows these lie in; the last one may be shorter. What of an input lies beside one may begin anywhere; that does not
//! show in a bit.

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Pieces of a thread that are loaded before the first is used.
pub const BATCH: u32 = 2;

/// Pieces of a thread.
pub const PIECES: u32 = 2 * BATCH;

/// Most elements of a tensor: 2^40, four terabytes of `f32`.
pub const MAX_LEN: usize = 1 << 40;

/// Most elements of a row.
pub const MAX_ROW: usize = (1 << 31) - 1;

/// Bytes of a piece.
pub const PIECE_BYTES: u64 = 16;

/// Whether every row of every tensor starts on a boundary of 16 bytes, given their addresses and the
/// elements from row to row of each.
pub const fn aligned<const N: usize>(
    element_bytes: u64,
    rows: u64,
    addresses: [u64; N],
    strides: [u64; N],
) -> bool {
    let mut i = 0;
    while i < N {
        let step = if rows > 1 { strides[i] * element_bytes } else { 0 };
        if !(addresses[i] | step).is_multiple_of(PIECE_BYTES) {
            return false;
        }
        i += 1;
    }
    true
}

/// Blocks of a launch over `rows` of `k` elements.
pub const fn grid(element_bytes: u64, rows: u64, k: u64) -> u64 {
    let piece = PIECE_BYTES / element_bytes;
    (rows * k).div_ceil(piece).div_ceil((THREADS * PIECES) as u64)
}
