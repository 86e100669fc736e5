//! CPU side of [`contract::silu_mul`].

use contract::silu_mul::gated;

use super::act_quant::gate_row;
use super::{Simd, Threads};

/// `f = silu(gate) * up` for rows of `gate_up` that hold `k` gates, then `k` ups.
pub fn silu_mul(threads: &Threads, simd: Simd, gate_up: &[f32], f: &mut [f32], k: usize) {
    threads.run_pieces(f, k, |i, f| {
        let (gates, ups) = gate_up[2 * k * i..][..2 * k].split_at(k);
        simd.with(|| gate_row(gates, ups, f, gated));
    });
}
