//! Ternary weights on a Hopper GPU's integer tensor cores: 64 channels by outputs in lines.
//!
//! The weights are the left factor: a warp decodes the codes of its 16 channels in registers, straight
//! from global memory, to 64 times the weight, so that a sum is 64 times what it should be. The right factor is a stage of the input, 128 bytes for each entry, swizzled as
//! [`crate::arch::wgmma`] wants it by its *address*: so the same stage serves every tap, at a distance.
//!
//! At step `s` the warpgroup issues the products of `s`, waits for those of `s - 1`, decodes the codes of
//! `s + 1` while its products run, and asks for those of `s + 3`. Steps come in twos, so that no register
//! that a running product reads is copied. Stages come by `cp.async`; the place of a stage is free once
//! every warp has waited for the last products on it.

use contract::conv2d::int8::{TOP_BITS, ternary_bytes_64};
use contract::conv2d::lines::{
    CHANNELS, CLUSTER, ENTRY_BYTES, HEAD_BYTES, Lines, LinesArgs, MOST_STEPS, PAIR, ROW_BYTES,
    STEP_BYTES, THREADS,
};
use contract::conv2d::{Conv2dTernaryHopper, Conv2dTernaryHopperSplit};
use contract::launch::Kernel;

use super::lines_tables::{write_head, write_rows, write_steps};
use super::ternary_finish::{Blocks, Column, Here, PITCH, finish, weight_scales};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::cluster::sync_cluster;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::ld_nc;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor, swizzle};
use crate::tile::hopper::{begin, each_group};

/// Entries that a piece of 16 bytes a thread copies at a time.
const DOWN: u32 = THREADS / 8;
/// Words of a row that hold the codes of a pair.
pub(super) const PAIR_WORDS: u32 = PAIR / 16;

/// The left factor of a step: four products of depth 32.
type Left = [[u32; 4]; 4];
/// The codes of a step, of the lane's two channels and either pair, and what keeps those that are there.
#[derive(Clone, Copy)]
struct Codes {
    words: [[u32; 2]; 2],
    masks: [u32; 2],
}

/// Where the entries of a step are, and whether it is the first of a stage.
#[derive(Clone, Copy)]
struct Place {
    at: [Shared<u8>; 2],
    first: bool,
}

/// The way through the steps of a block.
struct Walk<'a> {
    args: &'a LinesArgs,
    /// The steps of a round: see [`write_steps`].
    table: Shared<u32>,
    /// Codes of the lane's channels, in this round.
    rows: [*const u32; 2],
    /// Where the stage is; the ring.
    stage: Shared<u8>,
    ring: Shared<u8>,
    /// The step in the round, and steps to go.
    step: u32,
    left: u32,
}

impl Walk<'_> {
    /// Asks for the codes of the next step, or gives zeros where there is none.
    ///
    /// # Safety
    ///
    /// The rows are those of packed weights, the table is written.
    #[inline(always)]
    unsafe fn next(&mut self) -> (Place, Codes) {
        // Past the last step: the first one again, without codes.
        let there = if self.left > 0 { TOP_BITS } else { 0 };
        // SAFETY: a step of the table.
        let [a, word, b, other] = unsafe { self.table.add(4 * self.step).read_x4() };
        let first = a & 1 != 0 && there != 0;
        if first {
            let stage_bytes = self.args.entries * ENTRY_BYTES;
            let end = self.ring.add(self.args.stages * stage_bytes);
            let next = self.stage.add(stage_bytes);
            self.stage = if next.addr() == end.addr() { self.ring } else { next };
        }
        let at = [self.stage.add(a & !63), self.stage.add(b & !63)];
        // A pair that is not there has the word of the one before it.
        let load = |row: usize, word: u32| {
            // SAFETY: 64 codes of a row, four words for four lanes.
            unsafe { ld_nc(self.rows[row].wrapping_add(word as usize)) }
        };
        let words = [[load(0, word), load(1, word)], [load(0, other), load(1, other)]];
        let masks = [there, if b & 1 != 0 { there } else { 0 }];
        let more = self.left > 1;
        self.left = self.left.saturating_sub(1);
        self.step += u32::from(more);
        if self.step == self.args.round {
            self.step = 0;
            let words = (self.args.pairs * PAIR_WORDS) as usize;
            self.rows = self.rows.map(|row| row.wrapping_add(words));
        }
        (Place { at, first }, Codes { words, masks })
    }
}

