//! Windows over images with rows innermost: a thread makes 16 bytes of neighbouring outputs, four times below each
//! other, and reads 16 bytes at a time. Windows are 3 by 3 with a column of padding on either side, or 2 by 2 without, as
//! far apart down as across. Of windows side by side it makes those of 16 bytes of columns.

use contract::pool2d::{Args, ROWS, Share};

use super::{divide, thread};
use crate::arch::float::maximum;
use crate::arch::mem::{X4, ld_or_zero_x4, st, st_x4};
use crate::arch::mem_or::ld_or_x4;
use crate::arch::thread::opaque;
use crate::float::{Float, Piece};

/// What a thread has of a row: the columns from that of the first output on, and one on either side.
#[derive(Clone, Copy)]
struct Row {
    pieces: [X4<u32>; 2],
    left: u32,
    right: u32,
}

/// Zeros.
const OUTSIDE: Row = Row { pieces: [[0; 4]; 2], left: 0, right: 0 };

/// Values of a row, the column before the first at the start.
type Values = [f32; 18];

impl Row {
    /// The columns that `S` pieces of outputs cover.
    #[inline(always)]
    fn widen<E: Float, const S: usize>(&self) -> Values {
        let one = |bits: u32| E::widen([bits, 0, 0, 0])[0];
        let pieces = self.pieces.map(E::widen);
        core::array::from_fn(|i| match i {
            0 => one(self.left),
            _ if i > S * E::PIECE => one(self.right),
            _ => pieces[(i - 1) / E::PIECE][(i - 1) % E::PIECE],
        })
    }

    /// The larger of each two columns.
    #[inline(always)]
    fn max<E: Float, const S: usize>(self, other: Self) -> Self {
        let mut pieces = [[0; 4]; 2];
        let mut s = 0;
        while s < S {
            pieces[s] = E::max_raw(self.pieces[s], other.pieces[s]);
            s += 1;
        }
        let sides = [self.left, self.right, 0, 0];
        let [left, right, ..] = E::max_raw(sides, [other.left, other.right, 0, 0]);
        Self { pieces, left, right }
    }
}

/// Windows of `K` by `K`, `S` rows and columns apart.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's for
/// `Args::lines`.
#[inline(always)]
pub(super) unsafe fn lines<E: Float, const AVG: bool, const K: usize, const S: usize>(args: &Args) {
    const { assert!((K == 3 || K == 2 && S == 2) && (S == 1 || S == 2)) };
    let (h, w) = (&args.h, &args.w);
    let (rest, across) = divide(thread(), w.out.div_ceil(E::PIECE as u32));
    let (plane, group) = divide(rest, h.out.div_ceil(ROWS));
    if plane >= u64::from(args.images) * u64::from(args.channels) {
        return;
    }
    let ow = across * E::PIECE as u32;
    let column = ow * S as u32;
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let x = x.wrapping_add(plane as usize * h.len as usize * w.len as usize + column as usize);
    let y = args.y.cast::<E>().as_ptr();
    let y = y.wrapping_add(plane as usize * h.out as usize * w.out as usize + ow as usize);
    let width = (S * E::PIECE) as u32;
    // Outside of the image are zeros for averages; for maxima, the nearest ones inside, which every window has. Pieces
    // behind the end of a row have outputs behind the last one, which are thrown away.
    let [left, right] = [column > 0, column + width < w.len];
    let [to_left, to_right] = match AVG {
        true => [-1, width as isize],
        false => [
            if left { -1 } else { 0 },
            if right { width as isize } else { w.len as isize - column as isize - 1 },
        ],
    };
    let row = |i: i32| {
        let inside = !AVG || (i as u32) < h.len;
        let i = if AVG { i } else { i.max(0).min(h.len as i32 - 1) };
        let p = x.wrapping_offset(i as isize * w.len as isize);
        let mut row = OUTSIDE;
        // SAFETY: pieces of the row, which 16 divides, and columns.
        unsafe {
            let mut s = 0;
            while s < S {
                let first = s * E::PIECE;
                let there = inside && column + (first as u32) < w.len;
                row.pieces[s] = ld_or_zero_x4(there, p.wrapping_add(first).cast());
                s += 1;
            }
            if K == 3 {
                row.left = E::load_bits_if(inside && (left || !AVG), p.wrapping_offset(to_left));
            }
            if K == 3 && S == 1 {
                row.right = E::load_bits_if(inside && (right || !AVG), p.wrapping_offset(to_right));
            }
        }
        row
    };
    // Rows of a window that are those of the one before.
    let kept = const { K.saturating_sub(S) };
    let mut oh = group * ROWS;
    let end = if h.out - oh < ROWS { h.out } else { oh + ROWS };
    let mut window: [Row; K] = core::array::from_fn(|a| row(h.at(oh, a as u32)));
    while oh < end {
        // Asked for before this window is worked on.
        let mut next = [OUTSIDE; K];
        let mut a = 0;
        while a < K {
            if a >= kept && oh + 1 < end {
                next[a] = row(h.at(oh + 1, a as u32));
            }
            a += 1;
        }
        let value = if AVG {
            average::<E, K, S>(args, &window, [oh, ow])
        } else {
            largest::<E, K, S>(&window)
        };
        let p = y.wrapping_add(oh as usize * w.out as usize);
        // SAFETY: outputs of this thread.
        unsafe {
            if w.out.is_multiple_of(E::PIECE as u32) {
                st_x4(p.cast(), value);
            } else {
                E::scatter(p, w.out - ow, value);
            }
        }
        if K == 3 && kept == 2 {
            window[0] = window[1];
            window[1] = window[2];
        } else if kept == 1 {
            window[0] = window[K - 1];
        }
        let mut a = 0;
        while a < K {
            if a >= kept {
                window[a] = next[a];
            }
            a += 1;
        }
        oh = opaque(oh + 1);
    }
}

