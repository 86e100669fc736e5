//! Up to four heads of a row at one of its pages: what a step brings into shared memory, and what it leaves.

use contract::attention_paged::{
    Args, STEP_HEAD_DIM, STEP_HEADS, STEP_KEY_BYTES, STEP_THREADS, page_len, partial_len,
};
use contract::num::{BlockSum, Running, f32_to_bf16};
use contract::rope::rotate;

use super::page;
use super::tile::{HEADS, KEYS, OWN, keys, queries};
use crate::arch::async_copy::copy_x16;
use crate::arch::mem::{
    ld_if, ld_nc, ld_x2, ld_x2_if, ld_x4, ld_x4_if, prefetch_l2, st, st_x2, st_x4,
};
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{LANES, lane_id};
use crate::element::Bf16;

/// Lanes that copy a key: one for each 16 bytes of the largest.
const COPY_LANES: u32 = STEP_HEAD_DIM / 8;
/// Results in flight at once when they are combined.
const COMBINE: usize = 8;
/// Dimensions of a head that a thread combines, and threads of a head.
const OUT: u32 = STEP_HEADS * STEP_HEAD_DIM / STEP_THREADS;
const OUT_LANES: u32 = STEP_HEAD_DIM / OUT;
const PIECES: usize = OUT as usize / 4;
/// Elements of a line of the second-level cache.
const LINE: u32 = 64;
/// Pairs of the largest head; heads that a thread rotates a pair of.
const PAIRS: u32 = STEP_HEAD_DIM / 2;
const ROTATED: usize = (STEP_HEADS * PAIRS / STEP_THREADS) as usize;

const _: () = assert!(OUT.is_multiple_of(4) && OWN == 4);

/// Up to four heads of a row, at one of its pages.
pub(super) struct Step<'a> {
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

/// A bf16 word of two numbers.
#[inline(always)]
fn word(low: f32, high: f32) -> u32 {
    u32::from(f32_to_bf16(low)) | u32::from(f32_to_bf16(high)) << 16
}

