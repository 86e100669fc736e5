//! Device side of [`contract::lm_head`]: two table rows per warp, read once, 16 bytes at a time.
//!
//! Lane `l` holds partials `8 l .. 8 l + 8` of each row: in step `j` it takes elements
//! `256 j + 8 l ..` of the row, so a warp reads 256 neighbours. All loads of [`UNROLL`] steps are
//! issued before the first is used, and those of the first before the wait.
//!
//! The tree's distances 128 to 8 join lanes, 4 to 1 the partials of a lane. Both rows are summed at
//! once: at each of the first levels a lane gives away half of what it holds and keeps the other
//! half, so 19 shuffles do what 80 would.

mod many;
#[cfg(level_sm_90)]
mod tile;

use contract::launch::Kernel;
use contract::lm_head::{
    Args, LmHeadBf16, LmHeadF16, LmHeadF32, LmHeadManyBf16, LmHeadManyF16, LmHeadManyF32,
    ROWS_PER_BLOCK, ROWS_PER_WARP,
};
use contract::num::{DOT_PARTIALS, PARTIALS, fma};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_x4, st};
#[cfg(level_sm_90)]
use crate::arch::shared::Shared;
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{LANES, lane_id, shuffle_xor, warp_id};
use crate::element::{Bf16, Element, F16};

pub(crate) const ROWS: usize = 2;
/// Partials, and neighbouring elements, of one lane.
pub(crate) const OWN: usize = PARTIALS / LANES as usize;
/// Steps of 256 elements in flight.
const UNROLL: usize = 4;

const _: () = assert!(ROWS == ROWS_PER_WARP as usize && OWN == DOT_PARTIALS);

/// Gives one half of `held` to lane `lane ^ distance` for the other half of what that lane holds;
/// the lane whose bit is set keeps the upper half.
#[inline(always)]
fn fold<const N: usize, const HALF: usize>(held: [f32; N], distance: u32) -> [f32; HALF] {
    let upper = lane_id() & distance != 0;
    let mut out = [0.0; HALF];
    let mut i = 0;
    while i < HALF {
        let (low, high) = (held[i], held[i + HALF]);
        let (keep, give) = if upper { (high, low) } else { (low, high) };
        out[i] = keep + shuffle_xor(give, distance);
        i += 1;
    }
    out
}

/// The sums of both rows: row 0 in lanes 0 to 15, row 1 in lanes 16 to 31.
#[inline(always)]
fn sum_rows(acc: [[f32; OWN]; ROWS]) -> f32 {
    let mut all = [0.0; 2 * OWN];
    let mut p = 0;
    while p < OWN {
        all[p] = acc[0][p];
        all[OWN + p] = acc[1][p];
        p += 1;
    }
    // Distances 128, 64, 32, 16, 8 of the tree. A lane ends with the partial of its bits 3, 2, 1.
    let all: [f32; 8] = fold(all, 16);
    let all: [f32; 4] = fold(all, 8);
    let all: [f32; 2] = fold(all, 4);
    let [sum]: [f32; 1] = fold(all, 2);
    let sum = sum + shuffle_xor(sum, 1);
    // Distances 4, 2, 1.
    let sum = sum + shuffle_xor(sum, 8);
    let sum = sum + shuffle_xor(sum, 4);
    sum + shuffle_xor(sum, 2)
}

/// The sum of one row, in every lane: 12 shuffles.
#[cfg(level_sm_90)]
#[inline(always)]
fn sum_row([acc]: [[f32; OWN]; 1]) -> f32 {
    // Distances 128, 64, 32, 16, 8 of the tree. A lane ends with the partial of its bits 4, 3, 2.
    let all: [f32; 4] = fold(acc, 16);
    let all: [f32; 2] = fold(all, 8);
    let [sum]: [f32; 1] = fold(all, 4);
    let sum = sum + shuffle_xor(sum, 2);
    let sum = sum + shuffle_xor(sum, 1);
    // Distances 4, 2, 1.
    let sum = sum + shuffle_xor(sum, 16);
    let sum = sum + shuffle_xor(sum, 8);
    sum + shuffle_xor(sum, 4)
}

