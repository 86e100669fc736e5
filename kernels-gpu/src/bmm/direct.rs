//! Small and odd products on tensor cores: a warp makes a tile of 32 by 32 and reads its fragments
//! straight from memory, so that nothing but registers and L1 stands between a load and its product.
//!
//! Any shape and alignment: what is not there is zero, and two neighbours in k come as one word
//! where they lie side by side, else one by one. The fragments of the next step are asked for before
//! the products of this one.

use contract::bmm::{Args, Matrix, PARKED_ROW};

use super::source::Float;
use super::write::write;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::half::round_tf32;
use crate::arch::hint::opaque;
use crate::arch::mem::{ld_if, ld_word_or_half_if};
#[cfg(level_sm_90a)]
use crate::arch::mma::mma_s8;
use crate::arch::mma::{mma_bf16, mma_f16, mma_tf32};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{LANES, Register, lane_id, sync_warp, warp_id};
use crate::tile::walk::tile_at;

/// Warps, and tiles, of a block.
const WARPS: u32 = 4;
const SIDE: u32 = 32;
/// Blocks of 16 rows, and of 8 columns.
const ROWS: usize = 2;
const COLUMNS: usize = 4;
/// Products in depth of a step.
const STEPS: usize = 1;

/// A factor type of `mma.sync`.
pub(super) trait Fragment {
    /// What products are added to.
    type Sum: Register;

    /// Terms of a word, and words of a product in depth, for one row: `DEPTH = 8 * PER_WORD`.
    const PER_WORD: u32;

    /// `c + A B`.
    fn product(a: [u32; 4], b: [u32; 2], c: [Self::Sum; 4]) -> [Self::Sum; 4];

    /// `a + b`.
    #[cfg(level_sm_90a)]
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
}

/// The types.
pub(super) enum Bf16 {}
pub(super) enum F16 {}
pub(super) enum Tf32 {}
#[cfg(level_sm_90a)]
pub(super) enum I8 {}