impl Step<'_> {
    /// Element 0 of head `head` of the row: the q heads, the k heads, the v heads.
    #[inline(always)]
    fn source(&self, head: u32) -> *const f32 {
        let Args { heads, kv_heads, head_dim, qkv, .. } = *self.args;
        let row = self.m as usize * ((heads + 2 * kv_heads) * head_dim) as usize;
        qkv.as_ptr().cast_const().wrapping_add(row + (head * head_dim) as usize)
    }

    /// Element 0 of the kv head's part of the page.
    #[inline(always)]
    fn part(&self) -> usize {
        let Args { kv_heads, head_dim, .. } = *self.args;
        self.page as usize * page_len(kv_heads as usize, head_dim as usize)
            + (self.kv_head * KEYS * head_dim) as usize
    }

    /// Asks for `stored` keys, and for their values to come nearer.
    ///
    /// *Convergence*: every lane calls it.
    ///
    /// # Safety
    ///
    /// The page has so many; nobody uses this warp's shared memory.
    #[inline(always)]
    pub(super) unsafe fn copy(&self, stored: u32) {
        let Args { head_dim, k_pages, v_pages, .. } = *self.args;
        let (lane, first) = (lane_id() % COPY_LANES, lane_id() / COPY_LANES);
        let from = k_pages.cast::<Bf16>().as_ptr().cast_const().wrapping_add(self.part());
        let mut key = first;
        while key < stored {
            if 8 * lane < head_dim {
                let at = (key * head_dim + 8 * lane) as usize;
                // SAFETY: 16 bytes of a key of the page, which is written before this launch.
                unsafe {
                    copy_x16(
                        keys().add(key * STEP_KEY_BYTES + 16 * lane),
                        from.wrapping_add(at),
                        true,
                    )
                };
            }
            key += LANES / COPY_LANES;
        }
        let from = v_pages.cast::<Bf16>().as_ptr().cast_const().wrapping_add(self.part());
        let mut at = lane_id() * LINE;
        while at < stored * head_dim {
            // SAFETY: an element of a value of the page.
            unsafe { prefetch_l2(from.wrapping_add(at as usize)) };
            at += LANES * LINE;
        }
    }

    /// This lane's dimensions of the page's first value; of the first lane again where there are fewer.
    #[inline(always)]
    pub(super) fn values(&self) -> *const u32 {
        let at = self.part() + self.dims().unwrap_or(0) as usize;
        self.args.v_pages.cast::<Bf16>().as_ptr().cast_const().wrapping_add(at).cast()
    }

    /// The first of this lane's dimensions, if it has some.
    #[inline(always)]
    fn dims(&self) -> Option<u32> {
        let first = OWN * lane_id();
        if first < self.args.head_dim { Some(first) } else { None }
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

    /// Rotates `raw` queries into shared memory.
    ///
    /// # Safety
    ///
    /// `pos` is below the capacity; nobody reads the queries.
    #[inline(always)]
    pub(super) unsafe fn load_queries(&self, raw: [[f32; 2]; ROTATED]) {
        let half = self.args.head_dim / 2;
        let pair = thread_idx_x() % PAIRS;
        if pair >= half {
            return;
        }
        // SAFETY: by the caller.
        let (cos, sin) = unsafe { self.angle(pair) };
        let mut i = 0;
        while i < ROTATED {
            let head = thread_idx_x() / PAIRS + i as u32 * (STEP_THREADS / PAIRS);
            let to = queries().add(head * STEP_HEAD_DIM + pair);
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
    unsafe fn angle(&self, pair: u32) -> (f32, f32) {
        let at = self.pos as usize * (self.args.head_dim / 2) as usize + pair as usize;
        // SAFETY: the caller's promise; the tables never change.
        unsafe {
            (
                ld_nc(self.args.cos.as_ptr().cast_const().wrapping_add(at)),
                ld_nc(self.args.sin.as_ptr().cast_const().wrapping_add(at)),
            )
        }
    }

    /// Puts the row's own key behind the stored ones, gives the lane's dimensions of its value, and stores both.
    ///
    /// # Safety
    ///
    /// As for [`Step::load_queries`]; the row's place is in this warp's page.
    #[inline(always)]
    pub(super) unsafe fn make_new(&self) -> [u32; 2] {
        let Args { heads, kv_heads, head_dim, k_pages, v_pages, .. } = *self.args;
        let place = self.pos % KEYS;
        let at = self.part() + (place * head_dim) as usize;
        let half = head_dim / 2;
        // Two neighbours of each half.
        let i = lane_id();
        if 2 * i < half {
            let from = self.source(heads + self.kv_head).wrapping_add(2 * i as usize);
            // SAFETY: two pairs of the key.
            let (low, high) = unsafe {
                let (a, b) = (self.angle(2 * i), self.angle(2 * i + 1));
                let [lo, hi] = [from, from.wrapping_add(half as usize)].map(|p| ld_x2(p.cast()));
                let (a, b) = (rotate(lo[0], hi[0], a.0, a.1), rotate(lo[1], hi[1], b.0, b.1));
                (word(a.0, b.0), word(a.1, b.1))
            };
            let tile = keys().add(place * STEP_KEY_BYTES).cast::<u32>();
            let page = k_pages.cast::<Bf16>().as_ptr().wrapping_add(at).cast::<u32>();
            // SAFETY: words i and half / 2 + i of the key, in both places this lane's.
            unsafe {
                tile.add(i).write(low);
                tile.add(half / 2 + i).write(high);
                if self.stores {
                    st(page.wrapping_add(i as usize), low);
                    st(page.wrapping_add((half / 2 + i) as usize), high);
                }
            }
        }
        let Some(dims) = self.dims() else {
            return [0; 2];
        };
        let from = self.source(heads + kv_heads + self.kv_head).wrapping_add(dims as usize);
        let page = v_pages.cast::<Bf16>().as_ptr().wrapping_add(at + dims as usize);
        // SAFETY: four elements of the value, in the page this lane's.
        unsafe {
            let [a, b, c, d]: [f32; 4] = ld_x4(from.cast());
            let own = [word(a, b), word(c, d)];
            if self.stores {
                st_x2(page.cast(), own);
            }
            own
        }
    }

    /// Element 0 of what page `page` leaves for head `head`.
    #[inline(always)]
    fn partial(&self, page: u32, head: u32) -> *mut f32 {
        let Args { heads, head_dim, partial, .. } = *self.args;
        let at = page as usize * heads as usize + head as usize;
        partial.as_ptr().wrapping_add(at * partial_len(head_dim as usize))
    }

    /// Leaves what the page gives: maxima and sums, which all lanes have, and the lane's dimensions.
    ///
    /// # Safety
    ///
    /// The page is there, and this warp's.
    #[inline(always)]
    pub(super) unsafe fn leave(&self, sums: [BlockSum; HEADS], out: [[f32; OWN as usize]; HEADS]) {
        let mut h = 0;
        while h < HEADS {
            if (h as u32) < self.count {
                let to = self.partial(self.page, self.head + h as u32);
                // SAFETY: partial[page, head], four words and the dimensions'.
                unsafe {
                    if lane_id() == 0 {
                        st_x2(to.cast(), [sums[h].max, sums[h].sum]);
                    }
                    if let Some(dims) = self.dims() {
                        st_x4(to.wrapping_add(4 + dims as usize).cast(), out[h]);
                    }
                }
            }
            h += 1;
        }
    }

    /// The head and the first dimension that this thread writes: of the block's, if it has some.
    #[inline(always)]
    fn place(&self) -> Option<(u32, u32)> {
        let (head, dims) = (thread_idx_x() / OUT_LANES, thread_idx_x() % OUT_LANES * OUT);
        let inside = head < self.count && dims < self.args.head_dim;
        if inside { Some((self.head + head, dims)) } else { None }
    }

    /// Takes the results of `blocks` pages first to last, and writes the output; NaN when one of the pages is
    /// not there.
    ///
    /// # Safety
    ///
    /// The results were written before an acquire of this block; the pages lie below the capacity.
    #[inline(always)]
    pub(super) unsafe fn combine(&self, blocks: u32) {
        let Some((head, dims)) = self.place() else {
            return;
        };
        let (mut running, mut out, mut there) = (Running::EMPTY, [0.0; OUT as usize], true);
        let mut first = 0;
        while first < blocks {
            let pages: [u32; COMBINE] = core::array::from_fn(|b| {
                // The last one again past the end.
                // SAFETY: below the capacity.
                unsafe { page(self.args, self.m, (first + b as u32).min(blocks - 1)) }
            });
            let news: [([f32; 2], [[f32; 4]; PIECES]); COMBINE] = core::array::from_fn(|b| {
                let inside = first + (b as u32) < blocks && pages[b] < self.args.pages;
                let from = self.partial(pages[b], head).cast_const();
                let values = from.wrapping_add(4 + dims as usize).cast::<[f32; 4]>();
                // SAFETY: partial[page, head], two words and the dimensions'.
                unsafe {
                    (
                        ld_x2_if(inside, from.cast()),
                        core::array::from_fn(|i| ld_x4_if(inside, values.wrapping_add(i))),
                    )
                }
            });
            let mut b = 0;
            while b < COMBINE {
                if first + (b as u32) < blocks {
                    let ([max, sum], new) = news[b];
                    let weights = running.take(BlockSum { max, sum });
                    let mut i = 0;
                    while i < out.len() {
                        out[i] = weights.combine(out[i], new[i / 4][i % 4]);
                        i += 1;
                    }
                    there &= pages[b] < self.args.pages;
                }
                b += 1;
            }
            first += COMBINE as u32;
        }
        let out = out.map(|v| if there { running.finish(v) } else { f32::NAN });
        // SAFETY: the thread's dimensions.
        unsafe { self.write(head, dims, out) };
    }

    /// Gives every element of the block's heads the value `v`.
    ///
    /// # Safety
    ///
    /// No other block writes them.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, v: f32) {
        if let Some((head, dims)) = self.place() {
            // SAFETY: by the caller; the dimensions are this thread's.
            unsafe { self.write(head, dims, [v; OUT as usize]) };
        }
    }

    /// Writes dimensions of a head of the output.
    ///
    /// # Safety
    ///
    /// They belong to this thread.
    #[inline(always)]
    unsafe fn write(&self, head: u32, dims: u32, out: [f32; OUT as usize]) {
        let Args { heads, head_dim, .. } = *self.args;
        let at = (self.m as usize * heads as usize + head as usize) * head_dim as usize;
        let to = self.args.out.as_ptr().wrapping_add(at + dims as usize).cast::<[f32; 4]>();
        let mut i = 0;
        while i < PIECES {
            let piece = core::array::from_fn(|e| out[4 * i + e]);
            // SAFETY: by the caller; heads of a multiple of 8 elements are aligned.
            unsafe { st_x4(to.wrapping_add(i), piece) };
            i += 1;
        }
    }
}
