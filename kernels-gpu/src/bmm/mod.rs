//! Device side of [`contract::bmm`].

#[cfg(level_sm_90a)]
mod bulk;
mod copy;
#[cfg(level_sm_80)]
mod direct;
mod exact;
#[cfg(level_sm_90a)]
mod fed;
#[cfg(level_sm_90a)]
mod flow;
#[cfg(level_sm_90a)]
mod gather;
#[cfg(level_sm_90a)]
mod group;
#[cfg(level_sm_90a)]
mod hopper;
#[cfg(level_sm_90a)]
mod hopper_int8;
#[cfg(level_sm_80)]
mod int8;
#[cfg(level_sm_90a)]
mod lines;
#[cfg(level_sm_90a)]
mod long;
#[cfg(level_sm_90a)]
mod pack;
mod part;
#[cfg(level_sm_90a)]
mod parts;
#[cfg(level_sm_90a)]
mod quick;
#[cfg(level_sm_90a)]
mod ring;
mod source;
#[cfg(level_sm_90a)]
mod split;
#[cfg(level_sm_90a)]
mod stream;
mod target;
#[cfg(level_sm_80)]
mod thin;
#[cfg(level_sm_90a)]
mod whole;
#[cfg(level_sm_90a)]
mod whole_half;
mod write;

#[cfg(level_sm_90a)]
use contract::bmm::BmmF32Widen;
use contract::bmm::{Args, BmmF32Copy, CopyArgs};
#[cfg(level_sm_90a)]
use contract::bmm::{
    BmmBf16Bulk192, BmmBf16Bulk256, BmmBf16BulkSquare, BmmF16Bulk192, BmmF16Bulk256,
    BmmF16BulkSquare, BulkArgs,
};
#[cfg(level_sm_90a)]
use contract::bmm::{BmmI8Lines, LinesArgs};
#[cfg(level_sm_90a)]
use contract::bmm::{CHAIN_STAGES, FED_8, FED_16, FED_32, Fed, RING_STAGES};
#[cfg(level_sm_80)]
use contract::bmm::{THIN_LONG_STAGES, THIN_STAGES};
use contract::launch::Kernel;
use contract::num::RowType;

#[cfg(level_sm_90a)]
use crate::arch::tensor::parameter_address;
#[cfg(level_sm_90a)]
use crate::element::{Bf16, F16};
use exact::exact;
use source::{Float, Int8};
use target::Int32;

/// One entry: what it computes is the call in its body.
macro_rules! entries {
    ($($name:ident($args:ident): $call:expr;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with the blocks of its tiling; the matrices of
        /// `args` cover what the contract says, and `C` overlaps no other.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(args: Args) {
            let $args = &args;
            // SAFETY: the caller's promise.
            unsafe { $call }
        }
    )* };
}

/// f32.
const F32: Float<true> = Float(RowType::F32 as u32);

entries! {
    bmm_float_any(args): {
        let element = Float::<false>(args.element);
        exact::<_, _, 8, 16, 2, 1, 1, 8, false, false>(args, element, element)
    };
    bmm_f32_64(args): exact::<_, _, 8, 16, 2, 1, 1, 8, true, true>(args, F32, F32);
    bmm_f32_32(args): exact::<_, _, 4, 8, 2, 1, 2, 8, true, true>(args, F32, F32);
    bmm_f32_16(args): exact::<_, _, 4, 4, 1, 1, 4, 16, true, true>(args, F32, F32);
    bmm_i8_16(args): exact::<_, _, 4, 4, 1, 1, 1, 4, false, false>(args, Int8, Int32);
}

#[cfg(not(level_sm_80))]
entries! {
    bmm_i8_64(args): exact::<_, _, 8, 16, 2, 1, 1, 8, false, false>(args, Int8, Int32);
}

