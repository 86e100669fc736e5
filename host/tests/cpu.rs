//! The CPU lane: the modules of the GPU lane (`tests/gpu/`) on the CPU backend.
//!
//! The same cases, the same oracles, the same bits.

#[path = "gpu/act_quant.rs"]
mod act_quant;
#[path = "gpu/attention.rs"]
mod attention;
#[path = "gpu/coverage.rs"]
mod coverage;
#[path = "gpu/embed.rs"]
mod embed;
#[path = "gpu/kv_append.rs"]
mod kv_append;
#[path = "gpu/lm_head.rs"]
mod lm_head;
#[path = "gpu/model.rs"]
mod model;
#[path = "gpu/relu2_mul.rs"]
mod relu2_mul;
#[path = "gpu/rmsnorm.rs"]
mod rmsnorm;
#[path = "gpu/rope.rs"]
mod rope;
#[path = "gpu/sample.rs"]
mod sample;
#[path = "gpu/silu_mul.rs"]
mod silu_mul;
#[path = "gpu/soak.rs"]
mod soak;
#[path = "gpu/support.rs"]
mod support;
#[path = "gpu/w2a8_gemm.rs"]
mod w2a8_gemm;
#[path = "gpu/w2a8_gemv.rs"]
mod w2a8_gemv;
