//! I2_S of bitnet.cpp's GGUF files: 128 values in 32 bytes, and one f32 scale behind the matrix.
//!
//! Value `j` of a block of 128 has code `t + 1` in byte `j mod 32`, bit pair `3 - j / 32` (the first
//! 32 values in the top bits). A matrix takes `N * K / 4` bytes, then 32: the scale g as f32 and 28
//! bytes of padding. Some old ARM builds wrote other orders; nothing in a file tells them apart,
//! and this is the order of every published file. K must be a multiple of 128.

use contract::w2a8::row_words;

use super::{PackError, check_len, check_shape, word};

/// Values of a block.
pub const BLOCK: usize = 128;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 32;
/// Bytes behind the codes: the scale and padding.
pub const TAIL_BYTES: usize = 32;

/// Refuses a K that is not a whole number of blocks.
pub fn check_k(k: usize) -> Result<(), PackError> {
    if !k.is_multiple_of(BLOCK) {
        return Err(PackError::Multiple { layout: "I2_S", dim: "K", multiple: BLOCK, found: k });
    }
    Ok(())
}

/// Bytes of one row of `k` codes.
pub const fn row_bytes(k: usize) -> usize {
    k / 4
}

/// Decodes rows from `row_bytes(k)` bytes each; `first_row` only names rows in errors.
pub(crate) fn decode_rows(
    bytes: &[u8],
    k: usize,
    first_row: usize,
    out: &mut [u32],
) -> Result<(), PackError> {
    check_k(k)?;
    let width = row_words(k);
    let rows = out.len() / width;
    check_len("I2_S rows", bytes.len(), rows * row_bytes(k))?;
    check_len("rows", out.len(), rows * width)?;
    let lines = bytes.chunks_exact(row_bytes(k)).zip(out.chunks_exact_mut(width));
    for (i, (line, row)) in lines.enumerate() {
        // Two chunks of 64 are one block of 128, so rows need no padding.
        for (block, words) in line.chunks_exact(BLOCK_BYTES).zip(row.chunks_exact_mut(8)) {
            for (quarter, two) in words.chunks_exact_mut(2).enumerate() {
                word::words_from_lane(block, 6 - 2 * quarter as u32, two);
            }
        }
        word::turn_row(row);
        word::check_row(row, first_row + i)?;
    }
    Ok(())
}

/// Encodes one device row into `row_bytes(k)` bytes.
pub(crate) fn encode_row(row: &[u32], bytes: &mut [u8]) {
    bytes.fill(0);
    let mut words = word::neighbours(row);
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        for quarter in 0..4 {
            word::lane_from_words(words.by_ref().take(2), 6 - 2 * quarter, block);
        }
    }
}

/// The 32 bytes behind the codes of a matrix with scale `g`.
pub(crate) fn tail(scale: f32) -> [u8; TAIL_BYTES] {
    let mut bytes = [0; TAIL_BYTES];
    bytes[..4].copy_from_slice(&scale.to_le_bytes());
    bytes
}

/// Packs `ternaries` (`[n, k]`, row-major) with their scale.
pub fn pack(ternaries: &[i8], n: usize, k: usize, scale: f32) -> Result<Vec<u8>, PackError> {
    check_k(k)?;
    let packed = super::PackedW2::from_ternaries(ternaries, k, &[(n, scale)])?;
    let mut bytes = vec![0; n * row_bytes(k)];
    for (row, out) in bytes.chunks_exact_mut(row_bytes(k)).enumerate() {
        encode_row(packed.row(row), out);
    }
    bytes.extend(tail(scale));
    Ok(bytes)
}

/// Unpacks to ternaries (`[n, k]`, row-major) and the scale.
pub fn unpack(bytes: &[u8], n: usize, k: usize) -> Result<(Vec<i8>, f32), PackError> {
    check_shape(n, k)?;
    check_k(k)?;
    check_len("I2_S bytes", bytes.len(), n * row_bytes(k) + TAIL_BYTES)?;
    let (codes, tail) = bytes.split_at(n * row_bytes(k));
    let mut words = vec![0; row_words(k)];
    let mut out = vec![0; n * k];
    let lines = codes.chunks_exact(row_bytes(k)).zip(out.chunks_exact_mut(k));
    for (row, (line, values)) in lines.enumerate() {
        decode_rows(line, k, row, &mut words)?;
        word::ternaries_from_row(&words, values);
    }
    Ok((out, f32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]])))
}
