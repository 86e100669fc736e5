//! Many rows on tensor cores: scores and weighted values by `mma.sync` of bf16, from sm_80.
//!
//! A warp holds `16 MT` rows of the block: their scores, exponentials and outputs stay in its registers
//! while tiles of 64 keys and values pass through shared memory. Rows of shared memory are swizzled by 16 bytes: piece
//! `p` of row `r` stands at `p ^ r % 8`. The values of a tile are on their way during its scores, the keys of
//! the next during its weighted values.

use contract::attention::{
    Args, AttentionFastD64, AttentionFastD128, AttentionFastD256, KEY_BLOCK, RowTile, TILE_THREADS,
};
use contract::launch::Kernel;
use contract::num::fma;

use super::tile::Rows;
use crate::arch::async_copy::{commit_group, copy_x16_part, wait_group};
use crate::arch::float::exp2_approx;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::half::pack_bf16;
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::mem::{ld_if, ld_x4_if, st};
use crate::arch::mma::{ldmatrix_x4, ldmatrix_x4_trans, mma_bf16};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{ballot, lane_id, shuffle_xor, warp_id};

/// Keys of a tile.
const KEYS: u32 = KEY_BLOCK as u32;
/// Blocks of 8 keys in a tile.
const KEY_TILES: usize = KEY_BLOCK / 8;

/// Byte at which 16-byte piece `piece` of row `row` stands, of rows of `D` bf16.
#[inline(always)]
fn swizzled<const D: u32>(row: u32, piece: u32) -> u32 {
    row * (2 * D) + (piece ^ (row % 8)) * 16
}

/// Asks for the keys, or values, of positions `first..first + 64` below `limit`; what is not there becomes zero.
///
/// # Safety
///
/// `cache` starts positions of `stride` elements, `limit` of them readable; `to` is a tile that nobody reads.
#[inline(always)]
unsafe fn copy_tile<const D: u32>(
    to: Shared<u8>,
    cache: *const u16,
    (stride, head_dim): (usize, u32),
    (first, limit): (u32, u32),
) {
    let pieces = D / 8;
    let (piece, across) = (thread_idx_x() % pieces, TILE_THREADS / pieces);
    let bytes = 2 * head_dim.saturating_sub(8 * piece).min(8);
    let mut row = thread_idx_x() / pieces;
    while row < KEYS {
        let there = if first + row < limit { bytes } else { 0 };
        let at = if there > 0 { (first + row) as usize * stride + 8 * piece as usize } else { 0 };
        // SAFETY: a piece of the tile; `there` bytes of a position, which starts at a multiple of 16 bytes.
        unsafe {
            copy_x16_part(to.byte_add(swizzled::<D>(row, piece)), cache.wrapping_add(at), there)
        };
        row += across;
    }
}

/// Rounds the queries to bf16 and puts them into shared memory, zeros behind them.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table; `to` holds the tile's rows.
#[inline(always)]
unsafe fn load_queries<const D: u32>(to: Shared<u8>, args: &Args, rows: &Rows, count: u32) {
    let pieces = D / 8;
    let piece = thread_idx_x() % pieces;
    let (first, whole) = (8 * piece, (args.head_dim | args.q_stride) % 4 == 0);
    let mut row = opaque(thread_idx_x() / pieces);
    while row < count {
        let q = rows.query(args, row).wrapping_add(first as usize);
        let mut values = [0.0f32; 8];
        // SAFETY: elements below head_dim of a query.
        unsafe {
            if whole {
                let low: [f32; 4] = ld_x4_if(first < args.head_dim, q.cast());
                let high: [f32; 4] = ld_x4_if(first + 4 < args.head_dim, q.wrapping_add(4).cast());
                let mut i = 0;
                while i < 4 {
                    values[i] = if first < args.head_dim { low[i] } else { 0.0 };
                    values[4 + i] = if first + 4 < args.head_dim { high[i] } else { 0.0 };
                    i += 1;
                }
            } else {
                let mut i = 0;
                while i < 8 {
                    let there = first + (i as u32) < args.head_dim;
                    let value: f32 = ld_if(there, q.wrapping_add(i));
                    values[i] = if there { value } else { 0.0 };
                    i += 1;
                }
            }
        }
        let [a, b, c, d, e, f, g, h] = values;
        let words = [pack_bf16(a, b), pack_bf16(c, d), pack_bf16(e, f), pack_bf16(g, h)];
        // SAFETY: a piece of the tile.
        unsafe { to.byte_add(swizzled::<D>(row, piece)).cast::<u32>().write_x4(words) };
        row += TILE_THREADS / pieces;
    }
}

