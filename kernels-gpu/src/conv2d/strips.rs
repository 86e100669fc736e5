//! Ternary weights on a Hopper GPU, windows of one tap, outputs of 16 bits: see [`contract::conv2d::strips`].
//!
//! A thread of each warp asks the copy engine for stages of the first tiles, 128 channels of all positions each, which
//! end the phase of a barrier of their own. A warpgroup decodes the codes of a strip, which are under way since two steps
//! before, to 64 times the weights: the left factor, in registers. What the tensor cores leave is divided, scaled,
//! rounded in place and turned round by `stmatrix`; then a thread writes eight neighbouring channels at once. Once every
//! warp has multiplied a tile, its place takes the pixels of a later one.

use contract::conv2d::strips::{
    BARRIER_BYTES, CHANNEL_BYTES, CHANNELS, ENTRY_BYTES, HEAD_BYTES, MOST_STAGES, RARE_BYTES,
    StripsArgs, WARPGROUPS, images_bytes, staging_bytes, tables_bytes,
};
use contract::conv2d::{
    ABSENT, Activation, Conv2dTernaryStrips, Conv2dTernaryStrips96, finish_cheap,
};
use contract::launch::Kernel;
use contract::num::quotient;
use contract::w2a8::{Divisor, code_place, dequantise};

use super::int8_value::store;
use super::whole::{STEP_WORDS, decode};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::half::{pack_bf16, pack_f16};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::mem::{ld, ld_if, ld_u8_if};
use crate::arch::mem_if::st_x4_if;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::tensor::{copy_pixels, parameter_address, prefetch_map};
use crate::arch::thread::{block_idx_x, sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::{any, lane_id, warp_id};
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor, stmatrix_x4_trans, swizzle};
use crate::tile::hopper::each_group;

/// Shared memory of a block.
#[derive(Clone, Copy)]
struct Room {
    barriers: Barrier,
    /// Multiplier and bias of each channel of the block's strips.
    channels: Shared<f32>,
    /// Scale and reciprocal of each image.
    images: Shared<u32>,
    /// Whether a warp saw a scale that is not ordinary.
    rare: Shared<u32>,
    /// Two tables of positions for each warpgroup.
    heads: Shared<u32>,
    /// Rounded outputs of each warpgroup.
    staging: Shared<u8>,
    entries: Shared<u8>,
}

impl Room {
    #[inline(always)]
    fn new<const POSITIONS: u32>(strips: u32, images: u32) -> Self {
        let base = dynamic_shared_mem::<u8>();
        let channels = base.add(BARRIER_BYTES);
        let of_images = channels.add(strips * CHANNELS * CHANNEL_BYTES);
        let rare = of_images.add(images_bytes(images));
        let heads = rare.add(RARE_BYTES);
        let tables = base.add(tables_bytes(POSITIONS, strips, images));
        let staging = tables.add(tables.addr().wrapping_neg() % ATOM_BYTES);
        let entries = staging.add(WARPGROUPS * staging_bytes(POSITIONS));
        Self {
            barriers: base.cast(),
            channels: channels.cast(),
            images: of_images.cast(),
            rare: rare.cast(),
            heads: heads.cast(),
            staging,
            entries,
        }
    }

    /// Ends a phase when a stage is there.
    #[inline(always)]
    fn full(&self, stage: u32) -> Barrier {
        self.barriers.add(stage)
    }

    /// Ends a phase when every warp that multiplies a tile has done so.
    #[inline(always)]
    fn empty(&self, place: u32) -> Barrier {
        self.barriers.add(MOST_STAGES + place)
    }
}

