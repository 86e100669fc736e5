//! Longer rows: one in the shared memory of a block of `T` threads, as `f32`, or passing through it in chunks; of
//! [`LONG_THREADS`], in that of the blocks of a cluster, each of which has some of the 256 partials with their elements.
//! Also short ones that are not in pieces: one in the shared memory of a warp (`T` = 32).
//!
//! Threads load, change and write items. For a sum, the first threads then walk over elements
//! `p, p + 256, ...`, which are a partial. Partials and maxima go to every block of the cluster.
//!
//! Rows that nothing is done to before the first sum wait as they are stored (`RAW`): in 16 bits in half the room, and where they are in
//! pieces they come by asynchronous copies, all of a row at once.

use core::marker::PhantomData;

use contract::num::{PARTIALS, order_value, tree8};
use contract::row::{LONG_THREADS, SCRATCH_BYTES, lies, split};

#[cfg(level_sm_90)]
use super::post;
use super::tree::{key, max_of_warps, tree_of_warps};
pub use super::turns::Rows;
use super::{Line, width};
#[cfg(level_sm_90)]
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_part, wait_group};
use crate::arch::mem::X4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, sync_warp, warp_id, warp_max, warp_tree};
use crate::float::{Float, Piece};

/// Partials of a sum.
const P: u32 = PARTIALS as u32;
/// Most partials of a thread.
pub const MOST: usize = 8;
/// Groups of a row that comes by asynchronous copies.
const GROUPS: u32 = 4;
/// Elements of a partial that are read at a time.
const SLOTS: usize = 8;

/// The partials of a block: 2^`bits` of them, from `first` on.
#[derive(Clone, Copy)]
struct Columns {
    first: u32,
    bits: u32,
}

/// A row that belongs to a block of `T` threads with room for `ROOM` words, or the block's part of it. It may wait as it is stored
/// where that is `RAW`.
#[derive(Clone, Copy)]
pub struct Block<E, const T: u32, const ROOM: u32, const PIECES: bool, const RAW: bool> {
    /// Elements of this block.
    len: u32,
    /// Those of them in front of the row, which may start anywhere.
    skip: u32,
    columns: Columns,
    element: PhantomData<E>,
}

/// The elements of a pass.
#[derive(Clone, Copy)]
pub struct Chunk {
    /// The first.
    pub start: u32,
    len: u32,
}

impl Chunk {
    /// All of it, as it is held.
    #[inline(always)]
    pub fn all(self) -> [u32; 2] {
        [0, self.len]
    }
}

