//! Products of slices on a Hopper GPU's tensor cores: tiles of 64 rows a warpgroup by `N` columns.
//!
//! A slice is 64 terms of k: the rows of `A`, then the columns of `B`, in blocks of 64 rows or
//! columns, [`BLOCK_BYTES`] each, of the swizzled rows of 128 bytes of [`crate::arch::wgmma`]. In a
//! k-major factor a row of memory is 64 terms of one row of `A` or column of `B`; in an mn-major one
//! it is the 64 rows or columns of a block at one k.
//!
//! Step `s` multiplies slice `s - AHEAD`, asks for slice `s`, and waits until at most `BEHIND` steps'
//! products run. So at the barrier of step `s` every thread has waited for the products of slice
//! `s - AHEAD - BEHIND - 1`, and a ring of `AHEAD + BEHIND + 1` slices is enough.

use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::half::{pack_bf16, pack_f16};
use crate::arch::hint::opaque;
use crate::arch::shared::Shared;
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, shuffle_xor};
use crate::arch::wgmma::{self, Descriptor};
use crate::element::{Bf16, F16};

/// Terms of a slice.
pub const DEPTH: u32 = 64;
/// Rows or columns of a block.
pub const BLOCK: u32 = 64;
/// Bytes of a block.
pub const BLOCK_BYTES: u32 = BLOCK * DEPTH * 2;

/// An element that wgmma takes.
pub trait Half: Copy {
    /// `D += A B`, 64 by `N` by 16.
    ///
    /// # Safety
    ///
    /// As for [`wgmma::bf16_n256`].
    unsafe fn product<const N: u32, const TA: u32, const TB: u32>(a: Descriptor, b: Descriptor);

    /// Two values, rounded.
    fn pack(low: f32, high: f32) -> u32;
}

macro_rules! half {
    ($element:ident, $n64:ident, $n128:ident, $n256:ident, $pack:ident) => {
        impl Half for $element {
            #[inline(always)]
            unsafe fn product<const N: u32, const TA: u32, const TB: u32>(
                a: Descriptor,
                b: Descriptor,
            ) {
                const { assert!(N == 64 || N == 128 || N == 256) };
                // SAFETY: the caller's promise.
                unsafe {
                    match N {
                        64 => wgmma::$n64::<TA, TB>(a, b),
                        128 => wgmma::$n128::<TA, TB>(a, b),
                        _ => wgmma::$n256::<TA, TB>(a, b),
                    }
                }
            }

            #[inline(always)]
            fn pack(low: f32, high: f32) -> u32 {
                $pack(low, high)
            }
        }
    };
}

half!(Bf16, bf16_n64, bf16_n128, bf16_n256, pack_bf16);
half!(F16, f16_n64, f16_n128, f16_n256, pack_f16);

