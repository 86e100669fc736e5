//! The device layout of 1.6 bits a weight, five ternaries to a byte, and its kernels.
//!
//! | tensor  | element | shape                     | layout                                        |
//! |---------|---------|---------------------------|-----------------------------------------------|
//! | weights | `u32`   | `[N, row_words(K)]`       | row-major; 16-byte vectors of 80 codes        |
//! | acts, stats, y |  |                           | those of [`crate::w2a8`]                      |
//!
//! A vector holds five words of sixteen neighbouring codes of two bits ([`code_shift`]; [`unpack`] makes them). A row of activations is
//! [`pieces`] pieces of sixteen values, in the order in which they lie in memory; word `d` of vector `v` of a row of
//! [`vectors`] vectors meets piece `d * vectors + v`. So neighbouring lanes that hold neighbouring vectors read
//! neighbouring pieces. What has no piece holds code 0, which adds
//! nothing whatever it meets; elements from K on hold the code of zero, as in the 2-bit layout.
//!
//! Sixteen times, at each pair of bits, four fields of a vector `w` hold five codes `x`, each 0, 1 or 2. A field of 3
//! is *marked*:
//!
//! | marked fields            | states | `x4`               | `x3`                      |
//! |--------------------------|--------|--------------------|---------------------------|
//! | none                     | 81     | 0                  | `w3`                      |
//! | one of 0, 1, 2           | 81     | 1                  | `w3`                      |
//! | 3 alone                  | 27     | 2                  | 1                         |
//! | 3 and one of 0, 1, 2     | 27     | 2                  | 2                         |
//! | two of 0, 1, 2           | 27     | 2                  | 0                         |
//!
//! Fields 0, 1, 2 without a mark hold `x0`, `x1`, `x2`. With marks, `x2` says which are marked (0 or 0 and 2: 0; 1
//! or 1 and 2: 1; 2 or 0 and 1: 2); what a marked field displaced stands in `w2`, or in `w3` where two are marked.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::{ActStats, CODES_PER_WORD, Segments, act_bytes};

/// Codes of a 16-byte vector.
pub const CODES: usize = 80;
/// Words of a vector.
pub const WORDS: usize = 4;
/// Words of sixteen codes that a vector makes.
pub const UNPACKED: usize = 5;

/// Pieces of sixteen activations in a row of `k`.
pub const fn pieces(k: usize) -> usize {
    act_bytes(k) / CODES_PER_WORD
}

/// Vectors of a row of `k` codes: an even number, so that rows start at whole sectors of memory.
pub const fn vectors(k: usize) -> usize {
    pieces(k).div_ceil(UNPACKED).next_multiple_of(2)
}

/// Words of a row of `k` codes.
pub const fn row_words(k: usize) -> usize {
    vectors(k) * WORDS
}

/// Bit position of code `e` (`0..16`) inside a word of sixteen neighbours: those that share a bit lane are four
/// neighbours, and four such words are a chunk of the 2-bit layout, turned ([`crate::w2a8::turn`]).
pub const fn code_shift(e: usize) -> u32 {
    (8 * (e % 4) + 2 * (e / 4)) as u32
}

/// The sixteen neighbours whose activations are piece `piece` ([`crate::w2a8::act_index`]).
#[inline(always)]
pub const fn neighbours_of_piece(piece: usize) -> usize {
    piece / 32 * 32 + piece % 8 * 4 + piece % 32 / 8
}

const LOW: u32 = 0x5555_5555;
const HIGH: u32 = 0xaaaa_aaaa;

/// `a` where `mask` is set, else `b`.
#[inline(always)]
const fn select(mask: u32, a: u32, b: u32) -> u32 {
    (mask & a) | (!mask & b)
}

/// Five words of sixteen 2-bit codes from a vector: 25 operations on words.
#[inline(always)]
pub const fn unpack(w: [u32; WORDS]) -> [u32; UNPACKED] {
    // The marks, in the low bit of a field, then in both.
    let mark = [
        w[0] & (w[0] >> 1) & LOW,
        w[1] & (w[1] >> 1) & LOW,
        w[2] & (w[2] >> 1) & LOW,
        w[3] & (w[3] >> 1) & LOW,
    ];
    let m = [mark[0] * 3, mark[1] * 3, mark[2] * 3, mark[3] * 3];
    let any = m[0] | m[1] | m[2];
    let two = (m[0] & m[1]) | (m[0] & m[2]) | (m[1] & m[2]);
    let x0 = select(m[0], select(m[2], w[3], w[2]), w[0]);
    let x1 = select(m[1], select(two, w[3], w[2]), w[1]);
    // 1 where field 1 is marked and not field 0, 2 where both are.
    let which = m[1] & !(m[0] ^ HIGH);
    let x2 = ((w[2] & !m[0] & !m[1]) & !mark[2]) | which;
    // A marked field 3 is 3: one of its bits goes.
    let x3 = w[3] & !two & !(m[3] & (any ^ HIGH));
    let over = m[3] | two;
    let x4 = select(HIGH, over, any & !over);
    [x0, x1, x2, x3, x4]
}

/// Threads of a block.
pub const THREADS: u32 = 128;

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Packed weights `[n, 4 * vectors]`.
    pub w: DevPtr<u32>,
    /// One row of quantised activations.
    pub acts: DevPtr<u32>,
    /// Its scale and sum.
    pub stats: DevPtr<ActStats>,
    /// Output `[n]`.
    pub y: DevPtr<f32>,
    /// Output rows.
    pub n: u32,
    /// Vectors of a weight row.
    pub vectors: u32,
    /// Pieces of the row of activations.
    pub pieces: u32,
    /// Weight scales.
    pub segments: Segments,
}