/// Asks for the entries of stage `round` of tile `tile`, at a place.
///
/// # Safety
///
/// As for [`run`], in one thread, after the wait for the kernel in front; the place is free.
#[inline(always)]
unsafe fn ask<const POSITIONS: u32>(
    args: &StripsArgs,
    map: u64,
    room: Room,
    tile: u32,
    (place, round): (u32, u32),
) {
    let (walk, g) = (&args.walk, &args.base.geometry);
    let (line, column) = walk.by_line.div_rem(tile * POSITIONS);
    let (image, line) = walk.by_lines.div_rem(line);
    let [h, w] = [(line, 0), (column, 1)]
        .map(|(at, axis)| (at * g.stride[axis] as u32).wrapping_sub(g.pad[axis] as u32));
    let stage = place * walk.rounds + round;
    let full = room.full(stage);
    // SAFETY: the barrier was made; once for each phase of the place, which is free.
    unsafe {
        mbarrier::arrive_expecting(full, POSITIONS * ENTRY_BYTES);
        let to = room.entries.add(stage * POSITIONS * ENTRY_BYTES);
        copy_pixels(to, map, [round * ENTRY_BYTES, w, h, image], [0, 0], full);
    }
}

/// The way of a warpgroup through the codes of its strips, again and again.
struct Codes<'a> {
    args: &'a StripsArgs,
    /// First channel of the block.
    column0: u32,
    /// Its strips in the block: the first, the end, and what lies between two of them.
    from: u32,
    end: u32,
    apart: u32,
    /// The strip and the round.
    strip: u32,
    round: u32,
}

impl Codes<'_> {
    /// Asks for the codes of the next step: of the lane's two channels, of either half.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn next(&mut self) -> [[u32; 2]; 2] {
        let base = &self.args.base;
        // Opaque, so that what follows from it takes no registers meanwhile.
        let lane = opaque_here(thread_idx_x()) % 128;
        let channel = self.column0 + CHANNELS * self.strip + lane / 32 * 16 + lane % 32 / 4;
        let (k, word) = (base.geometry.k, STEP_WORDS * self.round + lane % 4);
        let row = u64::from(channel) * u64::from(base.row_words) + u64::from(word);
        let down = 8 * base.row_words as usize;
        let at = base.w.as_ptr().cast_const().wrapping_add(row as usize);
        // SAFETY: codes of packed rows, and behind the last one.
        let words = [0, 4].map(|half| unsafe {
            let (low, high) = (at.wrapping_add(half), at.wrapping_add(down + half));
            [ld_if(channel < k, low), ld_if(channel + 8 < k, high)]
        });
        self.round += 1;
        if self.round == self.args.walk.rounds {
            self.round = 0;
            self.strip += self.apart;
            self.strip = if self.strip < self.end { self.strip } else { self.from };
        }
        words
    }
}

/// `D += A B` of a step.
///
/// # Safety
///
/// The barriers were made; the stage stays until its warps have given it back.
#[inline(always)]
unsafe fn multiply<const POSITIONS: u32>(
    room: Room,
    stage: u32,
    parity: u32,
    codes: [[u32; 2]; 2],
    add: bool,
) {
    // SAFETY: the barrier was made; every warp takes part in every phase.
    unsafe { mbarrier::wait(room.full(stage), parity) };
    let b = Descriptor::new(room.entries.add(stage * POSITIONS * ENTRY_BYTES), 0, ATOM_BYTES);
    let mut i = 0;
    while i < 4 {
        let a = decode(codes[i as usize / 2], i % 2 * 2);
        wgmma::fence();
        let (b, add) = (b.advance_inside(32 * i), i > 0 || add);
        // SAFETY: the stage is there, and stays.
        unsafe {
            if POSITIONS == 96 {
                wgmma::i8_n96(a, b, add);
            } else {
                wgmma::i8_n128(a, b, add);
            }
        }
        wgmma::commit();
        wgmma::wait::<1>();
        i += 1;
    }
}

