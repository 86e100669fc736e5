//! Device side of [`contract::attention_paged`]: [`append`] stores the keys and values of all rows and
//! [`rows`] attends, or [`step`], [`walk`] or, on tensor cores, [`fast`] do both where every row has a sequence of its own. For runs of
//! neighbours [`gather`] brings the pages of their sequences together. [`copy`] copies pages.
//!
//! What a block of [`rows`] does with the keys of a page is [`crate::attention::query`]'s: a page is one key
//! block. [`step`] has its pages in shared memory, where [`tile`] works on them for four heads at once.

mod append;
mod copy;
#[cfg(level_sm_80)]
mod fast;
#[cfg(level_sm_80)]
mod fast_bf16;
#[cfg(level_sm_80)]
mod fast_int8;
#[cfg(level_sm_80)]
mod gather;
mod int8;
mod rows;
#[cfg(level_sm_80)]
mod step;
#[cfg(level_sm_80)]
mod step_row;
#[cfg(level_sm_80)]
mod tile;
#[cfg(level_sm_90a)]
mod walk;
#[cfg(level_sm_80)]
mod walk_row;

use contract::attention_paged::{
    ABSENT, AppendBf16, AppendF32, AppendInt8, Args, PAGE, RowsBf16, RowsF32, RowsInt8,
};
use contract::launch::Kernel;

use crate::arch::mem::ld;
use crate::element::Bf16;
use append::append;
use rows::rows;

/// The position of row `m`; [`ABSENT`] when the row is not there.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table, `m < args.m`.
#[inline(always)]
pub(crate) unsafe fn position(args: &Args, m: u32) -> u32 {
    let at = m as usize * args.position_stride as usize;
    // SAFETY: positions[m].
    unsafe { ld(args.positions.as_ptr().cast_const().wrapping_add(at)) }
}

/// The page of key block `block` of row `m`.
///
/// # Safety
///
/// As for [`position`]; `block` lies below the capacity.
#[inline(always)]
pub(crate) unsafe fn page(args: &Args, m: u32, block: u32) -> u32 {
    let at = m as usize * args.table_stride as usize + block as usize;
    // SAFETY: tables[m, block].
    unsafe { ld(args.tables.as_ptr().cast_const().wrapping_add(at)) }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $body:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { $body::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

/// # Safety
///
/// As for the others; every row has pages of its own.
#[cfg(level_sm_80)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_step_bf16(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { step::step::<false>(&args) }
}
#[cfg(level_sm_80)]
const _: unsafe extern "ptx-kernel" fn(<contract::attention_paged::StepBf16 as Kernel>::Args) =
    attention_paged_step_bf16;

/// # Safety
///
/// As for the others; the keys and values of all rows are stored.
#[cfg(level_sm_80)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_split_bf16(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { step::step::<true>(&args) }
}
#[cfg(level_sm_80)]
const _: unsafe extern "ptx-kernel" fn(<contract::attention_paged::SplitBf16 as Kernel>::Args) =
    attention_paged_split_bf16;

/// # Safety
///
/// As for the step.
#[cfg(level_sm_90a)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_walk_bf16(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { walk::walk(&args) }
}
#[cfg(level_sm_90a)]
const _: unsafe extern "ptx-kernel" fn(<contract::attention_paged::WalkBf16 as Kernel>::Args) =
    attention_paged_walk_bf16;

/// # Safety
///
/// As for the step.
#[cfg(level_sm_80)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_fast_bf16(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { fast::fast::<Bf16, 1>(&args) }
}
#[cfg(level_sm_80)]
const _: unsafe extern "ptx-kernel" fn(<contract::attention_paged::FastBf16 as Kernel>::Args) =
    attention_paged_fast_bf16;

/// # Safety
///
/// As for the step.
#[cfg(level_sm_80)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_fast_int8(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { fast::fast::<int8::Int8, 2>(&args) }
}
#[cfg(level_sm_80)]
const _: unsafe extern "ptx-kernel" fn(<contract::attention_paged::FastInt8 as Kernel>::Args) =
    attention_paged_fast_int8;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's tables.
#[cfg(level_sm_80)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_gather(
    args: contract::attention_paged::GatherArgs,
) {
    // SAFETY: the launch contract, handed on.
    unsafe { gather::gather::<false>(&args) }
}
#[cfg(level_sm_80)]
const _: unsafe extern "ptx-kernel" fn(<contract::attention_paged::Gather as Kernel>::Args) =
    attention_paged_gather;

/// # Safety
///
/// As for the gather of other pages.
#[cfg(level_sm_80)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_gather_int8(
    args: contract::attention_paged::GatherArgs,
) {
    // SAFETY: the launch contract, handed on.
    unsafe { gather::gather::<true>(&args) }
}
#[cfg(level_sm_80)]
const _: unsafe extern "ptx-kernel" fn(<contract::attention_paged::GatherInt8 as Kernel>::Args) =
    attention_paged_gather_int8;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_append_int8(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { int8::append(&args) }
}
const _: unsafe extern "ptx-kernel" fn(<AppendInt8 as Kernel>::Args) = attention_paged_append_int8;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's tables.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn attention_paged_copy(args: contract::attention_paged::CopyArgs) {
    // SAFETY: the launch contract, handed on.
    unsafe { copy::copy(&args) }
}
const _: unsafe extern "ptx-kernel" fn(<contract::attention_paged::CopyPages as Kernel>::Args) =
    attention_paged_copy;

entries! {
    attention_paged_append_bf16 AppendBf16 append Bf16;
    attention_paged_append_f32 AppendF32 append f32;
    attention_paged_rows_bf16 RowsBf16 rows Bf16;
    attention_paged_rows_f32 RowsF32 rows f32;
    attention_paged_rows_int8 RowsInt8 rows int8::Int8;
}

// A row that is not there is past every capacity too.
const _: () = assert!(ABSENT == u32::MAX && PAGE == 64);
