//! Ternary weights on a Hopper GPU, all that a tile reads asked for at once: see [`contract::conv2d::whole`].
//!
//! A thread of each warp asks the copy engine for the entries of its rounds, each of which ends the phase of a
//! barrier of its own. Meanwhile every thread asks for the codes of the first steps of its two channels. A
//! warpgroup takes a step, 128 channels of a tap, as soon as its round is there: it decodes the codes to 64 times
//! the weights, the left factor in registers, and asks for codes further on in their place. The right factor is
//! the entries, swizzled by address, so that every tap reads them at a distance ([`super::bulk_lines`]). What the
//! epilogue divides by comes behind the products.

use contract::conv2d::int8::{Args, TOP_BITS, ternary_bytes_64};
use contract::conv2d::whole::{
    CHANNELS, ENTRY_BYTES, HEAD_BYTES, MOST_ROUNDS, PITCH, WARPGROUPS, Whole, WholeArgs,
};
use contract::conv2d::{
    Conv2dTernaryWhole32, Conv2dTernaryWhole48, Conv2dTernaryWhole64, Conv2dTernaryWhole96,
    Conv2dTernaryWhole128,
};
use contract::launch::Kernel;
use contract::num::RowType;

use super::ternary_finish::{self, Column, Here, singly};
use super::whole_finish::{Bf16, EIGHT, Eight, F16, F32, Out, Places, finish, head};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::mem::{ld, ld_if};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::tensor::{copy_pixels, parameter_address, prefetch_map};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, sync_warp, warp_id};
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor};
use crate::tile::hopper::{begin, each_group};

const _: () = assert!(PITCH == ternary_finish::PITCH);

/// Words of a step of a row.
pub(super) const STEP_WORDS: u32 = ENTRY_BYTES / 16;

/// Shared memory of a block.
#[derive(Clone, Copy)]
struct Room {
    /// A barrier for each round.
    rounds: Barrier,
    /// What divides the sums of each position, and its pixel.
    head: Shared<u32>,
    /// The multiplier of each output channel.
    scales: Shared<f32>,
    /// Afterwards the sums, those of a warpgroup after those of the one before.
    entries: Shared<u8>,
}

impl Room {
    #[inline(always)]
    fn new(whole: Whole) -> Self {
        let base = dynamic_shared_mem::<u8>();
        let head = base.add(8 * MOST_ROUNDS);
        let scales = head.add(HEAD_BYTES * whole.positions);
        let entries = base.add(whole.tables());
        let entries = entries.add(entries.addr().wrapping_neg() % ATOM_BYTES);
        Self { rounds: base.cast(), head: head.cast(), scales: scales.cast(), entries }
    }
}

/// Makes the barriers of rounds `round`, `round + apart` and so on, and asks for their entries of the tile from
/// position `first` on.
///
/// # Safety
///
/// As for [`run`], in one thread for each round, before a barrier of the block.
#[inline(always)]
unsafe fn ask(
    args: &WholeArgs,
    map: u64,
    room: Room,
    (first, group): (u32, u32),
    mut round: u32,
    apart: u32,
) {
    let (walk, g) = (&args.walk, &args.base.geometry);
    let (line, column) = walk.by_line.div_rem(first);
    let (image, line) = walk.by_lines.div_rem(line);
    let [h, w] = [(line, 0), (column, 1)]
        .map(|(at, axis)| (at * g.stride[axis] as u32).wrapping_sub(g.pad[axis] as u32));
    let (bytes, planes) = (walk.entries * ENTRY_BYTES, walk.planes[0] * walk.planes[1]);
    let mut waits = true;
    while round < walk.rounds {
        rolled();
        let (there, mut to) = (room.rounds.add(round), room.entries.add(round * planes * bytes));
        // SAFETY: a barrier of this thread's.
        unsafe { mbarrier::init(there, 1) };
        mbarrier::show_new();
        if waits {
            dependency_wait();
            waits = false;
        }
        // SAFETY: the barrier was made; once.
        unsafe { mbarrier::arrive_expecting(there, planes * bytes) };
        let mut plane = 0;
        while plane < planes {
            rolled();
            let (a, b) = (plane >> (walk.planes[1] - 1), plane & (walk.planes[1] - 1));
            let channel = group * g.c + round * ENTRY_BYTES;
            // SAFETY: a place that nobody else writes, read after the phase of the barrier.
            unsafe { copy_pixels(to, map, [channel, w, h, image], [b as u16, a as u16], there) };
            to = to.add(bytes);
            // Opaque, here and below, because LLVM would write the loops out.
            plane += opaque(1);
        }
        round += opaque(apart);
    }
}