/// What the epilogue of a strip wants.
struct Finish<'a> {
    args: &'a StripsArgs,
    /// Multiplier and bias of the lane's two channels.
    channels: [[f32; 2]; 2],
    /// Scales and reciprocals of the lane's first two positions.
    scales: Shared<f32>,
    /// Not 0: something follows the multipliers.
    extras: u32,
    /// Not 0: outputs are f16.
    f16: u32,
}

impl Finish<'_> {
    /// What sums that are there 64 times stand for, of two channels of two neighbouring positions from `position` on: both
    /// positions of the first channel, then those of the second.
    ///
    /// # Safety
    ///
    /// The tables are written and shown; the kernel's contract.
    #[inline(always)]
    unsafe fn four(&self, sums: [i32; 4], position: u32) -> [f32; 4] {
        // SAFETY: the table.
        let [a, ra, b, rb] = unsafe { self.scales.add(2 * position).read_x4() };
        let divisors = [[a, ra], [b, rb]];
        core::array::from_fn(|i| {
            let [scale, reciprocal] = divisors[i % 2];
            quotient(sums[i] as f32, scale, reciprocal) * self.channels[i / 2][0]
        })
    }

    /// What follows the multipliers, for values as [`Finish::four`] gives them.
    #[inline(always)]
    fn extras(&self, mut values: [f32; 4]) -> [f32; 4] {
        let activation = Activation::from_u32(opaque_here(self.args.base.activation as u32));
        values = core::array::from_fn(|i| {
            finish_cheap(values[i], self.channels[i / 2][1], ABSENT, Activation::None)
        });
        match activation {
            Activation::Relu => values.map(|v| Activation::Relu.apply_cheap(v)),
            Activation::Relu2 => values.map(|v| Activation::Relu2.apply_cheap(v)),
            _ => values,
        }
    }
}

