//! Rows between blocks: whoever makes a word writes it once, whoever needs it reads it until it is there.
//!
//! A word is its own flag, so nothing has to be ordered: not the words among each other, and no memory besides them. Blocks
//! of the launch before this one left the set of this launch empty.

use contract::decode_layers::{ASKERS, Args, EMPTY, Shape, THREADS, word};
use contract::num::fma;

use super::row::own;
use crate::arch::atomic::{ld_relaxed_if_ones, st_relaxed};
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_relaxed, st};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::arch::warp::any;

/// The set of a launch.
pub(super) struct Exchange {
    own: *mut u32,
    /// Words of a layer, and of a set.
    layer_len: u32,
    len: u32,
}

impl Exchange {
    #[inline(always)]
    pub(super) fn new(args: &Args, epoch: u32) -> Self {
        Self::with(args, &args.shape, epoch)
    }

    #[inline(always)]
    fn with(args: &Args, shape: &Shape, epoch: u32) -> Self {
        let layer_len = shape.exchange_len();
        let len = layer_len * shape.layers;
        let own = args.exchange.as_ptr().wrapping_add((epoch % 2 * len) as usize);
        Self { own, layer_len, len }
    }

    /// The word at `at` of the words of `layer`.
    #[inline(always)]
    pub(super) fn at(&self, layer: u32, at: u32) -> *const u32 {
        self.own.cast_const().wrapping_add((layer * self.layer_len + at) as usize)
    }

    /// Writes the word at `at` of `layer`.
    ///
    /// # Safety
    ///
    /// The word is in the set and is written by nobody else.
    #[inline(always)]
    pub(super) unsafe fn put(&self, layer: u32, at: u32, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { put(self.at(layer, at).cast_mut(), value) };
    }
}

/// Empties this block's share, of `blocks`, of the set that launch `epoch` does not use. By the threads that have no row.
///
/// # Safety
///
/// No running kernel uses that set.
#[inline(always)]
pub(super) unsafe fn empty_other(args: &Args, epoch: u32, blocks: u32) {
    // Worked out here: what the other warps need too would stay in a register until they part.
    let [layers, heads] = [args.shape.layers, args.shape.heads].map(opaque_here);
    let x = Exchange::with(args, &Shape { layers, heads, ..args.shape }, epoch.wrapping_add(1));
    let mut i = block_idx_x() * ASKERS + (thread_idx_x() - THREADS);
    while i < x.len {
        // SAFETY: i < len, a word of this thread.
        unsafe { st(x.own.wrapping_add(i as usize), EMPTY) };
        i += blocks * ASKERS;
    }
}

/// Writes the word at `at`.
///
/// # Safety
///
/// It is a word of [`Exchange`] that is written by nobody else.
#[inline(always)]
pub(super) unsafe fn put(at: *mut u32, value: f32) {
    // SAFETY: the caller's promise.
    unsafe { st_relaxed(at, word(value)) };
}

/// This thread's elements of a row of `k`, zeros past its end, each as soon as it is there; and the sum of their squares.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// `source` starts `k` words; somebody writes each of them once.
#[inline(always)]
pub(super) unsafe fn take<const HELD: usize, const TEAMS: usize>(
    source: *const u32,
    k: u32,
) -> ([f32; HELD], f32) {
    let at = |j: usize| source.wrapping_add(own::<TEAMS>() as usize + THREADS as usize * j);
    // SAFETY: a word of the row, if it is asked for.
    let ask = |j: usize, word: u32| unsafe { ld_relaxed_if_ones(word, at(j)) };
    let blank = |j: usize| if own::<TEAMS>() + THREADS * (j as u32) < k { EMPTY } else { 0 };
    let mut words = [0; HELD];
    let mut j = 0;
    if k >= THREADS * (HELD as u32 - 1) {
        // No condition but for the last one: loads would wait for it.
        while j < HELD - 1 {
            // SAFETY: a word of the row.
            words[j] = unsafe { ld_relaxed(at(j)) };
            j += 1;
        }
        words[j] = ask(j, blank(j));
    } else {
        while j < HELD {
            words[j] = blank(j);
            j += 1;
        }
    }
    loop {
        let row = words.map(f32::from_bits);
        let squares = squares(row);
        // A word that is not there makes the sum a NaN: only then each is looked at.
        if !any(squares.is_nan()) {
            return (row, squares);
        }
        let mut missing = false;
        let mut j = 0;
        while j < HELD {
            missing |= words[j] == EMPTY;
            // Only what is not there: the others leave the way to the cache free.
            words[j] = ask(j, words[j]);
            j += 1;
        }
        if !any(missing) {
            return (row, squares);
        }
    }
}

/// The sum of the squares of the elements of a thread.
#[inline(always)]
pub(super) fn squares<const HELD: usize>(row: [f32; HELD]) -> f32 {
    let mut squares = 0.0;
    let mut j = 0;
    while j < HELD {
        squares = fma(row[j], row[j], squares);
        j += 1;
    }
    squares
}
