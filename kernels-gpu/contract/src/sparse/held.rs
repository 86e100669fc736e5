//! Tensor-core kernels of a Hopper GPU for at most sixteen inputs, which stay in registers while tiles of several groups
//! of rows pass.

use super::{FEW_UNITS, LinearArgs, WAYS, bulk, groups, place_bytes, steps};
use crate::launch::{Kernel, LaunchSpec};

/// Shared memory of a block that has a Hopper multiprocessor for itself.
pub(super) const ALONE: u32 = 227 * 1024;
/// The same of one of two.
pub const ONE_OF_TWO: u32 = 113 * 1024;
/// Most units of a tile that is half full: 70 % zeros are faster by many warps a way, or with places for the tiles ahead, 50 % are not.
pub const SHORT_UNITS: usize = 1_280;
/// Warps of a block of [`SparseBf16Held8`] and [`SparseBf16Held16`]: each has a part of the tiles.
pub const HELD_WARPS: u32 = 16;
/// The same of [`SparseBf16Held8Pair`] and [`SparseBf16Held16Pair`], whose warps have more memory each.
pub const PAIR_WARPS: u32 = 12;
/// Most places of a warp of those.
pub const HELD_PLACES: u32 = 2;

/// The parameter of the kernels that hold inputs in registers, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeldArgs {
    /// The product; `ring` is [`place_bytes`] of the matrix.
    pub linear: LinearArgs,
    /// Groups of rows of a block, or of a pair of blocks.
    pub rows: u32,
    /// Places of a warp, 1 to [`HELD_PLACES`].
    pub places: u32,
}

impl HeldArgs {
    /// The launch for at most sixteen inputs on `sms` multiprocessors: so many groups of rows a block that all blocks
    /// are there at once or, where shared memory does not hold their sums, in as few turns as it allows. `None` where
    /// there is no such launch.
    pub const fn new(linear: LinearArgs, sms: u32) -> Option<Self> {
        if linear.m > 16 {
            return None;
        }
        let (eights, most) = if linear.m <= 8 { (1, ONE_OF_TWO) } else { (2, ALONE) };
        // A place for the next tile is worth its memory where many small ones follow.
        let many = eights == 2 && steps(linear.k as usize, 2) * WAYS > HELD_WARPS as usize;
        let many = many && linear.ring <= place_bytes(FEW_UNITS);
        let groups = groups(linear.n as usize) as u32;
        let mut turns = 1;
        loop {
            let rows = groups.div_ceil(turns * Self::at_once(linear.m, sms));
            let mut places = if many { HELD_PLACES } else { 1 };
            while places > 0 {
                if held_smem(eights, rows, places, linear.ring) <= most {
                    return Some(Self { linear, rows, places });
                }
                places -= 1;
            }
            if rows == 1 {
                return None;
            }
            turns += 1;
        }
    }

    /// The launch by pairs of blocks that are all there at once and share the tiles of their groups; `None` where there is none.
    pub const fn pair(linear: LinearArgs, sms: u32) -> Option<Self> {
        if linear.m > 16 || sms < 2 {
            return None;
        }
        let eights = if linear.m <= 8 { 1 } else { 2 };
        let rows = (groups(linear.n as usize) as u32).div_ceil(sms / 2);
        let mut places = if linear.ring <= place_bytes(SHORT_UNITS) { HELD_PLACES } else { 1 };
        while places > 0 {
            if pair_smem(eights, rows, places, linear.ring) <= ALONE {
                return Some(Self { linear, rows, places });
            }
            places -= 1;
        }
        None
    }

    /// The blocks of a launch by pairs.
    pub const fn pair_grid(&self) -> [u32; 3] {
        [2 * self.grid()[0], 1, 1]
    }

    /// Blocks that are there at once.
    const fn at_once(m: u32, sms: u32) -> u32 {
        if m <= 8 { 2 * sms } else { sms }
    }

    /// Its blocks.
    pub const fn grid(&self) -> [u32; 3] {
        [(groups(self.linear.n as usize) as u32).div_ceil(self.rows), 1, 1]
    }
}

/// Bytes of a warp with `places` places: barriers, and the places.
pub const fn held_warp_bytes(places: u32, place: u32) -> u32 {
    8 * HELD_PLACES + places * place
}

/// Shared memory of a block for `eights` times eight inputs.
pub const fn held_smem(eights: u32, rows: u32, places: u32, place: u32) -> u32 {
    HELD_WARPS * (rows * eights * 512 + held_warp_bytes(places, place))
}

/// The same of a block of a pair: behind the places stands what the other block sends, four words for each lane of half of the
/// sums.
pub const fn pair_smem(eights: u32, rows: u32, places: u32, place: u32) -> u32 {
    PAIR_WARPS * (rows * eights * 512 + held_warp_bytes(places, place)) + rows * eights * 256
}

