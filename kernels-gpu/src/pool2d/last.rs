//! Whole images, channels last: eight threads, one for each partial, have a piece of channels.

use contract::num::tree8;
use contract::pool2d::{Args, WHOLE_THREADS};
#[cfg(level_sm_80)]
use contract::pool2d::{DRIP, DRIPS};

use super::item::{load_item, map, store_item};
use super::{BATCH, divide};
#[cfg(level_sm_80)]
use crate::arch::async_copy::{commit_group, copy_x4, wait_group};
#[cfg(level_sm_80)]
use crate::arch::hint::opaque;
use crate::arch::mem::X4;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, opaque_u64, sync_threads, thread_idx_x};
use crate::float::{Float, Piece};

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn last<E: Float, const AVG: bool>(args: &Args) {
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let y = args.y.cast::<E>().as_ptr();
    // SAFETY: handed on.
    unsafe {
        match (args.piece, E::PIECE) {
            (8, 8) => pieces::<E, 8, AVG>(args, x, y),
            (4, _) => pieces::<E, 4, AVG>(args, x, y),
            (2, 8) => pieces::<E, 2, AVG>(args, x, y),
            _ => pieces::<E, 1, AVG>(args, x, y),
        }
    }
}

/// Pieces of channels of a block, each of eight threads: as many as make whole lines of memory.
const ITEMS: u32 = WHOLE_THREADS / 8;

