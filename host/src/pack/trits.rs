//! Rows between the 2-bit device layout and the one of 1.6 bits a weight, [`contract::w2a8_trits`].
//!
//! Both hold the same codes; scales and segments stay what they are.

use contract::w2a8::{CODES_PER_WORD, row_words};
use contract::w2a8_trits::{self as trits, UNPACKED, WORDS};

/// The byte of five codes of 2 bits, at ten bits of index: two bits for each field.
static FIELDS: [u8; 1 << (2 * UNPACKED)] = fields();

/// By inverting [`trits::unpack`]. Where several bytes give the same codes the first one is the contract's: a field
/// of three marks more states than there are codes, and those come out as others do.
const fn fields() -> [u8; 1 << (2 * UNPACKED)] {
    let mut table = [0; 1 << (2 * UNPACKED)];
    let mut byte = 256;
    while byte > 0 {
        byte -= 1;
        let w = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
        let marks = (w[0] == 3) as u32 + (w[1] == 3) as u32 + (w[2] == 3) as u32;
        // Not among the contract's states.
        if marks == 3 || marks == 2 && w[3] == 3 {
            continue;
        }
        let x = trits::unpack(w);
        table[(x[0] | x[1] << 2 | x[2] << 4 | x[3] << 6 | x[4] << 8) as usize] = byte as u8;
    }
    table
}

/// Packs rows of `k` codes from the 2-bit layout: `words` holds whole rows, `out` as many.
///
/// # Panics
/// Words that are not whole rows; an `out` of another number of rows.
pub fn rows_from_words(words: &[u32], k: usize, out: &mut [u32]) {
    let (width, vectors, pieces) = (row_words(k), trits::vectors(k), trits::pieces(k));
    let rows = words.len() / width;
    assert!(words.len() == rows * width && out.len() == rows * vectors * WORDS);
    for (row, out) in words.chunks_exact(width).zip(out.chunks_exact_mut(vectors * WORDS)) {
        for (v, out) in out.as_chunks_mut::<WORDS>().0.iter_mut().enumerate() {
            let x: [u32; UNPACKED] = std::array::from_fn(|d| {
                let piece = d * vectors + v;
                // A piece beyond the words has activations of 0; what has no piece needs code 0.
                let word = row.get(trits::word_of_piece(piece)).copied();
                if piece < pieces { word.unwrap_or(contract::w2a8::PAD_WORD) } else { 0 }
            });
            *out = vector(x);
        }
    }
}

/// Sixteen times five codes.
fn vector(x: [u32; UNPACKED]) -> [u32; WORDS] {
    let mut w = [0; WORDS];
    for pair in 0..CODES_PER_WORD {
        let at = 2 * pair as u32;
        let field = |d: usize| (x[d] >> at) & 3;
        let index = field(0) | field(1) << 2 | field(2) << 4 | field(3) << 6 | field(4) << 8;
        let byte = u32::from(FIELDS[index as usize]);
        for (i, w) in w.iter_mut().enumerate() {
            *w |= ((byte >> (2 * i)) & 3) << at;
        }
    }
    w
}

/// Unpacks rows of `k` codes into the 2-bit layout: `packed` holds whole rows, `out` as many.
///
/// # Panics
/// Words that are not whole rows; an `out` of another number of rows.
pub fn rows_to_words(packed: &[u32], k: usize, out: &mut [u32]) {
    let (width, vectors) = (row_words(k), trits::vectors(k));
    let rows = packed.len() / (vectors * WORDS);
    assert!(packed.len() == rows * vectors * WORDS && out.len() == rows * width);
    for (row, out) in packed.chunks_exact(vectors * WORDS).zip(out.chunks_exact_mut(width)) {
        for (v, vector) in row.as_chunks::<WORDS>().0.iter().enumerate() {
            for (d, word) in trits::unpack(*vector).into_iter().enumerate() {
                if let Some(out) = out.get_mut(trits::word_of_piece(d * vectors + v)) {
                    *out = word;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Inputs;

    #[test]
    fn rows_come_back() {
        for k in [1, 16, 63, 64, 65, 127, 500, 511, 512, 513, 1000, 2560, 2561, 6912] {
            let words = Inputs::new(k as u64).packed_words(3, k);
            let mut packed = vec![u32::MAX; 3 * trits::row_words(k)];
            rows_from_words(&words, k, &mut packed);
            let mut back = vec![u32::MAX; words.len()];
            rows_to_words(&packed, k, &mut back);
            assert_eq!(back, words, "k={k}");
        }
    }

    #[test]
    fn long_rows_take_a_fifth_less() {
        for (k, most) in [(2560, 0.8), (8192, 0.82), (6912, 0.84), (28_672, 0.81)] {
            let share = trits::row_words(k) as f64 / row_words(k) as f64;
            assert!((0.8..=most).contains(&share), "{k}: {share}");
        }
    }
}