/// Weights of the steps in flight: `[step][row]`.
pub(crate) type Steps<E, const N: usize, const R: usize = ROWS> = [[<E as Element>::Raw8; R]; N];

/// Issues the loads of steps `first ..` that lie below `whole`.
///
/// # Safety
///
/// Each of `rows` is element `8 lane` of a row of at least `256 * whole` weights.
#[inline(always)]
pub(crate) unsafe fn load_steps<E: Element, const N: usize, const R: usize>(
    rows: [*const E; R],
    first: u32,
    whole: u32,
) -> Steps<E, N, R> {
    core::array::from_fn(|u| {
        core::array::from_fn(|r| {
            let step = first + u as u32;
            let p = rows[r].wrapping_add(step as usize * PARTIALS);
            // SAFETY: elements 256 step + 8 lane .. + 8 of the row, when step < whole.
            unsafe { E::stream8(step < whole, p) }
        })
    })
}

/// The dots of `x` and two rows, of which the first steps are on their way: row 0 in lanes 0 to 15,
/// row 1 in lanes 16 to 31.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// `x` has `k` elements; each of `rows` is element `8 lane` of a row of `k` weights, and `steps` what
/// [`load_steps`] gave for them from step 0.
#[inline(always)]
pub(crate) unsafe fn dots<E: Element, const N: usize>(
    rows: [*const E; ROWS],
    steps: Steps<E, N>,
    x: *const f32,
    k: usize,
) -> f32 {
    let x = x.wrapping_add(OWN * lane_id() as usize); // x[8 lane]
    // SAFETY: elements at + 8 lane .. of x, which are there.
    let eight = |at| unsafe { load8(x.wrapping_add(at)) };
    // SAFETY: the same of one.
    let one = |at| unsafe { ld(x.wrapping_add(at)) };
    // SAFETY: the caller's promise.
    sum_rows(unsafe { partials(rows, steps, k, eight, one) })
}

/// The dot of one row and `x` in shared memory, in every lane; else as [`dots`].
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// As for [`dots`]; `x` is aligned to 16, and nobody writes it meanwhile.
#[cfg(level_sm_90)]
#[inline(always)]
pub(crate) unsafe fn dot_near<E: Element, const N: usize>(
    row: *const E,
    steps: Steps<E, N, 1>,
    x: Shared<f32>,
    k: usize,
) -> f32 {
    let x = x.add(OWN as u32 * lane_id()); // x[8 lane]
    let eight = |at| {
        let x = x.add(at as u32);
        // SAFETY: elements at + 8 lane .. of x, which are there.
        let (a, b) = unsafe { (x.read_x4(), x.add(4).read_x4()) };
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
    };
    // SAFETY: the same of one.
    let one = |at| unsafe { x.add(at as u32).read() };
    // SAFETY: the caller's promise.
    sum_row(unsafe { partials([row], steps, k, eight, one) })
}