#[cfg(level_sm_80)]
entries! {
    bmm_i8_64(args): int8::int8::<64, 2>(args);
    bmm_i8_128(args): int8::int8::<128, 4>(args);
    bmm_bf16_mma32(args): direct::direct::<direct::Bf16>(args, Float::BF16);
    bmm_f16_mma32(args): direct::direct::<direct::F16>(args, Float::F16);
    bmm_tf32_mma32(args): direct::direct::<direct::Tf32>(args, Float(RowType::F32 as u32));
    bmm_f32_thin_long(args): thin::thin::<4, { THIN_LONG_STAGES - 2 }>(args);
    bmm_f32_thin(args): thin::thin::<1, { THIN_STAGES - 2 }>(args);
    bmm_f32_128(args): exact::<_, _, 16, 16, 2, 2, 1, 8, true, true>(args, F32, F32);
}

#[cfg(level_sm_90a)]
entries! {
    bmm_bf16_whole32(args): whole_half::whole::<direct::Bf16, Bf16, 32, 32, 2, 4, 4, false>(args);
    bmm_bf16_whole64(args): whole_half::whole::<direct::Bf16, Bf16, 64, 128, 2, 4, 4, false>(args);
    bmm_bf16_quick(args): whole_half::whole::<direct::Bf16, Bf16, 32, 128, 1, 2, 2, true>(args);
    bmm_f16_whole32(args): whole_half::whole::<direct::F16, F16, 32, 32, 2, 4, 4, false>(args);
    bmm_f16_whole64(args): whole_half::whole::<direct::F16, F16, 64, 128, 2, 4, 4, false>(args);
    bmm_f16_quick(args): whole_half::whole::<direct::F16, F16, 32, 128, 1, 2, 2, true>(args);
    bmm_bf16_long32(args): long::long::<direct::Bf16, _, 2>(args, Float::<false>::BF16);
    bmm_f16_long32(args): long::long::<direct::F16, _, 2>(args, Float::<false>::F16);
    bmm_i8_long32(args): long::long::<direct::I8, _, 4>(args, Int32);
    bmm_i8_mma32(args): long::alone::<direct::I8, _, 4>(args, Int32);
    bmm_bf16_gather64(args): gather::gather::<Bf16, 1, 64>(args, Float::BF16);
    bmm_bf16_gather128(args): gather::gather::<Bf16, 2, 128>(args, Float::BF16);
    bmm_f16_gather128(args): gather::gather::<F16, 2, 128>(args, Float::F16);
    bmm_f16_gather64(args): gather::gather::<F16, 1, 64>(args, Float::F16);
    bmm_i8_wgmma128(args): hopper_int8::hopper_int8(args);
    bmm_f32_64_hopper(args): exact::<_, _, 8, 16, 2, 1, 1, 8, true, true>(args, F32, F32);
    bmm_f32_whole64(args): whole::whole::<64, 2, 128>(args);
    bmm_parts(args): parts::parts(args);
    bmm_f32_pack(args): pack::pack(args);
    bmm_f32_quick(args): quick::quick(args);
    bmm_f32_flow32(args): flow::flow::<32>(args);
    bmm_f32_flow64(args): flow::flow::<64>(args);
    bmm_f32_group32(args): group::group::<36>(args);
    bmm_f32_group64(args): group::group::<68>(args);
    bmm_f32_stream80(args): stream::stream::<80, 96, 2, 2, 128, 2>(args);
    bmm_f32_ring64(args): ring::ring::<64, 2, 4, 1, 128, 4, RING_STAGES>(args);
    bmm_f32_ring32(args): ring::ring::<32, 1, 4, 2, 64, 1, RING_STAGES>(args);
    bmm_f32_chain32(args): ring::ring::<32, 1, 2, 1, 128, 8, CHAIN_STAGES>(args);
    bmm_f32_fed(args): fed::few(args);
    bmm_f32_fed16(args): {
        const F: Fed = FED_16;
        fed::fed::<16, 16, 2, 1, 4, { F.depth }, { F.places }, { F.rounds }, { F.ways }, 16, 2, true>(args)
    };
    bmm_f32_fed32(args): {
        const F: Fed = FED_32;
        fed::fed::<32, 32, 4, 4, 2, { F.depth }, { F.places }, { F.rounds }, { F.ways }, 2, 1, true>(args)
    };
    bmm_f32_fed8(args): {
        const F: Fed = FED_8;
        fed::fed::<8, 8, 2, 1, 8, { F.depth }, { F.places }, { F.rounds }, { F.ways }, 16, 2, false>(args)
    };
    bmm_bf16_wgmma256(args): hopper::hopper::<Bf16, 2, 256, 2, 1, true, 1>(args, Float::BF16);
    bmm_bf16_wgmma192(args): hopper::hopper::<Bf16, 2, 192, 2, 1, true, 1>(args, Float::BF16);
    bmm_bf16_wgmma128(args): hopper::hopper::<Bf16, 2, 128, 2, 0, false, 1>(args, Float::BF16);
    bmm_bf16_wgmma64(args): hopper::hopper::<Bf16, 1, 64, 3, 0, true, 4>(args, Float::BF16);
    bmm_f16_wgmma256(args): hopper::hopper::<F16, 2, 256, 2, 1, true, 1>(args, Float::F16);
    bmm_f16_wgmma192(args): hopper::hopper::<F16, 2, 192, 2, 1, true, 1>(args, Float::F16);
    bmm_f16_wgmma128(args): hopper::hopper::<F16, 2, 128, 2, 0, false, 1>(args, Float::F16);
    bmm_f16_wgmma64(args): hopper::hopper::<F16, 1, 64, 3, 0, true, 4>(args, Float::F16);
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`CopyArgs::blocks`]; factors and copies cover what `args` says, and no copy
/// overlaps anything.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn bmm_f32_copy(args: CopyArgs) {
    // SAFETY: the caller's promise.
    unsafe { copy::copy::<false>(&args) }
}

