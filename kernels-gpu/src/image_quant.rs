//! Device side of [`contract::image_quant`].
//!
//! A thread takes pieces of 16 elements, one block width apart: 16 bytes of numbers, and one, two or four
//! times as many of the image. Where images are not aligned, element by element.

use contract::image_quant::{
    Args, ImageQuantBf16, ImageQuantF16, ImageQuantF32, ImageTopBf16, ImageTopF16, ImageTopF32,
    MOST_PARTS, PIECE, THREADS,
};
use contract::launch::Kernel;
use contract::num::{abs_bits, act_scale, quantise};

use crate::arch::block;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_if, ld_x4, st, st_u8, st_x4};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::Float;

const _: () = assert!(THREADS == block::THREADS && MOST_PARTS == THREADS);

/// The part of a block: its image, and its elements there.
struct Part {
    image: u32,
    first: u64,
    end: u64,
}

impl Part {
    #[inline(always)]
    fn of(args: &Args) -> Self {
        let (image, part) = (block_idx_x() / args.parts, block_idx_x() % args.parts);
        let first = u64::from(part) * args.part_len;
        Self { image, first, end: (first + args.part_len).min(args.len) }
    }
}

/// The values of 16 neighbours.
///
/// # Safety
///
/// They are readable, and aligned to 16 bytes.
#[inline(always)]
unsafe fn piece<E: Float>(p: *const E) -> [f32; PIECE as usize] {
    let mut values = [0.0; PIECE as usize];
    let mut i = 0;
    while i < PIECE as usize / E::PIECE {
        // SAFETY: the caller's promise.
        let four = E::widen(unsafe { ld_x4(p.wrapping_add(i * E::PIECE).cast()) });
        let mut e = 0;
        while e < E::PIECE {
            values[i * E::PIECE + e] = four[e];
            e += 1;
        }
        i += 1;
    }
    values
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a block for each part of each image; the pointers of `args`
/// cover the contract's table for elements `E`.
#[inline(always)]
unsafe fn top<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let part = Part::of(args);
    let image = (u64::from(part.image) * args.len) as usize;
    let x = args.x.cast::<E>().as_ptr().cast_const().wrapping_add(image);
    let mut top = 0;
    if args.aligned != 0 {
        let mut at = part.first + u64::from(thread_idx_x()) * PIECE;
        while at < part.end {
            // SAFETY: whole pieces of an aligned image.
            let values = unsafe { piece::<E>(x.wrapping_add(at as usize)) };
            let mut i = 0;
            while i < PIECE as usize {
                top = top.max(abs_bits(values[i]));
                i += 1;
            }
            at += u64::from(THREADS) * PIECE;
        }
    } else {
        let mut at = part.first + u64::from(thread_idx_x());
        while at < part.end {
            // SAFETY: an element of the image.
            top = top.max(abs_bits(unsafe { E::load_if(true, x.wrapping_add(at as usize)) }));
            at += u64::from(THREADS);
        }
    }
    // SAFETY: the shared memory is for this call.
    let top = unsafe { block::max(dynamic_shared_mem(), top) };
    if thread_idx_x() == 0 {
        // SAFETY: tops[image, part] belongs to this block.
        unsafe { st(args.tops.as_ptr().wrapping_add(block_idx_x() as usize), top) };
    }
}

/// # Safety
///
/// As for [`top`], behind it on the same images.
#[inline(always)]
unsafe fn quant<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let part = Part::of(args);
    let tops = args.tops.as_ptr().cast_const();
    let own = part.image as usize * args.parts as usize + thread_idx_x() as usize;
    // SAFETY: a magnitude for each part.
    let own = unsafe { ld_if(thread_idx_x() < args.parts, tops.wrapping_add(own)) };
    // SAFETY: the shared memory is for this call.
    let scale = act_scale(f32::from_bits(unsafe { block::max(dynamic_shared_mem(), own) }));
    if part.first == 0 && thread_idx_x() == 0 {
        // SAFETY: scales[image] belongs to the block of its first part.
        unsafe { st(args.scales.as_ptr().wrapping_add(part.image as usize), scale) };
    }
    let image = (u64::from(part.image) * args.len) as usize;
    let x = args.x.cast::<E>().as_ptr().cast_const().wrapping_add(image);
    let q = args.q.as_ptr().wrapping_add(image);
    if args.aligned != 0 {
        let mut at = part.first + u64::from(thread_idx_x()) * PIECE;
        while at < part.end {
            // SAFETY: whole pieces of an aligned image; those of different threads are disjoint.
            unsafe {
                let values = piece::<E>(x.wrapping_add(at as usize));
                let mut words = [0u32; 4];
                let mut i = 0;
                while i < PIECE as usize {
                    let byte = u32::from(quantise(values[i], scale) as u8);
                    words[i / 4] |= byte << (8 * (i % 4));
                    i += 1;
                }
                st_x4(q.wrapping_add(at as usize).cast(), words);
            }
            at += u64::from(THREADS) * PIECE;
        }
    } else {
        let mut at = part.first + u64::from(thread_idx_x());
        while at < part.end {
            // SAFETY: an element of the image, and its number.
            unsafe {
                let value = E::load_if(true, x.wrapping_add(at as usize));
                st_u8(q.wrapping_add(at as usize), quantise(value, scale) as u8);
            }
            at += u64::from(THREADS);
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $run:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// As for the function that it runs.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { $run::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    image_quant_top_f32 ImageTopF32 top f32;
    image_quant_top_f16 ImageTopF16 top F16;
    image_quant_top_bf16 ImageTopBf16 top Bf16;
    image_quant_f32 ImageQuantF32 quant f32;
    image_quant_f16 ImageQuantF16 quant F16;
    image_quant_bf16 ImageQuantBf16 quant Bf16;
}
