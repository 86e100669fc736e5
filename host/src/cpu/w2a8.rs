//! Ternary products on the packed layout of [`contract::w2a8`].
//!
//! The activations are first put into *planes*: 256 of them as four 64-byte planes, so that plane
//! `i` meets `(weights >> 2 i) & 3` of the 64 weight bytes that hold the same 256 codes, byte by byte.
//! A tile is a few rows of weights by a few rows of activations; its sums are exact integers, so
//! tile sizes and instructions leave no trace in the result.

use std::cell::RefCell;
use std::ops::Range;

use contract::w2a8::{ActStats, CHUNK, CHUNK_GROUP, Segments, act_bytes, dequantise, row_words};

use super::buffer::Buffer;
use super::simd::{Level, Simd};
use super::threads::Threads;
use crate::ops::{OpError, Tensor};
use crate::pack::trits;

/// Bytes of weights, or of one plane of activations, in a group of 256.
pub(super) const GROUP: usize = 64;
/// Rows of weights that a task takes.
const TASK_ROWS: usize = 64;
/// Rows of activations that go over one task's weights before the next rows.
const TASK_TOKENS: usize = 64;

/// Packed rows in either layout.
#[derive(Clone, Copy)]
pub(super) enum Words<'a> {
    /// [`contract::w2a8`].
    Bits2(&'a [u32]),
    /// [`contract::w2a8_trits`].
    Trits(&'a [u32]),
}

impl<'a> Words<'a> {
    /// Rows `rows` of `k` codes in the 2-bit layout, where they stand or in `room`.
    fn rows<'r>(self, rows: Range<usize>, k: usize, room: &'r mut Vec<u32>) -> &'r [u32]
    where
        'a: 'r,
    {
        match self {
            Self::Bits2(words) => &words[rows.start * row_words(k)..rows.end * row_words(k)],
            Self::Trits(words) => {
                let width = contract::w2a8_trits::row_words(k);
                room.resize(rows.len() * row_words(k), 0);
                trits::rows_to_words(&words[rows.start * width..rows.end * width], k, room);
                room
            }
        }
    }
}

thread_local! {
    /// Rows of a task in the 2-bit layout.
    static ROOM: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// One product, borrowed from its tensors.
pub(super) struct Product<'a> {
    /// Packed rows.
    pub(super) words: Words<'a>,
    /// Elements of a row.
    pub(super) k: usize,
    /// Scales; their end is the number of rows.
    pub(super) segments: &'a Segments,
    /// Rows of activations in the contract's order.
    pub(super) acts: &'a [u32],
    /// Their scales and sums: one for each row.
    pub(super) stats: &'a [[u32; 2]],
}

/// What a task reads: its own rows, planes instead of activations.
pub(super) struct Job<'a> {
    pub(super) weights: &'a [u8],
    /// Bytes of a weight row, a multiple of 16.
    pub(super) row_bytes: usize,
    pub(super) planes: &'a [i8],
    /// Bytes of an activation row, a multiple of 256 that covers the weight row.
    pub(super) plane_bytes: usize,
}

impl Job<'_> {
    pub(super) fn weight_row(&self, row: usize) -> &[u8] {
        &self.weights[row * self.row_bytes..][..self.row_bytes]
    }

    pub(super) fn plane_row(&self, token: usize) -> &[i8] {
        &self.planes[token * self.plane_bytes..][..self.plane_bytes]
    }
}

/// Sums of code times activation of a few rows by four tokens, `sums[r][t]`.
pub(super) type TileFn = fn(&Job<'_>, row: usize, token: usize, sums: &mut [[i32; TOKENS]; 4]);
/// The same of `sums.len()` rows by one token.
pub(super) type RowsFn = fn(&Job<'_>, row: usize, token: usize, sums: &mut [i32]);

/// What a level of [`Simd`] provides.
pub(super) struct Tiles {
    /// Rows of weights of a full tile, at most four.
    pub(super) rows: usize,
    /// Full rows by four tokens.
    pub(super) full: TileFn,
    /// One row by four tokens.
    pub(super) one_row: TileFn,
    /// Any rows by one token.
    pub(super) one_token: RowsFn,
}

/// Tokens of a tile.
pub(super) const TOKENS: usize = 4;

fn tiles(simd: Simd) -> &'static Tiles {
    match simd.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => &super::w2a8_x86::AVX2,
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni => &super::w2a8_x86::AVX_VNNI,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni => &super::w2a8_x86::AVX512_VNNI,
        #[cfg(target_arch = "aarch64")]
        Level::Neon => &super::w2a8_neon::NEON,
        _ => &SCALAR,
    }
}