/// # Safety
///
/// As for [`bmm_f32_copy`].
#[cfg(level_sm_90a)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn bmm_f32_widen(args: CopyArgs) {
    // SAFETY: the caller's promise.
    unsafe { copy::copy::<true>(&args) }
}

const _: unsafe extern "ptx-kernel" fn(<BmmF32Copy as Kernel>::Args) = bmm_f32_copy;
#[cfg(level_sm_90a)]
const _: unsafe extern "ptx-kernel" fn(<BmmF32Widen as Kernel>::Args) = bmm_f32_widen;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`LinesArgs::blocks`]; factors and copies cover what `args` says, and no copy
/// overlaps anything.
#[cfg(level_sm_90a)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn bmm_i8_lines(args: LinesArgs) {
    // SAFETY: the caller's promise.
    unsafe { lines::lines(&args) }
}

#[cfg(level_sm_90a)]
const _: unsafe extern "ptx-kernel" fn(<BmmI8Lines as Kernel>::Args) = bmm_i8_lines;

/// The same for kernels that the copy engine serves: element, warpgroups that multiply, columns and slices in the ring.
#[cfg(level_sm_90a)]
macro_rules! bulk_entries {
    ($($symbol:ident $kernel:ident: $half:ident $float:ident $groups:literal $n:literal $stages:literal;)*) => { $(
        /// # Safety
        ///
        /// As for the other kernels; the maps are those of the factors.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: BulkArgs) {
            // SAFETY: the caller's promise; the maps stand in front.
            unsafe {
                let maps = parameter_address!($symbol);
                bulk::bulk::<$half, $groups, $n, $stages>(&args.base, maps, Float::$float);
            }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

#[cfg(level_sm_90a)]
bulk_entries! {
    bmm_bf16_bulk192 BmmBf16Bulk192: Bf16 BF16 2 192 5;
    bmm_bf16_bulk256 BmmBf16Bulk256: Bf16 BF16 2 256 4;
    bmm_bf16_bulk_square BmmBf16BulkSquare: Bf16 BF16 3 192 4;
    bmm_f16_bulk192 BmmF16Bulk192: F16 F16 2 192 5;
    bmm_f16_bulk256 BmmF16Bulk256: F16 F16 2 256 4;
    bmm_f16_bulk_square BmmF16BulkSquare: F16 F16 3 192 4;
}
