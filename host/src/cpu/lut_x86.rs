//! Lookups of [`super::lut_matmul`] for x86-64: byte shuffles.
//!
//! A shuffle reads 32 entries of one byte. An entry of at most 384 in magnitude is two bytes, so a
//! table is two planes of *digits*, `entry = 31 high + low` with low in -15..=15 and high in
//! -12..=12. Eight lookups of a step add up to 120 and 96 at most, inside a byte; then one multiply-add
//! makes 16-bit sums of both. Digits are signed, so TL2's signs apply to them (`psignb`).

use std::arch::x86_64::*;

use contract::lut_matmul::{STEP_LOOKUPS, TILE, pair_of, triple_of};

use super::lut_lossy;
use super::lut_matmul::{Lookups, Sums, Table};

/// The weight of the high digit.
const BASE: i16 = 31;
/// Steps whose sums a 16-bit lane holds: 10 of at most 8 * 384.
const WIDEN: usize = 10;
/// Bytes from the weights in use to those that are fetched.
const AHEAD: usize = 4096;

/// AVX2, pairs.
pub(super) static AVX2_TL1: Lookups = Lookups { build: build_tl1, add: add_tl1 };
/// AVX2, triples.
pub(super) static AVX2_TL2: Lookups = Lookups { build: build_tl2, add: add_tl2 };

/// The ternaries of the codes as vectors: lane `code` of vector `j` is ternary `j` of the code.
const PAIRS: [[i16; 16]; 2] = {
    let mut t = [[0; 16]; 2];
    let mut code = 0;
    while code < 9 {
        let pair = pair_of(code);
        (t[0][code as usize], t[1][code as usize]) = (pair[0] as i16, pair[1] as i16);
        code += 1;
    }
    t
};
/// The same of triples.
const TRIPLES: [[i16; 16]; 3] = {
    let mut t = [[0; 16]; 3];
    let mut code = 0;
    while code < 14 {
        let triple = triple_of(code);
        let mut j = 0;
        while j < 3 {
            t[j][code as usize] = triple[j] as i16;
            j += 1;
        }
        code += 1;
    }
    t
};

fn build_tl1(q: &[i8], tables: &mut [Table]) {
    // SAFETY: the table is reached only through a `Simd` of a level that has AVX2.
    unsafe { build(&PAIRS, q, tables) }
}

fn build_tl2(q: &[i8], tables: &mut [Table]) {
    // SAFETY: as above.
    unsafe { build(&TRIPLES, q, tables) }
}

/// Both planes of tables: sixteen low digits, then sixteen high ones.
#[target_feature(enable = "avx2")]
fn build<const T: usize>(ternaries: &[[i16; 16]; T], q: &[i8], tables: &mut [Table]) {
    let ternaries = ternaries.each_ref().map(|t| {
        // SAFETY: sixteen ternaries are 32 bytes.
        unsafe { _mm256_loadu_si256(t.as_ptr().cast()) }
    });
    // entry / 31 to the nearest: 1057 / 2^15 is off by less than 4e-7, the nearest tie is 1 / 62 away.
    let inverse = _mm256_set1_epi16(1057);
    for (x, table) in q.as_chunks::<T>().0.iter().zip(tables) {
        let mut entries = _mm256_setzero_si256();
        for j in 0..T {
            let x = _mm256_set1_epi16(i16::from(x[j]));
            entries = _mm256_add_epi16(entries, _mm256_sign_epi16(x, ternaries[j]));
        }
        let high = _mm256_mulhrs_epi16(entries, inverse);
        let low = _mm256_sub_epi16(entries, _mm256_mullo_epi16(high, _mm256_set1_epi16(BASE)));
        let planes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(low, high));
        // SAFETY: a table is 32 bytes.
        unsafe { _mm256_storeu_si256(table.as_mut_ptr().cast(), planes) };
    }
}

fn add_tl1(steps: &[u8], tables: &[Table], sums: &mut Sums) {
    // SAFETY: the table is reached only through a `Simd` of a level that has AVX2.
    unsafe { avx2::<false, 4>(steps, tables, sums) }
}

