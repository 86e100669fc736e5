//! Windows of the usual sizes in planes, rows innermost: what a tile of outputs reads comes to shared memory at once. A thread walks down
//! 16 bytes of columns, makes maxima or sums of each row once, and of them those of columns ([`contract::pool2d::strips_of`]).

use core::marker::PhantomData;

use contract::launch::Kernel;
use contract::pool2d::{
    PlanesArgs, STRIPS_THREADS, Share, StripsAvgBf16, StripsAvgF16, StripsAvgF32, StripsMaxBf16,
    StripsMaxF16, StripsMaxF32, strips_bare, strips_first,
};

use super::item::plus;
use super::plane_tile::{Tile, size};
use super::planes::{WORDS, across};
use super::strip_tile::shifted;
use crate::arch::dot::permute;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque_here, rolled};
use crate::arch::mem::{X4, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};

/// How rows lie in shared memory: each at its place with half a window of padding in mind, or with none; or one behind the other.
const PADDED: u8 = 0;
const BARE: u8 = 1;
const PACKED: u8 = 2;

/// The rows that a thread reads, one after the other.
struct Lines {
    at: Shared<u32>,
    pitch: u32,
    /// Of packed ones: the number of the next row in the image, and how many there are; what a row outside of it is read from; the bits of
    /// each word that are of the image, and what the others are.
    row: u32,
    rows: u32,
    outside: Shared<u32>,
    keep: [u32; 16],
    nothing: u32,
}

/// Windows of `K` by `K`, `S` apart, of rows that lie as `LIE` says.
struct Form<E, const K: usize, const S: usize, const LIE: u8>(PhantomData<E>);

impl<E: Float, const K: usize, const S: usize, const LIE: u8> Form<E, K, S, LIE> {
    /// Where the taps of a piece start, in elements from a multiple of 16 bytes on; packed ones are brought there.
    const FIRST: usize = if LIE == PACKED {
        0
    } else {
        strips_first(K as u32, E::PIECE as u32, LIE == BARE) as usize
    };
    /// Taps of a piece of outputs, and words that have them.
    const TAPS: usize = (E::PIECE - 1) * S + K;
    const WIDE: usize = Self::TAPS.div_ceil(E::PIECE / 4);
    /// Pieces of 16 bytes that have them.
    const LOADS: usize =
        (Self::TAPS + if LIE == PACKED { E::PIECE - 1 } else { Self::FIRST }).div_ceil(E::PIECE);
    /// Windows that a row is part of.
    const AGES: usize = (K - 1) / S + 1;

    /// The words that have the taps of a piece of the next row, of which [`Form::FIRST`] is the first.
    ///
    /// # Safety
    ///
    /// They have come to shared memory: at a multiple of 16 bytes where they are not packed.
    #[inline(always)]
    unsafe fn words(lines: &mut Lines) -> [u32; WORDS] {
        let mut at = lines.at;
        let mut behind = 0;
        if LIE == PACKED {
            let here = lines.row < lines.rows;
            let from = if here { at.addr() } else { lines.outside.addr() };
            behind = from & 15;
            at = at.byte_add((from - behind).wrapping_sub(at.addr()));
            lines.row = lines.row.wrapping_add(1);
        }
        lines.at = lines.at.byte_add(opaque_here(lines.pitch));
        let mut raw = [0; WORDS];
        let mut j = 0;
        while j < Self::LOADS {
            // SAFETY: the caller's promise; what is behind the line is not used.
            let piece = unsafe { at.byte_add(16 * j as u32).read_x4() };
            let mut i = 0;
            while i < 4 {
                raw[4 * j + i] = piece[i];
                i += 1;
            }
            j += 1;
        }
        if LIE != PACKED {
            return raw;
        }
        let raw = shifted::<E, WORDS>(raw, behind);
        core::array::from_fn(|i| {
            let keep = if i < Self::WIDE { lines.keep[i] } else { 0 };
            raw[i] & keep | lines.nothing & !keep
        })
    }

