//! Device side of [`contract::bit_linear`]: every block quantises the row for itself and makes the outputs
//! of its rows of weights.
//!
//! A warp works on sets of 16 rows, four lanes to a row, a row and the one eight further to a lane. In one
//! step each lane takes a chunk of both; the steps of a block, set after set, are dealt out to its warps
//! in runs of equal length ([`product`]). A sum that ends in a warp is added to the row's in shared
//! memory: sums are exact, so the order in which warps come does not show.
//!
//! Before the wait for the kernel in front a block asks for the weights of its first steps
//! ([`queue`]) and for the gains; then it only waits for the row.

pub(crate) mod product;
mod queue;
mod row;

use contract::activation::Activation;
use contract::bit_linear::{
    Args, BitLinearLong, BitLinearShort, FIXED_BYTES, Finish, LANES, MAX_K, MAX_ROWS_OF_BLOCK,
    SET_ROWS, SHORT_K, THREADS, WARPS, first_output,
};
use contract::launch::Kernel;
use contract::w2a8::{CHUNK, dequantise};

use crate::act_quant::held::{LONG, SHORT};
use crate::arch::block;
use crate::arch::grid::launch_dependents;
use crate::arch::mem::{ld, ld_if, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use product::multiply;
use queue::Queue;

/// Rows of a set that a lane works on.
pub(crate) const ROWS: usize = (SET_ROWS * LANES / 32) as usize;

const _: () = assert!(THREADS == block::THREADS && WARPS == block::WARPS && ROWS == 2);

/// The shared memory of a block, part by part.
#[derive(Clone, Copy)]
struct Memory {
    /// Of the norm: one word of each thread; then of the maximum and of the sum, one of each warp.
    scratch: Shared<f32>,
    /// One word of each row of weights.
    sums: Shared<u32>,
    /// Weights on their way.
    slots: Shared<u32>,
    /// The quantised row, in the order of `contract::w2a8`.
    acts: Shared<u8>,
}

impl Memory {
    #[inline(always)]
    fn new() -> Self {
        let scratch: Shared<f32> = dynamic_shared_mem();
        let sums = scratch.add(THREADS + 2 * WARPS).cast::<u32>();
        let acts = scratch.cast::<u8>().add(FIXED_BYTES);
        Self { scratch, sums, slots: sums.add(MAX_ROWS_OF_BLOCK), acts }
    }
}

/// What one block makes.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Outputs of the whole product.
    pub(crate) n: u32,
    /// Its first output.
    pub(crate) first: u32,
    /// Its outputs.
    pub(crate) outputs: u32,
    /// Its rows of weights: those of the outputs, then those of the factors of a gated product.
    pub(crate) rows: u32,
    /// Chunks of a row.
    pub(crate) chunks: u32,
    /// Steps of a row: `LANES` chunks each.
    pub(crate) groups: u32,
}

impl Tile {
    #[inline(always)]
    fn new(args: &Args) -> Self {
        let gated = args.finish >= Finish::Relu2 as u32;
        Self::of(args.n, args.k, if gated { 2 } else { 1 })
    }

    /// This block's share of `n` outputs of rows of `k`, each of so many rows of weights.
    #[inline(always)]
    pub(crate) fn of(n: u32, k: u32, rows_of_output: u32) -> Self {
        let first = first_output(n, block_idx_x(), grid_dim_x());
        let outputs = first_output(n, block_idx_x() + 1, grid_dim_x()) - first;
        Self::with(n, k, rows_of_output, [first, outputs])
    }

    /// The same of one of so many blocks.
    #[cfg(level_sm_90a)]
    #[inline(always)]
    pub(crate) fn of_block(n: u32, k: u32, rows_of_output: u32, [block, blocks]: [u32; 2]) -> Self {
        let first = first_output(n, block, blocks);
        let outputs = first_output(n, block + 1, blocks) - first;
        Self::with(n, k, rows_of_output, [first, outputs])
    }

    #[inline(always)]
    fn with(n: u32, k: u32, rows_of_output: u32, [first, outputs]: [u32; 2]) -> Self {
        let chunks = k.div_ceil(CHUNK as u32);
        let groups = chunks.div_ceil(LANES);
        Self { n, first, outputs, rows: rows_of_output * outputs, chunks, groups }
    }

    /// Where row `row` of the block stands in the matrix.
    #[inline(always)]
    pub(crate) fn row_of_matrix(&self, row: u32) -> u32 {
        let of_factor = row >= self.outputs;
        self.first + if of_factor { self.n + row - self.outputs } else { row }
    }