/// The left factor of product `product` of a step, 64 times the weights.
#[inline(always)]
fn decode(codes: &Codes, product: usize) -> [u32; 4] {
    let ([low, high], mask) = (codes.words[product / 2], codes.masks[product / 2]);
    let part = product as u32 % 2 * 2;
    let bytes = |word: u32, part: u32| ternary_bytes_64(word, part, mask);
    [bytes(low, part), bytes(high, part), bytes(low, part + 1), bytes(high, part + 1)]
}

/// Issues the products of a step, and decodes those of the next one in their shadow.
///
/// # Safety
///
/// The stage of the step was shown to the async proxy and by a barrier.
#[inline(always)]
unsafe fn products<const POSITIONS: u32>(left: Left, at: [Shared<u8>; 2], next: &Codes) -> Left {
    let mut other = [[0; 4]; 4];
    wgmma::fence();
    let mut i = 0;
    while i < 4 {
        let b = Descriptor::new(at[i / 2], 0, ATOM_BYTES).advance(i as u32 % 2 * 32);
        // SAFETY: the caller's promise.
        unsafe {
            match POSITIONS {
                64 => wgmma::i8_n64(left[i], b, true),
                128 => wgmma::i8_n128(left[i], b, true),
                _ => wgmma::i8_n256(left[i], b, true),
            }
        }
        wgmma::commit();
        if i == 0 {
            // Those of the step before are done: nothing reads the registers of the next one's factor.
            wgmma::wait::<1>();
        }
        other[i] = decode(next, i);
        i += 1;
    }
    other
}

