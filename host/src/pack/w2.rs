//! The device layout on the host: one fused matrix, built from the rows of its projections.
//!
//! `words` is `[N, row_words(K)]`, row-major, exactly what is uploaded. Projections that are fused
//! (q, k, v; gate, up) keep their own scale as a segment of rows. [`ternary_sha256`] hashes what the
//! weights *are*, whatever layout they came from: N and K as u64, then every row's codes `t + 1` in
//! natural order, four to a byte, first in the low bits, rows padded with zeros' codes to the chunk.

use contract::w2a8::{CHUNK, CODES_PER_WORD, MAX_SEGMENTS, Segments, row_words};
use sha2::{Digest, Sha256};

use super::{PackError, check_len, check_shape, word};

/// Rows decoded at once where a whole matrix is walked, in words.
const STREAM_WORDS: usize = 1 << 16;

/// A matrix of ternaries with one scale, readable by ranges of rows in the device layout.
pub trait TernarySource {
    /// Why rows could not be read.
    type Error: From<PackError>;
    /// Rows.
    fn n(&self) -> usize;
    /// Columns.
    fn k(&self) -> usize;
    /// Dequantisation multiplier g: the real weight is `t * g`.
    fn scale(&self) -> f32;
    /// Writes rows `rows` into `out`, `row_words(K)` words each; `out` must fit exactly.
    fn rows_into(&self, rows: core::ops::Range<usize>, out: &mut [u32]) -> Result<(), Self::Error>;

    /// Walks all rows in order in bounded pieces: `visit(first row, words)`.
    fn for_each_piece<E: From<Self::Error>>(
        &self,
        mut visit: impl FnMut(usize, &[u32]) -> Result<(), E>,
    ) -> Result<(), E>
    where
        Self: Sized,
    {
        let width = row_words(self.k());
        let step = (STREAM_WORDS / width).max(1);
        let mut words = vec![0; width * step.min(self.n())];
        for first in (0..self.n()).step_by(step) {
            let end = (first + step).min(self.n());
            let piece = &mut words[..width * (end - first)];
            self.rows_into(first..end, piece)?;
            visit(first, piece)?;
        }
        Ok(())
    }
}

/// Hashes rows of ternaries as they come.
#[derive(Clone, Debug)]
pub struct TernaryHasher {
    state: Sha256,
    natural: Vec<u8>,
}

impl TernaryHasher {
    /// For a matrix of `n` rows of `k` ternaries.
    pub fn new(n: usize, k: usize) -> Self {
        let mut state = Sha256::new();
        state.update((n as u64).to_le_bytes());
        state.update((k as u64).to_le_bytes());
        Self { state, natural: Vec::new() }
    }

    /// Takes the next rows, in the device layout.
    pub fn update(&mut self, words: &[u32]) {
        for part in words.chunks(1 << 12) {
            self.natural.clear();
            self.natural
                .extend(word::neighbours(part).flat_map(|w| word::transpose(w).to_le_bytes()));
            self.state.update(&self.natural);
        }
    }

