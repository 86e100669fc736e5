//! Reference for [`contract::w2a8_trits`]: the contract's table of states, field by field, and plain sums.

use contract::w2a8::{act_bytes, act_index};
use contract::w2a8_trits::code_shift;

use super::w2a8_gemv::Case;

/// `(m, n, k)`: around the edges of vectors, of pieces, and of the parts of a row.
pub const TEST_SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 2, 16),
    (1, 3, 65),
    (1, 5, 80),
    (1, 7, 511),
    (1, 8, 512),
    (1, 9, 513),
    (1, 17, 1000),
    (1, 33, 2560),
    (1, 130, 2561),
    (1, 70, 6912),
    (2, 1, 1),
    (3, 5, 65),
    (8, 17, 640),
    (9, 33, 1000),
    (65, 130, 530),
    (70, 7, 2560),
];

/// The four fields of five codes.
pub fn fields([x0, x1, x2, x3, x4]: [u8; 5]) -> [u8; 4] {
    // `x2` says which field is marked where one of the first three is.
    let one = |last: u8| match x2 {
        0 => [3, x1, x0, last],
        1 => [x0, 3, x1, last],
        _ => [x0, x1, 3, last],
    };
    match (x4, x3) {
        (0, _) => [x0, x1, x2, x3],
        (1, _) => one(x3),
        (_, 1) => [x0, x1, x2, 3],
        (_, 2) => one(3),
        _ => match x2 {
            2 => [3, 3, x0, x1],
            0 => [3, x1, 3, x0],
            _ => [x0, 3, 3, x1],
        },
    }
}

/// Vectors of a row: a fifth of its pieces of activations, an even number.
fn vectors(k: usize) -> usize {
    let pieces = act_bytes(k) / 16;
    let fifth = pieces.div_ceil(5);
    fifth + fifth % 2
}

/// The weights of `case` in the contract's layout.
pub fn words(case: &Case) -> Vec<u32> {
    let vectors = vectors(case.k);
    let mut words = vec![0u32; case.n * vectors * 4];
    // Codes in the order of the activations; where there are none, code 0.
    let mut codes = vec![0u8; vectors * 80];
    for n in 0..case.n {
        codes[..act_bytes(case.k)].fill(1);
        for k in 0..case.k {
            codes[act_index(k)] = (case.t[n * case.k + k] + 1) as u8;
        }
        for v in 0..vectors {
            for e in 0..16 {
                let x = [0, 1, 2, 3, 4].map(|d| codes[(d * vectors + v) * 16 + e]);
                for (i, field) in fields(x).into_iter().enumerate() {
                    words[(n * vectors + v) * 4 + i] |= u32::from(field) << code_shift(e);
                }
            }
        }
    }
    words
}

/// `y[m, n] = (sum_k q[m, k] t[n, k] / s[m]) * g[n]`, rows one after the other.
pub fn w2a8_trits(case: &Case) -> Vec<f32> {
    (0..case.m).flat_map(|m| case.row(m)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_what_the_contract_unpacks() {
        for i in 0..243u32 {
            let x = [i % 3, i / 3 % 3, i / 9 % 3, i / 27 % 3, i / 81].map(|x| x as u8);
            assert_eq!(contract::w2a8_trits::unpack(fields(x).map(u32::from)), x.map(u32::from));
        }
    }

    #[test]
    fn packing_makes_the_same_words() {
        for &(m, n, k) in TEST_SHAPES {
            let case = Case::new(m, n, k, 3);
            let mut packed = vec![0; n * contract::w2a8_trits::row_words(k)];
            crate::pack::trits::rows_from_words(&case.words(), k, &mut packed);
            assert_eq!(packed, words(&case), "n={n} k={k}");
        }
    }
}
