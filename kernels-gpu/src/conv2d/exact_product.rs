//! The products of a step of the exact kernels.

use contract::num::fma;

use crate::arch::shared::Shared;

/// Takes the terms of one stage, in order.
///
/// # Safety
///
/// `a` points to this thread's first pixel of term 0, `b` to its first channel; both stages hold
/// `BK` terms and nobody writes them.
#[inline(always)]
pub(super) unsafe fn multiply<
    const BM: u32,
    const BN: u32,
    const BK: u32,
    const TM: usize,
    const TN: usize,
>(
    acc: &mut [[f32; TN]; TM],
    a: Shared<f32>,
    b: Shared<f32>,
) {
    let mut k = 0;
    while k < BK {
        let (mut x, mut w) = ([[0.0; 4]; 2], [[0.0; 4]; 2]);
        let mut q = 0;
        while q < TM / 4 {
            // SAFETY: pixels of this thread in part q of the tile.
            x[q] = unsafe { a.add(k * (BM + 4) + q as u32 * (BM * 4 / TM as u32)).read_x4() };
            q += 1;
        }
        let mut q = 0;
        while q < TN / 4 {
            // SAFETY: channels of this thread in part q of the tile.
            w[q] = unsafe { b.add(k * BN + q as u32 * (BN * 4 / TN as u32)).read_x4() };
            q += 1;
        }
        let mut i = 0;
        while i < TM {
            let mut j = 0;
            while j < TN {
                acc[i][j] = fma(x[i / 4][i % 4], w[j / 4][j % 4], acc[i][j]);
                j += 1;
            }
            i += 1;
        }
        k += 1;
    }
}
