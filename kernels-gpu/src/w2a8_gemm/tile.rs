//! What the kernels on tensor cores share: which tile a block makes, where its operands are, and how its
//! sums become `y`.

use contract::w2a8::{CHUNK_GROUP, Divisor};
use contract::w2a8_gemm::{Args, BAND, SUM_PAD, TOKEN_BYTES};

use super::lines::Lines;
use crate::arch::async_copy::copy_x8;
#[cfg(level_sm_90)]
use crate::arch::cluster::{leave_cluster, read_x4_of, sync_cluster};
use crate::arch::mem::{X4, st, st_x4};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, block_idx_y, block_idx_z, thread_idx_x};

/// The two bits of a code in each byte of a word.
pub(super) const CODES: u32 = 0x0303_0303;

/// The part of a product that a block makes: `ROWS` features of `TOKENS` tokens, and one of `split`
/// parts of k.
#[derive(Clone, Copy)]
pub(super) struct Tile<const ROWS: u32, const TOKENS: u32> {
    /// First feature.
    pub(super) row0: u32,
    /// First token.
    pub(super) token0: u32,
    /// Which part of k.
    part: u32,
    split: u32,
    /// First chunk, and chunks.
    pub(super) chunk0: u32,
    pub(super) chunks: u32,
}

impl<const ROWS: u32, const TOKENS: u32> Tile<ROWS, TOKENS> {
    /// Where the grid of `Variant::grid` says; tiles that run at the same time share codes, and
    /// tokens. A block beyond the last token makes nothing.
    #[inline(always)]
    pub(super) fn new(args: &Args, split: u32) -> Self {
        let (x, part) = (block_idx_x() / split, block_idx_x() % split);
        Self::place(args, [block_idx_z() * BAND + x, block_idx_y()], [part, split])
    }

    /// Tiles of the product.
    #[cfg(level_sm_90a)]
    #[inline(always)]
    pub(super) fn count(args: &Args) -> u32 {
        args.m.div_ceil(TOKENS) * args.n.div_ceil(ROWS)
    }

    /// Tile `index` in the same order, the axes of the grid as one, or one of so many parts of it.
    #[cfg(level_sm_90a)]
    #[inline(always)]
    pub(super) fn of(args: &Args, index: u32, part: [u32; 2]) -> Self {
        if args.m <= TOKENS {
            // Without divisions, for which a block would wait before it asks for anything.
            return Self::place(args, [0, index], part);
        }
        let (across, down) = (args.m.div_ceil(TOKENS), args.n.div_ceil(ROWS));
        let (band, rest) = (index / (BAND * down), index % (BAND * down));
        let width = BAND.min(across - band * BAND);
        Self::place(args, [band * BAND + rest % width, rest / width], part)
    }

    #[inline(always)]
    fn place(args: &Args, [x, y]: [u32; 2], [part, split]: [u32; 2]) -> Self {
        let token0 = x * TOKENS;
        // Whole groups, as the activations have them.
        let groups = args.chunks.div_ceil(CHUNK_GROUP as u32);
        let share = if split == 1 { groups } else { groups.div_ceil(split) } * CHUNK_GROUP as u32;
        let chunk0 = (part * share).min(args.chunks);
        let rest = if token0 < args.m { args.chunks - chunk0 } else { 0 };
        Self { row0: y * ROWS, token0, part, split, chunk0, chunks: share.min(rest) }
    }

    /// The codes of this block.
    #[inline(always)]
    pub(super) fn codes<const WIDTH: u32, const THREADS: u32>(
        self,
        args: &Args,
        thread: u32,
    ) -> Lines<ROWS, WIDTH, THREADS> {
        let first = args.w.as_ptr().cast::<X4<u32>>().cast_const();
        let first = first.wrapping_add(self.chunk0 as usize);
        Lines::new(thread, (first, args.chunks), (self.row0, args.n), self.chunks)
    }

    /// The activations of this block.
    #[inline(always)]
    pub(super) fn acts<const WIDTH: u32, const THREADS: u32>(
        self,
        args: &Args,
        thread: u32,
    ) -> Lines<TOKENS, WIDTH, THREADS> {
        let first = args.acts.as_ptr().cast::<X4<u32>>().cast_const();
        let first = first.wrapping_add(4 * self.chunk0 as usize);
        let pieces = 4 * self.chunks.next_multiple_of(CHUNK_GROUP as u32);
        Lines::new(thread, (first, args.act_pieces), (self.token0, args.m), pieces)
    }

    /// Asks for scale and sum of each token.
    ///
    /// # Safety
    ///
    /// The contract's table holds; `to` starts [`contract::w2a8_gemm::head_bytes`] of this block's alone.
    #[inline(always)]
    pub(super) unsafe fn begin<const THREADS: u32>(self, args: &Args, to: Shared<u8>) {
        let mut token = thread_idx_x();
        while token < TOKENS {
            let source = self.token0 + token;
            let p = args.stats.as_ptr().cast_const().wrapping_add(source as usize);
            // SAFETY: stats[source] when it is there; the caller's promise.
            unsafe { copy_x8(to.add(TOKEN_BYTES * token), p, source < args.m) };
            token += THREADS;
        }
    }

    /// Writes the scales of the features, behind the tokens.
    ///
    /// # Safety
    ///
    /// As for [`Tile::begin`].
    #[inline(always)]
    pub(super) unsafe fn scales<const THREADS: u32>(self, args: &Args, to: Shared<u8>) {
        let scales = to.add(TOKEN_BYTES * TOKENS).cast::<f32>();
        let mut row = thread_idx_x() % THREADS;
        while row < ROWS {
            // SAFETY: word `row` of the features' scales.
            unsafe { scales.add(row).write(args.segments.scale_of(self.row0 + row)) };
            row += THREADS;
        }
    }

