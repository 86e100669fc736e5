//! Rows between the 2-bit device layout and the one of 1.6 bits a weight, [`contract::w2a8_trits`].
//!
//! Both hold the same codes; scales and segments stay what they are.

use contract::w2a8::row_words;
use contract::w2a8_trits::{self as trits, UNPACKED, WORDS};

use super::word;

const LOW: u32 = 0x5555_5555;

/// Packs rows of `k` codes from the 2-bit layout: `words` holds whole rows, `out` as many.
///
/// # Panics
/// Words that are not whole rows; an `out` of another number of rows.
pub fn rows_from_words(words: &[u32], k: usize, out: &mut [u32]) {
    let (width, vectors, pieces) = (row_words(k), trits::vectors(k), trits::pieces(k));
    let rows = words.len() / width;
    assert!(words.len() == rows * width && out.len() == rows * vectors * WORDS);
    let mut codes = Vec::with_capacity(width);
    for (row, out) in words.chunks_exact(width).zip(out.chunks_exact_mut(vectors * WORDS)) {
        codes.clear();
        codes.extend(word::neighbours(row));
        for (v, out) in out.as_chunks_mut::<WORDS>().0.iter_mut().enumerate() {
            let x: [u32; UNPACKED] = std::array::from_fn(|d| {
                let piece = d * vectors + v;
                // A piece beyond the words has activations of 0; what has no piece needs code 0.
                let word = codes.get(trits::neighbours_of_piece(piece)).copied();
                if piece < pieces { word.unwrap_or(contract::w2a8::PAD_WORD) } else { 0 }
            });
            *out = vector(x);
        }
    }
}

/// Sixteen times five codes: the contract's table of states, at all pairs of bits at once.
fn vector([x0, x1, x2, x3, x4]: [u32; UNPACKED]) -> [u32; WORDS] {
    // Both bits of a field, where its code is 1 or 2.
    let is_1 = |x: u32| (x & LOW) * 3;
    let is_2 = |x: u32| ((x >> 1) & LOW) * 3;
    let select = |mask: u32, a: u32, b: u32| (mask & a) | (!mask & b);
    let third = is_2(x4) & is_1(x3);
    let third_and_one = is_2(x4) & is_2(x3);
    let two = is_2(x4) & !third & !third_and_one;
    let one = is_1(x4) | third_and_one;
    let (p1, p2) = (is_1(x2), is_2(x2));
    let p0 = !p1 & !p2;
    [
        x0 | (one & p0) | (two & !p1),
        x1 | (one & p1) | (two & !p0),
        select(one | two, (one & p2) | (two & !p2) | select(p1 & one, x1, x0), x2),
        third | third_and_one | select(two, select(p0, x0, x1), x3),
    ]
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
                if let Some(out) = out.get_mut(trits::neighbours_of_piece(d * vectors + v)) {
                    *out = word;
                }
            }
        }
        word::turn_row(out);
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
