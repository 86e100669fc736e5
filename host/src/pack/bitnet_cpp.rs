//! The TL1 and TL2 weight bytes of bitnet.cpp files.
//!
//! Both are tiled for the CPU kernel that was generated for one matrix shape. The tiling is not in
//! the file: it comes from the build that will run it, so it must be named here ([`Tiling`], with the
//! published ones in [`TL1_PRESETS`] and [`TL2_PRESETS`]). A wrong one gives wrong weights or, mostly,
//! a nibble that is no code. Scales stand beside the bytes, in a tensor `NAME_scale`.
//!
//! * TL1: pairs, `3 a + b + 4`, two to a byte, the first in the high nibble; 16 rows side by side.
//! * TL2: as many columns as fill blocks of BK in triples (`|9 a + 3 b + c|`, then 16 bits of signs for
//!   half of 16 triples), the rest in pairs; 32 rows side by side, their second and third eight
//!   swapped; then zeros up to a size that counts 256 columns as pairs.

use contract::lut_matmul::{Form, pair_code, pair_of, triple_code, triple_of};
use contract::w2a8::row_words;

use super::{PackError, PackedW2, TernarySource, check_len, check_shape, w2, word};

/// How a matrix was tiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Rows of a block (`bm` of the published configuration).
    pub rows: usize,
    /// Columns of a block (`bk`).
    pub columns: usize,
    /// Rows that a kernel takes at once (`bmm`).
    pub inner: usize,
}

const fn tiling(rows: usize, columns: usize, inner: usize) -> Tiling {
    Tiling { rows, columns, inner }
}

/// `(N, K)` and tiling of the published TL1 kernels: models of 3B, large (0.7B) and 8B.
pub const TL1_PRESETS: &[((usize, usize), Tiling)] = &[
    ((3200, 8640), tiling(160, 64, 32)),
    ((3200, 3200), tiling(320, 128, 64)),
    ((8640, 3200), tiling(320, 64, 32)),
    ((1536, 4096), tiling(256, 128, 32)),
    ((1536, 1536), tiling(128, 64, 64)),
    ((4096, 1536), tiling(256, 128, 32)),
    ((14_336, 4096), tiling(256, 128, 64)),
    ((4096, 14_336), tiling(256, 128, 32)),
    ((1024, 4096), tiling(128, 64, 64)),
    ((4096, 4096), tiling(128, 64, 32)),
];

/// The same of TL2.
pub const TL2_PRESETS: &[((usize, usize), Tiling)] = &[
    ((3200, 8640), tiling(160, 96, 32)),
    ((3200, 3200), tiling(320, 96, 32)),
    ((8640, 3200), tiling(320, 96, 32)),
    ((1536, 4096), tiling(256, 96, 32)),
    ((1536, 1536), tiling(128, 192, 32)),
    ((4096, 1536), tiling(256, 96, 32)),
    ((14_336, 4096), tiling(256, 96, 32)),
    ((4096, 14_336), tiling(128, 96, 32)),
    ((1024, 4096), tiling(256, 96, 32)),
    ((4096, 4096), tiling(128, 96, 32)),
];

impl Tiling {
    /// The published tiling of an `n` by `k` matrix.
    pub fn preset(form: Form, n: usize, k: usize) -> Option<Self> {
        let presets = if form == Form::Tl1 { TL1_PRESETS } else { TL2_PRESETS };
        presets.iter().find(|preset| preset.0 == (n, k)).map(|preset| preset.1)
    }

    /// Refuses a tiling that the layout has not, and a matrix that is not whole blocks of it.
    fn check(&self, form: Form, n: usize, k: usize) -> Result<(), PackError> {
        check_shape(n, k)?;
        let layout = match form {
            Form::Tl1 => "TL1 of bitnet.cpp",
            Form::Tl2 => "TL2 of bitnet.cpp",
        };
        let whole = |dim, found: usize, multiple: usize| match multiple {
            0 => Err(PackError::Multiple { layout, dim, multiple: 1, found: 0 }),
            _ if found == 0 || !found.is_multiple_of(multiple) => {
                Err(PackError::Multiple { layout, dim, multiple, found })
            }
            _ => Ok(()),
        };
        match (form, self.inner) {
            (Form::Tl1, 32 | 64) | (Form::Tl2, 32) => {}
            _ => {
                return Err(PackError::Multiple {
                    layout,
                    dim: "bmm",
                    multiple: 32,
                    found: self.inner,
                });
            }
        }
        whole("bm", self.rows, self.inner)?;
        whole("N", n, self.rows)?;
        match form {
            Form::Tl1 => {
                whole("bk", self.columns, 256 / self.inner)?;
                whole("K", k, self.columns)
            }
            Form::Tl2 => {
                whole("bk", self.columns, 24)?;
                if k < 256 {
                    return Err(PackError::Multiple { layout, dim: "K", multiple: 256, found: k });
                }
                let rest = k % self.columns;
                if rest == 0 { Ok(()) } else { whole("the rest of K", rest, PAIR_COLUMNS) }
            }
        }
    }
}

