//! CPU side of [`contract::conv2d`].
//!
//! A task makes a few dozen output pixels of one group. For a chunk of terms it gathers the taps of
//! its pixels, `[term][pixel]`, and takes them through the packed weights: six pixels by sixteen
//! channels at a time, each accumulator one of the contract's chains.

use std::borrow::Cow;

use contract::conv2d::weights::Packed;
use contract::conv2d::{ABSENT, Activation, CHUNK, Geometry, finish};
use contract::num::fma;

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::Float;

/// Output pixels of a task: a multiple of [`BLOCK`].
const PIXELS: usize = 48;
/// Pixels of an inner block.
const BLOCK: usize = 6;
/// Output channels of an inner block.
const LANES: usize = 16;
/// Output channels of a task, where there is one group.
const CHANNELS: usize = 128;

/// The tensors that are read.
pub struct Tensors<'a, T> {
    /// Images.
    pub x: &'a [T],
    /// Packed weights.
    pub w: &'a [T],
    /// One number for each output channel.
    pub bias: Option<&'a [f32]>,
    /// Added before the activation.
    pub residual: Option<&'a [T]>,
}

/// The values of `w`, without a copy where they are `f32` already.
fn widened<T: Float>(w: &[T]) -> Cow<'_, [f32]> {
    match bytemuck::try_cast_slice(w) {
        Ok(same) if T::TYPE == contract::num::RowType::F32 => Cow::Borrowed(same),
        _ => Cow::Owned(w.iter().map(|v| v.widen()).collect()),
    }
}

vectorised! {
    /// Takes `patch` (`[term][pixel]`, rows of [`PIXELS`]) through `w` (rows of `columns`), from
    /// `pixel` and column 0 of it on: `sums[pixel][lane]`.
    fn block(patch: &[f32], pixel: usize, w: &[f32], columns: usize, sums: &mut [[f32; LANES]; BLOCK]) {
        let mut acc = [[0.0; LANES]; BLOCK];
        for (taps, row) in patch.chunks_exact(PIXELS).zip(w.chunks(columns)) {
            let (Some(taps), Some(row)) =
                (taps[pixel..].first_chunk::<BLOCK>(), row.first_chunk::<LANES>())
            else {
                break;
            };
            for (acc, &tap) in acc.iter_mut().zip(taps) {
                for (acc, &w) in acc.iter_mut().zip(row) {
                    *acc = fma(tap, w, *acc);
                }
            }
        }
        *sums = acc;
    }
}

vectorised! {
    /// The same for `lanes` columns, fewer than a block.
    fn narrow(patch: &[f32], pixel: usize, w: &[f32], columns: usize, lanes: usize, sums: &mut [[f32; LANES]; BLOCK]) {
        *sums = [[0.0; LANES]; BLOCK];
        for (taps, row) in patch.chunks_exact(PIXELS).zip(w.chunks(columns)) {
            for (acc, &tap) in sums.iter_mut().zip(&taps[pixel..]) {
                for (acc, &w) in acc.iter_mut().zip(&row[..lanes]) {
                    *acc = fma(tap, w, *acc);
                }
            }
        }
    }
}

vectorised! {
    /// `acc[i] = x[i] * w[i] + acc[i]`.
    fn multiply_add(x: &[f32], w: &[f32], acc: &mut [f32]) {
        for ((acc, &x), &w) in acc.iter_mut().zip(x).zip(w) {
            *acc = fma(x, w, *acc);
        }
    }
}

