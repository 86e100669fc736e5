//! Many rows, a block of `SUBS` times 64 threads each: 64 threads have 256 neighbours of it at a time, and so the same four partials all along.
//!
//! Of several times 64 each have a stretch of the row, and hand their partials to those of the next one. The first `N` items of a thread stay in its
//! registers, what is beyond them in places of its own in shared memory.

use contract::act_quant::{ROW_SCRATCH_BYTES, row_groups};
use contract::num::{act_scale, fma, is_ordinary};
use contract::w2a8::{act_bytes, act_index};

use super::held::step;
use super::item::{Four, Item, top, total};
use super::source::{Affine, Norm, Source};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id, warp_max, warp_sum};

/// Elements of 64 threads at a time.
const GROUP: u32 = 256;
/// Their threads.
const SUB: u32 = 64;

/// A thread's items of the row of its block.
struct Own<const SUBS: u32, const N: usize, const P: bool> {
    k: u32,
    /// Where the stretch of these 64 threads ends.
    end: u32,
    /// The first group of these 64 threads.
    group: u32,
    /// How many groups they have.
    count: u32,
    /// How many of the 64 threads there are that have some.
    subs: u32,
}

impl<const SUBS: u32, const N: usize, const P: bool> Own<SUBS, N, P> {
    #[inline(always)]
    fn new(k: u32) -> Self {
        let groups = act_bytes(k as usize) as u32 / GROUP;
        let each = row_groups(k, SUBS);
        let group = thread_idx_x() / SUB * each;
        let left = groups.saturating_sub(group);
        let count = if left < each { left } else { each };
        let stretch = GROUP * (group + count);
        let end = if stretch < k { stretch } else { k };
        Self { k, end, group, count, subs: groups.div_ceil(each) }
    }

    /// Item `n`.
    #[inline(always)]
    fn item(&self, n: u32) -> Item<P> {
        let own = GROUP * self.group + GROUP / 2 * (warp_id() % 2) + Item::<P>::own();
        Item { first: own + GROUP * n, k: self.end }
    }

    /// The place of an item behind those in registers.
    #[inline(always)]
    fn place(n: u32) -> Shared<f32> {
        let number = SUBS * SUB * (n - N as u32) + thread_idx_x();
        dynamic_shared_mem().byte_add(ROW_SCRATCH_BYTES + 16 * number)
    }

    /// Loads all items and takes them: those in registers are given back.
    ///
    /// # Safety
    ///
    /// As for [`Source::take`] of row `row`; the block has the shared memory.
    #[inline(always)]
    unsafe fn load<S: Source>(&self, source: &S, row: u32) -> [Four; N] {
        // SAFETY: the caller's promise, of this thread's items and places.
        unsafe {
            if SUBS > 1 && self.count > N as u32 {
                // Four come while four are taken. No array: the compiler would put it into memory.
                let load = |n: u32| {
                    let one = |i: u32| source.load(row, self.item(n + i));
                    (one(0), one(1), one(2), one(3))
                };
                let put = |n: u32, raw| {
                    if n < self.count {
                        Self::place(n).write_x4(source.take(row, self.item(n), raw));
                    }
                };
                let mut n = N as u32;
                let mut raws = load(n);
                while n < self.count {
                    let next = load(n + 4);
                    let (a, b, c, d) = raws;
                    put(n, a);
                    put(n + 1, b);
                    put(n + 2, c);
                    put(n + 3, d);
                    raws = next;
                    n = opaque(n + 4);
                }
            }
            let mut held = [[0.0; 4]; N];
            let at_once = N / S::TENSORS;
            let mut from = 0;
            while from < N {
                let mut raws = [[[0; 4]; 2]; N];
                let mut n = from;
                // No branches: where they meet again each load would be waited for.
                while n < from + at_once {
                    raws[n] = source.load(row, self.item(n as u32));
                    n += 1;
                }
                let mut n = from;
                while n < from + at_once {
                    held[n] = source.take(row, self.item(n as u32), raws[n]);
                    n += 1;
                }
                from += at_once;
            }
            held
        }
    }

    /// Each item in turn.
    ///
    /// # Safety
    ///
    /// Behind [`Own::load`].
    #[inline(always)]
    unsafe fn look(&self, held: &[Four; N], mut look: impl FnMut(u32, Four)) {
        let mut n = 0;
        while n < N {
            if (n as u32) < self.count {
                look(n as u32, held[n]);
            }
            n += 1;
        }
        if SUBS == 1 || self.count <= N as u32 {
            return;
        }
        // They go in pairs; the next one comes while one is looked at.
        // SAFETY: this thread's places.
        let get = |n: u32| unsafe { Self::place(n).read_x4_if(n < self.count) };
        let mut n = N as u32;
        let (mut a, mut b) = (get(n), get(n + 1));
        while n < self.count {
            let next = (get(n + 2), get(n + 3));
            look(n, a);
            look(n + 1, b);
            (a, b) = next;
            n = opaque(n + 2);
        }
    }

