//! Quantises the table, a block a row, and the input: thread `t` takes elements `t`, `t + 256`, ...,
//! which are its partials of the sums.

use contract::launch::Kernel;
use contract::lm_head_int8::{
    Input, InputArgs, PackArgs, PackBf16, PackF16, PackF32, STATS_WORDS, SUM_SMEM_BYTES, THREADS,
    digit_words, digits, input_scales, input_stats, input_value, magnitude, rest, row_bytes,
    row_scales, row_stats, row_value,
};
use contract::num::fma;
use contract::rmsnorm::{inv_rms, normalise};

use crate::arch::block;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, st, st_u8, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::element::{Bf16, Element, F16};

const _: () = assert!(THREADS == block::THREADS && SUM_SMEM_BYTES >= 4 * (block::THREADS + 16));

/// The largest magnitude of the block.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The block has `SUM_SMEM_BYTES` of shared memory; no thread uses its last 16 words.
#[inline(always)]
unsafe fn top(own: u32) -> f32 {
    let scratch: Shared<u32> = dynamic_shared_mem().add(block::THREADS);
    // SAFETY: 8 words for this call.
    f32::from_bits(unsafe { block::max(scratch, own) })
}

/// Both sums over the block.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The block has `SUM_SMEM_BYTES` of shared memory; no thread uses its first 256 words.
#[inline(always)]
unsafe fn sums(a: f32, b: f32) -> (f32, f32) {
    let scratch: Shared<f32> = dynamic_shared_mem();
    // SAFETY: 256 words, used twice with a barrier between.
    unsafe {
        let a = block::sum_partials(scratch, a);
        sync_threads();
        (a, block::sum_partials(scratch, b))
    }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; block and grid are the
/// contract's.
#[inline(always)]
unsafe fn pack<E: Element>(args: &PackArgs) {
    launch_dependents();
    dependency_wait();
    let (k, row) = (args.k, block_idx_x() as usize);
    let w = args.w.cast::<E>().as_ptr().cast_const().wrapping_add(row * args.stride as usize);
    // SAFETY: only called with i < k.
    let at = |i: u32| unsafe { E::load(w.wrapping_add(i as usize)) };
    let mut own = 0;
    for i in (thread_idx_x()..k).step_by(THREADS as usize) {
        own = own.max(magnitude(at(i)));
    }
    // SAFETY: the last words of shared memory are for this call.
    let top = unsafe { top(own) };
    let (scale, inverse) = row_scales(top);
    let padded = row_bytes(k as usize);
    let bytes = args.bytes.as_ptr().wrapping_add(row * padded);
    let (mut rests, mut squares) = (0.0, 0.0);
    for i in (thread_idx_x()..padded as u32).step_by(THREADS as usize) {
        let mut q = 0;
        if i < k {
            let v = at(i);
            q = row_value(v, inverse);
            let d = rest(v, scale, i32::from(q));
            rests = fma(d, d, rests);
            squares = fma(v, v, squares);
        }
        // SAFETY: byte i < padded of this block's row.
        unsafe { st_u8(bytes.wrapping_add(i as usize), q as u8) };
    }
    // SAFETY: the first words of shared memory are for this call.
    let (rests, squares) = unsafe { sums(rests, squares) };
    if thread_idx_x() == 0 {
        let stats = row_stats(top, rests, squares);
        // SAFETY: four elements of this block's row, aligned to 16.
        unsafe { st_x4(args.rows.as_ptr().wrapping_add(4 * row).cast(), stats) };
    }
}

/// Values of a thread that are loaded at once, and stay in registers.
const HELD: usize = 16;

/// Norms the row whose first elements of this thread are `held`, and writes it.
///
/// *Convergence*: every thread of the block calls it. A barrier stands between this and the next use of the block's first 256 words of
/// shared memory.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table, with a row to norm; nobody uses shared memory.
#[inline(always)]
unsafe fn norm(args: &InputArgs, held: &mut [f32; HELD]) {
    let k = args.k;
    let element = |j: usize| thread_idx_x() + THREADS * j as u32;
    let far = || (element(HELD)..k).step_by(THREADS as usize);
    let [h, delta, weight] = [args.h, args.delta, args.weight].map(|p| p.as_ptr().cast_const());
    let adds = !delta.is_null();
    let sum = |x: f32, delta: f32| if adds { x + delta } else { x };
    // SAFETY: only called with i < k.
    let far_at = |i: u32| unsafe {
        sum(ld(h.wrapping_add(i as usize)), ld_if(adds, delta.wrapping_add(i as usize)))
    };
    // On their way with the row.
    let gains: [f32; HELD] = core::array::from_fn(|j| {
        // SAFETY: element j of this thread, when it is below k.
        unsafe { ld_if(element(j) < k, weight.wrapping_add(element(j) as usize)) }
    });
    let added: [f32; HELD] = core::array::from_fn(|j| {
        // SAFETY: the same, where there is something to add.
        unsafe { ld_if(adds && element(j) < k, delta.wrapping_add(element(j) as usize)) }
    });
    let mut squares = 0.0;
    let mut j = 0;
    while j < HELD {
        if element(j) < k {
            held[j] = sum(held[j], added[j]);
            squares = fma(held[j], held[j], squares);
        }
        j += 1;
    }
    for i in far() {
        squares = fma(far_at(i), far_at(i), squares);
    }
    // SAFETY: the first words of shared memory are for this call.
    let squares = unsafe { block::sum_partials(dynamic_shared_mem(), squares) };
    let r = inv_rms(squares, k, args.eps);
    let to = args.x.as_ptr();
    let mut j = 0;
    while j < HELD {
        if element(j) < k {
            held[j] = normalise(held[j], r, gains[j]);
            // SAFETY: element j of this thread.
            unsafe { st(to.wrapping_add(element(j) as usize), held[j]) };
        }
        j += 1;
    }
    for i in far() {
        // SAFETY: i < k, of this thread.
        unsafe {
            let x = normalise(far_at(i), r, ld(weight.wrapping_add(i as usize)));
            st(to.wrapping_add(i as usize), x);
        }
    }
}

/// # Safety
///
/// The launch obeys `Input::SPEC` with a block for each input; the pointers cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn lm_head_int8_input(args: InputArgs) {
    let args = args.of_row(block_idx_x());
    launch_dependents();
    dependency_wait();
    let (k, x) = (args.k, args.x.as_ptr().cast_const());
    let element = |j: usize| thread_idx_x() + THREADS * j as u32;
    let far = || (element(HELD)..k).step_by(THREADS as usize);
    // SAFETY: only called with i < k.
    let at = |i: u32| unsafe { ld(x.wrapping_add(i as usize)) };
    let given = args.h.is_null();
    let from = if given { x } else { args.h.as_ptr().cast_const() };
    let mut held: [f32; HELD] = core::array::from_fn(|j| {
        // SAFETY: element j of this thread, when it is below k.
        unsafe { ld_if(element(j) < k, from.wrapping_add(element(j) as usize)) }
    });
    if !given {
        // SAFETY: the launch contract, handed on; nobody uses shared memory yet.
        unsafe { norm(&args, &mut held) };
    }
    let mut own = 0;
    let mut j = 0;
    while j < HELD {
        own = own.max(magnitude(held[j]));
        j += 1;
    }
    for i in far() {
        own = own.max(magnitude(at(i)));
    }
    // SAFETY: the last words of shared memory are for this call.
    let top = unsafe { top(own) };
    let (scale, inverse) = input_scales(top);
    let padded = row_bytes(k as usize);
    let bytes = args.input.as_ptr().wrapping_add(STATS_WORDS).cast::<u8>();
    let (mut rests, mut squares) = (0.0, 0.0);
    let mut take = |i: u32, v: f32| {
        let p = input_value(v, inverse);
        if i < k {
            let r = rest(v, scale, p);
            rests = fma(r, r, rests);
            squares = fma(v, v, squares);
        }
        if i < padded as u32 {
            let [high, low] = digits(p);
            let to = bytes.wrapping_add(i as usize);
            // SAFETY: two bytes of value i, inside the padded digits.
            unsafe {
                st_u8(to, high as u8);
                st_u8(to.wrapping_add(padded), low as u8);
            }
        }
    };
    let mut j = 0;
    while j < HELD {
        take(element(j), held[j]); // a 0 past the end
        j += 1;
    }
    for i in (element(HELD)..padded as u32).step_by(THREADS as usize) {
        take(i, if i < k { at(i) } else { 0.0 });
    }
    // SAFETY: the first words of shared memory are for this call.
    let (rests, squares) = unsafe { sums(rests, squares) };
    if thread_idx_x() == 0 {
        let scratch = args.input.as_ptr().wrapping_add(digit_words(k as usize));
        let stats = input_stats(top, rests, squares, k);
        // SAFETY: the first four words, aligned to 16; those of the scratch: an empty list.
        unsafe {
            st_x4(args.input.as_ptr().cast(), stats);
            st_x4(scratch.cast(), [0u32; 4]);
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: PackArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe { pack::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    lm_head_int8_pack_bf16 PackBf16 Bf16;
    lm_head_int8_pack_f16 PackF16 F16;
    lm_head_int8_pack_f32 PackF32 f32;
}
const _: unsafe extern "ptx-kernel" fn(<Input as Kernel>::Args) = lm_head_int8_input;