    /// The maxima of a row of each window of a piece.
    #[inline(always)]
    fn tops(raw: [u32; WORDS]) -> X4<u32> {
        let per = E::PIECE / 4;
        let get = |i: usize| if i < WORDS { raw[i] } else { 0 };
        across::<E, K, S>(&core::array::from_fn(|i| {
            let from = i + Self::FIRST / per;
            if i * per >= Self::TAPS {
                0
            } else if Self::FIRST.is_multiple_of(per) {
                get(from)
            } else {
                permute(get(from), get(from + 1), 0x5432)
            }
        }))
    }

    /// The sums of a row of each window of a piece: of two and two neighbours.
    #[inline(always)]
    fn sums(raw: [u32; WORDS]) -> Piece {
        let per = E::PIECE / 4;
        let value = |i: usize| {
            let at = Self::FIRST + i;
            E::widen([raw[at / per], 0, 0, 0])[at % per]
        };
        let pairs: [f32; 32] =
            core::array::from_fn(
                |i| {
                    if i + 1 < Self::TAPS { value(i) + value(i + 1) } else { 0.0 }
                },
            );
        core::array::from_fn(|o| {
            if o >= E::PIECE {
                return 0.0;
            }
            let mut sum = pairs[o * S];
            let mut s = 2;
            while s < K {
                sum += if s + 1 < K { pairs[o * S + s] } else { value(o * S + s) };
                s += 2;
            }
            sum
        })
    }
}

/// Where a thread writes.
struct Out<E> {
    y: *mut X4<u32>,
    held: Shared<u32>,
    /// Bytes to the next row.
    row: u32,
    /// Outputs of a row from the first one of the piece on.
    left: u32,
    /// [`PlanesArgs::direct`].
    direct: u32,
    /// Number of the next row, and rows that there are. Leaving the loop behind the last one also keeps the rows of a turn apart, for which
    /// there would be no registers together.
    next: u32,
    rows: u32,
    element: PhantomData<E>,
}

impl<E: Float> Out<E> {
    /// Writes a piece, and goes to the next row, and says whether there is one; rows in front of the first one are none. `always`: rows of outputs
    /// are pieces of 16 bytes.
    ///
    /// # Safety
    ///
    /// The rows belong to this thread.
    #[inline(always)]
    unsafe fn put(&mut self, value: X4<u32>, always: bool) -> bool {
        if self.next as i32 >= 0 {
            let direct = if always { 2 } else { opaque_here(self.direct) };
            let left = opaque_here(self.left);
            let per = E::PIECE as u32 / 4;
            let mut i = 0;
            // SAFETY: the caller's promise.
            unsafe {
                if direct == 2 {
                    st_x4(self.y, value);
                } else if direct == 1 || E::PIECE == 4 {
                    while i < 4 {
                        if i * per < left {
                            self.held.add(i).write(value[i as usize]);
                        }
                        i += 1;
                    }
                } else {
                    while i < 8 {
                        if i < left {
                            let bits = value[i as usize / 2] >> (16 * (i % 2));
                            self.held.cast::<u16>().add(i).write_u16(bits as u16);
                        }
                        i += 1;
                    }
                }
            }
        }
        // Opaque: their multiples would take registers.
        let row = opaque_here(self.row);
        self.y = self.y.wrapping_byte_add(row as usize);
        self.held = self.held.byte_add(row);
        self.next = self.next.wrapping_add(1);
        (self.next as i32) < self.rows as i32
    }
}

/// Maxima of columns, of windows a row apart: blocks of a row less than a window. A window is the end of one and the start of the next one.
///
/// # Safety
///
/// The rows have come to shared memory; outputs of this thread.
#[inline(always)]
unsafe fn blocks<E: Float, const K: usize, const LIE: u8>(mut lines: Lines, mut out: Out<E>) {
    let mut ends = [[0u32; 4]; 16];
    'walk: loop {
        rolled();
        let mut start = [0; 4];
        let mut tops = [[0u32; 4]; 16];
        let mut i = 0;
        while i + 1 < K {
            // SAFETY: the caller's promise.
            unsafe {
                tops[i] = Form::<E, K, 1, LIE>::tops(Form::<E, K, 1, LIE>::words(&mut lines));
                start = if i == 0 { tops[0] } else { E::max_raw(start, tops[i]) };
                if !out.put(E::max_raw(ends[i], start), const { LIE != PACKED }) {
                    break 'walk;
                }
            }
            i += 1;
        }
        let mut i = K - 1;
        while i > 0 {
            i -= 1;
            ends[i] = if i + 2 > K - 1 { tops[i] } else { E::max_raw(tops[i], ends[i + 1]) };
        }
    }
}