/// What [`W2a8TritsUnpack`] takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnpackArgs {
    /// Packed weights `[n, 4 * vectors]`.
    pub w: DevPtr<u32>,
    /// The same in the 2-bit layout `[n, words]`.
    pub out: DevPtr<u32>,
    /// Rows.
    pub n: u32,
    /// Vectors of a row.
    pub vectors: u32,
    /// Words of a row of the 2-bit layout.
    pub words: u32,
}

/// A matrix into the 2-bit layout, for the kernels of [`crate::w2a8_gemm`]: a warp to a row.
pub enum W2a8TritsUnpack {}

impl Kernel for W2a8TritsUnpack {
    type Args = UnpackArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("w2a8_trits_unpack", THREADS);
}

/// Blocks of [`W2a8TritsUnpack`] for `n` rows.
pub const fn unpack_grid(n: u32) -> [u32; 3] {
    [n.div_ceil(THREADS / 32), 1, 1]
}

/// A compiled variant of the product with one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its launch rules.
    pub spec: LaunchSpec,
    /// Lanes that share one row.
    pub lanes: u32,
    /// Rows of one lane group.
    pub rows: u32,
    /// Vectors in flight per lane and row.
    pub unroll: u32,
}

impl Variant {
    /// Output rows of one block.
    pub const fn rows_per_block(&self) -> u32 {
        THREADS / self.lanes * self.rows
    }

    /// Blocks for `n` output rows.
    pub const fn grid(&self, n: u32) -> [u32; 3] {
        [n.div_ceil(self.rows_per_block()), 1, 1]
    }
}

macro_rules! variants {
    ($($name:ident $symbol:literal $lanes:literal $rows:literal $unroll:literal;)*) => {
        $(
            #[doc = concat!("Kernel `", $symbol, "`.")]
            pub enum $name {}

            impl Kernel for $name {
                type Args = Args;
                const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS);
            }
        )*

        /// Every compiled variant of the product with one row.
        pub const VARIANTS: &[Variant] = &[
            $(Variant { spec: $name::SPEC, lanes: $lanes, rows: $rows, unroll: $unroll }),*
        ];

        /// Calls `$mac! { Name "symbol" lanes rows unroll; ... }` with every variant.
        #[macro_export]
        macro_rules! for_each_w2a8_trits {
            ($mac:ident) => { $mac! { $($name $symbol $lanes $rows $unroll;)* } };
        }
    };
}

variants! {
    L16R2U1 "w2a8_trits_l16r2u1" 16 2 1;
    L16R4U2 "w2a8_trits_l16r4u2" 16 4 2;
    L32R2U1 "w2a8_trits_l32r2u1" 32 2 1;
    L32R2U3 "w2a8_trits_l32r2u3" 32 2 3;
    L32R4U1 "w2a8_trits_l32r4u1" 32 4 1;
    L32R4U2 "w2a8_trits_l32r4u2" 32 4 2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::w2a8::act_index;
    use std::vec;

    /// The codes of a field, by the table of this module alone.
    fn by_table(w: [u32; 4]) -> Option<[u32; 5]> {
        let m = w.map(|field| field == 3);
        Some(match (m[0], m[1], m[2], m[3]) {
            (false, false, false, false) => [w[0], w[1], w[2], w[3], 0],
            (false, false, false, true) => [w[0], w[1], w[2], 1, 2],
            (true, false, false, false) => [w[2], w[1], 0, w[3], 1],
            (false, true, false, false) => [w[0], w[2], 1, w[3], 1],
            (false, false, true, false) => [w[0], w[1], 2, w[3], 1],
            (true, false, false, true) => [w[2], w[1], 0, 2, 2],
            (false, true, false, true) => [w[0], w[2], 1, 2, 2],
            (false, false, true, true) => [w[0], w[1], 2, 2, 2],
            (true, true, false, false) => [w[2], w[3], 2, 0, 2],
            (true, false, true, false) => [w[3], w[1], 0, 0, 2],
            (false, true, true, false) => [w[0], w[3], 1, 0, 2],
            _ => return None,
        })
    }

    #[test]
    fn four_fields_hold_every_five_codes_once() {
        let mut seen = vec![false; 243];
        for byte in 0..256u32 {
            let w = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
            let Some(x) = by_table(w) else { continue };
            // At each pair of bits alone, and at all at once.
            for scale in (0..16).map(|i| 1u32 << (2 * i)).chain([LOW]) {
                assert_eq!(unpack(w.map(|f| f * scale)), x.map(|f| f * scale), "{w:?}");
            }
            let index = x.iter().fold(0, |index, &x| 3 * index + x as usize);
            assert!(x.iter().all(|&x| x < 3) && !std::mem::replace(&mut seen[index], true));
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn nothing_is_sixteen_times_code_zero() {
        assert_eq!(unpack([0; 4]), [0; 5]);
    }

    #[test]
    fn a_word_meets_its_activations() {
        for k in (0..5000).step_by(16) {
            assert_eq!(neighbours_of_piece(act_index(k) / 16), k / 16);
        }
    }

    #[test]
    fn only_the_last_word_of_a_vector_lacks_pieces() {
        for k in 1..20_000 {
            assert!(pieces(k) <= UNPACKED * vectors(k) && 4 * vectors(k) <= pieces(k), "{k}");
        }
    }
}
