//! Reference for [`contract::lm_head_int8`].

use contract::lm_head_int8::{
    Asked, BARRED, bounds, digits, floor_of, has_bounds, input_scales, input_stats, input_value,
    magnitude, rest, row_bytes, row_scales, row_stats, row_value,
};
use contract::num::order_key;
use contract::sample::{SampleParams, counted};

use super::embed::Dense;
use super::{lm_head, sum256};

/// `(vocab, k)`: around the edges of loads, groups, blocks and of the floor's 256 maxima.
pub const TEST_SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (17, 3),
    (31, 15),
    (33, 16),
    (64, 17),
    (65, 255),
    (257, 256),
    (300, 513),
    (1000, 1025),
    (9001, 40),
    (33, 5000),
    (140_000, 9),
];

/// `(vocab, k)`: the head of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize)] = &[(128_256, 2560)];

/// A table as int8, unpadded, and what is kept of each row.
#[derive(Clone, Debug)]
pub struct Int8 {
    /// `[vocab, k]`.
    pub values: Vec<i8>,
    /// Scale, error, norm, 0 of each row.
    pub rows: Vec<[f32; 4]>,
}

fn top(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().map(|&v| magnitude(v)).max().unwrap_or(0))
}

/// The copy of a table.
pub fn pack(w: &Dense) -> Int8 {
    let (mut values, mut rows) = (Vec::new(), Vec::new());
    for v in 0..w.rows {
        let row: Vec<f32> = (0..w.width).map(|i| w.at(v, i)).collect();
        let (scale, inverse) = row_scales(top(&row));
        let q: Vec<i8> = row.iter().map(|&w| row_value(w, inverse)).collect();
        let d = |i: usize| rest(row[i], scale, q[i].into());
        let rests = sum256(row.len(), |acc, i| d(i).mul_add(d(i), acc));
        let squares = sum256(row.len(), |acc, i| row[i].mul_add(row[i], acc));
        rows.push(row_stats(top(&row), rests, squares));
        values.extend(q);
    }
    Int8 { values, rows }
}

/// The bytes of the copy on a device.
pub fn padded(values: &[i8], k: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in values.chunks(k) {
        bytes.extend(row.iter().map(|&q| q as u8));
        bytes.resize(bytes.len().next_multiple_of(16), 0);
    }
    debug_assert_eq!(bytes.len(), values.len() / k * row_bytes(k));
    bytes
}

/// An input as 16-bit numbers, and what is kept of it.
pub fn input(x: &[f32]) -> (Vec<i32>, [f32; 4]) {
    let (scale, inverse) = input_scales(top(x));
    let p: Vec<i32> = x.iter().map(|&x| input_value(x, inverse)).collect();
    let r = |i: usize| rest(x[i], scale, p[i]);
    let rests = sum256(x.len(), |acc, i| r(i).mul_add(r(i), acc));
    let squares = sum256(x.len(), |acc, i| x[i].mul_add(x[i], acc));
    (p, input_stats(top(x), rests, squares, x.len() as u32))
}

