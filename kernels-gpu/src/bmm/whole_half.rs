//! Small products of 16-bit floats on tensor cores: a block (a warp, where sides are at most 32) asks for both factors of a
//! matrix, or of a tile of it, at once by `cp.async`, and for what `C` holds; it waits, and makes its result.
//!
//! A factor in pieces of 16 bytes stands in lines of swizzled pieces and is read by `ldmatrix`; one whose rows start anywhere
//! stands as it lies in memory, and is read in words or elements; so are both then. Results are put together in shared
//! memory, where what `C` held stood, as they lie in memory.

use contract::bmm::{Args, Matrix, WHOLE_DEPTH, whole_bytes, whole_half_bytes};

use super::direct::Fragment;
use super::source::Float;
use super::target::Target;
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_if, wait_group};
use crate::arch::dot::permute;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::{ld_u16_if, st, st_u16, st_x4};
use crate::arch::mma::{ldmatrix_x4, ldmatrix_x4_trans};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, sync_warp};
use crate::tile::hopper::{Half, trade};

/// Terms, at most.
const DEPTH: u32 = WHOLE_DEPTH;
/// Elements of a piece.
const PIECE: u32 = 8;

/// Bytes to piece `piece` of line `line`, in lines of `PIECES` pieces: eight neighbouring lines have a piece in different
/// banks.
#[inline(always)]
fn place<const PIECES: u32>(line: u32, piece: u32) -> u32 {
    (line * PIECES + (piece ^ line / (8 / PIECES) % PIECES)) * 16
}

/// The same in a factor of `SIDE` rows (columns of `B`).
#[inline(always)]
fn place_in<const SIDE: u32>(along: bool, line: u32, piece: u32) -> u32 {
    if along || SIDE == DEPTH { place::<8>(line, piece) } else { place::<4>(line, piece) }
}

/// Asks for a factor's `sides` rows (columns of `B`) from `first` on by `k` elements in pieces, by `THREADS` threads.
///
/// # Safety
///
/// The matrix covers what its contract says and has a unit of 16, and no thread writes it; nobody accesses `to`.
#[inline(always)]
unsafe fn ask_pieces<const SIDE: u32, const THREADS: u32>(
    to: Shared<u8>,
    (matrix, along, batch): (&Matrix, bool, u32),
    (first, sides): (u32, u32),
    k: u32,
    t: u32,
) {
    let (lines, len) = if along { (sides, k) } else { (k, sides) };
    // Zeros where a product in depth takes more than there is.
    let whole = k.next_multiple_of(2 * PIECE);
    let (end, wide) = if along { (SIDE, whole) } else { (whole, SIDE) };
    let per_line = if along { DEPTH } else { SIDE } / PIECE;
    let (mut line, piece) = (t / per_line, t % per_line);
    let p = matrix.addr.cast::<u16>().as_ptr().cast_const();
    let at = u64::from(batch) * matrix.stride + u64::from(line) * matrix.ld;
    let at = at + if along { u64::from(first) * matrix.ld } else { first.into() };
    let mut p = p.wrapping_add((at + u64::from(piece * PIECE)) as usize);
    let step = u64::from(THREADS / per_line) * matrix.ld;
    let end = if piece * PIECE < wide { end } else { 0 };
    let lines = if piece * PIECE < len { lines } else { 0 };
    let mut i = 0;
    while i < SIDE * DEPTH / PIECE / THREADS {
        if line < end {
            let at = to.add(place_in::<SIDE>(along, line, piece));
            // SAFETY: eight elements are inside when the first is, because lines are whole pieces.
            unsafe { copy_x16(at, p, line < lines) };
        }
        p = p.wrapping_add(step as usize);
        line += THREADS / per_line;
        i += 1;
    }
}

/// Words of 16 rows (columns of `B`) from `side` on, by 16 terms from `k` on.
///
/// # Safety
///
/// The pieces were waited for.
#[inline(always)]
unsafe fn pieces<const SIDE: u32>(from: Shared<u8>, along: bool, side: u32, k: u32) -> [u32; 4] {
    let (j, r) = (lane_id() / 8, lane_id() % 8);
    let (beside, term) = (side / PIECE + j % 2, k / PIECE + j / 2);
    // SAFETY: inside of the factor's shared memory.
    unsafe {
        if along {
            ldmatrix_x4(from.add(place_in::<SIDE>(true, beside * PIECE + r, term)))
        } else {
            ldmatrix_x4_trans(from.add(place_in::<SIDE>(false, term * PIECE + r, beside)))
        }
    }
}

