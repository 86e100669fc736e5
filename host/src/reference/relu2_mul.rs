//! Reference for [`contract::relu2_mul`].

/// `(m, k)`: around the edges of blocks.
pub const TEST_SHAPES: &[(usize, usize)] =
    &[(1, 1), (2, 7), (3, 255), (1, 256), (4, 257), (5, 1000), (2, 6912)];

/// `(m, k)` of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize)] = &[(1, 6912), (512, 6912)];

/// `relu(gate)^2 * up` for rows that hold `k` gates, then `k` ups.
pub fn relu2_mul(gate_up: &[f32], k: usize) -> Vec<f32> {
    let mut f = Vec::with_capacity(gate_up.len() / 2);
    for row in gate_up.chunks(2 * k) {
        for i in 0..k {
            let positive = if row[i] > 0.0 { row[i] } else { 0.0 };
            f.push(positive * positive * row[k + i]);
        }
    }
    f
}
