//! A lane's way through its two words of a tile, in the exact kernels: unit by unit where there are few,
//! position by position where there are many. Both make the same chains.

use contract::sparse::{WORD, X_FLOATS};

use super::input::Value;
use super::stream::Tile;
use crate::arch::bitmap::{below, first_set, fma_stored, opaque, take};
use crate::arch::shared::Shared;

/// How the columns of `x` are staged.
pub(super) trait Staged {
    /// Whether as they are: pairs of the 16-bit type of the weights, half the words. Else as `f32`,
    /// from any type.
    const PAIRS: bool;

    /// Words that meet one unit of `per_unit` weights.
    #[inline(always)]
    fn words(per_unit: usize) -> usize {
        if Self::PAIRS { 1 } else { per_unit }
    }
}

pub(super) enum Wide {}
pub(super) enum Pairs {}

impl Staged for Wide {
    const PAIRS: bool = false;
}

impl Staged for Pairs {
    const PAIRS: bool = true;
}

/// The one or two columns of a unit, from its staged words.
#[inline(always)]
fn columns<V: Value, S: Staged>(words: [u32; 2]) -> [f32; 2] {
    if S::PAIRS { V::widen(words[0]) } else { words.map(f32::from_bits) }
}

/// Takes the weights of one unit into the chains of a row; `x[i]` are the columns of input `i`.
#[inline(always)]
fn add<V: Value, const MB: usize>(unit: u32, x: [[f32; 2]; MB], acc: &mut [f32; MB]) {
    let w = V::widen(unit);
    let mut e = 0;
    while e < V::PER_UNIT {
        let mut i = 0;
        while i < MB {
            acc[i] = fma_stored(w[e], x[i][e], acc[i]);
            i += 1;
        }
        e += 1;
    }
}

/// Both words of the lane at once, unit after unit.
///
/// # Safety
///
/// `tile` is what the warp's stream gave; `x` is the staged input of the lane's columns.
#[inline(always)]
pub(super) unsafe fn by_unit<V: Value, S: Staged, const MB: usize>(
    tile: Tile,
    x: Shared<u32>,
    acc: &mut [[f32; MB]; 2],
) {
    let Tile { mut masks, mut at } = tile;
    let stride = S::words(V::PER_UNIT) as u32;
    while masks[0] | masks[1] != 0 {
        let mut half = 0;
        while half < 2 {
            let word = masks[half];
            let offset = first_set(word);
            masks[half] = below(word, offset);
            // Past the last unit: any staged column, for a unit of zeros.
            let first = x.add((offset % WORD as u32) * stride);
            // SAFETY: a stored unit while the word is not 0; its columns.
            let (unit, x) = unsafe {
                let unit = take(word, !0, &mut at[half]);
                let of = |i: usize| {
                    let from = first.add(i as u32 * X_FLOATS);
                    let words = if stride == 2 { from.read_x2() } else { [from.read(), 0] };
                    columns::<V, S>(words)
                };
                (unit, core::array::from_fn(of))
            };
            add::<V, MB>(unit, x, &mut acc[half]);
            half += 1;
        }
    }
}

/// The same, position after position.
///
/// # Safety
///
/// As for [`by_unit`].
#[inline(always)]
pub(super) unsafe fn by_position<V: Value, S: Staged, const MB: usize>(
    tile: Tile,
    x: Shared<u32>,
    acc: &mut [[f32; MB]; 2],
) {
    let Tile { mut masks, mut at } = tile;
    let stride = S::words(V::PER_UNIT);
    let (mut first, end) = (0, opaque((WORD * stride) as u32));
    while first < end {
        // SAFETY: eight staged words of the lane.
        let x: [[u32; 8]; MB] = core::array::from_fn(|i| unsafe {
            let x = x.add(i as u32 * X_FLOATS + first);
            let (a, b) = (x.read_x4(), x.add(4).read_x4());
            [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
        });
        let units = 8 / stride;
        let mut j = 0;
        while j < units {
            let columns = core::array::from_fn(|i| {
                columns::<V, S>([x[i][j * stride], x[i][j * stride + stride - 1]])
            });
            let mut half = 0;
            while half < 2 {
                // SAFETY: a stored unit, where its bit is set.
                let unit = unsafe { take(masks[half], 0x8000_0000 >> j, &mut at[half]) };
                add::<V, MB>(unit, columns, &mut acc[half]);
                half += 1;
            }
            j += 1;
        }
        masks = [masks[0] << units, masks[1] << units];
        first += 8;
    }
}