/// Puts one row of activations from the contract's order into planes.
fn to_planes(acts: &[u32], planes: &mut [i8]) {
    let words: &mut [u32] = bytemuck::cast_slice_mut(planes);
    // Piece j of eight chunks stands together; plane j wants those of four.
    for (from, to) in acts.chunks_exact(128).zip(words.chunks_exact_mut(128)) {
        for (j, pieces) in from.chunks_exact(4 * CHUNK_GROUP).enumerate() {
            for (half, four) in pieces.chunks_exact(16).enumerate() {
                to[64 * half + 16 * j..][..16].copy_from_slice(four);
            }
        }
    }
}

/// Scratch for planes; keeps its memory between products.
#[derive(Default)]
pub struct Planes(Option<Buffer<i8>>);

impl Planes {
    fn reserve(&mut self, bytes: usize) -> Result<&mut [i8], OpError> {
        if self.0.as_ref().is_none_or(|buffer| buffer.len() < bytes) {
            self.0 = None;
        }
        let buffer = match self.0.take() {
            Some(buffer) => buffer,
            None => Buffer::zeroed("activation planes", bytes)?,
        };
        Ok(&mut self.0.insert(buffer).as_mut_slice()[..bytes])
    }
}

/// Computes `y[m, n]` of a product. The only error is a lack of memory for the planes.
///
/// The caller has compared the lengths with the contract: `y` holds a row of `segments.rows()` for
/// each of `stats`.
pub(super) fn multiply(
    threads: &Threads,
    simd: Simd,
    product: &Product<'_>,
    planes: &mut Planes,
    y: &mut [f32],
) -> Result<(), OpError> {
    let &Product { words, k, segments, acts, stats } = product;
    let (n, m, plane_bytes) = (segments.rows(), stats.len(), act_bytes(k));
    let planes = planes.reserve(m * plane_bytes)?;
    if m == 1 {
        to_planes(&acts[..plane_bytes / 4], planes);
    } else {
        threads.run_pieces(planes, plane_bytes, |t, row| {
            to_planes(&acts[t * plane_bytes / 4..][..plane_bytes / 4], row);
        });
    }
    let (tiles, planes) = (tiles(simd), &*planes);
    let tasks = [TASK_TOKENS, TASK_ROWS];
    threads.run_tiles(y, [m, n], tasks, |mut out| {
        let (tokens, token_end) = (out.rows().start, out.rows().end);
        let (rows, row_end) = (out.columns().start, out.columns().end);
        // Taken, not borrowed: a task that panics leaves nothing behind.
        let mut room = ROOM.take();
        let weights = bytemuck::cast_slice(words.rows(rows..row_end, k, &mut room));
        let job = Job { weights, row_bytes: row_words(k) * 4, planes, plane_bytes };
        let mut segment = 0;
        let scales: [f32; TASK_ROWS] = std::array::from_fn(|r| {
            while segment + 1 < segments.end.len() && rows + r >= segments.end[segment] as usize {
                segment += 1;
            }
            segments.scale[segment]
        });
        // Four rows of activations stay in the first-level cache while the weights pass by.
        let mut sums = [[0; TASK_ROWS]; TOKENS];
        for token in (tokens..token_end).step_by(TOKENS) {
            let count = TOKENS.min(token_end - token);
            if count == TOKENS {
                tile_rows(tiles, &job, row_end - rows, token, &mut sums);
            } else {
                for (t, sums) in sums.iter_mut().enumerate().take(count) {
                    (tiles.one_token)(&job, 0, token + t, &mut sums[..row_end - rows]);
                }
            }
            for (token, sums) in (token..).zip(&sums).take(count) {
                let stats = stats_of(stats[token]);
                for ((y, sum), scale) in out.row(token).iter_mut().zip(sums).zip(&scales) {
                    *y = dequantise(sum - stats.sum, stats.scale, *scale);
                }
            }
        }
        ROOM.set(room);
    });
    Ok(())
}