/// A block for `step` tiles and as many strips as the arguments say.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`StripsArgs::blocks`] blocks, the pointers of `args` cover the contract's
/// table, and the map is the contract's; `map` is the address of the parameter, which starts with it.
#[inline(always)]
unsafe fn run<const POSITIONS: u32>(args: &StripsArgs, map: u64) {
    const { assert!(POSITIONS == 96 || POSITIONS == 128) };
    wgmma::declare();
    let (base, walk, g) = (&args.base, &args.walk, &args.base.geometry);
    let (thread, lane) = (thread_idx_x(), lane_id());
    let room = Room::new::<POSITIONS>(args.strips, walk.images);
    let (walker, column) = walk.by_columns.div_rem(block_idx_x());
    let column0 = column * args.strips * CHANNELS;
    let strips = (g.k - column0).div_ceil(CHANNELS).min(args.strips);
    // Warpgroups that have tiles of their own have rings of their own.
    let warpgroup = thread / 128;
    let apart = args.strips == 1;
    let (places, rings) =
        if apart { (args.places / WARPGROUPS, WARPGROUPS) } else { (args.places, 1) };
    let ring = if apart { warpgroup } else { 0 };
    let step = args.step * rings;
    if lane == 0 {
        // A warp's thread makes the barriers of its stages and asks for them at once.
        let mut i = warp_id();
        if i < args.places {
            // SAFETY: this thread alone, before the barrier.
            unsafe { mbarrier::init(room.empty(i), if apart { 4 } else { 4 * WARPGROUPS }) };
        }
        let mut waits = true;
        while i < args.places * walk.rounds {
            rolled();
            let (place, round) = args.by_rounds.div_rem(i);
            let of_ring = u32::from(place >= places);
            let in_ring = place - of_ring * places;
            let first = walker + args.step * of_ring + step * in_ring;
            // SAFETY: this thread alone, before the barrier; the map; the place is free.
            unsafe {
                mbarrier::init(room.full(i), 1);
                mbarrier::show_new();
                if waits {
                    prefetch_map(map);
                    dependency_wait();
                    waits = false;
                }
                if first < walk.tiles {
                    ask::<POSITIONS>(args, map, room, first, (place, round));
                }
            }
            i += opaque(4 * WARPGROUPS);
        }
    }
    let from = if apart { 0 } else { warpgroup };
    let mut codes = Codes {
        args,
        column0,
        from,
        end: strips,
        apart: if apart { 1 } else { WARPGROUPS },
        strip: if from < strips { from } else { 0 },
        round: 0,
    };
    // Codes never change: they are asked for before the kernel in front of this one has ended.
    // SAFETY: the caller's promise, for both.
    let mut words = unsafe { [codes.next(), codes.next()] };
    launch_dependents();
    let mut channel = thread;
    while channel < CHANNELS * args.strips {
        rolled();
        let of_all = (column0 + channel).min(g.k - 1);
        let scale = base.segments.scale_of(of_all);
        let bias = base.bias.as_ptr().cast_const().wrapping_add(of_all as usize);
        let has = !base.bias.is_null();
        // SAFETY: a number for each channel; this thread's channel of the table.
        unsafe {
            let bias = if has { ld_if(has, bias) } else { ABSENT };
            room.channels.add(2 * channel).write_x2([scale, bias]);
        }
        channel += opaque(128 * WARPGROUPS);
    }
    dependency_wait();
    let (mut image, mut rare) = (thread, false);
    while image < walk.images {
        rolled();
        let scales = base.scales.as_ptr().cast_const();
        // SAFETY: a number for each image; this thread's image of the table.
        unsafe {
            let scale: f32 = ld(scales.wrapping_add(image as usize));
            let divisor = Divisor::new(64.0 * scale);
            let [value, reciprocal, _] = divisor.words();
            room.images.add(2 * image).write_x2([value, reciprocal]);
            rare |= !divisor.is_ordinary();
        }
        image += opaque(128 * WARPGROUPS);
    }
    let rare = any(rare);
    if lane == 0 {
        // SAFETY: this warp's word.
        unsafe { room.rare.add(warp_id()).write(u32::from(rare)) };
    }
    sync_threads();

    let (mut place, mut parity, mut odd) = (0, 0, 0);
    let mut tile = walker + args.step * ring;
    while tile < walk.tiles {
        rolled();
        let here = ring * places + place;
        let mut strip = from;
        while strip < strips {
            rolled();
            let mut round = 0;
            while round < walk.rounds {
                rolled();
                let stage = here * walk.rounds + round;
                // SAFETY: the caller's promise, for both.
                unsafe {
                    multiply::<POSITIONS>(room, stage, parity, words[0], round > 0);
                    words[0] = codes.next();
                    if round + 1 < walk.rounds {
                        multiply::<POSITIONS>(room, stage + 1, parity, words[1], true);
                        words[1] = codes.next();
                    }
                }
                round += opaque(2);
            }
            if walk.rounds % 2 != 0 {
                // The codes of the next strip's first step were asked for in the second place.
                words.swap(0, 1);
            }
            wgmma::wait::<0>();
            // Opaque, so that what follows from it takes no registers meanwhile.
            let thread = opaque_here(thread);
            let (warpgroup, own) = (thread / 128, thread % 128);
            let (warp, lane) = (own / 32, own % 32);
            if lane == 0 && strip + codes.apart >= strips {
                // SAFETY: once for each phase of the place.
                unsafe { mbarrier::arrive(room.empty(here)) };
            }
            let head = room.heads.add((2 * warpgroup + odd) * HEAD_BYTES / 4 * POSITIONS);
            let staging = room.staging.add(warpgroup * staging_bytes(POSITIONS));
            if strip == from && (POSITIONS == 128 || own < POSITIONS) {
                let (line, column) = walk.by_line.div_rem(tile * POSITIONS + own);
                let (image, line) = walk.by_lines.div_rem(line);
                let there = image < walk.images && line < g.out[0] && column < g.out[1];
                let pixel = (image * g.out[0] + line) * g.out[1] + column;
                // SAFETY: an image; this thread's position of the table, which nobody reads any more.
                unsafe {
                    let divisor = room.images.add(2 * image.min(walk.images - 1)).read_x2();
                    head.add(2 * own).write_x2(divisor);
                    head.add(2 * POSITIONS + own).write(if there { pixel } else { u32::MAX });
                }
            }
            // Nobody reads the outputs before any more, and the table is there.
            sync_some(1 + warpgroup, 128);
            let of_block = room.channels.add(2 * (CHANNELS * strip + 16 * warp + lane / 4));
            // SAFETY: written and shown.
            let channels = unsafe { [of_block.read_x2(), of_block.add(16).read_x2()] };
            let finish = Finish {
                args,
                channels,
                scales: head.add(4 * (lane % 4)).cast(),
                extras: u32::from(!base.bias.is_null()) | base.activation as u32,
                f16: base.element as u32,
            };
            // Rows of the matrix that this lane gives the addresses of.
            let row = lane % 8 + 8 * (lane / 16);
            let to = staging.add(swizzle(row, 2 * warp + lane / 8 % 2));
            each_group!(POSITIONS, J => {
                let sums = wgmma::read::<J>().map(|sum| sum.to_bits() as i32);
                let [a, b, c, d, e, f, g, h] = sums;
                // SAFETY: the tables.
                let mut values = unsafe {
                    [finish.four([a, b, c, d], 16 * J), finish.four([e, f, g, h], 16 * J + 8)]
                };
                if opaque_here(finish.extras) != 0 {
                    values = values.map(|values| finish.extras(values));
                }
                let [[a, b, c, d], [e, f, g, h]] = values;
                let pairs = [(a, b), (c, d), (e, f), (g, h)];
                let to = to.add(16 * J * 2 * CHANNELS);
                // SAFETY: the rows are this warp's, for both.
                unsafe {
                    if opaque_here(finish.f16) == 0 {
                        stmatrix_x4_trans(to, pairs.map(|(low, high)| pack_bf16(low, high)));
                    } else {
                        stmatrix_x4_trans(to, pairs.map(|(low, high)| pack_f16(low, high)));
                    }
                }
            });
            sync_some(1 + warpgroup, 128);
            let own = opaque_here(own);
            let (piece, mut row) = (own % 8, own / 8);
            let channel = column0 + CHANNELS * strip + 8 * piece;
            let pixels = head.add(2 * POSITIONS);
            while row < POSITIONS {
                // SAFETY: written and shown; eight outputs of this thread, where there are any.
                unsafe {
                    let pixel = pixels.add(row).read();
                    let value: [u32; 4] = staging.add(swizzle(row, piece)).cast().read_x4();
                    let at = u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel);
                    let y = base.y.as_ptr().wrapping_add(2 * at as usize);
                    st_x4_if(pixel != u32::MAX && channel < g.k, y.cast(), value);
                }
                row += 16;
            }
            strip += codes.apart;
        }
        let thread = opaque_here(thread);
        if from >= strips && thread % 32 == 0 {
            // A warpgroup without a strip gives the place back all the same.
            let mut round = 0;
            while round < walk.rounds {
                rolled();
                // SAFETY: as above.
                unsafe { mbarrier::wait(room.full(here * walk.rounds + round), parity) };
                round += opaque(1);
            }
            // SAFETY: as above.
            unsafe { mbarrier::arrive(room.empty(here)) };
        }
        let later = tile + places * step;
        if thread % if apart { 128 } else { 128 * WARPGROUPS } == 0 && later < walk.tiles {
            // SAFETY: every warp that multiplies a tile arrives once; then the place is free.
            unsafe { mbarrier::wait(room.empty(here), parity) };
            let mut round = 0;
            while round < walk.rounds {
                rolled();
                // SAFETY: as above.
                unsafe { ask::<POSITIONS>(args, map, room, later, (here, round)) };
                round += opaque(1);
            }
        }
        tile += step;
        odd ^= 1;
        place += 1;
        if place == places {
            (place, parity) = (0, parity ^ 1);
        }
    }
    // SAFETY: written before the barrier.
    let rare = unsafe { [room.rare.read_x4(), room.rare.add(4).read_x4()] };
    if rare.as_flattened().iter().fold(0, |a, b| a | b) != 0 {
        // Every output was written.
        sync_threads();
        let (first, step) = (walker, args.step);
        // SAFETY: the outputs are this block's; the caller's promise.
        unsafe { again::<POSITIONS>(args, [first, step], column0, strips * CHANNELS) };
    }
}

