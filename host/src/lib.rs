//! BitNet b1.58 (W2A8) models on NVIDIA GPUs and on the CPU, with the same bits.
//!
//! The modules stand in the order of the data: a checkpoint is decoded into the packed device layout,
//! operations work on it, layers are made of operations, a model of layers, and a session turns
//! prompts into text.

pub mod pack;
pub mod checkpoint;
pub mod driver;
pub mod memory;
pub mod ops;
pub mod cpu;
pub mod reference;
pub mod layers;
pub mod model;
pub mod text;
pub mod tune;
pub mod session;

pub mod device_choice;
pub mod doctor;
pub mod hub;
pub mod profile;
pub mod selftest;
