//! What a part reads of the table besides its weights.

use contract::decode_layers::{Args, LINEARS, Linear};
use contract::launch::DevPtr;
use contract::w2a8::MAX_SEGMENTS;

use super::weights::ASKS;
use crate::arch::mem::{ld, ld_x2, prefetch_l2};
use crate::arch::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::bit_linear::Tile;

/// The entry of linear layer `part` of all.
#[inline(always)]
fn entry(args: &Args, part: u32) -> *const Linear {
    args.linears.as_ptr().cast_const().wrapping_add(part as usize)
}

/// The gain of the norm in front of linear layer `part`, or of the last one.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
pub(super) unsafe fn norm(args: &Args, part: u32) -> *const f32 {
    let entry = entry(args, part.min(args.shape.layers * LINEARS as u32 - 1));
    // SAFETY: an entry that nobody writes.
    let [low, high]: [u32; 2] = unsafe { ld_x2((&raw const (*entry).norm).cast()) };
    (u64::from(low) | u64::from(high) << 32) as *const f32
}

/// The segments of this thread's rows in linear layer `kind`, of its output and of its factor: three bits each. They are the
/// same in every layer of the model.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
pub(super) unsafe fn segments(args: &Args, kind: u32, tile: Tile) -> u32 {
    let row = tile.first + thread_idx_x();
    let entry = entry(args, kind);
    let mut found = 0;
    let mut i = 0;
    while i < MAX_SEGMENTS - 1 {
        // SAFETY: a field of an entry that nobody writes.
        let end: u32 =
            unsafe { ld((&raw const (*entry).segments.end).cast::<u32>().wrapping_add(i)) };
        found += u32::from(row >= end) + 8 * u32::from(tile.n + row >= end);
        i += 1;
    }
    found
}

/// The weight scales of [`segments`] in linear layer `part` of all.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
pub(super) unsafe fn scales(args: &Args, part: u32, segments: u32) -> [f32; 2] {
    let entry = entry(args, part);
    [segments % 8, segments / 8 % 8].map(|segment| {
        // SAFETY: a field of an entry that nobody writes.
        unsafe {
            let scales = (&raw const (*entry).segments.scale).cast::<f32>();
            ld(scales.wrapping_add(segment as usize))
        }
    })
}

/// Brings what a later linear layer reads besides its weights into the second-level cache: its gain `norm` of `k` elements, and
/// the entry of one further on.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
pub(super) unsafe fn look_ahead(args: &Args, norm: *const f32, k: u32, part: u32, blocks: u32) {
    const LINE: u32 = 128;
    let mut at = LINE * block_idx_x();
    while thread_idx_x() == ASKS && !norm.is_null() && at < 4 * k {
        // SAFETY: inside of the gain.
        unsafe { prefetch_l2(norm.wrapping_byte_add(at as usize)) };
        at += LINE * blocks;
    }
    if block_idx_x() == 0 && thread_idx_x() == ASKS && part < args.shape.layers * LINEARS as u32 {
        // SAFETY: an entry of the model.
        unsafe { prefetch_l2(entry(args, part)) };
    }
}

/// The entries of a model.
pub(super) struct Entries {
    first: *const Linear,
    last: u32,
}

impl Entries {
    /// Those of `parts` linear layers.
    #[inline(always)]
    pub(super) fn new(linears: DevPtr<Linear>, parts: u32) -> Self {
        Self { first: linears.as_ptr().cast_const(), last: parts - 1 }
    }

    /// That of linear layer `part`, or the last one.
    #[inline(always)]
    pub(super) fn at(&self, part: u32) -> *const Linear {
        self.first.wrapping_add(part.min(self.last) as usize)
    }

    /// Where the weights of linear layer `part` are.
    ///
    /// # Safety
    ///
    /// The launch contract.
    #[inline(always)]
    pub(super) unsafe fn weights(&self, part: u32) -> *const u8 {
        // SAFETY: an entry that nobody writes.
        let [low, high]: [u32; 2] = unsafe { ld_x2((&raw const (*self.at(part)).w).cast()) };
        (u64::from(low) | u64::from(high) << 32) as *const u8
    }

    /// The gain of the norm in front of linear layer `part`.
    ///
    /// # Safety
    ///
    /// The launch contract.
    #[inline(always)]
    pub(super) unsafe fn norm(&self, part: u32) -> *const f32 {
        // SAFETY: an entry that nobody writes.
        let [low, high]: [u32; 2] = unsafe { ld_x2((&raw const (*self.at(part)).norm).cast()) };
        (u64::from(low) | u64::from(high) << 32) as *const f32
    }

    /// [`look_ahead`] by the threads for which `asks` holds, of so many blocks.
    ///
    /// # Safety
    ///
    /// The launch contract.
    #[inline(always)]
    pub(super) unsafe fn look_ahead(
        &self,
        asks: bool,
        blocks: u32,
        norm: *const f32,
        k: u32,
        part: u32,
    ) {
        const LINE: u32 = 128;
        let mut at = LINE * block_idx_x();
        while asks && !norm.is_null() && at < 4 * k {
            // SAFETY: inside of the gain.
            unsafe { prefetch_l2(norm.wrapping_byte_add(at as usize)) };
            at += LINE * blocks;
        }
        if asks && block_idx_x() == 0 {
            // SAFETY: an entry of the model.
            unsafe { prefetch_l2(self.at(part)) };
        }
    }
}

/// The segments of `rows` of weights of an entry, three bits each.
///
/// # Safety
///
/// It is one of the model's.
#[inline(always)]
pub(super) unsafe fn segments_of(entry: *const Linear, rows: [u32; 2]) -> u32 {
    let mut found = 0;
    let mut i = 0;
    while i < MAX_SEGMENTS - 1 {
        // SAFETY: a field of an entry that nobody writes.
        let end: u32 =
            unsafe { ld((&raw const (*entry).segments.end).cast::<u32>().wrapping_add(i)) };
        found += u32::from(rows[0] >= end) + 8 * u32::from(rows[1] >= end);
        i += 1;
    }
    found
}

/// Brings the gains of the first parts into the second-level cache: so much of each as all but down's have.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
pub(super) unsafe fn look_ahead_first(args: &Args) {
    let part = thread_idx_x() / 32;
    if part >= LINEARS as u32 {
        return;
    }
    // SAFETY: an entry of the model, and places inside of its gain.
    unsafe {
        let gain = norm(args, part);
        let k = if part == 3 { args.shape.ffn } else { args.shape.hidden.min(args.shape.q_len()) };
        let at = 128 * (block_idx_x() + grid_dim_x() * (thread_idx_x() % 32));
        if !gain.is_null() && at < 4 * k {
            prefetch_l2(gain.wrapping_byte_add(at as usize));
        }
    }
}

const _: () = assert!(MAX_SEGMENTS == 8, "three bits");
