//! f16 and bf16 on a Hopper GPU's tensor cores, by square tiles: see [`contract::conv2d::points`].
//!
//! One thread has the copy engine bring the weights of each step, one of another warp its pixels: 128 by 64 terms
//! ("k-major") and 64 terms by 64 or 128 output channels ("mn-major"), swizzled as [`crate::arch::wgmma`] wants them. They
//! meet those who multiply at barriers of each place of a ring, so the steps of the next tiles come all the time. The
//! warpgroups take tiles in turn: while one writes its outputs to shared memory, from where the copy engine takes
//! them, the other multiplies. What is added to the outputs comes to the same place, while products run.

use contract::conv2d::points::{
    BARRIER_BYTES, BLOCK, CONSUMERS, PIXEL_BYTES, POSITIONS, PointsArgs, Square, TABLE_BYTES, Tiles,
};
use contract::conv2d::{
    ABSENT, Activation, Conv2dPointsBf16, Conv2dPointsF16, Conv2dPointsNarrowBf16,
    Conv2dPointsNarrowF16,
};
use contract::launch::Kernel;

use super::half16::{BFloat, Half16, IeeeHalf};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque_here;
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::mem::ld_nc_if;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::tensor::{
    commit_stores, copy_pixels, copy_tile, parameter_address, prefetch_map, store_tile,
    wait_stores_read,
};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor};
use crate::tile::hopper::{BLOCK_BYTES, each_group};

/// Bytes of a parameter's map.
const MAP_BYTES: u64 = 128;
/// Bytes of a block of output channels of a tile's outputs.
const BOX_BYTES: u32 = POSITIONS * BLOCK * 2;

/// A place of the ring, and the parity of its barriers' phase.
#[derive(Clone, Copy)]
struct Turn {
    place: u32,
    parity: u32,
}

impl Turn {
    const FIRST: Self = Self { place: 0, parity: 0 };

    #[inline(always)]
    fn next(self, places: u32) -> Self {
        let last = self.place + 1 == places;
        let place = if last { 0 } else { self.place + 1 };
        Self { place, parity: self.parity ^ u32::from(last) }
    }

    /// The turn so many later.
    #[inline(always)]
    fn skip(self, turns: u32, places: u32) -> Self {
        let at = self.place + turns;
        Self { place: at % places, parity: self.parity ^ (at / places % 2) }
    }
}

/// Shared memory of a block.
#[derive(Clone, Copy)]
struct Room {
    square: Square,
    barriers: Barrier,
    biases: Shared<f32>,
    ring: Shared<u8>,
}

impl Room {
    #[inline(always)]
    fn new(square: Square) -> Self {
        let base = dynamic_shared_mem::<u8>();
        let ring = base.add(TABLE_BYTES);
        let ring = ring.add(ring.addr().wrapping_neg() % ATOM_BYTES);
        Self { square, barriers: base.cast(), biases: base.add(BARRIER_BYTES).cast(), ring }
    }

    /// Pixels of a step; its weights are [`PIXEL_BYTES`] further.
    #[inline(always)]
    fn step(&self, turn: Turn) -> Shared<u8> {
        self.ring.add(turn.place * self.square.step_bytes())
    }

    /// Outputs of a warpgroup.
    #[inline(always)]
    fn outputs(&self, warpgroup: u32) -> Shared<u8> {
        let steps = self.square.stages * self.square.step_bytes();
        self.ring.add(steps + warpgroup * self.square.output_bytes())
    }

    /// Ends a phase when a step is there.
    #[inline(always)]
    fn full(&self, turn: Turn) -> Barrier {
        self.barriers.add(turn.place)
    }

    /// Ends a phase when the four warps that multiply a step have used it.
    #[inline(always)]
    fn empty(&self, turn: Turn) -> Barrier {
        self.barriers.add(self.square.stages + turn.place)
    }

    /// Ends a phase when a warpgroup may multiply: the other one has waited for all that its tile before takes, so
    /// that neither is more than a phase away from a barrier that it waits for.
    #[inline(always)]
    fn may_multiply(&self, warpgroup: u32) -> Barrier {
        self.barriers.add(2 * self.square.stages + warpgroup)
    }