/// What a warp knows about its rows: row `16 i + 8 h + lane / 4` at `[i][h]`.
struct State<const MT: usize, const NT: usize> {
    top: [[f32; 2]; MT],
    sum: [[f32; 2]; MT],
    out: [[[f32; 4]; NT]; MT],
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the tile's grid; the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn fast<const D: u32, const MT: usize, const NT: usize>(args: &Args, tile: RowTile) {
    const { assert!(NT as u32 * 8 == D && D % 64 == 0) };
    launch_dependents();
    dependency_wait();
    // SAFETY: the caller's promise.
    let rows = unsafe { Rows::of_block(args, tile) };
    let (stride, start) = rows.cache(args);
    let keys = args.k_cache.cast::<u16>().as_ptr().cast_const().wrapping_add(start);
    let values = args.v_cache.cast::<u16>().as_ptr().cast_const().wrapping_add(start);
    let limit = rows.visible(tile.rows - 1);
    let q: Shared<u8> = dynamic_shared_mem();
    let k = q.byte_add(tile.rows * 2 * D);
    let v = k.byte_add(KEYS * 2 * D);
    // SAFETY: positions below `limit` are in the cache; nobody reads the tile yet.
    unsafe { copy_tile::<D>(k, keys, (stride, args.head_dim), (0, limit)) };
    commit_group();
    // SAFETY: the caller's promise.
    unsafe { load_queries::<D>(q, args, &rows, tile.rows) };

    let first_row = warp_id() * 16 * MT as u32;
    let own = first_row + lane_id() / 4;
    let seen: [[u32; 2]; MT] = core::array::from_fn(|i| {
        core::array::from_fn(|h| rows.visible(own + 16 * i as u32 + 8 * h as u32))
    });
    let all_see = rows.visible(first_row);
    // Powers of two: exp(scale s) = 2^(factor s).
    let factor = args.scale * core::f32::consts::LOG2_E;
    let mut state = State::<MT, NT> {
        top: [[f32::NEG_INFINITY; 2]; MT],
        sum: [[0.0; 2]; MT],
        out: [[[0.0; 4]; NT]; MT],
    };
    let mut first = opaque(0);
    while first < limit {
        wait_group::<0>();
        sync_threads();
        // SAFETY: as for the keys; every thread has taken the values of the tile before.
        unsafe { copy_tile::<D>(v, values, (stride, args.head_dim), (first, limit)) };
        commit_group();
        // SAFETY: queries and keys were there before the barrier.
        let mut s = unsafe { scores::<D, MT>(q, k, first_row) };
        // A loop of one turn at most: LLVM would make selects of a condition, for every tile.
        let mut hidden = opaque_here(u32::from(first + KEYS > all_see));
        while hidden > 0 {
            hide(&mut s, &seen, first);
            hidden -= 1;
        }
        let p = state.exponentials(s, factor);
        wait_group::<0>();
        sync_threads();
        if first + KEYS < limit {
            // SAFETY: as above; every thread has taken the keys.
            unsafe { copy_tile::<D>(k, keys, (stride, args.head_dim), (first + KEYS, limit)) };
            commit_group();
        }
        // SAFETY: the values were there before the barrier.
        unsafe { state.take_values::<D>(v, p) };
        first += KEYS;
    }
    // SAFETY: the outputs of its rows belong to this warp.
    unsafe { state.write(args, &rows, own) };
}

