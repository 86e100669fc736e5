//! Reference for [`contract::lm_head`].

use super::embed::Dense;
use super::sum256;

/// `(m, vocab, k)`: around the edges of partials and tiles.
pub const TEST_SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (65_537, 17, 3),
    (1, 3, 7),
    (2, 17, 8),
    (1, 33, 255),
    (3, 64, 256),
    (1, 65, 257),
    (2, 70, 513),
    (1, 129, 1000),
    (1, 16, 2560),
    (5, 9, 256),
    (8, 40, 2560),
    (9, 35, 700),
    (17, 21, 1281),
    (64, 17, 2560),
    (10, 9, 3073),
    (7, 11, 6145),
];

/// `(m, vocab, k)`: the head of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize, usize)] = &[
    (1, 128_256, 2560),
    (8, 128_256, 2560),
    (16, 128_256, 2560),
    (32, 128_256, 2560),
    (64, 128_256, 2560),
];

/// `logits[m, v] = dot(x[m], w[v])`, each a sum of 256 partials.
pub fn lm_head(w: &Dense, x: &[f32], m: usize) -> Vec<f32> {
    let k = w.width;
    let mut logits = Vec::with_capacity(m * w.rows);
    for row in 0..m {
        for v in 0..w.rows {
            logits.push(sum256(k, |acc, i| x[row * k + i].mul_add(w.at(v, i), acc)));
        }
    }
    logits
}
