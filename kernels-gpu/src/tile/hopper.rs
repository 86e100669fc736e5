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
use contract::num::bf16_to_f32;

use crate::arch::half::{f16_to_f32, pack_bf16, pack_f16};
use crate::arch::hint::opaque;
use crate::arch::shared::Shared;
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, shuffle_xor, sync_warp};
use crate::arch::wgmma::{self, Descriptor};
use crate::element::{Bf16, F16};

/// Terms of a slice.
pub const DEPTH: u32 = 64;
/// Rows or columns of a block.
pub const BLOCK: u32 = 64;
/// Bytes of a block.
pub const BLOCK_BYTES: u32 = BLOCK * DEPTH * 2;

/// An element that wgmma takes; a slice has [`DEPTH`] terms of two bytes, or twice as many of one.
pub trait Factor {
    /// `D += A B`, 64 by `N` by 32 bytes; without `add`, `D` was empty. `TA`, `TB`: which are mn-major, of two bytes.
    ///
    /// # Safety
    ///
    /// As for [`wgmma::bf16_n256`].
    unsafe fn product<const N: u32, const TA: u32, const TB: u32>(
        a: Descriptor,
        b: Descriptor,
        add: bool,
    );
}

/// An element of two bytes.
pub trait Half: Factor {
    /// Two values, rounded.
    fn pack(low: f32, high: f32) -> u32;

    /// One of the two values of a word.
    fn widen(half: u16) -> f32;
}

macro_rules! half {
    ($element:ident, $n64:ident, $n128:ident, $n192:ident, $n256:ident, $pack:ident, $widen:ident) => {
        impl Factor for $element {
            #[inline(always)]
            unsafe fn product<const N: u32, const TA: u32, const TB: u32>(
                a: Descriptor,
                b: Descriptor,
                add: bool,
            ) {
                const { assert!(N == 64 || N == 128 || N == 192 || N == 256) };
                // SAFETY: the caller's promise.
                unsafe {
                    match N {
                        64 => wgmma::$n64::<TA, TB>(a, b, add),
                        128 => wgmma::$n128::<TA, TB>(a, b, add),
                        192 => wgmma::$n192::<TA, TB>(a, b, add),
                        _ => wgmma::$n256::<TA, TB>(a, b, add),
                    }
                }
            }
        }

        impl Half for $element {
            #[inline(always)]
            fn pack(low: f32, high: f32) -> u32 {
                $pack(low, high)
            }

            #[inline(always)]
            fn widen(half: u16) -> f32 {
                $widen(half)
            }
        }
    };
}

half!(Bf16, bf16_n64, bf16_n128, bf16_n192, bf16_n256, pack_bf16, bf16_to_f32);
half!(F16, f16_n64, f16_n128, f16_n192, f16_n256, pack_f16, f16_to_f32);

/// i8, k-major only.
pub enum I8 {}

impl Factor for I8 {
    #[inline(always)]
    unsafe fn product<const N: u32, const TA: u32, const TB: u32>(
        a: Descriptor,
        b: Descriptor,
        add: bool,
    ) {
        const { assert!(N == 128) };
        // SAFETY: the caller's promise.
        unsafe { wgmma::i8_both_n128(a, b, add) }
    }
}

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

/// Names the accumulators and empties those of a tile of `N` columns. The first thing that a kernel
/// does which adds from its first product on.
#[inline(always)]
pub fn begin<const N: u32>() {
    wgmma::declare();
    each_group!(N, J => { wgmma::clear::<J>() });
}

/// The sums of `tiles` tiles over `slices` slices each (at least one), tile by tile in the
/// accumulators. `mn_major`: which of `A` and `B` are. `load(tile, slice, to)` asks for a slice by
/// `cp.async`, in order; zeros are where nothing is. `done(tile, place)` takes the sums; the
/// place of the last slice is free for it, the first slices of the next tile are on their way.
///
/// *Convergence*: all threads of the block call it once, after [`wgmma::declare`].
///
/// # Safety
///
/// The block has one warpgroup for each 64 rows. `ring` starts `AHEAD + BEHIND + 1` slices of shared
/// memory, aligned to 1,024 bytes. `load` writes nothing but its slice, and what it reads nobody
/// writes.
#[inline(always)]
pub unsafe fn multiply<
    E: Factor,
    const GROUPS: u32,
    const N: u32,
    const AHEAD: u32,
    const BEHIND: u32,