    /// Each item becomes another.
    ///
    /// # Safety
    ///
    /// Behind [`Own::load`].
    #[inline(always)]
    unsafe fn change(&self, held: &mut [Four; N], mut change: impl FnMut(Item<P>, Four) -> Four) {
        let mut n = 0;
        while n < N {
            if (n as u32) < self.count {
                held[n] = change(self.item(n as u32), held[n]);
            }
            n += 1;
        }
        let mut n = N as u32;
        while SUBS > 1 && n < self.count {
            let (a, b) = (Self::place(n), Self::place(n + 1));
            // SAFETY: this thread's places.
            unsafe {
                let values = (a.read_x4(), b.read_x4());
                a.write_x4(change(self.item(n), values.0));
                b.write_x4(change(self.item(n + 1), values.1));
            }
            n = opaque(n + 2);
        }
    }

    /// What the norm has beside item `n` and the three behind it.
    ///
    /// # Safety
    ///
    /// As for [`Affine::of`].
    #[inline(always)]
    unsafe fn beside<S: Source>(&self, affine: &Affine, n: u32) -> [[Four; 2]; 4] {
        // SAFETY: handed on.
        let one = |i: u32| unsafe { affine.of(S::NORM, self.item(n + i)) };
        [one(0), one(1), one(2), one(3)]
    }

    /// Normalises each item, in a layer norm those around the mean; `by` is what is beside the first ones of another one.
    ///
    /// # Safety
    ///
    /// As for [`Own::look`] and [`Own::beside`].
    #[inline(always)]
    unsafe fn normalise<S: Source>(
        &self,
        affine: &Affine,
        held: &mut [Four; N],
        r: f32,
        mut by: [[Four; 2]; 4],
    ) {
        // Four come while four are used, but where there are no registers for as many.
        let ahead = S::NORM != Norm::Layer;
        let normed = |n: u32, values, by| Affine::normed(S::NORM, self.item(n), values, r, by);
        // SAFETY: handed on; this thread's places.
        unsafe {
            let mut from = 0;
            while from < N {
                let mut next = by;
                if ahead && (SUBS > 1 || from + 4 < N) {
                    next = self.beside::<S>(affine, from as u32 + 4);
                }
                // A branch keeps the compiler from asking for all at once.
                if ahead || (from as u32) < self.count {
                    if !ahead {
                        by = self.beside::<S>(affine, from as u32);
                    }
                    let mut i = 0;
                    while i < 4 {
                        held[from + i] = normed((from + i) as u32, held[from + i], by[i]);
                        i += 1;
                    }
                }
                by = next;
                from += 4;
            }
            if SUBS == 1 {
                return;
            }
            let put = |n: u32, by| {
                if n < self.count {
                    let place = Self::place(n);
                    place.write_x4(normed(n, place.read_x4(), by));
                }
            };
            let mut n = N as u32;
            while n < self.count {
                let next = self.beside::<S>(affine, if ahead { n + 4 } else { n });
                let [a, b, c, d] = if ahead { by } else { next };
                put(n, a);
                put(n + 1, b);
                put(n + 2, c);
                put(n + 3, d);
                by = next;
                n = opaque(n + 4);
            }
        }
    }

    /// A sum over the row, in every thread: `take` adds what an element gives, for a zero nothing. `which` is 0 and 1 for two sums.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// Behind [`Own::load`]; each `which` is used once.
    #[inline(always)]
    unsafe fn sum(&self, which: u32, held: &[Four; N], take: impl Fn(f32, f32) -> f32) -> f32 {
        let all = dynamic_shared_mem::<f32>().add(GROUP * which);
        let own = all.add(4 * (thread_idx_x() % SUB));
        // SAFETY: four words of this thread, and behind a barrier each of the one that takes them over; then all are only read.
        unsafe {
            let mut sub = 0;
            while sub < self.subs {
                if SUBS == 1 || thread_idx_x() / SUB == sub {
                    let mut partials = if sub > 0 { own.read_x4() } else { [0.0; 4] };
                    self.look(held, |_, values| {
                        let mut q = 0;
                        while q < 4 {
                            partials[q] = take(partials[q], values[q]);
                            q += 1;
                        }
                    });
                    own.write_x4(partials);
                }
                sync_threads();
                sub = if SUBS == 1 { SUBS } else { opaque(sub + 1) };
            }
            let half = |h: u32| all.add(GROUP / 2 * h + 4 * lane_id()).read_x4();
            Item::<P>::tree(half(0), half(1))
        }
    }