fn add_tl2(steps: &[u8], tables: &[Table], sums: &mut Sums) {
    // SAFETY: as above.
    unsafe { avx2::<true, 5>(steps, tables, sums) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8; TILE]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// One plane of a table, in both halves.
#[target_feature(enable = "avx2")]
#[inline]
fn plane(table: &Table, plane: usize) -> __m256i {
    // SAFETY: 16 bytes from 0 or 16 on lie inside the 32.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().add(16 * plane).cast()) })
}

/// The sums of the eight lookups of a step: rows 0..8 and 16..24, rows 8..16 and 24..32.
#[target_feature(enable = "avx2")]
#[inline]
fn step<const TL2: bool, const V: usize>(
    vectors: &[[u8; TILE]; V],
    tables: &[Table; STEP_LOOKUPS],
) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(15);
    let one = _mm256_set1_epi8(1);
    let mut low = _mm256_setzero_si256();
    let mut high = _mm256_setzero_si256();
    // `psignb` makes 0 where the sign is 0, so a bit below the signs stays set. The last sign is the
    // lowest bit itself.
    let signs = if TL2 { load(&vectors[V - 1]) } else { one };
    let marked = _mm256_or_si256(signs, one);
    let mut lookup = |codes: __m256i, j: usize, signs: __m256i| {
        let mut digits = [0, 1].map(|i| _mm256_shuffle_epi8(plane(&tables[j], i), codes));
        if TL2 {
            digits = digits.map(|d| _mm256_sign_epi8(d, signs));
        }
        low = _mm256_add_epi8(low, digits[0]);
        high = _mm256_add_epi8(high, digits[1]);
    };
    let first = |v: usize| _mm256_and_si256(load(&vectors[v]), mask);
    let second = |v: usize| _mm256_and_si256(_mm256_srli_epi16::<4>(load(&vectors[v])), mask);
    lookup(first(0), 0, marked);
    lookup(second(0), 1, _mm256_slli_epi16::<1>(marked));
    lookup(first(1), 2, _mm256_slli_epi16::<2>(marked));
    lookup(second(1), 3, _mm256_slli_epi16::<3>(marked));
    lookup(first(2), 4, _mm256_slli_epi16::<4>(marked));
    lookup(second(2), 5, _mm256_slli_epi16::<5>(marked));
    lookup(first(3), 6, _mm256_slli_epi16::<6>(marked));
    lookup(second(3), 7, _mm256_or_si256(_mm256_slli_epi16::<7>(signs), one));
    let weights = _mm256_set1_epi16(BASE << 8 | 1);
    [
        _mm256_maddubs_epi16(weights, _mm256_unpacklo_epi8(low, high)),
        _mm256_maddubs_epi16(weights, _mm256_unpackhi_epi8(low, high)),
    ]
}

#[target_feature(enable = "avx2")]
fn avx2<const TL2: bool, const V: usize>(steps: &[u8], tables: &[Table], sums: &mut Sums) {
    let steps = steps.as_chunks::<TILE>().0.as_chunks::<V>().0.chunks(WIDEN);
    let tables = tables.as_chunks::<STEP_LOOKUPS>().0.chunks(WIDEN);
    for (steps, tables) in steps.zip(tables) {
        let mut lanes = [_mm256_setzero_si256(); 2];
        for (vectors, tables) in steps.iter().zip(tables) {
            let ahead = vectors.as_ptr().cast::<i8>().wrapping_add(AHEAD);
            // A prefetch has no effect but on caches and takes any address.
            _mm_prefetch::<_MM_HINT_T0>(ahead);
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64));
            if TL2 {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(128));
            }
            let step = step::<TL2, V>(vectors, tables);
            lanes[0] = _mm256_add_epi16(lanes[0], step[0]);
            lanes[1] = _mm256_add_epi16(lanes[1], step[1]);
        }
        widen(lanes, sums);
    }
}