/// Asks for memory as it lies there, from the last 16 bytes on that start at or before it: as many bytes, at most, from `p` on as `SIDE` lines
/// have, by `THREADS` threads. Gives where the first byte will stand.
///
/// # Safety
///
/// What is asked for is inside of a buffer and nobody writes it; nobody accesses `to`.
#[inline(always)]
unsafe fn ask_bytes<const SIDE: u32, const THREADS: u32>(
    to: Shared<u8>,
    p: *const u8,
    bytes: u32,
    t: u32,
) -> Shared<u8> {
    let over = p as u64 as u32 % 16;
    let end = if bytes > 0 { over + bytes } else { 0 };
    let p = p.wrapping_sub(over as usize).wrapping_add(16 * t as usize);
    let start = to.add(16 * t);
    let mut i = 0;
    while i < (SIDE * DEPTH * 2 + 15).div_ceil(16 * THREADS) {
        let on = 16 * THREADS * i;
        // SAFETY: one of these bytes is there, and memory is allocated in such pieces.
        unsafe { copy_x16_if(start.add(on), p.wrapping_add(on as usize), 16 * t + on < end) };
        i += 1;
    }
    to.add(over)
}

/// How a factor that stands in shared memory as it lies in memory is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Words of terms of a row (column of `B`), two of which make a pair of terms.
    Along,
    /// Words of two rows (columns) of a term.
    Words,
    /// Elements.
    Elements,
}

/// A factor that stands in shared memory as it lies in memory, as a lane reads it: `Q` rows (columns of `B`).
struct Flat<const Q: usize> {
    how: Reads,
    /// Its first word, or element.
    at: Shared<u8>,
    /// Bytes from one row (column), `along`, or term to the next.
    line: u32,
    /// Along: the bytes of a word that a row starts behind, and the word read last.
    select: [u32; Q],
    last: [u32; Q],
}

impl<const Q: usize> Flat<Q> {
    /// Of the factor whose row (column of `B`) `side` is the first of the warp's, from term `k` of this lane on.
    ///
    /// # Safety
    ///
    /// The factor was waited for.
    #[inline(always)]
    unsafe fn new(first: Shared<u8>, matrix: &Matrix, along: bool, side: u32, k: u32) -> Self {
        let (line, g) = (2 * matrix.ld as u32, lane_id() / 4);
        let how = match (along, matrix.unit >= 4) {
            (true, _) => Reads::Along,
            (false, true) => Reads::Words,
            _ => Reads::Elements,
        };
        let at = match how {
            Reads::Along => (side + g) * line + 2 * k,
            Reads::Words => k * line + 2 * (side + 2 * g),
            Reads::Elements => k * line + 2 * (side + g),
        };
        let mut flat = Self { how, at: first.add(at), line, select: [0; Q], last: [0; Q] };
        if along {
            let mut q = 0;
            while q < Q {
                let row = flat.at.add(8 * q as u32 * line);
                flat.select[q] = 0x3210 + 0x1111 * (row.addr() % 4);
                // SAFETY: in shared memory, whatever is there.
                flat.last[q] = unsafe { Self::word(row).read() };
                q += 1;
            }
        }
        flat
    }

    /// The word that a byte is in.
    #[inline(always)]
    fn word(at: Shared<u8>) -> Shared<u32> {
        at.byte_add((at.addr() % 4).wrapping_neg()).cast()
    }

