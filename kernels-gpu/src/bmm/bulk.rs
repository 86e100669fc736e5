//! bf16 and f16 on a Hopper GPU's tensor cores, large: slices come by the copy engine.

use contract::bmm::{Args, BULK_BARRIER_BYTES, BULK_BOX, BULK_SQUARE, BULK_WIDE, finish};

use super::source::Float;
use super::target::Target;
use super::write::{prefetch_tile, write_column};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::mem::{ld_or_zero_x4, st_x4};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::tensor::{copy_tile, prefetch_map};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::warp::lane_id;
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor, declare};
use crate::tile::hopper::{
    BLOCK, BLOCK_BYTES, DEPTH, Half, for_each_packed, for_each_sum, products,
};
use crate::tile::walk::tile_at;

/// Bytes of a parameter's map.
const MAP_BYTES: u64 = 128;

/// Makes the tiles of this block, one of every `grid_dim_x()`: 64 rows for each of its `GROUPS` warpgroups, `N` columns.
/// `maps`: the address of the parameter, which starts with the maps.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling, or fewer; `args` says the truth, `k` is not 0, and
/// the maps are those of `A` and `B`; `C` overlaps neither.
#[inline(always)]
pub(super) unsafe fn bulk<E: Half, const GROUPS: u32, const N: u32, const STAGES: u32>(
    args: &Args,
    maps: u64,
    element: Float<false>,
) {
    const { assert!(BLOCK == BULK_BOX && 16 * STAGES <= BULK_BARRIER_BYTES) };
    const { assert!(N == 192 && (GROUPS == 2 || GROUPS == 3) || N == 256 && GROUPS == 2) };
    declare();
    launch_dependents();
    let (rows, consumers) = (GROUPS * BLOCK, GROUPS * 128);
    let blocks_n = N / BLOCK;
    let slice_bytes = (GROUPS + blocks_n) * BLOCK_BYTES;
    let (tiles_m, tiles_n) = (args.m.div_ceil(rows), args.n.div_ceil(N));
    let per_matrix = tiles_m * tiles_n;
    let tiles = per_matrix * args.batch;
    let slices = args.k.div_ceil(DEPTH);
    let base = dynamic_shared_mem::<u8>();
    let barriers: Barrier = base.cast();
    let ring = base.add(BULK_BARRIER_BYTES);
    let ring = ring.add(ring.addr().wrapping_neg() % ATOM_BYTES);
    let scratch = ring.add(STAGES * slice_bytes);
    let thread = thread_idx_x();
    let mn_major = [args.a.transposed != 0, args.b.transposed == 0];
    let place = |index: u32| {
        let batch = index / per_matrix;
        let [tile_m, tile_n] = tile_at(index - batch * per_matrix, tiles_m, tiles_n);
        (batch, tile_m * rows, tile_n * N)
    };
    if thread == consumers {
        let mut i = 0;
        while i < STAGES {
            // SAFETY: this thread alone, before the barrier.
            unsafe {
                mbarrier::init(barriers.add(i), 1);
                mbarrier::init(barriers.add(STAGES + i), 4 * GROUPS);
            }
            i += 1;
        }
        mbarrier::show_new();
        // SAFETY: maps.
        unsafe {
            prefetch_map(maps);
            prefetch_map(maps + MAP_BYTES);
        }
    }
    sync_threads();
    dependency_wait();
    let (mut turn, mut parity) = (0, 0);
    let mut index = block_idx_x();
    if thread >= consumers {
        match (GROUPS, N) {
            (3, _) => wgmma::give_registers::<{ BULK_SQUARE[1] }>(),
            (_, 256) => wgmma::give_registers::<{ BULK_WIDE[1] }>(),
            _ => {}
        }
        if thread != consumers {
            return;
        }
        while index < tiles {
            let (batch, row0, column0) = place(index);
            let batch_a = if args.a.stride == 0 { 0 } else { batch };
            let batch_b = if args.b.stride == 0 { 0 } else { batch };
            let mut slice = 0;
            while slice < slices {
                let to = ring.add(turn * slice_bytes);
                let full = barriers.add(turn);
                let depth = slice * DEPTH;
                // SAFETY: barriers were made; the place is free.
                unsafe {
                    mbarrier::wait(barriers.add(STAGES + turn), parity ^ 1);
                    mbarrier::arrive_expecting(full, slice_bytes);
                    let mut i = 0;
                    while i < GROUPS {
                        let side = row0 + i * BLOCK;
                        let at = if mn_major[0] { [side, depth] } else { [depth, side] };
                        copy_tile(to.add(i * BLOCK_BYTES), maps, [at[0], at[1], batch_a, 0], full);
                        i += 1;
                    }
                    let mut i = 0;
                    while i < blocks_n {
                        let side = column0 + i * BLOCK;
                        let at = if mn_major[1] { [side, depth] } else { [depth, side] };
                        let to = to.add((GROUPS + i) * BLOCK_BYTES);
                        copy_tile(to, maps + MAP_BYTES, [at[0], at[1], batch_b, 0], full);
                        i += 1;
                    }
                }
                turn += 1;
                if turn == STAGES {
                    (turn, parity) = (0, parity ^ 1);
                }
                slice += 1;
            }
            index += grid_dim_x();
        }
        return;
    }
    match (GROUPS, N) {
        (3, _) => wgmma::take_registers::<{ BULK_SQUARE[2] }>(),
        (_, 256) => wgmma::take_registers::<{ BULK_WIDE[2] }>(),
        _ => {}
    }
    let reads = <Float<false> as Target>::reads(args.beta);
    let group = thread / 128;
    while index < tiles {
        let (batch, row0, column0) = place(index);
        if reads {
            // SAFETY: the caller's promise.
            unsafe {
                prefetch_tile(
                    args,
                    2,
                    (batch, row0, column0),
                    (args.m, args.n),
                    (rows, N),
                    (thread, consumers),
                );
            }
        }
        let (mut slice, mut before) = (0, 0);
        while slice < slices {
            let at = ring.add(turn * slice_bytes);
            let a = Descriptor::new(at.add(group * BLOCK_BYTES), BLOCK_BYTES, ATOM_BYTES);
            let b = Descriptor::new(at.add(GROUPS * BLOCK_BYTES), BLOCK_BYTES, ATOM_BYTES);
            // SAFETY: the barriers were made; the slice was waited for.
            unsafe {
                mbarrier::wait(barriers.add(turn), parity);
                match mn_major {
                    [false, false] => products::<E, N, 0, 0>(a, b, slice > 0),
                    [false, true] => products::<E, N, 0, 1>(a, b, slice > 0),
                    [true, false] => products::<E, N, 1, 0>(a, b, slice > 0),
                    [true, true] => products::<E, N, 1, 1>(a, b, slice > 0),
                }
            }
            wgmma::commit();
            wgmma::wait::<1>();
            if slice > 0 && lane_id() == 0 {
                // SAFETY: once a phase; the products of the slice before are done.
                unsafe { mbarrier::arrive(barriers.add(STAGES + before)) };
            }
            before = turn;
            turn += 1;
            if turn == STAGES {
                (turn, parity) = (0, parity ^ 1);
            }
            slice += 1;
        }
        wgmma::wait::<0>();
        if lane_id() == 0 {
            // SAFETY: as above.
            unsafe { mbarrier::arrive(barriers.add(STAGES + before)) };
        }
        let base = args.c.addr.cast::<u16>().as_ptr();
        let base = base.wrapping_add((u64::from(batch) * args.c.stride) as usize);
        let at = |row: u32, column: u32| {
            let at = u64::from(row0 + row) * args.c.ld + u64::from(column0 + column);
            base.wrapping_add(at as usize)
        };
        let there = |row, column| row0 + row < args.m && column0 + column < args.n;
        let put = |row: u32, column: u32, words| {
            if there(row, column) {
                // SAFETY: inside; elements of this tile are this block's.
                unsafe { st_x4(at(row, column).cast(), words) };
            }
        };
        let (alpha, beta) = (f32::from_bits(args.alpha), f32::from_bits(args.beta));
        let whole = args.c.unit == 16;
        if whole && !reads {
            for_each_packed::<E, N>(alpha, put);
        } else {
            // SAFETY: the place is the consumers'.
            unsafe {
                for_each_sum::<N, 1>(
                    scratch,
                    whole,
                    |row, column| {
                        let there = whole && there(row, column);
                        ld_or_zero_x4(there, at(row, column).cast_const().cast())
                    },
                    |row, column, sums, old| {
                        let sums = [sums.read_x4(), sums.add(4).read_x4()];
                        let words = core::array::from_fn(|i| {
                            let [low, high] = [0, 1].map(|j| {
                                let old = E::widen((old[i] >> (16 * j)) as u16);
                                finish(alpha, sums[i / 2][i % 2 * 2 + j], beta, old)
                            });
                            E::pack(low, high)
                        });
                        put(row, column, words);
                    },
                    |row, column, sums: [f32; 1]| {
                        write_column(args, element, batch, (row0 + row, column0 + column), sums);
                    },
                );
            }
        }
        index += grid_dim_x();
    }
}
