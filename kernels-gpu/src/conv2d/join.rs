//! Adds the sums of splits, first to last, and runs the epilogue.

use contract::conv2d::{Activation, Args, Conv2dJoinF32, Conv2dJoinHalf, JOIN_THREADS, finish};
use contract::launch::Kernel;

use super::epilogue::{bias, residual, split_at};
use super::value::{Half, Value};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::ld;
use crate::arch::thread::{block_idx_x, thread_idx_x};

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a thread for each output; `partial` holds all splits.
#[inline(always)]
unsafe fn run<T: Value>(args: &Args) {
    let g = &args.geometry;
    let channels = g.k * g.groups;
    let i = u64::from(block_idx_x()) * u64::from(JOIN_THREADS) + u64::from(thread_idx_x());
    launch_dependents();
    dependency_wait();
    // Splits serve small outputs: fewer than 2^31.
    let (pixel, channel) = (i as u32 / channels, i as u32 % channels);
    if pixel >= g.pixels {
        return;
    }
    let mut sum = 0.0;
    let mut split = 0;
    while split < args.splits {
        let at = split_at(args, split, pixel, channel);
        // SAFETY: partial[split, pixel, channel].
        let part = unsafe { ld(args.partial.as_ptr().cast_const().wrapping_add(at)) };
        sum = if split == 0 { part } else { sum + part };
        split += 1;
    }
    let at = g.output(pixel, channel) as usize;
    // SAFETY: as large as y, and an output channel.
    let (residual, bias) = unsafe { (residual::<T>(args, at), bias(args, channel)) };
    let value = finish(sum, bias, residual, Activation::from_u32(args.activation as u32));
    // SAFETY: y[pixel, channel] belongs to this thread.
    unsafe { T::store(args.element, args.y.as_ptr().cast::<T>().wrapping_add(at), value) };
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a thread for each output; the pointers of `args`
        /// cover the contract's table, and `partial` all splits.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the caller's promise.
            unsafe { run::<$ty>(&args) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dJoinF32 conv2d_join_f32 f32;
    Conv2dJoinHalf conv2d_join_half Half;
}