    /// The next four terms of this lane of each row (column), zeros where `masks` are.
    ///
    /// # Safety
    ///
    /// As for [`Self::new`].
    #[inline(always)]
    unsafe fn next(&mut self, masks: [u32; 2]) -> [[u32; 2]; Q] {
        let mut out = [[0; 2]; Q];
        let mut q = 0;
        // SAFETY: in shared memory; what is not of the factor is masked, or of a row (column) that is not written.
        unsafe {
            match self.how {
                Reads::Along => {
                    while q < Q {
                        let at = Self::word(self.at.add(8 * q as u32 * self.line));
                        let [low, high] = [at.add(1).read(), at.add(2).read()];
                        out[q] = [
                            permute(self.last[q], low, self.select[q]) & masks[0],
                            permute(low, high, self.select[q]) & masks[1],
                        ];
                        self.last[q] = high;
                        q += 1;
                    }
                    self.at = self.at.add(8);
                }
                Reads::Words => {
                    while q < Q {
                        let at = |term: u32| self.at.add(term * self.line + 16 * q as u32);
                        let w: [u32; 4] =
                            core::array::from_fn(|i| at(i as u32).cast::<u32>().read());
                        let mut half = 0;
                        while half < 2 {
                            let [a, b] = [w[2 * half], w[2 * half + 1]];
                            out[q][half] = permute(a, b, 0x5410) & masks[half];
                            out[q + 1][half] = permute(a, b, 0x7632) & masks[half];
                            half += 1;
                        }
                        q += 2;
                    }
                    self.at = self.at.add(4 * self.line);
                }
                Reads::Elements => {
                    while q < Q {
                        let at = |term: u32| self.at.add(term * self.line + 16 * q as u32);
                        let w: [u32; 4] =
                            core::array::from_fn(|i| at(i as u32).cast::<u16>().read_u16().into());
                        out[q] = [(w[0] | w[1] << 16) & masks[0], (w[2] | w[3] << 16) & masks[1]];
                        q += 1;
                    }
                    self.at = self.at.add(4 * self.line);
                }
            }
        }
        out
    }
}

/// Makes matrices, or tiles, with sides of at most `SIDE`, by `THREADS` threads each: a warp for each `16 R` by `8 C`. With
/// `TILES`, sides of matrices are up to 64, and results are written as they are.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, and is what
/// [`contract::bmm::Variant::takes`] allows; `C` overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn whole<
    F: Fragment<Sum = f32>,
    E: Half,
    const SIDE: u32,
    const THREADS: u32,
    const R: usize,
    const C: usize,
    const ROWS: usize,
    const TILES: bool,
