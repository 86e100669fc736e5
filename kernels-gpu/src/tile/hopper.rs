//! Products of slices on a Hopper GPU's tensor cores: tiles of 128 by 256 by two warpgroups.
//!
//! A slice is 64 terms of k: 16 KiB of `A` (128 rows), then 32 KiB of `B` (256 columns), both in the
//! swizzled rows of 128 bytes of [`crate::arch::wgmma`]. A k-major factor is a column of atoms, one
//! row of 64 terms for each row of `A` or column of `B`. An mn-major factor is blocks of 64 rows or
//! columns, [`BLOCK_BYTES`] apart, each with a row of 128 bytes for each k.
//!
//! A ring of [`STAGES`] slices: in step `s` the products of slice `s - 2` run, slice `s` is asked for, and
//! the products of `s - 3` are waited for. Its place is free: it held slice `s - 4`, whose products
//! every thread had waited for when it came to the barrier of step `s`.

use contract::bmm::HOPPER_STAGES as STAGES;

use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::hint::opaque;
use crate::arch::shared::Shared;
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::LANES;
use crate::arch::wgmma::{self, Descriptor};
use crate::element::{Bf16, F16};

/// Threads of the two warpgroups.
pub const THREADS: u32 = 256;
/// Rows of a tile.
pub const ROWS: u32 = 128;
/// Columns of a tile.
pub const COLUMNS: u32 = 256;
/// Terms of a slice.
pub const DEPTH: u32 = 64;
/// Bytes of 64 rows or columns of a slice.
pub const BLOCK_BYTES: u32 = 64 * DEPTH * 2;
/// Where `B` begins in a slice.
pub const B_BYTES: u32 = 2 * BLOCK_BYTES;
/// Bytes of a slice.
pub const SLICE_BYTES: u32 = 6 * BLOCK_BYTES;
/// f32 from one row to the next of the sums that [`park`] leaves.
pub const PARKED_ROW: u32 = COLUMNS + 8;

const _: () = assert!(ROWS * PARKED_ROW * 4 <= STAGES * SLICE_BYTES && STAGES == 4);

/// An element that wgmma takes.
pub trait Half: Copy {
    /// `D += A B`, 64 by 256 by 16.
    ///
    /// # Safety
    ///
    /// As for [`wgmma::bf16_n256`].
    unsafe fn product<const TA: u32, const TB: u32>(a: Descriptor, b: Descriptor);
}

impl Half for Bf16 {
    #[inline(always)]
    unsafe fn product<const TA: u32, const TB: u32>(a: Descriptor, b: Descriptor) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::bf16_n256::<TA, TB>(a, b) }
    }
}

impl Half for F16 {
    #[inline(always)]
    unsafe fn product<const TA: u32, const TB: u32>(a: Descriptor, b: Descriptor) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::f16_n256::<TA, TB>(a, b) }
    }
}

/// Calls a macro for each of the sixteen groups of accumulators.
macro_rules! each_group {
    ($call:ident) => {
        $call!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
}

/// The sums of the whole tile over `slices` slices, in the accumulators. `TA`, `TB`: 1 where that
/// factor is mn-major. `load(s, to)` asks for slice `s` by `cp.async`; zeros are where nothing is.
///
/// *Convergence*: all threads of the block call it once, and [`park`] after it.
///
/// # Safety
///
/// `ring` starts [`STAGES`] slices of shared memory, aligned to 1,024 bytes. `load` writes nothing
/// but its slice, and what it reads nobody writes.
#[inline(always)]
pub unsafe fn multiply<E: Half, const TA: u32, const TB: u32>(
    ring: Shared<u8>,
    slices: u32,
    mut load: impl FnMut(u32, Shared<u8>),
) {
    let warpgroup = thread_idx_x() / 128;
    // Step s asks for slice s and multiplies slice s - 2. The start is opaque, because LLVM would
    // copy the first steps out of the loop.
    let start = opaque(0);
    let mut s = start;
    while s < slices + 2 {
        if s >= start + 2 {
            wait_group::<1>();
            wgmma::proxy_fence();
            sync_threads();
            let at = ring.add((s - 2) % STAGES * SLICE_BYTES);
            let a = at.add(warpgroup * BLOCK_BYTES);
            let a = Descriptor::new(a, BLOCK_BYTES, wgmma::ATOM_BYTES);
            let b = Descriptor::new(at.add(B_BYTES), BLOCK_BYTES, wgmma::ATOM_BYTES);
            wgmma::fence();
            let mut k = 0;
            while k < DEPTH / wgmma::DEPTH {
                // 16 terms further: 32 bytes of each row, or 16 rows.
                let (a, b) = (a.advance(k * step(TA)), b.advance(k * step(TB)));
                // SAFETY: the slice was waited for, fenced and shown by the barrier.
                unsafe { E::product::<TA, TB>(a, b) };
                k += 1;
            }
            wgmma::commit();
        }
        if s < slices {
            load(s, ring.add(s % STAGES * SLICE_BYTES));
        }
        commit_group();
        wgmma::wait::<1>();
        s += 1;
    }
    wgmma::wait::<0>();
}

const fn step(mn_major: u32) -> u32 {
    if mn_major == 1 { wgmma::DEPTH * 128 } else { wgmma::DEPTH * 2 }
}

/// Names the accumulators and empties them. The first thing that a kernel does.
#[inline(always)]
pub fn begin() {
    wgmma::declare();
    macro_rules! clear {
        ($($j:literal)*) => { $(wgmma::clear::<$j>();)* };
    }
    each_group!(clear);
}

/// Puts the sums where the slices were: `[ROWS][PARKED_ROW]`, shown to the block.
///
/// *Convergence*: as [`multiply`].
///
/// # Safety
///
/// `ring` is that of [`multiply`], which has returned in this thread.
#[inline(always)]
pub unsafe fn park(ring: Shared<u8>) -> Shared<f32> {
    let sums = ring.cast::<f32>();
    let (warp, lane) = (thread_idx_x() / LANES, thread_idx_x() % LANES);
    let mine = sums.add((16 * warp + lane / 4) * PARKED_ROW + 2 * (lane % 4)).cast::<u64>();
    // The other warpgroup may still multiply out of the ring.
    sync_threads();
    macro_rules! store {
        ($($j:literal)*) => { $(
            let group = wgmma::read::<$j>();
            let mut i = 0;
            while i < 4 {
                let pair = [group[2 * i], group[2 * i + 1]];
                let (row, column) = (8 * (i as u32 % 2), 16 * $j + 8 * (i as u32 / 2));
                // SAFETY: elements of this thread, inside of the ring.
                unsafe { mine.add((row * PARKED_ROW + column) / 2).write_u64(join(pair)) };
                i += 1;
            }
        )* };
    }
    each_group!(store);
    sync_threads();
    sums
}

#[inline(always)]
fn join([low, high]: [f32; 2]) -> u64 {
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}
