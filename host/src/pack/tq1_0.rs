//! TQ1_0 of GGUF files: blocks of 256 values in base 3, 52 bytes, then the scale as f16.
//!
//! A byte holds five ternaries (the last four bytes: four) as a fraction of 256: multiplying by 3
//! pushes the first out at the top. Value `e < 160` is digit `e / 32` of byte `e mod 32`; the next 80
//! are digit `(e - 160) / 16` of byte `32 + (e - 160) mod 16`; the last 16 are digit `(e - 240) / 4`
//! of byte `48 + (e - 240) mod 4`. So sixteen neighbours always take one digit of sixteen bytes, or
//! four digits of the last four. K must be a multiple of 256.

use contract::w2a8::{CODES_PER_WORD, PAD_WORD, row_words};
use half::f16;

use super::{PackError, check_len, check_shape, word};

/// Values of a block.
pub const BLOCK: usize = 256;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 54;
const CODE_BYTES: usize = 52;
const BLOCK_WORDS: usize = 16;
const POW3: [u8; 5] = [1, 3, 9, 27, 81];

/// Refuses a K that is not a whole number of blocks.
pub fn check_k(k: usize) -> Result<(), PackError> {
    if !k.is_multiple_of(BLOCK) {
        return Err(PackError::Multiple { layout: "TQ1_0", dim: "K", multiple: BLOCK, found: k });
    }
    Ok(())
}

/// Bytes of one row of `k` values.
pub const fn row_bytes(k: usize) -> usize {
    k / BLOCK * BLOCK_BYTES
}

/// Where value `16 w + i` of a block stands: (byte, digit).
const fn place(w: usize, i: usize) -> (usize, usize) {
    match w {
        0..10 => (w % 2 * 16 + i, w / 2),
        10..15 => (32 + i, w - 10),
        _ => (48 + i % 4, i / 4),
    }
}

/// Holds a block's scale against the matrix's. A scale of zero is right for a block of zeros only.
pub(crate) fn agree(
    scale: &mut Option<f16>,
    stored: [u8; 2],
    words: &[u32],
    row: usize,
    block: usize,
) -> Result<(), PackError> {
    let found = f16::from_le_bytes(stored);
    if found == f16::ZERO && words.iter().all(|&w| w == PAD_WORD) {
        return Ok(());
    }
    if !(found.is_finite() && found > f16::ZERO) {
        return Err(PackError::Scale { scale: found.to_f32() });
    }
    match *scale {
        None => *scale = Some(found),
        Some(expected) if expected == found => {}
        Some(expected) => {
            let (expected, found) = (expected.to_f32(), found.to_f32());
            return Err(PackError::ScalesDiffer { row, block, expected, found });
        }
    }
    Ok(())
}

/// Decodes rows from `row_bytes(k)` bytes each; `scale` as in `tq2_0`.
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
    check_len("TQ1_0 rows", bytes.len(), rows * row_bytes(k))?;
    check_len("rows", out.len(), rows * width)?;
    let lines = bytes.chunks_exact(row_bytes(k)).zip(out.chunks_exact_mut(width));
    for (i, (line, row)) in lines.enumerate() {
        let blocks = line.chunks_exact(BLOCK_BYTES).zip(row.chunks_exact_mut(BLOCK_WORDS));
        for (b, (block, words)) in blocks.enumerate() {
            for (w, out) in words.iter_mut().enumerate() {
                let mut codes = [0; CODES_PER_WORD];
                for (i, code) in codes.iter_mut().enumerate() {
                    let (byte, digit) = place(w, i);
                    let rest = block[byte].wrapping_mul(POW3[digit]);
                    *code = ((u16::from(rest) * 3) >> 8) as u8;
                }
                *out = word::word_of_codes(&codes);
            }
            agree(scale, [block[52], block[53]], words, first_row + i, b)?;
        }
    }
    Ok(())
}

/// Encodes one device row into `row_bytes(k)` bytes.
pub(crate) fn encode_row(row: &[u32], scale: f16, bytes: &mut [u8]) {
    for (block, words) in bytes.chunks_exact_mut(BLOCK_BYTES).zip(row.chunks_exact(BLOCK_WORDS)) {
        let mut sums = [0u16; CODE_BYTES];
        for (w, &word) in words.iter().enumerate() {
            for (i, code) in word::codes_of_word(word).into_iter().enumerate() {
                let (byte, digit) = place(w, i);
                sums[byte] += u16::from(code) * u16::from(POW3[4 - digit]);
            }
        }
        for (byte, sum) in block.iter_mut().zip(sums) {
            *byte = (sum * 256).div_ceil(243) as u8;
        }
        block[CODE_BYTES..].copy_from_slice(&scale.to_le_bytes());
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

/// Unpacks to ternaries (`[n, k]`, row-major) and the scale, as `tq2_0::unpack`.
pub fn unpack(bytes: &[u8], n: usize, k: usize) -> Result<(Vec<i8>, Option<f16>), PackError> {
    check_shape(n, k)?;
    check_k(k)?;
    check_len("TQ1_0 bytes", bytes.len(), n * row_bytes(k))?;
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