>(
    args: &Args,
) {
    const { assert!(THREADS / LANES * 128 * (R * C) as u32 == SIDE * SIDE && ROWS == 2 * R) };
    launch_dependents();
    let groups = 128 / THREADS;
    let (t, group) = (thread_idx_x() % THREADS, thread_idx_x() / THREADS);
    let index = block_idx_x() * groups + group;
    let (index, row0, column0) = if TILES && args.m.max(args.n) > SIDE {
        // Two rows of tiles, or two columns, or both.
        let [tall, wide] = [args.m, args.n].map(|side| u32::from(side > SIDE));
        let tile = index & ((1 << (tall + wide)) - 1);
        (index >> (tall + wide), tile & tall, tile >> tall)
    } else {
        (index, 0, 0)
    };
    let (row0, column0) = (row0 * SIDE, column0 * SIDE);
    // A warp without a matrix reads and writes nothing.
    let (m, n, batch) = if index < args.batch { (args.m, args.n, index) } else { (0, 0, 0) };
    let k = args.k;
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let barrier = || if THREADS == LANES { sync_warp() } else { sync_threads() };
    let bytes = whole_bytes(if TILES { DEPTH } else { SIDE });
    let smem = dynamic_shared_mem::<u8>();
    let smem = if THREADS == 128 { smem } else { smem.add(group * whole_half_bytes(SIDE)) };
    let (a_at, b_at, c_at) = (smem, smem.add(bytes), smem.add(2 * bytes));
    let (warp, lane) = (t / LANES, lane_id());
    let (g, l) = (lane / 4, lane % 4);
    let (row, column) = (warp / 2 * 16 * R as u32, warp % 2 * 8 * C as u32);
    let in_pieces = args.a.unit >= 16 && args.b.unit >= 16;
    let reads = <Float<false> as Target>::reads(args.beta);
    let c = args.c.addr.cast::<u16>().as_ptr();
    let c = c.wrapping_add((u64::from(batch) * args.c.stride) as usize);
    let at = |i: u32, j: u32| c.wrapping_add((u64::from(i) * args.c.ld + u64::from(j)) as usize);
    // Rows of `C` behind each other without a gap.
    let dense = !TILES && (m <= 1 || args.c.ld == u64::from(n));
    let c_over = if dense { c as u64 as u32 % 16 } else { 0 };
    let held = c_at.add(c_over);
    dependency_wait();
    let sides = |first: u32, len: u32| (first, len.saturating_sub(first).min(SIDE));
    let (rows, columns) = (sides(row0, m), sides(column0, n));
    let mut sums = [[[0.0f32; 4]; C]; R];
    // SAFETY: the caller's promise; the factors are read behind a barrier.
    unsafe {
        let (a, b) = ((&args.a, along.0, batch), (&args.b, along.1, batch));
        let (mut a_first, mut b_first) = (a_at, b_at);
        if in_pieces {
            ask_pieces::<SIDE, THREADS>(a_at, a, rows, k, t);
            ask_pieces::<SIDE, THREADS>(b_at, b, columns, k, t);
        } else {
            macro_rules! ask {
                ($to:expr, $factor:expr, $sides:expr, $all:expr) => {{
                    let (matrix, along, batch): (&Matrix, bool, u32) = $factor;
                    let (first, sides): (u32, u32) = $sides;
                    let at = u64::from(batch) * matrix.stride;
                    let at = at + if TILES && along { u64::from(first) * matrix.ld } else { 0 };
                    let p = matrix.addr.as_ptr().cast_const().wrapping_add(2 * at as usize);
                    let (lines, len) = if along { (sides, k) } else { (k, $all) };
                    let ld = 2 * matrix.ld as u32;
                    let size = if lines > 0 && len > 0 { (lines - 1) * ld + 2 * len } else { 0 };
                    let from = if TILES {
                        ask_bytes::<DEPTH, THREADS>($to, p, size, t)
                    } else {
                        ask_bytes::<SIDE, THREADS>($to, p, size, t)
                    };
                    if TILES && !along { from.add(2 * first) } else { from }
                }};
            }
            a_first = ask!(a_at, a, rows, m);
            b_first = ask!(b_at, b, columns, n);
        }
        if reads && !TILES {
            if dense {
                ask_bytes::<SIDE, THREADS>(c_at, c.cast(), 2 * m * n, t);
            } else {
                let mut i = t / 8;
                while i < m {
                    let mut j = t % 8;
                    while j < n {
                        let old = ld_u16_if(true, at(i, j));
                        held.add(2 * (i * n + j)).cast().write_u16(old);
                        j += 8;
                    }
                    i += THREADS / 8;
                }
            }
        }
        commit_group();
        // A lane's terms are neighbours over all steps, for the sake of the banks that they are in.
        let steps = if TILES { k.div_ceil(32) * 2 } else { k.div_ceil(16) };
        let first = l * 4 * steps;
        // Rows (columns) of a lane are neighbours where they are read in words of two.
        let natural_row = in_pieces || along.0 || args.a.unit < 4;
        let natural_column = in_pieces || along.1 || args.b.unit < 4;
        let side = |natural: bool, own: u32, q: usize| {
            let q = q as u32;
            if natural { 8 * q + own } else { q / 2 * 16 + 2 * own + q % 2 }
        };
        // The outputs of this lane: `old[row][column of a pair]`.
        let mut old = [[0u16; 2]; 16];
        if TILES && reads {
            let mut q = 0;
            while q < ROWS {
                let i = row0 + row + side(natural_row, g, q);
                let mut j = 0;
                while j < C {
                    let mut e = 0;
                    while e < 2 {
                        let column = column0 + column + side(natural_column, 2 * l + e, j);
                        old[q * C + j][e as usize] = ld_u16_if(i < m && column < n, at(i, column));
                        e += 1;
                    }
                    j += 1;
                }
                q += 1;
            }
        }
        wait_group::<0>();
        barrier();
        macro_rules! products {
            ($left:expr, $right:expr) => {{
                let mut r = 0;
                while r < R {
                    let mut c = 0;
                    while c < C {
                        sums[r][c] = F::product($left[r], $right[c], sums[r][c]);
                        c += 1;
                    }
                    r += 1;
                }
            }};
        }
        if in_pieces {
            // Opaque, because LLVM would write out the loop.
            let mut i = opaque(0);
            while i < k {
                let left: [[u32; 4]; R] =
                    core::array::from_fn(|r| pieces::<SIDE>(a_at, along.0, row + 16 * r as u32, i));
                let mut right = [[0u32; 2]; C];
                let mut j = 0;
                while j < C {
                    let w = pieces::<SIDE>(b_at, along.1, column + 8 * j as u32, i);
                    (right[j], right[j + 1]) = ([w[0], w[2]], [w[1], w[3]]);
                    j += 2;
                }
                products!(left, right);
                i = opaque(i + 16);
            }
        } else {
            let mut a = Flat::<ROWS>::new(a_first, &args.a, along.0, row, first);
            let mut b = Flat::<C>::new(b_first, &args.b, along.1, column, first);
            let mut step = opaque(0);
            while step < steps {
                // Of two steps all is read before it is multiplied, where registers allow it.
                let mut parts = [([[0; 4]; R], [[0; 2]; C]); 2];
                let mut i = 0;
                while i < if TILES { 2 } else { 1 } {
                    let term = first + 4 * (step + i as u32);
                    let half = |term: u32| if term < k { 0xffff } else { 0u32 };
                    let masks = [0, 2].map(|j| half(term + j) | half(term + j + 1) << 16);
                    let (words, right) = (a.next(masks), b.next(masks));
                    let left = core::array::from_fn(|r| {
                        let (near, far) = (words[2 * r], words[2 * r + 1]);
                        [near[0], far[0], near[1], far[1]]
                    });
                    parts[i] = (left, right);
                    i += 1;
                }
                products!(parts[0].0, parts[0].1);
                if TILES {
                    products!(parts[1].0, parts[1].1);
                }
                step = opaque(step + i as u32);
            }
        }
        let alpha = f32::from_bits(args.alpha);
        if args.c.unit >= 16 && !reads && natural_row && natural_column && C == 4 {
            let mut r = 0;
            while r < ROWS {
                let words = trade(core::array::from_fn(|c| {
                    let sum = sums[r / 2][c];
                    E::pack(alpha * sum[r % 2 * 2], alpha * sum[r % 2 * 2 + 1])
                }));
                let (i, j) = (row0 + row + 8 * r as u32 + g, column0 + column + 8 * l);
                if i < m && j < n {
                    st_x4(at(i, j).cast(), words);
                }
                r += 1;
            }
            return;
        }
        let beta = f32::from_bits(args.beta);
        let mut q = 0;
        while q < ROWS {
            let i = row0 + row + side(natural_row, g, q);
            let line = held.add(2 * (i * n));
            if i < m {
                let mut j = 0;
                while j < C {
                    let place: [u32; 2] = core::array::from_fn(|e| {
                        column0 + column + side(natural_column, 2 * l + e as u32, j)
                    });
                    let values: [f32; 2] = core::array::from_fn(|e| {
                        let sum = sums[q / 2][j][2 * (q % 2) + e];
                        let old = if TILES {
                            E::widen(old[q * C + j][e])
                        } else if reads && place[e] < n {
                            E::widen(line.add(2 * place[e]).cast().read_u16())
                        } else {
                            0.0
                        };
                        contract::bmm::finish(alpha, sum, beta, old)
                    });
                    let word = E::pack(values[0], values[1]);
                    // A pair is one word where both are neighbours, and in words.
                    if TILES && args.c.unit >= 4 && natural_column {
                        if place[0] < n {
                            st(at(i, place[0]).cast(), word);
                        }
                        j += 1;
                        continue;
                    }
                    let mut e = 0;
                    while e < 2 {
                        let half = (word >> (16 * e)) as u16;
                        if place[e] < n {
                            if TILES {
                                st_u16(at(i, place[e]), half);
                            } else {
                                line.add(2 * place[e]).cast().write_u16(half);
                            }
                        }
                        e += 1;
                    }
                    j += 1;
                }
            }
            q += 1;
        }
        if TILES {
            return;
        }
        barrier();
        if dense {
            let end = c_over + 2 * m * n;
            let mut i = 16 * t;
            let to = c.cast::<u8>().wrapping_sub(c_over as usize);
            while i < end {
                if i >= c_over && i + 16 <= end {
                    let words = c_at.add(i).cast::<u32>().read_x4();
                    st_x4(to.wrapping_add(i as usize).cast(), words);
                } else {
                    let mut j = 0;
                    while j < 16 {
                        if i + j >= c_over && i + j < end {
                            let half = c_at.add(i + j).cast().read_u16();
                            st_u16(to.wrapping_add((i + j) as usize).cast(), half);
                        }
                        j += 2;
                    }
                }
                i += 16 * THREADS;
            }
            return;
        }
        let mut i = t / 8;
        while i < m {
            let mut j = t % 8;
            while j < n {
                st_u16(at(i, j), held.add(2 * (i * n + j)).cast().read_u16());
                j += 8;
            }
            i += THREADS / 8;
        }
    }
}
