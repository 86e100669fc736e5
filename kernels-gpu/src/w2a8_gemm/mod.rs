//! Device side of [`contract::w2a8_gemm`].

mod dot;
#[cfg(level_sm_90a)]
mod hopper;
#[cfg(level_sm_80)]
mod lines;
#[cfg(level_sm_80)]
mod mma;
#[cfg(level_sm_80)]
mod tile;
