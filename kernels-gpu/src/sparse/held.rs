//! Few inputs on the tensor cores of a Hopper GPU: a warp holds the inputs of a tile's columns in registers while that tile
//! of one group of rows after the other passes. So a block reads inputs once for all of its groups.
//!
//! Tiles come as in [`super::bulk`], but from one stream after the other. The sums of a group are 16 rows by the inputs;
//! each warp keeps its own in shared memory, and the block adds them up at the end. Or a pair of blocks shares the tiles of as
//! many groups as two would have: where groups divide badly among blocks they then divide better.

use contract::launch::Kernel;
use contract::sparse::{
    ALIGN, BLOCK, HELD_PLACES, HELD_WARPS, HeldArgs, LinearArgs, PAIR_WARPS, PERIOD, ROWS,
    SparseBf16Held8, SparseBf16Held8Pair, SparseBf16Held16, SparseBf16Held16Pair, WAYS, groups,
    held_warp_bytes, steps,
};

use super::mma::fragment;
use super::stream::{UNIT, prefix};
use crate::arch::cluster::{
    arrive_cluster, arrive_cluster_relaxed, cluster_rank, wait_cluster, write_to,
};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::mem::{ld_nc_if, ld_or_zero_x4, ld_x2_if, st};
use crate::arch::mma::mma_bf16;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, sync_warp, warp_id};
use crate::arch::wgmma::proxy_fence;

/// Most places.
const MOST: usize = HELD_PLACES as usize;

/// One of a warp's tiles: its number in the matrix, and the group of the block that it belongs to.
#[derive(Clone, Copy)]
struct Walk {
    tile: u32,
    group: u32,
}

/// The tiles of a warp: of each of its column tiles, that of every group of the block.
struct Tiles<'a> {
    memory: Shared<u8>,
    /// Bytes of a place, and how many there are.
    place: u32,
    places: u32,
    linear: &'a LinearArgs,
    /// Tiles of a group, groups of the block, tiles that are left.
    per_group: u32,
    rows: u32,
    left: u32,
    /// The masks of the next tile.
    words: [u32; 2],
    /// The tile that takes the place of the present one, and where its units start and end.
    far: Walk,
    range: [u32; 2],
    slot: u32,
    parity: u32,
}

impl<'a> Tiles<'a> {
    #[inline(always)]
    fn step(&self, at: Walk) -> Walk {
        if at.group + 1 < self.rows {
            return Walk { tile: at.tile + self.per_group, group: at.group + 1 };
        }
        Walk { tile: at.tile + 1 - at.group * self.per_group, group: 0 }
    }

    #[inline(always)]
    fn barrier(&self, slot: u32) -> Barrier {
        self.memory.add(8 * slot).cast()
    }

    #[inline(always)]
    fn at(&self, slot: u32) -> Shared<u8> {
        self.memory.add(8 * HELD_PLACES + slot * self.place)
    }

    /// Asks for the units of a tile.
    #[inline(always)]
    fn ask(&self, slot: u32, [begin, end]: [u32; 2]) {
        const PIECE: u32 = ALIGN as u32 * UNIT;
        if lane_id() == 0 {
            let bytes = (end - begin) * PIECE;
            proxy_fence();
            // SAFETY: the barrier was made; stored units; the place is free, and what the warp read there is read.
            unsafe {
                mbarrier::arrive_expecting(self.barrier(slot), bytes);
                let from = self
                    .linear
                    .values
                    .as_ptr()
                    .cast_const()
                    .wrapping_add(begin as usize * PIECE as usize);
                if bytes > 0 {
                    mbarrier::copy_bulk(self.at(slot), from, bytes, self.barrier(slot));
                }
            }
        }
    }

    /// Where the units of a tile start and end.
    #[inline(always)]
    fn range(&self, there: bool, tile: u32) -> [u32; 2] {
        // Of the lane that asks alone: a value that is the same in all of them is moved to the uniform registers at once,
        // which waits for it.
        let there = there && lane_id() == 0;
        let p = self.linear.starts.as_ptr().cast_const().wrapping_add(tile as usize);
        // SAFETY: a tile of the matrix, and the entry behind it.
        unsafe { [ld_nc_if(there, p), ld_nc_if(there, p.wrapping_add(1))] }
    }

    #[inline(always)]
    fn masks(&self, there: bool, tile: u32) -> [u32; 2] {
        let p = self.linear.masks.as_ptr().cast_const().cast::<[u32; 2]>();
        // SAFETY: a tile of the matrix.
        unsafe {
            ld_x2_if(there, p.wrapping_add((32 * u64::from(tile)) as usize + lane_id() as usize))
        }
    }