/// Waits until at most `newer` of the newest groups of copies are under way (at most three).
#[inline(always)]
fn wait_but(newer: u32) {
    match newer {
        0 => wait_group::<0>(),
        1 => wait_group::<1>(),
        2 => wait_group::<2>(),
        _ => wait_group::<3>(),
    }
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a block for each split of each tile (whole clusters of them
/// where `SPLIT`), and the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn run<const POSITIONS: u32, const ENTRIES: u32, const SPLIT: bool>(args: &LinesArgs) {
    begin::<POSITIONS>();
    let (base, g) = (&args.base, &args.base.geometry);
    let (thread, lane) = (thread_idx_x(), lane_id());
    let splits = if SPLIT { args.splits } else { 1 };
    // A power of two.
    let (tile, part) = (block_idx_x() >> splits.trailing_zeros(), block_idx_x() & (splits - 1));
    let (rest, column_tile) = args.by_columns.div_rem(tile);
    let (group, position_tile) = args.by_positions.div_rem(rest);
    let (first, column0) = (position_tile * POSITIONS, column_tile * CHANNELS);
    // Clusters may have more blocks than there are tiles.
    let exists = group < g.groups;

    let head = dynamic_shared_mem::<u32>();
    let rows = head.byte_add(POSITIONS * HEAD_BYTES);
    let table = rows.byte_add(ENTRIES * ROW_BYTES);
    let ring = table.byte_add(MOST_STEPS * STEP_BYTES).cast::<u8>();
    let ring = ring.add(ring.addr().wrapping_neg() % ATOM_BYTES);
    let stage_bytes = args.entries * ENTRY_BYTES;
    // SAFETY: the tables stand before the ring.
    unsafe {
        write_steps(args, table);
        write_rows(args, first, rows);
    }
    sync_threads();

    let all = args.round * args.rounds;
    let begins = if exists { (part * args.share).min(all) } else { all };
    // Who has nothing to do reads some codes all the same.
    let reads = begins.min(all - 1);
    let (round0, step0) = if SPLIT { (reads / args.round, reads % args.round) } else { (0, 0) };
    let ends = (begins + args.share).min(all);
    let of_row = |half: u32| {
        let row = column0 + 16 * warp_id() + lane / 4 + 8 * half;
        let channel = group.min(g.groups - 1) * g.k + row.min(g.k - 1);
        let round = round0 * args.pairs * PAIR_WORDS;
        let at = channel as usize * base.row_words as usize + (round + lane % 4) as usize;
        base.w.as_ptr().cast_const().wrapping_add(at)
    };
    // Whether a step starts a stage, and its plane.
    // SAFETY: a step of the table.
    let flags = |step: u32| unsafe { table.add(4 * step).read() };
    let (last_round, last_step) = if SPLIT {
        let last = ends.max(1) - 1;
        (last / args.round, last % args.round)
    } else {
        (args.rounds - 1, args.round - 1)
    };
    let [inside, last] = [flags(step0), flags(last_step)].map(|f| (f & 1, f / 2 % 4));
    let before_ring = ring.add((args.stages - 1) * stage_bytes);
    let mut walk = Walk {
        args,
        table,
        rows: [of_row(0), of_row(1)],
        // Where a stage starts, the walk turns to the next place.
        stage: if inside.0 != 0 { before_ring } else { ring },
        ring,
        step: step0,
        left: ends - begins,
    };
    // Codes never change: they are asked for before the kernel in front of this one has ended.
    // SAFETY: packed rows, here and below.
    let ((mut now, codes), mut odd) = unsafe { (walk.next(), walk.next()) };
    now.first = begins < ends;
    launch_dependents();
    dependency_wait();

    let (row, piece) = (thread / 8, thread % 8);
    let planes = args.planes[0] * args.planes[1];
    let x = base.x.as_ptr().cast_const();
    let (mut plane, mut round, mut to) = (inside.1, round0, ring);
    let mut stages =
        if begins < ends { last_round * planes + last.1 + 1 - (round * planes + plane) } else { 0 };
    let mut ask = || {
        if stages > 0 {
            stages -= 1;
            let (a, b) = (plane >> (args.planes[1] - 1), plane & (args.planes[1] - 1));
            let channel = group * g.c + round * args.pairs * PAIR;
            let from = channel / 16 + a * (g.x_step[0] / 16) + b * (g.x_step[1] / 16) + piece;
            let bit = 2 * a + b;
            let (mut row, mut at) = (row, to.add(swizzle(row, piece)));
            while row < args.entries && piece < 4 * args.pairs {
                // Four entries at a time, so that their places are read together; the table is longer
                // than it needs to be.
                let places: [[u32; 2]; 4] = core::array::from_fn(|i| {
                    // SAFETY: the tables.
                    unsafe { rows.add(2 * (row + i as u32 * DOWN)).read_x2() }
                });
                let mut i = 0;
                while i < 4 {
                    let [pixel, planes] = places[i as usize];
                    let from = x.wrapping_add(pixel.wrapping_add(from) as usize * 16);
                    if row + i * DOWN < args.entries {
                        // SAFETY: 16 channels of a pixel when they are there; a place that nobody reads
                        // (see where this is called).
                        unsafe {
                            copy_x16(at.add(i * DOWN * ENTRY_BYTES), from, planes >> bit & 1 != 0)
                        };
                    }
                    i += 1;
                }
                row += 4 * DOWN;
                at = at.add(4 * DOWN * ENTRY_BYTES);
            }
            to = if to.addr() == before_ring.addr() { ring } else { to.add(stage_bytes) };
            plane += 1;
            if plane == planes {
                (plane, round) = (0, round + 1);
            }
        }
        commit_group();
    };
    let mut ahead = 1;
    while ahead < args.stages {
        ask();
        ahead += 1;
    }
    // SAFETY: the table stands before the ring.
    unsafe { write_head(args, (first, POSITIONS), head) };

    let mut left = core::array::from_fn(|product| decode(&codes, product));
    // SAFETY: packed rows.
    let mut even = unsafe { walk.next() };
    let mut go = |place: Place, left: Left, next: &mut (Place, Codes)| {
        if place.first {
            wait_but(args.stages - 2);
            wgmma::proxy_fence();
            sync_threads();
        }
        // Behind the fence, which would wait for it.
        // SAFETY: packed rows.
        let after = unsafe { walk.next() };
        // SAFETY: the barrier at the start of the stage showed it. A step that is not there takes
        // whatever the ring holds times zeros.
        let other = unsafe { products::<POSITIONS>(left, place.at, &next.1) };
        if place.first {
            // Every warp has waited for the last products of the stage before this one.
            sync_threads();
            ask();
        }
        let place = next.0;
        *next = after;
        (place, other)
    };
    let mut steps = ends - begins;
    while steps > 0 {
        (now, left) = go(now, left, &mut odd);
        (now, left) = go(now, left, &mut even);
        steps = steps.saturating_sub(2);
    }
    wgmma::wait::<0>();
    wait_group::<0>();
    sync_threads();

    let staging = ring.cast::<i32>();
    let mine = staging.add(2 * (lane % 4) * PITCH + 16 * warp_id() + lane / 4);
    each_group!(POSITIONS, J => {
        let sums = wgmma::read::<J>();
        let mut i = 0;
        while i < 8 {
            let position = 16 * J + 8 * (i as u32 / 4) + i as u32 % 2;
            // SAFETY: this lane's own sum.
            unsafe {
                mine.add(position * PITCH + 8 * (i as u32 / 2 % 2)).write(sums[i].to_bits() as i32);
            }
            i += 1;
        }
    });
    if SPLIT {
        sync_cluster();
    } else {
        sync_threads();
    }
    if exists {
        // SAFETY: the sums of every split are written and shown.
        unsafe { write::<POSITIONS, SPLIT>(args, head, staging, (column0, group), part) };
    }
    if SPLIT {
        // The other blocks may still read from this one.
        sync_cluster();
    }
}

/// Writes the outputs of the tile that are this part's: of every `splits` times as many rows as threads have, its own.
///
/// # Safety
///
/// The staging areas are written and shown in every block that has a part of the tile; `head` is the table of the
/// block's outputs, which are the tile's alone.
#[inline(always)]
unsafe fn write<const POSITIONS: u32, const SPLIT: bool>(
    args: &LinesArgs,
    head: Shared<u32>,
    staging: Shared<i32>,
    (column0, group): (u32, u32),
    part: u32,
) {
    /// Threads, four channels each, of an output; and outputs of a block of threads.
    const ACROSS: u32 = CHANNELS / 4;
    const ROWS: u32 = THREADS / ACROSS;
    let g = &args.base.geometry;
    let quad = thread_idx_x() % ACROSS * 4;
    let of_group = column0 + quad;
    if of_group >= g.k {
        return;
    }
    let (channel, sums) = (group * g.k + of_group, staging.add(quad));
    let column = Column {
        channel,
        count: (g.k - of_group).min(4),
        sums: Here::<1>(sums, 0),
        head,
        weight_scales: weight_scales(&args.base, channel),
        rows: [ROWS * part + thread_idx_x() / ACROSS, POSITIONS],
        down: if SPLIT { ROWS * args.splits } else { ROWS },
    };
    // SAFETY: the caller's promise.
    unsafe {
        if SPLIT {
            let (first, count) = (block_idx_x() % CLUSTER - part, args.splits);
            finish::<_, 4>(&args.base, &column.with(Blocks { sums, first, count }));
        } else {
            finish::<_, 4>(&args.base, &column);
        }
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $split:literal;)*) => { $(
        /// # Safety
        ///
        /// As for [`run`].
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: LinesArgs) {
            const LINES: Lines = $kernel::LINES;
            // SAFETY: the caller's promise.
            unsafe { run::<{ LINES.positions }, { LINES.most_entries() }, $split>(&args) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTernaryHopper conv2d_ternary_hopper false;
    Conv2dTernaryHopperSplit conv2d_ternary_hopper_split true;
}
