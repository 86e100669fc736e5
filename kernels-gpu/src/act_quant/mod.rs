//! Device side of [`contract::act_quant`]: one block per row; every element is made once.
//!
//! A thread owns elements `t, t + 256, ...` (see [`held`]): the first `HELD` stay in registers, the
//! others are read again for each pass (maximum, then quantising).

pub(crate) mod held;
#[cfg(level_sm_80)]
mod item;
mod long;
#[cfg(level_sm_80)]
mod many;
#[cfg(level_sm_80)]
mod rows;
#[cfg(level_sm_80)]
mod short;
#[cfg(level_sm_80)]
mod source;

use contract::act_quant::{
    ActQuantLayerNorm, ActQuantRelu2, ActQuantRmsNorm, ActQuantSilu, Args, GatedArgs,
    LayerNormArgs, RmsNormArgs, SMEM_BYTES, THREADS,
};
use contract::activation::Activation;
use contract::launch::{DevPtr, Kernel};
use contract::layernorm;
use contract::num::{
    ORDINARY_ZERO, abs_bits, act_scale, fma, is_ordinary, quantise, quantise_ordinary,
};
use contract::rmsnorm::{self, inv_rms, normalise};
use contract::w2a8::{ActStats, act_bytes, act_index};

use crate::arch::block;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, ld_nc, st, st_u8};
use crate::arch::mem_if::st_u8_if;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::Float;

use held::{LONG, SHORT, element, held_constants, is_short, residual_row, step};

const _: () = assert!(THREADS == block::THREADS && SMEM_BYTES >= 4 * (block::THREADS + 16));

/// Quantises the block's row: `held`, then `far(i)` for the elements beyond.
///
/// # Safety
///
/// `acts` and `stats` cover the contract's table for rows of `k`; the block has `SMEM_BYTES` of
/// shared memory, whose last 16 words nobody else uses; `held` is zero past the end of the row.
#[inline(always)]
unsafe fn quantise_row<const HELD: usize>(
    held: &[f32; HELD],
    far: impl Fn(u32) -> f32,
    k: u32,
    acts: DevPtr<u32>,
    stats: DevPtr<ActStats>,
) {
    let mut top = 0;
    let mut j = 0;
    while j < HELD {
        top = top.max(abs_bits(held[j]));
        j += 1;
    }
    for i in (element(HELD)..k).step_by(THREADS as usize) {
        top = top.max(abs_bits(far(i)));
    }
    let scratch: Shared<u32> = dynamic_shared_mem().add(block::THREADS);
    // SAFETY: words 256 to 263 of the shared memory are for this call.
    let scale = act_scale(f32::from_bits(unsafe { block::max(scratch, top) }));

    // acts[m]: whole chunk groups, zeros past the end of the row.
    let padded = act_bytes(k as usize) as u32;
    let row = block_idx_x() as usize;
    let acts = acts.cast::<u8>().as_ptr().wrapping_add(row * padded as usize);
    let own = acts.wrapping_add(act_index(thread_idx_x() as usize));
    let put = |j: usize, q: i8| {
        // SAFETY: element(j) < act_bytes(K), and act_index maps each such index to a byte of its
        // own: that of the thread's first element, moved by `step`.
        unsafe { st_u8(own.wrapping_add(step(j)), q as u8) };
        i32::from(q)
    };
    // A row that is not finite quantises to zeros.
    let ordinary = is_ordinary(scale);
    let mut sum = 0;
    let mut j = 0;
    while j < HELD {
        let word = if ordinary { quantise_ordinary(held[j], scale) } else { ORDINARY_ZERO };
        // SAFETY: as for `put`.
        unsafe { st_u8_if(element(j) < padded, own.wrapping_add(step(j)), word) };
        // Past the end of the row this adds zero.
        sum += word.wrapping_sub(ORDINARY_ZERO) as i32;
        j += 1;
    }
    while element(j) < padded {
        let i = element(j);
        sum += put(j, if i < k { quantise(far(i), scale) } else { 0 });
        j += 1;
    }
    // SAFETY: words 264 to 271 of the shared memory are for this call.
    let sum = unsafe { block::sum(scratch.add(8), sum) };
    if thread_idx_x() == 0 {
        let at = stats.cast::<u32>().as_ptr().wrapping_add(2 * row);
        // SAFETY: stats[m], written by this thread alone: the scale, then the sum.
        unsafe {
            st(at, scale.to_bits());
            st(at.wrapping_add(1), sum as u32);
        }
    }
}

