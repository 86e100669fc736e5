//! Words of sixteen neighbours, and rows of the device layout.
//!
//! Hugging Face, I2_S and TQ2_0 all keep sixteen neighbouring elements of a row in the same bit pair
//! of sixteen neighbouring bytes (a *lane*). A word of them, which is also a word of the published int2 layout and of
//! the one of 1.6 bits, keeps elements `4i..4i+4` in bit pair `i` of its four bytes, so a lane becomes a word with four
//! loads, shifts and masks, and back. The device layout has four such words turned ([`contract::w2a8::turn`]).

use contract::w2a8::{CHUNK, CODES_PER_WORD, PAD_WORD, code_place, row_words, turn};

use super::PackError;

const FIELD: u32 = 0x0303_0303;
const LOW_BITS: u32 = 0x5555_5555;

/// The word of sixteen neighbours (0, 1, 2 or 3 each).
pub fn word_of_codes(codes: &[u8; CODES_PER_WORD]) -> u32 {
    let mut word = 0;
    for i in 0..4 {
        let four = [codes[4 * i], codes[4 * i + 1], codes[4 * i + 2], codes[4 * i + 3]];
        word |= (u32::from_le_bytes(four) & FIELD) << (2 * i);
    }
    word
}

/// The sixteen codes of such a word.
pub fn codes_of_word(word: u32) -> [u8; CODES_PER_WORD] {
    let mut codes = [0; CODES_PER_WORD];
    for i in 0..4 {
        codes[4 * i..4 * i + 4].copy_from_slice(&((word >> (2 * i)) & FIELD).to_le_bytes());
    }
    codes
}

/// Code of element `k` in a device row.
///
/// # Panics
/// When the row has no such element.
pub fn code_at(row: &[u32], k: usize) -> u8 {
    let (word, shift) = code_place(k);
    ((row[word] >> shift) & 3) as u8
}

/// Non-zero when one of the sixteen codes is 3.
#[inline(always)]
pub const fn invalid_bits(word: u32) -> u32 {
    word & (word >> 1) & LOW_BITS
}

/// Swaps the order here (element `4i + b` in pair `i` of byte `b`) and the natural order (element
/// `e` at bit `2e`): a 4 x 4 transposition of bit pairs, so it is its own inverse.
#[inline(always)]
pub const fn transpose(word: u32) -> u32 {
    let t = (word ^ (word >> 6)) & 0x00cc_00cc;
    let word = word ^ t ^ (t << 6);
    let t = (word ^ (word >> 12)) & 0x0000_f0f0;
    word ^ t ^ (t << 12)
}

const CHUNK_WORDS: usize = CHUNK / CODES_PER_WORD;

/// Makes words of sixteen neighbours a row of the device layout.
pub(crate) fn turn_row(row: &mut [u32]) {
    for chunk in row.as_chunks_mut::<CHUNK_WORDS>().0 {
        *chunk = turn(*chunk);
    }
}

/// The words of sixteen neighbours of whole rows of the device layout.
pub(crate) fn neighbours(rows: &[u32]) -> impl Iterator<Item = u32> {
    rows.as_chunks::<CHUNK_WORDS>().0.iter().flat_map(|&chunk| turn(chunk))
}

/// Reads bit pair `shift` of every byte of `lane` into words; the last one is filled up with
/// the code of zero.
#[inline(always)]
pub(crate) fn words_from_lane(lane: &[u8], shift: u32, out: &mut [u32]) {
    let (whole, tail) = lane.as_chunks::<CODES_PER_WORD>();
    for (bytes, word) in whole.iter().zip(out.iter_mut()) {
        *word = word_from_lane(bytes, shift);
    }
    if !tail.is_empty() {
        let mut bytes = [1 << shift; CODES_PER_WORD];
        bytes[..tail.len()].copy_from_slice(tail);
        out[whole.len()] = word_from_lane(&bytes, shift);
    }
}

#[inline(always)]
fn word_from_lane(bytes: &[u8; CODES_PER_WORD], shift: u32) -> u32 {
    let mut word = 0;
    for i in 0..4 {
        let four = [bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]];
        word |= ((u32::from_le_bytes(four) >> shift) & FIELD) << (2 * i);
    }
    word
}

