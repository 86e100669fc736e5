//! Copies from a tensor to shared memory.
//!
//! What is outside of the tensor is zeros. A row is what comes of the first dimension; rows follow each other at the
//! destination, and where a map swizzles, a row has as many bytes as the map's swizzle. Pieces of 16
//! bytes are swizzled by their address.

use super::{Im2col, Map};
use crate::tensor::swizzled;

/// Copies the box at `coords` to `shared[to..]` (`shared[0]` is address 0 of the shared window) by the map in tiled
/// mode ("Tiled Mode"), and returns how many bytes that were, for the barrier's `complete_tx`.
///
/// `read` fills bytes from a device address on. Of dimension `i` there come every `element_strides[i]`-th
/// elements of the box, from its first on.
///
/// # Errors
///
/// A map of another mode, another count of coordinates, a destination that is no multiple of 128 or too small, rows
/// shorter than the swizzle, or an error of `read`.
pub(crate) fn load_tiled(
    map: &Map,
    coords: &[i32],
    read: impl FnMut(u64, &mut [u8]) -> Result<(), String>,
    shared: &mut [u8],
    to: u32,
) -> Result<u32, String> {
    if map.im2col.is_some() || coords.len() != map.sizes.len() {
        return Err(format!("a tiled copy at {coords:?} by a map of another mode or rank"));
    }
    let sides = map.boxes.iter().zip(&map.element_strides).skip(1);
    let counts: Vec<u32> = sides.map(|(&side, &step)| side.div_ceil(step)).collect();
    let mut rows = Rows::new(map, read, shared, to, counts.iter().product())?;
    let mut index = vec![0u32; counts.len()];
    for row in 0..rows.count {
        let outer = index.iter().zip(&map.element_strides[1..]).zip(&coords[1..]);
        let outer: Vec<i64> = outer
            .map(|((&index, &step), &start)| i64::from(start) + i64::from(index * step))
            .collect();
        rows.copy(row, coords[0], &outer)?;
        for (index, &count) in index.iter_mut().zip(&counts) {
            *index += 1;
            if *index < count {
                break;
            }
            *index = 0;
        }
    }
    Ok(rows.bytes())
}

/// Copies pixels to `shared[to..]` by the map in im2col mode ("Im2col mode"); else as [`load_tiled`].
///
/// `coords` are (channel, spatial dimensions, image) of the first pixel of the walk, in the tensor; `offsets` are
/// those of a filter's tap in the spatial dimensions. The walk steps by `element_strides` through the bounding box,
/// from `low` to `size - 1 + high`, both inclusive: past the end of one dimension it goes on at `low` in it and a step
/// on in the next; past the last, in the next image. Of each pixel of the walk it brings `channels` channels of the
/// pixel `offsets` further, which may be outside of the box.
///
/// So for outputs `y[n, i, j]` of a convolution with stride `s` and padding `p`, `low = -p` and a box that ends at
/// `-p + s (count - 1)`, the walk from `(0, s j - p, s i - p, n)` is at the outputs from `(n, i, j)` on in their
/// order, and `offsets` are dilation times tap: the left factor of the product with that tap's weights.
///
/// # Errors
///
/// As for [`load_tiled`].
pub(crate) fn load_im2col(
    map: &Map,
    coords: &[i32],
    offsets: &[u16],
    read: impl FnMut(u64, &mut [u8]) -> Result<(), String>,
    shared: &mut [u8],
    to: u32,
) -> Result<u32, String> {
    let rank = map.sizes.len();
    let im2col = map.im2col.as_ref().filter(|_| coords.len() == rank && offsets.len() + 2 == rank);
    let Some(Im2col { low, high, pixels, .. }) = im2col else {
        return Err(format!("an im2col copy at {coords:?} by a map of another mode or rank"));
    };
    let mut rows = Rows::new(map, read, shared, to, *pixels)?;
    let mut walk: Vec<i64> = coords[1..].iter().map(|&at| at.into()).collect();
    for row in 0..rows.count {
        let mut outer = walk.clone();
        outer.iter_mut().zip(offsets).for_each(|(at, &further)| *at += i64::from(further));
        rows.copy(row, coords[0], &outer)?;
        let mut axis = 0;
        while axis < low.len() {
            walk[axis] += i64::from(map.element_strides[axis + 1]);
            if walk[axis] < map.sizes[axis + 1] as i64 + i64::from(high[axis]) {
                break;
            }
            walk[axis] = low[axis].into();
            axis += 1;
        }
        if axis == low.len() {
            walk[axis] += i64::from(map.element_strides[axis + 1]);
        }
    }
    Ok(rows.bytes())
}

/// A copy, by rows.
struct Rows<'a, R> {
    map: &'a Map,
    read: R,
    shared: &'a mut [u8],
    to: u32,
    count: u32,
    row: Vec<u8>,
    element: u64,
}

impl<'a, R: FnMut(u64, &mut [u8]) -> Result<(), String>> Rows<'a, R> {
    fn new(
        map: &'a Map,
        read: R,
        shared: &'a mut [u8],
        to: u32,
        count: u32,
    ) -> Result<Self, String> {
        let bytes = map.row_bytes()?;
        if map.span().is_some_and(|span| bytes != span) {
            return Err(format!(
                "a tensor copy of rows of {bytes} bytes, shorter than the swizzle"
            ));
        }
        let end = u64::from(to) + u64::from(bytes) * u64::from(count);
        if !to.is_multiple_of(128) || end > shared.len() as u64 {
            let room = shared.len();
            return Err(format!("a tensor copy to {to:#x}..{end:#x} of {room} bytes"));
        }
        let row = vec![0; bytes as usize];
        Ok(Self { map, read, shared, to, count, row, element: map.element_bytes()?.into() })
    }

    fn bytes(&self) -> u32 {
        self.row.len() as u32 * self.count
    }

    /// Row `row` of the destination, from elements `inner` on of the first dimension; `outer`: where in the others.
    fn copy(&mut self, row: u32, inner: i32, outer: &[i64]) -> Result<(), String> {
        self.row.fill(0);
        let map = self.map;
        let is_in = |at: i64, size: u64| u64::try_from(at).is_ok_and(|at| at < size);
        if outer.iter().zip(&map.sizes[1..]).all(|(&at, &size)| is_in(at, size)) {
            let begin = i64::from(inner);
            let end = begin + (self.row.len() as u64 / self.element) as i64;
            let (first, last) = (begin.max(0), end.min(map.sizes[0] as i64));
            if first < last {
                let strides = outer.iter().zip(&map.strides);
                let line: u64 = strides.map(|(&at, &stride)| at as u64 * stride).sum();
                let from = map.address + line + first as u64 * self.element;
                let place = |at: i64| (at - begin) as usize * self.element as usize;
                (self.read)(from, &mut self.row[place(first)..place(last)])?;
            }
        }
        let start = self.to + row * self.row.len() as u32;
        for (at, piece) in (start..).step_by(16).zip(self.row.chunks_exact(16)) {
            let at = map.span().map_or(at, |span| swizzled(at, span, 0)) as usize;
            self.shared[at..at + 16].copy_from_slice(piece);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
