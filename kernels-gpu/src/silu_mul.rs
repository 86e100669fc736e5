//! Device side of [`contract::silu_mul`]: one element per thread.

use contract::launch::Kernel;
use contract::silu_mul::{Args, SiluMul, THREADS, gated};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, st};
use crate::arch::thread::{block_idx_x, block_idx_y, thread_idx_x};

/// # Safety
///
/// The launch obeys `SiluMul::SPEC` with grid `(K / THREADS rounded up, M)`; the pointers of
/// `args` cover the contract's table for M rows of `args.k`.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn silu_mul(args: Args) {
    launch_dependents();
    dependency_wait();
    let (i, m) = (block_idx_x() * THREADS + thread_idx_x(), block_idx_y() as usize);
    if i < args.k {
        let (i, k) = (i as usize, args.k as usize);
        let gate = args.gate_up.as_ptr().cast_const().wrapping_add(2 * m * k + i);
        // SAFETY: gate_up[m, i] and gate_up[m, K + i], since i < K.
        let f = unsafe { gated(ld(gate), ld(gate.wrapping_add(k))) };
        // SAFETY: f[m, i] belongs to this thread.
        unsafe { st(args.f.as_ptr().wrapping_add(m * k + i), f) };
    }
}

const _: unsafe extern "ptx-kernel" fn(<SiluMul as Kernel>::Args) = silu_mul;