    /// Ends a phase when what is added to a tile of a warpgroup is there.
    #[inline(always)]
    fn added(&self, warpgroup: u32) -> Barrier {
        self.barriers.add(2 * self.square.stages + 2 + warpgroup)
    }

    /// Makes the barriers.
    ///
    /// # Safety
    ///
    /// One thread calls it, before a barrier of the block.
    #[inline(always)]
    unsafe fn init(&self) {
        let mut place = 0;
        while place < self.square.stages {
            let turn = Turn { place, parity: 0 };
            // SAFETY: the caller's promise.
            unsafe {
                mbarrier::init(self.full(turn), 2);
                mbarrier::init(self.empty(turn), 4);
            }
            place += 1;
        }
        let mut warpgroup = 0;
        while warpgroup < 2 {
            // SAFETY: the caller's promise.
            unsafe {
                mbarrier::init(self.may_multiply(warpgroup), 128);
                mbarrier::init(self.added(warpgroup), 1);
            }
            warpgroup += 1;
        }
        mbarrier::show_new();
    }
}

/// A tile: its first position, its first output channel of its group, its group.
struct Tile {
    first: u32,
    column0: u32,
    group: u32,
}

impl Tile {
    #[inline(always)]
    fn of(square: Square, walk: &Tiles, index: u32) -> Self {
        let (rest, column) = walk.by_columns.div_rem(index);
        let (group, position) = walk.by_positions.div_rem(rest);
        Self { first: position * POSITIONS, column0: column * BLOCK * square.blocks, group }
    }
}

/// A block for each multiprocessor at most, tiles of `BLOCKS` blocks of output channels; `map` is the address of the
/// parameter, which starts with the maps.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with at most a block for each tile, the pointers of `args` cover the contract's
/// table, and the maps are the contract's.
#[inline(always)]
unsafe fn run<H: Half16, const BLOCKS: u32>(args: &PointsArgs, map: u64) {
    wgmma::declare();
    let (room, thread) = (Room::new(Square::of(BLOCKS)), thread_idx_x());
    if thread == CONSUMERS {
        // SAFETY: this thread alone, before the barrier; the maps.
        unsafe {
            room.init();
            prefetch_map(map + MAP_BYTES);
        }
    }
    if thread == CONSUMERS + 32 {
        // SAFETY: a map.
        unsafe { prefetch_map(map) };
    }
    sync_threads();
    // SAFETY: the caller's promise, in the threads that each is for.
    unsafe {
        if thread < CONSUMERS {
            dependency_wait();
            consume::<H, BLOCKS>(args, map, room);
        } else if thread == CONSUMERS {
            bring::<true>(args, map + MAP_BYTES, room);
            launch_dependents();
        } else if thread == CONSUMERS + 32 {
            dependency_wait();
            bring::<false>(args, map, room);
        }
    }
}