    /// The hash in hexadecimal.
    pub fn finish(self) -> String {
        use core::fmt::Write;
        let mut text = String::with_capacity(64);
        for byte in self.state.finalize() {
            // Writing into a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

/// SHA-256 of the ternaries of `source`, the same for every layout that holds them.
pub fn ternary_sha256<S: TernarySource>(source: &S) -> Result<String, S::Error> {
    let mut hasher = TernaryHasher::new(source.n(), source.k());
    source.for_each_piece::<S::Error>(|_, words| {
        hasher.update(words);
        Ok(())
    })?;
    Ok(hasher.finish())
}

/// A fused matrix in the device layout.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedW2 {
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// `[n, row_words(k)]`, see `contract::w2a8`.
    pub words: Vec<u32>,
    /// Row boundaries and scales of the fused projections.
    pub segments: Segments,
}

impl PackedW2 {
    /// Packs `ternaries` (`[n, k]`, row-major) whose rows are split into `segments` of
    /// `(rows, scale)`.
    pub fn from_ternaries(
        ternaries: &[i8],
        k: usize,
        segments: &[(usize, f32)],
    ) -> Result<Self, PackError> {
        let n = segments.iter().map(|s| s.0).sum();
        check_shape(n, k)?;
        check_len("ternaries", ternaries.len(), n * k)?;
        check_scales(segments)?;
        let width = row_words(k);
        let mut words = vec![0; n * width];
        let rows = ternaries.chunks_exact(k).zip(words.chunks_exact_mut(width));
        for (row, (values, out)) in rows.enumerate() {
            word::row_from_ternaries(values, row, out)?;
        }
        Ok(Self { n, k, words, segments: segments_of(segments)? })
    }

    /// Words of row `row`.
    ///
    /// # Panics
    /// When `row` is not below N.
    pub fn row(&self, row: usize) -> &[u32] {
        let width = row_words(self.k);
        &self.words[row * width..(row + 1) * width]
    }

    /// The ternaries, `[n, k]`, row-major: four times the memory, for tests and references.
    pub fn to_ternaries(&self) -> Vec<i8> {
        let mut out = vec![0; self.n * self.k];
        for (row, values) in out.chunks_exact_mut(self.k).enumerate() {
            word::ternaries_from_row(self.row(row), values);
        }
        out
    }

    /// Bytes of `words`: what the matrix takes on the device.
    pub fn bytes(&self) -> usize {
        size_of_val(self.words.as_slice())
    }

    /// SHA-256 of the ternaries, see the module's words.
    pub fn ternary_sha256(&self) -> String {
        let mut hasher = TernaryHasher::new(self.n, self.k);
        hasher.update(&self.words);
        hasher.finish()
    }
}

/// One projection of a [`PackedW2`] can be read back like any other source.
impl TernarySource for PackedW2 {
    type Error = PackError;

    fn n(&self) -> usize {
        self.n
    }

    fn k(&self) -> usize {
        self.k
    }

    /// The first segment's scale.
    fn scale(&self) -> f32 {
        self.segments.scale[0]
    }

    fn rows_into(&self, rows: core::ops::Range<usize>, out: &mut [u32]) -> Result<(), PackError> {
        check_rows(&rows, self.n)?;
        let width = row_words(self.k);
        check_len("rows", out.len(), rows.len() * width)?;
        out.copy_from_slice(&self.words[rows.start * width..rows.end * width]);
        Ok(())
    }
}

/// Builds a [`PackedW2`] from one or several projections, in order of rows.
#[derive(Debug)]
pub struct W2Builder {
    k: usize,
    words: Vec<u32>,
    parts: Vec<(usize, f32)>,
}

impl W2Builder {
    /// For rows of `k` ternaries.
    pub fn new(k: usize) -> Result<Self, PackError> {
        check_shape(1, k)?;
        Ok(Self { k, words: Vec::new(), parts: Vec::new() })
    }

    /// Reserves room for `rows` rows in all, so that pushing does not move them. The caller has
    /// checked that so many rows exist.
    pub fn with_rows(mut self, rows: usize) -> Result<Self, PackError> {
        check_shape(rows, self.k)?;
        self.words.reserve_exact(rows * row_words(self.k));
        Ok(self)
    }

    /// Appends all rows of `source` as one segment with its scale.
    pub fn push<S: TernarySource>(&mut self, source: &S) -> Result<&mut Self, S::Error> {
        let (n, k) = (source.n(), source.k());
        if k != self.k {
            return Err(PackError::FusedK { expected: self.k, found: k }.into());
        }
        if self.parts.len() == MAX_SEGMENTS {
            return Err(PackError::Parts { parts: MAX_SEGMENTS + 1 }.into());
        }
        check_scales(&[(n, source.scale())])?;
        let before: usize = self.parts.iter().map(|p| p.0).sum();
        check_shape(before + n, k)?;
        let width = row_words(k);
        self.words.resize((before + n) * width, 0);
        let step = (STREAM_WORDS / width).max(1);
        let mut first = 0;
        for piece in self.words[before * width..].chunks_mut(step * width) {
            let end = first + piece.len() / width;
            source.rows_into(first..end, piece)?;
            first = end;
        }
        self.parts.push((n, source.scale()));
        Ok(self)
    }

    /// The fused matrix.
    pub fn finish(self) -> Result<PackedW2, PackError> {
        let n = self.parts.iter().map(|p| p.0).sum();
        Ok(PackedW2 { n, k: self.k, segments: segments_of(&self.parts)?, words: self.words })
    }
}

fn segments_of(parts: &[(usize, f32)]) -> Result<Segments, PackError> {
    Segments::new(parts).ok_or(PackError::Parts { parts: parts.len() })
}

/// Refuses a scale that is not positive and finite.
pub(crate) fn check_scales(parts: &[(usize, f32)]) -> Result<(), PackError> {
    match parts.iter().find(|(_, scale)| !(scale.is_finite() && *scale > 0.0)) {
        Some(&(_, scale)) => Err(PackError::Scale { scale }),
        None => Ok(()),
    }
}

pub(crate) fn check_rows(rows: &core::ops::Range<usize>, n: usize) -> Result<(), PackError> {
    if rows.start > rows.end || rows.end > n {
        return Err(PackError::Rows { start: rows.start, end: rows.end, n });
    }
    Ok(())
}

/// How many of the `k` ternaries of each of these device rows are -1, 0 and 1.
pub fn count_ternaries(words: &[u32], k: usize) -> [u64; 3] {
    let width = row_words(k.max(1));
    let mut ones = 0u64;
    let mut twos = 0u64;
    for &w in words {
        ones += u64::from((w & 0x5555_5555).count_ones());
        twos += u64::from((w & 0xaaaa_aaaa).count_ones());
    }
    let rows = (words.len() / width) as u64;
    // Padding is coded as zeros.
    let padding = rows * (k.next_multiple_of(CHUNK) - k) as u64;
    let all = rows * (width * CODES_PER_WORD) as u64;
    [all - ones - twos, ones - padding, twos]
}
