//! Reference for [`contract::silu_mul`].

use contract::num::exp;

/// `(m, k)`: around the edges of blocks.
pub const TEST_SHAPES: &[(usize, usize)] = super::relu2_mul::TEST_SHAPES;

/// `(m, k)` of a 3B model.
pub const BENCH_SHAPES: &[(usize, usize)] = &[(1, 8640), (512, 8640)];

/// `gate / (1 + exp(-gate)) * up` for rows that hold `k` gates, then `k` ups.
pub fn silu_mul(gate_up: &[f32], k: usize) -> Vec<f32> {
    let mut f = Vec::with_capacity(gate_up.len() / 2);
    for row in gate_up.chunks(2 * k) {
        for i in 0..k {
            f.push(row[i] / (1.0 + exp(-row[i])) * row[k + i]);
        }
    }
    f
}
