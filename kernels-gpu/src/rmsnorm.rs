//! Device side of [`contract::rmsnorm`]: some lanes of a warp, or a block, a row, read once where it fits.

use contract::launch::{DevPtr, Kernel};
use contract::num::fma;
use contract::rmsnorm::{
    Args, LANE, MiddleBf16, MiddleF16, MiddleF32, ShortBf16, ShortF16, ShortF32, inv_rms, normalise,
};
#[cfg(level_sm_90)]
use contract::rmsnorm::{LongBf16, LongF16, LongF32};
#[cfg(level_sm_90)]
use contract::row::LONG;
use contract::row::{LONG_THREADS, MIDDLE, MIDDLE_THREADS, SHORT};

use crate::arch::block::WARPS;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::thread::opaque;
use crate::arch::warp::sync_warp;
use crate::element::{Bf16, F16};
use crate::float::Float;
use crate::norm::{Held, Long, Near, Tensors, entries};
use crate::row::block::{self, Block};
use crate::row::in_pieces;
use crate::row::lanes::{Lanes, MOST_SINGLES, Turns, near};

/// Those of the launch.
#[inline(always)]
fn tensors(args: &Args) -> Tensors {
    [args.x, args.delta, args.weight, DevPtr::NULL, args.y]
}

/// # Safety
///
/// The row is one of the contract's table.
#[inline(always)]
unsafe fn rmsnorm<E: Float>(args: &Args, mut row: impl Held<E>) {
    // SAFETY: handed on.
    unsafe {
        let r = inv_rms(row.sum(0, |acc, v| fma(v, v, acc)), args.k, args.eps);
        row.write::<8>(|x, w, _| normalise(x, r, w));
    }
}

entries! { rmsnorm:
    rmsnorm_short_f32 ShortF32 Short<f32>;
    rmsnorm_short_f16 ShortF16 Short<F16>;
    rmsnorm_short_bf16 ShortBf16 Short<Bf16>;
    rmsnorm_f32 MiddleF32 Long<f32, MIDDLE_THREADS, MIDDLE, 4>;
    rmsnorm_f16 MiddleF16 Long<F16, MIDDLE_THREADS, MIDDLE, 4>;
    rmsnorm_bf16 MiddleBf16 Long<Bf16, MIDDLE_THREADS, MIDDLE, 4>;
}

#[cfg(level_sm_90)]
entries! { rmsnorm:
    rmsnorm_long_f32 LongF32 Long<f32, LONG_THREADS, LONG, 8>;
    rmsnorm_long_f16 LongF16 Long<F16, LONG_THREADS, LONG, 8>;
    rmsnorm_long_bf16 LongBf16 Long<Bf16, LONG_THREADS, LONG, 8>;
}
