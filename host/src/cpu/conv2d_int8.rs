//! CPU side of [`contract::conv2d::int8`]: sums are exact, so they are plain dots of bytes.
//!
//! A task makes a few output pixels of one group: it gathers the taps of a pixel into a row of the
//! weights' order and takes the dot with each channel's row.

use contract::conv2d::int8::PackedRows;
use contract::conv2d::weights::Packed;
use contract::conv2d::{ABSENT, Activation, Geometry, finish};
use contract::w2a8::{Segments, code_place, dequantise};

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::Float;

/// Output pixels of a task.
const PIXELS: usize = 16;

vectorised! {
    /// The dot of two rows of bytes.
    fn dot(a: &[i8], b: &[i8]) -> i32 {
        a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
    }
}

/// What follows the sum of a ternary convolution.
pub struct Epilogue<'a, T> {
    /// Quantisation multiplier of each image.
    pub scales: &'a [f32],
    /// Scales of the weights.
    pub segments: &'a Segments,
    /// One number for each output channel.
    pub bias: Option<&'a [f32]>,
    /// Added before the activation.
    pub residual: Option<&'a [T]>,
    /// Last step.
    pub activation: Activation,
}

/// Rows of bytes from packed ternaries.
fn unpacked(words: &[u32]) -> Vec<i8> {
    let weight = |place: usize| {
        let (word, bit) = code_place(place);
        // The two bits, extended with their sign.
        (words[word] << (30 - bit)) as i32 >> 30
    };
    (0..words.len() * 16).map(|place| weight(place) as i8).collect()
}

/// int8 weights: `y` takes the sums.
pub fn conv2d_i8(
    threads: &Threads,
    simd: Simd,
    g: &Geometry,
    packed: &Packed,
    (x, w): (&[i8], &[u32]),
    y: &mut [i32],
) {
    let rows: &[i8] = bytemuck::cast_slice(w);
    run(threads, simd, g, packed, (x, rows), y, |sum, _, _| sum);
}

/// Ternary weights: `y` takes the sums after the epilogue.
pub fn conv2d_ternary<T: Float>(
    threads: &Threads,
    simd: Simd,
    g: &Geometry,
    packed: &Packed,
    (x, w): (&[i8], &[u32]),
    epilogue: &Epilogue<'_, T>,
    y: &mut [T],
) {
    let rows = unpacked(w);
    let of_image = g.y_image as usize;
    run(threads, simd, g, packed, (x, &rows), y, |sum, channel, at| {
        let scale = epilogue.scales[at / of_image];
        let value = dequantise(sum, scale, epilogue.segments.scale_of(channel as u32));
        let bias = epilogue.bias.map_or(ABSENT, |bias| bias[channel]);
        let residual = epilogue.residual.map_or(ABSENT, |residual| residual[at].widen());
        T::round(finish(value, bias, residual, epilogue.activation))
    });
}

fn run<T: Send>(
    threads: &Threads,
    simd: Simd,
    g: &Geometry,
    packed: &Packed,
    (x, rows): (&[i8], &[i8]),
    y: &mut [T],
    output: impl Fn(i32, usize, usize) -> T + Sync,
) {
    if g.pixels == 0 {
        return;
    }
    let (k, of_image) = (packed.k, (g.out[0] * g.out[1]) as usize);
    let pixels = g.pixels as usize;
    let layout = PackedRows::new(packed.window[0] * packed.window[1], packed.c);
    let job = |pixel: usize, channels: std::ops::Range<usize>, put: &mut dyn FnMut(usize, T)| {
        let (image, at) = (pixel / of_image, pixel % of_image);
        let mut taps = vec![0i8; layout.terms];
        let mut group = usize::MAX;
        for channel in channels {
            if channel / g.k as usize != group {
                group = channel / g.k as usize;
                gather(g, layout, x, pixel, group, &mut taps);
            }
            let sum = dot(simd, &taps, &rows[channel * layout.terms..][..layout.terms]);
            let inside = at * g.y_step[0] as usize + channel * g.y_step[1] as usize;
            put(channel, output(sum, channel, image * g.y_image as usize + inside));
        }
    };
    if g.y_step[1] == 1 {
        threads.run_tiles(y, [pixels, k], [PIXELS, k], |mut tile| {
            for pixel in tile.rows() {
                job(pixel, tile.columns(), &mut |channel, value| tile.set(pixel, channel, value));
            }
        });
    } else {
        let images = pixels / of_image;
        threads.run_tiles(y, [images * k, of_image], [k, PIXELS], |mut tile| {
            let image = tile.rows().start / k;
            for at in tile.columns() {
                job(image * of_image + at, 0..k, &mut |channel, value| {
                    tile.set(image * k + channel, at, value);
                });
            }
        });
    }
}

/// The taps of one output pixel in the order of a packed row.
fn gather(g: &Geometry, layout: PackedRows, x: &[i8], pixel: usize, group: usize, taps: &mut [i8]) {
    let (image, h, w) = g.corner(pixel as u32);
    let step = g.x_step[2] as usize;
    let image = image as usize * g.x_image as usize + group * g.c as usize * step;
    for (tap, to) in taps.chunks_exact_mut(layout.tap).enumerate() {
        let (r, s) = g.by_s.div_rem(tap as u32);
        let inside = tap * layout.tap < g.terms as usize;
        let from = if inside { g.pixel(h, w, r, s) } else { None };
        for (c, to) in to.iter_mut().take(g.c as usize).enumerate() {
            *to = from.map_or(0, |at| x[image + at as usize + c * step]);
        }
    }
}
