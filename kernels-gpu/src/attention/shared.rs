//! Many rows with the bits of one: keys and values come to shared memory once for 64 rows of a kv head.
//!
//! A warp holds 16 rows. For the scores lane `4 c + g` takes rows `g + 4 r` and keys `c + 8 i`, one partial of the
//! dot after the other; queries and keys stand sorted by partial, `[d % 8][d / 8]`, so that four steps of a chain
//! are one load. For the weighted values lane `16 h + l` takes eight of the warp's rows and dimensions `4 l..` of each
//! 64. Between the two the exponentials lie in shared memory, which only the warp sees.

use contract::attention::{
    Args, AttentionRowsBf16D64, AttentionRowsBf16D128, AttentionRowsF32D64, AttentionRowsF32D128,
    KEY_BLOCK, RowTile, TILE_THREADS,
};
use contract::launch::Kernel;
use contract::num::{BlockSum, Running, Weights, exp, fma, max, score, weighted_value};

use super::tile::Rows;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::mem::{ld_if, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, shuffle_xor, sync_warp, warp_id};
use crate::element::{Bf16, CacheElement};

/// Keys of a block.
const KEYS: u32 = KEY_BLOCK as u32;
/// Rows of a warp, and of a lane in each of the two phases.
const WARP_ROWS: u32 = 16;
const SCORE_ROWS: usize = 4;
const VALUE_ROWS: usize = 8;
/// Keys of a lane.
const OWN_KEYS: usize = 8;
/// Pieces of 8 elements that a thread loads at once.
const AT_ONCE: usize = 2;

type Scores = [[f32; OWN_KEYS]; SCORE_ROWS];

/// Shared memory of a block; `D` elements for each query and key, zeros behind the head.
#[derive(Clone, Copy)]
struct Memory<const D: u32> {
    q: Shared<f32>,
    /// Keys sorted by partial, later values as they are.
    kv: Shared<f32>,
    /// This warp's exponentials `[key][row]`.
    weights: Shared<f32>,
    /// This warp's sums that wait.
    parked: Shared<f32>,
    /// For each of this warp's rows: the factors of [`Weights`], and the keys it sees of the block.
    factors: Shared<f32>,
}

impl<const D: u32> Memory<D> {
    const PITCH: u32 = D + 4;

    #[inline(always)]
    fn of_warp(tile: RowTile) -> Self {
        let q: Shared<f32> = dynamic_shared_mem();
        let kv = q.add(tile.rows * Self::PITCH);
        let weights = kv.add(KEYS * Self::PITCH);
        let parked = weights.add(KEYS * tile.rows);
        let factors = parked.add(KEYS * tile.rows);
        Self {
            q,
            kv,
            weights: weights.add(warp_id() * KEYS * WARP_ROWS),
            parked: parked.add(warp_id() * KEYS * WARP_ROWS),
            factors: factors.add(warp_id() * 4 * WARP_ROWS),
        }
    }

    /// The same, of whose addresses LLVM knows nothing: it would make them all before the loop over the keys, and
    /// there are no registers to keep them in.
    #[inline(always)]
    fn anew(self) -> Self {
        let zero = opaque_here(0);
        let Self { q, kv, weights, parked, factors } = self;
        let [q, kv, weights, parked, factors] =
            [q, kv, weights, parked, factors].map(|part| part.byte_add(zero));
        Self { q, kv, weights, parked, factors }
    }

    /// The partial `p` of the dots of this lane's rows and keys.
    ///
    /// # Safety
    ///
    /// Queries and keys are in shared memory and stay there.
    #[inline(always)]
    unsafe fn partial(&self, p: u32) -> Scores {
        let (c, g) = (lane_id() / 4, lane_id() % 4);
        let q = self.q.add((warp_id() * WARP_ROWS + g) * Self::PITCH + p * (D / 8));
        let k = self.kv.add(c * Self::PITCH + p * (D / 8));
        let mut acc = [[0.0; OWN_KEYS]; SCORE_ROWS];
        let mut step = opaque(0);
        while step < D / 8 {
            // SAFETY: four words of a query.
            let q: [[f32; 4]; SCORE_ROWS] = core::array::from_fn(|r| unsafe {
                q.add(4 * r as u32 * Self::PITCH + step).read_x4()
            });
            let mut i = 0;
            while i < OWN_KEYS {
                // SAFETY: four words of a key.
                let k = unsafe { k.add(8 * i as u32 * Self::PITCH + step).read_x4() };
                let mut r = 0;
                while r < SCORE_ROWS {
                    let mut e = 0;
                    while e < 4 {
                        acc[r][i] = fma(q[r][e], k[e], acc[r][i]);
                        e += 1;
                    }
                    r += 1;
                }
                i += 1;
            }
            step += 4;
        }
        acc
    }

