//! Lookup matmul: products are read from tables of sums instead of being multiplied.
//!
//! Weights stand in *tiles* of [`TILE`] rows. A tile is a row of *steps*; a step is a few vectors of
//! [`TILE`] bytes, byte `r` of each for row `r` of the tile, so that one 32-byte load feeds 32 rows
//! on a CPU and 32 lanes on a GPU look up in the same table. Tiles stand in *bands* of [`BAND`], and
//! the steps of a band in *stretches* of [`STRETCH`]: a stretch of the first tile, of the second, ...,
//! then the next stretch. A CPU that keeps the tables of a stretch in its first cache so reads a band
//! from end to end. Rows past N and columns past K hold the code of zero.
//!
//! ## Exact forms
//!
//! | form           | lookup                | step                                 | bits a weight |
//! |----------------|-----------------------|--------------------------------------|------|
//! | [`Form::Tl1`]  | 2 ternaries, 9 codes  | 16 columns: 4 vectors of two codes   | 2    |
//! | [`Form::Tl2`]  | 3 ternaries, 14 codes and a sign | 24 columns: 4 vectors of two codes, 1 of eight signs | 1.67 |
//!
//! Lookup `j` of a step has its code in nibble `j % 2` (0 the low one) of vector `j / 2`, and for
//! TL2 its sign in bit `7 - j` of vector 4. Tables hold the exact sums of int8 activations, at most
//! 384 in magnitude, so `acc` is the integer of [`crate::w2a8`] and `y` has its bits:
//!
//! ```text
//! acc[m, n] = sum over lookups of table[m, lookup][code[n, lookup]]      exact, i32
//! y[m, n]   = (f32(acc) / s[m]) * g[segment of n]
//! ```
//!
//! Activations and their statistics are those of [`crate::w2a8`]; only the scale is used.

pub mod lossy;

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::{ActStats, Segments};

pub use lossy::{LossyB1, LossyB2, LossyB3, LossyB4, LossyTables};

/// Rows of a tile, and bytes of a vector.
pub const TILE: usize = 32;
/// Tiles of a band; the last band may have fewer.
pub const BAND: usize = 4;
/// Steps of a stretch; the last one may be shorter.
pub const STRETCH: usize = 32;
/// Lookups of a step.
pub const STEP_LOOKUPS: usize = 8;

/// How ternaries are grouped into lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Pairs.
    Tl1,
    /// Triples, mirrored: a code and a sign.
    Tl2,
}

impl Form {
    /// Both forms.
    pub const ALL: [Self; 2] = [Self::Tl1, Self::Tl2];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tl1 => "TL1",
            Self::Tl2 => "TL2",
        }
    }

    /// Ternaries of a lookup.
    pub const fn ternaries(self) -> usize {
        match self {
            Self::Tl1 => 2,
            Self::Tl2 => 3,
        }
    }

    /// Columns of a step.
    pub const fn step_columns(self) -> usize {
        STEP_LOOKUPS * self.ternaries()
    }

    /// Bytes of a step of a tile.
    pub const fn step_bytes(self) -> usize {
        match self {
            Self::Tl1 => 4 * TILE,
            Self::Tl2 => 5 * TILE,
        }
    }

    /// Steps of a row of `k` columns.
    pub const fn steps(self, k: usize) -> usize {
        k.div_ceil(self.step_columns())
    }

    /// Bytes of a tile of rows of `k` columns.
    pub const fn tile_bytes(self, k: usize) -> usize {
        self.steps(k) * self.step_bytes()
    }

    /// Bytes of an `n` by `k` matrix.
    pub const fn packed_bytes(self, n: usize, k: usize) -> usize {
        n.div_ceil(TILE) * self.tile_bytes(k)
    }

    /// First byte of step `step` of tile `tile` in a matrix of `tiles` tiles of `k` columns.
    pub const fn step_at(self, tiles: usize, k: usize, tile: usize, step: usize) -> usize {
        let first = tile - tile % BAND;
        let in_band = if tiles - first < BAND { tiles - first } else { BAND };
        let steps = self.steps(k) as u32;
        let at = step_in_band(in_band as u32, (tile % BAND) as u32, steps, step as u32);
        first * self.tile_bytes(k) + at as usize * self.step_bytes()
    }

    /// Codes there are: smaller nibbles are valid.
    pub const fn codes(self) -> u8 {
        match self {
            Self::Tl1 => 9,
            Self::Tl2 => 14,
        }
    }

    /// The code of zeros.
    pub const fn zero_code(self) -> u8 {
        match self {
            Self::Tl1 => 4,
            Self::Tl2 => 0,
        }
    }
}

