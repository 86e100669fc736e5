//! Gathers the terms of the exact kernels into registers, widened: taps from the images, rows of the
//! packed weights.

use contract::conv2d::Args;

use super::value::Value;

/// One row of the tile that a thread gathers: an output pixel.
#[derive(Clone, Copy)]
pub(super) struct Row<T> {
    /// Its image, at the first channel of the group.
    pub(super) image: *const T,
    pub(super) h: i32,
    pub(super) w: i32,
    /// Where the tap of the step stands in the image, at channel 0.
    pub(super) tap: u32,
    /// Whether there is a pixel.
    pub(super) inside: bool,
}

/// The elements of terms `term..term + 4` at each row, `BK` terms after the call before.
///
/// # Safety
///
/// The rows are images of the contract's table.
#[inline(always)]
pub(super) unsafe fn gather<T: Value, const N: usize, const BK: u32>(
    args: &Args,
    rows: &mut [Row<T>; N],
    channel: &mut u32,
    term: u32,
) -> [[f32; 4]; N] {
    let g = &args.geometry;
    let mut out = [[0.0; 4]; N];
    if args.vectors != 0 {
        *channel += BK;
        if *channel >= g.c {
            // Another tap: where it falls is worked out once for all of its channels.
            let (r, s, c) = g.tap(term);
            *channel = c;
            let mut i = 0;
            while i < N {
                let pixel = g.pixel(rows[i].h, rows[i].w, r, s);
                rows[i].tap = pixel.unwrap_or(0);
                rows[i].inside = pixel.is_some() && term < g.terms;
                i += 1;
            }
        }
        let mut i = 0;
        while i < N {
            let at = rows[i].image.wrapping_add((rows[i].tap + *channel) as usize);
            // SAFETY: four channels of one pixel, side by side and aligned (`vectors`).
            out[i] = unsafe { T::load4(args.element, rows[i].inside, at) };
            i += 1;
        }
    } else {
        let mut e = 0;
        while e < 4 {
            let (r, s, c) = g.tap(term + e as u32);
            let mut i = 0;
            while i < N {
                let inside = term + (e as u32) < g.terms;
                let pixel = if inside { g.pixel(rows[i].h, rows[i].w, r, s) } else { None };
                let offset = pixel.unwrap_or(0).wrapping_add(c.wrapping_mul(g.x_step[2]));
                // SAFETY: channel c of a pixel of the image.
                out[i][e] = unsafe {
                    T::load(
                        args.element,
                        pixel.is_some(),
                        rows[i].image.wrapping_add(offset as usize),
                    )
                };
                i += 1;
            }
            e += 1;
        }
    }
    out
}

/// Four columns of packed rows `row`, `row + apart`, ...; +0 past the last column.
///
/// # Safety
///
/// Rows of the packed matrix, which is a multiple of the steps; `w` points to its row 0.
#[inline(always)]
pub(super) unsafe fn weights<T: Value, const N: usize, const BN: u32>(
    args: &Args,
    w: *const T,
    in_matrix: bool,
    row: u32,
    threads: u32,
) -> [[f32; 4]; N] {
    let mut out = [[0.0; 4]; N];
    let mut i = 0;
    while i < N {
        let row = row + i as u32 * (threads / (BN / 4));
        let at = w.wrapping_add(row as usize * args.columns as usize);
        // SAFETY: the caller's promise; columns are padded to a multiple of 8.
        out[i] = unsafe { T::load4(args.element, in_matrix, at) };
        i += 1;
    }
    out
}
