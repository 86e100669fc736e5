//! The head for several inputs: they stay in shared memory while the table goes by, and four warps make eight rows by
//! eight inputs.
//!
//! Warp `w` of the four has partials `64 w .. 64 w + 64`, lane `l` two neighbours of these, so
//! that a warp reads 128 neighbouring bytes of a 16-bit row. What a thread reads of a step of 256 elements, 8 pairs
//! of weights and 8 of inputs, serves 128 multiply-adds. The pairs of the next steps, those of the next tile among
//! them, are on their way meanwhile.
//!
//! Blocks share out the inputs by their number: those that a block has are all neighbours, or the next of those that need
//! every logit, which each block looks for itself.
//!
//! The tree's distances 128 and 64 join warps through shared memory, 32 to 2 the lanes of a warp, 1 the partials of
//! a lane. Each warp takes its rows in an order of its own, so that what it gives away is always what lies last.

use contract::lm_head::{
    Args, Only, TILE_GIVEN, TILE_INPUTS, TILE_LIST, TILE_ROWS, TILE_THREADS, TILE_WARPS, TileArgs,
    tile_inputs,
};
use contract::lm_head_int8::{EVERY, digit_words, input_words};
use contract::num::{PARTIALS, fma};

use super::fold;
use crate::arch::async_copy::{commit_group, copy_x4, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, opaque, sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_xor, sync_warp, warp_id};
use crate::element::Pairs;
use crate::lm_head_int8::needs_every;

const ROWS: usize = TILE_ROWS as usize;
const INPUTS: usize = TILE_INPUTS as usize;
/// Partials of a lane.
const OWN: usize = 2;
/// Rows that a warp gives away at once, and the pieces of 16 bytes of a lane in them.
const GIVEN: usize = TILE_GIVEN as usize;
const PIECES: usize = GIVEN * INPUTS * OWN / 4;
/// Elements of a step.
const STEP: u32 = PARTIALS as u32;

type Sums = [[[f32; OWN]; INPUTS]; ROWS];
const CLEAR: Sums = [[[0.0; OWN]; INPUTS]; ROWS];

const _: () =
    assert!(ROWS == 4 * GIVEN && ROWS == INPUTS && TILE_WARPS * LANES * OWN as u32 == STEP);

/// A pair of each row of the tile, of each step of a chunk.
type Held<E> = [[<E as Pairs>::Raw2; ROWS]; MOST];
/// A pair of each input of the tile.
type Values = [[f32; OWN]; INPUTS];
/// Steps of the longest chunk.
const MOST: usize = 2;

/// The pairs of a step of the inputs.
///
/// # Safety
///
/// `x` is this lane's pair of input 0 of a step that was brought.
#[inline(always)]
unsafe fn values(x: Shared<f32>) -> Values {
    core::array::from_fn(|i| {
        // SAFETY: by the caller.
        unsafe { x.add(i as u32 * STEP).read_x2() }
    })
}

/// Takes a pair of row `r` into its sums, or begins them with it.
#[inline(always)]
fn take(acc: &mut Sums, r: usize, w: [f32; OWN], x: &Values, begin: bool) {
    let mut i = 0;
    while i < INPUTS {
        let mut p = 0;
        while p < OWN {
            let before = if begin { 0.0 } else { acc[r][i][p] };
            acc[r][i][p] = fma(x[i][p], w[p], before);
            p += 1;
        }
        i += 1;
    }
}

/// What a warp has under way.
struct Tile<E: Pairs> {
    acc: Sums,
    held: Held<E>,
    /// The step that is taken next.
    x: Values,
    /// This lane's first element of the chunk that is asked for.
    rows: [*const E; ROWS],
}

impl<E: Pairs> Tile<E> {
    /// Takes a chunk, with which the sums may `BEGIN`, of which `x` are the inputs, `stride` from step to step, and asks for the one `further`, of
    /// which `next` are the inputs of the first step.
    ///
    /// # Safety
    ///
    /// Both have all their steps; those of the inputs were brought.
    #[inline(always)]
    unsafe fn chunk<const BEGIN: bool>(
        &mut self,
        x: Shared<f32>,
        stride: u32,
        (further, next): (isize, Shared<f32>),
    ) {
        self.rows = self.rows.map(|row| row.wrapping_offset(further));
        let mut u = 0;
        while u < E::AHEAD {
            let later = if u + 1 < E::AHEAD { x.add((u as u32 + 1) * stride) } else { next };
            let mut news = self.x;
            let mut r = 0;
            while r < ROWS {
                let w = E::widen2(self.held[u][r]);
                // A load of each kind beside the products of a row.
                // SAFETY: by the caller.
                unsafe {
                    self.held[u][r] = E::load2(self.rows[r].wrapping_add(u * PARTIALS));
                    news[r] = later.add(r as u32 * STEP).read_x2();
                }
                take(&mut self.acc, r, w, &self.x, BEGIN && u == 0);
                r += 1;
            }
            self.x = news;
            u += 1;
        }
    }
}

