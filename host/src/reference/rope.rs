//! Reference for [`contract::rope`].

/// `(m, heads, head_dim, start)`: pairs around the edges of blocks, positions across the table's
/// end (which is at 40).
pub const TEST_SHAPES: &[(usize, usize, usize, usize)] = &[
    (1, 1, 2, 0),
    (1, 3, 8, 3),
    (5, 2, 6, 1),
    (3, 5, 64, 7),
    (2, 4, 80, 0),
    (7, 25, 128, 30),
    (4, 1, 256, 38),
    (65_537, 1, 2, 0),
];

/// Positions of the tables of tests.
pub const TEST_POSITIONS: usize = 40;

/// `(m, heads, head_dim, start)` of the 2B-4T model: q and k heads.
pub const BENCH_SHAPES: &[(usize, usize, usize, usize)] = &[(1, 25, 128, 500), (512, 25, 128, 0)];

/// Cosines and sines `[positions, head_dim / 2]` of `pos * theta^(-2 d / head_dim)`, made in f64.
pub fn table(positions: usize, head_dim: usize, theta: f64) -> (Vec<f32>, Vec<f32>) {
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    for pos in 0..positions {
        for d in 0..head_dim / 2 {
            let angle = pos as f64 * theta.powf(-2.0 * d as f64 / head_dim as f64);
            cos.push(angle.cos() as f32);
            sin.push(angle.sin() as f32);
        }
    }
    (cos, sin)
}

/// Rotates one head in place by row `pos` of the tables.
pub fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], pos: usize) {
    let half = head.len() / 2;
    for d in 0..half {
        let (c, s) = (cos[pos * half + d], sin[pos * half + d]);
        let (low, high) = (head[d], head[d + half]);
        head[d] = low.mul_add(c, -(high * s));
        head[d + half] = high.mul_add(c, low * s);
    }
}

/// Rotates `heads` heads of rows that start every `row_stride` elements; row `i` stands at
/// `start + i`. Rows past the tables stay as they are.
pub fn rope(
    x: &mut [f32],
    (cos, sin): (&[f32], &[f32]),
    start: usize,
    heads: usize,
    head_dim: usize,
    row_stride: usize,
) {
    for (i, row) in x.chunks_mut(row_stride).enumerate() {
        if start + i < cos.len() / (head_dim / 2) {
            for head in row[..heads * head_dim].chunks_mut(head_dim) {
                rotate(head, cos, sin, start + i);
            }
        }
    }
}