/// Where the entries of a step are.
struct Way<'a> {
    args: &'a WholeArgs,
    room: Room,
    /// Row and column of the tap, and the round.
    r: u32,
    s: u32,
    round: u32,
    /// The entries, and what lies between those of two rounds.
    at: Shared<u8>,
    further: u32,
}

impl<'a> Way<'a> {
    /// From step `from` of a sum on.
    #[inline(always)]
    fn new(args: &'a WholeArgs, room: Room, from: u32) -> Self {
        let (walk, g) = (&args.walk, &args.base.geometry);
        let (tap, round) = args.by_rounds.div_rem(from);
        let (r, s) = g.by_s.div_rem(tap);
        let further = walk.planes[0] * walk.planes[1] * walk.entries * ENTRY_BYTES;
        let mut way = Self { args, room, r, s, round, at: room.entries, further };
        way.turn();
        way.at = way.at.add(round * further);
        way
    }

    /// Turns to the first round of a tap.
    #[inline(always)]
    fn turn(&mut self) {
        let (walk, g) = (&self.args.walk, &self.args.base.geometry);
        let axis = |at: u32, axis: usize| {
            // Steps of 2 have no dilation.
            let step = g.stride[axis] as u32 - 1;
            ((at >> step) * g.dilation[axis] as u32, at & (walk.planes[axis] - 1))
        };
        let ((down, a), (across, b)) = (axis(self.r, 0), axis(self.s, 1));
        let plane = a * walk.planes[1] + b;
        let entry = plane * walk.entries + down * walk.line + across;
        self.at = self.room.entries.add(entry * ENTRY_BYTES);
    }

    /// On to the next step.
    #[inline(always)]
    fn next(&mut self) {
        self.round += 1;
        self.at = self.at.add(self.further);
        if self.round == self.args.walk.rounds {
            self.round = 0;
            self.s += 1;
            if self.s == self.args.base.geometry.s {
                (self.r, self.s) = (self.r + 1, 0);
            }
            self.turn();
        }
    }
}

