//! The packed layouts of the weights, made once when they are loaded from `[K, C/g, R, S]`.
//!
//! * **Columns** (`C/g > 1`): `[groups, rows, columns]`, row `(r S + s) C/g + c` of a group holds the
//!   weight of term (r, s, c) for every output channel of the group, side by side. Rows are padded to
//!   a multiple of [`ROWS`] with -0, so that a tile may run past the last term: `+0 * -0` added to
//!   any number leaves it as it is. Columns are padded to a multiple of [`COLUMNS`] with +0.
//! * **Taps** (`C/g = 1`, depthwise): `[R S, K]`, columns padded likewise, no padded rows.

/// Rows are padded to a multiple of this.
pub const ROWS: usize = 32;
/// Columns are padded to a multiple of this: 16 bytes of the narrowest float.
pub const COLUMNS: usize = 8;

/// Shape of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Output channels of all groups.
    pub k: usize,
    /// Input channels of one group.
    pub c: usize,
    /// Height and width of the window.
    pub window: [usize; 2],
    /// Groups.
    pub groups: usize,
}

impl Packed {
    /// Terms of one sum.
    pub const fn terms(&self) -> usize {
        self.window[0] * self.window[1] * self.c
    }

    /// Whether each group has one input channel: the layout of taps.
    pub const fn depthwise(&self) -> bool {
        self.c == 1
    }

    /// Matrices: one for each group, or one for all (depthwise).
    pub const fn matrices(&self) -> usize {
        if self.depthwise() { 1 } else { self.groups }
    }

    /// Rows of a matrix, with padding.
    pub const fn rows(&self) -> usize {
        if self.depthwise() { self.terms() } else { self.terms().next_multiple_of(ROWS) }
    }

    /// Columns of a matrix, with padding.
    pub const fn columns(&self) -> usize {
        (self.k / self.matrices()).next_multiple_of(COLUMNS)
    }

    /// Elements in all.
    pub const fn len(&self) -> usize {
        self.matrices() * self.rows() * self.columns()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the weight of output channel `k`, term `term`, stands.
    pub const fn index(&self, k: usize, term: usize) -> usize {
        let of_matrix = self.k / self.matrices();
        let (matrix, column) = (k / of_matrix, k % of_matrix);
        (matrix * self.rows() + term) * self.columns() + column
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_has_a_place_of_its_own() {
        for (k, c, window, groups) in
            [(1, 1, [1, 1], 1), (10, 3, [2, 3], 2), (12, 1, [3, 3], 4), (64, 64, [1, 1], 1)]
        {
            let packed = Packed { k, c, window, groups };
            let mut taken = std::vec![false; packed.len()];
            for channel in 0..k {
                for term in 0..packed.terms() {
                    assert!(!std::mem::replace(&mut taken[packed.index(channel, term)], true));
                }
            }
        }
    }
}
