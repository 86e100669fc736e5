//! Packed weights.

use contract::conv2d::Geometry;
use contract::conv2d::weights::Packed;

use super::{OP, OpError};
use crate::ops::error::{dimension, same};
use crate::ops::{Backend, Float, RowType};

/// The weights of one convolution in the layout of [`contract::conv2d::weights`].
pub struct Conv2dWeights<B: Backend, T: Float> {
    data: B::Buf<T>,
    packed: Packed,
    /// The same for tensor cores, where [`Packed::together`] or [`Packed::in_eights`] says so.
    wide: Option<(B::Buf<T>, Packed)>,
}

/// Output channels that are turned together when weights are packed.
const TURNED: usize = 16;

/// Refuses sizes that no weights have.
pub(super) fn check_packed(op: &'static str, packed: &Packed) -> Result<(), OpError> {
    let Packed { k, c, window: [r, s], groups } = *packed;
    let max = Geometry::MAX_COORDINATE;
    for (what, value) in [("k", k), ("c", c), ("r", r), ("s", s), ("groups", groups)] {
        dimension(op, what, value, max, "1 to 2^24 are allowed")?;
    }
    let terms = r.checked_mul(s).and_then(|rs| rs.checked_mul(c)).unwrap_or(usize::MAX);
    dimension(op, "terms", terms, Geometry::MAX_TERMS, "a sum has at most 2^24")?;
    if !k.is_multiple_of(groups) {
        let allowed = "it has to divide the number of output channels";
        return Err(OpError::Dimension { op, what: "groups", found: groups, allowed });
    }
    Ok(())
}

impl<B: Backend, T: Float> Conv2dWeights<B, T> {
    /// Packs and uploads PyTorch's `[k, c, r, s]`, `c` the input channels of one of `groups` groups.
    ///
    /// # Errors
    /// A dimension of 0 or above 2^24, groups that do not divide `k`, another number of elements;
    /// out of memory.
    pub fn from_oihw(
        backend: &B,
        label: &'static str,
        weights: &[T],
        [k, c, r, s]: [usize; 4],
        groups: usize,
    ) -> Result<Self, OpError> {
        let packed = Packed { k, c, window: [r, s], groups };
        check_packed(OP, &packed)?;
        let terms = packed.terms();
        same(OP, "elements of w", weights.len(), k.saturating_mul(terms))?;
        let values = turned(weights, &packed);
        let upload = |values: &[T]| -> Result<B::Buf<T>, OpError> {
            let mut data = backend.alloc(label, values.len())?;
            backend.write(&mut data, 0, values)?;
            Ok(data)
        };
        let data = upload(&values)?;
        let (together, mut wide) = (packed.together(), None);
        let in_eights = together.in_eights();
        if in_eights != packed && T::TYPE != RowType::F32 {
            let values = turned(&beside_zeros(weights, &packed, &together), &together);
            wide = Some((upload(&widened(values, &together, &in_eights))?, in_eights));
        }
        Ok(Self { data, packed, wide })
    }

    /// The elements for tensor cores and their shape, where those are others.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for kernels of a GPU"))]
    pub(super) fn wide(&self) -> Option<(&B::Buf<T>, Packed)> {
        self.wide.as_ref().map(|(data, packed)| (data, *packed))
    }

    /// The packed elements.
    pub fn data(&self) -> &B::Buf<T> {
        &self.data
    }

    /// Their shape.
    pub fn packed(&self) -> &Packed {
        &self.packed
    }
}

/// The packed elements of `[k, c, r, s]`.
fn turned<T: Float>(weights: &[T], packed: &Packed) -> Vec<T> {
    let Packed { k, c, window: [r, s], .. } = *packed;
    let (columns, terms) = (packed.columns(), packed.terms());
    let mut values = vec![T::round(0.0); packed.len()];
    let matrices = values.chunks_exact_mut(packed.rows() * columns);
    for (matrix, of_matrix) in matrices.zip(weights.chunks_exact(k / packed.matrices() * terms)) {
        // What is behind the last term is -0: see the contract.
        matrix[terms * columns..].fill(T::round(-0.0));
        for (first, channels) in of_matrix.chunks(TURNED * terms).enumerate() {
            for from in 0..terms {
                let (in_channel, tap) = (from / (r * s), from % (r * s));
                let row = (tap * c + in_channel) * columns + first * TURNED;
                let row = matrix[row..].iter_mut();
                row.zip(channels.chunks_exact(terms)).for_each(|(to, from_channel)| {
                    *to = from_channel[from];
                });
            }
        }
    }
    values
}

/// `[k, c, r, s]` of `packed` by the groups of `together`: zeros for the channels of other groups.
fn beside_zeros<T: Float>(weights: &[T], packed: &Packed, together: &Packed) -> Vec<T> {
    let (terms, count) = (packed.terms(), packed.groups / together.groups);
    let mut values = vec![T::round(0.0); together.k * together.terms()];
    let channels = values.chunks_exact_mut(together.terms()).zip(weights.chunks_exact(terms));
    for (channel, (to, from)) in channels.enumerate() {
        let group = channel / (packed.k / packed.groups);
        to[group % count * terms..][..terms].copy_from_slice(from);
    }
    values
}

/// The elements of `packed` as `wide` has them: rows of its taps, and zeros behind the rows of each.
fn widened<T: Float>(values: Vec<T>, packed: &Packed, wide: &Packed) -> Vec<T> {
    if packed == wide {
        return values;
    }
    let columns = packed.columns();
    let taps: usize = wide.window.iter().product();
    let (of_tap, place) = (packed.terms() / taps * columns, wide.c * columns);
    let mut widened = vec![T::round(0.0); wide.len()];
    let from = values.chunks_exact(packed.rows() * columns);
    for (to, from) in widened.chunks_exact_mut(wide.rows() * columns).zip(from) {
        for (to, from) in to.chunks_exact_mut(place).zip(from.chunks_exact(of_tap)).take(taps) {
            to[..of_tap].copy_from_slice(from);
        }
    }
    widened
}
