//! A CUDA driver without a GPU.
pub(crate) mod driver;
pub(crate) mod exec;
pub(crate) mod memory;
pub(crate) mod ptx;
pub(crate) mod tensor;