macro_rules! plain {
    ($($symbol:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with one block per row; the pointers of `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe {
                if is_short(args.k) {
                    plain::<$element, SHORT>(&args)
                } else {
                    plain::<$element, LONG>(&args)
                }
            }
        }

        const _: unsafe extern "ptx-kernel" fn(<contract::act_quant::$kernel as Kernel>::Args) = $symbol;
    )*};
}

plain! {
    act_quant ActQuant f32;
    act_quant_f16 ActQuantF16 F16;
    act_quant_bf16 ActQuantBf16 Bf16;
}

/// # Safety
///
/// As for [`act_quant`].
#[inline(always)]
unsafe fn plain<E: Float, const HELD: usize>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let k = args.k;
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let x = x.wrapping_add(block_idx_x() as usize * k as usize);
    let mut held = [0.0; HELD];
    let mut j = 0;
    while j < HELD {
        let i = element(j);
        // SAFETY: x[m, i] with i < K.
        held[j] = unsafe { E::load_if(i < k, x.wrapping_add(i as usize)) };
        j += 1;
    }
    // SAFETY: `far` is asked for i < K; the launch contract, handed on.
    unsafe {
        quantise_row(&held, |i| E::load(x.wrapping_add(i as usize)), k, args.acts, args.stats)
    }
}

/// # Safety
///
/// The launch obeys `ActQuantRmsNorm::SPEC` with one block per row; the pointers of `args` cover
/// the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn act_quant_rmsnorm(args: RmsNormArgs) {
    // SAFETY: the launch contract, handed on.
    unsafe { if is_short(args.k) { normed::<SHORT>(&args) } else { normed::<LONG>(&args) } }
}

/// # Safety
///
/// As for [`act_quant_rmsnorm`].
#[inline(always)]
unsafe fn normed<const HELD: usize>(args: &RmsNormArgs) {
    let k = args.k;
    let weight = args.weight.as_ptr().cast_const();
    // SAFETY: `weight` holds K elements that never change.
    let gains: [f32; HELD] = unsafe { held_constants(weight, k) };
    launch_dependents();
    dependency_wait();

    let row = block_idx_x() as usize * k as usize;
    let x = args.x.as_ptr().wrapping_add(row);
    let delta = args.delta.as_ptr().cast_const();
    let delta = if delta.is_null() { delta } else { delta.wrapping_add(row) };
    // SAFETY: row m of `x` and of `delta`, both K long.
    let (mut held, squares): ([f32; HELD], f32) =
        unsafe { residual_row(x, delta, k, |acc, v| fma(v, v, acc)) };
    // SAFETY: words 0 to 255 of the shared memory are for this call; this thread wrote x[m, i] itself, if anyone did.
    let squares = unsafe {
        whole_or_long::<HELD>(squares, k, |i| ld(x.cast_const().wrapping_add(i as usize)))
    };
    let r = inv_rms(squares, k, args.eps);

    normalise_held(&mut held, r, &gains, k);
    let far = |i: u32| {
        let at = i as usize;
        // SAFETY: i < K; this thread wrote x[m, i] itself, if anyone did.
        unsafe { normalise(ld(x.cast_const().wrapping_add(at)), r, ld_nc(weight.wrapping_add(at))) }
    };
    // SAFETY: the launch contract, handed on.
    unsafe { quantise_row(&held, far, k, args.acts, args.stats) }
}

/// The sum of the squares of a row, from this thread's `partial` of all of them, or from `at(i)`.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// Words 0 to 255 of the shared memory are for this call, which asks for elements of this thread.
#[inline(always)]
unsafe fn whole_or_long<const HELD: usize>(partial: f32, k: u32, at: impl Fn(u32) -> f32) -> f32 {
    // SAFETY: handed on.
    unsafe {
        if HELD == LONG && k > rmsnorm::WHOLE {
            let [_, squares] = long::sums::<false>(dynamic_shared_mem(), k, at);
            return squares;
        }
        block::sum_partials(dynamic_shared_mem(), partial)
    }
}

/// # Safety
///
/// The launch obeys `ActQuantLayerNorm::SPEC` with one block per row; the pointers of `args` cover
/// the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn act_quant_layernorm(args: LayerNormArgs) {
    // SAFETY: the launch contract, handed on.
    unsafe { if is_short(args.k) { centred::<SHORT>(&args) } else { centred::<LONG>(&args) } }
}

/// # Safety
///
/// As for [`act_quant_layernorm`].
#[inline(always)]
unsafe fn centred<const HELD: usize>(args: &LayerNormArgs) {
    launch_dependents();
    dependency_wait();
    let k = args.k;
    let row = block_idx_x() as usize * k as usize;
    let x = args.x.as_ptr().wrapping_add(row);
    let delta = args.delta.as_ptr().cast_const();
    let delta = if delta.is_null() { delta } else { delta.wrapping_add(row) };
    // SAFETY: row m of `x` and of `delta`, both K long.
    let (mut held, sum): ([f32; HELD], f32) =
        unsafe { residual_row(x, delta, k, |acc, v| acc + v) };
    let mut long = [0.0; 2];
    let is_long = HELD == LONG && k > layernorm::WHOLE;
    // SAFETY: words 0 to 255 of the shared memory are for these calls; this thread wrote x[m, i] itself, if anyone did.
    let sum = unsafe {
        if is_long {
            let at = |i: u32| ld(x.cast_const().wrapping_add(i as usize));
            long = long::sums::<true>(dynamic_shared_mem(), k, at);
            long[0]
        } else {
            block::sum_partials(dynamic_shared_mem(), sum)
        }
    };
    let mean = sum / k as f32;
    // SAFETY: x[m, i] with i < K; this thread wrote it itself, if anyone did.
    let far = |i: u32| unsafe { ld(x.cast_const().wrapping_add(i as usize)) - mean };
    let mut squares = 0.0;
    let mut j = 0;
    while j < HELD {
        held[j] = if element(j) < k { held[j] - mean } else { 0.0 };
        squares = fma(held[j], held[j], squares);
        j += 1;
    }
    if !is_long {
        for i in (element(HELD)..k).step_by(THREADS as usize) {
            squares = fma(far(i), far(i), squares);
        }
    }
    // The partials before are still being read.
    sync_threads();
    // SAFETY: words 0 to 255 of the shared memory are for this call.
    let whole = unsafe { block::sum_partials(dynamic_shared_mem(), squares) };
    let squares = if is_long { long[1] } else { whole };
    let r = layernorm::inv_deviation(squares, k, args.eps);
    let beside = |p: DevPtr<f32>, i: u32, nothing: f32| {
        let p = p.as_ptr().cast_const();
        // SAFETY: element i < K of a vector that is there, and never changes.
        if p.is_null() { nothing } else { unsafe { ld_nc(p.wrapping_add(i as usize)) } }
    };
    let normed = |i: u32, centred: f32| {
        layernorm::normalise(centred, r, beside(args.weight, i, 1.0), beside(args.bias, i, -0.0))
    };
    let mut j = 0;
    while j < HELD {
        held[j] = if element(j) < k { normed(element(j), held[j]) } else { 0.0 };
        j += 1;
    }
    // SAFETY: the launch contract, handed on.
    unsafe { quantise_row(&held, |i| normed(i, far(i)), k, args.acts, args.stats) }
}

/// Applies the norm to the held elements inside the row.
#[inline(always)]
fn normalise_held<const HELD: usize>(held: &mut [f32; HELD], r: f32, gains: &[f32; HELD], k: u32) {
    let mut j = 0;
    while j < HELD {
        // Past the end an infinite `r` would make a NaN of the zero.
        held[j] = if element(j) < k { normalise(held[j], r, gains[j]) } else { 0.0 };
        j += 1;
    }
}

/// The gated kernels, for the product `gated(gate, up)`.
///
/// # Safety
///
/// The block has `THREADS` threads and `SMEM_BYTES` of shared memory, the grid one block per row;
/// the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn act_quant_gated(args: &GatedArgs, gated: impl Fn(f32, f32) -> f32) {
    // SAFETY: handed on.
    unsafe {
        match is_short(args.k) {
            true => gated_row::<SHORT>(args, gated),
            false => gated_row::<LONG>(args, gated),
        }
    }
}

/// # Safety
///
/// As for [`act_quant_gated`].
#[inline(always)]
unsafe fn gated_row<const HELD: usize>(args: &GatedArgs, gated: impl Fn(f32, f32) -> f32) {
    let k = args.k;
    let weight = args.weight.as_ptr().cast_const();
    // SAFETY: `weight` is null or holds K elements that never change.
    let gains: [f32; HELD] = unsafe { held_constants(weight, k) };
    launch_dependents();
    dependency_wait();

    let row = block_idx_x() as usize * k as usize;
    let gate = args.gate_up.as_ptr().cast_const().wrapping_add(2 * row); // gate_up[m, 0]
    let up = gate.wrapping_add(k as usize);
    let f = args.f.as_ptr().wrapping_add(row);

    let (mut held, mut ups) = ([0.0; HELD], [0.0; HELD]);
    let mut j = 0;
    while j < HELD {
        let i = element(j);
        // SAFETY: gate_up[m, i] and gate_up[m, K + i] with i < K.
        unsafe {
            held[j] = ld_if(i < k, gate.wrapping_add(i as usize));
            ups[j] = ld_if(i < k, up.wrapping_add(i as usize));
        }
        j += 1;
    }
    let mut squares = 0.0;
    let mut j = 0;
    while j < HELD {
        let i = element(j);
        held[j] = if i < k { gated(held[j], ups[j]) } else { 0.0 };
        // The branch keeps the loads together in front of it.
        if i < k {
            // SAFETY: f[m, i] belongs to this thread.
            unsafe { st(f.wrapping_add(i as usize), held[j]) };
        }
        squares = fma(held[j], held[j], squares);
        j += 1;
    }
    let mut i = element(HELD);
    while i < k {
        let at = i as usize;
        // SAFETY: i < K; f[m, i] belongs to this thread.
        unsafe {
            let v = gated(ld(gate.wrapping_add(at)), ld(up.wrapping_add(at)));
            st(f.wrapping_add(at), v);
            squares = fma(v, v, squares);
        }
        i += THREADS;
    }

    let norm = !weight.is_null(); // the same for every thread
    let mut r = 1.0;
    if norm {
        // SAFETY: words 0 to 255 of the shared memory are for this call; this thread wrote f[m, i] itself.
        let squares = unsafe {
            whole_or_long::<HELD>(squares, k, |i| ld(f.cast_const().wrapping_add(i as usize)))
        };
        r = inv_rms(squares, k, args.eps);
        normalise_held(&mut held, r, &gains, k);
    }
    let far = |i: u32| {
        let at = i as usize;
        // SAFETY: i < K; this thread wrote f[m, i] itself.
        let v = unsafe { ld(f.cast_const().wrapping_add(at)) };
        // SAFETY: i < K, and `weight` is not null.
        if norm { normalise(v, r, unsafe { ld_nc(weight.wrapping_add(at)) }) } else { v }
    };
    // SAFETY: the launch contract, handed on.
    unsafe { quantise_row(&held, far, k, args.acts, args.stats) }
}

/// # Safety
///
/// The launch obeys `ActQuantRelu2::SPEC` with one block per row; the pointers of `args` cover the
/// contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn act_quant_relu2(args: GatedArgs) {
    // SAFETY: the launch contract, handed on.
    unsafe { act_quant_gated(&args, |gate, up| Activation::Relu2.gated(gate, up)) }
}

/// # Safety
///
/// The launch obeys `ActQuantSilu::SPEC` with one block per row; the pointers of `args` cover the
/// contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn act_quant_silu(args: GatedArgs) {
    // SAFETY: the launch contract, handed on.
    unsafe { act_quant_gated(&args, |gate, up| Activation::Silu.gated(gate, up)) }
}

const _: unsafe extern "ptx-kernel" fn(<ActQuantRmsNorm as Kernel>::Args) = act_quant_rmsnorm;
const _: unsafe extern "ptx-kernel" fn(<ActQuantLayerNorm as Kernel>::Args) = act_quant_layernorm;
const _: unsafe extern "ptx-kernel" fn(<ActQuantRelu2 as Kernel>::Args) = act_quant_relu2;
const _: unsafe extern "ptx-kernel" fn(<ActQuantSilu as Kernel>::Args) = act_quant_silu;