/// A block for each tile of `POSITIONS` positions by 128 channels, or by 64 whose terms the warpgroups share.
/// `AHEAD`: steps whose codes are in registers; `DEEP`: whether the products of a step are waited for together; an
/// even `AHEAD` then, so that no register that a product reads is written meanwhile.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a block for each tile, the pointers of `args` cover the contract's table,
/// and the map is the contract's; `map` is the address of the parameter, which starts with it.
#[inline(always)]
unsafe fn run<const POSITIONS: u32, const AHEAD: usize, const DEEP: bool>(
    args: &WholeArgs,
    map: u64,
    whole: Whole,
) {
    const { assert!(!DEEP || AHEAD.is_multiple_of(2)) };
    begin::<POSITIONS>();
    let (base, walk, g) = (&args.base, &args.walk, &args.base.geometry);
    let (thread, lane) = (thread_idx_x(), lane_id());
    let room = Room::new(whole);
    let (rest, column_tile) = walk.by_columns.div_rem(block_idx_x());
    let (group, position_tile) = walk.by_positions.div_rem(rest);
    let first = position_tile * POSITIONS;
    if lane == 0 {
        // SAFETY: the map; a round of each of these threads.
        unsafe {
            if thread == 0 {
                prefetch_map(map);
            }
            ask(args, map, room, (first, group), warp_id(), 4 * WARPGROUPS);
        }
    }
    // Which part of the terms of which 64 channels.
    let (warpgroup, shared) = (thread / 128, args.parts - 1);
    let (part, sixtyfour) = (warpgroup & shared, warpgroup >> shared);
    let sixtyfours = WARPGROUPS >> shared;
    let column0 = column_tile * CHANNELS * sixtyfours;
    let all = walk.rounds * g.taps;
    let begins = (part * args.share).min(all);
    let mut left = (begins + args.share).min(all) - begins;
    let mut codes = [0, 8].map(|half| {
        let row = column0 + CHANNELS * sixtyfour + 16 * (warp_id() % 4) + lane / 4 + half;
        let row = (group * g.k + row.min(g.k - 1)) as usize * base.row_words as usize;
        let at = row + (begins * STEP_WORDS + lane % 4) as usize;
        base.w.as_ptr().cast_const().wrapping_add(at)
    });
    let load = |codes: [*const u32; 2], step: usize, there: bool| {
        [0, 4].map(|pair| {
            let at = step * STEP_WORDS as usize + pair;
            // SAFETY: steps of packed rows, and behind the last one.
            codes.map(|row| unsafe { ld_if(there, row.wrapping_add(at)) })
        })
    };
    // Codes never change: they are asked for before the kernel in front of this one has ended.
    let mut words: [[[u32; 2]; 2]; AHEAD] =
        core::array::from_fn(|i| load(codes, i, (i as u32) < left));
    launch_dependents();
    if thread < CHANNELS * sixtyfours {
        let scale = base.segments.scale_of(group * g.k + column0 + thread);
        // SAFETY: this thread's channel of the table.
        unsafe { room.scales.add(thread).write(scale) };
    }
    dependency_wait();
    // What divides the sums of a position is asked for now, and worked out behind the products.
    let (mut scale, mut pixel) = (1.0, u32::MAX);
    if thread < POSITIONS {
        let (line, column) = walk.by_line.div_rem(first + thread);
        let (image, line) = walk.by_lines.div_rem(line);
        if image < walk.images && line < g.out[0] && column < g.out[1] {
            pixel = (image * g.out[0] + line) * g.out[1] + column;
        }
        let scales = base.scales.as_ptr().cast_const();
        // SAFETY: a number for each image.
        scale = unsafe { ld(scales.wrapping_add(image.min(walk.images - 1) as usize)) };
    }
    sync_threads();

    let mut way = Way::new(args, room, begins);
    'all: while left > 0 {
        codes = codes.map(|row| row.wrapping_add(AHEAD * STEP_WORDS as usize));
        let mut i = 0;
        while i < AHEAD {
            let now = words[i];
            // SAFETY: the barriers were made before the barrier of the block; they have one phase.
            unsafe { mbarrier::wait(room.rounds.add(way.round), 0) };
            let b = Descriptor::new(way.at, 0, ATOM_BYTES);
            let mut half = 0;
            while half < 2 {
                let a = [decode(now[half], 0), decode(now[half], 2)];
                let more = [decode(now[1], 0), decode(now[1], 2)];
                wgmma::fence();
                // SAFETY: the round is there, and stays.
                unsafe {
                    product_of::<POSITIONS>(a[0], b.advance_inside(64 * half as u32));
                    product_of::<POSITIONS>(a[1], b.advance_inside(64 * half as u32 + 32));
                    if DEEP {
                        product_of::<POSITIONS>(more[0], b.advance_inside(64));
                        product_of::<POSITIONS>(more[1], b.advance_inside(96));
                        half += 1;
                    }
                }
                wgmma::commit();
                if DEEP {
                    // Keeps the loads behind the products: in front of what is decoded they would be waited for at once, because a
                    // warp waits for its loads together.
                    sync_warp();
                    words[i] = load(codes, i, left > AHEAD as u32);
                }
                wgmma::wait::<1>();
                half += 1;
            }
            if !DEEP {
                words[i] = load(codes, i, left > AHEAD as u32);
            }
            left -= 1;
            if left == 0 {
                break 'all;
            }
            way.next();
            i += 1;
        }
    }
    if thread < POSITIONS {
        // Opaque, so that nothing is worked out from it, and so waited for, in front of the products.
        let scale = f32::from_bits(opaque_here(scale.to_bits()));
        // SAFETY: this thread's position of the table.
        unsafe { room.head.add(4 * thread).write_x4(head(64.0 * scale, pixel)) };
    }
    wgmma::wait::<0>();
    // Nobody reads the entries any more.
    sync_threads();
    let (sums, part_words) = (room.entries.cast::<i32>(), POSITIONS * PITCH);
    let mine = sums.add(warpgroup * part_words + 2 * (lane % 4) * PITCH);
    let element = opaque_here(base.element as u32);
    let places = Places::new(element == RowType::F32 as u32);
    let halves = [0, 1].map(|half| places.of(mine, 2 * (warp_id() % 4) + half, lane / 4));
    each_group!(POSITIONS, J => {
        let group = wgmma::read::<J>();
        let mut i = 0;
        while i < 8 {
            let position = 16 * J + 8 * (i as u32 / 4) + i as u32 % 2;
            let at = halves[i / 2 % 2].add(position * PITCH);
            // SAFETY: this lane's own sum.
            unsafe { at.write(group[i].to_bits() as i32) };
            i += 1;
        }
    });
    sync_threads();
    let tile =
        Tile { room, sums, part_words, shared, of_group: column0, channel: group * g.k + column0 };
    let mut rest = true;
    if g.k.is_multiple_of(EIGHT) && base.activation.is_cheap() {
        // Loops of their own: a branch where an output is written costs up to 7 %.
        // SAFETY: sums and tables are written and shown; the outputs are the tile's, each of one thread.
        rest = unsafe {
            if element == RowType::F32 as u32 {
                finish_eights::<F32, POSITIONS>(base, &tile)
            } else if element == RowType::F16 as u32 {
                finish_eights::<F16, POSITIONS>(base, &tile)
            } else {
                finish_eights::<Bf16, POSITIONS>(base, &tile)
            }
        };
    }
    if !rest {
        return;
    }
    // The rest of a thread's outputs: its fours, one channel at a time.
    let (eight, sixtyfour, row) = tile.thread();
    let mut four = 0;
    while four < 2 {
        rolled();
        let of_it = places.channel(eight, four);
        let of_block = CHANNELS * sixtyfour + of_it;
        if column0 + of_block < g.k {
            let sums = places.of(sums.add(sixtyfour * part_words), of_it / 8, of_it % 8);
            let column = Column {
                channel: group * g.k + column0 + of_block,
                count: (g.k - column0 - of_block).min(4),
                sums: Here::<1>(sums, 0),
                head: room.head,
                weight_scales: [0.0; 4],
                rows: [row, POSITIONS],
                down: down(shared),
            };
            // SAFETY: as above.
            unsafe {
                if shared == 0 {
                    singly(base, &column);
                } else {
                    singly(base, &column.with(Here::<2>(sums, part_words)));
                }
            }
        }
        four += opaque(1);
    }
}

