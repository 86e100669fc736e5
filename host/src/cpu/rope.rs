//! CPU side of [`contract::rope`].

use contract::rope::rotate;

use super::threads::RowsMut;
use super::{Simd, Threads};

/// Angles: rows of `head_dim / 2` cosines and sines, one for each position.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a> {
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
    /// Elements of a head.
    pub head_dim: usize,
}

impl<'a> Angles<'a> {
    /// Cosines and sines of position `pos`; `None` past the table.
    #[inline(always)]
    pub(super) fn at(&self, pos: usize) -> Option<(&'a [f32], &'a [f32])> {
        let half = self.head_dim / 2;
        let range = pos * half..(pos + 1) * half;
        Some((self.cos.get(range.clone())?, self.sin.get(range)?))
    }
}

/// Rotates one head in place.
#[inline(always)]
pub(super) fn rotate_head(head: &mut [f32], (cos, sin): (&[f32], &[f32])) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((lo, hi), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*lo, *hi) = rotate(*lo, *hi, *c, *s);
    }
}

/// Rotates the first `heads` heads of `m` rows, which start every `row_stride` elements and stand
/// at positions `start..start + m`. Rows past the table stay as they are.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn rope(
    threads: &Threads,
    simd: Simd,
    x: &mut [f32],
    angles: Angles<'_>,
    start: u32,
    m: usize,
    heads: usize,
    row_stride: usize,
) {
    threads.run_rows(m, RowsMut::new(x, row_stride), |i, row| {
        if let Some(at) = angles.at(start as usize + i) {
            let row = &mut row[..heads * angles.head_dim];
            simd.with(|| row.chunks_exact_mut(angles.head_dim).for_each(|h| rotate_head(h, at)));
        }
    });
}