/// Windows of `K` by `K` side by side: a thread makes those of a piece of columns.
///
/// # Safety
///
/// As for [`lines`].
#[inline(always)]
pub(super) unsafe fn apart<E: Float, const AVG: bool, const K: usize>(args: &Args) {
    const { assert!(K % 2 == 0) };
    let (h, w) = (&args.h, &args.w);
    let (rest, piece) = divide(thread(), w.len / E::PIECE as u32);
    let (plane, oh) = divide(rest, h.out);
    if plane >= u64::from(args.images) * u64::from(args.channels) {
        return;
    }
    let first = plane as usize * h.len as usize + oh as usize * K;
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let x = x.wrapping_add(first * w.len as usize + piece as usize * E::PIECE);
    // The last window may end behind the image.
    let left = h.len - oh * K as u32;
    let nothing = if AVG { 0 } else { E::LOWEST };
    let rows: [X4<u32>; K] = core::array::from_fn(|a| {
        let p = x.wrapping_add(a * w.len as usize);
        // SAFETY: a piece of a row.
        unsafe { ld_or_x4((a as u32) < left, p.cast(), nothing) }
    });
    // Windows of a piece.
    let count = const { E::PIECE / K };
    let values: Piece = if AVG {
        let sums: [Piece; K] = core::array::from_fn(|a| {
            let values = E::widen(rows[a]);
            let pair = |v: usize, b: usize| values[v * K + b] + values[v * K + b + 1];
            core::array::from_fn(|v| {
                let mut sum = if v < count { pair(v, 0) } else { 0.0 };
                let mut b = 2;
                while b < K && v < count {
                    sum += pair(v, b);
                    b += 2;
                }
                sum
            })
        });
        let share = Share::of(h.taps(oh, false) * K as u32);
        core::array::from_fn(|v| {
            let mut sum = sums[0][v] + sums[1][v];
            let mut a = 2;
            while a < K {
                sum += sums[a][v] + sums[a + 1][v];
                a += 2;
            }
            share.take(sum)
        })
    } else {
        let mut top = rows[0];
        let mut a = 1;
        while a < K {
            top = E::max_raw(top, rows[a]);
            a += 1;
        }
        let values = E::widen(top);
        core::array::from_fn(|v| {
            let mut top = 0.0;
            let mut b = 0;
            while b < K && v < count {
                let value = values[v * K + b];
                top = if b == 0 { value } else { maximum(top, value) };
                b += 1;
            }
            top
        })
    };
    let y = args.y.cast::<E>().as_ptr();
    let place = (plane as usize * h.out as usize + oh as usize) * w.out as usize;
    let y = y.wrapping_add(place + piece as usize * count);
    let raw = E::narrow(values)[0];
    // SAFETY: outputs of this thread; of two, pieces of a row make an even number.
    unsafe {
        if count == 2 {
            st(y.cast(), raw);
        } else {
            E::store_bits(y, raw);
        }
    }
}

/// The maxima of a window's outputs.
#[inline(always)]
fn largest<E: Float, const K: usize, const S: usize>(window: &[Row; K]) -> X4<u32> {
    let mut row = window[0];
    let mut a = 1;
    while a < K {
        row = row.max::<E, S>(window[a]);
        a += 1;
    }
    let values = row.widen::<E, S>();
    let mut out = [0.0; 8];
    let mut o = 0;
    while o < E::PIECE {
        let first = S * o + 3 - K;
        out[o] = maximum(values[first], values[first + 1]);
        if K == 3 {
            out[o] = maximum(out[o], values[first + 2]);
        }
        o += 1;
    }
    E::narrow(out)
}

/// The averages of a window's outputs, of which `[oh, ow]` is the first.
#[inline(always)]
fn average<E: Float, const K: usize, const S: usize>(
    args: &Args,
    window: &[Row; K],
    [oh, ow]: [u32; 2],
) -> X4<u32> {
    let rows = window.map(|row| row.widen::<E, S>());
    let padded = args.count_include_pad == 1;
    let down = args.h.taps(oh, padded);
    let mut sums: Piece = [0.0; 8];
    let mut o = 0;
    while o < E::PIECE {
        let mut sum = 0.0;
        let mut a = 0;
        while a < K {
            let tap = |b: usize| rows[a][S * o + 3 - K + b];
            let mut row = tap(0) + tap(1);
            if K == 3 {
                row += tap(2);
            }
            sum = if a == 0 { row } else { sum + row };
            a += 1;
        }
        sums[o] = sum;
        o += 1;
    }
    // Outputs behind the last one are thrown away.
    let count = |o: usize| down * args.w.taps((ow + o as u32).min(args.w.out - 1), padded);
    let most = down * K as u32;
    let mut shares = [Share::of(most); 8];
    if count(0) != most || count(E::PIECE - 1) != most {
        shares =
            core::array::from_fn(|o| if o < E::PIECE { Share::of(count(o)) } else { shares[o] });
    }
    E::narrow(core::array::from_fn(|o| if o < E::PIECE { shares[o].take(sums[o]) } else { 0.0 }))
}