/// How many steps stand before step `step` of tile `tile` in a band of `in_band` tiles of `steps` steps.
#[inline(always)]
pub const fn step_in_band(in_band: u32, tile: u32, steps: u32, step: u32) -> u32 {
    let begin = step - step % STRETCH as u32;
    let left = steps.saturating_sub(begin);
    let stretch = if left < STRETCH as u32 { left } else { STRETCH as u32 };
    begin * in_band + tile * stretch + step % STRETCH as u32
}

/// TL1's code of a pair: `3 a + b + 4`.
pub const fn pair_code(a: i8, b: i8) -> u8 {
    (3 * a + b + 4) as u8
}

/// The pair of a TL1 code below 9.
pub const fn pair_of(code: u8) -> [i8; 2] {
    [code as i8 / 3 - 1, code as i8 % 3 - 1]
}

/// TL2's code and sign of a triple: magnitude of `9 a + 3 b + c`, and whether it is negative.
pub const fn triple_code(a: i8, b: i8, c: i8) -> (u8, bool) {
    let v = 9 * a + 3 * b + c;
    (v.unsigned_abs(), v < 0)
}

/// The triple of a TL2 code below 14 with sign `+`; the negative one is its mirror image.
pub const fn triple_of(code: u8) -> [i8; 3] {
    let v = code as i8 + 13;
    [v / 9 - 1, v / 3 % 3 - 1, v % 3 - 1]
}

/// Entry `code` of TL1's table of activations `x`.
#[inline(always)]
pub const fn pair_entry(code: u8, x: [i32; 2]) -> i32 {
    let t = pair_of(code);
    t[0] as i32 * x[0] + t[1] as i32 * x[1]
}

/// Entry `code` of TL2's table of activations `x`, for sign `+`.
#[inline(always)]
pub const fn triple_entry(code: u8, x: [i32; 3]) -> i32 {
    let t = triple_of(code);
    t[0] as i32 * x[0] + t[1] as i32 * x[1] + t[2] as i32 * x[2]
}

/// Shared memory of an exact kernel: its tables, and one more for the last lookup to end in.
pub const SMEM_BYTES: u32 = 46_080 + 64;
/// Steps whose tables are in shared memory together.
pub const fn tile_steps(form: Form) -> u32 {
    46_080 / (STEP_LOOKUPS as u32 * 4 * table_words(form))
}

const _: () = assert!((tile_steps(Form::Tl1) as usize).is_multiple_of(STRETCH));
const _: () = assert!((tile_steps(Form::Tl2) as usize).is_multiple_of(STRETCH));
/// Words of a table in shared memory: an odd number, so that neighbouring tables are built without
/// bank conflicts. Entries are 16 bits; TL2's negative ones begin at word 8.
pub const fn table_words(form: Form) -> u32 {
    match form {
        Form::Tl1 => 5,
        Form::Tl2 => 15,
    }
}

/// The only parameter of an exact kernel, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Tiles of weights.
    pub w: DevPtr<u8>,
    /// Rows of quantised activations.
    pub acts: DevPtr<u32>,
    /// Their scales.
    pub stats: DevPtr<ActStats>,
    /// Output `[m, n]`.
    pub y: DevPtr<f32>,
    /// Output columns: rows of weights.
    pub n: u32,
    /// Columns of weights.
    pub k: u32,
    /// Rows of activations.
    pub m: u32,
    /// Weight scales.
    pub segments: Segments,
}