/// Runs a block for each of the groups of 16 columns that a tile of `$n` has, `$j` being its number.
macro_rules! each_group {
    ($n:expr, $j:ident => $body:block) => {
        each_group!(@ $n, $j, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $n:expr, $j:ident, $body:block, $($number:literal)*) => { $(
        if 16 * $number < $n {
            const $j: u32 = $number;
            $body
        }
    )* };
}

pub(crate) use each_group;

/// The sums of a tile over `slices` slices, in the accumulators. `mn_major`: which of `A` and `B` are.
/// `load(s, to)` asks for slice `s` by `cp.async`; zeros are where nothing is.
///
/// *Convergence*: all threads of the block call it once, after [`begin`].
///
/// # Safety
///
/// The block has one warpgroup for each 64 rows. `ring` starts `AHEAD + BEHIND + 1` slices of shared
/// memory, aligned to 1,024 bytes. `load` writes nothing but its slice, and what it reads nobody
/// writes.
#[inline(always)]
pub unsafe fn multiply<
    E: Half,
    const GROUPS: u32,
    const N: u32,
    const AHEAD: u32,
    const BEHIND: u32,
>(
    ring: Shared<u8>,
    mn_major: [bool; 2],
    slices: u32,
    mut load: impl FnMut(u32, Shared<u8>),
) {
    const { assert!((AHEAD == 1 || AHEAD == 2) && BEHIND < 2) };
    let stages = AHEAD + BEHIND + 1;
    let slice_bytes = (GROUPS + N / BLOCK) * BLOCK_BYTES;
    let group = thread_idx_x() / 128;
    // The start is opaque, because LLVM would copy the first steps out of the loop.
    let start = opaque(0);
    let mut s = start;
    while s < slices + AHEAD {
        if s >= start + AHEAD {
            if AHEAD == 2 {
                wait_group::<1>()
            } else {
                wait_group::<0>()
            }
            wgmma::proxy_fence();
            sync_threads();
            let at = ring.add((s - AHEAD) % stages * slice_bytes);
            let a = Descriptor::new(at.add(group * BLOCK_BYTES), BLOCK_BYTES, wgmma::ATOM_BYTES);
            let b = at.add(GROUPS * BLOCK_BYTES);
            let b = Descriptor::new(b, BLOCK_BYTES, wgmma::ATOM_BYTES);
            // SAFETY: the slice was waited for, fenced and shown by the barrier.
            unsafe {
                match mn_major {
                    [false, false] => products::<E, N, 0, 0>(a, b),
                    [false, true] => products::<E, N, 0, 1>(a, b),
                    [true, false] => products::<E, N, 1, 0>(a, b),
                    [true, true] => products::<E, N, 1, 1>(a, b),
                }
            }
            wgmma::commit();
        }
        if s < slices {
            load(s, ring.add(s % stages * slice_bytes));
        }
        commit_group();
        if BEHIND == 1 {
            wgmma::wait::<1>()
        } else {
            wgmma::wait::<0>()
        }
        s += 1;
    }
    wgmma::wait::<0>();
}

/// The products of a slice.
///
/// # Safety
///
/// As for [`wgmma::bf16_n256`].
#[inline(always)]
unsafe fn products<E: Half, const N: u32, const TA: u32, const TB: u32>(
    a: Descriptor,
    b: Descriptor,
) {
    wgmma::fence();
    let mut k = 0;
    while k < DEPTH / wgmma::DEPTH {
        // SAFETY: the caller's promise.
        unsafe { E::product::<N, TA, TB>(a.advance(k * step(TA)), b.advance(k * step(TB))) };
        k += 1;
    }
}

/// Bytes of 16 terms: 32 of each row, or 16 rows.
const fn step(mn_major: u32) -> u32 {
    if mn_major == 1 { wgmma::DEPTH * 128 } else { wgmma::DEPTH * 2 }
}

/// Names the accumulators and empties those of a tile of `N` columns. The first thing that a kernel
/// does.
#[inline(always)]
pub fn begin<const N: u32>() {
    wgmma::declare();
    each_group!(N, J => { wgmma::clear::<J>() });
}

/// Row of a warp's first accumulators in the tile.
#[inline(always)]
fn first_row() -> u32 {
    16 * (thread_idx_x() / LANES) + lane_id() / 4
}

/// Hands out the sums, scaled by `alpha` and rounded, eight neighbours in a row at a time:
/// `put(row, column, words)`, in the tile's own numbers.
///
/// *Convergence*: as [`multiply`], which has returned.
#[inline(always)]
pub fn for_each_eight<E: Half, const N: u32>(alpha: f32, mut put: impl FnMut(u32, u32, [u32; 4])) {
    let (row, t) = (first_row(), lane_id() % 4);
    // A group has two blocks of eight columns; four lanes trade the pairs of four blocks, so that
    // each has one whole.
    let mut even = [[0u32; 2]; 2]; // even[half of the rows][block]: of the group before
    each_group!(N, J => {
        let sums = wgmma::read::<J>();
        let mut half = 0;
        while half < 2 {
            let word = |block: usize| {
                let i = 4 * block + 2 * half;
                E::pack(alpha * sums[i], alpha * sums[i + 1])
            };
            let odd = [word(0), word(1)];
            if J % 2 == 0 {
                even[half] = odd;
            } else {
                let words = trade([even[half][0], even[half][1], odd[0], odd[1]]);
                put(row + 8 * half as u32, 16 * (J - 1) + 8 * t, words);
            }
            half += 1;
        }
    });
}

/// The transpose of four words in each of four neighbouring lanes.
#[inline(always)]
fn trade(w: [u32; 4]) -> [u32; 4] {
    let [a, b] = swap(w[0], w[1], 1);
    let [c, d] = swap(w[2], w[3], 1);
    let ([a, c], [b, d]) = (swap(a, c, 2), swap(b, d, 2));
    [a, b, c, d]
}

/// The transpose of two words in lanes `distance` apart.
#[inline(always)]
fn swap(low: u32, high: u32, distance: u32) -> [u32; 2] {
    let upper = lane_id() & distance != 0;
    let other = shuffle_xor(if upper { low } else { high }, distance);
    if upper { [other, high] } else { [low, other] }
}

/// Puts the sums where the slices were, row by row, `N + 8` from one to the next, and shows them to
/// the block.
///
/// *Convergence*: as [`multiply`], which has returned.
///
/// # Safety
///
/// `ring` is that of [`multiply`], and is large enough.
#[inline(always)]
pub unsafe fn park<const N: u32>(ring: Shared<u8>) -> Shared<f32> {
    let sums = ring.cast::<f32>();
    let mine = sums.add(first_row() * (N + 8) + 2 * (lane_id() % 4)).cast::<u64>();
    // The other warpgroup may still multiply out of the ring.
    sync_threads();
    each_group!(N, J => {
        let group = wgmma::read::<J>();
        let mut i = 0;
        while i < 4 {
            let (row, column) = (8 * (i as u32 % 2), 16 * J + 8 * (i as u32 / 2));
            let at = mine.add((row * (N + 8) + column) / 2);
            let (low, high) = (group[2 * i].to_bits(), group[2 * i + 1].to_bits());
            // SAFETY: elements of this thread, inside of the ring.
            unsafe { at.write_u64(u64::from(low) | u64::from(high) << 32) };
            i += 1;
        }
    });
    sync_threads();
    sums
}
