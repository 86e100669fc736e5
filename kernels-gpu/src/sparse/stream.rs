//! One stream of a bitmap: its tiles in order, with what each lane owns of them.

use core::marker::PhantomData;

use contract::sparse::{ALIGN, LinearArgs, RING_BYTES, RING_MIRROR, ROWS, WAYS, steps};

use super::ring::Ring;
use crate::arch::bitmap::{take_bf16, take_f16, take_f32};
use crate::arch::mem::{ld_nc, ld_x2};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, shuffle_up, warp_id};

/// Tiles whose masks are on their way.
const AHEAD: usize = 3;

/// Type of the stored values.
pub(super) trait Value {
    /// Where a value stands: a shared address, or a global one.
    type At: Copy;
    const BYTES: u32;
    /// Whether values come through the ring.
    const RING: bool;

    /// The address of one, `bytes` behind either.
    fn at(shared: u32, global: *const u8, bytes: u32) -> Self::At;

    /// # Safety
    ///
    /// As for `arch::bitmap::take_bf16`.
    unsafe fn take(guard: u32, bits: u32, at: &mut Self::At) -> f32;
}

pub(super) enum Bf16 {}
pub(super) enum F16 {}

macro_rules! ring_value {
    ($($name:ty, $take:ident;)*) => {$(
        impl Value for $name {
            type At = u32;
            const BYTES: u32 = 2;
            const RING: bool = true;

            #[inline(always)]
            fn at(shared: u32, _: *const u8, bytes: u32) -> u32 {
                shared + bytes
            }

            #[inline(always)]
            unsafe fn take(guard: u32, bits: u32, at: &mut u32) -> f32 {
                // SAFETY: the caller's promise.
                unsafe { $take(guard, bits, at) }
            }
        }
    )*};
}

ring_value! {
    Bf16, take_bf16;
    F16, take_f16;
}

/// A full tile of them would not fit into the shared memory of every GPU: they are read through L1.
impl Value for f32 {
    type At = u64;
    const BYTES: u32 = 4;
    const RING: bool = false;

    #[inline(always)]
    fn at(_: u32, global: *const u8, bytes: u32) -> u64 {
        global.addr() as u64 + u64::from(bytes)
    }

    #[inline(always)]
    unsafe fn take(guard: u32, bits: u32, at: &mut u64) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { take_f32(guard, bits, at) }
    }
}

/// Walks the tiles of the warp's stream.
pub(super) struct Stream<V> {
    masks: *const [u32; 2],
    next: [[u32; 2]; AHEAD],
    /// Tile whose masks are asked for next.
    asked: u32,
    steps: u32,
    values: *const u8,
    ring: Ring,
    /// Bytes of the stream in front of the tile.
    used: u32,
    element: PhantomData<V>,
}

/// What a lane owns of a tile.
pub(super) struct Tile<At> {
    /// Words of rows `g` and `g + 8`, the first column in the highest bit.
    pub(super) masks: [u32; 2],
    /// Where their values start.
    pub(super) at: [At; 2],
}

/// The first row of the block.
#[inline(always)]
pub(super) fn first_row() -> u32 {
    block_idx_x() * ROWS as u32
}

/// Shared memory behind the rings.
#[inline(always)]
pub(super) fn behind_rings() -> Shared<u8> {
    dynamic_shared_mem::<u8>().add(WAYS as u32 * (RING_BYTES + RING_MIRROR))
}

impl<V: Value> Stream<V> {
    /// Asks for the first masks.
    ///
    /// # Safety
    ///
    /// The tensors of `args` obey the contract with values of `V`; the block has
    /// `contract::sparse::linear_smem` of shared memory, whose rings are used here alone.
    #[inline(always)]
    pub(super) unsafe fn new(args: &LinearArgs) -> Self {
        let id = block_idx_x() * WAYS as u32 + warp_id();
        let steps = steps(args.k as usize) as u32;
        let starts = args.starts.as_ptr().cast_const().wrapping_add(id as usize);
        // SAFETY: entries `id` and `id + 1` of `starts`.
        let (first, end) = unsafe { (ld_nc(starts), ld_nc(starts.wrapping_add(1))) };
        let bytes = |units: u32| units as usize * ALIGN * V::BYTES as usize;
        let values = args.values.as_ptr().cast_const().wrapping_add(bytes(first));
        let base = dynamic_shared_mem::<u8>().add(warp_id() * (RING_BYTES + RING_MIRROR));
        let len = if V::RING { bytes(end - first) as u32 } else { 0 };
        // SAFETY: the stream's values; a ring of this warp's own.
        let ring = unsafe { Ring::new(base, values, len) };
        let masks = args.masks.cast::<[u32; 2]>().as_ptr().cast_const();
        let masks = masks.wrapping_add(id as usize * steps as usize * LANES as usize);
        let masks = masks.wrapping_add(lane_id() as usize);
        let next = [[0; 2]; AHEAD];
        let element = PhantomData;
        let mut stream = Self { masks, next, asked: 0, steps, values, ring, used: 0, element };
        let mut i = 0;
        while i < AHEAD {
            stream.ask();
            i += 1;
        }
        stream
    }

    #[inline(always)]
    fn ask(&mut self) {
        let mut i = 0;
        while i + 1 < AHEAD {
            self.next[i] = self.next[i + 1];
            i += 1;
        }
        let at = self.asked.min(self.steps - 1);
        // SAFETY: a tile of the stream; the last one again past its end.
        self.next[AHEAD - 1] =
            unsafe { ld_x2(self.masks.wrapping_add(at as usize * LANES as usize)) };
        self.asked += 1;
    }

    /// The next tile, its values readable until the next call.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    pub(super) fn tile(&mut self) -> Tile<V::At> {
        if V::RING {
            self.ring.advance(self.used);
        }
        let masks = self.next[0];
        self.ask();
        let [low, high] = [masks[0].count_ones(), masks[1].count_ones()];
        let mut sum = low + high;
        let mut distance = 1;
        while distance < LANES {
            let below = shuffle_up(sum, distance);
            sum += if lane_id() >= distance { below } else { 0 };
            distance *= 2;
        }
        let own = self.used + V::BYTES * (sum - low - high);
        self.used += V::BYTES * shuffle_idx(sum, LANES - 1);
        let mut shared = 0;
        if V::RING {
            self.ring.wait(self.used);
            shared = self.ring.address(own);
            self.ring.pass(self.used);
        }
        let global = self.values.wrapping_add(own as usize);
        let at = V::at(shared, global, 0);
        Tile { masks, at: [at, V::at(shared, global, V::BYTES * low)] }
    }
}