/// Brings the weights, or the pixels, of the block's steps.
///
/// # Safety
///
/// As for [`run`], in one thread; `map` is that of what is brought. Pixels: after the wait for the kernel in front.
#[inline(always)]
unsafe fn bring<const WEIGHTS: bool>(args: &PointsArgs, map: u64, room: Room) {
    let (walk, g, square) = (&args.walk, &args.base.geometry, room.square);
    let (mut turn, mut index) = (Turn::FIRST, block_idx_x());
    while index < walk.tiles {
        let tile = Tile::of(square, walk, index);
        let (line, column) = walk.by_line.div_rem(tile.first);
        let (image, line) = walk.by_lines.div_rem(line);
        let [h, w] = [(line, 0), (column, 1)]
            .map(|(at, axis)| (at * g.stride[axis] as u32).wrapping_sub(g.pad[axis] as u32));
        let (mut channel, mut r, mut s, mut tap) = (0, 0, 0, 0);
        let mut left = walk.steps;
        while left > 0 {
            let (full, to) = (room.full(turn), room.step(turn));
            // SAFETY: the barriers were made; once for each phase of the place, which is free. What is past the last
            // channel or output channel is zeros.
            unsafe {
                mbarrier::wait(room.empty(turn), turn.parity ^ 1);
                if WEIGHTS {
                    mbarrier::arrive_expecting(full, square.blocks * BLOCK_BYTES);
                    let mut block = 0;
                    while block < square.blocks {
                        let to = to.add(PIXEL_BYTES + block * BLOCK_BYTES);
                        let at = [tile.column0 + block * BLOCK, channel, tap, tile.group];
                        copy_tile(to, map, at, full);
                        block += 1;
                    }
                } else {
                    mbarrier::arrive_expecting(full, PIXEL_BYTES);
                    let at = [tile.group * g.c + channel, w, h, image];
                    let further = [s * g.dilation[1] as u32, r * g.dilation[0] as u32];
                    copy_pixels(to, map, at, further.map(|further| further as u16), full);
                }
            }
            turn = turn.next(square.stages);
            (tap, s) = (tap + 1, s + 1);
            if s == g.s {
                (r, s) = (r + 1, 0);
            }
            if tap == g.taps {
                (channel, r, tap) = (channel + 64, 0, 0);
            }
            left -= 1;
        }
        index += grid_dim_x();
    }
}

/// Multiplies every other tile of the block and writes it.
///
/// # Safety
///
/// As for [`run`], in all of the [`CONSUMERS`], after the wait for the kernel in front.
#[inline(always)]
unsafe fn consume<H: Half16, const BLOCKS: u32>(args: &PointsArgs, map: u64, room: Room) {
    const { assert!(POSITIONS == 128 && (BLOCKS == 1 || BLOCKS == 2)) };
    let (base, walk, g) = (&args.base, &args.walk, &args.base.geometry);
    let (square, places) = (room.square, room.square.stages);
    let (warpgroup, lane, own) = (thread_idx_x() / 128, lane_id(), thread_idx_x() % 128);
    let outputs = room.outputs(warpgroup);
    let biases = room.biases.add(warpgroup * BLOCKS * BLOCK);
    let adds = !base.residual.is_null();
    let (mut turn, mut index, mut parity) = (Turn::FIRST, block_idx_x(), 0);
    if warpgroup != 0 {
        (turn, index) = (turn.skip(walk.steps, places), index + grid_dim_x());
    }
    while index < walk.tiles {
        let tile = Tile::of(square, walk, index);
        let channel = tile.group * g.k + tile.column0;
        // Whether the second block has output channels.
        let wide = BLOCKS == 2 && tile.column0 + BLOCK < g.k;
        if own == 0 {
            wait_stores_read();
            if adds {
                let there = room.added(warpgroup);
                // SAFETY: the barrier was made; the place is free, of this tile's outputs.
                unsafe {
                    mbarrier::arrive_expecting(there, square.output_bytes());
                    let mut block = 0;
                    while block < BLOCKS {
                        let at = [tile.column0 + block * BLOCK, tile.group, tile.first, 0];
                        copy_tile(outputs.add(block * BOX_BYTES), map + 3 * MAP_BYTES, at, there);
                        block += 1;
                    }
                }
            }
        }
        let there = own < BLOCKS * BLOCK && tile.column0 + own < g.k && !base.bias.is_null();
        let bias = base.bias.as_ptr().cast_const().wrapping_add((channel + own) as usize);
        // SAFETY: a number for each output channel.
        let bias = unsafe { ld_nc_if(there, bias) };
        // SAFETY: the barriers were made; the warpgroups take turns, the first one begins.
        unsafe { mbarrier::wait(room.may_multiply(warpgroup), parity ^ warpgroup ^ 1) };
        let (mut before, mut step) = (turn, 0);
        while step < walk.steps {
            // SAFETY: the barriers were made; every warp takes part in every phase.
            unsafe { mbarrier::wait(room.full(turn), turn.parity) };
            let at = room.step(turn);
            let a = [0, BLOCK_BYTES].map(|block| Descriptor::new(at.add(block), 0, ATOM_BYTES));
            let b = Descriptor::new(at.add(PIXEL_BYTES), BLOCK_BYTES, ATOM_BYTES);
            wgmma::fence();
            let mut k = 0;
            while k < 4 {
                // 16 terms further: 32 bytes of each row of a, 16 rows of b.
                let (a, b) = (a.map(|a| a.advance_inside(32 * k)), b.advance_inside(2048 * k));
                // SAFETY: the step is there until this warp gives it back.
                unsafe {
                    if BLOCKS == 2 {
                        H::product_square(a, b, step > 0 || k > 0);
                    } else {
                        H::product_tall(a, b, step > 0 || k > 0);
                    }
                }
                k += 1;
            }
            wgmma::commit();
            wgmma::wait::<1>();
            if step > 0 && lane == 0 {
                // SAFETY: once for each phase; the products of the step before are done.
                unsafe { mbarrier::arrive(room.empty(before)) };
            }
            before = turn;
            turn = turn.next(places);
            step += 1;
        }
        // By every thread: LLVM would copy the wait into both arms of a condition on the lane.
        // SAFETY: once for each phase.
        unsafe { mbarrier::arrive(room.may_multiply(1 - warpgroup)) };
        wgmma::wait::<0>();
        if lane == 0 {
            // SAFETY: as above.
            unsafe { mbarrier::arrive(room.empty(before)) };
        }
        if own < BLOCKS * BLOCK {
            // SAFETY: this thread's own number, which nobody reads any more.
            unsafe { biases.add(own).write(if there { bias } else { ABSENT }) };
        }
        if adds {
            // SAFETY: the barrier was made; a phase for each tile.
            unsafe { mbarrier::wait(room.added(warpgroup), parity) };
        }
        parity ^= 1;
        // The place of the outputs is free, the biases are written.
        sync_some(1 + warpgroup, 128);
        // SAFETY: both are this warpgroup's.
        unsafe {
            if adds {
                round_outputs::<H, BLOCKS, true>(base.activation, wide, biases, outputs);
            } else {
                round_outputs::<H, BLOCKS, false>(base.activation, wide, biases, outputs);
            }
        }
        wgmma::proxy_fence();
        sync_some(1 + warpgroup, 128);
        if own == 0 {
            // SAFETY: the outputs are written and shown; they are this tile's.
            unsafe {
                let map = map + 2 * MAP_BYTES;
                store_tile(outputs, map, [tile.column0, tile.group, tile.first, 0]);
                if wide {
                    let at = [tile.column0 + BLOCK, tile.group, tile.first, 0];
                    store_tile(outputs.add(BOX_BYTES), map, at);
                }
            }
            commit_stores();
        }
        turn = turn.skip(walk.steps, places);
        index += 2 * grid_dim_x();
    }
    if own == 0 {
        wait_stores_read();
    }
}