    /// The scores of this lane's rows and keys: the tree over the partials, `((0 4) (2 6)) ((1 5) (3 7))`. Sums wait
    /// in shared memory, half of the tree where the exponentials will stand.
    ///
    /// # Safety
    ///
    /// As for [`Memory::partial`]; the warp has read the exponentials.
    #[inline(always)]
    unsafe fn scores(&self, scale: f32) -> Scores {
        let mut sum = [[0.0; OWN_KEYS]; SCORE_ROWS];
        let mut odd = opaque(0);
        while odd < 2 {
            // SAFETY: the caller's promise; this lane's own words.
            unsafe {
                park(self.parked, add(self.partial(odd), self.partial(odd + 4)));
                sum = add(self.partial(odd + 2), self.partial(odd + 6));
                sum = add_parked(self.parked, sum);
                if odd == 0 {
                    park(self.weights, sum);
                }
            }
            odd += 1;
        }
        // SAFETY: as above.
        sum = unsafe { add_parked(self.weights, sum) };
        sync_warp();
        sum.map(|row| row.map(|dot| score(dot, scale)))
    }

    /// Turns the scores of a block of keys into exponentials in shared memory, and takes the block into
    /// `running`; `seen` is how many of the keys each row sees.
    #[inline(always)]
    fn softmax(&self, mut s: Scores, running: &mut [Running; SCORE_ROWS], seen: [u32; SCORE_ROWS]) {
        let (c, g) = (lane_id() / 4, lane_id() % 4);
        let mut r = 0;
        while r < SCORE_ROWS {
            let mut top = f32::NEG_INFINITY;
            let mut i = 0;
            while i < OWN_KEYS {
                top = if c + 8 * (i as u32) < seen[r] { max(top, s[r][i]) } else { top };
                i += 1;
            }
            let mut distance = 16;
            while distance >= 4 {
                top = max(top, shuffle_xor(top, distance));
                distance /= 2;
            }
            i = 0;
            while i < OWN_KEYS {
                let p = exp(s[r][i] - top);
                s[r][i] = if c + 8 * (i as u32) < seen[r] { p } else { 0.0 };
                i += 1;
            }
            // The tree over 64 keys: 32, 16 and 8 apart here, 4, 2 and 1 apart in other lanes.
            let p = s[r];
            let near = |i: usize| p[i] + p[i + 4];
            let mut sum = (near(0) + near(2)) + (near(1) + near(3));
            distance = 16;
            while distance >= 4 {
                sum += shuffle_xor(sum, distance);
                distance /= 2;
            }
            let mut weights = Weights { running: 1.0, block: 0.0 };
            if seen[r] > 0 {
                weights = running[r].take(BlockSum { max: top, sum });
            }
            if c == 0 {
                let factors = [weights.running, weights.block, f32::from_bits(seen[r]), 0.0];
                // SAFETY: four words of this row, which the warp has read.
                unsafe { self.factors.add(4 * (4 * g + r as u32)).write_x4(factors) };
            }
            r += 1;
        }
        let mut i = 0;
        while i < OWN_KEYS {
            let at = self.weights.add((c + 8 * i as u32) * WARP_ROWS + 4 * g);
            // SAFETY: this lane's four rows of a key; the warp has read what was there.
            unsafe { at.write_x4([s[0][i], s[1][i], s[2][i], s[3][i]]) };
            i += 1;
        }
    }
}

