//! Windows in planes, rows innermost: what a tile of outputs reads comes to shared memory at once, with what is outside of
//! the image beside it ([`contract::pool2d::PlanesArgs`]). Maxima are made of rows first: those of a row go
//! through shared memory, then a thread makes them of columns, four outputs below each other, which share the rows that they have in common.

use contract::launch::Kernel;
use contract::pool2d::{
    Axis, PLANES_ROWS, PLANES_THREADS, PlanesArgs, PlanesMaxBf16, PlanesMaxF16, PlanesMaxF32,
};

use super::plane_tile::{Tile, size};
use crate::arch::dot::permute;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mem::X4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::Float;

/// Words that are read at once.
pub(super) const WORDS: usize = 20;

/// The elements from `at` on, `behind` of them left out, in `LOADS` times 16 bytes.
///
/// # Safety
///
/// They have come to shared memory, at a multiple of 16 bytes.
#[inline(always)]
unsafe fn words<E: Float, const LOADS: usize>(at: Shared<u32>, behind: u32) -> [u32; WORDS] {
    let mut raw = [0; WORDS];
    let mut j = 0;
    while j < LOADS {
        // SAFETY: the caller's promise; what is behind the line is not used.
        let piece = unsafe { at.byte_add(16 * j as u32).read_x4() };
        let mut i = 0;
        while i < 4 {
            raw[4 * j + i] = piece[i];
            i += 1;
        }
        j += 1;
    }
    if E::PIECE == 8 {
        let selector = 0x3210 + 0x2222 * behind;
        let mut i = 0;
        while i < 4 * LOADS && i + 1 < WORDS {
            raw[i] = permute(raw[i], raw[i + 1], selector);
            i += 1;
        }
    }
    raw
}

/// The larger of each two elements of a word.
#[inline(always)]
fn larger<E: Float>(a: u32, b: u32) -> u32 {
    E::max_raw([a, 0, 0, 0], [b, 0, 0, 0])[0]
}

/// The maxima of `K` neighbours each: of pairs of elements two at a time, from even ones on; of `f32` from each one on.
#[inline(always)]
fn spans<E: Float, const K: usize>(w: &[u32; WORDS]) -> [u32; WORDS] {
    // Words of two elements.
    let step = |span: usize| if E::PIECE == 8 { span / 2 } else { span };
    let get = |w: &[u32; WORDS], i: usize| if i < WORDS { w[i] } else { 0 };
    let two: [u32; WORDS] = core::array::from_fn(|i| {
        let next = get(w, i + 1);
        larger::<E>(w[i], if E::PIECE == 8 { permute(w[i], next, 0x5432) } else { next })
    });
    let four = core::array::from_fn(|i| larger::<E>(two[i], get(&two, i + step(2))));
    let eight: [u32; WORDS] =
        core::array::from_fn(|i| larger::<E>(four[i], get(&four, i + step(4))));
    core::array::from_fn(|i| {
        let (mut top, mut any, mut done) = (0, false, 0);
        let mut span = 8;
        while span > 0 {
            if K & span != 0 {
                let from = match span {
                    8 => &eight,
                    4 => &four,
                    2 => &two,
                    _ => w,
                };
                let value = get(from, i + step(done));
                top = if any { larger::<E>(top, value) } else { value };
                any = true;
                done += span;
            }
            span /= 2;
        }
        top
    })
}

