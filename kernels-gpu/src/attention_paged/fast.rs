//! A step of rows with a sequence each on tensor cores (`mma.sync` of bf16): several pages for the heads of one kv head per block; the last
//! block of the heads to finish combines.
//!
//! Each of a block's four warps takes sixteen keys of every page, straight from memory into fragments: the order of the elements of a head is
//! free in a dot, and that of the dimensions in the weighted values, so a lane reads 16 bytes side by side ([`Pages`] says which). Nobody waits for another warp
//! before the end. Of the eight columns of a product four are the queries of the heads, rounded to bf16, and four what the rounding
//! left; the same with the exponentials.

use contract::attention_paged::{
    Args, FAST_HEAD_DIM, FAST_RESULT_LEN, FAST_SMEM_BYTES, STEP_HEAD_DIM, STEP_HEADS, STEP_THREADS,
    walk_share,
};
use contract::num::fma;

use super::page;
use super::step_row::{Own, Step};
use super::tile::{KEYS, OWN, pair};
use super::walk_row::Walk;
use crate::arch::float::exp2_approx;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::half::pack_bf16;
use crate::arch::mem::{ld_x2, st_x2};
use crate::arch::mma::{mma_bf16, transposed};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::sync_threads;
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_xor, warp_id};

/// Keys of a page that a warp takes.
pub(super) const OF_WARP: u32 = 16;
/// Warps of a block.
const WARPS: u32 = STEP_THREADS / LANES;
/// Two steps of a product over a key: 32 elements.
pub(super) const PIECES: usize = FAST_HEAD_DIM as usize / 32;
/// Results of other blocks on their way at once.
const COMBINE: u32 = 4;

const _: () = assert!(WARPS * OF_WARP == KEYS && STEP_HEADS == 4 && PIECES as u32 == WARPS);
const _: () = assert!(FAST_HEAD_DIM == 128 && STEP_HEAD_DIM == FAST_HEAD_DIM);

/// How the pages of a cache stand in memory, and which of it lane `4 g + t` has: of keys `g` and `g + 8` of its warp a quarter each, of the values of
/// keys [`value_key`] an eighth each.
pub(super) trait Pages {
    /// A lane's part of a warp's keys.
    type Keys;
    /// A lane's part of a warp's values.
    type Values;
    /// Dimensions `APART g + tile` of the values are rows `g` of product `tile`, those [`Pages::UPPER`] further rows `g + 8`.
    const APART: u32;
    const UPPER: u32;