/// Puts sums aside in this lane's part of a warp's 1,024 words.
///
/// # Safety
///
/// The words are there, and no other lane's are read from them before they are written again.
#[inline(always)]
unsafe fn park(to: Shared<f32>, sums: Scores) {
    let mut i = 0;
    while i < OWN_KEYS {
        // SAFETY: four words of this lane's.
        unsafe {
            let at = to.add(4 * (32 * i as u32 + lane_id()));
            at.write_x4([sums[0][i], sums[1][i], sums[2][i], sums[3][i]]);
        }
        i += 1;
    }
}

/// What was parked, plus `sums`.
///
/// # Safety
///
/// As for [`park`].
#[inline(always)]
unsafe fn add_parked(from: Shared<f32>, mut sums: Scores) -> Scores {
    let mut i = 0;
    while i < OWN_KEYS {
        // SAFETY: four words of this lane's.
        let first = unsafe { from.add(4 * (32 * i as u32 + lane_id())).read_x4() };
        let mut r = 0;
        while r < SCORE_ROWS {
            sums[r][i] = first[r] + sums[r][i];
            r += 1;
        }
        i += 1;
    }
    sums
}

/// Sums, one by one.
#[inline(always)]
fn add(a: Scores, b: Scores) -> Scores {
    core::array::from_fn(|r| core::array::from_fn(|i| a[r][i] + b[r][i]))
}

/// Elements `first..first + 64` of `count` rows into shared memory by way of `put`, `AT_ONCE` pieces in flight.
#[inline(always)]
fn stage<const D: u32>(
    count: u32,
    load: impl Fn(u32, u32) -> [f32; 8],
    put: impl Fn(u32, u32, [f32; 8]),
) {
    let (pieces, across) = (D / 8, TILE_THREADS / (D / 8));
    let piece = thread_idx_x() % pieces;
    let mut row = opaque(thread_idx_x() / pieces);
    while row < count {
        let values: [[f32; 8]; AT_ONCE] =
            core::array::from_fn(|i| load(row + across * i as u32, piece));
        let mut i = 0;
        while i < AT_ONCE {
            put(row + across * i as u32, piece, values[i]);
            i += 1;
        }
        row += across * AT_ONCE as u32;
    }
}

/// Eight neighbours, sorted by partial.
///
/// # Safety
///
/// `row` starts `D` words of shared memory that no other thread accesses.
#[inline(always)]
unsafe fn put_sorted<const D: u32>(row: Shared<f32>, piece: u32, values: [f32; 8]) {
    let mut p = 0;
    while p < 8 {
        // SAFETY: one of the row's words.
        unsafe { row.add(p * (D / 8) + piece).write(values[p as usize]) };
        p += 1;
    }
}