/// Finishes the sums of a tile and writes them, rounded, to rows of 64 channels of a position each, swizzled, those of the
/// second block of output channels, where it has any (`wide`), behind the others.
///
/// # Safety
///
/// `outputs` is the warpgroup's, and holds what is added where it `ADDS`; its `biases` are written.
#[inline(always)]
unsafe fn round_outputs<H: Half16, const BLOCKS: u32, const ADDS: bool>(
    activation: Activation,
    wide: bool,
    biases: Shared<f32>,
    outputs: Shared<u8>,
) {
    let relu = opaque_here(activation as u32) == Activation::Relu as u32;
    // SAFETY: the caller's promise. A line of code without branches, so that one group does not wait for another.
    unsafe {
        round_block::<H, 0, ADDS>(relu, biases, outputs);
        if BLOCKS == 2 && wide {
            round_block::<H, 4, ADDS>(relu, biases.add(BLOCK), outputs.add(BOX_BYTES));
        }
    }
}

/// The same for a block of output channels, whose groups of accumulators start with `FIRST`.
///
/// # Safety
///
/// As for [`round_outputs`].
#[inline(always)]
unsafe fn round_block<H: Half16, const FIRST: u32, const ADDS: bool>(
    relu: bool,
    biases: Shared<f32>,
    outputs: Shared<u8>,
) {
    let lane = lane_id();
    let row = outputs.add((16 * (warp_id() % 4) + lane / 4) * 128 + 4 * (lane % 4));
    let biases = biases.add(2 * (lane % 4));
    let pieces: [Shared<u32>; 8] =
        core::array::from_fn(|piece| row.add(16 * (piece as u32 ^ (lane / 4))).cast());
    // All that is read, before anything is written: accesses keep their order. Where something is added there are
    // registers for less of it.
    let parts = [0, 4].map(|piece| Part { pieces, biases: biases.add(8 * piece) });
    let of = |piece: usize| {
        // SAFETY: two of the warpgroup's biases each.
        core::array::from_fn(|i| unsafe { biases.add(8 * (piece + i) as u32).read_x2() })
    };
    let known: [[[f32; 2]; 4]; 2] = if ADDS { [[[0.0; 2]; 4]; 2] } else { [of(0), of(4)] };
    // SAFETY: the caller's promise.
    unsafe {
        round_part::<H, FIRST, 0, 0, ADDS>(relu, &parts[0], known[0]);
        round_part::<H, FIRST, 0, 1, ADDS>(relu, &parts[1], known[1]);
        round_part::<H, FIRST, 8, 0, ADDS>(relu, &parts[0], known[0]);
        round_part::<H, FIRST, 8, 1, ADDS>(relu, &parts[1], known[1]);
    }
}