/// Computes the convolution. The caller has compared the tensors with the contract.
pub fn conv2d<T: Float>(
    threads: &Threads,
    simd: Simd,
    g: &Geometry,
    packed: &Packed,
    tensors: &Tensors<'_, T>,
    activation: Activation,
    y: &mut [T],
) {
    if g.pixels == 0 {
        return;
    }
    let w = widened(tensors.w);
    let job = Job { simd, g, packed, tensors, w: &w, activation };
    let (k, pixels) = (packed.k, g.pixels as usize);
    let of_image = (g.out[0] * g.out[1]) as usize;
    let of_group = if packed.groups == 1 { CHANNELS } else { g.k as usize };
    let of_task = if packed.depthwise() { k } else { of_group };
    if g.y_step[1] == 1 {
        threads.run_tiles(y, [pixels, k], [PIXELS, of_task], |mut tile| {
            let (first, count) = (tile.rows().start, tile.rows().len());
            let channels = tile.columns();
            job.run(first, count, channels, |p, channel, value| {
                tile.set(first + p, channel, value)
            });
        });
    } else {
        let images = pixels / of_image;
        // Rows are channels of images: a task keeps to one image, and k is whole tasks or one.
        let of_task = if k % of_task == 0 { of_task } else { k };
        threads.run_tiles(y, [images * k, of_image], [of_task, PIXELS], |mut tile| {
            let (image, from) = (tile.rows().start / k, tile.rows().start % k);
            let channels = from..from + tile.rows().len();
            let (at, count) = (tile.columns().start, tile.columns().len());
            job.run(image * of_image + at, count, channels, |p, channel, value| {
                tile.set(image * k + channel, at + p, value);
            });
        });
    }
}

struct Job<'a, T> {
    simd: Simd,
    g: &'a Geometry,
    packed: &'a Packed,
    tensors: &'a Tensors<'a, T>,
    w: &'a [f32],
    activation: Activation,
}

