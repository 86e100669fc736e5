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

/// Most channels that tensor cores take together: of groups, or of a row of a window.
const MOST_TOGETHER: usize = 64;

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

    /// The same by fewer groups, for tensor cores: as many groups together as have 64 channels at most, and output channels.
    /// Each output channel has zeros for the channels of the other ones.
    pub const fn together(&self) -> Self {
        let Self { k, c, window, groups } = *self;
        let widest = if k / groups > c { k / groups } else { c };
        let mut count = MOST_TOGETHER / widest;
        if self.depthwise() || count < 2 {
            return *self;
        }
        while !groups.is_multiple_of(count) {
            count -= 1;
        }
        Self { k, c: c * count, window, groups: groups / count }
    }

    /// What tensor cores take where channels of a group are in no eights: those of a row of the window together, if they
    /// are few, or of each tap, and zeros behind them up to an eighth one. One channel is for them where all of eight output
    /// channels or more are of it.
    pub const fn in_eights(&self) -> Self {
        let Self { k, c, window: [r, s], groups } = *self;
        if c.is_multiple_of(8) || (c == 1 && (groups > 1 || k < 8)) {
            return *self;
        }
        let together = groups == 1 && s > 1 && s * c <= MOST_TOGETHER;
        let (c, window) = if together { (s * c, [r, 1]) } else { (c, [r, s]) };
        Self { k, c: c.next_multiple_of(8), window, groups }
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

    #[test]
    fn channels_in_no_eights_are_taken_together_where_they_are_few() {
        let of = |c, window, groups| Packed { k: 12, c, window, groups }.in_eights();
        let wide = |c, window, groups| Packed { k: 12, c, window, groups };
        assert_eq!(of(3, [7, 7], 1), wide(24, [7, 1], 1));
        assert_eq!(of(3, [16, 16], 1), wide(48, [16, 1], 1));
        assert_eq!(of(33, [3, 3], 1), wide(40, [3, 3], 1));
        assert_eq!(of(3, [1, 1], 1), wide(8, [1, 1], 1));
        assert_eq!(of(3, [3, 3], 2), wide(8, [3, 3], 2));
        assert_eq!(of(16, [3, 3], 1), wide(16, [3, 3], 1));
        assert_eq!(of(1, [3, 3], 1), wide(8, [3, 1], 1));
        assert_eq!(of(1, [3, 3], 12), wide(1, [3, 3], 12));
    }

    #[test]
    fn small_groups_are_taken_together() {
        let of = |k, c, groups| {
            let together = Packed { k, c, window: [3, 3], groups }.together();
            assert_eq!((together.k, together.window), (k, [3, 3]));
            (together.c, together.groups)
        };
        assert_eq!(of(128, 4, 32), (64, 2));
        assert_eq!(of(1024, 32, 32), (64, 16));
        assert_eq!(of(240, 24, 10), (48, 5));
        assert_eq!(of(24, 3, 8), (24, 1));
        // Wide enough, or one group, or depthwise.
        assert_eq!(of(256, 64, 4), (64, 4));
        assert_eq!(of(256, 32, 2), (32, 2));
        assert_eq!(of(32, 3, 1), (3, 1));
        assert_eq!(of(32, 1, 32), (1, 32));
    }
}