    /// Asks for the first of `left` tiles, from `far` on.
    ///
    /// # Safety
    ///
    /// The matrix obeys the contract and has these tiles; `memory` is the warp's.
    #[inline(always)]
    unsafe fn new(
        args: &'a HeldArgs,
        memory: Shared<u8>,
        (per_group, rows): (u32, u32),
        far: Walk,
        left: u32,
    ) -> Self {
        let linear = &args.linear;
        let (place, places) = (linear.ring, args.places);
        let (words, range, slot, parity) = ([0; 2], [0; 2], 0, 0);
        let mut tiles = Self {
            memory,
            place,
            places,
            linear,
            per_group,
            rows,
            left,
            words,
            far,
            range,
            slot,
            parity,
        };
        tiles.words = tiles.masks(left > 0, far.tile);
        let mut ranges = [[0; 2]; MOST + 1];
        let mut i = 0;
        while i <= MOST {
            ranges[i] = tiles.range((i as u32) < left.min(places + 1), tiles.far.tile);
            if (i as u32) < places {
                tiles.far = tiles.step(tiles.far);
            }
            i += 1;
        }
        if lane_id() == 0 {
            let mut slot = 0;
            while slot < HELD_PLACES {
                // SAFETY: the warp's own, which a barrier of the warp is behind.
                unsafe { mbarrier::init(tiles.barrier(slot), 1) };
                slot += 1;
            }
            mbarrier::show_new();
        }
        // Before the lane's own use too: the instruction that makes them is the warp's for racecheck.
        sync_warp();
        let mut i = 0;
        while i < MOST {
            if (i as u32) < left.min(places) {
                tiles.ask(i as u32, ranges[i]);
            }
            if i as u32 + 1 == places {
                tiles.range = ranges[i + 1];
            }
            i += 1;
        }
        tiles
    }

    /// The masks of a tile, and the addresses of its first units, once these are there; `next` is the one behind it.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    fn take(&mut self, next: u32) -> ([u32; 2], [u32; 2]) {
        let masks = self.words;
        self.words = self.masks(self.left > 1, next);
        let (before, _) = prefix([masks]);
        // SAFETY: the barrier was made, and nobody is two tiles of this place ahead.
        unsafe { mbarrier::wait(self.barrier(self.slot), self.parity) };
        let at = self.at(self.slot).addr() + UNIT * before[0];
        (masks, [at, at + UNIT * masks[0].count_ones()])
    }

    /// Behind the last unit of a tile: asks for the one that takes its place.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    fn taken(&mut self) {
        sync_warp();
        if self.left > self.places {
            self.ask(self.slot, self.range);
        }
        self.far = self.step(self.far);
        self.range = self.range(self.left > self.places + 1, self.far.tile);
        self.left -= 1;
        self.slot += 1;
        if self.slot == self.places {
            (self.slot, self.parity) = (0, 1 - self.parity);
        }
    }
}

/// The sums of `8 NT` inputs that a lane has of a group.
type Sums<const NT: usize> = [[f32; 4]; NT];