/// Columns of a block of TL2's pairs.
const PAIR_COLUMNS: usize = 32;

/// Where row `r` of 32 stands among them in TL2.
const fn swapped(r: usize) -> usize {
    [0, 2, 1, 3][r / 8] * 8 + r % 8
}

/// Number of a block of `inner` rows, as both layouts count them.
const fn block(tiling: Tiling, columns: usize, count: usize, row: usize, col: usize) -> usize {
    (row / tiling.rows * count + col / columns) * (tiling.rows / tiling.inner)
        + row % tiling.rows / tiling.inner
}

/// Byte of TL1 that holds columns `col..col + 4` (a multiple of 4) of row `row`.
fn tl1_byte(tiling: Tiling, k: usize, row: usize, col: usize) -> usize {
    let by = 256 / tiling.inner;
    let at = block(tiling, tiling.columns, k / tiling.columns, row, col);
    let at = at * (tiling.columns / by) + col % tiling.columns / by;
    let at = at * (tiling.inner / 16) + row % tiling.inner / 16;
    (at * (by / 4) + col % by / 4) * 16 + row % 16
}

/// Offsets of TL2's sections, and its sizes.
#[derive(Clone, Copy, Debug)]
struct Sections {
    /// Columns in triples.
    triples: usize,
    /// First byte of the signs.
    signs: usize,
    /// First byte of the pairs.
    pairs: usize,
    /// Bytes of weights and signs.
    used: usize,
    /// Bytes with the published padding.
    padded: usize,
}

fn sections(tiling: Tiling, n: usize, k: usize) -> Sections {
    let triples = k - k % tiling.columns;
    let signs = n * triples / 6;
    let pairs = signs + n * triples / 24;
    let used = pairs + n * (k - triples) / 4;
    let padded = used.max((k - 256) * n / 3 * 5 / 8 + 256 * n / 2 * 4 / 8);
    Sections { triples, signs, pairs, used, padded }
}

/// Byte of TL2 that holds columns `col..col + 6` (a multiple of 6) of the triples of row `row`.
fn tl2_triples(tiling: Tiling, s: Sections, row: usize, col: usize) -> usize {
    let at = block(tiling, tiling.columns, s.triples / tiling.columns, row, col);
    (at * (tiling.columns / 6) + col % tiling.columns / 6) * 32 + swapped(row % 32)
}

/// Byte and bit of the sign of the triple at column `col` of row `row`.
fn tl2_sign(tiling: Tiling, s: Sections, row: usize, col: usize) -> (usize, usize) {
    let at = block(tiling, tiling.columns, s.triples / tiling.columns, row, col);
    let half = (at * (tiling.columns / 24) + col % tiling.columns / 24) * 16 + row % 16;
    let bit = 15 - (2 * (col % 24 / 3) + row % 32 / 16);
    (s.signs + 2 * half + bit / 8, bit % 8)
}

/// Byte of TL2 that holds columns `col..col + 4` of the pairs of row `row`; `col` counts from the
/// first pair.
fn tl2_pairs(tiling: Tiling, s: Sections, k: usize, row: usize, col: usize) -> usize {
    let at = block(tiling, PAIR_COLUMNS, (k - s.triples) / PAIR_COLUMNS, row, col);
    s.pairs + (at * (PAIR_COLUMNS / 4) + col % PAIR_COLUMNS / 4) * 32 + swapped(row % 32)
}

/// A matrix of a bitnet.cpp file, read in place.
#[derive(Clone, Copy, Debug)]
pub struct BitnetCpp<'a> {
    bytes: &'a [u8],
    form: Form,
    n: usize,
    k: usize,
    tiling: Tiling,
    scale: f32,
}

impl<'a> BitnetCpp<'a> {
    /// Names the bytes of an `n` by `k` matrix; `scale` multiplies its ternaries.
    ///
    /// Padding behind the weights may be whole, rounded up to 32 bytes, or followed by the 32 bytes in
    /// which the published fork of ggml keeps the scale. Codes are checked when rows are read.
    ///
    /// # Errors
    /// A tiling that does not fit, bytes of another length, a scale that is not positive and finite.
    pub fn new(
        form: Form,
        bytes: &'a [u8],
        n: usize,
        k: usize,
        tiling: Tiling,
        scale: f32,
    ) -> Result<Self, PackError> {
        tiling.check(form, n, k)?;
        w2::check_scales(&[(n, scale)])?;
        let (used, padded) = match form {
            Form::Tl1 => (n * k / 4, n * k / 4),
            Form::Tl2 => {
                let s = sections(tiling, n, k);
                (s.used, s.padded)
            }
        };
        let round = padded.next_multiple_of(32);
        if ![used, padded, round, round + 32].contains(&bytes.len()) {
            check_len("TL bytes", bytes.len(), padded)?;
        }
        Ok(Self { bytes, form, n, k, tiling, scale })
    }