/// Eight elements of position `at` of a cache from `piece` on; without `there`, or behind the head, anything.
///
/// # Safety
///
/// With `there`, `at` is an address of a position.
#[inline(always)]
unsafe fn load_piece<E: CacheElement>(
    there: bool,
    at: *const E,
    piece: u32,
    head_dim: u32,
) -> [f32; 8] {
    let at = at.wrapping_add(8 * piece as usize);
    let there = there && 8 * piece < head_dim;
    // SAFETY: rows of a cache are padded to 8 elements.
    let [low, high] = unsafe { [E::load4_if(there, at), E::load4_if(there, at.wrapping_add(4))] };
    [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the tile's grid; the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn rows<E: CacheElement, const D: u32, const PARTS: usize>(args: &Args, tile: RowTile) {
    const { assert!(PARTS as u32 * 64 == D) };
    launch_dependents();
    dependency_wait();
    // SAFETY: the caller's promise.
    let rows = unsafe { Rows::of_block(args, tile) };
    let memory = Memory::<D>::of_warp(tile);
    let head_dim = args.head_dim;
    let load_query = |row, piece| {
        let q = rows.query(args, row);
        core::array::from_fn(|i| {
            let d = 8 * piece + i as u32;
            // SAFETY: an element of the query.
            let value: f32 = unsafe { ld_if(d < head_dim, q.wrapping_add(d as usize)) };
            if d < head_dim { value } else { 0.0 }
        })
    };
    stage::<D>(tile.rows, load_query, |row, piece, values| {
        // SAFETY: a piece of a query, which this thread writes.
        unsafe { put_sorted::<D>(memory.q.add(row * Memory::<D>::PITCH), piece, values) };
    });

    let (stride, start) = rows.cache(args);
    let keys = args.k_cache.cast::<E>().as_ptr().cast_const().wrapping_add(start);
    let values = args.v_cache.cast::<E>().as_ptr().cast_const().wrapping_add(start);
    let limit = rows.visible(tile.rows - 1);
    let row0 = warp_id() * WARP_ROWS;
    let (least, most) = (rows.visible(row0), rows.visible(row0 + WARP_ROWS - 1));
    let visible: [u32; SCORE_ROWS] =
        core::array::from_fn(|r| rows.visible(row0 + lane_id() % 4 + 4 * r as u32));
    let mut running = [Running::EMPTY; SCORE_ROWS];
    let mut out = [[[0.0f32; 4]; PARTS]; VALUE_ROWS];
    let mut first = opaque(0);
    while first < limit {
        let memory = memory.anew();
        // SAFETY: positions below `limit` are in the cache.
        let load = |cache: *const E, t: u32, piece| unsafe {
            let at = cache.wrapping_add((first + t) as usize * stride);
            load_piece::<E>(first + t < limit, at, piece, head_dim)
        };
        sync_threads();
        stage::<D>(
            KEYS,
            |t, piece| load(keys, t, piece),
            |t, piece, values| {
                let values = core::array::from_fn(|i| {
                    if 8 * piece + (i as u32) < head_dim { values[i] } else { 0.0 }
                });
                // SAFETY: a piece of a key; every thread has taken the values before.
                unsafe { put_sorted::<D>(memory.kv.add(t * Memory::<D>::PITCH), piece, values) };
            },
        );
        sync_threads();
        let some = first < most;
        if some {
            // SAFETY: queries and keys were there before the barrier.
            let s = unsafe { memory.scores(args.scale) };
            memory.softmax(s, &mut running, visible.map(|v| v.saturating_sub(first).min(KEYS)));
        }
        sync_threads();
        stage::<D>(
            KEYS,
            |t, piece| load(values, t, piece),
            |t, piece, values| {
                let at = memory.kv.add(t * Memory::<D>::PITCH + 8 * piece);
                let [a, b, c, d, e, f, g, h] = values;
                // SAFETY: a piece of a value; every thread has taken the keys.
                unsafe {
                    at.write_x4([a, b, c, d]);
                    at.add(4).write_x4([e, f, g, h]);
                }
            },
        );
        sync_threads();
        if some {
            // SAFETY: exponentials and values were there before the barrier.
            unsafe {
                if first + KEYS <= least {
                    take_values::<D, PARTS, true>(&memory, &mut out, KEYS);
                } else {
                    take_values::<D, PARTS, false>(&memory, &mut out, (most - first).min(KEYS));
                }
            }
        }
        first += KEYS;
    }
    // The sums, to those who have the values.
    if lane_id() < 4 {
        let mut r = 0;
        while r < SCORE_ROWS {
            // SAFETY: this row's word, which the warp has read.
            unsafe { memory.factors.add(4 * (4 * lane_id() + r as u32) + 3).write(running[r].sum) };
            r += 1;
        }
    }
    sync_warp();
    // SAFETY: the rows of this warp belong to it.
    unsafe { write::<D, PARTS>(args, &rows, &memory, &out, row0) };
}

/// Adds the weighted values of the first `count` keys of a block; with `ALL`, every row sees all 64.
///
/// # Safety
///
/// Exponentials, factors and values are in shared memory and stay there.
#[inline(always)]
unsafe fn take_values<const D: u32, const PARTS: usize, const ALL: bool>(
    memory: &Memory<D>,
    out: &mut [[[f32; 4]; PARTS]; VALUE_ROWS],
    count: u32,
) {
    let (h, l) = (lane_id() / 16, lane_id() % 16);
    let rows = VALUE_ROWS as u32 * h;
    let factors = memory.factors.add(4 * rows);
    let seen: [u32; VALUE_ROWS] = core::array::from_fn(|r| match ALL {
        true => KEYS,
        // SAFETY: a word of a row.
        false => unsafe { factors.add(4 * r as u32 + 2).cast().read() },
    });
    let mut sums = [[[0.0f32; 4]; PARTS]; VALUE_ROWS];
    let mut t = opaque(0);
    while t < count {
        // SAFETY: rows of a key, dimensions of a value.
        let (low, high, v) = unsafe {
            let p = memory.weights.add(t * WARP_ROWS + rows);
            let v: [[f32; 4]; PARTS] = core::array::from_fn(|part| {
                memory.kv.add(t * Memory::<D>::PITCH + 64 * part as u32 + 4 * l).read_x4()
            });
            (p.read_x4(), p.add(4).read_x4(), v)
        };
        let p = [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]];
        let mut r = 0;
        while r < VALUE_ROWS {
            let sees = ALL || t < seen[r];
            let mut part = 0;
            while part < PARTS {
                let mut e = 0;
                while e < 4 {
                    let next = weighted_value(sums[r][part][e], p[r], v[part][e]);
                    sums[r][part][e] = if sees { next } else { sums[r][part][e] };
                    e += 1;
                }
                part += 1;
            }
            r += 1;
        }
        t += 1;
    }
    let mut r = 0;
    while r < VALUE_ROWS {
        // SAFETY: two words of a row.
        let [running, block] = unsafe { factors.add(4 * r as u32).read_x2() };
        let weights = Weights { running, block };
        let sees = ALL || seen[r] > 0;
        let mut part = 0;
        while part < PARTS {
            let mut e = 0;
            while e < 4 {
                let next = weights.combine(out[r][part][e], sums[r][part][e]);
                out[r][part][e] = if sees { next } else { out[r][part][e] };
                e += 1;
            }
            part += 1;
        }
        r += 1;
    }
}

