//! Whole images, channels last: eight threads, one for each partial, have a piece of channels.

use contract::num::tree8;
use contract::pool2d::{Args, WHOLE_THREADS};

use super::item::{load_item, map, store_item};
use super::whole::taps;
use super::{BATCH, divide};
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
            (8, 8) => return pieces::<E, 8, AVG>(args, x, y),
            (4, _) => return pieces::<E, 4, AVG>(args, x, y),
            (2, 8) => return pieces::<E, 2, AVG>(args, x, y),
            _ => {}
        }
    }
    let image = u64::from(args.h.len) * u64::from(args.w.len);
    let n = u64::from(block_idx_x()) * u64::from(WHOLE_THREADS) + u64::from(thread_idx_x());
    let c = args.channels as usize;
    let (batch, channel) = divide(n, args.channels);
    if batch >= u64::from(args.images) {
        return;
    }
    let x = x.wrapping_add((batch * image) as usize * c + channel as usize);
    // SAFETY: a tap of the channel.
    let load = |inside: bool, i: u64| unsafe { E::load_if(inside, x.wrapping_add(i as usize * c)) };
    let taken = taps::<AVG, 1>(image, 0, load);
    // SAFETY: the output of this thread.
    unsafe { E::store(y.wrapping_add(n as usize), taken.finish::<AVG>(image as f32)[0]) };
}

/// Pieces of channels of a block, each of eight threads: as many as make whole lines of memory.
const ITEMS: u32 = WHOLE_THREADS / 8;

/// Channels last: thread `s` of eight has the taps of partial `s` of a piece of channels, and asks for all of a small image at once.
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
    let mut tap = u64::from(slot);
    while tap < end {
        let raw: [X4<u32>; BATCH] = core::array::from_fn(|u| {
            let i = tap + 8 * u as u64;
            let nothing = if AVG { 0 } else { E::LOWEST };
            // SAFETY: a tap of these channels.
            unsafe { load_item::<E, LEN>(i < end, x.wrapping_add(i as usize * c), nothing) }
        });
        let mut u = 0;
        while u < BATCH {
            if AVG {
                // Zeros leave a sum from zero up as it is.
                let values = E::widen(raw[u]);
                sums = map::<LEN>(sums, |i, sum| sum + values[i]);
            } else {
                top = E::max_raw(top, raw[u]);
            }
            u += 1;
        }
        tap = opaque_u64(tap + 8 * BATCH as u64);
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