/// From a position of a thread to its next one.
#[inline(always)]
const fn down(shared: u32) -> u32 {
    if shared == 0 { 16 } else { 32 }
}

/// What a block has made.
#[derive(Clone, Copy)]
struct Tile {
    room: Room,
    /// The sums, and words from those of a warpgroup to those of the next.
    sums: Shared<i32>,
    part_words: u32,
    /// Whether warpgroups share terms: 1, else 0.
    shared: u32,
    /// First channel of its group, and of all.
    of_group: u32,
    channel: u32,
}

impl Tile {
    /// The eight of this thread, of which 64 channels, and its first position.
    #[inline(always)]
    fn thread(&self) -> (u32, u32, u32) {
        const ACROSS: u32 = CHANNELS / EIGHT;
        let (eight, rest) = (thread_idx_x() % ACROSS, thread_idx_x() / ACROSS);
        if self.shared == 0 {
            (eight, rest % WARPGROUPS, rest / WARPGROUPS)
        } else {
            (eight, 0, rest)
        }
    }
}

/// The outputs of a thread, of channels in eights. Whether others are left.
///
/// # Safety
///
/// As for [`finish`].
#[inline(always)]
unsafe fn finish_eights<T: Out, const POSITIONS: u32>(base: &Args, tile: &Tile) -> bool {
    const {
        assert!(128 * WARPGROUPS == down(0) * CHANNELS * WARPGROUPS / EIGHT);
        assert!(down(1) == WARPGROUPS * down(0));
    }
    let (shared, part_words) = (tile.shared, tile.part_words);
    let (eight, sixtyfour, row) = tile.thread();
    let channels = CHANNELS * sixtyfour;
    let left = base.geometry.k.saturating_sub(tile.of_group + channels);
    let room = tile.room;
    let of_it = (tile.sums.add(sixtyfour * part_words), room.head, room.scales.add(channels));
    // SAFETY: the caller's promise, for all.
    unsafe {
        let of_all = (tile.channel + channels, left);
        let Some(eight) = Eight::new::<T>(of_it, of_all, (eight, row)) else { return false };
        match (shared, POSITIONS) {
            (0, 64) => finish::<T, POSITIONS, 1, 16, 4>(base, &eight, part_words),
            (0, 32 | 128) => finish::<T, POSITIONS, 1, 16, 2>(base, &eight, part_words),
            (0, _) => finish::<T, POSITIONS, 1, 16, 3>(base, &eight, part_words),
            (_, 32) => finish::<T, POSITIONS, 2, 32, 1>(base, &eight, part_words),
            (_, 96) => finish::<T, POSITIONS, 2, 32, 3>(base, &eight, part_words),
            _ => finish::<T, POSITIONS, 2, 32, 2>(base, &eight, part_words),
        }
    }
}

