//! The tiles of lookup matmul ([`contract::lut_matmul`]) on the host: ternaries as codes of pairs
//! (TL1) or of mirrored triples (TL2).
//!
//! A [`PackedTl`] is always valid: every nibble is a code of its form, rows past N and columns past
//! K hold the code of zero. So what it is uploaded to looks up inside its tables.

use contract::lut_matmul::{Form, TILE, pair_code, pair_of, triple_code, triple_of};
use contract::w2a8::{Segments, row_words};

use super::{PackError, PackedW2, TernarySource, check_len, check_shape, w2, word};

/// A fused ternary matrix in tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedTl {
    form: Form,
    n: usize,
    k: usize,
    bytes: Vec<u8>,
    segments: Segments,
}

impl PackedTl {
    /// The same matrix as `packed`, in tiles.
    ///
    /// # Errors
    /// Words that are not `n` rows of `k`; a code that stands for no ternary.
    pub fn from_w2(form: Form, packed: &PackedW2) -> Result<Self, PackError> {
        let (n, k) = (packed.n, packed.k);
        check_shape(n, k)?;
        check_len("segments", packed.segments.rows(), n)?;
        let width = row_words(k);
        check_len("packed words", packed.words.len(), n * width)?;
        for (row, words) in packed.words.chunks_exact(width).enumerate() {
            word::check_row(words, row)?;
        }
        let mut packed_tiles =
            Self { form, n, k, bytes: vec![0; form.packed_bytes(n, k)], segments: packed.segments };
        let mut ternaries = vec![0; form.steps(k) * form.step_columns()];
        for row in 0..n.next_multiple_of(TILE) {
            ternaries.fill(0);
            if let Some(words) = packed.words.chunks_exact(width).nth(row) {
                word::ternaries_from_row(words, &mut ternaries[..k]);
            }
            packed_tiles.encode(row, &ternaries);
        }
        Ok(packed_tiles)
    }

    /// Packs `ternaries` (`[n, k]`, row-major) whose rows are split into `segments` of
    /// `(rows, scale)`.
    ///
    /// # Errors
    /// As [`PackedW2::from_ternaries`].
    pub fn from_ternaries(
        form: Form,
        ternaries: &[i8],
        k: usize,
        segments: &[(usize, f32)],
    ) -> Result<Self, PackError> {
        Self::from_w2(form, &PackedW2::from_ternaries(ternaries, k, segments)?)
    }

    /// Takes tiles that were stored before.
    ///
    /// # Errors
    /// A shape outside of the contract, another number of bytes, a nibble that is no code, or
    /// padding that is not zero.
    pub fn from_bytes(
        form: Form,
        k: usize,
        segments: Segments,
        bytes: Vec<u8>,
    ) -> Result<Self, PackError> {
        let n = segments.rows();
        check_shape(n, k)?;
        check_len("tiles", bytes.len(), form.packed_bytes(n, k))?;
        let packed = Self { form, n, k, bytes, segments };
        packed.check()?;
        Ok(packed)
    }

    fn check(&self) -> Result<(), PackError> {
        let (form, k) = (self.form, self.k);
        let mut ternaries = vec![0; form.steps(k) * form.step_columns()];
        for row in 0..self.n.next_multiple_of(TILE) {
            self.decode(row, &mut ternaries)?;
            let used = if row < self.n { k } else { 0 };
            if let Some(col) = ternaries[used..].iter().position(|&t| t != 0) {
                return Err(PackError::Padding { row, col: used + col });
            }
        }
        Ok(())
    }

    /// The ternaries of row `row` of the tiles, padding and all.
    fn decode(&self, row: usize, out: &mut [i8]) -> Result<(), PackError> {
        let (form, group) = (self.form, self.form.ternaries());
        for (index, out) in out.chunks_exact_mut(form.step_columns()).enumerate() {
            let step = &self.bytes[self.step_at(row, index)..][..form.step_bytes()];
            for (j, out) in out.chunks_exact_mut(group).enumerate() {
                let code = step[j / 2 * TILE + row % TILE] >> (4 * (j % 2)) & 15;
                if code >= form.codes() {
                    let col = index * form.step_columns() + j * group;
                    return Err(PackError::InvalidCode { row, col, code });
                }
                match form {
                    Form::Tl1 => out.copy_from_slice(&pair_of(code)),
                    Form::Tl2 => {
                        let negative = step[4 * TILE + row % TILE] >> (7 - j) & 1 == 1;
                        let sign = if negative { -1 } else { 1 };
                        out.copy_from_slice(&triple_of(code).map(|t| sign * t));
                    }
                }
            }
        }
        Ok(())
    }