/// The maxima of `K` taps of a row of four words of outputs, `S` apart, of which `w` has the taps.
#[inline(always)]
pub(super) fn across<E: Float, const K: usize, const S: usize>(w: &[u32; WORDS]) -> X4<u32> {
    const { assert!(K > 0) };
    if S == 1 && E::PIECE == 4 && K > 4 {
        // What all four have in common, and what is in front of it and behind.
        let mut common = w[3];
        let mut i = 4;
        while i < K {
            common = larger::<E>(common, w[i]);
            i += 1;
        }
        let [front, behind] = [larger::<E>(w[1], w[2]), larger::<E>(w[K], w[K + 1])];
        return [
            larger::<E>(common, larger::<E>(w[0], front)),
            larger::<E>(common, larger::<E>(front, w[K])),
            larger::<E>(common, larger::<E>(w[2], behind)),
            larger::<E>(common, larger::<E>(behind, w[K + 2])),
        ];
    }
    if S == 1 {
        let top = spans::<E, K>(w);
        return core::array::from_fn(|i| top[i]);
    }
    if E::PIECE == 4 {
        let top = spans::<E, K>(w);
        return core::array::from_fn(|i| top[S * i]);
    }
    if S == 4 {
        const { assert!(S != 4 || K == 4) };
        // Two words a window: the larger of them, then of the halves.
        let tops: [u32; 8] = core::array::from_fn(|i| larger::<E>(w[2 * i], w[2 * i + 1]));
        return core::array::from_fn(|i| {
            let [a, b] = [tops[2 * i], tops[2 * i + 1]];
            larger::<E>(permute(a, b, 0x5410), permute(a, b, 0x7632))
        });
    }
    // Even and odd elements: of each a window of half as many.
    let half = |selector: u32| -> [u32; WORDS] {
        core::array::from_fn(|i| {
            if 2 * i + 1 < WORDS { permute(w[2 * i], w[2 * i + 1], selector) } else { 0 }
        })
    };
    let even = match K.div_ceil(2) {
        1 => spans::<E, 1>(&half(0x5410)),
        2 => spans::<E, 2>(&half(0x5410)),
        3 => spans::<E, 3>(&half(0x5410)),
        _ => spans::<E, 4>(&half(0x5410)),
    };
    let odd = match K / 2 {
        0 => return core::array::from_fn(|i| even[i]),
        1 => spans::<E, 1>(&half(0x7632)),
        2 => spans::<E, 2>(&half(0x7632)),
        3 => spans::<E, 3>(&half(0x7632)),
        _ => spans::<E, 4>(&half(0x7632)),
    };
    core::array::from_fn(|i| larger::<E>(even[i], odd[i]))
}

/// The maxima of a row of each window of four words of outputs, `S` apart, 1 or 2.
///
/// # Safety
///
/// As for [`words`].
#[inline(always)]
unsafe fn row<E: Float, const S: usize>(at: Shared<u32>, behind: u32, taps: u32) -> X4<u32> {
    let mut top = [E::LOWEST; 4];
    let (mut at, mut left) = (at, taps);
    macro_rules! span {
        ($k:literal) => {
            // SAFETY: handed on.
            unsafe {
                if E::PIECE == 8 {
                    // Eight outputs, and one element in front.
                    if S == 1 {
                        across::<E, $k, S>(&words::<E, { (8 + $k + 7) / 8 }>(at, behind))
                    } else {
                        across::<E, $k, S>(&words::<E, { (15 + $k + 7) / 8 }>(at, behind))
                    }
                } else if S == 1 {
                    across::<E, $k, S>(&words::<E, { (3 + $k + 3) / 4 }>(at, behind))
                } else {
                    across::<E, $k, S>(&words::<E, { (6 + $k + 3) / 4 }>(at, behind))
                }
            }
        };
    }
    let most = E::PIECE as u32;
    while left > most {
        rolled();
        let more = if E::PIECE == 8 { span!(8) } else { span!(4) };
        top = E::max_raw(top, more);
        at = at.byte_add(16);
        left = opaque(left - most);
    }
    let last = match left {
        1 => span!(1),
        2 => span!(2),
        3 => span!(3),
        5 if E::PIECE == 8 => span!(5),
        6 if E::PIECE == 8 => span!(6),
        7 if E::PIECE == 8 => span!(7),
        8 if E::PIECE == 8 => span!(8),
        _ => span!(4),
    };
    E::max_raw(top, last)
}

