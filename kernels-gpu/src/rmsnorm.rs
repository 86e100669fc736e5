//! Device side of [`contract::rmsnorm`]: some lanes of a warp, or a block, a row, read once where it fits.

use contract::launch::{DevPtr, Kernel};
use contract::num::fma;
#[cfg(not(level_sm_90))]
use contract::rmsnorm::WHOLE;
use contract::rmsnorm::{
    Args, LANE, MiddleBf16, MiddleF16, MiddleF32, ShortBf16, ShortF16, ShortF32, inv_rms, normalise,
};
#[cfg(level_sm_90)]
use contract::rmsnorm::{
    LongBf16, LongF16, LongF32, LongTurnedBf16, LongTurnedF16, LongTurnedF32, PartArgs, PartsBf16,
    PartsF16, PartsF32, RingBf16, RingF16, RingF32,
};
#[cfg(level_sm_80)]
use contract::rmsnorm::{SmallBf16, SmallF16, SmallF32, small};
#[cfg(level_sm_90)]
use contract::row::{LONG, lies};
use contract::row::{LONG_THREADS, MIDDLE, MIDDLE_THREADS, SHORT};

use crate::arch::block::WARPS;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::thread::opaque;
use crate::arch::warp::sync_warp;
use crate::element::{Bf16, F16};
use crate::float::Float;
#[cfg(not(level_sm_90))]
use crate::norm::alone;
#[cfg(level_sm_90)]
use crate::norm::parts::{self, Launch};
use crate::norm::sums::Sums;
use crate::norm::{Family, Held, Long, Near, Tensors, entries};
#[cfg(level_sm_90)]
use crate::norm::{entries_of_parts, entries_of_rings, ring};
use crate::row::block::{self, Block};
use crate::row::in_pieces;
use crate::row::lanes::{Lanes, Turns, near};

/// Those of the launch.
#[inline(always)]
fn tensors(args: &Args) -> Tensors {
    [args.x, args.delta, args.weight, DevPtr::NULL, args.y]
}

/// The family.
enum RmsNorm {}

impl Family for RmsNorm {
    type Args = Args;

    #[inline(always)]
    unsafe fn make<E: Float>(args: &Args, mut row: impl Held<E>) {
        // SAFETY: handed on.
        unsafe {
            let r = inv_rms(row.sum(0, |acc, v| fma(v, v, acc)), args.k, args.eps);
            row.write::<8>(|x, w, _| normalise(x, r, w));
        }
    }
}

entries! { RmsNorm:
    rmsnorm_short_f32 ShortF32 Short<f32>;
    rmsnorm_short_f16 ShortF16 Short<F16>;
    rmsnorm_short_bf16 ShortBf16 Short<Bf16>;
    rmsnorm_f32 MiddleF32 Long<f32, MIDDLE_THREADS, MIDDLE, 4>;
    rmsnorm_f16 MiddleF16 Long<F16, MIDDLE_THREADS, MIDDLE, 4>;
    rmsnorm_bf16 MiddleBf16 Long<Bf16, MIDDLE_THREADS, MIDDLE, 4>;
}

#[cfg(level_sm_80)]
entries! { RmsNorm:
    rmsnorm_small_f32 SmallF32 Small<f32>;
    rmsnorm_small_f16 SmallF16 Small<F16>;
    rmsnorm_small_bf16 SmallBf16 Small<Bf16>;
}

#[cfg(level_sm_90)]
entries! { RmsNorm:
    rmsnorm_long_f32 LongF32 Long<f32, LONG_THREADS, LONG, 8>;
    rmsnorm_long_f16 LongF16 Long<F16, LONG_THREADS, LONG, 8>;
    rmsnorm_long_bf16 LongBf16 Long<Bf16, LONG_THREADS, LONG, 8>;
}

#[cfg(level_sm_90)]
entries! { RmsNorm:
    rmsnorm_long_turned_f32 LongTurnedF32 LongTurned<f32>;
    rmsnorm_long_turned_f16 LongTurnedF16 LongTurned<F16>;
    rmsnorm_long_turned_bf16 LongTurnedBf16 LongTurned<Bf16>;
}

/// What the output of a long row is made with.
#[inline(always)]
fn row_of(args: &Args, sums: Sums) -> [f32; 2] {
    [0.0, inv_rms(sums.squares, args.k, args.eps)]
}

/// An output of it.
#[inline(always)]
fn value([x, w, _]: [f32; 3], [_, r]: [f32; 2]) -> f32 {
    normalise(x, r, w)
}

/// Long rows, a block each.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
#[cfg(not(level_sm_90))]
#[inline(always)]
unsafe fn long<E: Float>(args: &Args) {
    // SAFETY: handed on.
    unsafe {
        alone::rows::<E, false>(tensors(args), [args.m, args.k], |sums| row_of(args, sums), value);
    }
}

#[cfg(level_sm_90)]
entries_of_parts! { false, row_of, value:
    rmsnorm_parts_f32 PartsF32 f32;
    rmsnorm_parts_f16 PartsF16 F16;
    rmsnorm_parts_bf16 PartsBf16 Bf16;
}

#[cfg(level_sm_90)]
entries_of_rings! { RmsNorm, 1:
    rmsnorm_ring_f32 RingF32 f32;
    rmsnorm_ring_f16 RingF16 F16;
    rmsnorm_ring_bf16 RingBf16 Bf16;
}
