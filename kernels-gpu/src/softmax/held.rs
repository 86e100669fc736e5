//! A row of a block, or of a warp, whose elements wait in shared memory or pass through it in chunks.

use contract::row::{MIDDLE, MIDDLE_THREADS, SHORT};
use contract::softmax::{Args, closing, shift};

use super::{Row, larger, of_type, terms};
use crate::arch::thread::sync_threads;
use crate::float::{Float, Piece};
use crate::row::block::{self, Block};

/// The row, in shared memory where it fits, else in chunks; one that may start anywhere where that is `ODD`.
///
/// # Safety
///
/// As for [`super::short`]; this block, or warp, has the row.
#[inline(always)]
pub(super) unsafe fn row<
    E: Float,
    const T: u32,
    const ROOM: u32,
    const PIECES: bool,
    const ODD: bool,
>(
    args: &Args,
    m: u32,
) {
    let row = Row::<E, PIECES>::new(args, m);
    let row = if ODD { row.turned(E::PIECE as u32, args.m) } else { row };
    let block = Block::<E, T, ROOM, PIECES, false>::new(&row.line);
    let fits = block.fits();
    // Shorter ones of `f32` are faster by way of registers.
    let comes = Block::<E, T, ROOM, PIECES, false>::COMES && fits && row.line.k > MIDDLE;
    // What waits are the elements as they came, or the scores.
    let scored = !comes || row.masked || row.log;
    let mut top = f32::NEG_INFINITY;
    // SAFETY: items of a row of the contract's table; the launch has the shared memory, and a barrier stands between
    // what one thread wrote and another reads there.
    unsafe {
        if comes {
            row.come::<T, ROOM, ODD>(&block, |s, v| {
                top = larger::<E, PIECES>(top, v);
                if scored {
                    Block::<E, T, ROOM, PIECES, false>::put(s, v);
                }
            });
        } else {
            block.chunks(|chunk| {
                let each = |s: u32, _: u32, v: Piece| {
                    top = larger::<E, PIECES>(top, v);
                    if fits {
                        Block::<E, T, ROOM, PIECES, false>::put(s, v);
                    }
                };
                // Longer ones of `f32` in few threads are worth more.
                let few = E::PIECE == 8 || T != MIDDLE_THREADS || row.line.k <= 2 * SHORT;
                if ODD && few || !cfg!(level_sm_80) && E::PIECE == 8 {
                    // There are no registers for more.
                    row.chunk::<T, ROOM, 4, ODD>(&block, chunk, each);
                } else {
                    row.chunk::<T, ROOM, 8, ODD>(&block, chunk, each);
                }
            });
        }
        block.meet();
        let top = block.max(top);
        let shift = shift(top);
        let mut partials = [0.0; block::MOST];
        block.chunks(|chunk| {
            if !fits {
                row.chunk::<T, ROOM, 2, ODD>(&block, chunk, |s, _, v| {
                    Block::<E, T, ROOM, PIECES, false>::put(s, v);
                });
            }
            if !row.log {
                block.own(chunk.all(), |s| {
                    let v = if scored {
                        Block::<E, T, ROOM, PIECES, false>::get(s)
                    } else {
                        row.came(&block, s, None)
                    };
                    Block::<E, T, ROOM, PIECES, false>::put(s, terms::<E, PIECES>(v, shift));
                });
            }
            Block::<E, T, ROOM, PIECES, false>::wait();
            if row.log {
                block.take(chunk.all(), &mut partials, |acc, v| acc + of_type::<E>(v, shift));
            } else {
                block.take(chunk.all(), &mut partials, |acc, e| acc + e);
            }
            if !fits {
                sync_threads();
            }
        });
        let closing = closing(block.tree(0, partials), top, row.log);
        block.chunks(|chunk| {
            if fits {
                block.own(chunk.all(), |s| {
                    let v = Block::<E, T, ROOM, PIECES, false>::get(s);
                    row.write(block.element(s), v, shift, closing);
                });
            } else {
                row.chunk::<T, ROOM, 2, ODD>(&block, chunk, |_, first, v| {
                    let v = if row.log { v } else { terms::<E, PIECES>(v, shift) };
                    row.write(first, v, shift, closing);
                });
            }
        });
    }
}