/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table; `x` is bf16, K a multiple of
/// 8, and there are at most `8 NT` inputs.
#[inline(always)]
unsafe fn held<const NT: usize, const EVEN: bool, const PAIR: bool, const WARPS: u32>(
    args: &HeldArgs,
) {
    launch_dependents();
    let (rank, blocks) = if PAIR { (cluster_rank(), 2) } else { (0, 1) };
    if PAIR {
        // What this block waits for before it writes to the other one: that that one has started.
        arrive_cluster_relaxed();
    }
    let (warp, lane) = (warp_id(), lane_id());
    let linear = &args.linear;
    let per_way = steps(linear.k as usize, 2) as u32;
    let per_group = per_way * WAYS as u32;
    let first_group = block_idx_x() / blocks * args.rows;
    let rows = args.rows.min(groups(linear.n as usize) as u32 - first_group);
    // The warp's tiles: of the block's or the pair's, group after group of each column tile, a part; of whole column tiles where
    // registers are few.
    let all = if EVEN { per_group * rows } else { per_group };
    let cut = |warp: u32| (rank * WARPS + warp) * all / (blocks * WARPS);
    let (begin, end) = (cut(warp), cut(warp + 1));
    let (column0, group0) = if EVEN { (begin / rows, begin % rows) } else { (begin, 0) };
    let count = if EVEN { end - begin } else { (end - begin) * rows };
    // Sums of the block, `[group][warp][NT][lane]` of four, then the places of the warps.
    let sums = dynamic_shared_mem::<f32>();
    let group_words = WARPS * NT as u32 * 128;
    let mine = sums.add(warp * NT as u32 * 128 + 4 * lane);
    let places = sums.add(args.rows * group_words).cast::<u8>();
    let places = places.add(warp * held_warp_bytes(args.places, linear.ring));
    let first = Walk { tile: (first_group + group0) * per_group + column0, group: group0 };
    // SAFETY: the warp's tiles.
    let mut tiles = unsafe { Tiles::new(args, places, (per_group, rows), first, count) };
    let x = linear.x.cast::<u16>().as_ptr().cast_const();
    // Eight columns of the lane's inputs from `32 j` of a column tile on; zeros where nothing is.
    let load = |tile: u32, j: u32| -> [[u32; 4]; NT] {
        let lane = opaque(lane);
        let way = tile / per_way;
        let column = (tile - way * per_way) * PERIOD as u32 + way * BLOCK as u32;
        let column = column + 32 * j + lane % 4 * 8;
        core::array::from_fn(|n| {
            let input = 8 * n as u32 + lane / 4;
            let there = input < linear.m && column < linear.k;
            let at = u64::from(input) * u64::from(linear.k) + u64::from(column);
            // SAFETY: eight columns of a row, aligned, since K is a multiple of 8.
            unsafe { ld_or_zero_x4(there, x.wrapping_add(at as usize).cast()) }
        })
    };
    // The weights are constants: what came before this kernel may still run.
    dependency_wait();
    // A group that the warp has no tile of.
    let mut i = opaque(count);
    while EVEN && i < rows {
        let group = (group0 + i) % rows;
        let mut n = 0;
        while n < NT {
            // SAFETY: this lane's own.
            unsafe { mine.add(group * group_words + 128 * n as u32).write_x4([0.0; 4]) };
            n += 1;
        }
        i = opaque(i + 1);
    }
    // So many tiles are left when it comes to a group again.
    let again = count.saturating_sub(rows);
    let (mut column_tile, mut group) = (opaque(column0), opaque(group0));
    let more = |left: u32, column: u32| if EVEN { left > 0 } else { column < end };
    let seen = |left: u32, column: u32| if EVEN { left <= again } else { column > begin };
    while more(tiles.left, column_tile) {
        let held: [[[u32; 4]; NT]; 8] = core::array::from_fn(|j| load(column_tile, j as u32));
        while group < rows && (!EVEN || tiles.left > 0) {
            let at = mine.add(group * group_words);
            let next = if group + 1 < rows {
                column_tile + (group + 1) * per_group
            } else {
                column_tile + 1
            };
            let (masks, mut units) = tiles.take(first_group * per_group + next);
            let mut acc: Sums<NT> = [[0.0; 4]; NT];
            if seen(tiles.left, column_tile) {
                // SAFETY: this lane's own, written with the column tile before.
                acc = core::array::from_fn(|n| unsafe { at.add(128 * n as u32).read_x4() });
            }
            let mut j = 0;
            while j < 8 {
                let mut s = 0;
                while s < 2 {
                    // SAFETY: stored units, where their bits are set.
                    let a = unsafe { fragment(masks, 4 * j + 2 * s, &mut units) };
                    let mut n = 0;
                    while n < NT {
                        acc[n] = mma_bf16(a, [held[j][n][2 * s], held[j][n][2 * s + 1]], acc[n]);
                        n += 1;
                    }
                    s += 1;
                }
                j += 1;
            }
            let mut n = 0;
            while n < NT {
                // SAFETY: this lane's own.
                unsafe { at.add(128 * n as u32).write_x4(acc[n]) };
                n += 1;
            }
            tiles.taken();
            group = opaque(group + 1);
        }
        (column_tile, group) = (opaque(column_tile + 1), opaque(0));
    }
    sync_threads();
    if PAIR {
        let behind = sums.add(args.rows * group_words).cast::<u8>();
        let behind = behind.add(WARPS * held_warp_bytes(args.places, linear.ring));
        let sums = (sums, behind.cast());
        // SAFETY: the pair's groups; every warp's sums are written, and what the other block sends has its place.
        unsafe { add_up_pair::<NT, WARPS>(linear, (first_group, rows), sums, rank) };
        return;
    }
    // Four sums of a lane of each group at a time.
    let items = rows * NT as u32 * LANES;
    let mut item = thread_idx_x();
    while item < items {
        let (group, rest) = (item / (NT as u32 * LANES), item % (NT as u32 * LANES));
        let (n, lane) = (rest / LANES, rest % LANES);
        let from = sums.add(group * group_words + n * 128 + 4 * lane);
        let mut total = [0.0; 4];
        let mut warp = 0;
        while warp < WARPS {
            if EVEN || cut(warp) < cut(warp + 1) {
                // SAFETY: written before the barrier.
                let part = unsafe { from.add(warp * NT as u32 * 128).read_x4() };
                let mut i = 0;
                while i < 4 {
                    total[i] += part[i];
                    i += 1;
                }
            }
            warp += 1;
        }
        let mut i = 0;
        while i < 4 {
            let row = (first_group + group) * ROWS as u32 + lane / 4 + 8 * (i as u32 / 2);
            let input = 8 * n + 2 * (lane % 4) + i as u32 % 2;
            if row < linear.n && input < linear.m {
                let at = input as usize * linear.n as usize + row as usize;
                // SAFETY: y[input, row] belongs to this thread.
                unsafe { st(linear.y.as_ptr().wrapping_add(at), total[i]) };
            }
            i += 1;
        }
        item += WARPS * LANES;
    }
}

