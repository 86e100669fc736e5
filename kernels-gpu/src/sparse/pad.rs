//! Rows of an odd number of columns, copied to where tensor-core kernels can read eight at a time.

use contract::launch::Kernel;
use contract::sparse::{PIECE, PadArgs, SparsePad, THREADS};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_u16_if, st_x4};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, thread_idx_x};

/// # Safety
///
/// The launch obeys `SparsePad::SPEC` and the grid of `args`; `x` holds `[m, k]`, `padded` `[m, pitch]`, aligned to 16.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sparse_pad(args: PadArgs) {
    // The product behind this one asks for its weights meanwhile.
    launch_dependents();
    let (k, pitch) = (args.k, PadArgs::pitch(args.k));
    let first = (block_idx_x() * THREADS + thread_idx_x()) * PIECE;
    dependency_wait();
    let mut row = block_idx_y();
    while row < args.m && first < pitch {
        let from = args.x.as_ptr().cast_const().wrapping_add(row as usize * k as usize);
        let columns: [u32; PIECE as usize] = core::array::from_fn(|i| {
            let column = first + i as u32;
            // SAFETY: a column of the row.
            u32::from(unsafe { ld_u16_if(column < k, from.wrapping_add(column as usize)) })
        });
        let piece: [u32; 4] = core::array::from_fn(|i| columns[2 * i] | columns[2 * i + 1] << 16);
        let at = row as usize * pitch as usize + first as usize;
        // SAFETY: a piece of the padded row, this thread's own.
        unsafe { st_x4(args.padded.as_ptr().wrapping_add(at).cast(), piece) };
        row += grid_dim_y();
    }
}

const _: unsafe extern "ptx-kernel" fn(<SparsePad as Kernel>::Args) = sparse_pad;
