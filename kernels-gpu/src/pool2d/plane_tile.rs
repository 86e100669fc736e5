//! What the kernels for windows in planes share: the way of a tile into shared memory, and of its outputs out of it
//! ([`contract::pool2d::PlanesArgs`]).

use contract::pool2d::{Args, PLANES_ROWS, PlanesArgs};

use crate::arch::async_copy::{commit_group, copy_x4, copy_x16, wait_group};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mem::{X4, prefetch_l2, st_x4};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::float::Float;

/// Bytes of an element.
pub(super) const fn size<E: Float>() -> u32 {
    16 / E::PIECE as u32
}

/// Bytes from a multiple of 16 to where row `first` of all planes starts, in memory and in [`bring_lines`]' place.
#[inline(always)]
pub(super) fn behind<E: Float>(pool: &Args, first: u64) -> u32 {
    let row = pool.w.len * size::<E>();
    (pool.x.as_ptr() as usize as u32).wrapping_add((first as u32).wrapping_mul(row)) & 15
}

/// Asks for rows of planes, `lines` from row `first` of all planes on, as they lie in memory: the first [`behind`] `held`.
///
/// # Safety
///
/// They are there; nobody uses this memory.
#[inline(always)]
pub(super) unsafe fn bring_lines<E: Float>(
    pool: &Args,
    [first, lines]: [u64; 2],
    held: Shared<u32>,
    threads: u32,
) {
    let row = pool.w.len * size::<E>();
    let tensor = pool.x.as_ptr().cast_const();
    let x = tensor.wrapping_add((first * u64::from(row)) as usize);
    let shift = x as usize as u32 & 15;
    let x = x.wrapping_sub(shift as usize);
    let rows = u64::from(pool.images) * u64::from(pool.channels) * u64::from(pool.h.len);
    let tensor = tensor as usize..tensor as usize + (rows * u64::from(row)) as usize;
    let mut at = thread_idx_x() * 16;
    while at < shift + lines as u32 * row {
        rolled();
        let from = x.wrapping_add(at as usize);
        // SAFETY: a piece of the tensor, or its elements; a place of this block.
        unsafe {
            if from as usize >= tensor.start && from as usize + 16 <= tensor.end {
                copy_x16(held.byte_add(at), from, true);
            } else {
                let mut i = 0;
                while i < 16 {
                    rolled();
                    let from = from.wrapping_add(i as usize);
                    if tensor.contains(&(from as usize)) {
                        put::<E>(held.byte_add(at + i), E::load_bits_if(true, from.cast()));
                    }
                    i += size::<E>();
                }
            }
        }
        at += threads * 16;
    }
}

/// The tile of a block.
pub(super) struct Tile<'a> {
    pub(super) args: &'a PlanesArgs,
    /// First plane of the tensor, and how many there are.
    pub(super) plane: u64,
    pub(super) planes: u32,
    /// First row and column of outputs, and how many there are.
    pub(super) p0: u32,
    pub(super) q0: u32,
    pub(super) rows: u32,
    pub(super) columns: u32,
    /// First row of a plane that is read and there, and how many of all planes.
    pub(super) i0: u32,
    pub(super) lines: u32,
    /// Row of a plane that its first line would be.
    pub(super) top: i32,
    /// Column at which lines start.
    left: i32,
    /// The even element at or in front of the first row, and what to add for the place of the first line.
    even: u64,
    start: i32,
}

impl<'a> Tile<'a> {
    #[inline(always)]
    pub(super) fn new(args: &'a PlanesArgs) -> Self {
        Self::number(args, opaque_here(block_idx_x()))
    }

