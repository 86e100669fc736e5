//! What the last two warps of a block do: one tells other blocks of the row of a part, and one hears them.

use contract::num::{fma, tree8};
use contract::softmax::{PART, PartArgs, SETS, closing, factor};

use super::segment::largest;
use crate::arch::float::maximum;
use crate::arch::mbarrier;
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_xor, warp_tree};
use crate::row::exchange::{Speaker, Told, hear_one, hear_some};
use crate::row::walk::Walk;

/// Maximum and sum of a row of `count` parts, in every lane.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The slots are those of the exchange.
#[inline(always)]
unsafe fn hear(row: *const u32, count: u32, flag: u32) -> [f32; 2] {
    let top = |heard: &[[f32; 2]; 8]| {
        let mut top = f32::NEG_INFINITY;
        let mut i = 0;
        while i < 8 {
            top = maximum(top, heard[i][0]);
            i += 1;
        }
        top
    };
    // SAFETY: handed on.
    unsafe {
        if count <= LANES {
            let [top, sum] = hear_one(row, count, flag, f32::NEG_INFINITY);
            let max = largest(top);
            return [max, warp_tree(sum * factor(top, max))];
        }
        let mut heard = hear_some(row, 0, count, flag, f32::NEG_INFINITY);
        let mut max = top(&heard);
        let mut part = 8 * LANES;
        while part < count {
            max = maximum(max, top(&hear_some(row, part, count, flag, f32::NEG_INFINITY)));
            part = opaque(part + 8 * LANES);
        }
        let max = largest(max);
        let mut p = [0.0; 8];
        let mut part = 0;
        loop {
            let mut i = 0;
            while i < 8 {
                p[i] = fma(heard[i][1], factor(heard[i][0], max), p[i]);
                i += 1;
            }
            part = opaque(part + 8 * LANES);
            if part >= count {
                return [max, warp_tree(tree8(p))];
            }
            heard = hear_some(row, part, count, flag, f32::NEG_INFINITY);
        }
    }
}

/// The warp that tells other blocks of parts, each as soon as all of its segments are made.
///
/// # Safety
///
/// As for the entry.
#[inline(always)]
pub(super) unsafe fn tell(args: &PartArgs) {
    let (walk, told) = (Walk::new(args.rows.k, args.count, 1), Told::<SETS>::new());
    // SAFETY: words of the exchange, and of the block.
    unsafe {
        let speaker = Speaker::new(args.exchange);
        let mut turn = walk.first();
        let mut n = 0;
        while walk.there(turn) {
            let set = n % SETS;
            mbarrier::wait(told.segments_there(set), n / SETS % 2);
            let own = if lane_id() < PART {
                told.segment(set, lane_id()).read_x2()
            } else {
                [f32::NEG_INFINITY, 0.0]
            };
            let max = largest(own[0]);
            let mut sum = own[1] * factor(own[0], max);
            let mut distance = PART / 2;
            while distance > 0 {
                sum += shuffle_xor(sum, distance);
                distance /= 2;
            }
            let row = speaker.row(walk.row(turn), walk.parts.count);
            speaker.tell(row, turn.part, [max, sum]);
            if lane_id() == 0 {
                mbarrier::arrive(told.row_there(set));
            }
            turn = walk.next(turn);
            n = opaque(n + 1);
        }
    }
}

/// The warp that hears other blocks of the rows of parts.
///
/// # Safety
///
/// As for the entry.
#[inline(always)]
pub(super) unsafe fn listen(args: &PartArgs) {
    let (walk, told) = (Walk::new(args.rows.k, args.count, 1), Told::<SETS>::new());
    // SAFETY: words of the exchange, and of the block.
    unsafe {
        let speaker = Speaker::new(args.exchange);
        let mut turn = walk.first();
        let mut n = 0;
        while walk.there(turn) {
            let set = n % SETS;
            // Who made segments of this turn has used what was told in the set before.
            mbarrier::wait(told.segments_there(set), n / SETS % 2);
            let mut both = [0.0; 2];
            if walk.last(turn) {
                let row = speaker.row(walk.row(turn), walk.parts.count);
                let [max, sum] = hear(row, walk.parts.count, speaker.flag);
                both = [max, closing(sum, max, args.rows.log == 1)];
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