/// This lane's partials of the dots of an input and `rows`; `eight(at)` gives elements
/// `at + 8 lane .. at + 8 lane + 8` of it, `one(at)` element `at + 8 lane`.
///
/// # Safety
///
/// As for [`dots`].
#[inline(always)]
unsafe fn partials<E: Element, const N: usize, const R: usize>(
    rows: [*const E; R],
    mut steps: Steps<E, N, R>,
    k: usize,
    eight: impl Fn(usize) -> [f32; OWN],
    one: impl Fn(usize) -> f32,
) -> [[f32; OWN]; R] {
    let own = OWN * lane_id() as usize;
    let whole = (k / PARTIALS) as u32;
    let mut acc = [[0.0; OWN]; R];
    let mut first = 0;
    while first < whole {
        let mut u = 0;
        while u < N {
            let step = first + u as u32;
            if step < whole {
                let x = eight(step as usize * PARTIALS);
                let mut r = 0;
                while r < R {
                    let w = E::widen8(steps[u][r]);
                    let mut p = 0;
                    while p < OWN {
                        acc[r][p] = fma(x[p], w[p], acc[r][p]);
                        p += 1;
                    }
                    r += 1;
                }
            }
            u += 1;
        }
        first += N as u32;
        // SAFETY: as above.
        steps = unsafe { load_steps(rows, first, whole) };
    }

    // The last K % 256 elements, one by one.
    let at = whole as usize * PARTIALS;
    let mut p = 0;
    while p < OWN {
        if at + own + p < k {
            let (x, mut r) = (one(at + p), 0);
            while r < R {
                // SAFETY: element at + 8 lane + p < K of the row.
                acc[r][p] = fma(x, unsafe { E::load(rows[r].wrapping_add(at + p)) }, acc[r][p]);
                r += 1;
            }
        }
        p += 1;
    }
    acc
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; block and grid are the
/// contract's.
#[inline(always)]
unsafe fn lm_head<E: Element>(args: &Args) {
    let (k, vocab) = (args.k as usize, args.vocab);
    let own = OWN * lane_id() as usize;
    let row0 = block_idx_x() * ROWS_PER_BLOCK + warp_id() * ROWS_PER_WARP;
    let table = args.w.cast::<E>().as_ptr().cast_const();
    let rows: [*const E; ROWS] = core::array::from_fn(|r| {
        let row = (row0 + r as u32).min(vocab - 1); // lanes stay alive: the last row again
        table.wrapping_add(row as usize * args.stride as usize + own)
    });
    let whole = (k / PARTIALS) as u32; // steps in which every lane has eight elements
    // SAFETY: rows of K elements, from element 8 lane.
    let steps: Steps<E, UNROLL> = unsafe { load_steps(rows, 0, whole) };
    launch_dependents();
    dependency_wait();

    // SAFETY: the steps of these rows; x has K elements.
    let sum = unsafe { dots(rows, steps, args.x.as_ptr().cast_const(), k) };
    let row = row0 + lane_id() / 16;
    if lane_id() % 16 == 0 && row < vocab {
        // SAFETY: logits[row] belongs to this lane.
        unsafe { st(args.logits.as_ptr().wrapping_add(row as usize), sum) };
    }
}

/// Eight neighbours, 16 bytes at a time when they start on such a boundary: all of a row do or none.
///
/// # Safety
///
/// `p` is a multiple of eight elements behind the start of a row, with eight elements to read.
#[inline(always)]
unsafe fn load8(p: *const f32) -> [f32; OWN] {
    if p.addr().is_multiple_of(16) {
        // SAFETY: the caller's promise; the address was just looked at.
        let (a, b) = unsafe { (ld_x4(p.cast()), ld_x4(p.wrapping_add(4).cast())) };
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
    } else {
        // SAFETY: the caller's promise.
        core::array::from_fn(|i| unsafe { ld(p.wrapping_add(i)) })
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $body:expr;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: <$kernel as Kernel>::Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { $body(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

#[cfg(level_sm_90)]
use contract::lm_head::{LmHeadTileBf16, LmHeadTileF16, LmHeadTileF32};

#[cfg(level_sm_90)]
entries! {
    lm_head_tile_bf16 LmHeadTileBf16 tile::lm_head_tile::<Bf16>;
    lm_head_tile_f16 LmHeadTileF16 tile::lm_head_tile::<F16>;
    lm_head_tile_f32 LmHeadTileF32 tile::lm_head_tile::<f32>;
}

entries! {
    lm_head_bf16 LmHeadBf16 lm_head::<Bf16>;
    lm_head_f16 LmHeadF16 lm_head::<F16>;
    lm_head_f32 LmHeadF32 lm_head::<f32>;
    lm_head_many_bf16 LmHeadManyBf16 many::lm_head_many::<Bf16>;
    lm_head_many_f16 LmHeadManyF16 many::lm_head_many::<F16>;
    lm_head_many_f32 LmHeadManyF32 many::lm_head_many::<f32>;
}
