//! What texts may pick next: bits become marks, a word of 32 tokens to a warp at a time.

use contract::launch::Kernel;
use contract::sample::{ALLOW_THREADS, ALLOW_WORDS, AllowArgs, FORBIDDEN, RESTS, SampleAllow};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, ld_u8_if, st, st_u8};
use crate::arch::thread::{block_idx_x, block_idx_y, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};

/// # Safety
///
/// The launch obeys `SampleAllow::SPEC` and grid; the pointers of `args` cover the contract's table, and a mask has a bit for each token.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sample_allow(args: AllowArgs) {
    launch_dependents();
    dependency_wait();
    let mask = block_idx_y() as usize;
    // SAFETY: a word of each mask.
    let row = unsafe { ld(args.rows.as_ptr().cast_const().wrapping_add(mask)) };
    if row >= args.limit {
        return; // the whole block
    }
    let allowed = args.allowed.as_ptr().cast_const().wrapping_add(mask * args.words as usize);
    let marks = args.marks.as_ptr().wrapping_add(row as usize * args.vocab as usize);
    let first = (block_idx_x() * (ALLOW_THREADS / LANES) + warp_id()) * ALLOW_WORDS;
    let token = |j: usize| (first + j as u32) * LANES + lane_id();
    // All at once.
    let loaded: [(u32, u8); ALLOW_WORDS as usize] = core::array::from_fn(|j| {
        let inside = token(j) < args.vocab;
        // SAFETY: a token of the vocabulary, which has a bit and a mark.
        unsafe {
            (
                ld_if(inside, allowed.wrapping_add(first as usize + j)),
                ld_u8_if(inside, marks.cast_const().wrapping_add(token(j) as usize)),
            )
        }
    });
    let mut j = 0;
    while j < loaded.len() {
        let (word, mark) = loaded[j];
        let bar = if word >> lane_id() & 1 == 0 { FORBIDDEN } else { 0 };
        if token(j) < args.vocab {
            // SAFETY: the mark of a token, which belongs to this thread.
            unsafe { st_u8(marks.wrapping_add(token(j) as usize), mark & !FORBIDDEN | bar) };
        }
        j += 1;
    }
    if block_idx_x() == 0 && thread_idx_x() == 0 {
        let state = args.state.as_ptr().wrapping_add(row as usize);
        // SAFETY: a field of the row's state, which this thread alone reads and writes meanwhile.
        unsafe {
            let done = &raw mut (*state).done;
            if ld(done.cast_const()) == RESTS {
                st(done, 0);
            }
        }
    }
}

const _: unsafe extern "ptx-kernel" fn(<SampleAllow as Kernel>::Args) = sample_allow;