/// Half of a block of output channels, as a lane has it.
struct Part {
    /// Its words of each eight output channels of the block.
    pieces: [Shared<u32>; 8],
    /// Its biases of the half.
    biases: Shared<f32>,
}

/// The same for 64 of the positions and half, `PART`, of the output channels, with groups of accumulators from
/// `FIRST + BELOW` on; the biases are `known` where nothing is added.
///
/// # Safety
///
/// As for [`round_outputs`].
#[inline(always)]
unsafe fn round_part<
    H: Half16,
    const FIRST: u32,
    const BELOW: u32,
    const PART: u32,
    const ADDS: bool,
>(
    relu: bool,
    part: &Part,
    known: [[f32; 2]; 4],
) {
    // Eight positions, and eight more.
    let place = |piece: usize, half: usize| {
        part.pieces[4 * PART as usize + piece].byte_add(BELOW * 1024 + 1024 * half as u32)
    };
    let (mut biases, mut added) = (known, [[0; 2]; 4]);
    if ADDS {
        // SAFETY: two of the warpgroup's biases each; this lane's own words, here and below.
        unsafe {
            biases = core::array::from_fn(|i| part.biases.add(8 * i as u32).read_x2());
            added = core::array::from_fn(|i| [place(i, 0).read(), place(i, 1).read()]);
        }
    }
    each_group!(256, J => {
        if J / 2 == (FIRST + BELOW + 2 * PART) / 2 {
            let sums = wgmma::read::<J>();
            let mut i = 0;
            while i < 4 {
                let (piece, half) = (2 * (J as usize % 2) + i / 2, i % 2);
                let more = H::unpack(added[piece][half]);
                let value = |e: usize| {
                    let sum = sums[2 * i + e] + biases[piece][e];
                    let value = if ADDS { sum + more[e] } else { sum };
                    if relu & (value < 0.0) { 0.0 } else { value }
                };
                // SAFETY: as above.
                unsafe { place(piece, half).write(H::pack(value(0), value(1))) };
                i += 1;
            }
        }
    });
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty: $blocks:literal;)*) => { $(
        /// # Safety
        ///
        /// As for [`run`].
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $symbol(args: PointsArgs) {
            // SAFETY: the caller's promise.
            unsafe { run::<$ty, $blocks>(&args, parameter_address!($symbol)) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dPointsBf16 conv2d_points_bf16 BFloat: 2;
    Conv2dPointsNarrowBf16 conv2d_points_narrow_bf16 BFloat: 1;
    Conv2dPointsF16 conv2d_points_f16 IeeeHalf: 2;
    Conv2dPointsNarrowF16 conv2d_points_narrow_f16 IeeeHalf: 1;
}
