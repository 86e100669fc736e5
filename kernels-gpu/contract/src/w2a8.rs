//! The one device layout of a ternary linear layer, shared by every W2A8 kernel.
//!
//! | tensor  | element | shape                | layout                                         |
//! |---------|---------|----------------------|------------------------------------------------|
//! | weights | `u32`   | `[N, row_words(K)]`  | row-major; 16 codes a word, see [`code_place`] |
//! | acts    | `i8`    | `[M, act_bytes(K)]`  | rows of 16-byte pieces, see [`act_index`]       |
//! | stats   | [`ActStats`] | `[M]`           | scale and sum of each row of `acts`             |
//!
//! A code is `t + 1` (0, 1, 2) for the ternary `t`; rows are padded to [`CHUNK`] codes with the
//! code of zero. Activations are padded with zeros. With `q` the int8 activations,
//! `acc[m, n] = sum_k q[m, k] * t[n, k] = sum_k q * code - sum_k q`, exact in `i32`, and
//!
//! ```text
//! y[m, n] = (f32(acc) / s[m]) * g[segment of n]        in this order, each step rounded once
//! ```

use crate::num::fma;

/// Ternary codes in one packed word.
pub const CODES_PER_WORD: usize = 16;
/// Codes in one 16-byte load; rows are padded to a multiple of this.
pub const CHUNK: usize = 64;
/// Chunks whose activations are interleaved (see [`act_index`]).
pub const CHUNK_GROUP: usize = 8;
/// A word of sixteen zeros.
pub const PAD_WORD: u32 = 0x5555_5555;
/// Most scale segments of one fused matrix.
pub const MAX_SEGMENTS: usize = 8;
/// Largest K. Every partial sum of every kernel stays inside `i32` up to here.
pub const MAX_K: usize = 1 << 20;
/// Largest N and largest M.
pub const MAX_ROWS: usize = 1 << 24;

/// Word of its row, and lowest bit, of code `k`.
///
/// Four neighbours share a *bit lane*, one bit pair of each byte: `word & (0x03030303 << 2j)` feeds `dp4a`
/// without a shuffle. The bit lanes of a word are 16 codes apart, so bit lane `j` of the four words of a chunk
/// is its piece `j`, in order; and a lane of a tensor-core product of depth 32, which takes four neighbours of
/// every 16, finds all that it takes of a chunk in one word.
pub const fn code_place(k: usize) -> (usize, u32) {
    (k / CHUNK * 4 + k % 16 / 4, (8 * (k % 4) + 2 * (k % CHUNK / 16)) as u32)
}

/// Word `w` and bit lane `j` change places with word `j` and bit lane `w`: between a chunk and four words of
/// sixteen neighbours each, as other layouts have them. Its own inverse.
#[inline(always)]
pub const fn turn([mut a, mut b, mut c, mut d]: [u32; 4]) -> [u32; 4] {
    const ODD: u32 = 0x3333_3333;
    const UPPER: u32 = 0x0f0f_0f0f;
    (a, b) = swap(a, b, 2, ODD);
    (c, d) = swap(c, d, 2, ODD);
    (a, c) = swap(a, c, 4, UPPER);
    (b, d) = swap(b, d, 4, UPPER);
    [a, b, c, d]
}

/// What stands in `mask`, `shift` bits up, in `a`, and what stands in `mask` in `b`, change places.
#[inline(always)]
const fn swap(a: u32, b: u32, shift: u32, mask: u32) -> (u32, u32) {
    let t = ((a >> shift) ^ b) & mask;
    (a ^ (t << shift), b ^ t)
}

/// Packed words of one row of `k` codes: a whole number of chunks.
pub const fn row_words(k: usize) -> usize {
    k.div_ceil(CHUNK) * (CHUNK / CODES_PER_WORD)
}

/// Bytes of one row of activations of length `k`: a whole number of chunk groups.
pub const fn act_bytes(k: usize) -> usize {
    k.div_ceil(CHUNK * CHUNK_GROUP) * CHUNK * CHUNK_GROUP
}

/// Where activation `k` stands in its row.
///
/// A lane that holds the 64 weights of chunk `c` needs four 16-byte pieces of activations. Piece
/// `j` of eight neighbouring chunks stand side by side, so that eight lanes read 128 consecutive
/// bytes.
pub const fn act_index(k: usize) -> usize {
    let (chunk, piece, e) = (k / CHUNK, k % CHUNK / 16, k % 16);
    ((chunk / CHUNK_GROUP) * 4 + piece) * (16 * CHUNK_GROUP) + (chunk % CHUNK_GROUP) * 16 + e
}

