//! What the last two warps of a block do: one tells other blocks of the row of a part, and one hears them.

use contract::launch::DevPtr;
use contract::norm::{SETS, around};
use contract::num::tree8;
use contract::parts::PART;

use super::super::sums::{Sums, part_of};
use super::Work;
use crate::arch::mbarrier;
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, warp_tree};
use crate::float::Float;
use crate::row::exchange::{Speaker, hear_one, hear_some};

impl<E: Float, const ODD: bool, const CENTRED: bool> Work<E, ODD, CENTRED> {
    /// The warp that tells other blocks of parts, each as soon as all of its segments are made.
    ///
    /// # Safety
    ///
    /// As for the entry.
    #[inline(always)]
    pub(super) unsafe fn tell(&self, exchange: DevPtr<u32>) {
        let (walk, told) = (&self.walk, self.told);
        // SAFETY: words of the exchange, and of the block.
        unsafe {
            let speaker = Speaker::new(exchange);
            let mut turn = walk.first();
            let mut n = 0;
            while walk.there(turn) {
                let set = n % SETS;
                mbarrier::wait(told.segments_there(set), n / SETS % 2);
                let mut own = [0.0; 2];
                if lane_id() < PART {
                    own = told.segment(set, lane_id()).read_x2();
                }
                let own = Sums { sum: own[0], squares: own[1] };
                let part = part_of::<CENTRED>(own, walk.parts, turn.part, self.shape[1]);
                let row = speaker.row(walk.row(turn), walk.parts.count);
                speaker.tell(row, turn.part, [part.sum, part.squares]);
                if lane_id() == 0 {
                    mbarrier::arrive(told.row_there(set));
                }
                turn = walk.next(turn);
                n = opaque(n + 1);
            }
        }
    }

    /// The warp that hears other blocks of the rows of parts: `row_of(sums)` is what the warps of the block are told.
    ///
    /// # Safety
    ///
    /// As for the entry.
    #[inline(always)]
    pub(super) unsafe fn listen(&self, exchange: DevPtr<u32>, row_of: impl Fn(Sums) -> [f32; 2]) {
        let (walk, told) = (&self.walk, self.told);
        // SAFETY: words of the exchange, and of the block.
        unsafe {
            let speaker = Speaker::new(exchange);
            let mut turn = walk.first();
            let mut n = 0;
            while walk.there(turn) {
                let set = n % SETS;
                // Who made segments of this turn has used what was told in the set before.
                mbarrier::wait(told.segments_there(set), n / SETS % 2);
                let mut both = [0.0; 2];
                if walk.last(turn) {
                    let row = speaker.row(walk.row(turn), walk.parts.count);
                    both = row_of(self.hear(row, speaker.flag));
                }
                if lane_id() == 0 {
                    told.row(set).write_x2(both);
                    mbarrier::arrive(told.row_there(set));
                }
                turn = walk.next(turn);
                n = opaque(n + 1);
            }
            speaker.end();
        }
    }

    /// The sums of a row, in every lane.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// The slots are those of the exchange.
    #[inline(always)]
    unsafe fn hear(&self, row: *const u32, flag: u32) -> Sums {
        let (parts, k) = (self.walk.parts, self.shape[1]);
        let count = parts.count;
        // What a part adds to the squares around the row's mean.
        let squares = |[sum, squares]: [f32; 2], part: u32, mean: f32| {
            if CENTRED && part < count {
                around(squares, sum, parts.elements(part, k), mean)
            } else {
                squares
            }
        };
        // SAFETY: handed on.
        unsafe {
            if count <= LANES {
                let heard = hear_one(row, count, flag, 0.0);
                let sum = if CENTRED { warp_tree(heard[0]) } else { 0.0 };
                let own = squares(heard, lane_id(), sum / k as f32);
                return Sums { sum, squares: warp_tree(own) };
            }
            let mut out = Sums::default();
            if count <= 8 * LANES {
                // All are there at once: what they sum to, then their squares around that.
                let heard = hear_some(row, 0, count, flag, 0.0);
                if CENTRED {
                    out.sum = warp_tree(tree8(core::array::from_fn(|i| 0.0 + heard[i][0])));
                }
                let mean = out.sum / k as f32;
                let squares =
                    |i: usize| 0.0 + squares(heard[i], LANES * i as u32 + lane_id(), mean);
                out.squares = warp_tree(tree8(core::array::from_fn(squares)));
                return out;
            }
            let mut pass = u32::from(!CENTRED);
            while pass < 2 {
                let mean = out.sum / k as f32;
                let mut p = [0.0; 8];
                let mut part = 0;
                while part < count {
                    let heard = hear_some(row, part, count, flag, 0.0);
                    let mut i = 0;
                    while i < 8 {
                        let own = part + LANES * i + lane_id();
                        let heard = heard[i as usize];
                        p[i as usize] +=
                            if pass == 0 { heard[0] } else { squares(heard, own, mean) };
                        i += 1;
                    }
                    part = opaque(part + 8 * LANES);
                }
                let all = warp_tree(tree8(p));
                if pass == 0 {
                    out.sum = all
                } else {
                    out.squares = all
                }
                pass = opaque(pass + 1);
            }
            out
        }
    }
}
