//! The GPU kernels. Empty on every target but `nvptx64-nvidia-cuda`.
//!
//! One file per kernel family, under the name it has in [`contract`]; [`arch`] is the device
//! prelude under them.
#![cfg(target_arch = "nvptx64")]
#![no_std]
#![feature(abi_ptx, stdarch_nvptx, asm_experimental_arch, link_llvm_intrinsics)]
// `arch::mma`: intrinsics that return several registers.
#![cfg_attr(level_sm_80, feature(abi_unadjusted))]
#![allow(internal_features)]

pub mod arch;
pub mod element;
pub mod float;
pub mod norm;
pub mod row;
pub mod stream;
pub mod tile;

pub mod act_quant;
pub mod activation;
pub mod attention;
pub mod attention_paged;
pub mod attention_step;
pub mod bit_linear;
pub mod bmm;
pub mod conv2d;
#[cfg(level_sm_90a)]
pub mod decode_layers;
pub mod elementwise;
pub mod embed;
pub mod logprobs;
pub mod kv_append;
pub mod layernorm;
pub mod lm_head;
pub mod lm_head_int8;
pub mod pool2d;
pub mod lut_matmul;
pub mod rmsnorm;
pub mod rope;
pub mod image_quant;
pub mod sample;
pub mod softmax;
pub mod sparse;
pub mod w2a8_gemm;
pub mod w2a8_gemv;
pub mod w2a8_trits;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
