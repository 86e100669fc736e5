//! CPU side of [`contract::lm_head_int8`].

use contract::lm_head_int8::{
    Asked, BARRED, GROUP, THREADS, bounds, digits, floor_of, has_bounds, input_scales, input_stats,
    input_value, magnitude, rest, row_bytes, row_scales, row_stats, row_value,
};
use contract::num::{PARTIALS, dot_into, fma, order_key, tree};
use contract::sample::counted;

use super::dense::{RowReader, Table};
use super::simd::vectorised;
use super::threads::RowsMut;
use super::{Simd, Threads, lm_head};

/// Values of a piece whose products sum up in `i32`: `256 * 127 * 32512` is below 2^31.
const PIECE: usize = 256;

/// The copy of a table.
#[derive(Clone, Copy, Debug)]
pub struct Copied<'a> {
    /// Rows of [`row_bytes`].
    pub bytes: &'a [i8],
    /// Scale, error, norm, 0 of each row.
    pub rows: &'a [f32],
}

/// Quantises a row.
struct Quantise<'a>(&'a mut [i8]);

impl RowReader for Quantise<'_> {
    type Output = [f32; 4];

    #[inline(always)]
    fn read<T: Copy>(self, row: &[T], widen: impl Fn(T) -> f32 + Copy) -> [f32; 4] {
        let top = row.iter().fold(0, |top, &w| magnitude(widen(w)).max(top));
        let top = f32::from_bits(top);
        let (scale, inverse) = row_scales(top);
        let (mut rests, mut squares) = ([0.0; PARTIALS], [0.0; PARTIALS]);
        for (row, out) in row.chunks(PARTIALS).zip(self.0.chunks_mut(PARTIALS)) {
            let sums = rests.iter_mut().zip(&mut squares);
            for (((rests, squares), &w), q) in sums.zip(row).zip(out) {
                let w = widen(w);
                *q = row_value(w, inverse);
                let d = rest(w, scale, i32::from(*q));
                *rests = fma(d, d, *rests);
                *squares = fma(w, w, *squares);
            }
        }
        row_stats(top, tree(&mut rests), tree(&mut squares))
    }
}

vectorised! {
    /// Quantises one row of a table, which `out` is as long as.
    fn pack_row(w: Table<'_>, row: usize, out: &mut [i8]) -> [f32; 4] {
        w.read(row, Quantise(out))
    }
}

/// Copies a table.
pub fn pack(threads: &Threads, simd: Simd, w: Table<'_>, bytes: &mut [i8], rows: &mut [f32]) {
    let width = row_bytes(w.width);
    let out = (
        RowsMut::new(&mut bytes[..w.rows * width], width),
        RowsMut::new(&mut rows[..4 * w.rows], 4),
    );
    threads.run_rows(w.rows, out, |row, (bytes, stats)| {
        let (values, rest) = bytes.split_at_mut(w.width);
        rest.fill(0);
        stats.copy_from_slice(&pack_row(simd, w, row, values));
    });
}

/// Splits `x`: its 16-bit numbers, and what is kept of it.
fn split(x: &[f32]) -> (Vec<i16>, [f32; 4]) {
    let top = x.iter().fold(0, |top, &x| magnitude(x).max(top));
    let top = f32::from_bits(top);
    let (scale, inverse) = input_scales(top);
    let p: Vec<i16> = x.iter().map(|&x| input_value(x, inverse) as i16).collect();
    let rests: Vec<f32> = x.iter().zip(&p).map(|(&x, &p)| rest(x, scale, p.into())).collect();
    let sum = |values: &[f32]| {
        let mut partials = [0.0; PARTIALS];
        dot_into(&mut partials, values, values, |v| v);
        tree(&mut partials)
    };
    let stats = input_stats(top, sum(&rests), sum(x), x.len() as u32);
    (p, stats)
}

vectorised! {
    /// The exact sum of products.
    fn products(p: &[i16], q: &[i8]) -> i64 {
        let mut sum = 0;
        for (p, q) in p.chunks(PIECE).zip(q.chunks(PIECE)) {
            let piece = p.iter().zip(q).map(|(&p, &q)| i32::from(p) * i32::from(q)).sum::<i32>();
            sum += i64::from(piece);
        }
        sum
    }
}

/// What is asked of one call.
pub struct Request<'a> {
    /// `[k]`.
    pub x: &'a [f32],
    /// The table.
    pub w: Table<'a>,
    /// Its copy.
    pub copy: Copied<'a>,
    /// `[vocab]`.
    pub marks: &'a [u8],
    /// What the sampler asks for.
    pub asked: Asked,
    /// Whether the text has ended: its logits are left alone.
    pub ended: bool,
}

