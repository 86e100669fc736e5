//! Device side of [`contract::sparse`].

#[cfg(level_sm_80)]
pub mod conv2d;
pub mod csr;
mod input;
pub mod linear;
#[cfg(level_sm_80)]
pub mod mma;
mod ring;
mod stream;
pub mod ternary;
