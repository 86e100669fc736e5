//! What a warp makes of a tile: scores, exponentials, weighted values.

use contract::attention::Args;
use contract::num::fma;

use super::super::tile::Rows;
use super::{KEY_TILES, swizzled};
use crate::arch::float::exp2_approx;
use crate::arch::half::pack_bf16;
use crate::arch::hint::opaque_here;
use crate::arch::mem::st;
use crate::arch::mma::{ldmatrix_x4, ldmatrix_x4_trans, mma_bf16};
use crate::arch::shared::Shared;
use crate::arch::warp::{ballot, lane_id, shuffle_xor};

/// What a warp knows about its rows: row `16 i + 8 h + lane / 4` at `[i][h]`.
pub(super) struct State<const MT: usize, const NT: usize> {
    pub(super) top: [[f32; 2]; MT],
    pub(super) sum: [[f32; 2]; MT],
    pub(super) out: [[[f32; 4]; NT]; MT],
}

/// The scores, not scaled, of a warp's rows from `first_row` on and 64 keys.
///
/// # Safety
///
/// Queries and keys are in shared memory and stay there.
#[inline(always)]
pub(super) unsafe fn scores<const D: u32, const MT: usize>(
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

/// Takes scores of keys that a row does not see out; `own` is this lane's first row.
#[inline(always)]
pub(super) fn hide<const MT: usize>(
    s: &mut [[[f32; 4]; KEY_TILES]; MT],
    rows: &Rows,
    own: u32,
    first: u32,
) {
    let seen: [[u32; 2]; MT] = core::array::from_fn(|i| {
        core::array::from_fn(|h| rows.visible(own + 16 * i as u32 + 8 * h as u32))
    });
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
    pub(super) fn exponentials(
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
    pub(super) fn scale(&mut self, factors: &[[f32; 2]; MT]) {
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
    pub(super) unsafe fn take_values<const D: u32>(
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
    pub(super) unsafe fn write(&self, args: &Args, rows: &Rows, own: u32) {
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
