//! What the GPU kernels and the host agree on.
//!
//! Each kernel family has one module with its formula, its tensor table, its constants, its
//! validated `Shape`, its argument struct and its launch rules. [`num`] holds the one arithmetic:
//! the same Rust functions are compiled into the PTX and into the CPU backend, so both give the
//! same bits.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(core_intrinsics), allow(internal_features))]

// `f32::mul_add` and `f32::sqrt` live in `std` on the host; the device uses intrinsics.
#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

pub mod launch;
pub mod num;
pub mod w2a8;