/// Which inputs a block has.
#[derive(Clone, Copy)]
struct Inputs {
    /// The first of neighbours; none where they are in a list.
    first: Option<u32>,
}

impl Inputs {
    /// The list, behind it how many need every logit.
    #[inline(always)]
    fn list() -> Shared<u32> {
        dynamic_shared_mem()
    }

    /// Number `slot`; what is not below `m` is none.
    #[inline(always)]
    fn at(self, slot: u32) -> u32 {
        match self.first {
            Some(first) => first + slot,
            // SAFETY: an entry, written before a barrier.
            None => unsafe { Self::list().add(slot).read() },
        }
    }

    /// Leaves how many inputs need every logit behind the list, and in it those from number `first` on, `u32::MAX` where there are
    /// no more.
    ///
    /// *Convergence*: every lane of one warp calls it.
    ///
    /// # Safety
    ///
    /// The pointers of `only` cover the contract's table for the inputs of `args`; nobody uses the list.
    unsafe fn find(args: &Args, only: &Only, first: u32) {
        if lane_id() < TILE_LIST - 1 {
            // SAFETY: an entry of this lane.
            unsafe { Self::list().add(lane_id()).write(u32::MAX) };
        }
        sync_warp();
        let (mut count, mut from) = (0, 0);
        while from < args.m {
            let input = from + lane_id();
            // SAFETY: an input; the last one again for lanes without.
            let needs = unsafe { needs_every(only, input.min(args.m - 1), args.k, args.vocab) };
            let needs = needs && input < args.m;
            let lanes = ballot(needs);
            let number = count + (lanes & ((1 << lane_id()) - 1)).count_ones();
            let slot = number.wrapping_sub(first);
            if needs && slot < TILE_LIST - 1 {
                // SAFETY: an entry of this input alone.
                unsafe { Self::list().add(slot).write(input) };
            }
            count += lanes.count_ones();
            from += LANES;
        }
        if lane_id() == 0 {
            // SAFETY: the word behind the list.
            unsafe { Self::list().add(TILE_LIST - 1).write(count) };
        }
    }
}

/// Brings the inputs of a block, `[step][input][256]`, zeros behind the end of a row; the last input again where
/// there are fewer.
///
/// # Safety
///
/// `x` has `m` rows of `k` elements; `to` is for this call.
#[inline(always)]
unsafe fn bring(to: Shared<f32>, x: *const f32, m: u32, k: u32, which: Inputs, inputs: u32) {
    let pieces = x.addr().is_multiple_of(16) && k.is_multiple_of(4);
    let width = if pieces { 4 } else { 1 };
    let threads = STEP / width;
    let (column, own) = (thread_idx_x() % threads * width, thread_idx_x() / threads);
    let mut at = own;
    while at < k.div_ceil(STEP) * inputs {
        let (step, input) = (at / inputs, at % inputs);
        let i = step * STEP + column;
        let from = x.wrapping_add(which.at(input).min(m - 1) as usize * k as usize + i as usize);
        let to = to.add(at * STEP + column);
        // SAFETY: elements of an input, where there are any: a piece of four is whole.
        unsafe {
            if pieces {
                copy_x16(to, from, i < k);
            } else {
                copy_x4(to, from, i < k);
            }
        }
        at += TILE_THREADS / threads;
    }
    commit_group();
    wait_group::<0>();
    sync_threads();
}

