//! The packed layout of Hugging Face checkpoints: `U8 [R, K]` with `R = ceil(N / 4)`.
//!
//! Byte row r holds the logical rows r, r+R, r+2R and r+3R (not 4r..4r+4) in its bit pairs, lowest
//! first, as codes `t + 1`. When N is not a multiple of 4 the pairs of rows that do not exist hold
//! code 0 and are never read.

use contract::w2a8::row_words;

use super::{PackError, check_len, check_shape, word};

/// R: byte rows of a matrix of `n` rows.
pub const fn packed_rows(n: usize) -> usize {
    n.div_ceil(4)
}

/// Decodes the logical rows `first_row..` of quarter `quarter` from their byte rows.
///
/// `bytes` holds `out.len() / row_words(k)` byte rows of `k` bytes; `first_row` only names rows in
/// errors.
pub(crate) fn decode_rows(
    bytes: &[u8],
    k: usize,
    quarter: usize,
    first_row: usize,
    out: &mut [u32],
) -> Result<(), PackError> {
    let width = row_words(k);
    let rows = out.len() / width;
    check_len("packed rows", bytes.len(), rows * k)?;
    check_len("rows", out.len(), rows * width)?;
    let shift = 2 * (quarter as u32 & 3);
    for (i, (lane, row)) in bytes.chunks_exact(k).zip(out.chunks_exact_mut(width)).enumerate() {
        word::words_from_lane(lane, shift, row);
        word::pad_row(row, k);
        word::turn_row(row);
        word::check_row(row, first_row + i)?;
    }
    Ok(())
}

/// Encodes one byte row from the up to four device rows that share it, quarter 0 first.
pub(crate) fn encode_row(rows: &[&[u32]], bytes: &mut [u8]) {
    bytes.fill(0);
    for (quarter, row) in rows.iter().take(4).enumerate() {
        word::lane_from_words(word::neighbours(row), 2 * quarter as u32, bytes);
    }
}

/// Packs `ternaries` (`[n, k]`, row-major).
pub fn pack(ternaries: &[i8], n: usize, k: usize) -> Result<Vec<u8>, PackError> {
    let packed = super::PackedW2::from_ternaries(ternaries, k, &[(n, 1.0)])?;
    let quarter = packed_rows(n);
    let mut bytes = vec![0; quarter * k];
    for (r, out) in bytes.chunks_exact_mut(k).enumerate() {
        let rows: Vec<&[u32]> = (r..n).step_by(quarter).map(|row| packed.row(row)).collect();
        encode_row(&rows, out);
    }
    Ok(bytes)
}

/// Unpacks to ternaries (`[n, k]`, row-major).
pub fn unpack(bytes: &[u8], n: usize, k: usize) -> Result<Vec<i8>, PackError> {
    check_shape(n, k)?;
    let quarter = packed_rows(n);
    check_len("packed bytes", bytes.len(), quarter * k)?;
    let mut row_words_ = vec![0; row_words(k)];
    let mut out = vec![0; n * k];
    for (row, values) in out.chunks_exact_mut(k).enumerate() {
        let lane = &bytes[row % quarter * k..][..k];
        decode_rows(lane, k, row / quarter, row, &mut row_words_)?;
        word::ternaries_from_row(&row_words_, values);
    }
    Ok(out)
}
