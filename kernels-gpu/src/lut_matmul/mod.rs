//! Device side of [`contract::lut_matmul`]: lookup matmul.
//!
//! A lane owns a row of a tile, so the 32 lanes of a warp look up in one table at a time: different
//! entries of a table lie in different banks (or in the same word), and no lookup has a conflict.

pub mod exact;
mod exact_tables;
pub mod lossy;
pub mod lossy_tables;