/// The maxima of `len` lines, `down` bytes apart, and of `top`; `at` goes from the first to the one behind the last.
///
/// # Safety
///
/// They are in shared memory.
#[inline(always)]
unsafe fn column<E: Float>(mut top: X4<u32>, at: &mut Shared<u32>, down: u32, len: u32) -> X4<u32> {
    let mut left = opaque_here(len);
    while left > 0 {
        rolled();
        // SAFETY: the caller's promise.
        top = E::max_raw(top, unsafe { at.read_x4() });
        *at = at.byte_add(down);
        left = opaque(left - 1);
    }
    top
}

/// Any maxima of a row of each window of four words of outputs.
///
/// # Safety
///
/// As for [`words`].
#[inline(always)]
unsafe fn far<E: Float>(at: Shared<u32>, behind: u32, w: &Axis) -> X4<u32> {
    let mut top = [E::LOWEST; 4];
    let mut b = opaque(0);
    while b < w.kernel {
        rolled();
        let at = at.byte_add((behind + b * w.dilation) * size::<E>());
        let one = |v: usize| {
            let at = at.byte_add(v as u32 * w.stride * size::<E>());
            // SAFETY: the caller's promise.
            unsafe {
                if E::PIECE == 4 { at.read() } else { u32::from(at.cast::<u16>().read_u16()) }
            }
        };
        let taps: X4<u32> = core::array::from_fn(|i| {
            if E::PIECE == 4 { one(i) } else { one(2 * i) | one(2 * i + 1) << 16 }
        });
        top = E::max_raw(top, taps);
        b = opaque(b + 1);
    }
    top
}

