//! Ternarising float masters by their mean absolute value.
//!
//! `g = max(mean |W|, 1e-5)` over the whole projection, then `t = clamp(rne(W * (1/g)), -1, 1)`, the
//! product and the reciprocal in f32. The mean is summed in f64 in a fixed order: in each row sixteen
//! partials, partial p taking columns p, p+16, ... in order, joined by a binary tree (distance 8 down
//! to 1); then the rows' sums first to last. The quotient is rounded once to f32. Half to even sends
//! `|W| = 0.5 g` to 0, so `t` is the sign of W where `|W * (1/g)| > 0.5`, else 0.

use contract::w2a8::CODES_PER_WORD;

use super::{PackError, word};

/// Smallest g: that of an all-zero matrix.
pub const MIN_SCALE: f32 = 1e-5;

/// Accumulates the mean absolute value of a matrix, row by row in order.
#[derive(Clone, Debug, Default)]
pub struct AbsMean {
    sum: f64,
    count: u64,
}

impl AbsMean {
    /// Takes the next row; `row` only names it in errors.
    pub fn push_row(&mut self, values: &[f32], row: usize) -> Result<(), PackError> {
        let mut partial = [0f64; 16];
        let (whole, tail) = values.as_chunks::<16>();
        for part in whole {
            for (sum, value) in partial.iter_mut().zip(part) {
                *sum += f64::from(value.abs());
            }
        }
        for (sum, value) in partial.iter_mut().zip(tail) {
            *sum += f64::from(value.abs());
        }
        for distance in [8, 4, 2, 1] {
            for p in 0..distance {
                partial[p] += partial[p + distance];
            }
        }
        if !partial[0].is_finite()
            && let Some(col) = values.iter().position(|v| !v.is_finite())
        {
            return Err(PackError::NotFinite { row, col, value: values[col] });
        }
        self.sum += partial[0];
        self.count += values.len() as u64;
        Ok(())
    }

    /// g.
    pub fn scale(&self) -> f32 {
        if self.count == 0 {
            return MIN_SCALE;
        }
        ((self.sum / self.count as f64) as f32).max(MIN_SCALE)
    }
}

/// Rounds one row of master weights into device words; `inv_scale` is `1 / g` in f32.
pub(crate) fn row_into(values: &[f32], inv_scale: f32, out: &mut [u32]) {
    for (part, word) in values.chunks(CODES_PER_WORD).zip(out.iter_mut()) {
        let mut codes = [1u8; CODES_PER_WORD];
        for (code, value) in codes.iter_mut().zip(part) {
            let v = value * inv_scale;
            *code = 1 + u8::from(v > 0.5) - u8::from(v < -0.5);
        }
        *word = word::word_of_codes(&codes);
    }
    word::pad_row(out, values.len());
    word::turn_row(out);
}

/// Ternarises `values` (`[n, k]`, row-major): the ternaries and g.
pub fn ternarise(values: &[f32], k: usize) -> Result<(Vec<i8>, f32), PackError> {
    let n = values.len().checked_div(k).unwrap_or(0);
    super::check_shape(n, k)?;
    super::check_len("master weights", values.len(), n * k)?;
    let mut mean = AbsMean::default();
    for (row, part) in values.chunks(k).enumerate() {
        mean.push_row(part, row)?;
    }
    let scale = mean.scale();
    let mut words = vec![0; contract::w2a8::row_words(k)];
    let mut out = vec![0; values.len()];
    for (part, ternaries) in values.chunks(k).zip(out.chunks_mut(k)) {
        row_into(part, 1.0 / scale, &mut words);
        word::ternaries_from_row(&words, ternaries);
    }
    Ok((out, scale))
}