    /// Tile `number`.
    #[inline(always)]
    fn number(args: &'a PlanesArgs, number: u32) -> Self {
        let (pool, h, w) = (&args.pool, &args.pool.h, &args.pool.w);
        let (rest, right) = args.by_across.div_rem(number);
        let (group, down) = args.by_down.div_rem(rest);
        let plane = u64::from(group) * u64::from(args.planes);
        let all = u64::from(pool.images) * u64::from(pool.channels);
        let planes =
            if all - plane < u64::from(args.planes) { (all - plane) as u32 } else { args.planes };
        let (p0, q0) = (down * args.rows, right * args.columns);
        let rows = args.rows.min(h.out - p0);
        let reach = (h.kernel - 1) * h.dilation + 1;
        let top = h.at(p0, 0);
        let i0 = top.max(0) as u32;
        let end = (h.at(p0 + rows - 1, 0) + reach as i32).min(h.len as i32).max(i0 as i32) as u32;
        let left = w.at(q0, 0);
        let first = (plane * u64::from(h.len) + u64::from(i0)) * u64::from(w.len);
        Self {
            args,
            plane,
            planes,
            p0,
            q0,
            rows,
            columns: args.columns.min(w.out - q0),
            i0,
            top,
            lines: if args.planes > 1 { planes * h.len } else { end - i0 },
            left,
            even: first & !1,
            start: (first & 1) as i32 + left,
        }
    }

    /// Where line `line` starts, in elements from the even one on.
    #[inline(always)]
    fn place(&self, line: u32) -> i32 {
        self.start + (line * self.args.pool.w.len) as i32
    }

    /// Whether the first window of line `line` starts one element behind the start of the line.
    #[inline(always)]
    pub(super) fn behind<E: Float>(&self, line: u32) -> u32 {
        if E::PIECE == 4 { 0 } else { self.place(line) as u32 & 1 }
    }

    /// Writes 16 bytes of `value` to each of `pieces` of the lines outside of the image, `pitch` bytes apart.
    ///
    /// # Safety
    ///
    /// Nobody uses those places of shared memory.
    #[inline(always)]
    pub(super) unsafe fn surround(
        &self,
        to: Shared<u32>,
        pitch: u32,
        [pieces, threads]: [u32; 2],
        value: X4<u32>,
    ) {
        let (args, h) = (self.args, &self.args.pool.h);
        let front = (self.i0 as i32 - self.top) as u32;
        let there = (h.len - self.i0).min(args.lines - front);
        let outside = args.lines - there;
        let mut task = thread_idx_x();
        while task < self.planes * outside * pieces {
            rolled();
            let (rest, piece) = (task / pieces, task % pieces);
            let (plane, line) = (rest / outside, rest % outside);
            let line = plane * args.lines + if line < front { line } else { line + there };
            // SAFETY: a place of this thread.
            unsafe { to.byte_add(line * pitch + piece * 16).write_x4(value) };
            task += threads;
        }
    }

    /// Brings the lines of the image one behind the other, and writes `nothing` beside them. Other threads see it behind a barrier.
    ///
    /// # Safety
    ///
    /// The arguments are those of the contract, and nobody uses shared memory.
    #[inline(always)]
    pub(super) unsafe fn bring<E: Float>(&self, held: Shared<u32>, threads: u32, nothing: u32) {
        let (args, pool) = (self.args, &self.args.pool);
        let w = &pool.w;
        // Elements of a line that are read; those in front of the image; where the image ends.
        let wide = (self.columns - 1) * w.stride + (w.kernel - 1) * w.dilation + 1;
        let outside = if self.left < 0 { (-self.left) as u32 } else { 0 };
        let right = ((w.len as i32 - self.left) as u32).min(wide);
        let x = pool.x.as_ptr().cast_const();
        let x = x.wrapping_add((self.even * u64::from(size::<E>())) as usize);
        let per = 4 / size::<E>();
        // Of the last word of the tensor there may be half.
        let rows = u64::from(pool.images) * u64::from(pool.channels) * u64::from(pool.h.len);
        let all = rows * u64::from(w.len);
        let odd = E::PIECE == 8 && all & 1 == 1 && all - self.even <= 1 << 30;
        let last = if odd { (all - self.even) as i32 - 1 } else { i32::MIN };
        let (line, word) = args.by_words.div_rem(thread_idx_x());
        let step = args.lines_at_once;
        let alternate = E::PIECE == 8 && (step * w.len) & 1 == 1;
        let mut word = if line < step { word } else { args.words };
        while word < args.words {
            let mut l = line;
            let mut place = self.place(l);
            let at = |place: i32| {
                let behind = if E::PIECE == 8 { place as u32 & 1 } else { 0 };
                let j = (outside + behind) / per + word;
                // The word's first element, from the even one on, and whether there is one of the image.
                (place - behind as i32 + (j * per) as i32, j, j * per < right + behind)
            };
            let (mut from, mut j, mut there) = at(place);
            let mut to = held.byte_add(l * args.pitch);
            while l < self.lines {
                rolled();
                if there {
                    let source = x.wrapping_offset(from as isize * size::<E>() as isize);
                    // SAFETY: a word of the row, or of it and its neighbour; a place of this block.
                    unsafe {
                        if from == last {
                            put::<E>(to.add(j), E::load_bits_if(true, source.cast()));
                        } else {
                            copy_x4(to.add(j), source, true);
                        }
                    }
                }
                l += step;
                to = to.byte_add(step * args.pitch);
                from += (step * w.len) as i32;
                if alternate {
                    place += (step * w.len) as i32;
                    (from, j, there) = at(place);
                }
            }
            word += args.words_at_once;
        }
        commit_group();
        self.ask_ahead::<E>(threads);
        wait_group::<0>();
        if outside == 0 && right == wide {
            return;
        }
        // Words that are half outside have come.
        sync_threads();
        let mut l = thread_idx_x();
        while l < self.lines {
            let to = held.byte_add(l * args.pitch + self.behind::<E>(l) * size::<E>());
            let mut j = if outside == 0 { right } else { 0 };
            while j < wide {
                rolled();
                // SAFETY: a place of this block, outside of the image.
                unsafe { put::<E>(to.byte_add(j * size::<E>()), nothing) };
                j += 1;
                if j == outside {
                    j = right;
                }
            }
            l += threads;
        }
    }

