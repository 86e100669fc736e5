//! CPU side of [`contract::rope`].

use contract::rope::rotate;

use super::simd::vectorised;
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

vectorised! {
    /// Rotates heads that stand side by side.
    fn rotate_heads(heads: &mut [f32], head_dim: usize, at: (&[f32], &[f32])) {
        for head in heads.chunks_exact_mut(head_dim) {
            rotate_head(head, at);
        }
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
            rotate_heads(simd, row, angles.head_dim, at);
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::{bits, every_backend, upload};
    use crate::ops::Backend;
    use crate::ops::rope::{Rope, RopeTable};
    use crate::reference::Inputs;
    use crate::reference::rope::{self as reference, TEST_POSITIONS, TEST_SHAPES};
    use proptest::prelude::*;

    fn check(m: usize, heads: usize, head_dim: usize, start: usize, gap: usize, seed: u64) {
        let (cos, sin) = reference::table(TEST_POSITIONS, head_dim, 500_000.0);
        let row_stride = heads * head_dim + gap;
        let x = Inputs::new(seed).floats(m * row_stride - gap, 2.0);
        let mut want = x.clone();
        reference::rope(&mut want, (&cos, &sin), start, heads, head_dim, row_stride);
        every_backend(|backend| {
            let mut table =
                RopeTable::new(backend, TEST_POSITIONS, head_dim, 500_000.0).expect("alloc");
            assert_eq!(bits(table.cos.as_slice()), bits(&cos));
            assert_eq!(bits(table.sin.as_slice()), bits(&sin));
            // Room behind the table is not part of it.
            table.cos = upload(backend, &[&cos[..], &[9.0; 999]].concat());
            let mut x = upload(backend, &x);
            let start = upload(backend, &[u32::MAX, start as u32]);
            let (table, start) = (&table, &start);
            let op = Rope { x: &mut x, table, start, start_at: 1, m, heads, row_stride };
            backend.rope(op).expect("shapes fit");
            assert_eq!(bits(x.as_slice()), bits(&want), "{m} {heads} {head_dim}");
        });
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &(m, heads, head_dim, start) in TEST_SHAPES {
            check(m, heads, head_dim, start, 0, 1);
            check(m, heads, head_dim, start, 5, 2);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn equals_the_reference_on_any_shape(
            m in 1usize..6, heads in 1usize..6, half in 1usize..70, start in 0usize..45,
            gap in 0usize..9, seed: u64,
        ) {
            check(m, heads, 2 * half, start, gap, seed);
        }
    }
}