impl Fragment for Bf16 {
    type Sum = f32;
    const PER_WORD: u32 = 2;
    #[inline(always)]
    fn product(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        mma_bf16(a, b, c)
    }
    #[cfg(level_sm_90a)]
    #[inline(always)]
    fn add(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl Fragment for F16 {
    type Sum = f32;
    const PER_WORD: u32 = 2;
    #[inline(always)]
    fn product(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        mma_f16(a, b, c)
    }
    #[cfg(level_sm_90a)]
    #[inline(always)]
    fn add(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl Fragment for Tf32 {
    type Sum = f32;
    const PER_WORD: u32 = 1;
    #[inline(always)]
    fn product(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        let round = |word| round_tf32(f32::from_bits(word));
        mma_tf32(a.map(round), b.map(round), c)
    }
    #[cfg(level_sm_90a)]
    #[inline(always)]
    fn add(a: f32, b: f32) -> f32 {
        a + b
    }
}

#[cfg(level_sm_90a)]
impl Fragment for I8 {
    type Sum = i32;
    const PER_WORD: u32 = 4;
    #[inline(always)]
    fn product(a: [u32; 4], b: [u32; 2], c: [i32; 4]) -> [i32; 4] {
        mma_s8(a, b, c)
    }
    #[inline(always)]
    fn add(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
}

/// One factor: `BLOCKS` rows of `A` or columns of `B` of this lane, 8 apart.
struct Factor<const BLOCKS: usize> {
    /// Term `PER_WORD * (lane % 4)` of the first of them.
    p: *const u8,
    /// Bytes from one block to the next, and from one term to the next.
    block: u64,
    term: u64,
    /// How many of the lane's blocks, counted by eights, and terms are there.
    beside: i32,
    k: i32,
    /// Whether a pair of terms is one aligned word.
    pairs: bool,
}

impl<const BLOCKS: usize> Factor<BLOCKS> {
    #[inline(always)]
    fn new<F: Fragment>(
        (matrix, along, batch): (&Matrix, bool, u32),
        (first, len): (u32, u32),
        k: u32,
    ) -> Self {
        let bytes = u64::from(4 / F::PER_WORD);
        let ld = matrix.ld * bytes;
        let base = matrix.addr.as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride * bytes) as usize);
        let (side, term) = (first + lane_id() / 4, F::PER_WORD * (lane_id() % 4));
        let (per_side, per_term) = if along { (ld, bytes) } else { (bytes, ld) };
        let at = u64::from(side) * per_side + u64::from(term) * per_term;
        Self {
            p: base.wrapping_add(at as usize),
            block: 8 * per_side,
            term: per_term,
            beside: len.wrapping_sub(side) as i32,
            k: k as i32 - term as i32,
            pairs: along && matrix.unit >= 4,
        }
    }

    /// The words of the next step: `[product][half of its depth][block]`.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and no thread writes it.
    #[inline(always)]
    unsafe fn load<F: Fragment>(&mut self) -> [[[u32; BLOCKS]; 2]; STEPS] {
        let mut words = [[[0; BLOCKS]; 2]; STEPS];
        let mut s = 0;
        while s < 2 * STEPS {
            let mut i = 0;
            while i < BLOCKS {
                let terms = 4 * F::PER_WORD * s as u32;
                let p = self.p.wrapping_add(i * self.block as usize);
                let p = p.wrapping_add((u64::from(terms) * self.term) as usize);
                let left = if self.beside > 8 * i as i32 { self.k - terms as i32 } else { 0 };
                // SAFETY: the row and the terms are inside; the caller's promise.
                words[s / 2][s % 2][i] = unsafe {
                    if F::PER_WORD == 1 || self.pairs {
                        ld_if(left > 0, p.cast())
                    } else {
                        let next = p.wrapping_add(self.term as usize);
                        // Into words at once: what would widen them waits for them first.
                        let low = ld_word_or_half_if(left > 0, true, p);
                        let high = ld_word_or_half_if(left > 1, true, next);
                        low | high << 16
                    }
                };
                i += 1;
            }
            s += 1;
        }
        let terms = 8 * F::PER_WORD * STEPS as u32;
        self.p = self.p.wrapping_add((u64::from(terms) * self.term) as usize);
        self.k -= terms as i32;
        words
    }
}

/// `sums += left right`.
#[inline(always)]
fn products<F: Fragment<Sum = f32>>(
    sums: &mut [[[f32; 4]; COLUMNS]; ROWS],
    left: &[[[u32; 2 * ROWS]; 2]; STEPS],
    right: &[[[u32; COLUMNS]; 2]; STEPS],
) {
    let mut s = 0;
    while s < STEPS {
        let ([low, high], mut r) = (left[s], 0);
        while r < ROWS {
            let rows = [low[2 * r], low[2 * r + 1], high[2 * r], high[2 * r + 1]];
            let mut c = 0;
            while c < COLUMNS {
                sums[r][c] = F::product(rows, [right[s][0][c], right[s][1][c]], sums[r][c]);
                c += 1;
            }
            r += 1;
        }
        s += 1;
    }
}

/// Makes the tile of this warp.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C`
/// overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn direct<F: Fragment<Sum = f32>>(args: &Args, element: Float<false>) {
    launch_dependents();
    let (tiles_m, tiles_n) = (args.m.div_ceil(SIDE), args.n.div_ceil(SIDE));
    let per_matrix = tiles_m * tiles_n;
    let index = block_idx_x() * WARPS + warp_id();
    let batch = index / per_matrix;
    let here = batch < args.batch;
    let [tile_m, tile_n] = tile_at(index - batch * per_matrix, tiles_m, tiles_n);
    let (row0, column0) = (tile_m * SIDE, tile_n * SIDE);
    // A warp without a tile reads and writes nothing.
    let (m, n, batch) = if here { (args.m, args.n, batch) } else { (0, 0, 0) };
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let mut a = Factor::<{ 2 * ROWS }>::new::<F>((&args.a, along.0, batch), (row0, m), args.k);
    let mut b = Factor::<COLUMNS>::new::<F>((&args.b, along.1, batch), (column0, n), args.k);
    dependency_wait();

    let mut sums = [[[0.0f32; 4]; COLUMNS]; ROWS];
    let steps = args.k.div_ceil(8 * F::PER_WORD * STEPS as u32);
    // SAFETY: the caller's promise.
    unsafe {
        let (mut left, mut right) = ([[[0; 2 * ROWS]; 2]; STEPS], [[[0; COLUMNS]; 2]; STEPS]);
        // Step s asks for its fragments and multiplies those of the step before. The start is
        // opaque, because LLVM would copy the first step out of the loop.
        let mut step = opaque(0);
        while step <= steps {
            let next = (a.load::<F>(), b.load::<F>());
            if step > 0 {
                products::<F>(&mut sums, &left, &right);
            }
            (left, right) = next;
            step += 1;
        }
        // By way of shared memory, so that a warp writes neighbours.
        let tile = dynamic_shared_mem::<f32>().add(warp_id() * SIDE * PARKED_ROW);
        let mine = tile.add(lane_id() / 4 * PARKED_ROW + 2 * (lane_id() % 4)).cast::<u64>();
        let mut r = 0;
        while r < 2 * ROWS {
            let mut c = 0;
            while c < COLUMNS {
                let sum = sums[r / 2][c];
                let [low, high] = [0, 1].map(|i| u64::from(sum[2 * (r % 2) + i].to_bits()));
                mine.add((8 * r as u32 * PARKED_ROW + 8 * c as u32) / 2)
                    .write_u64(low | high << 32);
                c += 1;
            }
            r += 1;
        }
        sync_warp();
        let (shape, who) = ((SIDE, SIDE, PARKED_ROW), (lane_id(), LANES));
        write(args, element, batch, (row0, column0), (m, n), tile, shape, who);
    }
}
