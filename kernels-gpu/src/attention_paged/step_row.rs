//! Up to four heads of a row at one of its pages: what a step brings into shared memory, and what it leaves.

use contract::attention_paged::{
    ABSENT, Args, STEP_HEAD_DIM, STEP_HEADS, STEP_KEY_BYTES, STEP_THREADS, STEP_VALUE_BYTES,
    page_len, partial_len, step_parts, walk_pages, walk_share,
};
use contract::launch::DevPtr;
use contract::num::{Running, Weights, exp, f32_to_bf16};
use contract::rope::rotate;

use super::page;
use super::tile::{HEADS_OF_WARP, KEYS, OWN, factors, head_of_warp, keys, running_max, values};
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_stream};
use crate::arch::atomic;
use crate::arch::mem::{ld, ld_if, ld_nc, ld_x2, st, st_x2};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_idx, shuffle_up};
use crate::element::Bf16;

/// Lanes that copy a key: one for each 16 bytes of the largest.
const COPY_LANES: u32 = STEP_HEAD_DIM / 8;
/// Results in flight at once when they are combined.
const COMBINE: usize = 12;
/// Pairs of the largest head; heads that a thread rotates a pair of.
const PAIRS: u32 = STEP_HEAD_DIM / 2;
const ROTATED: usize = (STEP_HEADS * PAIRS / STEP_THREADS) as usize;

/// Up to four heads of a row, at one of its pages. `SPLIT`: the keys and values of all rows are stored, rows may have pages in common, and
/// results stand by row and page of the row, not by page.
pub(super) struct Step<'a, const SPLIT: bool = false> {
    pub(super) args: &'a Args,
    pub(super) m: u32,
    pub(super) kv_head: u32,
    /// The first head.
    pub(super) head: u32,
    /// Heads.
    pub(super) count: u32,
    pub(super) pos: u32,
    /// The page; [`Args::pages`] or more when it is not there.
    pub(super) page: u32,
    /// Whether this block stores the row's own key, if it is in this page.
    pub(super) stores: bool,
}

/// What a thread carries: dimensions `2 dims, 2 dims + 1` of heads `first ..` of its block's, where they are `inside` of a head.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub(super) dims: u32,
    pub(super) first: u32,
    pub(super) inside: bool,
}

/// A bf16 word of two numbers.
#[inline(always)]
fn word(low: f32, high: f32) -> u32 {
    u32::from(f32_to_bf16(low)) | u32::from(f32_to_bf16(high)) << 16
}

impl<'a, const SPLIT: bool> Step<'a, SPLIT> {
    /// That of this block, at no page yet, and what this thread carries.
    #[inline(always)]
    pub(super) fn of_block(args: &'a Args) -> (Self, Own) {
        let Args { group, head_dim, .. } = *args;
        let (parts, of_row) = (step_parts(group), block_idx_x());
        // Most models have no more heads than a block takes, and then nothing is divided.
        let (kv_head, part) =
            if parts == 1 { (of_row, 0) } else { (of_row / parts, of_row % parts) };
        let head = kv_head * group + part * STEP_HEADS;
        let count = (group - part * STEP_HEADS).min(STEP_HEADS);
        let (dims, pair) = (thread_idx_x() % PAIRS, thread_idx_x() / PAIRS);
        let own = Own { dims, first: pair * OWN as u32, inside: 2 * dims < head_dim };
        let (m, stores) = (block_idx_y(), part == 0);
        (Self { args, m, kv_head, head, count, pos: 0, page: 0, stores }, own)
    }

    /// Writes the output of a row that is not there, zeros, or that cannot be, NaN.
    ///
    /// # Safety
    ///
    /// No other block writes these heads.
    #[inline(always)]
    pub(super) unsafe fn refuse(&self, own: Own) {
        let v = if self.pos == ABSENT { 0.0 } else { f32::NAN };
        let mut h = own.first;
        while own.inside && h < (own.first + OWN as u32).min(self.count) {
            // SAFETY: by the caller.
            unsafe { self.write(self.head + h, own.dims, [v; 2]) };
            h += 1;
        }
    }

    /// The counter of the block's heads.
    #[inline(always)]
    pub(super) fn counter(&self) -> *mut u32 {
        let Args { kv_heads, group, counters, .. } = *self.args;
        let of_row = (kv_heads * step_parts(group)) as usize;
        counters.as_ptr().wrapping_add(self.m as usize * of_row + block_idx_x() as usize)
    }