/// Channels last: thread `s` of eight has the taps of partial `s` of a piece of channels, and asks for all of a small image at once. Words of
/// channels, which few or large images are taken in, come to a place of their thread in shared memory, many more at once than there are registers
/// for.
///
/// # Safety
///
/// As for [`last`]; `LEN` channels side by side are aligned to their size.
#[inline(always)]
unsafe fn pieces<E: Float, const LEN: usize, const AVG: bool>(args: &Args, x: *const E, y: *mut E) {
    let (item, slot) = (thread_idx_x() % ITEMS, thread_idx_x() / ITEMS);
    let (c, image) = (args.channels as usize, u64::from(args.h.len) * u64::from(args.w.len));
    let first = u64::from(block_idx_x()) * u64::from(ITEMS);
    let all = u64::from(args.images) * u64::from(args.channels / args.piece);
    let (batch, piece) = divide(first + u64::from(item), args.channels / args.piece);
    let end = if first + u64::from(item) < all { image } else { 0 };
    let x = x.wrapping_add((batch * image) as usize * c + (piece * args.piece) as usize);
    let held = dynamic_shared_mem::<f32>();
    let mut sums: Piece = [0.0; 8];
    let mut top = [E::LOWEST; 4];
    let nothing = if AVG { 0 } else { E::LOWEST };
    let mut take = |raw: X4<u32>| {
        if AVG {
            // Zeros leave a sum from zero up as it is.
            let values = E::widen(raw);
            sums = map::<LEN>(sums, |i, sum| sum + values[i]);
        } else {
            top = E::max_raw(top, raw);
        }
    };
    #[cfg(level_sm_80)]
    let drips = const { 4 * LEN == E::PIECE };
    #[cfg(not(level_sm_80))]
    let drips = false;
    if drips {
        #[cfg(level_sm_80)]
        {
            let own = held.cast::<u32>().add(thread_idx_x());
            let place = |group: u32, u: u32| own.add((group % DRIPS * DRIP + u) * WHOLE_THREADS);
            let tap = |group: u32, u: u32| u64::from(slot) + 8 * u64::from(group * DRIP + u);
            let ask = |group: u32| {
                let mut u = 0;
                while u < DRIP {
                    let i = tap(group, u);
                    if i < end {
                        // SAFETY: a tap of these channels; a place of this thread.
                        unsafe { copy_x4(place(group, u), x.wrapping_add(i as usize * c), true) };
                    }
                    u += 1;
                }
                commit_group();
            };
            let mut group = 0;
            while group + 1 < DRIPS {
                ask(group);
                group += 1;
            }
            let mut group = opaque(0);
            // Groups of which all taps are there, as they are of the one that is asked for meanwhile: a warp alone has to be quick.
            let (mut here, mut free) = (own, place(DRIPS - 1, 0));
            let mut from = x.wrapping_add(tap(DRIPS - 1, 0) as usize * c);
            let last = own.add(DRIPS * DRIP * WHOLE_THREADS).addr();
            let step = opaque_u64((8 * c * size_of::<E>()) as u64) as usize;
            while tap(group + DRIPS - 1, DRIP - 1) < end {
                let mut u = 0;
                while u < DRIP {
                    let to = free.add(u * WHOLE_THREADS);
                    // SAFETY: a tap of these channels; a place of this thread.
                    unsafe { copy_x4(to, from.wrapping_byte_add(u as usize * step), true) };
                    u += 1;
                }
                commit_group();
                from = from.wrapping_byte_add(DRIP as usize * step);
                wait_group::<{ DRIPS - 1 }>();
                let raw: [u32; DRIP as usize] = core::array::from_fn(|u| {
                    // SAFETY: a place of this thread, where a tap has come.
                    unsafe { here.add(u as u32 * WHOLE_THREADS).read() }
                });
                let mut u = 0;
                while u < raw.len() {
                    take([raw[u], nothing, nothing, nothing]);
                    u += 1;
                }
                free = here;
                here = here.add(DRIP * WHOLE_THREADS);
                here = if here.addr() == last { own } else { here };
                group = opaque(group + 1);
            }
            while tap(group, 0) < end {
                ask(group + DRIPS - 1);
                wait_group::<{ DRIPS - 1 }>();
                let raw: [u32; DRIP as usize] = core::array::from_fn(|u| {
                    // SAFETY: a place of this thread, where a tap has come if there is one.
                    let word = unsafe { place(group, u as u32).read() };
                    if tap(group, u as u32) < end { word } else { nothing }
                });
                let mut u = 0;
                while u < raw.len() {
                    take([raw[u], nothing, nothing, nothing]);
                    u += 1;
                }
                group = opaque(group + 1);
            }
            // Others' words go to places of this thread from here on.
            wait_group::<0>();
            sync_threads();
        }
    } else {
        let mut tap = u64::from(slot);
        while tap < end {
            let raw: [X4<u32>; BATCH] = core::array::from_fn(|u| {
                let i = tap + 8 * u as u64;
                // SAFETY: a tap of these channels.
                unsafe { load_item::<E, LEN>(i < end, x.wrapping_add(i as usize * c), nothing) }
            });
            let mut u = 0;
            while u < BATCH {
                take(raw[u]);
                u += 1;
            }
            tap = opaque_u64(tap + 8 * BATCH as u64);
        }
    }
    // Halves of a piece lie apart, so that neither side of the exchange meets in a bank.
    let place = |half: u32, slot: u32, item: u32| {
        held.add(half * (4 * WHOLE_THREADS + 16) + (slot * ITEMS + item) * 4)
    };
    // SAFETY: the block has this memory, each thread its place; a barrier stands in front of the reads.
    unsafe {
        if AVG {
            let mut half = 0;
            while half < LEN.div_ceil(4) {
                let part = core::array::from_fn(|i| sums[4 * half + i]);
                place(half as u32, slot, item).write_x4(part);
                half += 1;
            }
        } else {
            place(0, slot, item).cast().write_x4(top);
        }
        sync_threads();
        let own = thread_idx_x();
        let width = LEN as u32;
        if AVG && own < ITEMS * width && first + u64::from(own / width) < all {
            let i = own % width;
            let at = |slot: usize| place(i / 4, slot as u32, own / width).add(i % 4).read();
            let value = tree8(core::array::from_fn(at)) / image as f32;
            E::store(y.wrapping_add(first as usize * LEN + own as usize), value);
        }
        if !AVG && own < ITEMS && first + u64::from(own) < all {
            let mut top = place(0, 0, own).cast().read_x4();
            let mut slot = 1;
            while slot < 8 {
                top = E::max_raw(top, place(0, slot, own).cast().read_x4());
                slot += 1;
            }
            store_item::<E, LEN>(y.wrapping_add((first as usize + own as usize) * LEN), top);
        }
    }
}