/// The maxima of columns of four windows below each other, `S` apart (0: any), of which the first starts `at`; of the first `rows`.
///
/// # Safety
///
/// They are in shared memory.
#[inline(always)]
unsafe fn down<E: Float, const S: u32>(
    args: &PlanesArgs,
    mut at: Shared<u32>,
    rows: u32,
) -> [X4<u32>; PLANES_ROWS as usize] {
    // Opaque: its multiples would take registers.
    let (h, pitch) = (&args.pool.h, opaque_here(args.top_pitch));
    let (k, near) = (opaque_here(h.kernel), opaque_here(h.dilation) == 1);
    let step = if S == 0 { h.stride } else { S } * pitch;
    let nothing = [E::LOWEST; 4];
    let mut values = [nothing; PLANES_ROWS as usize];
    // A few lines, of which the compiler knows how many.
    let few = |mut top: X4<u32>, at: &mut Shared<u32>| {
        let mut a = 0;
        while a < S {
            // SAFETY: the caller's promise.
            top = E::max_raw(top, unsafe { at.read_x4() });
            *at = at.byte_add(pitch);
            a += 1;
        }
        top
    };
    // SAFETY: handed on.
    unsafe {
        if S > 0 && near && rows == 4 && k > 3 * S {
            // What ends with the last line of the first output, and what begins behind it.
            let mut behind = at.byte_add(3 * step);
            values[3] = column::<E>(nothing, &mut behind, pitch, k - 3 * S);
            let mut i = 3;
            while i > 0 {
                i -= 1;
                values[i] = few(values[i + 1], &mut at.byte_add(i as u32 * step));
            }
            let mut more = nothing;
            while i < 3 {
                i += 1;
                more = few(more, &mut behind);
                values[i] = E::max_raw(values[i], more);
            }
        } else if S > 0 && near && rows == 4 && k > S {
            let mut i = 0;
            while i < 4 {
                let mut behind = at.byte_add(step);
                let both = column::<E>(nothing, &mut behind, pitch, k - S);
                values[i] = few(both, &mut at);
                at = at.byte_add(step);
                values[i + 1] = few(both, &mut behind);
                i += 2;
            }
        } else {
            let mut i = opaque(0);
            while i < rows {
                rolled();
                let mut first = at.byte_add(i * step);
                let value = column::<E>(nothing, &mut first, h.dilation * pitch, k);
                let mut to = 0;
                while to < 4 {
                    if i == to as u32 {
                        values[to] = value;
                    }
                    to += 1;
                }
                i = opaque(i + 1);
            }
        }
    }
    values
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::pool2d::planes_of` for elements `E`; their pointers
/// cover the contract's table.
#[inline(always)]
unsafe fn maxima<E: Float>(args: &PlanesArgs) {
    let (h, w) = (&args.pool.h, &args.pool.w);
    let tile = Tile::new(args);
    launch_dependents();
    dependency_wait();
    let held = dynamic_shared_mem::<u32>();
    // SAFETY: the launch contract.
    unsafe { tile.bring::<E>(held, PLANES_THREADS, E::LOWEST) };
    sync_threads();
    let tops = held.byte_add(args.tops);
    let form = if w.dilation == 1 { w.stride } else { 0 };
    let below = (tile.i0 as i32 - tile.top) as u32;
    let (mut line, piece) = args.by_pieces.div_rem(thread_idx_x());
    let step = args.tops_at_once;
    let mut at = held.byte_add(line * args.pitch + piece * 16 * w.stride);
    let mut to = tops.byte_add((line + below) * args.top_pitch + piece * 16);
    let mut behind = tile.behind::<E>(line);
    let change = if E::PIECE == 8 { step * w.len & 1 } else { 0 };
    line = if line < step { line } else { tile.lines };
    while line < tile.lines {
        rolled();
        // SAFETY: the line has come.
        let top = unsafe {
            let form = opaque_here(form);
            if form == 1 {
                row::<E, 1>(at, behind, w.kernel)
            } else if form == 2 {
                row::<E, 2>(at, behind, w.kernel)
            } else {
                far::<E>(at, behind, w)
            }
        };
        if opaque_here(args.planes) > 1 {
            let (plane, i) = args.by_height.div_rem(line);
            to = tops.byte_add((plane * args.lines + below + i) * args.top_pitch + piece * 16);
        }
        // SAFETY: a place of this thread.
        unsafe { to.write_x4(top) };
        line += step;
        at = at.byte_add(step * args.pitch);
        to = to.byte_add(step * args.top_pitch);
        behind ^= change;
    }
    // SAFETY: places of lines that the loop above does not make.
    unsafe {
        let nothing = [E::LOWEST; 4];
        tile.surround(tops, args.top_pitch, [args.pieces, PLANES_THREADS], nothing);
    }
    sync_threads();
    // Anew: it would take registers in between.
    let tile = Tile::new(args);
    let outputs = tile.outputs::<E>(held);
    let mut task = thread_idx_x();
    while task < args.tasks {
        rolled();
        let (rest, piece) = args.by_columns.div_rem(task);
        let (plane, group) = args.by_rows.div_rem(rest);
        task += PLANES_THREADS;
        let (r, q) = (group * PLANES_ROWS, piece * E::PIECE as u32);
        if plane >= tile.planes || r >= tile.rows || q >= tile.columns {
            continue;
        }
        let at = (plane * args.lines + r * h.stride) * args.top_pitch + piece * 16;
        let mut out = outputs.at(plane * args.rows + r, q);
        let rows = (tile.rows - r).min(PLANES_ROWS);
        // SAFETY: rows of the tile; outputs of this thread.
        unsafe {
            let values = match opaque_here(h.stride) {
                1 => down::<E, 1>(args, tops.byte_add(at), rows),
                2 => down::<E, 2>(args, tops.byte_add(at), rows),
                _ => down::<E, 0>(args, tops.byte_add(at), rows),
            };
            out.write_rows(values, rows);
        }
    }
    // SAFETY: all are there behind the barrier.
    unsafe {
        if args.direct == 0 {
            Tile::new(args).flush::<E>(held, PLANES_THREADS);
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $ty:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: PlanesArgs) {
            // SAFETY: the launch contract.
            unsafe { maxima::<$ty>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_planes_max_f32 PlanesMaxF32 f32;
    pool2d_planes_max_f16 PlanesMaxF16 F16;
    pool2d_planes_max_bf16 PlanesMaxBf16 Bf16;
}