impl<E: Float, const T: u32, const ROOM: u32, const PIECES: bool, const RAW: bool>
    Block<E, T, ROOM, PIECES, RAW>
{
    /// A warp has the row.
    const WARP: bool = T == LANES;
    /// A cluster has the row.
    const SHARED: bool = T == LONG_THREADS && cfg!(level_sm_90);
    /// The row may come by asynchronous copies where it fits: [`Block::ask_all`].
    pub const COMES: bool = Self::SHARED && PIECES && (RAW || E::PIECE == 4);
    /// Whether it waits in 16 bits an element.
    const HALVES: bool = RAW && Self::SHARED && E::PIECE == 8;
    /// Bytes of a held element.
    const HELD: u32 = if Self::HALVES { 2 } else { 4 };
    /// Most elements that are held.
    const CAP: u32 = ROOM * 4 / Self::HELD;
    /// All rows are one chunk: longer ones are spread in parts, or from sm_90 have blocks with more room.
    const ONE: bool = Self::WARP || cfg!(level_sm_90);
    /// Partials of a thread that has some.
    const OWN: usize = if T < P { (P / T) as usize } else { 1 };
    /// Elements of an item.
    const WIDTH: u32 = width::<E, PIECES>() as u32;

    /// The block of a row.
    ///
    /// *Convergence*: every thread of the row calls it.
    #[inline(always)]
    pub fn new(line: &Line<PIECES>) -> Self {
        let (mut len, mut columns) = (line.k, Columns { first: 0, bits: 8 });
        if Self::SHARED {
            // Those of all rows that start anywhere are as many as of the one that takes most room.
            let blocks = Self::blocks(line.odd.map_or(line.k, |odd| lies(line.k - odd)));
            #[cfg(level_sm_90)]
            if blocks > 1 {
                post::enter(blocks * (T / LANES));
            }
            columns.bits = 8 - blocks.trailing_zeros();
            let width = 1 << columns.bits;
            columns.first = (block_idx_x() << columns.bits) % P;
            let rest = (line.k % P).saturating_sub(columns.first);
            len = (line.k / P << columns.bits) + if rest < width { rest } else { width };
        }
        let skip = if columns.first == 0 { line.odd.unwrap_or(0) } else { 0 };
        Self { len, skip, columns, element: PhantomData }
    }

    /// How many blocks have a row of `k` elements.
    #[inline(always)]
    pub fn blocks(k: u32) -> u32 {
        if Self::SHARED { split(k, Self::HELD) } else { 1 }
    }

    /// Whether the row has several blocks.
    #[inline(always)]
    fn many(&self) -> bool {
        Self::SHARED && self.columns.bits < 8
    }

    /// Waits until all blocks of the row run, before the first [`Block::max`] or [`Block::tree`].
    ///
    /// *Convergence*: every thread of the row calls it, once.
    #[inline(always)]
    pub fn meet(&self) {
        #[cfg(level_sm_90)]
        if self.many() {
            post::meet();
        }
    }

    /// Which element of the row element `s` of this block is.
    #[inline(always)]
    pub fn element(&self, s: u32) -> u32 {
        let Columns { first, bits } = self.columns;
        if Self::SHARED { ((s >> bits) * P + first) | (s & ((1 << bits) - 1)) } else { s }
    }

    /// Where the held elements are.
    #[inline(always)]
    fn held() -> Shared<f32> {
        let all = dynamic_shared_mem::<f32>();
        if Self::WARP { all.add(ROOM * warp_id()) } else { all.byte_add(SCRATCH_BYTES) }
    }

    /// The number of this thread among those of the row.
    #[inline(always)]
    fn thread() -> u32 {
        if Self::WARP { lane_id() } else { thread_idx_x() }
    }

    /// Waits for the other threads of the row.
    ///
    /// *Convergence*: every thread of the row calls it.
    #[inline(always)]
    pub fn wait() {
        if Self::WARP { sync_warp() } else { sync_threads() }
    }

    /// Whether all of the row fits.
    #[inline(always)]
    pub fn fits(&self) -> bool {
        Self::ONE || self.len <= Self::CAP
    }

    /// The chunk from element `start` on.
    #[inline(always)]
    pub fn chunk(&self, start: u32) -> Chunk {
        let left = self.len - start;
        Chunk { start, len: if Self::ONE || left < Self::CAP { left } else { Self::CAP } }
    }

    /// Runs `body` on every chunk of the row.
    #[inline(always)]
    pub fn chunks(&self, mut body: impl FnMut(Chunk)) {
        if Self::ONE {
            return body(self.chunk(0));
        }
        let mut start = 0;
        while start < self.len {
            body(self.chunk(start));
            start = opaque(start + Self::CAP);
        }
    }

    /// What is added to the place of held element `s`. Pieces of eight change their halves in every
    /// other group of four threads: a quarter of a warp then reaches all banks once.
    #[inline(always)]
    fn swap(s: u32) -> u32 {
        if Self::WIDTH == 8 && !Self::HALVES { 4 * ((s / 32) % 2) } else { 0 }
    }

    /// Where held element `s` is that waits as it is stored.
    #[inline(always)]
    pub fn raw_at(s: u32) -> Shared<u32> {
        Self::held().cast().byte_add(Self::HELD * s)
    }

    /// Asks for the piece at element `s` of this block, which is that from `first` on of `row`, of a row that is `line`.
    ///
    /// # Safety
    ///
    /// The block has the shared memory; `row` is one of a tensor, with such a piece. It belongs to this thread until a
    /// barrier behind [`Block::came`].
    #[inline(always)]
    unsafe fn ask(s: u32, line: &Line<PIECES>, row: *const E, first: u32) {
        #[cfg(level_sm_90)]
        // SAFETY: the caller's promise.
        unsafe {
            let (to, from) = (Self::raw_at(s), row.wrapping_add(first as usize));
            if line.odd.is_some() && !line.whole {
                let left = 16 / E::PIECE as u32 * (line.k - first);
                copy_x16_part(to, from, if left < 16 { left } else { 16 });
            } else {
                copy_x16(to, from, true);
            }
        }
        #[cfg(not(level_sm_90))]
        let _ = (s, line, row, first);
    }

    /// Where group `n` of a row that comes ends, of [`GROUPS`]: each is taken while the next one comes.
    #[inline(always)]
    fn group(&self, n: u32) -> u32 {
        let turn = T * Self::WIDTH;
        let end = (self.len / GROUPS / turn + 1) * turn * n;
        if n < GROUPS && end < self.len { end } else { self.len }
    }

    /// Asks for a row, in groups: `first` of the pieces that are `seen` only.
    ///
    /// # Safety
    ///
    /// As for [`Block::ask`], of all pieces of the row of this thread.
    #[inline(always)]
    pub unsafe fn ask_all(&self, line: &Line<PIECES>, row: *const E, seen: u32) {
        let mut n = 0;
        while n < GROUPS {
            let mut s = Self::thread() * Self::WIDTH + if n > 0 { self.group(n) } else { 0 };
            while s < self.group(n + 1) {
                let first = self.element(s);
                if first < seen {
                    // SAFETY: the caller's promise.
                    unsafe { Self::ask(s, line, row, first) };
                }
                s = opaque(s + T * Self::WIDTH);
            }
            #[cfg(level_sm_90)]
            commit_group();
            n = opaque(n + 1);
        }
    }

    /// Waits for one group after the other of what this thread asked for: `each([from, to])` for its elements.
    #[inline(always)]
    pub fn came(&self, mut each: impl FnMut([u32; 2])) {
        let (mut n, mut from) = (0, 0);
        while n < GROUPS {
            #[cfg(level_sm_90)]
            match GROUPS - 1 - n {
                0 => wait_group::<0>(),
                1 => wait_group::<1>(),
                2 => wait_group::<2>(),
                _ => wait_group::<3>(),
            }
            n = opaque(n + 1);
            let to = self.group(n);
            each([from, to]);
            from = to;
        }
    }

    /// The item at element `s` of a chunk that waits as it is stored.
    ///
    /// # Safety
    ///
    /// As for [`Block::get`].
    #[inline(always)]
    pub unsafe fn raw(s: u32) -> X4<u32> {
        // SAFETY: one of the held items.
        unsafe {
            if Self::WIDTH == 1 && Self::HALVES {
                [u32::from(Self::raw_at(s).cast::<u16>().read_u16()), 0, 0, 0]
            } else if Self::WIDTH == 1 {
                [Self::raw_at(s).read(), 0, 0, 0]
            } else {
                Self::raw_at(s).read_x4()
            }
        }
    }

    /// Puts down the item at element `s` of a chunk, which comes as it is stored.
    ///
    /// # Safety
    ///
    /// As for [`Block::put`].
    #[inline(always)]
    pub unsafe fn put_raw(s: u32, raw: X4<u32>) {
        // SAFETY: handed on; one of the held items.
        unsafe {
            if !Self::HALVES {
                Self::put(s, E::widen(raw));
            } else if Self::WIDTH == 1 {
                Self::raw_at(s).cast::<u16>().write_u16(raw[0] as u16);
            } else {
                Self::raw_at(s).write_x4(raw);
            }
        }
    }

    /// One held element.
    ///
    /// # Safety
    ///
    /// As for [`Block::get`].
    #[inline(always)]
    unsafe fn one(at: Shared<f32>) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::HALVES {
                E::widen([u32::from(at.cast::<u16>().read_u16()), 0, 0, 0])[0]
            } else {
                at.read()
            }
        }
    }

    /// Puts down the item at element `s` of a chunk.
    ///
    /// # Safety
    ///
    /// The block has the shared memory; the item belongs to this thread until a barrier.
    #[inline(always)]
    pub unsafe fn put(s: u32, [a, b, c, d, e, f, g, h]: Piece) {
        let (at, swap) = (Self::held().add(s), Self::swap(s));
        // SAFETY: one of the held items.
        unsafe {
            match Self::WIDTH {
                1 => at.write(a),
                4 => at.write_x4([a, b, c, d]),
                _ => {
                    at.add(swap).write_x4([a, b, c, d]);
                    at.add(4 - swap).write_x4([e, f, g, h]);
                }
            }
        }
    }

    /// The item at element `s` of a chunk.
    ///
    /// # Safety
    ///
    /// After [`Block::put`] of this thread, or of any and a barrier.
    #[inline(always)]
    pub unsafe fn get(s: u32) -> Piece {
        if Self::HALVES {
            // SAFETY: handed on.
            return E::widen(unsafe { Self::raw(s) });
        }
        let (at, swap) = (Self::held().add(s), Self::swap(s));
        let mut out = [0.0; 8];
        // SAFETY: one of the held items.
        unsafe {
            match Self::WIDTH {
                1 => out[0] = at.read(),
                4 => [out[0], out[1], out[2], out[3]] = at.read_x4(),
                _ => {
                    [out[0], out[1], out[2], out[3]] = at.add(swap).read_x4();
                    [out[4], out[5], out[6], out[7]] = at.add(4 - swap).read_x4();
                }
            }
        }
        out
    }

    /// Loads this thread's items of a chunk, `AT_ONCE` at a time: `load(there, first)` reads one, `each(s, first, raw)` has
    /// it, at element `s` of the chunk and `first` of the row.
    #[inline(always)]
    pub fn load<R: Copy, const AT_ONCE: usize>(
        &self,
        chunk: Chunk,
        nothing: R,
        load: impl Fn(bool, u32) -> R,
        mut each: impl FnMut(u32, u32, R),
    ) {
        let mut s = Self::thread() * Self::WIDTH;
        while s < chunk.len {
            let place = |i: usize| s + T * Self::WIDTH * i as u32;
            let mut raws = [nothing; AT_ONCE];
            let mut i = 0;
            while i < AT_ONCE {
                raws[i] = load(place(i) < chunk.len, self.element(chunk.start + place(i)));
                i += 1;
            }
            let mut i = 0;
            while i < AT_ONCE {
                if place(i) < chunk.len {
                    each(place(i), self.element(chunk.start + place(i)), raws[i]);
                }
                i += 1;
            }
            s = opaque(place(AT_ONCE));
        }
    }

    /// This thread's items of a held chunk again, or of a group of it: `each(s)`.
    #[inline(always)]
    pub fn own(&self, [from, to]: [u32; 2], mut each: impl FnMut(u32)) {
        let mut s = from + Self::thread() * Self::WIDTH;
        while s < to {
            each(s);
            if s + T * Self::WIDTH < to {
                each(s + T * Self::WIDTH);
            }
            s = opaque(s + 2 * T * Self::WIDTH);
        }
    }

    /// This thread's words of a held row, up to four at a time: `each(count, at)` for the elements that they begin with.
    #[inline(always)]
    pub fn words(&self, mut each: impl FnMut(usize, [u32; 4])) {
        let width = 4 / Self::HELD;
        let mut s = Self::thread() * width;
        while s < self.len {
            let at: [u32; 4] = core::array::from_fn(|i| s + T * width * i as u32);
            let mut count = 1;
            while count < 4 && at[count] < self.len {
                count += 1;
            }
            each(count, at);
            s = opaque(at[3] + T * width);
        }
    }

    /// Takes the held elements of a chunk, or those of them `from` one to another, into this thread's partials: [`Block::groups`] has these.
    ///
    /// # Safety
    ///
    /// After a barrier behind the last [`Block::put`].
    #[inline(always)]
    pub unsafe fn take(
        &self,
        [from, to]: [u32; 2],
        partials: &mut [f32; MOST],
        step: impl Fn(f32, f32) -> f32,
    ) {
        let stride = if Self::SHARED { 1 << self.columns.bits } else { P };
        if thread_idx_x() >= stride && !Self::WARP {
            return;
        }
        if Self::WARP {
            // All partials of a lane in turn: they are many, and their elements few.
            let mut s = from + lane_id();
            while s < to {
                let mut part = 0;
                while part < Self::OWN {
                    let at = s + LANES * part as u32;
                    if at < to {
                        // SAFETY: a held element.
                        partials[part] = step(partials[part], unsafe {
                            Self::held().add(at ^ Self::swap(at)).read()
                        });
                    }
                    part += 1;
                }
                s = opaque(s + P);
            }
            return;
        }
        let mut part = 0;
        while part < Self::OWN {
            let own = Self::thread() + T * part as u32;
            let read = |s: u32| {
                let at = own + s;
                // SAFETY: a held element.
                unsafe { Self::one(Self::held().byte_add(Self::HELD * (at ^ Self::swap(at)))) }
            };
            // What is added to a place is the same in every other row of columns, and in all where they are 64 and more.
            let ahead = |s: u32| {
                let at = ((own + s) ^ Self::swap(own + s)).wrapping_sub(s);
                Self::held().byte_add(Self::HELD.wrapping_mul(at))
            };
            let both = [ahead(0), ahead(stride)];
            let mut acc = partials[part];
            let mut s = if from + own < self.skip { stride } else { from };
            while s + own + stride * (SLOTS as u32 - 1) < to {
                let mut values = [0.0; SLOTS];
                let mut i = 0;
                while i < SLOTS {
                    let at = both[i % 2].byte_add(Self::HELD * (s + stride * i as u32));
                    // SAFETY: a held element.
                    values[i] = unsafe { Self::one(at) };
                    i += 1;
                }
                let mut i = 0;
                while i < SLOTS {
                    acc = step(acc, values[i]);
                    i += 1;
                }
                s = opaque(s + stride * SLOTS as u32);
            }
            while s + own < to {
                acc = step(acc, read(s));
                s = opaque(s + stride);
            }
            partials[part] = acc;
            part += 1;
        }
    }

    /// The tree over the partials of all threads, in every thread. `which` is 0 and 1 for the two sums of a kernel.
    ///
    /// *Convergence*: every thread of the row calls it.
    ///
    /// # Safety
    ///
    /// The block has the shared memory; each `which` is used once.
    #[inline(always)]
    pub unsafe fn tree(&self, which: u32, partials: [f32; MOST]) -> f32 {
        if Self::WARP {
            return warp_tree(tree8(partials));
        }
        let scratch = dynamic_shared_mem::<f32>().add(P * which);
        // SAFETY: 256 words for this call, written by one thread each and read behind the barrier.
        unsafe {
            if self.many() {
                #[cfg(level_sm_90)]
                {
                    let Columns { first, bits } = self.columns;
                    let mut rank = if thread_idx_x() >> bits == 0 { 0 } else { P >> bits };
                    while rank < P >> bits {
                        post::tell(which, rank, scratch.add(first + thread_idx_x()), partials[0]);
                        rank += 1;
                    }
                    post::heard(which);
                }
            } else {
                let mut part = 0;
                while part < Self::OWN {
                    scratch.add(thread_idx_x() + T * part as u32).write(partials[part]);
                    part += 1;
                }
                sync_threads();
            }
            tree_of_warps(dynamic_shared_mem::<f32>().add(P * which))
        }
    }

    /// The largest value of the block, NaN if one is the NaN of `arch::float::maximum`, in every thread.
    ///
    /// *Convergence*: every thread of the row calls it.
    ///
    /// # Safety
    ///
    /// The block has the shared memory; called once.
    #[inline(always)]
    pub unsafe fn max(&self, value: f32) -> f32 {
        if Self::WARP {
            return order_value(warp_max(key(value)));
        }
        #[cfg(level_sm_90)]
        if self.many() {
            let scratch = dynamic_shared_mem::<u32>().add(2 * P);
            let Columns { first, bits } = self.columns;
            let (blocks, warps) = (P >> bits, T / LANES);
            let key = warp_max(key(value));
            // SAFETY: a word of each warp of the cluster for this call.
            unsafe {
                if lane_id() < blocks {
                    let at = (first >> bits) * warps + warp_id();
                    post::tell(post::MAXIMA, lane_id(), scratch.add(at), key);
                }
                post::heard(post::MAXIMA);
                let read = |at: u32| if at < blocks * warps { scratch.add(at).read() } else { 0 };
                let (low, high) = (read(lane_id()), read(lane_id() + LANES));
                return order_value(warp_max(if low > high { low } else { high }));
            }
        }
        // SAFETY: handed on.
        unsafe {
            max_of_warps(dynamic_shared_mem::<u32>().add(2 * P), T / LANES, value, sync_threads)
        }
    }
}
