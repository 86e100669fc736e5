//! BitNet b1.58 (W2A8) models on NVIDIA GPUs and on the CPU, with the same bits.

pub mod checkpoint;
pub mod pack;