/// Divides by the sums and writes the rows that exist.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table; rows `row0..` of the block belong to this warp, their sums are in
/// shared memory, and it has taken its queries.
#[inline(always)]
unsafe fn write<const D: u32, const PARTS: usize>(
    args: &Args,
    rows: &Rows,
    memory: &Memory<D>,
    out: &[[[f32; 4]; PARTS]; VALUE_ROWS],
    row0: u32,
) {
    let (h, l) = (lane_id() / 16, lane_id() % 16);
    let staging = memory.q.add(row0 * Memory::<D>::PITCH);
    let mut r = 0;
    while r < VALUE_ROWS {
        let at = staging.add((VALUE_ROWS as u32 * h + r as u32) * Memory::<D>::PITCH + 4 * l);
        let mut part = 0;
        while part < PARTS {
            // SAFETY: four words where the warp's queries were.
            unsafe { at.add(64 * part as u32).write_x4(out[r][part]) };
            part += 1;
        }
        r += 1;
    }
    sync_warp();
    let mut index = opaque(0);
    while index < WARP_ROWS {
        // Exponentials, and so outputs, stand in the order of the lanes that made them.
        let row = row0 + index / 4 + 4 * (index % 4);
        // SAFETY: a word of the row.
        let sum = unsafe { memory.factors.add(4 * index + 3).read() };
        let (running, to) = (Running { max: 0.0, sum }, rows.out(args, row));
        let mut d = lane_id();
        while d < args.head_dim && rows.exists(row) {
            // SAFETY: an element of the row, and of the row's head.
            unsafe {
                let value = staging.add(index * Memory::<D>::PITCH + d).read();
                st(to.wrapping_add(d as usize), running.finish(value));
            }
            d += 32;
        }
        index += 1;
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $element:ty: $d:literal $parts:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with its tile's grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.rows == 64 && $kernel::TILE.head_dim == $d) };
            // SAFETY: the caller's promise.
            unsafe { rows::<$element, $d, $parts>(&args, $kernel::TILE) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    AttentionRowsBf16D64 attention_rows_bf16_64 Bf16: 64 1;
    AttentionRowsBf16D128 attention_rows_bf16_128 Bf16: 128 2;
    AttentionRowsF32D64 attention_rows_f32_64 f32: 64 1;
    AttentionRowsF32D128 attention_rows_f32_128 f32: 128 2;
}