/// Works out once more, an output a thread, those of images whose scale is not ordinary: of some tiles, and of
/// `channels` channels.
///
/// # Safety
///
/// As for [`run`], in all threads of the block, to which the outputs belong.
#[inline(always)]
unsafe fn again<const POSITIONS: u32>(
    args: &StripsArgs,
    [mut tile, step]: [u32; 2],
    column0: u32,
    channels: u32,
) {
    let (base, walk, g) = (&args.base, &args.walk, &args.base.geometry);
    let scales = base.scales.as_ptr().cast_const();
    while tile < walk.tiles {
        rolled();
        let mut i = thread_idx_x();
        while i < POSITIONS * channels {
            rolled();
            let (position, channel) = (tile * POSITIONS + i % POSITIONS, column0 + i / POSITIONS);
            i += opaque(128 * WARPGROUPS);
            let (line, column) = walk.by_line.div_rem(position);
            let (image, line) = walk.by_lines.div_rem(line);
            let there = image < walk.images && line < g.out[0] && column < g.out[1];
            let of_images = scales.wrapping_add(image.min(walk.images - 1) as usize);
            // SAFETY: a number for each image.
            let scale: f32 = unsafe { ld(of_images) };
            if !there || channel >= g.k || Divisor::new(64.0 * scale).is_ordinary() {
                continue;
            }
            let pixel = (image * g.out[0] + line) * g.out[1] + column;
            let (_, h, w) = g.corner(pixel);
            let from = g.pixel(h, w, 0, 0);
            let x = base.x.as_ptr().cast_const();
            let x =
                x.wrapping_add(image as usize * g.x_image as usize + from.unwrap_or(0) as usize);
            let row = channel as usize * base.row_words as usize;
            let codes = base.w.as_ptr().cast_const().wrapping_add(row);
            let (mut sum, mut c) = (0, 0);
            while c < g.c {
                rolled();
                let (word, bit) = code_place(c as usize);
                // SAFETY: a channel of a pixel, and its code of a packed row.
                let (value, codes) = unsafe {
                    let value = ld_u8_if(from.is_some(), x.wrapping_add(c as usize));
                    (value as i8, ld::<u32>(codes.wrapping_add(word)))
                };
                // The two bits, extended with their sign.
                sum += i32::from(value) * ((codes << (30 - bit)) as i32 >> 30);
                c += opaque(1);
            }
            let value = dequantise(sum, scale, base.segments.scale_of(channel));
            let bias = base.bias.as_ptr().cast_const().wrapping_add(channel as usize);
            let has = !base.bias.is_null();
            // SAFETY: a number for each channel; an output of this thread.
            unsafe {
                let bias = if has { ld_if(has, bias) } else { ABSENT };
                let value = finish_cheap(value, bias, ABSENT, base.activation);
                let at = u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel);
                store(base, at as usize, value);
            }
        }
        tile += step;
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident;)*) => { $(
        /// # Safety
        ///
        /// As for [`run`].
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: StripsArgs) {
            // SAFETY: the caller's promise.
            unsafe { run::<{ $kernel::POSITIONS }>(&args, parameter_address!($symbol)) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTernaryStrips conv2d_ternary_strips;
    Conv2dTernaryStrips96 conv2d_ternary_strips96;
}