/// The left factor of a product, 64 times the weights: of the codes of two rows, from `part` on.
#[inline(always)]
pub(super) fn decode([low, high]: [u32; 2], part: u32) -> [u32; 4] {
    let bytes = |word: u32, part: u32| ternary_bytes_64(word, part, TOP_BITS);
    [bytes(low, part), bytes(high, part), bytes(low, part + 1), bytes(high, part + 1)]
}

/// `D += A B` of depth 32.
///
/// # Safety
///
/// As for [`wgmma::i8_n64`].
#[inline(always)]
unsafe fn product_of<const POSITIONS: u32>(a: [u32; 4], b: Descriptor) {
    // SAFETY: the caller's promise.
    unsafe {
        match POSITIONS {
            32 => wgmma::i8_n32(a, b, true),
            48 => wgmma::i8_n48(a, b, true),
            64 => wgmma::i8_n64(a, b, true),
            96 => wgmma::i8_n96(a, b, true),
            _ => {
                const { assert!(POSITIONS <= 96 || POSITIONS == 128) };
                wgmma::i8_n128(a, b, true);
            }
        }
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ahead:literal $deep:literal;)*) => { $(
        /// # Safety
        ///
        /// As for [`run`].
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: WholeArgs) {
            const WHOLE: Whole = $kernel::WHOLE;
            // SAFETY: the caller's promise.
            unsafe {
                let map = parameter_address!($symbol);
                run::<{ WHOLE.positions }, $ahead, $deep>(&args, map, WHOLE);
            }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTernaryWhole32 conv2d_ternary_whole32 6 true;
    Conv2dTernaryWhole48 conv2d_ternary_whole48 6 false;
    Conv2dTernaryWhole64 conv2d_ternary_whole64 4 true;
    Conv2dTernaryWhole96 conv2d_ternary_whole96 4 true;
    Conv2dTernaryWhole128 conv2d_ternary_whole128 4 false;
}