/// Gives rows `from ..` of the sums to warp `warp_id() ^ distance`, and adds what that one gives to rows `to ..`.
///
/// *Convergence*: the four warps of a tile call it.
///
/// # Safety
///
/// `room` holds [`TILE_GIVEN`] rows of each warp of the block, for this call.
#[inline(always)]
unsafe fn exchange(acc: &mut Sums, room: Shared<f32>, distance: u32, from: usize, to: usize) {
    let of = |warp: u32| room.add((warp * PIECES as u32 * LANES + lane_id()) * 4);
    let (mine, theirs) = (of(warp_id()), of(warp_id() ^ distance));
    let barrier = 1 + warp_id() / TILE_WARPS;
    let place = |v: usize| (v / (PIECES / GIVEN), v % (PIECES / GIVEN) * 2);
    let mut v = 0;
    while v < PIECES {
        let (r, i) = place(v);
        let ([a, b], [c, d]) = (acc[from + r][i], acc[from + r][i + 1]);
        // SAFETY: piece v of this lane.
        unsafe { mine.add(v as u32 * LANES * 4).write_x4([a, b, c, d]) };
        v += 1;
    }
    sync_some(barrier, TILE_WARPS * LANES);
    let mut v = 0;
    while v < PIECES {
        let (r, i) = place(v);
        // SAFETY: piece v of that lane, written before the barrier.
        let [a, b, c, d] = unsafe { theirs.add(v as u32 * LANES * 4).read_x4() };
        let sums = &mut acc[to + r];
        sums[i] = [sums[i][0] + a, sums[i][1] + b];
        sums[i + 1] = [sums[i + 1][0] + c, sums[i + 1][1] + d];
        v += 1;
    }
    sync_some(barrier, TILE_WARPS * LANES);
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; block, shared memory and grid are the
/// contract's.
#[inline(always)]
pub(super) unsafe fn lm_head_tile<E: Pairs>(args: &TileArgs) {
    let TileArgs { base: args, only } = args;
    let Args { vocab, k, m, .. } = *args;
    let all = only.params.is_null();
    let mut count = m;
    if !all {
        launch_dependents();
        dependency_wait();
        // SAFETY: by the caller; behind the barriers nobody reads the list until it is written again.
        unsafe {
            if warp_id() == 0 {
                Inputs::find(args, only, 0);
            }
            sync_threads();
            count = Inputs::list().add(TILE_LIST - 1).read();
        }
        if count < only.least {
            return; // every thread of the grid
        }
    }
    let inputs = tile_inputs(count, k);
    let tiles = count.div_ceil(inputs);
    let (streams, stream) = (grid_dim_x() / tiles, block_idx_x() / tiles);
    let first_input = block_idx_x() % tiles * inputs;
    if stream >= streams {
        return; // every thread of the block
    }
    let ours = if all { Some(first_input) } else { None };
    if !all && first_input > 0 {
        sync_threads();
        if warp_id() == 0 {
            // SAFETY: as above.
            unsafe { Inputs::find(args, only, first_input) };
        }
        sync_threads();
    }
    let ours = Inputs { first: ours };
    if !all && stream == 0 && thread_idx_x() < inputs {
        let input = ours.at(thread_idx_x());
        if input < m {
            let (k, row) = (k as usize, input as usize);
            let scratch = row * input_words(k, vocab) + digit_words(k);
            // SAFETY: a word of this input, which nobody else reads or writes meanwhile.
            unsafe { st(only.input.as_ptr().wrapping_add(scratch + EVERY), 1) };
        }
    }
    let which = warp_id() / TILE_WARPS;
    let part = warp_id() % TILE_WARPS;
    // Both tiles of a block have the same rows and other inputs, or the same inputs and other rows.
    let (first, input0, unit_step) = if inputs == TILE_INPUTS {
        (2 * stream + which, 0, 2 * streams)
    } else {
        (stream, which * TILE_INPUTS, streams)
    };
    let own = part * (LANES * OWN as u32) + lane_id() * OWN as u32;
    // Row j of a tile is row `j ^ order` of its unit: the last half is what another warp keeps, and so is the
    // second quarter.
    let order = 2 * part;
    let table = args.w.cast::<E>().as_ptr().cast_const();
    // The last rows of a table once more where it ends with fewer, so that all rows of a unit are one from the next.
    let start = |unit: u32| unit.saturating_mul(TILE_ROWS).min(vocab - TILE_ROWS);
    let rows_of = |unit: u32| -> [*const E; ROWS] {
        core::array::from_fn(|r| {
            let row = start(unit) + (r as u32 ^ order);
            table.wrapping_add(row as usize * args.stride as usize + own as usize)
        })
    };
    // Whole chunks of steps are asked for ahead of their use.
    let chunks = k / STEP / E::AHEAD as u32;
    let units = vocab.div_ceil(TILE_ROWS);
    let rows = rows_of(first);
    let held = core::array::from_fn(|u| {
        core::array::from_fn(|r| {
            let from = rows[r].wrapping_add(u * PARTIALS);
            // SAFETY: a whole step of the row.
            if u < E::AHEAD && chunks > 0 { unsafe { E::load2(from) } } else { E::NOTHING }
        })
    });
    launch_dependents();
    dependency_wait();

    let x: Shared<f32> = Inputs::list().add(TILE_LIST).cast();
    let room = x.add(k.div_ceil(STEP) * inputs * STEP);
    let from = args.x.as_ptr().cast_const();
    // SAFETY: x has M rows of K elements; nobody has used shared memory.
    unsafe { bring(x, from, m, k, ours, inputs) };
    let input = ours.at(input0 + lane_id() / 2 % TILE_INPUTS);
    let (x, stride) = (x.add(input0 * STEP + own), inputs * STEP);

    // SAFETY: there is a step of the inputs, whole or not.
    let mut tile = Tile { acc: CLEAR, held, x: unsafe { values(x) }, rows };
    let mut unit = first;
    while unit < units {
        let next = unit.saturating_add(unit_step);
        // The chunk asked for is the next of this unit, behind its last one the first of the next unit.
        let ahead = |at: Shared<f32>, left: u32| {
            let step = (E::AHEAD * PARTIALS) as isize;
            if left > 1 {
                return (step, at.add(E::AHEAD as u32 * stride));
            }
            let rows = start(next) as isize - start(unit) as isize;
            (rows * args.stride as isize - (chunks as isize - 1) * step, x)
        };
        // SAFETY: whole steps of rows of the table and of the inputs, brought before the barrier.
        unsafe {
            if chunks == 0 {
                tile.acc = CLEAR;
            } else {
                let mut later = ahead(x, chunks);
                tile.chunk::<true>(x, stride, later);
                let mut left = chunks - 1;
                while left > 0 {
                    let at = later.1;
                    later = ahead(at, left);
                    tile.chunk::<false>(at, stride, later);
                    left -= 1;
                }
            }
        }
        let mut step = chunks * E::AHEAD as u32;
        while step < k.div_ceil(STEP) {
            let rows = rows_of(unit);
            let w: [[f32; OWN]; ROWS] = core::array::from_fn(|r| {
                core::array::from_fn(|p| {
                    let i = step * STEP + p as u32;
                    // A product of 0 and -0 leaves every sum as it is.
                    if own + i < k {
                        // SAFETY: element `own + i` of the row, which it has.
                        unsafe { E::load(rows[r].wrapping_add(i as usize)) }
                    } else {
                        -0.0
                    }
                })
            });
            // SAFETY: as above; behind the end of a row zeros.
            let last = unsafe { values(x.add(step * stride)) };
            let mut r = 0;
            while r < ROWS {
                take(&mut tile.acc, r, w[r], &last, false);
                r += 1;
            }
            step = opaque(step + 1);
        }
        let acc = &mut tile.acc;
        // SAFETY: the room behind the inputs is for these calls, whose barriers keep them apart.
        unsafe {
            exchange(acc, room, 2, 2 * GIVEN, 0);
            exchange(acc, room, 2, 3 * GIVEN, GIVEN);
            exchange(acc, room, 1, GIVEN, 0);
        }
        let mut all = [0.0; GIVEN * INPUTS * OWN];
        let mut j = 0;
        while j < GIVEN * INPUTS * OWN {
            all[j] = acc[j / (INPUTS * OWN)][j / OWN % INPUTS][j % OWN];
            j += 1;
        }
        // Distances 32, 16, 8, 4 of the tree: bit 4 of a lane is its row, bits 3 to 1 its input.
        let all: [f32; 16] = fold(all, 16);
        let all: [f32; 8] = fold(all, 8);
        let all: [f32; 4] = fold(all, 4);
        let [a, b]: [f32; 2] = fold(all, 2);
        // Distances 2, 1.
        let sum = (a + shuffle_xor(a, 1)) + (b + shuffle_xor(b, 1));
        let row = start(unit) + order + lane_id() / 16;
        if lane_id().is_multiple_of(2) && input < m {
            let at = input as usize * vocab as usize + row as usize;
            // SAFETY: logits[input, row] belongs to this lane.
            unsafe { st(args.logits.as_ptr().wrapping_add(at), sum) };
        }
        unit = next;
    }
}
