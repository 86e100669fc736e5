//! The parts of a transformer block, as sequences of [`crate::ops`].
//!
//! A layer holds its weights; the activations it works on live in [`Activations`], one set for all
//! layers. Every function queues operations for `m` rows whose positions are read on the
//! device, so the same code serves prefill, decode and a recorded step, of one sequence or of several.

pub mod activations;
pub mod attention;
pub mod bit_linear;
pub mod block;
pub mod mlp;

pub use activations::{Activations, PagedPart, Past};
pub use attention::AttentionLayer;
pub use block::Block;
pub use mlp::Mlp;