    /// Asks the second-level cache for what a later tile reads.
    #[inline(always)]
    pub(super) fn ask_ahead<E: Float>(&self, threads: u32) {
        let (args, pool) = (self.args, &self.args.pool);
        let next = block_idx_x() + args.ahead;
        if args.ahead > 0 && next < args.blocks {
            let next = Self::number(args, opaque_here(next));
            let x = pool.x.as_ptr().cast_const();
            let x = x.wrapping_add((next.even * u64::from(size::<E>())) as usize);
            let mut at = thread_idx_x() * 128;
            while at < next.lines * pool.w.len * size::<E>() {
                // SAFETY: an address of the tensor.
                unsafe { prefetch_l2(x.wrapping_add(at as usize)) };
                at += threads * 128;
            }
        }
    }

    /// The first output of a tile that has all columns, counted in the tensor.
    #[inline(always)]
    pub(super) fn first(&self) -> u64 {
        let (h, w) = (&self.args.pool.h, &self.args.pool.w);
        (self.plane * u64::from(h.out) + u64::from(self.p0)) * u64::from(w.out)
    }

    /// Bytes from a multiple of 16 to that output, in memory.
    #[inline(always)]
    pub(super) fn shift<E: Float>(&self) -> u32 {
        (self.args.pool.y.as_ptr() as usize as u32).wrapping_add(self.first() as u32 * size::<E>())
            % 16
    }

    /// Where the outputs of the tile begin.
    #[inline(always)]
    pub(super) fn outputs<E: Float>(&self, held: Shared<u32>) -> Outputs<E> {
        let (args, h, w) = (self.args, &self.args.pool.h, &self.args.pool.w);
        let place = (self.plane * u64::from(h.out) + u64::from(self.p0)) * u64::from(w.out);
        let y = args.pool.y.cast::<E>().as_ptr().wrapping_add(place as usize + self.q0 as usize);
        let held = held.byte_add(args.outputs + self.shift::<E>());
        Outputs { y, held, columns: self.columns, row: w.out, direct: args.direct }
    }