/// The sums of the first `height` rows of a job by four tokens, `sums[t][r]`.
fn tile_rows(
    tiles: &Tiles,
    job: &Job<'_>,
    height: usize,
    token: usize,
    sums: &mut [[i32; TASK_ROWS]; TOKENS],
) {
    let (mut tile, mut row) = ([[0; TOKENS]; 4], 0);
    while row < height {
        let full = row + tiles.rows <= height;
        let (rows, run) = if full { (tiles.rows, tiles.full) } else { (1, tiles.one_row) };
        run(job, row, token, &mut tile);
        for (r, of_row) in tile.iter().enumerate().take(rows) {
            for (sums, sum) in sums.iter_mut().zip(of_row) {
                sums[row + r] = *sum;
            }
        }
        row += rows;
    }
}

/// Stats from the words of their buffer.
pub(super) const fn stats_of(words: [u32; 2]) -> ActStats {
    ActStats { scale: f32::from_bits(words[0]), sum: words[1] as i32 }
}

/// The plain tiles: one by one, in the order of memory.
static SCALAR: Tiles =
    Tiles { rows: 1, full: scalar_tile, one_row: scalar_tile, one_token: scalar_rows };

fn scalar_tile(job: &Job<'_>, row: usize, token: usize, sums: &mut [[i32; TOKENS]; 4]) {
    for (t, sum) in sums[0].iter_mut().enumerate() {
        scalar_rows(job, row, token + t, std::slice::from_mut(sum));
    }
}

fn scalar_rows(job: &Job<'_>, row: usize, token: usize, sums: &mut [i32]) {
    for (r, sum) in sums.iter_mut().enumerate() {
        let groups = job.plane_row(token).chunks_exact(4 * GROUP);
        let row = job.weight_row(row + r).chunks(GROUP);
        *sum = row.zip(groups).map(|(w, a)| scalar_group(w, a)).sum();
    }
}

/// The sum over (up to) 64 bytes of weights. A plane's products fit 16 bits.
fn scalar_group(weights: &[u8], planes: &[i8]) -> i32 {
    let mut sum = 0;
    for (i, plane) in planes.chunks_exact(GROUP).enumerate() {
        for (w, a) in weights.iter().zip(plane) {
            let code = i16::from((w >> (2 * i)) & 3);
            sum += i32::from(code) * i32::from(i16::from(*a));
        }
    }
    sum
}

/// The last group of a row whose bytes are no multiple of 64, filled up with code 0; the
/// activations there are 0 too.
pub(super) fn tail_of(row: &[u8]) -> Option<[u8; GROUP]> {
    let tail = row.chunks_exact(GROUP).remainder();
    let mut group = [0; GROUP];
    group[..tail.len()].copy_from_slice(tail);
    (!tail.is_empty()).then_some(group)
}

const _: () = assert!(CHUNK * CHUNK_GROUP == 2 * 4 * GROUP);

#[cfg(test)]
mod tests {
    use super::*;
    use contract::w2a8::{act_index, code_place};

    #[test]
    fn planes_meet_the_codes_of_their_bytes() {
        let k = 1024;
        let mut acts = vec![0i8; k];
        for i in 0..k {
            acts[act_index(i)] = (i % 251) as i8;
        }
        let words: Vec<u32> = bytemuck::allocation::pod_collect_to_vec(&acts);
        let mut planes = vec![0u64; k / 8];
        let planes: &mut [i8] = bytemuck::cast_slice_mut(&mut planes);
        to_planes(&words, planes);
        for i in 0..k {
            let (word, shift) = code_place(i);
            let (byte, lane) = (4 * word + shift as usize / 8, shift as usize % 8 / 2);
            assert_eq!(planes[256 * (byte / 64) + 64 * lane + byte % 64], (i % 251) as i8, "{i}");
        }
    }
}