/// What the quantiser leaves beside each row of activations.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActStats {
    /// Quantisation multiplier `127 / absmax`; dequantising divides by it.
    pub scale: f32,
    /// Sum of the row's int8 values.
    pub sum: i32,
}

/// Scales of a fused matrix: rows below `end[i]` (and not below `end[i - 1]`) take `scale[i]`.
///
/// Unused entries repeat the last one. The last `end` is N.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segments {
    /// Ascending row boundaries.
    pub end: [u32; MAX_SEGMENTS],
    /// Dequantisation multipliers (absmean of the master weights).
    pub scale: [f32; MAX_SEGMENTS],
}

impl Segments {
    /// The multiplier of `row`.
    #[inline(always)]
    pub const fn scale_of(&self, row: u32) -> f32 {
        let mut scale = self.scale[0];
        let mut i = 1;
        while i < MAX_SEGMENTS {
            if row >= self.end[i - 1] {
                scale = self.scale[i];
            }
            i += 1;
        }
        scale
    }

    /// Segments from `(rows, scale)` in order; `None` when there are none, too many, an empty one,
    /// or more than [`MAX_ROWS`] rows.
    pub fn new(parts: &[(usize, f32)]) -> Option<Self> {
        let (_, last) = *parts.last()?;
        if parts.len() > MAX_SEGMENTS || parts.iter().any(|p| p.0 == 0 || p.0 > MAX_ROWS) {
            return None;
        }
        let rows: usize = parts.iter().map(|p| p.0).sum();
        if rows > MAX_ROWS {
            return None;
        }
        let mut segments = Self { end: [rows as u32; MAX_SEGMENTS], scale: [last; MAX_SEGMENTS] };
        let mut end = 0;
        for (i, &(rows, scale)) in parts.iter().enumerate() {
            end += rows;
            segments.end[i] = end as u32;
            segments.scale[i] = scale;
        }
        Some(segments)
    }

    /// N: the end of the last segment.
    pub const fn rows(&self) -> usize {
        self.end[MAX_SEGMENTS - 1] as usize
    }
}

/// The epilogue of every W2A8 kernel.
#[inline(always)]
pub const fn dequantise(acc: i32, act_scale: f32, weight_scale: f32) -> f32 {
    (acc as f32 / act_scale) * weight_scale
}

/// A scale of activations that divides many sums: [`dequantise`] without its division.
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    scale: f32,
    reciprocal: f32,
    ordinary: bool,
}