    /// Whether this block is the last of `blocks` to leave results of its heads, all of which it sees then.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// Each of them calls it once.
    #[inline(always)]
    pub(super) unsafe fn is_last(&self, blocks: u32, note: Shared<u32>) -> bool {
        // The barrier puts the block's writes before the release of its first thread, whose ticket
        // says whether all others have done the same.
        sync_threads();
        if thread_idx_x() == 0 {
            // SAFETY: a counter of these heads; nobody else uses the note.
            unsafe { note.write(atomic::add_acq_rel(self.counter(), 1)) };
        }
        sync_threads();
        // SAFETY: written before the barrier.
        if unsafe { note.read() } + 1 < blocks {
            return false;
        }
        if thread_idx_x() == 0 {
            // SAFETY: every block of these heads has passed the counter.
            unsafe { st(self.counter(), 0) };
        }
        true
    }

    /// Element 0 of head `head` of the row: the q heads, the k heads, the v heads.
    #[inline(always)]
    pub(super) fn source(&self, head: u32) -> *const f32 {
        let Args { heads, kv_heads, head_dim, qkv, .. } = *self.args;
        let row = self.m as usize * ((heads + 2 * kv_heads) * head_dim) as usize;
        qkv.as_ptr().cast_const().wrapping_add(row + (head * head_dim) as usize)
    }

    /// Element 0 of the kv head's part of the page.
    #[inline(always)]
    pub(super) fn part(&self) -> usize {
        let Args { kv_heads, head_dim, .. } = *self.args;
        self.page as usize * page_len(kv_heads as usize, head_dim as usize)
            + (self.kv_head * KEYS * head_dim) as usize
    }

    /// The page of key block `block`; anything past the capacity.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table.
    #[inline(always)]
    pub(super) unsafe fn page_beside(&self, block: u32) -> u32 {
        let Args { table_stride, tables, capacity, .. } = *self.args;
        let at = self.m as usize * table_stride as usize + block as usize;
        // With a condition the assembler leaves the load where it is, beside that of the position and not
        // behind what hangs on it.
        // SAFETY: tables[m, block].
        unsafe {
            ld_if(block < capacity.div_ceil(KEYS), tables.as_ptr().cast_const().wrapping_add(at))
        }
    }

    /// Asks for the first `stored` keys of the page: a group.
    ///
    /// # Safety
    ///
    /// The page is there and has so many, when they are more than 0; nobody uses the place of the keys.
    #[inline(always)]
    pub(super) unsafe fn copy_keys(&self, stored: u32) {
        // SAFETY: handed on.
        unsafe { self.ask::<STEP_KEY_BYTES>(self.args.k_pages, keys(), stored) };
    }