macro_rules! held {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal, $eights:literal, $smem:expr, $warps:ident, $blocks:literal, $cluster:literal, $bytes:ident;)*) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = HeldArgs;
            const SPEC: LaunchSpec = bulk($symbol, $warps / WAYS as u32, $smem, $blocks)
                .in_clusters($cluster);

            fn smem_bytes(args: &HeldArgs) -> u32 {
                $bytes($eights, args.rows, args.places, args.linear.ring)
            }
        }
    )*};
}

held! {
    /// On a Hopper GPU, at most eight inputs, which stay in registers while tiles of several groups of rows pass.
    SparseBf16Held8 = "sparse_bf16_held8", 1, ONE_OF_TWO, HELD_WARPS, 2, 1, held_smem;
    /// The same for at most sixteen.
    SparseBf16Held16 = "sparse_bf16_held16", 2, ALONE, HELD_WARPS, 1, 1, held_smem;
    /// At most eight inputs, a pair of blocks for so many groups.
    SparseBf16Held8Pair = "sparse_bf16_held8_pair", 1, ALONE, PAIR_WARPS, 1, 2, pair_smem;
    /// At most sixteen.
    SparseBf16Held16Pair = "sparse_bf16_held16_pair", 2, ALONE, PAIR_WARPS, 1, 2, pair_smem;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::DevPtr;
    use crate::num::RowType;

    #[test]
    fn blocks_are_there_at_once() {
        let held = |[n, k, m]: [u32; 3], units: usize| {
            let ring = place_bytes(units);
            let (masks, starts, values) = (DevPtr::NULL, DevPtr::NULL, DevPtr::NULL);
            let (x, y, x_type) = (DevPtr::NULL, DevPtr::NULL, RowType::Bf16 as u32);
            let linear = LinearArgs { masks, starts, values, x, y, n, k, m, x_type, ring };
            let held = HeldArgs::new(linear, 132)?;
            assert!(held.grid()[0] * held.rows >= n.div_ceil(16));
            let (eights, most) = if m <= 8 { (1, ONE_OF_TWO) } else { (2, ALONE) };
            assert!(held_smem(eights, held.rows, held.places, ring) <= most);
            Some((held.rows, held.places))
        };
        assert_eq!(held([8192, 28_672, 16], 464), Some((4, 2)));
        assert_eq!(held([8192, 28_672, 8], 464), Some((2, 1)));
        assert_eq!(held([14_336, 4096, 16], 1612), Some((7, 1)));
        assert_eq!(held([4096, 4096, 9], 464), Some((2, 1)));
        assert_eq!(held([8192, 5120, 8], 464), Some((2, 1)));
        assert_eq!(held([8192, 2048, 8], 464), Some((2, 1)));
        assert_eq!(held([8192, 5120, 16], 464), Some((4, 2)));
        assert_eq!(held([8192, 2048, 16], 464), Some((4, 1)));
        assert_eq!(held([8192, 1024, 16], 464), Some((4, 1)));
        assert_eq!(held([512, 2048, 16], 464), Some((1, 1)));
        assert_eq!(held([4240, 4096, 16], 464), Some((3, 1)));
        // More groups than memory holds: in two turns, in three.
        assert_eq!(held([28_672, 8192, 16], 464), Some((7, 2)));
        assert_eq!(held([65_536, 4096, 16], 464), Some((11, 1)));
        assert_eq!(held([8192, 8192, 16], 1132), Some((4, 1)));
        assert_eq!(held([4096, 4096, 17], 464), None);
        let pair = |[n, k, m]: [u32; 3], units: usize| {
            let ring = place_bytes(units);
            let (masks, starts, values) = (DevPtr::NULL, DevPtr::NULL, DevPtr::NULL);
            let (x, y, x_type) = (DevPtr::NULL, DevPtr::NULL, RowType::Bf16 as u32);
            let linear = LinearArgs { masks, starts, values, x, y, n, k, m, x_type, ring };
            let pair = HeldArgs::pair(linear, 132)?;
            assert!(pair.pair_grid()[0] / 2 * pair.rows >= n.div_ceil(16) && pair.pair_grid()[0] <= 132);
            assert!(pair_smem(if m <= 8 { 1 } else { 2 }, pair.rows, pair.places, ring) <= ALONE);
            Some((pair.rows, pair.places))
        };
        assert_eq!(pair([5120, 5120, 16], 1632), Some((5, 1)));
        assert_eq!(pair([11_008, 4096, 8], 1632), Some((11, 1)));
        assert_eq!(pair([1024, 28_672, 16], 1132), Some((1, 2)));
        assert_eq!(pair([1072, 28_672, 16], 1632), Some((2, 1)));
        assert_eq!(pair([28_672, 4096, 16], 464), None);
        assert_eq!(pair([16, 8, 17], 464), None);
        assert_eq!(held([4096, 4096, 8], 2048), None);
    }
}