/// An exact kernel, as data for the choice and for the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its launch rules.
    pub spec: LaunchSpec,
    /// The form of its weights.
    pub form: Form,
    /// Warps of a block, which share the steps of a stretch.
    pub warps: u32,
}

impl Variant {
    /// Blocks for `n` rows of weights and `m` of activations; the kernel folds rows past the grid.
    pub const fn grid(&self, n: u32, m: u32) -> [u32; 3] {
        let rows = if m < 65_535 { m } else { 65_535 };
        [n.div_ceil(TILE as u32), rows, 1]
    }
}

macro_rules! exact {
    ($($name:ident $symbol:literal $form:ident $warps:literal;)*) => {
        $(
            #[doc = concat!("Kernel `", $symbol, "`.")]
            pub enum $name {}

            impl Kernel for $name {
                type Args = Args;
                const SPEC: LaunchSpec =
                    LaunchSpec::new($symbol, 32 * $warps).with_smem(SMEM_BYTES);
            }
        )*

        /// Every exact kernel.
        pub const VARIANTS: &[Variant] = &[
            $(Variant { spec: $name::SPEC, form: Form::$form, warps: $warps }),*
        ];

        /// Calls `$mac! { Name "symbol" form warps; ... }` with every exact kernel.
        #[macro_export]
        macro_rules! for_each_lut_matmul {
            ($mac:ident) => { $mac! { $($name $symbol $form $warps;)* } };
        }
    };
}

exact! {
    Tl1W8 "lut_matmul_tl1_w8" Tl1 8;
    Tl1W16 "lut_matmul_tl1_w16" Tl1 16;
    Tl2W8 "lut_matmul_tl2_w8" Tl2 8;
    Tl2W16 "lut_matmul_tl2_w16" Tl2 16;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn codes_are_those_of_the_published_tables() {
        let pairs: [i32; 9] = core::array::from_fn(|code| pair_entry(code as u8, [5, -3]));
        assert_eq!(pairs, [-2, -5, -8, 3, 0, -3, 8, 5, 2]);
        assert_eq!(triple_code(-1, 1, 1), (5, true));
        let listed = [
            [0, 0, 0],
            [0, 0, 1],
            [0, 1, -1],
            [0, 1, 0],
            [0, 1, 1],
            [1, -1, -1],
            [1, -1, 0],
            [1, -1, 1],
            [1, 0, -1],
            [1, 0, 0],
            [1, 0, 1],
            [1, 1, -1],
            [1, 1, 0],
            [1, 1, 1],
        ];
        for (code, triple) in listed.into_iter().enumerate() {
            assert_eq!(triple_of(code as u8), triple);
        }
    }

    #[test]
    fn every_step_has_a_place_of_its_own() {
        for form in Form::ALL {
            for (n, k) in [(1usize, 1), (128, 768), (129, 769), (300, 2560), (90, 512)] {
                let tiles = n.div_ceil(TILE);
                let mut taken = vec![false; form.packed_bytes(n, k)];
                for tile in 0..tiles {
                    for step in 0..form.steps(k) {
                        let at = form.step_at(tiles, k, tile, step);
                        for byte in &mut taken[at..at + form.step_bytes()] {
                            assert!(!std::mem::replace(byte, true), "{form:?} {n}x{k}");
                        }
                    }
                }
                assert!(taken.iter().all(|&byte| byte), "{form:?} {n}x{k}");
            }
        }
    }

    #[test]
    fn every_group_has_a_code_and_comes_back() {
        for a in -1..=1 {
            for b in -1..=1 {
                assert_eq!(pair_of(pair_code(a, b)), [a, b]);
                for c in -1..=1 {
                    let (code, negative) = triple_code(a, b, c);
                    assert!(code < Form::Tl2.codes());
                    let sign = if negative { -1 } else { 1 };
                    assert_eq!(triple_of(code).map(|t| sign * t), [a, b, c]);
                }
            }
        }
    }
}
