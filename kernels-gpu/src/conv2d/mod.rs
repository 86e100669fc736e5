//! Device side of [`contract::conv2d`].

mod epilogue;
pub mod exact;
pub mod taps;
mod value;