/// The scores, not scaled, of a warp's rows from `first_row` on and 64 keys.
///
/// # Safety
///
/// Queries and keys are in shared memory and stay there.
#[inline(always)]
unsafe fn scores<const D: u32, const MT: usize>(
    q: Shared<u8>,
    k: Shared<u8>,
    first_row: u32,
) -> [[[f32; 4]; KEY_TILES]; MT] {
    let lane = lane_id();
    let (in_eight, second, fourth) = (lane % 8, lane / 8 % 2, lane / 16);
    let mut s = [[[0.0; 4]; KEY_TILES]; MT];
    let mut step = opaque_here(0);
    while step < D / 16 {
        let mut a = [[0; 4]; MT];
        let mut i = 0;
        while i < MT {
            let row = first_row + 16 * i as u32 + in_eight + 8 * second;
            // SAFETY: a piece of a query.
            a[i] = unsafe { ldmatrix_x4(q.byte_add(swizzled::<D>(row, 2 * step + fourth))) };
            i += 1;
        }
        let mut j = 0;
        while j < KEY_TILES / 2 {
            let row = 16 * j as u32 + in_eight + 8 * fourth;
            // SAFETY: a piece of a key.
            let b = unsafe { ldmatrix_x4(k.byte_add(swizzled::<D>(row, 2 * step + second))) };
            let mut i = 0;
            while i < MT {
                s[i][2 * j] = mma_bf16(a[i], [b[0], b[1]], s[i][2 * j]);
                s[i][2 * j + 1] = mma_bf16(a[i], [b[2], b[3]], s[i][2 * j + 1]);
                i += 1;
            }
            j += 1;
        }
        step += 1;
    }
    s
}

/// Takes scores of keys that a row does not see out.
#[inline(always)]
fn hide<const MT: usize>(s: &mut [[[f32; 4]; KEY_TILES]; MT], seen: &[[u32; 2]; MT], first: u32) {
    let mut i = 0;
    while i < MT {
        let mut j = 0;
        while j < KEY_TILES {
            let mut e = 0;
            while e < 4 {
                let key = first + 8 * j as u32 + lane_id() % 4 * 2 + e as u32 % 2;
                s[i][j][e] = if key < seen[i][e / 2] { s[i][j][e] } else { f32::NEG_INFINITY };
                e += 1;
            }
            j += 1;
        }
        i += 1;
    }
}

impl<const MT: usize, const NT: usize> State<MT, NT> {
    /// The exponentials of a tile in the form of left factors, 16 keys each. Brings sums and outputs to the new maximum.
    #[inline(always)]
    fn exponentials(
        &mut self,
        mut s: [[[f32; 4]; KEY_TILES]; MT],
        factor: f32,
    ) -> [[[u32; 4]; KEY_TILES / 2]; MT] {
        let mut old = [[1.0; 2]; MT];
        let mut moved = false;
        let mut i = 0;
        while i < MT {
            let mut h = 0;
            while h < 2 {
                let mut top = self.top[i][h];
                let mut j = 0;
                while j < KEY_TILES {
                    top = top.max(s[i][j][2 * h]).max(s[i][j][2 * h + 1]);
                    j += 1;
                }
                top = top.max(shuffle_xor(top, 1));
                top = top.max(shuffle_xor(top, 2));
                old[i][h] = exp2_approx((self.top[i][h] - top) * factor);
                moved |= old[i][h] != 1.0;
                self.top[i][h] = top;
                let shift = top * factor;
                let mut sum = self.sum[i][h] * old[i][h];
                j = 0;
                while j < KEY_TILES {
                    let mut e = 2 * h;
                    while e < 2 * h + 2 {
                        let p = exp2_approx(fma(s[i][j][e], factor, -shift));
                        s[i][j][e] = p;
                        sum += p;
                        e += 1;
                    }
                    j += 1;
                }
                self.sum[i][h] = sum;
                h += 1;
            }
            i += 1;
        }
        // Maxima seldom move after the first tiles. One turn at most, as above.
        let mut turns = opaque_here(u32::from(ballot(moved) != 0));
        while turns > 0 {
            self.scale(&old);
            turns -= 1;
        }
        core::array::from_fn(|i| {
            core::array::from_fn(|j| {
                let (low, high) = (s[i][2 * j], s[i][2 * j + 1]);
                [
                    pack_bf16(low[0], low[1]),
                    pack_bf16(low[2], low[3]),
                    pack_bf16(high[0], high[1]),
                    pack_bf16(high[2], high[3]),
                ]
            })
        })
    }

