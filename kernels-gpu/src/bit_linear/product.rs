//! The product of a warp's steps, on the tensor cores where there are such.
//!
//! Codes are decoded by a mask alone, as in [`crate::w2a8_gemv`]: each bit lane of the codes has its own
//! sums, 1, 4, 16 and 64 times too large. From sm_80 the masked words are one factor of `m16n8k32` as they
//! stand: a thread of it holds four neighbours of k of two rows, twice, and which k these are is all the
//! same as long as the activations agree. Of the eight columns one is used, that of lanes 0 to 3. It is
//! still less work than `dp4a`.

use contract::bit_linear::LANES;
use contract::w2a8::{CHUNK, CHUNK_GROUP};

use super::{Memory, ROWS, Tile, queue::Queue, row_of_lane};
use crate::arch::mem::X4;
use crate::arch::shared::Shared;
use crate::arch::warp::lane_id;

/// Bytes of the activations of a group of chunks, and of one piece of each.
pub(crate) const GROUP_BYTES: u32 = (CHUNK * CHUNK_GROUP) as u32;
pub(crate) const PIECE_BYTES: u32 = GROUP_BYTES / 4;

const _: () = assert!(CHUNK_GROUP == 2 * LANES as usize);

/// Sums of two rows.
#[cfg(level_sm_80)]
mod sums {
    use crate::arch::mem::X4;
    use crate::arch::mma::mma_u8_s8;
    use crate::arch::warp::lane_id;

    /// By bit lane of the codes; elements 0 and 2 of the first lane of a row are its rows' sums.
    pub(crate) struct Sums([[i32; 4]; 4]);

    impl Sums {
        #[inline(always)]
        pub(crate) fn new() -> Self {
            Self([[0; 4]; 4])
        }

        /// Whether this lane's activations are used.
        #[inline(always)]
        pub(crate) fn needs_activations() -> bool {
            lane_id() < 4
        }

        /// Adds the products of a chunk of each of two rows with its activations: a piece is for a bit lane.
        #[inline(always)]
        pub(crate) fn take(&mut self, [low, high]: [X4<u32>; 2], q: [X4<u32>; 4]) {
            let mut lane = 0;
            while lane < 4 {
                let mask = 0x0303_0303 << (2 * lane);
                let mut j = 0;
                while j < 4 {
                    let a = [low[j] & mask, high[j] & mask, low[j + 1] & mask, high[j + 1] & mask];
                    let b = [q[lane][j], q[lane][j + 1]];
                    self.0[lane] = mma_u8_s8(a, b, self.0[lane]);
                    j += 2;
                }
                lane += 1;
            }
        }

        /// The sums of both rows, in the first lane of each.
        #[inline(always)]
        pub(crate) fn finish(&self) -> [i32; 2] {
            let [a, b, c, d] = self.0;
            [0, 2].map(|i| a[i] + (b[i] >> 2) + (c[i] >> 4) + (d[i] >> 6))
        }
    }
}

/// Sums of two rows.
#[cfg(not(level_sm_80))]
mod sums {
    use contract::bit_linear::LANES;

    use crate::arch::mem::X4;
    use crate::arch::warp::group_sum;
    use crate::w2a8_gemv::{ANEW, dot_piece};

    /// By row and bit lane of the codes, of this lane's chunks.
    pub(crate) struct Sums([[i32; 4]; 2]);

    impl Sums {
        #[inline(always)]
        pub(crate) fn new() -> Self {
            Self([[0; 4]; 2])
        }

        /// Whether this lane's activations are used.
        #[inline(always)]
        pub(crate) fn needs_activations() -> bool {
            true
        }

        /// Adds the products of a chunk of each of two rows with its activations, piece by piece.
        #[inline(always)]
        pub(crate) fn take(&mut self, rows: [X4<u32>; 2], q: [X4<u32>; 4]) {
            let mut r = 0;
            while r < 2 {
                let mut j = 0;
                while j < 4 {
                    dot_piece::<{ cfg!(level_sm_61) && ANEW }>(&mut self.0[r], rows[r], j, q[j]);
                    j += 1;
                }
                r += 1;
            }
        }

        /// The sums of both rows, in the first lane of each.
        #[inline(always)]
        pub(crate) fn finish(&self) -> [i32; 2] {
            self.0.map(|[a, b, c, d]| group_sum::<LANES>(a + (b >> 2) + (c >> 4) + (d >> 6)))
        }
    }
}

pub(crate) use sums::Sums;

/// Adds the products of this warp's steps to the sums of their rows.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The activations are in shared memory; the queue stands at step `first` of `first .. end`.
#[inline(always)]
pub(super) unsafe fn multiply(queue: &mut Queue, memory: Memory, tile: Tile, first: u32, end: u32) {
    let acts: Shared<u32> = memory.acts.byte_add(16 * (lane_id() % LANES)).cast();
    let (mut set, mut group) = (first / tile.groups, first % tile.groups);
    let mut sums = Sums::new();
    let mut step = first;
    while step < end {
        let weights = queue.pop();
        // Two steps of four chunks to a group of eight.
        let acts = acts.byte_add(group / 2 * GROUP_BYTES + group % 2 * PIECE_BYTES / 2);
        let mut q: [X4<u32>; 4] = [[0; 4]; 4];
        let mut j = 0;
        while j < 4 {
            let piece = acts.byte_add(j as u32 * PIECE_BYTES);
            // SAFETY: piece j of this lane's chunk; a row has whole groups.
            q[j] = unsafe { piece.read_x4_if(Sums::needs_activations()) };
            j += 1;
        }
        sums.take(weights, q);
        queue.push();
        step += 1;
        group += 1;
        if group == tile.groups || step == end {
            // The same for every lane of the warp.
            let of_rows = sums.finish();
            let mut r = 0;
            while r < ROWS {
                let row = row_of_lane(set, r);
                if lane_id() % LANES == 0 && row < tile.rows {
                    // SAFETY: row < MAX_ROWS_OF_BLOCK; between two barriers only this accesses it.
                    unsafe { memory.sums.add(row).atomic_add(of_rows[r] as u32) };
                }
                r += 1;
            }
            sums = Sums::new();
            (set, group) = (set + 1, 0);
        }
    }
}
