//! TQ2_0 of GGUF files: blocks of 256 values, 64 bytes of codes `t + 1`, then the scale as f16.
//!
//! Value `e` stands in byte `32 (e / 128) + e mod 32`, bit pair `(e mod 128) / 32` (the first 32
//! values in the low bits). Every block repeats the scale; in a b1.58 matrix they must all agree. A
//! block of zeros may carry a scale of zero, as the usual quantiser writes it. K must be a multiple
//! of 256.

use contract::w2a8::row_words;
use half::f16;

use super::{PackError, check_len, check_shape, word};

/// Values of a block.
pub const BLOCK: usize = 256;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 66;
/// Words of a block in the device layout.
const BLOCK_WORDS: usize = 16;

/// Refuses a K that is not a whole number of blocks.
pub fn check_k(k: usize) -> Result<(), PackError> {
    if !k.is_multiple_of(BLOCK) {
        return Err(PackError::Multiple { layout: "TQ2_0", dim: "K", multiple: BLOCK, found: k });
    }
    Ok(())
}

/// Bytes of one row of `k` values.
pub const fn row_bytes(k: usize) -> usize {
    k / BLOCK * BLOCK_BYTES
}

/// Decodes rows from `row_bytes(k)` bytes each. `scale` carries the matrix's f16 scale from call to
/// call (`None` before the first block with one); blocks that differ from it are refused.
pub(crate) fn decode_rows(
    bytes: &[u8],
    k: usize,
    first_row: usize,
    scale: &mut Option<f16>,
    out: &mut [u32],
) -> Result<(), PackError> {
    check_k(k)?;
    let width = row_words(k);
    let rows = out.len() / width;
    check_len("TQ2_0 rows", bytes.len(), rows * row_bytes(k))?;
    check_len("rows", out.len(), rows * width)?;
    let lines = bytes.chunks_exact(row_bytes(k)).zip(out.chunks_exact_mut(width));
    for (i, (line, row)) in lines.enumerate() {
        let blocks = line.chunks_exact(BLOCK_BYTES).zip(row.chunks_exact_mut(BLOCK_WORDS));
        for (b, (block, words)) in blocks.enumerate() {
            for (half_block, eight) in block[..64].chunks_exact(32).zip(words.chunks_exact_mut(8)) {
                for (quarter, two) in eight.chunks_exact_mut(2).enumerate() {
                    word::words_from_lane(half_block, 2 * quarter as u32, two);
                }
            }
            super::tq1_0::agree(scale, [block[64], block[65]], words, first_row + i, b)?;
        }
        word::check_row(row, first_row + i)?;
    }
    Ok(())
}

/// Encodes one device row into `row_bytes(k)` bytes.
pub(crate) fn encode_row(row: &[u32], scale: f16, bytes: &mut [u8]) {
    bytes.fill(0);
    for (block, words) in bytes.chunks_exact_mut(BLOCK_BYTES).zip(row.chunks_exact(BLOCK_WORDS)) {
        for (half_block, eight) in block[..64].chunks_exact_mut(32).zip(words.chunks_exact(8)) {
            for (quarter, two) in eight.chunks_exact(2).enumerate() {
                word::lane_from_words(two, 2 * quarter as u32, half_block);
            }
        }
        block[64..].copy_from_slice(&scale.to_le_bytes());
    }
}

/// Packs `ternaries` (`[n, k]`, row-major) with their scale.
pub fn pack(ternaries: &[i8], n: usize, k: usize, scale: f16) -> Result<Vec<u8>, PackError> {
    check_k(k)?;
    let packed = super::PackedW2::from_ternaries(ternaries, k, &[(n, scale.to_f32())])?;
    let mut bytes = vec![0; n * row_bytes(k)];
    for (row, out) in bytes.chunks_exact_mut(row_bytes(k)).enumerate() {
        encode_row(packed.row(row), scale, out);
    }
    Ok(bytes)
}

/// Unpacks to ternaries (`[n, k]`, row-major) and the scale, `None` when every block is zeros with a
/// scale of zero.
pub fn unpack(bytes: &[u8], n: usize, k: usize) -> Result<(Vec<i8>, Option<f16>), PackError> {
    check_shape(n, k)?;
    check_k(k)?;
    check_len("TQ2_0 bytes", bytes.len(), n * row_bytes(k))?;
    let mut words = vec![0; row_words(k)];
    let mut out = vec![0; n * k];
    let mut scale = None;
    let lines = bytes.chunks_exact(row_bytes(k)).zip(out.chunks_exact_mut(k));
    for (row, (line, values)) in lines.enumerate() {
        decode_rows(line, k, row, &mut scale, &mut words)?;
        word::ternaries_from_row(&words, values);
    }
    Ok((out, scale))
}