    /// The words of all warps of the block as one.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The block has the shared memory; each `which` is used once.
    #[inline(always)]
    unsafe fn of_warps(&self, which: u32, word: u32, join: impl Fn(u32, u32) -> u32) -> u32 {
        let all = dynamic_shared_mem::<u32>().add(2 * GROUP + 8 * which);
        // SAFETY: a word of each warp for this call, which are only read behind the barrier.
        unsafe {
            if lane_id() == 0 {
                all.add(warp_id()).write(word);
            }
            sync_threads();
            if SUBS == 1 {
                let [a, b] = all.read_x2();
                return join(a, b);
            }
            let ([a, b, c, d], [e, f, g, h]) = (all.read_x4(), all.add(4).read_x4());
            join(join(join(a, b), join(c, d)), join(join(e, f), join(g, h)))
        }
    }
}

/// The row of the block.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with one block per row; the pointers of the source cover the contract's table.
#[inline(always)]
pub(super) unsafe fn row<S: Source, const SUBS: u32, const N: usize>(source: S) {
    const { assert!(SUBS == 1 || SUBS * SUB / LANES == 8) };
    launch_dependents();
    dependency_wait();
    // SAFETY: handed on.
    unsafe {
        if source.pieces() {
            row_in::<S, SUBS, N, true>(&source);
        } else {
            row_in::<S, SUBS, N, false>(&source);
        }
    }
}

/// # Safety
///
/// As for [`row`].
#[inline(always)]
unsafe fn row_in<S: Source, const SUBS: u32, const N: usize, const P: bool>(source: &S) {
    let (rows, row) = (source.rows(), block_idx_x());
    let own = Own::<SUBS, N, P>::new(rows.k);
    // SAFETY: handed on.
    unsafe {
        let mut held = own.load(source, row);
        if S::NORM != Norm::No
            && let Some(affine) = source.affine()
        {
            norm::<S, SUBS, N, P>(&own, &affine, &mut held);
        }
        let mut most = 0;
        own.look(&held, |_, values| most = top(most, values));
        let most = own.of_warps(0, warp_max(most), u32::max);
        let scale = act_scale(f32::from_bits(most));
        // A row that is not finite quantises to zeros.
        let ordinary = is_ordinary(scale);

        let start = row as usize * act_bytes(rows.k as usize);
        let in_group = act_index((GROUP / 2 * (warp_id() % 2) + Item::<P>::word()) as usize);
        let to = rows.acts.cast::<u8>().as_ptr().wrapping_add(start);
        // Groups go in pairs.
        let to = to.wrapping_add(in_group + 2 * GROUP as usize * (own.group / 2) as usize);
        let mut sum = 0;
        own.look(&held, |n, values| {
            let word = Item::<P>::quantised(values, scale, &mut sum);
            let at = to.wrapping_add(step(n as usize));
            // acts[m]: words of whole chunk groups, zeros past the end of the row.
            st(at.cast::<u32>(), if ordinary { word } else { 0 });
        });
        let sum = warp_sum(total(sum, own.count) as i32);
        let sum = own.of_warps(1, sum as u32, u32::wrapping_add);
        if thread_idx_x() == 0 {
            let at = rows.stats.cast::<u32>().as_ptr().wrapping_add(2 * row as usize);
            // stats[m], written by this thread alone: the scale, then the sum.
            st(at, scale.to_bits());
            st(at.wrapping_add(1), if ordinary { sum } else { 0 });
        }
    }
}

/// Normalises the row.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// As for [`Own::sum`] and [`Affine::of`].
#[inline(always)]
unsafe fn norm<S: Source, const SUBS: u32, const N: usize, const P: bool>(
    own: &Own<SUBS, N, P>,
    affine: &Affine,
    held: &mut [Four; N],
) {
    // SAFETY: handed on.
    unsafe {
        if S::NORM == Norm::Layer {
            let mean = own.sum(0, held, |acc, v| acc + v) / own.k as f32;
            own.change(held, |item, values| item.map(values, |_, v| v - mean));
        }
        let mut by = [[[0.0; 4]; 2]; 4];
        if S::NORM != Norm::Layer {
            by = own.beside::<S>(affine, 0);
        }
        let squares = own.sum(1, held, |acc, v| fma(v, v, acc));
        let r = affine.factor(S::NORM, squares, own.k);
        own.normalise::<S>(affine, held, r, by);
    }
}