    /// Adds the sums of `PARTS` parts of k in each block of the cluster, and writes `y`. Sum
    /// `(part, token, row)` of a block stands at word `(part * TOKENS + token) * (ROWS + SUM_PAD) +
    /// row`; four features at a time, the blocks of a cluster in turn.
    ///
    /// *Convergence*: every thread of the block, after a barrier behind the last sum; every thread of
    /// a cluster of several blocks, or what is left of it, after its sums.
    ///
    /// # Safety
    ///
    /// The contract's table holds; `head` is what [`Tile::begin`] and [`Tile::divisors`] wrote; this
    /// cluster alone makes this tile.
    #[inline(always)]
    pub(super) unsafe fn finish<const PARTS: u32, const THREADS: u32>(
        self,
        args: &Args,
        head: Shared<u8>,
        sums: Shared<i32>,
    ) {
        if self.split > 1 {
            sync();
        }
        let y = args.y.as_ptr();
        let wide = args.n.is_multiple_of(4) && (y as usize).is_multiple_of(16);
        let quads = ROWS / 4;
        let scales = head.add(TOKEN_BYTES * TOKENS).cast::<f32>();
        let mut index = self.part * THREADS + thread_idx_x();
        while index < TOKENS * quads {
            let (at, quad) = (index / quads, index % quads);
            let (token, row) = (self.token0 + at, self.row0 + 4 * quad);
            if token < args.m && row < args.n {
                let here = sums.add(at * (ROWS + SUM_PAD) + 4 * quad);
                // SAFETY: this token and these features, written before the barrier.
                let (of_token, weight) = unsafe {
                    let of_token = head.add(TOKEN_BYTES * at).cast::<u32>().read_x4();
                    (of_token, scales.add(4 * quad).read_x4())
                };
                let (divisor, sum) = divisor(of_token);
                let mut total = [-sum; 4];
                let mut part = 0;
                while part < PARTS * self.split {
                    // Two at a time, because others' memory is far away; the last one may be read twice.
                    let last = PARTS * self.split - 1;
                    let mut two = [[0; 4]; 2];
                    let mut i = 0;
                    while i < 2 {
                        let part = (part + i as u32).min(last);
                        let there = here.add(part % PARTS * TOKENS * (ROWS + SUM_PAD));
                        // SAFETY: sums of all threads of that block, shown by the barrier.
                        two[i] = unsafe { read_of(self.split, part / PARTS, there) };
                        i += 1;
                    }
                    let mut i = 0;
                    while i < 4 {
                        total[i] += two[0][i] + if part < last { two[1][i] } else { 0 };
                        i += 1;
                    }
                    part += 2;
                }
                let mut out = divisor.divide4(total);
                let mut i = 0;
                while i < 4 {
                    out[i] *= weight[i];
                    i += 1;
                }
                let p = y.wrapping_add(token as usize * args.n as usize + row as usize);
                if wide {
                    // SAFETY: y[token, row ..][..4] are inside, since 4 divides n, and this thread's.
                    unsafe { st_x4(p.cast(), out) };
                } else {
                    let mut i = 0;
                    while i < 4 {
                        if row + (i as u32) < args.n {
                            // SAFETY: y[token, row + i] is this thread's.
                            unsafe { st(p.wrapping_add(i), out[i]) };
                        }
                        i += 1;
                    }
                }
            }
            index += self.split * THREADS;
        }
        if self.split > 1 {
            // The other blocks may still read from this one.
            leave();
        }
    }

    /// Puts the reciprocal of each token's scale beside it.
    ///
    /// # Safety
    ///
    /// What this thread asked for in [`Tile::begin`] at `head` is there.
    #[inline(always)]
    pub(super) unsafe fn divisors<const THREADS: u32>(self, head: Shared<u8>) {
        let mut token = thread_idx_x();
        while token < TOKENS {
            let at = head.add(TOKEN_BYTES * token).cast::<u32>();
            // SAFETY: the words of this token, this thread's alone.
            unsafe {
                let [_, reciprocal, ordinary] = Divisor::new(f32::from_bits(at.read())).words();
                at.add(2).write(reciprocal);
                at.add(3).write(ordinary);
            }
            token += THREADS;
        }
    }
}

/// What stands at a token: scale, sum, and the rest of its divisor.
#[inline(always)]
fn divisor([scale, sum, reciprocal, ordinary]: [u32; 4]) -> (Divisor, i32) {
    (Divisor::from_words([scale, reciprocal, ordinary]), sum as i32)
}

/// The barrier of a cluster.
#[inline(always)]
fn sync() {
    #[cfg(level_sm_90)]
    sync_cluster();
}

/// Its barrier before a block ends.
#[inline(always)]
fn leave() {
    #[cfg(level_sm_90)]
    leave_cluster();
}

/// Four neighbours in block `rank` of a cluster of `split` blocks.
///
/// # Safety
///
/// As for [`Shared::read_x4`], in that block.
#[inline(always)]
unsafe fn read_of(split: u32, rank: u32, here: Shared<i32>) -> [i32; 4] {
    #[cfg(level_sm_90)]
    if split > 1 {
        // SAFETY: the caller's promise.
        return unsafe { read_x4_of(rank, here) };
    }
    let _ = (split, rank);
    // SAFETY: the caller's promise; there is one block.
    unsafe { here.read_x4() }
}