    /// This lane's part of the first `stored` keys of page `page`; zeros elsewhere.
    ///
    /// # Safety
    ///
    /// The page is there and has so many, when they are more than 0.
    unsafe fn keys(step: &Step<'_>, page: u32, stored: u32) -> Self::Keys;

    /// The same of the values.
    ///
    /// # Safety
    ///
    /// As for [`Pages::keys`].
    unsafe fn values(step: &Step<'_>, page: u32, stored: u32) -> Self::Values;

    /// Makes the row's own key and value, stores them in the page and puts them into shared memory.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The row's place is in the page of `step`, which is there; nobody uses those places in shared memory.
    unsafe fn put_new(step: &Step<'_>);

    /// Puts the row's own key and value, which are key `own` of this warp, where they belong.
    ///
    /// # Safety
    ///
    /// They are in shared memory, where the page is there.
    unsafe fn take_own(k: &mut Self::Keys, v: &mut Self::Values, own: u32);

    /// What a lane keeps of the queries.
    type Queries: Copy;

    /// Makes the queries factors of [`Pages::scores`], a piece each warp.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// They are in shared memory, and nobody uses the factors.
    unsafe fn make_factors();

    /// What this lane keeps.
    ///
    /// # Safety
    ///
    /// The factors were made before a barrier.
    unsafe fn queries() -> Self::Queries;

    /// Products of a warp's keys with the queries, not scaled: of keys `g` and `g + 8` with heads `2 (t % 2)` and the next.
    ///
    /// *Convergence*: every lane calls it.
    ///
    /// # Safety
    ///
    /// As for [`Pages::queries`].
    unsafe fn scores(k: &Self::Keys, q: Self::Queries) -> [[f32; 2]; 2];

    /// What the factors of all products of values need.
    ///
    /// *Convergence*: every lane calls it.
    type Ready;
    fn ready(v: &Self::Values) -> Self::Ready;

    /// Factors of product `tile`.
    fn value_factors(v: &Self::Values, ready: &Self::Ready, tile: usize) -> [u32; 4];
}

/// The queries, rotated: [`STEP_HEAD_DIM`] words each.
#[inline(always)]
pub(super) fn queries() -> Shared<f32> {
    dynamic_shared_mem()
}

/// The row's own key, then its value.
#[inline(always)]
pub(super) fn own_key() -> Shared<u32> {
    queries().add(STEP_HEADS * STEP_HEAD_DIM).cast()
}
#[inline(always)]
pub(super) fn own_value() -> Shared<u32> {
    own_key().add(STEP_HEAD_DIM / 2)
}

/// What warp `warp` leaves of head `head`: maximum, sum, and from word 4 on its weighted values.
#[inline(always)]
pub(super) fn result(warp: u32, head: u32) -> Shared<f32> {
    let first = own_value().add(STEP_HEAD_DIM / 2).cast::<f32>();
    first.add((warp * STEP_HEADS + head) * FAST_RESULT_LEN)
}

/// This lane's factors of piece `j`.
#[inline(always)]
pub(super) fn factors(j: u32) -> Shared<u32> {
    result(WARPS, 0).cast().add((j * LANES + lane_id()) * 4)
}

/// Where one thread tells the others something.
#[inline(always)]
fn note() -> Shared<u32> {
    result(WARPS, 0).cast().add(PIECES as u32 * LANES * 4)
}

const _: () = assert!(
    4 * (STEP_HEADS * STEP_HEAD_DIM
        + STEP_HEAD_DIM
        + WARPS * STEP_HEADS * FAST_RESULT_LEN
        + PIECES as u32 * LANES * 4
        + 4)
        == FAST_SMEM_BYTES
);

/// What a lane knows of two heads, `2 (t % 2)` and the next.
struct State {
    top: [f32; 2],
    sum: [f32; 2],
    /// `[tile][c]`: dimension `APART g + tile`, or `UPPER` more for the last two, of columns `2 t` and `2 t + 1`.
    out: [[f32; 4]; 8],
}

/// Block `(part of a row's pages, m, kv head, part of its heads)` takes [`walk_share`] pages, `AT_ONCE` together; the last one of the heads combines.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of `P`, `counters` is zero, every row has
/// pages of its own; block and grid are the contract's. When `settled`: no kernel that may still run writes positions, tables or keys
/// in front of a row's own.
#[inline(always)]
pub(super) unsafe fn fast<P: Pages, const AT_ONCE: usize>(args: &Args) {
    let share = walk_share(args);
    let (mut step, own) = Step::<false>::of_block(args);
    let (head, count, m) = (step.head, step.count, step.m);
    // SAFETY: handed on.
    let Some(walk) = (unsafe { step.walk(own) }) else {
        return; // the whole block
    };
    let Walk { first_page, end, blocks, next } = walk;
    let (pos, has_new) = (step.pos, walk.has_new());
    let home = step.page;
    // Keys in front of the row's own that a page has.
    let stored = |page: u32, block: u32| {
        if page < args.pages && block < end { pos - block * KEYS } else { 0 }
    };
    let places: [u32; AT_ONCE] = core::array::from_fn(|i| i as u32);
    // SAFETY: below the capacity, or nothing is read.
    let page_of = |step: &Step<'_>, block: u32| unsafe { step.page_beside(block) };
    let mut at = places.map(|i| match i {
        0 => home,
        1 => next,
        _ => page_of(&step, first_page + i),
    });
    // SAFETY: the pages, where they are there, have all positions in front of the row's own, which is below the capacity.
    let (mut k, mut v, own_page, angle) = unsafe {
        let there = |i: u32| (at[i as usize], stored(at[i as usize], first_page + i));
        (
            places.map(|i| P::keys(&step, there(i).0, there(i).1)),
            places.map(|i| P::values(&step, there(i).0, there(i).1)),
            page(args, m, end - 1),
            step.angle_of_thread(),
        )
    };
    // Those behind them.
    let mut next = places
        .map(|i| if AT_ONCE == 1 { next } else { page_of(&step, first_page + AT_ONCE as u32 + i) });
    dependency_wait();
    // SAFETY: nobody reads queries, key and value yet; the row's position is below the capacity.
    unsafe {
        step.load_queries(queries(), step.raw_queries(), angle);
        step.page = own_page;
        if has_new && own_page < args.pages {
            P::put_new(&step);
        }
    }
    // Not earlier: what is settled for the next step counts on it.
    launch_dependents();
    sync_threads();
    // SAFETY: queries are there; nobody reads factors yet.
    unsafe { P::make_factors() };
    sync_threads();
    // SAFETY: made before the barrier.
    let queries = unsafe { P::queries() };
    // Powers of two: exp(scale s) = 2^(factor s).
    let factor = args.scale * core::f32::consts::LOG2_E;
    let mut state = State { top: [f32::NEG_INFINITY; 2], sum: [0.0; 2], out: [[0.0; 4]; 8] };
    let mut block = first_page;
    loop {
        let behind = block + AT_ONCE as u32;
        // Keys of each page that the row sees and earlier warps do not take.
        let left = places.map(|i| {
            let seen = (pos + 1).saturating_sub((block + i) * KEYS);
            if block + i < end { seen.saturating_sub(warp_id() * OF_WARP) } else { 0 }
        });
        if left[0] == 0 {
            break; // the whole warp, at the row's last page
        }
        let mut s = [[[0.0; 2]; 2]; AT_ONCE];
        let mut i = 0;
        while i < AT_ONCE {
            let last = block + i as u32 + 1 == end;
            if has_new && last && left[i] > 0 && left[i] <= OF_WARP {
                // SAFETY: written before the barrier, where the page is there.
                unsafe { P::take_own(&mut k[i], &mut v[i], left[i] - 1) };
            }
            // SAFETY: the factors are there.
            s[i] = unsafe { P::scores(&k[i], queries) };
            i += 1;
        }
        let keys = places.map(|i| stored(next[i as usize], behind + i));
        if behind < end {
            // SAFETY: as for the first pages.
            k = places.map(|i| unsafe { P::keys(&step, next[i as usize], keys[i as usize]) });
        }
        let weights = state.weights(s, factor, left);
        let mut i = 0;
        while i < AT_ONCE {
            state.take_values::<P>(&v[i], weights[i]);
            if at[i] >= args.pages && block + (i as u32) < end {
                state.sum = [f32::NAN; 2];
            }
            i += 1;
        }
        if behind >= end {
            break;
        }
        // SAFETY: as for the first pages.
        v = places.map(|i| unsafe { P::values(&step, next[i as usize], keys[i as usize]) });
        at = next;
        next = places.map(|i| page_of(&step, behind + AT_ONCE as u32 + i));
        block = behind;
    }
    // SAFETY: the places of this warp.
    unsafe { state.leave::<P>() };
    sync_threads();

    let Own { dims, first, .. } = own;
    let whole = first_page == 0 && has_new;
    let mut h = 0;
    while h < OWN {
        let of_block = first + h as u32;
        if of_block < count {
            // SAFETY: written before the barrier; output and partial result belong to this thread, the sums to that of the first
            // dimensions.
            unsafe {
                let all = of_block_result(of_block, dims, factor);
                if whole {
                    step.write(head + of_block, dims, all.out.map(|v| v / all.sum));
                } else if home < args.pages {
                    let to = step.partial(home, head + of_block);
                    st_x2(to.wrapping_add(2 + 2 * dims as usize).cast(), all.out);
                    if dims == 0 {
                        st_x2(to.cast(), [all.top, all.sum]);
                    }
                }
            }
        }
        h += 1;
    }
    if whole {
        return; // the whole block
    }
    let results = blocks.div_ceil(share);
    // SAFETY: each block comes here once, and then every block of these heads has left its result, where its first page is there.
    unsafe {
        if step.is_last(results, note()) {
            step.combine_fast(results, own, factor);
        }
    }
}

/// Of one head at two dimensions: the largest score, the sum of the weights relative to it, and their weighted values.
#[derive(Clone, Copy)]
struct Sum {
    top: f32,
    sum: f32,
    out: [f32; 2],
}

impl Sum {
    const EMPTY: Self = Self { top: f32::NEG_INFINITY, sum: 0.0, out: [0.0; 2] };

    /// Takes what was made of other keys.
    #[inline(always)]
    fn take(&mut self, other: Self, factor: f32) {
        let top = self.top.max(other.top);
        // Nothing yet, on one side or on both: minus infinity less itself is no number.
        let weight = |t: f32| if t == top { 1.0 } else { exp2_approx((t - top) * factor) };
        let (a, b) = (weight(self.top), weight(other.top));
        self.sum = fma(self.sum, a, other.sum * b);
        let mut e = 0;
        while e < 2 {
            self.out[e] = fma(self.out[e], a, other.out[e] * b);
            e += 1;
        }
        self.top = top;
    }
}

/// What the warps of the block made of head `head`, at dimensions `2 dims, 2 dims + 1`.
///
/// # Safety
///
/// They left it before a barrier.
#[inline(always)]
unsafe fn of_block_result(head: u32, dims: u32, factor: f32) -> Sum {
    let mut all = Sum::EMPTY;
    let mut warp = 0;
    while warp < WARPS {
        let from = result(warp, head);
        // SAFETY: the caller's promise.
        let ([top, sum], out) = unsafe { (from.read_x2(), from.add(4 + 2 * dims).read_x2()) };
        all.take(Sum { top, sum, out }, factor);
        warp += 1;
    }
    all
}

/// Two numbers rounded to bf16, or what the rounding leaves of them.
#[inline(always)]
pub(super) fn split(a: f32, b: f32, rest: bool) -> u32 {
    let word = pack_bf16(a, b);
    let [high_a, high_b] = pair(word);
    let left = pack_bf16(a - high_a, b - high_b);
    if rest { left } else { word }
}

impl State {
    /// The weights of the scores `[page][key][head]`, of `left` keys of each, as factors of the values. Brings sums and outputs to the new maximum.
    #[inline(always)]
    fn weights<const N: usize>(
        &mut self,
        s: [[[f32; 2]; 2]; N],
        factor: f32,
        left: [u32; N],
    ) -> [[u32; 2]; N] {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let seen: [[[f32; 2]; 2]; N] = core::array::from_fn(|n| {
            core::array::from_fn(|r| {
                let there = g + 8 * (r as u32) < left[n];
                s[n][r].map(|s| if there { s } else { f32::NEG_INFINITY })
            })
        });
        let mut p = [[[0.0; 2]; 2]; N];
        let mut old = [1.0; 2];
        let mut h = 0;
        while h < 2 {
            let mut top = self.top[h];
            let mut n = 0;
            while n < N {
                top = top.max(seen[n][0][h]).max(seen[n][1][h]);
                n += 1;
            }
            top = top.max(shuffle_xor(top, 4));
            top = top.max(shuffle_xor(top, 8));
            top = top.max(shuffle_xor(top, 16));
            old[h] = exp2_approx((self.top[h] - top) * factor);
            self.top[h] = top;
            let (mut sum, mut n) = (0.0, 0);
            while n < N {
                let mut r = 0;
                while r < 2 {
                    p[n][r][h] = exp2_approx((seen[n][r][h] - top) * factor);
                    r += 1;
                }
                let both = p[n][0][h] + p[n][1][h];
                sum = if n == 0 { both } else { sum + both };
                n += 1;
            }
            self.sum[h] = fma(self.sum[h], old[h], sum);
            h += 1;
        }
        if ballot(old[0] != 1.0 || old[1] != 1.0) != 0 {
            let mut i = 0;
            while i < 8 {
                let mut c = 0;
                while c < 4 {
                    self.out[i][c] *= old[c % 2];
                    c += 1;
                }
                i += 1;
            }
        }
        p.map(|p| p.map(|[a, b]| transposed(split(a, b, t >= 2))))
    }

    /// Adds the weighted values of sixteen keys.
    #[inline(always)]
    fn take_values<P: Pages>(&mut self, v: &P::Values, weights: [u32; 2]) {
        let ready = P::ready(v);
        let mut i = 0;
        while i < 8 {
            self.out[i] = mma_bf16(P::value_factors(v, &ready, i), weights, self.out[i]);
            i += 1;
        }
    }

    /// Puts what the warp made into its places.
    ///
    /// # Safety
    ///
    /// Nobody uses them.
    #[inline(always)]
    unsafe fn leave<P: Pages>(&self) {
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        // Lanes of the rounded weights write the lower half of the dimensions, the others the upper one.
        let upper = t / 2;
        let mut h = 0;
        while h < 2 {
            let mut sum = self.sum[h];
            sum += shuffle_xor(sum, 4);
            sum += shuffle_xor(sum, 8);
            sum += shuffle_xor(sum, 16);
            let to = result(warp_id(), 2 * (t % 2) + h as u32);
            if g == 0 {
                // SAFETY: by the caller; both lanes of a head write the same.
                unsafe { to.write_x2([self.top[h], sum]) };
            }
            let all: [f32; 8] = core::array::from_fn(|i| {
                let lower = self.out[i][h] + shuffle_xor(self.out[i][h], 2);
                let higher = self.out[i][2 + h] + shuffle_xor(self.out[i][2 + h], 2);
                if upper == 0 { lower } else { higher }
            });
            let to = to.add(4 + P::UPPER * upper + P::APART * g);
            // SAFETY: by the caller.
            unsafe {
                to.write_x4([all[0], all[1], all[2], all[3]]);
                to.add(4).write_x4([all[4], all[5], all[6], all[7]]);
            }
            h += 1;
        }
    }
}

impl Step<'_> {
    /// Takes what `results` blocks left, first to last, for the dimensions and heads of this thread, and writes the output; NaN where a page
    /// is not there.
    ///
    /// # Safety
    ///
    /// The results were written before an acquire of this block.
    #[inline(always)]
    unsafe fn combine_fast(&self, results: u32, Own { dims, first, .. }: Own, factor: f32) {
        let share = walk_share(self.args);
        let last = self.count - 1;
        let mut all = [Sum::EMPTY; OWN];
        let mut from = 0;
        while from < results {
            let mut news = [[Sum::EMPTY; OWN]; COMBINE as usize];
            let mut i = 0;
            while i < COMBINE {
                let at = (from + i).min(results - 1);
                // SAFETY: below the capacity; partial[page, head], two of its dimensions.
                unsafe {
                    let page = page(self.args, self.m, at * share);
                    let mut h = 0;
                    while h < OWN {
                        let head = self.head + (first + h as u32).min(last);
                        let left = self.partial(page.min(self.args.pages - 1), head).cast_const();
                        let [top, sum]: [f32; 2] = ld_x2(left.cast());
                        let out = ld_x2(left.wrapping_add(2 + 2 * dims as usize).cast());
                        let sum = if page < self.args.pages { sum } else { f32::NAN };
                        news[i as usize][h] = Sum { top, sum, out };
                        h += 1;
                    }
                }
                i += 1;
            }
            let mut i = 0;
            while i < COMBINE {
                if from + i < results {
                    let mut h = 0;
                    while h < OWN {
                        all[h].take(news[i as usize][h], factor);
                        h += 1;
                    }
                }
                i += 1;
            }
            from += COMBINE;
        }
        let mut h = 0;
        while h < OWN {
            if first + (h as u32) < self.count {
                let Sum { sum, out, .. } = all[h];
                // SAFETY: they belong to this thread.
                unsafe { self.write(self.head + first + h as u32, dims, out.map(|v| v / sum)) };
            }
            h += 1;
        }
    }
}

/// Key `r` of those of a warp whose values lanes `4 g + t` have.
#[inline(always)]
pub(super) fn value_key(t: u32, r: u32) -> u32 {
    2 * t + r % 2 + 8 * (r / 2)
}
