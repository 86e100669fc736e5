//! The published GPU layout of BitNet: 16 x 32 tiles of codes `t + 2`, rows permuted inside a tile.
//!
//! Word `(n / 16) K + (k / 32) 32 + ((n mod 16) / 8) 16 + ((k mod 32) / 16) 8 + n mod 8` holds the
//! sixteen elements `k / 16` of row `n`, in the bit order of [`word::word_of_codes`]. So a word of sixteen
//! neighbours moves whole: only its place and the offset of its codes (one more per pair) change. N must be a
//! multiple of 16 and K of 32. Code 0 would be -2 and never occurs.

use contract::w2a8::{PAD_WORD, row_words};

use super::{PackError, PackedW2, check_len, check_shape, word};

/// Rows of a band: the unit in which rows can be written in order.
pub const BAND: usize = 16;

/// Scales beside each fused matrix; those that are not needed are zero.
pub const SCALES: usize = 4;

/// Refuses shapes that are not whole tiles.
pub fn check(n: usize, k: usize) -> Result<(), PackError> {
    let refuse = |dim, multiple, found| {
        Err(PackError::Multiple { layout: "the published int2 layout", dim, multiple, found })
    };
    match (n % BAND, k % 32) {
        (0, 0) => Ok(()),
        (0, _) => refuse("K", 32, k),
        _ => refuse("N", BAND, n),
    }
}

/// Word that holds elements `16 w..16 w + 16` of row `n`.
pub const fn word_index(n: usize, w: usize, k: usize) -> usize {
    n / 16 * k + w / 2 * 32 + n % 16 / 8 * 16 + w % 2 * 8 + n % 8
}

/// Decodes row `row` out of `words`, which hold the row's band (`row / 16`) alone.
pub(crate) fn decode_row(
    band: &[u32],
    row: usize,
    k: usize,
    out: &mut [u32],
) -> Result<(), PackError> {
    check_len("an int2 band", band.len(), k)?;
    check_len("rows", out.len(), row_words(k))?;
    for (w, out) in out[..k / 16].iter_mut().enumerate() {
        let word = band[word_index(row % BAND, w, k)];
        // A pair of zeros is the only one with neither bit.
        let empty = !(word | (word >> 1)) & 0x5555_5555;
        if empty != 0 {
            let codes = word::codes_of_word(word);
            let col = codes.iter().position(|&c| c == 0).unwrap_or(0);
            return Err(PackError::InvalidCode { row, col: 16 * w + col, code: 0 });
        }
        *out = word - PAD_WORD;
    }
    word::pad_row(out, k);
    word::turn_row(out);
    Ok(())
}

/// Encodes the 16 device rows of a band (`rows` holds them one after another) into `k` words.
pub(crate) fn encode_band(rows: &[u32], k: usize, band: &mut [u32]) {
    for (n, row) in rows.chunks_exact(row_words(k)).enumerate().take(BAND) {
        for (w, word) in word::neighbours(row).take(k / 16).enumerate() {
            band[word_index(n, w, k)] = word + PAD_WORD;
        }
    }
}

/// Packs `ternaries` (`[n, k]`, row-major) into `n * k / 16` words.
pub fn pack(ternaries: &[i8], n: usize, k: usize) -> Result<Vec<u32>, PackError> {
    check(n, k)?;
    let packed = PackedW2::from_ternaries(ternaries, k, &[(n, 1.0)])?;
    Ok(export(&packed))
}

/// A matrix in the device layout, its shape already checked, as published words.
fn export(packed: &PackedW2) -> Vec<u32> {
    let mut words = vec![0; packed.n * packed.k / 16];
    let bands = packed.words.chunks_exact(BAND * row_words(packed.k));
    for (rows, band) in bands.zip(words.chunks_exact_mut(packed.k)) {
        encode_band(rows, packed.k, band);
    }
    words
}

/// Unpacks to ternaries (`[n, k]`, row-major).
pub fn unpack(words: &[u32], n: usize, k: usize) -> Result<Vec<i8>, PackError> {
    check_shape(n, k)?;
    check(n, k)?;
    check_len("int2 words", words.len(), n * k / 16)?;
    let mut row_out = vec![0; row_words(k)];
    let mut out = vec![0; n * k];
    for (row, values) in out.chunks_exact_mut(k).enumerate() {
        decode_row(&words[row / BAND * k..][..k], row, k, &mut row_out)?;
        word::ternaries_from_row(&row_out, values);
    }
    Ok(out)
}