/// Maxima of columns, of windows two rows apart.
///
/// # Safety
///
/// As for [`blocks`].
#[inline(always)]
unsafe fn tops<E: Float, const K: usize, const S: usize, const LIE: u8>(
    mut lines: Lines,
    mut out: Out<E>,
) {
    let count = const { Form::<E, K, S, LIE>::AGES };
    let mut ages = [[0u32; 4]; 8];
    'walk: loop {
        rolled();
        let mut u = 0;
        while u < count {
            let mut j = 0;
            while j < S {
                // SAFETY: the caller's promise.
                let words = unsafe { Form::<E, K, S, LIE>::words(&mut lines) };
                let row = Form::<E, K, S, LIE>::tops(words);
                let mut age = 0;
                while age < count {
                    let slot = (u + count - age) % count;
                    if age * S + j == 0 {
                        ages[slot] = row;
                    } else if age * S + j < K {
                        ages[slot] = E::max_raw(ages[slot], row);
                    }
                    age += 1;
                }
                if j == (K - 1) % S {
                    // SAFETY: handed on.
                    if !unsafe { out.put(ages[(u + 1) % count], false) } {
                        break 'walk;
                    }
                }
                j += 1;
            }
            u += 1;
        }
    }
}

/// What the sums of a thread are divided by.
struct Counts {
    full: Share,
    /// Whether that is so everywhere.
    whole: bool,
    /// The first row of the next windows, and where rows end that count.
    start: i32,
    step: i32,
    low: i32,
    high: i32,
    /// The table of shares; of each column of windows, four bits of how many columns they have, less one.
    table: Shared<f32>,
    columns: u32,
}

impl Counts {
    /// Fills the table of shares: by rows, by columns.
    ///
    /// # Safety
    ///
    /// Nobody uses that memory; others see it behind a barrier.
    #[inline(always)]
    unsafe fn table(args: &PlanesArgs, held: Shared<u32>) {
        let side = args.pool.w.kernel;
        let at = thread_idx_x();
        if args.whole == 0 && at < side * side {
            let share = Share::of((at / side + 1) * (at % side + 1));
            // SAFETY: the caller's promise.
            unsafe { held.byte_add(args.tops).cast::<f32>().add(2 * at).write_x2(share.parts()) };
        }
    }

    /// Of the thread whose first output is `at`, `none` rows in front of it.
    #[inline(always)]
    fn new<E: Float>(args: &PlanesArgs, held: Shared<u32>, [p, q]: [u32; 2], none: u32) -> Self {
        let (h, w) = (&args.pool.h, &args.pool.w);
        let padded = args.pool.count_include_pad == 1;
        let (low, high) = if padded { (-(h.padding as i32), h.padding) } else { (0, 0) };
        let table = held.byte_add(args.tops).cast::<f32>();
        let whole = args.whole == 1;
        let (mut columns, mut v) = (0, 0);
        while v < E::PIECE && !whole {
            // Behind the last output as many as there.
            let taps = w.taps((q + v as u32).min(w.out - 1), padded);
            columns |= (taps - 1) << (4 * v);
            v += 1;
        }
        Self {
            full: Share::of(h.kernel * w.kernel),
            whole,
            start: h.at(p, 0) - (none * h.stride) as i32,
            step: h.stride as i32,
            low,
            high: (h.len + high) as i32,
            table,
            columns,
        }
    }