/// Logits of the rows that can decide, minus infinity for the others; what is kept of the input goes to `input`, whose rest is left alone.
pub fn lm_head_int8(
    threads: &Threads,
    simd: Simd,
    request: &Request<'_>,
    input: &mut [u32],
    tops: &mut [u32],
    logits: &mut [f32],
) {
    let Request { x, w, copy, marks, asked, ended } = request;
    let (p, stats) = split(x);
    let (head, tail) = input.split_at_mut(stats.len());
    head.copy_from_slice(&stats.map(f32::to_bits));
    let bytes = &mut bytemuck::cast_slice_mut::<u32, i8>(tail)[..2 * row_bytes(x.len())];
    bytes.fill(0);
    for (i, &p) in p.iter().enumerate() {
        let [high, low] = digits(p.into());
        (bytes[i], bytes[row_bytes(x.len()) + i]) = (high, low);
    }
    if *ended {
        return;
    }
    let wanted = if has_bounds(stats) { asked.wanted(w.rows as u32) } else { 0 };
    if wanted == 0 {
        lm_head::lm_head(threads, simd, x, *w, logits, 1);
        return;
    }

    let (group, width) = (GROUP as usize, row_bytes(x.len()));
    let out = (RowsMut::new(&mut *logits, group), RowsMut::new(&mut *tops, 1));
    threads.run_rows(w.rows.div_ceil(group), out, |i, (uppers, top)| {
        top[0] = 0;
        for (r, upper) in uppers.iter_mut().enumerate() {
            let row = i * group + r;
            let sum = products(simd, &p, &copy.bytes[row * width..][..x.len()]);
            let known = std::array::from_fn(|j| copy.rows[4 * row + j]);
            let ends = bounds(sum, known, stats)
                .map(|b| asked.adjust(b, counted(marks[row], asked.penalty)));
            top[0] = order_key(ends[0]).max(top[0]);
            *upper = ends[1];
        }
    });

    // What is forbidden is not computed.
    let floor = floor(tops, asked, w.rows as u32).max(BARRED + 1);
    threads.run_pieces(logits, group, |i, logits| {
        for (r, logit) in logits.iter_mut().enumerate() {
            *logit = match order_key(*logit) >= floor {
                true => lm_head::dot(simd, *w, i * group + r, x),
                false => f32::NEG_INFINITY,
            };
        }
    });
}

/// A key that as many adjusted logits reach as are wanted, or what weighs enough beside the best.
fn floor(tops: &[u32], asked: &Asked, vocab: u32) -> u32 {
    let mut maxima = [0u32; THREADS as usize];
    for tops in tops.chunks(maxima.len()) {
        for (max, top) in maxima.iter_mut().zip(tops) {
            *max = (*max).max(*top);
        }
    }
    maxima.sort_unstable_by(|a, b| b.cmp(a));
    match asked.wanted(vocab) {
        1 => asked.floor(maxima[0], vocab),
        wanted => floor_of(maxima[wanted as usize - 1]),
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::every_backend;
    use crate::reference::embed::{Dense, ELEMENTS};
    use crate::reference::sample::GREEDY;
    use crate::reference::{Inputs as Seeded, lm_head, lm_head_int8 as reference, sample};
    use crate::selftest::lm_head_int8::{ANY, Inputs, leaves};
    use crate::selftest::{Output, run};
    use contract::sample::{SampleParams, adjusted_len, counted, penalise, temper};

    #[test]
    fn every_level_takes_the_logits_of_the_reference() {
        let mut seeded = Seeded::new(4);
        for (vocab, k, top_k) in [(1, 1, 0), (70, 257, 0), (9000, 33, 7), (40, 1000, 50)] {
            for element in ELEMENTS {
                let temperature = if top_k == 0 { 0.0 } else { 0.5 };
                let params = SampleParams { top_k, temperature, repetition_penalty: 1.5, ..GREEDY };
                let inputs = Inputs {
                    table: Dense::new(element, vocab, k, seeded.bits()),
                    x: seeded.floats(k, 2.0),
                    x_at: 0,
                    norm: None,
                    marks: seeded.marks(vocab),
                    asked: vec![(params, false)],
                    bias: Vec::new(),
                    every: false,
                };
                let Inputs { table, x, marks, .. } = &inputs;
                let logits = reference::lm_head_int8(table, x, marks, &params);
                let adjusted =
                    |v: usize| temper(penalise(logits[v], counted(marks[v], 1.5), 1.5), 0.5);
                let len = adjusted_len(vocab as u32) as usize;
                let left = leaves(&params, reference::input(x).1, [vocab, k, 1]);
                let drawn = |v: usize| if left && v < vocab { adjusted(v) } else { ANY };
                let want =
                    Output::floats("adjusted", &[1, len], &(0..len).map(drawn).collect::<Vec<_>>());
                let token = sample::pick(&lm_head::lm_head(table, x, 1), marks, &[], &params, 0);
                every_backend(|backend| {
                    let found = run(backend, &inputs).expect("the case runs");
                    assert!(found.contains(&want), "{vocab} {k} {element:?} {top_k}");
                    assert_eq!(found.last(), Some(&Output::words("out", &[1], vec![token])));
                });
            }
        }
    }
}
