//! Device side of [`contract::sparse`].
//!
//! A [`stream`] brings the tiles of a bitmap through a [`ring`] of shared memory; [`linear`] and [`mma`]
//! multiply rows by them, and [`linear`] and [`conv2d`] patches of an image. [`csr`] and [`ternary`] read
//! the other two formats. Bitmaps want the shared memory of sm_75 and up.

#[cfg(level_sm_90a)]
mod bulk;
#[cfg(level_sm_80)]
pub mod conv2d;
pub mod csr;
#[cfg(level_sm_90a)]
pub mod held;
#[cfg(level_sm_90a)]
mod lines;
mod input;
#[cfg(level_sm_75)]
pub mod linear;
#[cfg(level_sm_80)]
pub mod mma;
#[cfg(level_sm_80)]
pub mod pad;
#[cfg(level_sm_75)]
mod ring;
#[cfg(level_sm_75)]
mod stream;
pub mod ternary;
#[cfg(level_sm_75)]
mod walk;
