//! Copies factors to lines of f32: a warp a piece of a line. 16-bit floats widen, by a kernel of their own.

use contract::bmm::{COPY_PIECE, COPY_WARPS, Copied, CopyArgs};

use super::source::Float;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_if, ld_or_zero_x4, ld_word_or_half_if, st, st_x4};
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{LANES, lane_id, warp_id};

/// Elements of a lane at a time, and of 16 bytes of 16-bit ones.
const AT_ONCE: usize = 8;
/// Pieces of 16 bytes of a lane.
const QUADS: usize = COPY_PIECE as usize / LANES as usize / AT_ONCE;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`CopyArgs::blocks`]; factors and copies cover what `args` says, and no
/// copy overlaps anything; `HALF` says whether their elements have 16 bits.
#[inline(always)]
pub(super) unsafe fn copy<const HALF: bool>(args: &CopyArgs) {
    let index = block_idx_x() * COPY_WARPS + warp_id();
    let first = args.a.pieces() as u32;
    dependency_wait();
    // SAFETY: the caller's promise.
    unsafe {
        if index < first {
            copy_piece::<HALF>(&args.a, index);
        } else if index - first < args.b.pieces() as u32 {
            copy_piece::<HALF>(&args.b, index - first);
        }
    }
    // Not before: while copies run, the blocks of the product would crowd where there is room already.
    launch_dependents();
}

/// # Safety
///
/// As for [`copy`]; a piece of a line of the copy.
#[inline(always)]
unsafe fn copy_piece<const HALF: bool>(factor: &Copied, index: u32) {
    let pieces = factor.line_pieces();
    let (line, piece) = if pieces == 1 { (index, 0) } else { (index / pieces, index % pieces) };
    let (matrix, here) = (line / factor.to_lines, line % factor.to_lines);
    let (start, element) = (piece * COPY_PIECE, Float::<false>(factor.element));
    let at = u64::from(matrix) * factor.stride + u64::from(here) * factor.ld + u64::from(start);
    let from = factor.from.as_ptr().cast_const();
    let from = from.wrapping_add((at * if HALF { 2 } else { 4 }) as usize);
    let to = u64::from(line) * u64::from(factor.to_len) + u64::from(start);
    let to = factor.to.as_ptr().wrapping_add(to as usize);
    let len = if here < factor.lines { factor.len.saturating_sub(start) } else { 0 };
    let to_len = (factor.to_len - start).min(COPY_PIECE);
    let mut first = lane_id();
    if HALF && (from as u64 | to as u64) % 16 == 0 {
        // As many whole pieces as there are; the others one by one.
        let quads = len.min(to_len) / AT_ONCE as u32;
        let at = |i: usize| lane_id() + LANES * i as u32;
        // SAFETY: eight elements of the factor, and of the copy.
        unsafe {
            let words: [[u32; 4]; QUADS] = core::array::from_fn(|i| {
                ld_or_zero_x4(at(i) < quads, from.cast::<[u32; 4]>().wrapping_add(at(i) as usize))
            });
            let mut i = 0;
            while i < QUADS {
                if at(i) < quads {
                    let to = to.wrapping_add(AT_ONCE * at(i) as usize);
                    let wide = |word: u32| {
                        [element.widen(word as u16), element.widen((word >> 16) as u16)]
                    };
                    let [[a, b], [c, d]] = [wide(words[i][0]), wide(words[i][1])];
                    st_x4(to.cast(), [a, b, c, d]);
                    let [[a, b], [c, d]] = [wide(words[i][2]), wide(words[i][3])];
                    st_x4(to.wrapping_add(4).cast(), [a, b, c, d]);
                }
                i += 1;
            }
        }
        first += AT_ONCE as u32 * quads;
    }
    while first < to_len {
        let at = |i: usize| first + LANES * i as u32;
        // SAFETY: an element of the factor, and of the copy.
        unsafe {
            let values: [f32; AT_ONCE] = core::array::from_fn(|i| {
                let there = at(i) < len;
                let value = if HALF {
                    let p = from.wrapping_add(2 * at(i) as usize);
                    element.widen(ld_word_or_half_if(there, true, p) as u16)
                } else {
                    ld_if(there, from.cast::<f32>().wrapping_add(at(i) as usize))
                };
                if there { value } else { f32::from_bits(factor.fill) }
            });
            let mut i = 0;
            while i < AT_ONCE {
                if at(i) < to_len {
                    st(to.wrapping_add(at(i) as usize), values[i]);
                }
                i += 1;
            }
        }
        first += LANES * AT_ONCE as u32;
    }
}