    /// Takes the outputs times the factors of their rows.
    #[inline(always)]
    fn scale(&mut self, factors: &[[f32; 2]; MT]) {
        let mut i = 0;
        while i < MT {
            let mut j = 0;
            while j < NT {
                let mut e = 0;
                while e < 4 {
                    self.out[i][j][e] *= factors[i][e / 2];
                    e += 1;
                }
                j += 1;
            }
            i += 1;
        }
    }

    /// Adds the weighted values of 64 keys.
    ///
    /// # Safety
    ///
    /// The values are in shared memory and stay there.
    #[inline(always)]
    unsafe fn take_values<const D: u32>(
        &mut self,
        v: Shared<u8>,
        p: [[[u32; 4]; KEY_TILES / 2]; MT],
    ) {
        let lane = lane_id();
        let (row, right) = (lane % 16, lane / 16);
        // Addresses made anew for each tile: there are no registers to keep them in.
        let v = v.byte_add(opaque_here(0));
        let mut step = 0;
        while step < KEY_TILES / 2 {
            let mut j = 0;
            while j < NT / 2 {
                let at = swizzled::<D>(16 * step as u32 + row, 2 * j as u32 + right);
                // SAFETY: a piece of a value.
                let b = unsafe { ldmatrix_x4_trans(v.byte_add(at)) };
                let mut i = 0;
                while i < MT {
                    let out = &mut self.out[i];
                    out[2 * j] = mma_bf16(p[i][step], [b[0], b[1]], out[2 * j]);
                    out[2 * j + 1] = mma_bf16(p[i][step], [b[2], b[3]], out[2 * j + 1]);
                    i += 1;
                }
                j += 1;
            }
            step += 1;
        }
    }

    /// Writes the rows that exist; `own` is this lane's first.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table; the rows belong to this warp.
    #[inline(always)]
    unsafe fn write(&self, args: &Args, rows: &Rows, own: u32) {
        let mut i = 0;
        while i < MT {
            let mut h = 0;
            while h < 2 {
                let mut sum = self.sum[i][h];
                sum += shuffle_xor(sum, 1);
                sum += shuffle_xor(sum, 2);
                let row = own + 16 * i as u32 + 8 * h as u32;
                let (out, part) = (rows.out(args, row), 1.0 / sum);
                let mut j = 0;
                while j < NT {
                    let mut e = 0;
                    while e < 2 {
                        let d = 8 * j as u32 + lane_id() % 4 * 2 + e as u32;
                        if rows.exists(row) && d < args.head_dim {
                            let value = self.out[i][j][2 * h + e] * part;
                            // SAFETY: an element of the row's head.
                            unsafe { st(out.wrapping_add(d as usize), value) };
                        }
                        e += 1;
                    }
                    j += 1;
                }
                h += 1;
            }
            i += 1;
        }
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $d:literal $mt:literal $nt:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with its tile's grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.rows == 64 * $mt && $kernel::TILE.head_dim == $d) };
            // SAFETY: the caller's promise.
            unsafe { fast::<$d, $mt, $nt>(&args, $kernel::TILE) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    AttentionFastD64 attention_fast_64 64 2 8;
    AttentionFastD128 attention_fast_128 128 2 16;
    AttentionFastD256 attention_fast_256 256 1 32;
}
