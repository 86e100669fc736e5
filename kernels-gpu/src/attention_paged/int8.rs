//! Pages of 8 bits ([`contract::num::mx_value`]) on any device: stores them, and reads elements of them.

use contract::attention_paged::{
    APPEND_THREADS, Args, PAGE, int8_part_bytes, int8_scales, int8_stride,
};
use contract::launch::DevPtr;
use contract::num::{MX_BLOCK, abs_bits, mx_code, mx_scale, mx_value};

use super::append::Place;
use super::rows::Part;
use crate::arch::mem::{ld_u8_if, st_u8};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::sync_threads;
use crate::arch::warp::{LANES, lane_id, warp_id, warp_max};
use crate::attention::query::Stored;

const _: () = assert!(MX_BLOCK == LANES as usize);

/// Pages of 8 bits.
pub(super) struct Int8;

/// Element `element` of a row.
#[derive(Clone, Copy)]
pub(super) struct OfRow {
    /// Its code.
    code: *const u8,
    /// The scales of its row.
    scales: *const u8,
    element: usize,
    head_dim: usize,
}

impl Part for Int8 {
    type Stored = OfRow;

    #[inline(always)]
    fn part(pages: DevPtr<u8>, part: usize, head_dim: usize) -> OfRow {
        let code = pages.as_ptr().cast_const().wrapping_add(part * int8_part_bytes(head_dim));
        let scales = code.wrapping_add(PAGE * int8_stride(head_dim));
        OfRow { code, scales, element: 0, head_dim }
    }
}

impl Stored for OfRow {
    #[inline(always)]
    fn further(self, rows: usize, elements: usize) -> Self {
        Self {
            code: self.code.wrapping_add(rows * int8_stride(self.head_dim) + elements),
            scales: self.scales.wrapping_add(rows * int8_scales(self.head_dim)),
            element: self.element + elements,
            ..self
        }
    }

    #[inline(always)]
    unsafe fn load_if(self, enabled: bool) -> f32 {
        // SAFETY: the caller's promise; the scale of the element's block.
        unsafe {
            let scale = ld_u8_if(enabled, self.scales.wrapping_add(self.element / MX_BLOCK));
            mx_value(ld_u8_if(enabled, self.code) as i8, scale)
        }
    }

    #[inline(always)]
    unsafe fn load4_if(self, enabled: bool) -> [f32; 4] {
        // SAFETY: as above; the four stand in one block, and codes are padded to sixteen.
        unsafe {
            let scale = ld_u8_if(enabled, self.scales.wrapping_add(self.element / MX_BLOCK));
            let codes: u32 = crate::arch::mem::ld_if(enabled, self.code.cast());
            codes.to_le_bytes().map(|code| mx_value(code as i8, scale))
        }
    }
}

/// A row's own head, rotated where it is a key: [`contract::attention_paged::MAX_HEAD_DIM`] words.
#[inline(always)]
fn head() -> Shared<f32> {
    dynamic_shared_mem()
}

/// Block `(head, m)` stores a head of k, then of v, of row `m`: a warp takes a block of elements.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of 8 bits; block and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn append(args: &Args) {
    // SAFETY: handed on.
    let Some(place) = (unsafe { Place::of_block(args) }) else {
        return; // the whole block
    };
    let head_dim = args.head_dim as usize;
    // SAFETY: words of a pair in shared memory, this thread's.
    unsafe {
        place.pairs(args, |pair, lo, hi| {
            head().add(pair).write(lo);
            head().add(pair + args.head_dim / 2).write(hi);
        });
    }
    sync_threads();
    let pages = if place.is_key { args.k_pages } else { args.v_pages };
    let part = pages.as_ptr().wrapping_add(place.part * int8_part_bytes(head_dim));
    let codes = part.wrapping_add(place.row * int8_stride(head_dim));
    let scales =
        part.wrapping_add(PAGE * int8_stride(head_dim) + place.row * int8_scales(head_dim));
    let mut block = warp_id();
    while (block as usize) < int8_scales(head_dim) {
        let element = block * LANES + lane_id();
        // SAFETY: an element of the head, written before the barrier.
        let v = if element < args.head_dim { unsafe { head().add(element).read() } } else { 0.0 };
        let scale = mx_scale(warp_max(abs_bits(v)));
        if (element as usize) < int8_stride(head_dim) {
            // SAFETY: a code of the row, or of its padding; this thread's.
            unsafe { st_u8(codes.wrapping_add(element as usize), mx_code(v, scale) as u8) };
        }
        if lane_id() == 0 {
            // SAFETY: a scale of the row, this warp's.
            unsafe { st_u8(scales.wrapping_add(block as usize), scale as u8) };
        }
        block += APPEND_THREADS / LANES;
    }
}
