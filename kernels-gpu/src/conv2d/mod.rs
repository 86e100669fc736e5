//! Device side of [`contract::conv2d`].

mod epilogue;
pub mod exact;
#[cfg(level_sm_80)]
mod gather;
#[cfg(level_sm_80)]
mod half16;
#[cfg(level_sm_90a)]
pub mod hopper;
pub mod join;
#[cfg(level_sm_80)]
pub mod mma;
pub mod taps;
mod value;