/// Writes words of sixteen neighbours into bit pair `shift` of every byte of `lane`, keeping its other bits.
pub(crate) fn lane_from_words(words: impl IntoIterator<Item = u32>, shift: u32, lane: &mut [u8]) {
    for (bytes, word) in lane.chunks_mut(CODES_PER_WORD).zip(words) {
        for (byte, code) in bytes.iter_mut().zip(codes_of_word(word)) {
            *byte |= code << shift;
        }
    }
}

/// Fills the words behind the `k` codes of each row with the code of zero.
pub(crate) fn pad_row(row: &mut [u32], k: usize) {
    row[k.div_ceil(CODES_PER_WORD)..].fill(PAD_WORD);
}

/// Names the first code 3 of a device row.
pub(crate) fn check_row(words: &[u32], row: usize) -> Result<(), PackError> {
    if words.iter().fold(0, |bad, &word| bad | invalid_bits(word)) == 0 {
        return Ok(());
    }
    let col = (0..words.len() * CODES_PER_WORD).find(|&k| code_at(words, k) == 3).unwrap_or(0);
    Err(PackError::InvalidCode { row, col, code: 3 })
}

/// Packs one row of ternaries into `row_words(k)` words.
pub fn row_from_ternaries(ternaries: &[i8], row: usize, out: &mut [u32]) -> Result<(), PackError> {
    super::check_len("a packed row", out.len(), row_words(ternaries.len()))?;
    for (w, (part, word)) in ternaries.chunks(CODES_PER_WORD).zip(out.iter_mut()).enumerate() {
        let mut codes = [1; CODES_PER_WORD];
        for (code, &value) in codes.iter_mut().zip(part) {
            *code = (value.wrapping_add(1)) as u8;
        }
        if let Some(i) = codes.iter().position(|&code| code > 2) {
            return Err(PackError::NotTernary { row, col: CODES_PER_WORD * w + i, value: part[i] });
        }
        *word = word_of_codes(&codes);
    }
    pad_row(out, ternaries.len());
    turn_row(out);
    Ok(())
}

/// Unpacks one row; `out.len()` is K.
pub fn ternaries_from_row(row: &[u32], out: &mut [i8]) {
    for (part, word) in out.chunks_mut(CODES_PER_WORD).zip(neighbours(row)) {
        for (value, code) in part.iter_mut().zip(codes_of_word(word)) {
            *value = code as i8 - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn transposing_twice_is_nothing_and_orders_naturally(word: u32) {
            prop_assert_eq!(transpose(transpose(word)), word);
            let codes = codes_of_word(word);
            for (e, code) in codes.into_iter().enumerate() {
                prop_assert_eq!(((transpose(word) >> (2 * e)) & 3) as u8, code);
                prop_assert_eq!(((word >> contract::w2a8_trits::code_shift(e)) & 3) as u8, code);
            }
            prop_assert_eq!(word_of_codes(&codes), word);
            prop_assert_eq!(invalid_bits(word) != 0, codes.contains(&3));
        }

        #[test]
        fn lanes_and_words_agree(bytes in proptest::collection::vec(any::<u8>(), 1..70), shift in 0u32..4) {
            let shift = 2 * shift;
            let mut words = vec![0; row_words(bytes.len())];
            words_from_lane(&bytes, shift, &mut words);
            pad_row(&mut words, bytes.len());
            turn_row(&mut words);
            for (k, byte) in bytes.iter().enumerate() {
                prop_assert_eq!(code_at(&words, k), (byte >> shift) & 3);
            }
            for k in bytes.len()..words.len() * 16 {
                prop_assert_eq!(code_at(&words, k), 1);
            }
            let mut back: Vec<u8> = bytes.iter().map(|b| b & !(3 << shift)).collect();
            lane_from_words(neighbours(&words), shift, &mut back);
            prop_assert_eq!(back, bytes);
        }
    }

    #[test]
    fn a_value_that_is_no_ternary_is_named() {
        let mut row = vec![0i8; 40];
        row[33] = 2;
        let mut words = vec![0; row_words(40)];
        let error = row_from_ternaries(&row, 5, &mut words).unwrap_err();
        assert_eq!(error, PackError::NotTernary { row: 5, col: 33, value: 2 });
    }
}