    /// The weight scales of output `i` of the block: of its row, and of that of its factor.
    #[inline(always)]
    fn gains(&self, args: &Args, i: u32) -> [f32; 2] {
        let row = self.first + i;
        [args.segments.scale_of(row), args.segments.scale_of(self.n + row)]
    }

    /// The steps of this warp, from the first to behind the last.
    #[inline(always)]
    fn steps(&self) -> (u32, u32) {
        self.steps_of(WARPS)
    }

    /// The same in a block of so many warps.
    #[inline(always)]
    pub(crate) fn steps_of(&self, warps: u32) -> (u32, u32) {
        let steps = self.rows.div_ceil(SET_ROWS) * self.groups;
        (warp_id() * steps / warps, (warp_id() + 1) * steps / warps)
    }
}

/// Row `r` of this lane's rows in set `set`.
#[inline(always)]
pub(crate) fn row_of_lane(set: u32, r: usize) -> u32 {
    set * SET_ROWS + lane_id() / LANES + 32 / LANES * r as u32
}

/// The kernel for rows of which a thread holds `HELD` elements, and, unless `WHOLE`, reads others again.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with at most `args.n` blocks, of at most `MAX_ROWS_OF_BLOCK` rows
/// of weights; `args.k` is at most what the kernel says; the pointers cover the contract's table, the
/// weights aligned to 16 bytes.
#[inline(always)]
unsafe fn bit_linear<const HELD: usize, const WHOLE: bool>(args: &Args) {
    let (memory, tile) = (Memory::new(), Tile::new(args));
    let (first, end) = tile.steps();
    // SAFETY: the launch contract, handed on.
    let mut queue = unsafe { Queue::new(args, memory.slots, tile, first, end) };
    queue.fill();
    let mut row = thread_idx_x();
    while row < tile.rows {
        // SAFETY: row < MAX_ROWS_OF_BLOCK; the first reader is behind a barrier.
        unsafe { memory.sums.add(row).write(0) };
        row += THREADS;
    }
    // Everything that does not need the row is ready before it comes.
    let gains = tile.gains(args, thread_idx_x());
    launch_dependents();

    // SAFETY: the launch contract, handed on; waits for the kernel in front.
    let quantised = unsafe { row::quantise::<HELD, WHOLE>(args, memory) };
    let own = tile.first + thread_idx_x();
    let adds = args.finish == Finish::Add as u32;
    let y = args.y.as_ptr();
    // On its way during the product.
    // SAFETY: y[first + t], whose only writer is this thread.
    let before = unsafe {
        ld_if(adds && thread_idx_x() < tile.outputs, y.cast_const().wrapping_add(own as usize))
    };

    // SAFETY: the row is in shared memory; the launch contract, handed on.
    unsafe { multiply(&mut queue, memory, tile, first, end) };
    sync_threads();

    let mut i = thread_idx_x();
    while i < tile.outputs {
        let gains = if i < THREADS { gains } else { tile.gains(args, i) };
        let at = y.wrapping_add((tile.first + i) as usize);
        // SAFETY: both rows of output i < outputs are rows of the block, complete since the barrier.
        let product = |row, gain| unsafe {
            dequantise(memory.sums.add(row).read() as i32 - quantised.sum, quantised.scale, gain)
        };
        let p = product(i, gains[0]);
        let value = match args.finish {
            f if f == Finish::Relu2 as u32 => {
                Activation::Relu2.gated(p, product(tile.outputs + i, gains[1]))
            }
            f if f == Finish::Silu as u32 => {
                Activation::Silu.gated(p, product(tile.outputs + i, gains[1]))
            }
            _ if adds => {
                // SAFETY: y[first + i], whose only writer is this thread.
                let was = if i < THREADS { before } else { unsafe { ld(at.cast_const()) } };
                was + p
            }
            _ => p,
        };
        // SAFETY: y[first + i] with first + i < n belongs to this thread.
        unsafe { st(at, value) };
        i += THREADS;
    }
}

/// # Safety
///
/// As for [`bit_linear`], for rows up to `SHORT_K`.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn bit_linear_short(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { bit_linear::<SHORT, true>(&args) }
}

/// # Safety
///
/// As for [`bit_linear`], for rows up to `MAX_K`.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn bit_linear_long(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { bit_linear::<LONG, false>(&args) }
}

const _: unsafe extern "ptx-kernel" fn(<BitLinearShort as Kernel>::Args) = bit_linear_short;
const _: unsafe extern "ptx-kernel" fn(<BitLinearLong as Kernel>::Args) = bit_linear_long;
const _: () = assert!(
    FIXED_BYTES.is_multiple_of(16)
        && MAX_K.is_multiple_of(512)
        && SHORT_K == SHORT * THREADS as usize
        && SHORT_K.is_multiple_of(512)
);