impl Divisor {
    /// `scale` from `2^-64` to `2^64` is ordinary: no step of a division leaves the normal numbers,
    /// for any sum in `i32`.
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        const LOW: f32 = 1.0 / (1u128 << 64) as f32;
        const HIGH: f32 = (1u128 << 64) as f32;
        let ordinary = (LOW..=HIGH).contains(&scale);
        Self { scale, reciprocal: 1.0 / scale, ordinary }
    }

    /// As three words, for shared memory.
    #[inline(always)]
    pub fn words(self) -> [u32; 3] {
        [self.scale.to_bits(), self.reciprocal.to_bits(), self.ordinary as u32]
    }

    /// From [`Divisor::words`].
    #[inline(always)]
    pub fn from_words([scale, reciprocal, ordinary]: [u32; 3]) -> Self {
        let (scale, reciprocal) = (f32::from_bits(scale), f32::from_bits(reciprocal));
        Self { scale, reciprocal, ordinary: ordinary != 0 }
    }

    /// Whether [`Divisor::divide4_ordinary`] divides.
    #[inline(always)]
    pub fn is_ordinary(&self) -> bool {
        self.ordinary
    }

    /// `acc as f32 / scale` of each, the same bits.
    #[inline(always)]
    pub fn divide4(&self, acc: [i32; 4]) -> [f32; 4] {
        let mut out = self.divide4_ordinary(acc);
        if !self.ordinary {
            let mut i = 0;
            while i < 4 {
                out[i] = acc[i] as f32 / self.scale;
                i += 1;
            }
        }
        out
    }

    /// The same where the scale is ordinary, else of no use. Two corrections of `acc * (1 / scale)`:
    /// the first leaves an error below one unit in the last place, and then the second one rounds
    /// correctly, because the reciprocal is (Markstein, "Computation of elementary functions on the
    /// IBM RISC System/6000 processor", 1990).
    #[inline(always)]
    pub fn divide4_ordinary(&self, acc: [i32; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        let mut i = 0;
        while i < 4 {
            let a = acc[i] as f32;
            let q = a * self.reciprocal;
            let q = fma(fma(-self.scale, q, a), self.reciprocal, q);
            out[i] = fma(fma(-self.scale, q, a), self.reciprocal, q);
            i += 1;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn activations_fill_their_row_once() {
        for k in [1, 15, 16, 63, 64, 65, 511, 512, 513, 1000, 2560, 6912] {
            let mut taken = vec![false; act_bytes(k)];
            for i in 0..act_bytes(k) {
                assert!(!std::mem::replace(&mut taken[act_index(i)], true), "k={k} i={i}");
            }
        }
    }

    #[test]
    fn a_piece_is_sixteen_neighbours() {
        for k in (0..4096).step_by(16) {
            assert_eq!(act_index(k) % 16, 0);
            assert_eq!(act_index(k + 15), act_index(k) + 15);
        }
    }

    #[test]
    fn codes_fill_their_row_once() {
        for k in [1, 63, 64, 65, 512, 1000] {
            let mut row = vec![0u32; row_words(k)];
            for k in 0..row.len() * CODES_PER_WORD {
                let (word, shift) = code_place(k);
                assert_eq!(row[word] & (3 << shift), 0);
                row[word] |= 1 << shift;
            }
            assert!(row.iter().all(|&word| word == PAD_WORD));
        }
    }

    #[test]
    fn a_bit_lane_of_a_chunk_is_a_piece() {
        for k in 0..4096 {
            let (word, shift) = code_place(k);
            // As bytes of the chunk: those of its activations' piece.
            assert_eq!((word % 4 * 4) as u32 + shift / 8, (act_index(k) % 16) as u32);
            assert_eq!(shift % 8 / 2, (act_index(k) / 128 % 4) as u32);
        }
    }

    #[test]
    fn a_turned_chunk_has_sixteen_neighbours_in_a_word() {
        let chunk = [0x1234_5678, 0x9abc_def0, 0x0f1e_2d3c, 0xdead_beef];
        let words = turn(chunk);
        assert_eq!(turn(words), chunk);
        for k in 0..CHUNK {
            let (word, shift) = code_place(k);
            let there = 8 * (k % 4) + 2 * (k % 16 / 4);
            assert_eq!(chunk[word] >> shift & 3, words[k / 16] >> there & 3, "{k}");
        }
    }

    #[test]
    fn each_row_takes_the_scale_of_its_segment() {
        let parts = [(3, 1.0), (1, 2.0), (5, 3.0)];
        let segments = Segments::new(&parts).unwrap();
        assert_eq!(segments.rows(), 9);
        let mut row = 0;
        for (rows, scale) in parts {
            for _ in 0..rows {
                assert_eq!(segments.scale_of(row), scale, "row {row}");
                row += 1;
            }
        }
        assert_eq!(Segments::new(&[]), None);
        assert_eq!(Segments::new(&[(0, 1.0)]), None);
        assert_eq!(Segments::new(&[(1, 1.0); MAX_SEGMENTS + 1]), None);
        assert_eq!(Segments::new(&[(MAX_ROWS, 1.0), (1, 1.0)]), None);
        assert!(Segments::new(&[(1, 1.0); MAX_SEGMENTS]).is_some());
    }

    #[test]
    fn a_divisor_divides() {
        let mut bits = 1u32;
        let mut next = || {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bits ^ bits >> 13
        };
        let edges = [0, 1, -1, 3, 7, 127 << 20, -(128 << 20), i32::MAX, i32::MIN];
        for round in 0..20_000 {
            // Significands near 1 and 2 among them, and exponents beyond the ordinary ones.
            let significand = match round % 4 {
                0 => next() & 7,
                1 => !(next() & 7) & 0x7f_ffff,
                _ => next() & 0x7f_ffff,
            };
            let scale = f32::from_bits(significand | (50 + next() % 160) << 23);
            let divisor = Divisor::from_words(Divisor::new(scale).words());
            for i in 0..32 {
                let acc = edges.get(i).copied().unwrap_or((next() >> (next() % 32)) as i32);
                let (found, want) = (divisor.divide4([acc; 4])[i % 4], acc as f32 / scale);
                assert_eq!(found.to_bits(), want.to_bits(), "{acc} / {scale:e}");
            }
        }
        for scale in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 1e38, -3.0] {
            for acc in edges {
                let (found, want) = (Divisor::new(scale).divide4([acc; 4])[0], acc as f32 / scale);
                assert!(found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan());
            }
        }
    }

    #[test]
    fn division_comes_first() {
        let y = dequantise(-2323, 17.25, 1.875);
        assert_eq!(crate::num::f32_to_bf16(y), 0xc37d);
    }
}