/// Adds 16-bit sums, in the order of [`step`], to those of the rows.
#[target_feature(enable = "avx2")]
#[inline]
fn widen(lanes: [__m256i; 2], sums: &mut Sums) {
    let [a, b] =
        lanes.map(|lane| [_mm256_castsi256_si128(lane), _mm256_extracti128_si256::<1>(lane)]);
    for (lanes, sums) in [a[0], b[0], a[1], b[1]].into_iter().zip(sums.as_chunks_mut::<8>().0) {
        // SAFETY: eight sums are 32 bytes.
        unsafe {
            let at = sums.as_mut_ptr().cast::<__m256i>();
            let sum = _mm256_add_epi32(_mm256_loadu_si256(at), _mm256_cvtepi16_epi32(lanes));
            _mm256_storeu_si256(at, sum);
        }
    }
}

/// The lookups of the bit-serial form.
pub(super) fn add_lossy(bits: usize, steps: &[u8], tables: &[lut_lossy::Table], sums: &mut Sums) {
    // SAFETY: reached only through a `Simd` of a level that has AVX2.
    unsafe {
        match bits {
            1 => lossy::<1>(steps, tables, sums),
            2 => lossy::<2>(steps, tables, sums),
            3 => lossy::<3>(steps, tables, sums),
            _ => lossy::<4>(steps, tables, sums),
        }
    }
}

/// Pairs of tables whose sums a 16-bit lane holds: two entries of 127, times 15, eight times.
const WIDEN_LOSSY: usize = 8;

#[target_feature(enable = "avx2")]
fn lossy<const BITS: usize>(steps: &[u8], tables: &[lut_lossy::Table], sums: &mut Sums) {
    let mask = _mm256_set1_epi8(15);
    let vectors = steps.as_chunks::<TILE>().0;
    let pairs = tables.as_chunks::<2>().0;
    for (vectors, pairs) in vectors.chunks(WIDEN_LOSSY * BITS).zip(pairs.chunks(WIDEN_LOSSY)) {
        let mut lanes = [_mm256_setzero_si256(); 2];
        for (vectors, pair) in vectors.chunks_exact(BITS).zip(pairs) {
            let [low, high] = pair.map(|table| {
                // SAFETY: 16 bytes.
                _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
            });
            for (bit, vector) in vectors.iter().enumerate() {
                // A prefetch has no effect but on caches and takes any address.
                _mm_prefetch::<_MM_HINT_T0>(vector.as_ptr().wrapping_add(AHEAD).cast());
                let codes = load(vector);
                let a = _mm256_shuffle_epi8(low, _mm256_and_si256(codes, mask));
                let codes = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask);
                let b = _mm256_shuffle_epi8(high, codes);
                let weight = _mm256_set1_epi8(1 << bit);
                let ab = [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)];
                for (lane, ab) in lanes.iter_mut().zip(ab) {
                    *lane = _mm256_add_epi16(*lane, _mm256_maddubs_epi16(weight, ab));
                }
            }
        }
        widen(lanes, sums);
    }
}

#[cfg(test)]
mod tests {
    use contract::lut_matmul::{pair_entry, triple_entry};

    use super::*;

    #[test]
    fn digits_make_every_entry_and_fit_eight_times() {
        if !crate::cpu::Level::Avx2.supported() {
            return;
        }
        for a in i8::MIN..=i8::MAX {
            for [b, c] in [[0, 0], [a, a], [-128, 127], [-128, -128], [127, 127], [1, -1], [14, 1]]
            {
                let (mut pair, mut triple) = ([[0; 32]; 1], [[0; 32]; 1]);
                build_tl1(&[a, b], &mut pair);
                build_tl2(&[a, b, c], &mut triple);
                let x = [a, b, c].map(i32::from);
                let pairs = (0..9).map(|i| (&pair[0], i, pair_entry(i, [x[0], x[1]])));
                let triples = (0..14).map(|i| (&triple[0], i, triple_entry(i, x)));
                for (table, code, entry) in pairs.chain(triples) {
                    let code = usize::from(code);
                    let (low, high) = (table[code] as i8, table[16 + code] as i8);
                    assert_eq!(i32::from(high) * i32::from(BASE) + i32::from(low), entry);
                    assert!(low.abs() <= 15 && high.abs() <= 12, "{entry}: {high} {low}");
                }
            }
        }
    }
}
