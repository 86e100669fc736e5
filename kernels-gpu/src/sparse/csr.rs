//! Linear kernels over compressed sparse rows: a warp makes one output.
//!
//! 32 values at a time, their columns ascending. Values of one partial are added in the order of their
//! lanes, a turn each, so that every chain is made in ascending k while different chains go on together.

use contract::launch::Kernel;
use contract::sparse::{
    CsrArgs, PARTIALS, SparseCsrBf16, SparseCsrF16, SparseCsrF32, WAYS, partial,
};

use super::input::{Bf16, F16, Value, load1};
use crate::arch::bitmap::fma_stored;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_u16, st};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y};
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_xor, sync_warp, warp_id, warp_max};

/// # Safety
///
/// The pointers of `args` cover the contract's table for values of `V`; block, shared memory and grid
/// are the contract's.
#[inline(always)]
unsafe fn csr<V: Value>(args: &CsrArgs) {
    launch_dependents();
    dependency_wait();
    let lane = lane_id();
    let partials = dynamic_shared_mem::<f32>().add(warp_id() * PARTIALS as u32);
    let row = block_idx_x() * WAYS as u32 + warp_id();
    // Warps past the last row stay alive with nothing to add.
    let inside = row < args.n;
    let offset = |row: u32| {
        // SAFETY: an entry of `rows`, up to the last.
        unsafe { ld(args.rows.as_ptr().cast_const().wrapping_add(row.min(args.n) as usize)) }
    };
    let (from, end) = (offset(row), offset(row + u32::from(inside)));
    let mut input = block_idx_y();
    while input < args.m {
        if lane < PARTIALS as u32 {
            // SAFETY: this warp's own partials.
            unsafe { partials.add(lane).write(0.0) };
        }
        sync_warp();
        let mut first = from;
        while first < end {
            let at = first as usize + lane as usize;
            let valid = at < end as usize;
            let (mut column, mut w, mut x) = (0, 0.0, 0.0);
            if valid {
                // SAFETY: a value of the row, its column, and that column of the input.
                unsafe {
                    column = ld(args.columns.as_ptr().cast_const().wrapping_add(at));
                    w = V::widen(load_value::<V>(args, at))[0];
                    let at = input as usize * args.k as usize + column as usize;
                    x = load1(args.x, args.x_type, at);
                }
            }
            let p = partial(column as usize) as u32;
            // Lanes with a value of the same partial, those in front of this one: its place in the chain.
            let mut same = ballot(valid);
            let mut bit = 1;
            while bit < PARTIALS as u32 {
                let set = ballot(p & bit != 0);
                same &= if p & bit != 0 { set } else { !set };
                bit *= 2;
            }
            let place = (same & ((1 << lane) - 1)).count_ones();
            let most = warp_max(if valid { place } else { 0 });
            let own = partials.add(p);
            let mut turn = 0;
            while turn <= most {
                if valid && place == turn {
                    // SAFETY: one lane of each partial in a turn, and a barrier between turns.
                    unsafe { own.write(fma_stored(w, x, own.read())) };
                }
                sync_warp();
                turn += 1;
            }
            first = if end - first > LANES { first + LANES } else { end };
        }
        // SAFETY: written before the warp's last barrier.
        let mut sum = unsafe { partials.add(lane % PARTIALS as u32).read() };
        let mut distance = PARTIALS as u32 / 2;
        while distance > 0 {
            sum += shuffle_xor(sum, distance);
            distance /= 2;
        }
        if lane == 0 && inside {
            let at = input as usize * args.n as usize + row as usize;
            // SAFETY: y[input, row] belongs to this warp.
            unsafe { st(args.y.as_ptr().wrapping_add(at), sum) };
        }
        sync_warp();
        input += grid_dim_y();
    }
}

/// The bits of value `at`, in the low half where they are 16.
///
/// # Safety
///
/// A value of the matrix.
#[inline(always)]
unsafe fn load_value<V: Value>(args: &CsrArgs, at: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        if V::PER_UNIT == 2 {
            ld_u16(args.values.cast::<u16>().as_ptr().cast_const().wrapping_add(at)).into()
        } else {
            ld(args.values.cast::<u32>().as_ptr().cast_const().wrapping_add(at))
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $value:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: CsrArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe { csr::<$value>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    sparse_csr_bf16 SparseCsrBf16 Bf16;
    sparse_csr_f16 SparseCsrF16 F16;
    sparse_csr_f32 SparseCsrF32 f32;
}