    /// Writes the outputs that wait in shared memory.
    ///
    /// # Safety
    ///
    /// All have been put there.
    #[inline(always)]
    pub(super) unsafe fn flush<E: Float>(&self, held: Shared<u32>, threads: u32) {
        let (args, pool) = (self.args, &self.args.pool);
        sync_threads();
        let shift = self.shift::<E>();
        let end = shift + ((self.planes - 1) * args.rows + self.rows) * pool.w.out * size::<E>();
        let to = pool.y.as_ptr().wrapping_add((self.first() * u64::from(size::<E>())) as usize);
        let to = to.wrapping_sub(shift as usize);
        let from = held.byte_add(args.outputs);
        let mut at = thread_idx_x() * 16;
        while at < end {
            // SAFETY: outputs of this block; the ends have whole elements.
            unsafe {
                let piece = from.byte_add(at).read_x4();
                let to = to.wrapping_add(at as usize);
                if at >= shift && at + 16 <= end {
                    st_x4(to.cast(), piece);
                } else {
                    let mut i = 0;
                    while i < E::PIECE {
                        let place = at + i as u32 * size::<E>();
                        if place >= shift && place < end {
                            let word = piece[i * 4 / E::PIECE] >> (16 * (i % (E::PIECE / 4)));
                            E::store_bits(to.cast::<E>().wrapping_add(i), word);
                        }
                        i += 1;
                    }
                }
            }
            at += threads * 16;
        }
    }
}

/// Where a thread writes neighbouring outputs.
pub(super) struct Output<E> {
    y: *mut E,
    held: Shared<u32>,
    /// Outputs of the row from there on, and of a row of the tensor.
    left: u32,
    row: u32,
    direct: u32,
}

/// The outputs of a tile, as [`Output`].
pub(super) struct Outputs<E> {
    y: *mut E,
    held: Shared<u32>,
    columns: u32,
    row: u32,
    direct: u32,
}

impl<E: Float> Outputs<E> {
    /// Those from row `r` of the tile, of all its planes, and column `q` on.
    #[inline(always)]
    pub(super) fn at(&self, r: u32, q: u32) -> Output<E> {
        // A tile of several planes has all of their rows.
        let inside = r * self.row + q;
        Output {
            y: self.y.wrapping_add(inside as usize),
            held: self.held.byte_add(inside * size::<E>()),
            left: self.columns - q,
            // Opaque: its multiples would take registers.
            row: opaque_here(self.row),
            direct: self.direct,
        }
    }
}

impl<E: Float> Output<E> {
    /// Writes four words, and goes to the next row.
    ///
    /// # Safety
    ///
    /// They belong to this thread, as does their place in shared memory.
    #[inline(always)]
    unsafe fn write(&mut self, values: X4<u32>) {
        let len = E::PIECE;
        // SAFETY: the caller's promise.
        unsafe {
            if self.direct == 2 {
                st_x4(self.y.cast(), values);
            } else if self.direct == 1 {
                let count = if (len as u32) < self.left { len as u32 } else { self.left };
                E::scatter(self.y, count, values);
            } else {
                let mut i = 0;
                while i < len {
                    if (i as u32) < self.left {
                        let bits = values[i * 4 / len] >> (16 * (i % (len / 4)));
                        put::<E>(self.held.byte_add(i as u32 * size::<E>()), bits);
                    }
                    i += 1;
                }
            }
        }
        self.y = self.y.wrapping_add(self.row as usize);
        self.held = self.held.byte_add(self.row * size::<E>());
    }

    /// Writes four words of each of the first `rows` rows.
    ///
    /// # Safety
    ///
    /// As for [`Output::write`].
    #[inline(always)]
    pub(super) unsafe fn write_rows(
        &mut self,
        mut values: [X4<u32>; PLANES_ROWS as usize],
        rows: u32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if opaque_here(self.direct) == 2 {
                let mut i = 0;
                while i < values.len() {
                    if (i as u32) < rows {
                        st_x4(self.y.cast(), values[i]);
                    }
                    self.y = self.y.wrapping_add(self.row as usize);
                    i += 1;
                }
                return;
            }
            let mut i = opaque(0);
            while i < rows {
                self.write(values[0]);
                values = [values[1], values[2], values[3], values[3]];
                i = opaque(i + 1);
            }
        }
    }
}

/// Writes an element, given its bits.
///
/// # Safety
///
/// A place in shared memory that nobody else uses.
#[inline(always)]
pub(super) unsafe fn put<E: Float>(to: Shared<u32>, bits: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        if E::PIECE == 4 {
            to.write(bits);
        } else {
            to.cast::<u16>().write_u16(bits as u16);
        }
    }
}
