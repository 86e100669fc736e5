//! Packed weights.

use contract::conv2d::Geometry;
use contract::conv2d::weights::Packed;

use super::{OP, OpError};
use crate::ops::error::{dimension, same};
use crate::ops::{Backend, Float};

/// The weights of one convolution in the layout of [`contract::conv2d::weights`].
pub struct Conv2dWeights<B: Backend, T: Float> {
    data: B::Buf<T>,
    packed: Packed,
}

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
        let mut values = vec![T::round(0.0); packed.len()];
        // What is behind the last term is -0: see the contract.
        for matrix in values.chunks_exact_mut(packed.rows() * packed.columns()) {
            matrix[terms * packed.columns()..].fill(T::round(-0.0));
        }
        for (channel, of_channel) in weights.chunks_exact(terms).enumerate() {
            for (in_channel, window) in of_channel.chunks_exact(r * s).enumerate() {
                for (tap, &value) in window.iter().enumerate() {
                    values[packed.index(channel, tap * c + in_channel)] = value;
                }
            }
        }
        let mut data = backend.alloc(label, values.len())?;
        backend.write(&mut data, 0, &values)?;
        Ok(Self { data, packed })
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