    /// [`Step::copy_keys`] for the values.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn copy_values(&self, stored: u32) {
        // SAFETY: handed on.
        unsafe { self.ask::<STEP_VALUE_BYTES>(self.args.v_pages, values(), stored) };
    }

    /// Asks for `stored` keys or values, `BYTES` apart in `tile`: a group.
    ///
    /// # Safety
    ///
    /// As for [`Step::copy_keys`].
    #[inline(always)]
    unsafe fn ask<const BYTES: u32>(&self, pages: DevPtr<u8>, tile: Shared<u8>, stored: u32) {
        let head_dim = self.args.head_dim;
        let (lane, first) = (thread_idx_x() % COPY_LANES, thread_idx_x() / COPY_LANES);
        let from = pages.cast::<Bf16>().as_ptr().cast_const().wrapping_add(self.part());
        let copy = |key: u32| {
            let at = (key * head_dim + 8 * lane) as usize;
            let (to, from) = (tile.add(key * BYTES + 16 * lane), from.wrapping_add(at));
            // SAFETY: 16 bytes of a key of the page, which is written before this launch.
            unsafe {
                match SPLIT {
                    // Other rows read it too.
                    true => copy_x16(to, from, true),
                    false => copy_x16_stream(to, from),
                }
            }
        };
        if 8 * lane < head_dim {
            if stored == KEYS {
                // Most pages are whole: no look at the end, and no loop.
                let mut i = 0;
                while i < KEYS {
                    copy(first + i);
                    i += STEP_THREADS / COPY_LANES;
                }
            } else {
                let mut key = first;
                while key < stored {
                    copy(key);
                    key += STEP_THREADS / COPY_LANES;
                }
            }
        }
        commit_group();
    }

    /// This thread's pair of each head it rotates, as it stands; the last head again where there are fewer.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table.
    #[inline(always)]
    pub(super) unsafe fn raw_queries(&self) -> [[f32; 2]; ROTATED] {
        let half = self.args.head_dim / 2;
        let pair = thread_idx_x() % PAIRS;
        core::array::from_fn(|i| {
            let head = thread_idx_x() / PAIRS + i as u32 * (STEP_THREADS / PAIRS);
            let from = self.source(self.head + head.min(self.count - 1));
            let from = from.wrapping_add(pair as usize);
            // SAFETY: both elements of a pair of a head of the row, when it is one.
            unsafe {
                [ld_if(pair < half, from), ld_if(pair < half, from.wrapping_add(half as usize))]
            }
        })
    }

    /// Cosine and sine of the pair that this thread rotates; of the last one, where there are fewer.
    ///
    /// # Safety
    ///
    /// `pos` is below the capacity.
    #[inline(always)]
    pub(super) unsafe fn angle_of_thread(&self) -> (f32, f32) {
        let half = self.args.head_dim / 2;
        let pair = (thread_idx_x() % PAIRS).min(half - 1);
        let at = self.pos as usize * half as usize + pair as usize;
        // Plain loads, which the assembler leaves in front of the wait for the kernel before.
        // SAFETY: the caller's promise; the tables never change.
        unsafe {
            (
                ld(self.args.cos.as_ptr().cast_const().wrapping_add(at)),
                ld(self.args.sin.as_ptr().cast_const().wrapping_add(at)),
            )
        }
    }

    /// Rotates `raw` queries by the angle of this thread's pair, into shared memory: [`STEP_HEAD_DIM`] words each.
    ///
    /// # Safety
    ///
    /// Nobody reads the queries.
    #[inline(always)]
    pub(super) unsafe fn load_queries(
        &self,
        queries: Shared<f32>,
        raw: [[f32; 2]; ROTATED],
        (cos, sin): (f32, f32),
    ) {
        let half = self.args.head_dim / 2;
        let pair = thread_idx_x() % PAIRS;
        if pair >= half {
            return;
        }
        let mut i = 0;
        while i < ROTATED {
            let head = thread_idx_x() / PAIRS + i as u32 * (STEP_THREADS / PAIRS);
            let to = queries.add(head * STEP_HEAD_DIM + pair);
            let (lo, hi) = rotate(raw[i][0], raw[i][1], cos, sin);
            // SAFETY: the pair's places.
            unsafe {
                to.write(lo);
                to.add(half).write(hi);
            }
            i += 1;
        }
    }

    /// Cosine and sine of a pair at the row's position.
    ///
    /// # Safety
    ///
    /// `pos` is below the capacity and `pair` below half of a head.
    #[inline(always)]
    pub(super) unsafe fn angle(&self, pair: u32) -> (f32, f32) {
        let at = self.pos as usize * (self.args.head_dim / 2) as usize + pair as usize;
        // SAFETY: the caller's promise; the tables never change.
        unsafe {
            (
                ld_nc(self.args.cos.as_ptr().cast_const().wrapping_add(at)),
                ld_nc(self.args.sin.as_ptr().cast_const().wrapping_add(at)),
            )
        }
    }

    /// This thread's words of the row's own key and value: two neighbours of each half of the key, two of the value.
    ///
    /// # Safety
    ///
    /// `pos` is below the capacity.
    #[inline(always)]
    pub(super) unsafe fn new_words(&self) -> [u32; 3] {
        let Args { heads, kv_heads, head_dim, .. } = *self.args;
        let half = head_dim / 2;
        let i = thread_idx_x();
        let mut words = [0; 3];
        if 2 * i < half {
            let from = self.source(heads + self.kv_head).wrapping_add(2 * i as usize);
            // SAFETY: two pairs of the key.
            unsafe {
                let (a, b) = (self.angle(2 * i), self.angle(2 * i + 1));
                let [lo, hi] = [from, from.wrapping_add(half as usize)].map(|p| ld_x2(p.cast()));
                let (a, b) = (rotate(lo[0], hi[0], a.0, a.1), rotate(lo[1], hi[1], b.0, b.1));
                (words[0], words[1]) = (word(a.0, b.0), word(a.1, b.1));
            }
        }
        if i < half {
            let from = self.source(heads + kv_heads + self.kv_head).wrapping_add(2 * i as usize);
            // SAFETY: two elements of the value.
            let [a, b]: [f32; 2] = unsafe { ld_x2(from.cast()) };
            words[2] = word(a, b);
        }
        words
    }

    /// Puts [`Step::new_words`] into shared memory, the key at `new_key` and the value at `new_value`, and stores them.
    ///
    /// # Safety
    ///
    /// The row's place is in this page, which is there; nobody uses those places in shared memory.
    #[inline(always)]
    pub(super) unsafe fn put_new(
        &self,
        [low, high, value]: [u32; 3],
        [new_key, new_value]: [Shared<u32>; 2],
    ) {
        let Args { head_dim, k_pages, v_pages, .. } = *self.args;
        let place = self.pos % KEYS;
        let at = self.part() + (place * head_dim) as usize;
        let half = head_dim / 2;
        let i = thread_idx_x();
        if 2 * i < half {
            let page = k_pages.cast::<Bf16>().as_ptr().wrapping_add(at).cast::<u32>();
            // SAFETY: words i and half / 2 + i of the key, in both places this thread's.
            unsafe {
                new_key.add(i).write(low);
                new_key.add(half / 2 + i).write(high);
                if self.stores {
                    st(page.wrapping_add(i as usize), low);
                    st(page.wrapping_add((half / 2 + i) as usize), high);
                }
            }
        }
        if i < half {
            let page = v_pages.cast::<Bf16>().as_ptr().wrapping_add(at).cast::<u32>();
            // SAFETY: word i of the value, in both places this thread's.
            unsafe {
                new_value.add(i).write(value);
                if self.stores {
                    st(page.wrapping_add(i as usize), value);
                }
            }
        }
    }

    /// The places of the row's own key and value in the tiles of a page.
    #[inline(always)]
    pub(super) fn places(&self) -> [Shared<u32>; 2] {
        let place = self.pos % KEYS;
        let (key, value) = (place * STEP_KEY_BYTES, place * STEP_VALUE_BYTES);
        [keys().add(key).cast(), values().add(value).cast()]
    }

    /// Where the result of key block `block`, whose page is `page`, stands; past all places where the page is not there.
    #[inline(always)]
    pub(super) fn place(&self, block: u32, page: u32) -> u32 {
        if !SPLIT {
            page
        } else if page >= self.args.pages {
            u32::MAX
        } else {
            self.m * walk_pages(self.args) + block
        }
    }

    /// Places that there are.
    #[inline(always)]
    fn all_places(&self) -> u32 {
        if SPLIT { self.args.m * walk_pages(self.args) } else { self.args.pages }
    }

    /// Element 0 of what stands at place `place` for head `head`.
    #[inline(always)]
    pub(super) fn partial(&self, place: u32, head: u32) -> *mut f32 {
        let Args { heads, head_dim, partial, .. } = *self.args;
        let at = place as usize * heads as usize + head as usize;
        partial.as_ptr().wrapping_add(at * partial_len(head_dim as usize))
    }

    /// A place for each lane, at which a result stands: results `first ..` of `results`, the last one again past the end; past all places where its
    /// page is not there. Of a `WALK` result 0 is that of the first `share` pages, and every other page has one of its own.
    ///
    /// # Safety
    ///
    /// `first < results`, whose pages lie below the capacity.
    #[inline(always)]
    pub(super) unsafe fn of_lanes<const WALK: bool>(&self, first: u32, results: u32) -> u32 {
        let i = (first + lane_id()).min(results - 1);
        let of_result = if WALK && i > 0 { i + walk_share(self.args) - 1 } else { i };
        // SAFETY: below the capacity.
        self.place(of_result, unsafe { page(self.args, self.m, of_result) })
    }

    /// Asks for dimensions `2 dims ..` of what stands at the places of lanes `from ..` for `heads`; the last lane again
    /// from `lanes` on.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// The results were written before an acquire of this block, or are not used.
    #[inline(always)]
    unsafe fn left(
        &self,
        places: u32,
        from: u32,
        lanes: u32,
        heads: [u32; OWN],
        dims: u32,
    ) -> [[[f32; 2]; OWN]; COMBINE] {
        core::array::from_fn(|b| {
            let place = shuffle_idx(places, (from + b as u32).min(lanes - 1));
            heads.map(|head| {
                let from = self.partial(place.min(self.all_places() - 1), head);
                let values = from.wrapping_add(2 + 2 * dims as usize).cast_const();
                // SAFETY: partial[place, head], two of its dimensions.
                unsafe { ld_x2(values.cast()) }
            })
        })
    }

    /// Takes `results`, of which the first stand at `places`, a lane each ([`Step::of_lanes`]), for the dimensions and
    /// heads of this thread, first to last, and writes the output; NaN when one of
    /// the places, or another page, is not `there`.
    ///
    /// A lane makes the factors of a page and head, by way of the running maximum; every thread takes them from shared memory.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The results were written before an acquire of this block, behind which nobody uses the keys.
    #[inline(always)]
    pub(super) unsafe fn combine<const WALK: bool>(
        &self,
        results: u32,
        mut places: u32,
        mut there: bool,
        Own { dims, first: own, inside }: Own,
    ) {
        // The last head, or pair of dimensions, again where there are fewer.
        let last = self.count - 1;
        let heads: [u32; OWN] = core::array::from_fn(|h| self.head + (own + h as u32).min(last));
        let read = dims.min(self.args.head_dim / 2 - 1);
        let mut tops = [f32::NEG_INFINITY; HEADS_OF_WARP as usize];
        let (mut sums, mut out) = ([0.0; OWN], [[0.0; 2]; OWN]);
        let mut first = 0;
        while first < results {
            let lanes = (results - first).min(LANES);
            // SAFETY: by the caller; words of a head and a lane.
            let mut news = unsafe {
                let news = self.left(places, 0, lanes, heads, read);
                let mut i = 0;
                while i < HEADS_OF_WARP {
                    let head = head_of_warp(i);
                    let from =
                        self.partial(places.min(self.all_places() - 1), self.head + head.min(last));
                    let [max, sum] = ld_x2(from.cast_const().cast());
                    let top = running_max(tops[i as usize], max);
                    let up = shuffle_up(top, 1);
                    let before = if lane_id() == 0 { tops[i as usize] } else { up };
                    factors(lane_id(), head).write_x4([
                        exp(before - top),
                        exp(max - top),
                        sum,
                        0.0,
                    ]);
                    tops[i as usize] = shuffle_idx(top, LANES - 1);
                    i += 1;
                }
                news
            };
            there &= ballot(places >= self.all_places()) == 0;
            sync_threads();
            let mut from = 0;
            loop {
                let mut b = 0;
                while b < COMBINE {
                    let page = from + b as u32;
                    if page < lanes {
                        let mut h = 0;
                        while h < OWN {
                            // SAFETY: written before the barrier.
                            let [running, block, sum, _] =
                                unsafe { factors(page, own + h as u32).read_x4() };
                            let weights = Weights { running, block };
                            if WALK && first + page == 0 {
                                // Combined already.
                                (sums[h], out[h]) = (sum, news[b][h]);
                                h += 1;
                                continue;
                            }
                            sums[h] = weights.combine(sums[h], sum);
                            out[h][0] = weights.combine(out[h][0], news[b][h][0]);
                            out[h][1] = weights.combine(out[h][1], news[b][h][1]);
                            h += 1;
                        }
                    }
                    b += 1;
                }
                from += COMBINE as u32;
                if from >= lanes {
                    break;
                }
                // SAFETY: as above.
                news = unsafe { self.left(places, from, lanes, heads, read) };
            }
            first += LANES;
            if first < results {
                // Nobody reads the factors any more.
                sync_threads();
                // SAFETY: first < results.
                places = unsafe { self.of_lanes::<WALK>(first, results) };
            }
        }
        let mut h = 0;
        while h < OWN {
            let running = Running { max: 0.0, sum: sums[h] };
            let values = if there { out[h].map(|v| running.finish(v)) } else { [f32::NAN; 2] };
            if inside && own + (h as u32) < self.count {
                // SAFETY: by the caller.
                unsafe { self.write(heads[h], dims, values) };
            }
            h += 1;
        }
    }

    /// Writes two dimensions of a head of the output.
    ///
    /// # Safety
    ///
    /// They belong to this thread.
    #[inline(always)]
    pub(super) unsafe fn write(&self, head: u32, dims: u32, out: [f32; 2]) {
        let Args { heads, head_dim, .. } = *self.args;
        let at = (self.m as usize * heads as usize + head as usize) * head_dim as usize;
        let to = self.args.out.as_ptr().wrapping_add(at + 2 * dims as usize);
        // SAFETY: by the caller; heads of a multiple of 8 elements are aligned.
        unsafe { st_x2(to.cast(), out) };
    }
}