    /// Ternaries of row `row`.
    fn decode(&self, row: usize, out: &mut [i8]) -> Result<(), PackError> {
        let &Self { bytes, tiling, k, .. } = self;
        let pairs = |byte: u8, first: usize, out: &mut [i8]| {
            for (i, out) in out.chunks_exact_mut(2).enumerate() {
                let code = byte >> (4 - 4 * i) & 15;
                if code >= Form::Tl1.codes() {
                    return Err(PackError::InvalidCode { row, col: first + 2 * i, code });
                }
                out.copy_from_slice(&pair_of(code));
            }
            Ok(())
        };
        if self.form == Form::Tl1 {
            for (col, out) in (0..).step_by(4).zip(out.chunks_exact_mut(4)) {
                pairs(bytes[tl1_byte(tiling, k, row, col)], col, out)?;
            }
            return Ok(());
        }
        let s = sections(tiling, self.n, k);
        let (triples, rest) = out.split_at_mut(s.triples);
        for (col, out) in (0..).step_by(3).zip(triples.chunks_exact_mut(3)) {
            let byte = bytes[tl2_triples(tiling, s, row, col)];
            let code = byte >> (4 - 4 * (col / 3 % 2)) & 15;
            if code >= Form::Tl2.codes() {
                return Err(PackError::InvalidCode { row, col, code });
            }
            let (byte, bit) = tl2_sign(tiling, s, row, col);
            let sign = if bytes[byte] >> bit & 1 == 1 { -1 } else { 1 };
            out.copy_from_slice(&triple_of(code).map(|t| sign * t));
        }
        for (col, out) in (0..).step_by(4).zip(rest.chunks_exact_mut(4)) {
            pairs(bytes[tl2_pairs(tiling, s, k, row, col)], s.triples + col, out)?;
        }
        Ok(())
    }
}

impl TernarySource for BitnetCpp<'_> {
    type Error = PackError;

    fn n(&self) -> usize {
        self.n
    }

    fn k(&self) -> usize {
        self.k
    }

    fn scale(&self) -> f32 {
        self.scale
    }

    fn rows_into(&self, rows: core::ops::Range<usize>, out: &mut [u32]) -> Result<(), PackError> {
        w2::check_rows(&rows, self.n)?;
        let width = row_words(self.k);
        check_len("rows", out.len(), rows.len() * width)?;
        let mut ternaries = vec![0; self.k];
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            self.decode(row, &mut ternaries)?;
            word::row_from_ternaries(&ternaries, row, out)?;
        }
        Ok(())
    }
}

/// The bytes of a matrix, with the published padding and without a scale.
///
/// # Errors
/// A tiling that does not fit.
pub fn export(form: Form, packed: &PackedW2, tiling: Tiling) -> Result<Vec<u8>, PackError> {
    let (n, k) = (packed.n, packed.k);
    tiling.check(form, n, k)?;
    check_len("packed words", packed.words.len(), n * row_words(k))?;
    let pairs = |t: &[i8]| pair_code(t[0], t[1]) << 4 | pair_code(t[2], t[3]);
    let mut ternaries = vec![0; k];
    let rows = packed.words.chunks_exact(row_words(k)).enumerate();
    if form == Form::Tl1 {
        let mut bytes = vec![0; n * k / 4];
        for (row, words) in rows {
            word::check_row(words, row)?;
            word::ternaries_from_row(words, &mut ternaries);
            for (col, t) in (0..).step_by(4).zip(ternaries.chunks_exact(4)) {
                bytes[tl1_byte(tiling, k, row, col)] = pairs(t);
            }
        }
        return Ok(bytes);
    }
    let s = sections(tiling, n, k);
    let mut bytes = vec![0; s.padded];
    for (row, words) in rows {
        word::check_row(words, row)?;
        word::ternaries_from_row(words, &mut ternaries);
        let (triples, rest) = ternaries.split_at(s.triples);
        for (col, t) in (0..).step_by(3).zip(triples.chunks_exact(3)) {
            let (code, negative) = triple_code(t[0], t[1], t[2]);
            bytes[tl2_triples(tiling, s, row, col)] |= code << (4 - 4 * (col / 3 % 2));
            let (byte, bit) = tl2_sign(tiling, s, row, col);
            bytes[byte] |= u8::from(negative) << bit;
        }
        for (col, t) in (0..).step_by(4).zip(rest.chunks_exact(4)) {
            bytes[tl2_pairs(tiling, s, k, row, col)] = pairs(t);
        }
    }
    Ok(bytes)
}
