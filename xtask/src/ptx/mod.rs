//! From the kernel crate to audited PTX.
//!
//! [`compiler`] finds a compiler, [`levels`] says what is built and for which GPUs, [`flags`] with
//! which flags and why, [`build`] runs it, [`text`] reads and rewrites PTX, [`manifest`] records
//! what was built from what, [`ptxas`] assembles it, [`audit`] compares it with the contract.

pub(crate) mod audit;
pub(crate) mod build;
pub(crate) mod compiler;
pub(crate) mod convergence;
pub(crate) mod flags;
pub(crate) mod levels;
pub(crate) mod manifest;
pub(crate) mod ptxas;
pub(crate) mod text;
