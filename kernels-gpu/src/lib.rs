//! The GPU kernels. Empty on every target but `nvptx64-nvidia-cuda`.
//!
//! One file per kernel family, under the name it has in [`contract`]; [`arch`] is the device
//! prelude under them.
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch, link_llvm_intrinsics)]
// `arch::mma`: intrinsics that return several registers.
#![feature(abi_unadjusted)]
#![allow(internal_features)]

pub mod arch;
pub mod element;
pub mod tile;

pub mod act_quant;
pub mod attention;
pub mod bmm;
pub mod embed;
pub mod kv_append;
pub mod lm_head;
pub mod relu2_mul;
pub mod rmsnorm;
pub mod rope;
pub mod sample;
pub mod silu_mul;
pub mod w2a8_gemm;
pub mod w2a8_gemv;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