    /// The averages of the next row, windows of `K` by `K`.
    #[inline(always)]
    fn averages<E: Float, const K: usize>(&mut self, sums: Piece) -> X4<u32> {
        let start = self.start;
        self.start += self.step;
        let of = |v: usize, share: Share| if v < E::PIECE { share.take(sums[v]) } else { 0.0 };
        if opaque_here(u32::from(self.whole)) == 1 {
            return E::narrow(core::array::from_fn(|v| of(v, self.full)));
        }
        // Of rows that are not there some number.
        let rows = ((start + K as i32).min(self.high) - start.max(self.low)).max(1) as u32;
        let row = self.table.byte_add((rows - 1) * (8 * K as u32));
        E::narrow(core::array::from_fn(|v| {
            if v >= E::PIECE {
                return 0.0;
            }
            let column = if v == 0 { self.columns << 3 } else { self.columns >> (4 * v - 3) };
            // SAFETY: an entry of the table.
            of(v, Share::from_parts(unsafe { row.byte_add(column & 0x78).read_x2() }))
        }))
    }
}

/// Averages: sums of rows, two and two of which are taken by all windows that they are part of.
///
/// # Safety
///
/// As for [`blocks`].
#[inline(always)]
unsafe fn averages<E: Float, const K: usize, const S: usize, const LIE: u8>(
    mut lines: Lines,
    mut out: Out<E>,
    counts: &mut Counts,
) {
    let count = const { Form::<E, K, S, LIE>::AGES };
    let mut ages: [Piece; 8] = [[0.0; 8]; 8];
    let mut before: Piece = [0.0; 8];
    'walk: loop {
        rolled();
        let mut u = 0;
        while u < count {
            let mut j = 0;
            while j < S {
                // SAFETY: the caller's promise.
                let words = unsafe { Form::<E, K, S, LIE>::words(&mut lines) };
                let row = Form::<E, K, S, LIE>::sums(words);
                // Of windows a row apart any two rows are a pair of some of them.
                let pair = plus(before, row);
                before = row;
                let mut age = 0;
                while age < count {
                    let (slot, r) = ((u + count - age) % count, age * S + j);
                    if r == 1 {
                        ages[slot] = pair;
                    } else if r < K && r % 2 == 1 {
                        ages[slot] = plus(ages[slot], pair);
                    } else if r + 1 == K && r > 0 {
                        ages[slot] = plus(ages[slot], row);
                    }
                    age += 1;
                }
                if j == (K - 1) % S {
                    let value = counts.averages::<E, K>(ages[(u + 1) % count]);
                    // SAFETY: handed on.
                    if !unsafe { out.put(value, const { S == 1 && LIE != PACKED }) } {
                        break 'walk;
                    }
                }
                j += 1;
            }
            u += 1;
        }
    }
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::pool2d::strips_of` for elements `E` and these windows; their
/// pointers cover the contract's table. The tile has come to shared memory.
#[inline(always)]
unsafe fn make<E: Float, const AVG: bool, const K: usize, const S: usize, const LIE: u8>(
    tile: &Tile<'_>,
    held: Shared<u32>,
) {
    let args = tile.args;
    let (h, w) = (&args.pool.h, &args.pool.w);
    // Rows of outputs that the first turns of a thread do not end.
    let none = if AVG || S > 1 { (K - 1) / S } else { K - 1 } as u32;
    let mut task = thread_idx_x();
    while task < args.tasks {
        rolled();
        let (rest, piece) = args.by_columns.div_rem(task);
        let (plane, group) = args.by_rows.div_rem(rest);
        task += STRIPS_THREADS;
        let r = group * args.run;
        if plane >= tile.planes || r >= tile.rows {
            continue;
        }
        let mut lines = Lines {
            at: held.byte_add(piece * 16 * S as u32),
            pitch: args.pitch,
            row: 0,
            rows: h.len,
            outside: held,
            keep: [0; 16],
            nothing: if AVG { 0 } else { E::LOWEST },
        };
        let row = r * S as u32;
        if LIE == PACKED {
            // Of the image, and among the rows that have come.
            lines.row = (tile.top as u32).wrapping_add(row);
            let line = (plane * h.len).wrapping_add(lines.row).wrapping_sub(tile.i0);
            let first = (piece * E::PIECE as u32 * S as u32) as i32 - w.padding as i32;
            let at =
                (line.wrapping_mul(w.len).wrapping_add_signed(first)).wrapping_mul(size::<E>());
            lines.at = tile.packed::<E>(held).byte_add(at);
            let there = |i: usize| ((first + i as i32) as u32) < w.len;
            let per = E::PIECE / 4;
            let mut i = 0;
            while i < const { Form::<E, K, S, LIE>::WIDE } {
                let low = if there(i * per) { E::ONE } else { 0 };
                let high = if per == 2 && there(2 * i + 1) { 0xffff_0000 } else { 0 };
                lines.keep[i] = low | high;
                i += 1;
            }
        } else {
            lines.at = lines.at.byte_add((plane * args.lines + row) * args.pitch);
        }
        let (row, line) = (plane * args.rows + r, w.out * size::<E>());
        let y = tile.y::<E>().wrapping_byte_add(row as usize * line as usize + piece as usize * 16);
        let staged = held.byte_add(args.outputs + tile.shift::<E>() + row * line + piece * 16);
        let left = tile.rows - r;
        let before = none * line;
        let out = Out {
            y: y.wrapping_byte_sub(before as usize).cast(),
            held: staged.byte_add(before.wrapping_neg()),
            row: line,
            left: w.out - piece * E::PIECE as u32,
            direct: args.direct,
            next: none.wrapping_neg(),
            rows: if left < args.run { left } else { args.run },
            element: PhantomData::<E>,
        };
        // SAFETY: handed on.
        unsafe {
            if AVG {
                let first = [tile.p0 + r, piece * E::PIECE as u32];
                let mut counts = Counts::new::<E>(args, held, first, none);
                averages::<E, K, S, LIE>(lines, out, &mut counts);
            } else if S == 1 {
                blocks::<E, K, LIE>(lines, out);
            } else {
                tops::<E, K, S, LIE>(lines, out);
            }
        }
    }
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::pool2d::strips_of` for elements `E`; their pointers cover
/// the contract's table.
#[inline(always)]
unsafe fn strips<E: Float, const AVG: bool>(args: &PlanesArgs) {
    let tile = Tile::new(args);
    launch_dependents();
    dependency_wait();
    let held = dynamic_shared_mem::<u32>();
    let nothing = if AVG { 0 } else { E::LOWEST };
    // SAFETY: the launch contract, handed on.
    unsafe {
        tile.bring_rows::<E>(held, STRIPS_THREADS, nothing);
        if AVG {
            Counts::table(args, held);
        }
        sync_threads();
        macro_rules! forms {
            ($($k:literal $s:literal,)*) => {
                match (args.even, args.pool.w.kernel, args.pool.w.stride) {
                    $((0, $k, $s) => make::<E, AVG, $k, $s, PACKED>(&tile, held),)*
                    (_, 3, 2) if strips_bare(&args.pool) => {
                        make::<E, AVG, 3, 2, BARE>(&tile, held);
                    }
                    $((_, $k, $s) => make::<E, AVG, $k, $s, PADDED>(&tile, held),)*
                    _ => {}
                }
            };
        }
        if AVG {
            forms! { 2 2, 3 1, 3 2, 4 2, 4 4, 5 1, 5 2, 6 2, 7 1, 7 2, }
        } else {
            forms! { 2 2, 3 1, 3 2, 4 2, 4 4, 5 1, 5 2, 6 2, 7 1, 7 2, 9 1, 13 1, }
        }
        if args.direct < 2 {
            Tile::new(args).flush::<E>(held, STRIPS_THREADS);
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $ty:ty, $avg:literal;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: PlanesArgs) {
            // SAFETY: the launch contract.
            unsafe { strips::<$ty, $avg>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_strips_max_f32 StripsMaxF32 f32, false;
    pool2d_strips_max_f16 StripsMaxF16 F16, false;
    pool2d_strips_max_bf16 StripsMaxBf16 Bf16, false;
    pool2d_strips_avg_f32 StripsAvgF32 f32, true;
    pool2d_strips_avg_f16 StripsAvgF16 F16, true;
    pool2d_strips_avg_bf16 StripsAvgBf16 Bf16, true;
}