/// Adds the sums of both blocks of a pair, each of which has half of the outputs of the pair's `rows` groups and is sent the other's
/// part of them, to where the second of `sums` starts.
///
/// # Safety
///
/// As for [`held`], in both blocks, behind the barrier of the block after their warps have written the first of `sums`; both have
/// arrived once at the barrier of the cluster.
#[inline(always)]
unsafe fn add_up_pair<const NT: usize, const WARPS: u32>(
    linear: &LinearArgs,
    (first_group, rows): (u32, u32),
    (sums, received): (Shared<f32>, Shared<f32>),
    rank: u32,
) {
    let of = |item: u32| (item / (NT as u32 * LANES), item / LANES % NT as u32, item % LANES);
    // Four sums of a lane of a group: those of the block's warps.
    let total = |item: u32| -> [f32; 4] {
        let (group, n, lane) = of(item);
        let from = sums.add((group * WARPS * NT as u32 + n) * 128 + 4 * lane);
        let mut total = [0.0; 4];
        let mut warp = 0;
        while warp < WARPS {
            // SAFETY: written before the barrier.
            let part = unsafe { from.add(warp * NT as u32 * 128).read_x4() };
            total = core::array::from_fn(|i| total[i] + part[i]);
            warp += 1;
        }
        total
    };
    let half = rows * NT as u32 * LANES / 2;
    wait_cluster();
    let mut item = thread_idx_x();
    while item < half {
        let parts = total((1 - rank) * half + item);
        let mut i = 0;
        while i < 4 {
            // SAFETY: a place of its own in the other block, which has started and waits for this one.
            unsafe { write_to(1 - rank, received.add(i * half + item), parts[i as usize]) };
            i += 1;
        }
        item += WARPS * LANES;
    }
    arrive_cluster();
    let mut item = thread_idx_x();
    let mut own = [0.0; 4];
    if item < half {
        own = total(rank * half + item);
    }
    wait_cluster();
    while item < half {
        let (group, n, lane) = of(rank * half + item);
        let mut i = 0;
        while i < 4 {
            // SAFETY: sent before the barrier.
            let theirs = unsafe { received.add(i * half + item).read() };
            let row = (first_group + group) * ROWS as u32 + lane / 4 + 8 * (i / 2);
            let input = 8 * n + 2 * (lane % 4) + i % 2;
            if row < linear.n && input < linear.m {
                let at = input as usize * linear.n as usize + row as usize;
                // SAFETY: y[input, row] belongs to this thread.
                unsafe { st(linear.y.as_ptr().wrapping_add(at), own[i as usize] + theirs) };
            }
            i += 1;
        }
        item += WARPS * LANES;
        if item < half {
            own = total(rank * half + item);
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $nt:literal $even:literal $pair:literal $warps:tt;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: HeldArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe { held::<$nt, $even, $pair, $warps>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    sparse_bf16_held8 SparseBf16Held8 1 false false HELD_WARPS;
    sparse_bf16_held16 SparseBf16Held16 2 true false HELD_WARPS;
    sparse_bf16_held8_pair SparseBf16Held8Pair 1 true true PAIR_WARPS;
    sparse_bf16_held16_pair SparseBf16Held16Pair 2 true true PAIR_WARPS;
}