/// The words of an input on a device, without its scratch.
pub fn input_of(p: &[i32], stats: [f32; 4]) -> Vec<u32> {
    let mut bytes: Vec<u8> = bytemuck::cast_slice(&stats).to_vec();
    for digit in 0..2 {
        bytes.extend(p.iter().map(|&p| digits(p)[digit] as u8));
        bytes.resize(16 + (digit + 1) * row_bytes(p.len()), 0);
    }
    bytes.chunks(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

/// Lower and upper bound of every logit, before penalty and temperature.
pub fn all_bounds(table: &Int8, x: &[f32]) -> Vec<[f32; 2]> {
    let (p, stats) = input(x);
    let rows = table.values.chunks(x.len()).zip(&table.rows);
    rows.map(|(q, row)| {
        let sum = q.iter().zip(&p).map(|(&q, &p)| i64::from(q) * i64::from(p)).sum();
        bounds(sum, *row, stats)
    })
    .collect()
}

/// The key that decides which rows are computed.
fn floor(lower: &[u32], asked: &Asked) -> u32 {
    let mut maxima = [0u32; 256];
    for (v, &key) in lower.iter().enumerate() {
        let lane = v / 32 % 256;
        maxima[lane] = maxima[lane].max(key);
    }
    maxima.sort_unstable_by(|a, b| b.cmp(a));
    match asked.wanted(lower.len() as u32) {
        1 => asked.floor(maxima[0], lower.len() as u32),
        wanted => floor_of(maxima[wanted as usize - 1]),
    }
}

/// Logits of the rows that can decide, minus infinity for the others.
pub fn lm_head_int8(w: &Dense, x: &[f32], marks: &[u8], params: &SampleParams) -> Vec<f32> {
    let exact = lm_head::lm_head(w, x, 1);
    let asked = Asked::of(params);
    let known = has_bounds(input(x).1);
    let wanted = if known { asked.wanted(w.rows as u32) } else { 0 };
    if wanted == 0 {
        return exact;
    }
    let bounds = all_bounds(&pack(w), x);
    let key = |v: usize, end: usize| {
        order_key(asked.adjust(bounds[v][end], counted(marks[v], asked.penalty)))
    };
    let lower: Vec<u32> = (0..w.rows).map(|v| key(v, 0)).collect();
    let floor = floor(&lower, &asked).max(BARRED + 1);
    let logit = |v: usize| if key(v, 1) >= floor { exact[v] } else { f32::NEG_INFINITY };
    (0..w.rows).map(logit).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Inputs;
    use super::super::embed::ELEMENTS;
    use super::super::sample::{GREEDY, pick};
    use super::*;
    use proptest::prelude::*;

    /// Rows that make rounding as bad as it gets: values between two steps, a few large ones among
    /// many small, alternating signs, scales far apart, and the ones that have no bound.
    fn row(kind: usize, k: usize, seeded: &mut Inputs) -> Vec<f32> {
        let step = |i: usize, j: usize| (((i * 7 + j) % 120) as f32 + 0.5) / 127.0;
        let mut row = match kind % 8 {
            0 => (0..k).map(|i| step(i, 1) * if i % 2 == 0 { 1.0 } else { -1.0 }).collect(),
            1 => (0..k).map(|i| if i % 64 == 0 { 1.0 } else { 0.499 / 127.0 }).collect(),
            2 => vec![0.5 / 127.0; k],
            3 => seeded.floats(k, 1e-6),
            4 => seeded.floats(k, 1e6),
            5 => vec![0.0; k],
            6 => (0..k).map(|i| 2f32.powi(-((i % 60) as i32))).collect(),
            _ => seeded.floats(k, 2.0),
        };
        if kind % 8 < 3 {
            row[0] = 1.0;
        }
        if kind / 8 == 3 {
            row[k - 1] = [f32::NAN, f32::INFINITY, 1e-44, f32::MAX, 2e12, 1e-39][kind % 6];
        }
        row
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn bounds_hold(k in 1usize..700, kinds: [u8; 6], input: u8, seed: u64) {
            let mut seeded = Inputs::new(seed);
            let element = ELEMENTS[seed as usize % 3];
            let mut x = row(usize::from(input % 32), k, &mut seeded);
            let mut w = Dense::new(element, kinds.len(), k, seed);
            for (v, &kind) in kinds.iter().enumerate() {
                let values = row(usize::from(kind % 32), k, &mut seeded);
                for (bits, value) in w.bits[v * k..][..k].iter_mut().zip(values) {
                    *bits = match element {
                        contract::num::RowType::F32 => value.to_bits(),
                        contract::num::RowType::F16 => half::f16::from_f32(value).to_bits().into(),
                        contract::num::RowType::Bf16 => half::bf16::from_f32(value).to_bits().into(),
                    };
                }
            }
            let table = pack(&w);
            if input % 4 == 1 {
                // The worst there is: the input points where quantising row 0 erred.
                let [scale, ..] = table.rows[0];
                x = (0..k).map(|i| rest(w.at(0, i), scale, table.values[i].into())).collect();
            }
            let exact = lm_head::lm_head(&w, &x, 1);
            for (v, [low, high]) in all_bounds(&table, &x).into_iter().enumerate() {
                prop_assert!(order_key(low) <= order_key(exact[v]), "{low:e} {:e}", exact[v]);
                prop_assert!(order_key(high) >= order_key(exact[v]), "{high:e} {:e}", exact[v]);
                if high == f32::INFINITY {
                    continue;
                }
                // The parts of the proof, in f64.
                let [scale, error, norm, _] = table.rows[v].map(f64::from);
                let root = |f: &dyn Fn(usize) -> f64| (0..k).map(|i| f(i) * f(i)).sum::<f64>().sqrt();
                let at = |i: usize| f64::from(w.at(v, i));
                let d = |i: usize| at(i) - scale * f64::from(table.values[v * k + i]);
                prop_assert!(error >= root(&d) && norm >= root(&at), "{v}");
                let real: f64 = (0..k).map(|i| f64::from(x[i]) * at(i)).sum();
                prop_assert!(f64::from(low) <= real && real <= f64::from(high), "{low} {real} {high}");
            }
        }

        #[test]
        fn tokens_are_those_of_all_logits(
            vocab in 1usize..900, k in 1usize..80, seed: u64, top_k in 0u32..300, temperature in 0usize..4,
            penalty in 0usize..6, least in 0u32..40,
        ) {
            let mut seeded = Inputs::new(seed);
            let w = Dense::new(ELEMENTS[seed as usize % 3], vocab, k, seed);
            let x = seeded.floats(k, 1.0);
            let marks: Vec<u8> = seeded.marks(vocab);
            let params = SampleParams {
                seed,
                top_k,
                temperature: [0.0, 0.3, 1.0, 20.0][temperature],
                repetition_penalty: [1.0, 1.2, 0.8, 1e30, -1.0, -1.1][penalty],
                top_p_q32: if seed % 2 == 0 { 1 << 32 } else { 3 << 30 },
                min_weight: 1u32.checked_shl(least).map_or(0, |bit| bit - (seed as u32 & (bit / 2))),
                ..GREEDY
            };
            let exact = lm_head::lm_head(&w, &x, 1);
            let found = lm_head_int8(&w, &x, &marks, &params);
            for step in 0..4 {
                prop_assert_eq!(pick(&found, &marks, &[], &params, step), pick(&exact, &marks, &[], &params, step));
            }
        }
    }
}