>(
    ring: Shared<u8>,
    mn_major: [bool; 2],
    (tiles, slices): (u32, u32),
    mut load: impl FnMut(u32, u32, Shared<u8>),
    mut done: impl FnMut(u32, Shared<u8>),
) {
    const { assert!(AHEAD >= 1 && AHEAD <= 3 && BEHIND < 2) };
    let stages = AHEAD + BEHIND + 1;
    let slice_bytes = (GROUPS + N / BLOCK) * BLOCK_BYTES;
    let group = thread_idx_x() / 128;
    let (mut to, mut from) = (0, 0); // places in the ring
    let (mut load_tile, mut load_slice) = (0, 0);
    // The start is opaque, because LLVM would copy the first steps out of the loop.
    let mut ahead = opaque(AHEAD);
    let mut tile = 0;
    while tile < tiles {
        let mut slice = 0;
        let mut place = ring;
        while slice < slices {
            if ahead == 0 {
                match AHEAD {
                    1 => wait_group::<0>(),
                    2 => wait_group::<1>(),
                    _ => wait_group::<2>(),
                }
                wgmma::proxy_fence();
                sync_threads();
                let at = ring.add(from * slice_bytes);
                place = at;
                from = if from + 1 < stages { from + 1 } else { 0 };
                let a = at.add(group * BLOCK_BYTES);
                let a = Descriptor::new(a, BLOCK_BYTES, wgmma::ATOM_BYTES);
                let b = at.add(GROUPS * BLOCK_BYTES);
                let b = Descriptor::new(b, BLOCK_BYTES, wgmma::ATOM_BYTES);
                // SAFETY: the slice was waited for, fenced and shown by the barrier.
                unsafe {
                    match mn_major {
                        [false, false] => products::<E, N, 0, 0>(a, b, slice > 0),
                        [false, true] => products::<E, N, 0, 1>(a, b, slice > 0),
                        [true, false] => products::<E, N, 1, 0>(a, b, slice > 0),
                        [true, true] => products::<E, N, 1, 1>(a, b, slice > 0),
                    }
                }
                wgmma::commit();
            }
            if load_tile < tiles {
                load(load_tile, load_slice, ring.add(to * slice_bytes));
                to = if to + 1 < stages { to + 1 } else { 0 };
                load_slice += 1;
                if load_slice == slices {
                    (load_tile, load_slice) = (load_tile + 1, 0);
                }
            }
            commit_group();
            slice += u32::from(ahead == 0);
            ahead = ahead.saturating_sub(1);
            if BEHIND == 1 { wgmma::wait::<1>() } else { wgmma::wait::<0>() }
        }
        wgmma::wait::<0>();
        // The other warpgroup may still multiply out of that place.
        sync_threads();
        done(tile, place);
        tile += 1;
    }
}

/// The products of a slice.
///
/// # Safety
///
/// As for [`wgmma::bf16_n256`].
#[inline(always)]
pub unsafe fn products<E: Factor, const N: u32, const TA: u32, const TB: u32>(
    a: Descriptor,
    b: Descriptor,
    add: bool,
) {
    wgmma::fence();
    let mut k = 0;
    while k < DEPTH / wgmma::DEPTH {
        // SAFETY: the caller's promise.
        unsafe {
            E::product::<N, TA, TB>(a.advance(k * step(TA)), b.advance(k * step(TB)), add || k > 0)
        };
        k += 1;
    }
}

/// Bytes of 16 terms: 32 of each row, or 16 rows.
const fn step(mn_major: u32) -> u32 {
    if mn_major == 1 { wgmma::DEPTH * 128 } else { wgmma::DEPTH * 2 }
}

/// Hands out the sums of a tile, scaled by `alpha` and rounded, eight neighbours of a row at a time:
/// `put(row, column, words)`, row and column in the tile. A warp's calls cover 8 rows of 32 columns.
///
/// *Convergence*: all threads of the block call it, where [`multiply`] calls its `done`.
#[inline(always)]
pub fn for_each_packed<E: Half, const N: u32>(alpha: f32, mut put: impl FnMut(u32, u32, [u32; 4])) {
    let row = 16 * (thread_idx_x() / LANES) + lane_id() / 4;
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
                put(row + 8 * half as u32, 16 * (J - 1) + 8 * (lane_id() % 4), words);
            }
            half += 1;
        }
    });
}

/// The transpose of four words in each of four neighbouring lanes.
#[inline(always)]
pub fn trade(w: [u32; 4]) -> [u32; 4] {
    let [a, b] = swap(w[0], w[1], 1);
    let [c, d] = swap(w[2], w[3], 1);
    let ([a, c], [b, d]) = (swap(a, c, 2), swap(b, d, 2));
    [a, b, c, d]
}

/// The transpose of two words in lanes `distance` apart.
#[inline(always)]
pub fn swap(low: u32, high: u32, distance: u32) -> [u32; 2] {
    let upper = lane_id() & distance != 0;
    let other = shuffle_xor(if upper { low } else { high }, distance);
    if upper { [other, high] } else { [low, other] }
}

/// Columns of a chunk: what a warp puts into shared memory at a time.
const CHUNK: u32 = 32;

