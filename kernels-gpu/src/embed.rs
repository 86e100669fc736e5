//! Device side of [`contract::embed`]: block `(x, m)` copies `THREADS` elements of row `m`.

use contract::embed::{Args, EmbedBf16, EmbedF16, EmbedF32, THREADS};
use contract::launch::Kernel;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, st};
use crate::arch::thread::{block_idx_x, block_idx_y, thread_idx_x};
use crate::element::{Bf16, Element, F16};

/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; the grid is
/// `(M, width / THREADS rounded up)`.
#[inline(always)]
unsafe fn embed<E: Element>(args: &Args) {
    dependency_wait();
    // Not earlier: what stands behind a step's first operation may read the state of the step before at once.
    launch_dependents();
    let (i, m) = (block_idx_y() * THREADS + thread_idx_x(), block_idx_x() as usize);
    // SAFETY: m < M.
    let id =
        unsafe { ld(args.ids.as_ptr().cast_const().wrapping_add(m * args.ids_stride as usize)) };
    if i < args.width {
        let at = id as usize * args.stride as usize + i as usize; // table[id, i]
        let value = if id < args.vocab {
            // SAFETY: id < vocab and i < width <= stride.
            unsafe { E::load(args.table.cast::<E>().as_ptr().cast_const().wrapping_add(at)) }
        } else {
            f32::NAN
        };
        let out = args.out.as_ptr().wrapping_add(m * args.width as usize + i as usize);
        // SAFETY: out[m, i] belongs to this thread.
        unsafe { st(out, value) };
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC`; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { embed::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    embed_bf16 EmbedBf16 Bf16;
    embed_f16 EmbedF16 F16;
    embed_f32 EmbedF32 f32;
}