    fn step_at(&self, row: usize, step: usize) -> usize {
        self.form.step_at(self.n.div_ceil(TILE), self.k, row / TILE, step)
    }

    /// Writes row `row` of the tiles, of whole steps, over zeros.
    fn encode(&mut self, row: usize, ternaries: &[i8]) {
        let (form, r) = (self.form, row % TILE);
        for (index, ternaries) in ternaries.chunks_exact(form.step_columns()).enumerate() {
            let at = self.step_at(row, index);
            let step = &mut self.bytes[at..][..form.step_bytes()];
            for (j, t) in ternaries.chunks_exact(form.ternaries()).enumerate() {
                let code = match form {
                    Form::Tl1 => pair_code(t[0], t[1]),
                    Form::Tl2 => {
                        let (code, negative) = triple_code(t[0], t[1], t[2]);
                        step[4 * TILE + r] |= u8::from(negative) << (7 - j);
                        code
                    }
                };
                step[j / 2 * TILE + r] |= code << (4 * (j % 2));
            }
        }
    }

    /// How the ternaries are grouped.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The tiles.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Row boundaries and scales.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The same matrix in the layout of [`contract::w2a8`].
    ///
    /// # Errors
    /// None in a matrix that was made by this type.
    pub fn to_w2(&self) -> Result<PackedW2, PackError> {
        let mut words = vec![0; self.n * row_words(self.k)];
        self.rows_into(0..self.n, &mut words)?;
        Ok(PackedW2 { n: self.n, k: self.k, words, segments: self.segments })
    }

    /// All ternaries, row-major, for tests and references.
    ///
    /// # Errors
    /// As [`PackedTl::to_w2`].
    pub fn to_ternaries(&self) -> Result<Vec<i8>, PackError> {
        Ok(self.to_w2()?.to_ternaries())
    }
}

/// One projection of a [`PackedTl`] can be read back like any other source.
impl TernarySource for PackedTl {
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
        w2::check_rows(&rows, self.n)?;
        let width = row_words(self.k);
        check_len("rows", out.len(), rows.len() * width)?;
        let mut ternaries = vec![0; self.form.steps(self.k) * self.form.step_columns()];
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            self.decode(row, &mut ternaries)?;
            word::row_from_ternaries(&ternaries[..self.k], row, out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pack::ternary_sha256;
    use crate::reference::Inputs;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn tiles_keep_the_ternaries(n in 1usize..100, k in 1usize..200, seed: u64) {
            let t = Inputs::new(seed).ternaries(n * k);
            let w2 = PackedW2::from_ternaries(&t, k, &[(n, 0.5)]).unwrap();
            for form in Form::ALL {
                let tl = PackedTl::from_w2(form, &w2).unwrap();
                prop_assert_eq!(&tl.to_ternaries().unwrap(), &t);
                prop_assert_eq!(ternary_sha256(&tl).unwrap(), w2.ternary_sha256());
                let back = PackedTl::from_bytes(form, k, *tl.segments(), tl.bytes().to_vec());
                prop_assert_eq!(back.unwrap(), tl);
            }
        }
    }

    #[test]
    fn what_is_no_tile_is_refused() {
        let (n, k) = (33, 25);
        let segments = Segments::new(&[(n, 1.0)]).unwrap();
        for form in Form::ALL {
            let good = PackedTl::from_ternaries(form, &vec![1; n * k], k, &[(n, 1.0)]).unwrap();
            let short = good.bytes()[1..].to_vec();
            let refused = PackedTl::from_bytes(form, k, segments, short);
            assert!(matches!(refused, Err(PackError::Length { .. })), "{refused:?}");
            let mut bytes = good.bytes().to_vec();
            bytes[2 * TILE + 7] |= 0xf0;
            let refused = PackedTl::from_bytes(form, k, segments, bytes);
            let col = 5 * form.ternaries();
            assert_eq!(refused, Err(PackError::InvalidCode { row: 7, col, code: 15 }));
            // Row 33 is past the end.
            let mut bytes = good.bytes().to_vec();
            bytes[form.step_at(2, k, 1, 0) + 1] = if form == Form::Tl1 { 0x45 } else { 1 };
            let refused = PackedTl::from_bytes(form, k, segments, bytes);
            assert!(matches!(refused, Err(PackError::Padding { row: 33, .. })), "{refused:?}");
        }
        let k = contract::w2a8::MAX_K + 1;
        let refused = PackedTl::from_bytes(Form::Tl2, k, segments, Vec::new());
        assert!(matches!(refused, Err(PackError::Shape { .. })), "{refused:?}");
    }
}
