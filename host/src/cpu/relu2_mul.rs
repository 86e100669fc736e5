//! CPU side of [`contract::relu2_mul`].

use contract::relu2_mul::gated;

use super::act_quant::gate_row;
use super::{Simd, Threads};

/// `f = relu(gate)^2 * up` for rows of `gate_up` that hold `k` gates, then `k` ups.
pub fn relu2_mul(threads: &Threads, simd: Simd, gate_up: &[f32], f: &mut [f32], k: usize) {
    threads.run_pieces(f, k, |i, f| {
        let (gates, ups) = gate_up[2 * k * i..][..2 * k].split_at(k);
        simd.with(|| gate_row(gates, ups, f, gated));
    });
}