impl<T: Float> Job<'_, T> {
    /// `count` pixels from `first` on, some channels, of one group unless depthwise.
    fn run(
        &self,
        first: usize,
        count: usize,
        channels: std::ops::Range<usize>,
        mut set: impl FnMut(usize, usize, T),
    ) {
        let width = channels.len();
        let mut sums = vec![0.0f32; count * width];
        if self.packed.depthwise() {
            self.taps(first, &channels, &mut sums);
        } else {
            self.matrix(first, count, &channels, &mut sums);
        }
        let k = self.packed.k;
        let of_image = (self.g.out[0] * self.g.out[1]) as usize;
        for p in 0..count {
            let (image, at) = ((first + p) / of_image, (first + p) % of_image);
            for (channel, &sum) in channels.clone().zip(&sums[p * width..]) {
                let inside = at * self.g.y_step[0] as usize + channel * self.g.y_step[1] as usize;
                let at = image * of_image * k + inside;
                let bias = self.tensors.bias.map_or(ABSENT, |bias| bias[channel]);
                let residual = self.tensors.residual.map_or(ABSENT, |r| r[at].widen());
                set(p, channel, T::round(finish(sum, bias, residual, self.activation)));
            }
        }
    }

    /// The pixel under a tap of output pixel `pixel`: its image, and where in it.
    fn corner(&self, pixel: usize) -> (usize, i32, i32) {
        let (image, h, w) = self.g.corner(pixel as u32);
        (image as usize * self.g.x_image as usize, h, w)
    }

    fn matrix(
        &self,
        first: usize,
        count: usize,
        channels: &std::ops::Range<usize>,
        sums: &mut [f32],
    ) {
        let (g, packed) = (self.g, self.packed);
        let group = channels.start / g.k as usize;
        let column = channels.start - group * g.k as usize;
        let (rows, columns) = (packed.rows(), packed.columns());
        let matrix = &self.w[group * rows * columns..][..rows * columns];
        let width = channels.len();
        let terms = g.terms as usize;
        let mut patch = vec![0.0f32; terms.min(CHUNK) * PIXELS];
        for chunk in (0..terms).step_by(CHUNK) {
            let of_chunk = CHUNK.min(terms - chunk);
            let patch = &mut patch[..of_chunk * PIXELS];
            for p in 0..count {
                self.gather(first + p, group, chunk, patch, p);
            }
            let w = &matrix[chunk * columns..][..of_chunk * columns];
            let mut out = [[0.0; LANES]; BLOCK];
            for lane in (0..width).step_by(LANES) {
                let w = &w[column + lane..];
                let lanes = LANES.min(width - lane);
                for p in (0..count).step_by(BLOCK) {
                    if column + lane + LANES <= columns {
                        block(self.simd, patch, p, w, columns, &mut out);
                    } else {
                        narrow(self.simd, patch, p, w, columns, lanes, &mut out);
                    }
                    for (i, out) in out.iter().enumerate().take(count - p) {
                        let sums = &mut sums[(p + i) * width + lane..][..lanes];
                        for (sum, &new) in sums.iter_mut().zip(out) {
                            *sum = if chunk == 0 { new } else { *sum + new };
                        }
                    }
                }
            }
        }
    }

    /// The taps of one output pixel from term `chunk` on, into column `p` of `patch`.
    fn gather(&self, pixel: usize, group: usize, chunk: usize, patch: &mut [f32], p: usize) {
        let g = self.g;
        let (image, h, w) = self.corner(pixel);
        let image = image + group * (g.c * g.x_step[2]) as usize;
        let step = g.x_step[2] as usize;
        let mut term = chunk;
        let mut rows = patch.chunks_exact_mut(PIXELS);
        let end = chunk + rows.len();
        while term < end {
            let (r, s, c) = g.tap(term as u32);
            let run = (g.c - c) as usize;
            let run = run.min(end - term);
            let at = g.pixel(h, w, r, s).map(|at| image + at as usize + c as usize * step);
            for (i, row) in rows.by_ref().take(run).enumerate() {
                row[p] = at.map_or(0.0, |at| self.tensors.x[at + i * step].widen());
            }
            term += run;
        }
    }

    fn taps(&self, first: usize, channels: &std::ops::Range<usize>, sums: &mut [f32]) {
        let (g, columns) = (self.g, self.packed.columns());
        let width = channels.len();
        let step = g.x_step[2] as usize;
        let together = step == 1 && g.k == 1;
        let mut x = vec![0.0f32; width];
        let mut total = vec![0.0f32; if g.terms as usize > CHUNK { width } else { 0 }];
        for (p, acc) in sums.chunks_exact_mut(width).enumerate() {
            let (image, h, w) = self.corner(first + p);
            for tap in 0..g.terms as usize {
                if tap > 0 && tap % CHUNK == 0 {
                    for (total, acc) in total.iter_mut().zip(acc.iter_mut()) {
                        *total = if tap == CHUNK { *acc } else { *total + *acc };
                        *acc = 0.0;
                    }
                }
                let (r, s) = g.by_s.div_rem(tap as u32);
                let row = &self.w[tap * columns + channels.start..][..width];
                match g.pixel(h, w, r, s).map(|at| image + at as usize) {
                    None => x.fill(0.0),
                    Some(at) if together => {
                        let from = &self.tensors.x[at + channels.start..][..width];
                        x.iter_mut().zip(from).for_each(|(x, v)| *x = v.widen());
                    }
                    Some(at) => {
                        for (x, channel) in x.iter_mut().zip(channels.clone()) {
                            *x = self.tensors.x[at + channel / g.k as usize * step].widen();
                        }
                    }
                }
                multiply_add(self.simd, &x, row, acc);
            }
            for (total, acc) in total.iter().zip(acc) {
                *acc += *total;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::conv2d::Activation;
    use contract::num::RowType;

    use crate::cpu::tests::every_backend;
    use crate::reference::conv2d::{self as reference, Case, Extras};
    use crate::selftest::conv2d::Inputs;
    use crate::selftest::{difference, run};

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        let kinds = [RowType::F32, RowType::F16, RowType::Bf16];
        for (i, (images, oihw, groups, window)) in reference::test_shapes().into_iter().enumerate()
        {
            let extras = Extras {
                bias: i % 2 == 0,
                residual: i % 3 == 0,
                activation: Activation::ALL[i % 4],
            };
            let case = Case::new(kinds[i % 3], images, oihw, groups, window, extras, i as u64);
            let inputs = Inputs::exact(&case);
            every_backend(|backend| {
                let found = run(backend, &inputs).expect("a shape that is allowed");
                let first = difference(&found, &inputs.expected());
                assert!(first.is_none(), "{oihw:?}: {}", first.expect("checked"));
            });
        }
    }
}