/// Hands out the sums of a tile as they are. `whole`: eight neighbours of a row at a time, `eight(row, column, at, old)`, the
/// sums at `at` in shared memory, `old` what `get(row, column)` brought meanwhile; else `some(row, column, sums)`, `ROWS` rows at
/// a time, the lanes of a warp being neighbours. Smaller and slower than [`for_each_packed`]: for what that cannot do.
///
/// In a chunk of 16 rows, word `4 p + i` of row `r` stands at `4 (p ^ 2 (r % 4)) + i`: pairs that a
/// warp writes together are then in different banks, and eights stay together.
///
/// *Convergence*: as [`for_each_packed`].
///
/// # Safety
///
/// `place` is what `done` was given.
#[inline(always)]
pub unsafe fn for_each_sum<const N: u32, const ROWS: usize>(
    place: Shared<u8>,
    whole: bool,
    get: impl Fn(u32, u32) -> [u32; 4],
    mut eight: impl FnMut(u32, u32, Shared<f32>, [u32; 4]),
    mut some: impl FnMut(u32, u32, [f32; ROWS]),
) {
    let (warp, lane) = (thread_idx_x() / LANES, lane_id());
    let place = place.cast::<f32>().add(warp * 16 * CHUNK);
    // Opaque, because LLVM would write the loops out: a group can only be named, but what is done
    // with a chunk need not stand there for each.
    let (chunks, rows) = (opaque(N / CHUNK), opaque(16));
    let mine = |c: u32, half: u32| (16 * warp + 8 * half + lane / 4, CHUNK * c + 8 * (lane % 4));
    let mut c = 0;
    while c < chunks {
        // Asked for before the chunk is written.
        let ((row, column), (below, _)) = (mine(c, 0), mine(c, 1));
        let old = [get(row, column), get(below, column)];
        // Opaque, so that the addresses in it do not live in registers all the time.
        let chunk = place.add(opaque(c).wrapping_sub(c));
        macro_rules! store {
            ($($c:literal: $low:literal $high:literal,)*) => {
                match c {
                    $($c if CHUNK * $c < N => {
                        // SAFETY: a chunk of this warp's own.
                        unsafe {
                            store::<$low>(chunk, 0);
                            store::<$high>(chunk, 16);
                        }
                    })*
                    _ => {}
                }
            };
        }
        store! { 0: 0 1, 1: 2 3, 2: 4 5, 3: 6 7, 4: 8 9, 5: 10 11, 6: 12 13, 7: 14 15, }
        sync_warp();
        if whole {
            let mut half = 0;
            while half < 2 {
                let (row, column) = mine(c, half);
                let at = chunk.add(place_of(row % 16, column % CHUNK));
                eight(row, column, at, old[half as usize]);
                half += 1;
            }
        } else {
            let mut row = 0;
            while row < rows {
                // SAFETY: the warp has written its chunk before the barrier.
                let sums = core::array::from_fn(|r| unsafe {
                    chunk.add(place_of(row + r as u32, lane)).read()
                });
                some(16 * warp + row, CHUNK * c + lane, sums);
                row += ROWS as u32;
            }
        }
        sync_warp();
        c += 1;
    }
}

/// Puts the sums of a tile of 64 columns into shared memory, row by row, `ld` words from one to the next.
///
/// *Convergence*: as [`for_each_packed`].
///
/// # Safety
///
/// `to` starts 64 rows of the block's shared memory, `ld` is even, and nobody accesses them.
#[inline(always)]
pub unsafe fn park(to: Shared<f32>, ld: u32) {
    let row = 16 * (thread_idx_x() / LANES) + lane_id() / 4;
    let at = to.add(row * ld + 2 * (lane_id() % 4));
    each_group!(64, J => {
        let sums = wgmma::read::<J>();
        let mut i = 0;
        while i < 4 {
            let at = at.add(i as u32 % 2 * 8 * ld + 16 * J + i as u32 / 2 * 8);
            let [low, high] = [0, 1].map(|side| u64::from(sums[2 * i + side].to_bits()));
            // SAFETY: the caller's promise.
            unsafe { at.cast().write_u64(low | high << 32) };
            i += 1;
        }
    });
}

/// Where in a chunk a word stands.
#[inline(always)]
fn place_of(row: u32, column: u32) -> u32 {
    row * CHUNK + (column ^ (8 * (row % 4)))
}

/// Puts group `J` of accumulators into a chunk, from `column` on.
///
/// # Safety
///
/// The chunk is this warp's.
#[inline(always)]
unsafe fn store<const J: u32>(chunk: Shared<f32>, column: u32) {
    let group = wgmma::read::<J>();
    let (row, pair) = (lane_id() / 4, 2 * (lane_id() % 4));
    let mut i = 0;
    while i < 4 {
        let at = place_of(row + 8 * (i as u32 % 2), column + 8 * (i as u32 / 2) + pair);
        let (low, high) = (group[2 * i].to_bits(), group[2 * i + 1].to_bits());
        // SAFETY: the caller's promise.
        unsafe { chunk.add(at).cast().write_u64(u64::from(low) | u64::from(high) << 32) };
        i += 1;
    }
}
