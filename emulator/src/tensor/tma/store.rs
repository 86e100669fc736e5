//! Copies from shared memory to a tensor, as [`super::load`] has them in the other direction; what is outside of the
//! tensor is not written.

use super::Map;
use crate::tensor::swizzled;

/// Copies `shared[from..]` to the box at `coords` by the map in tiled mode, and returns how many bytes were read.
///
/// `write` writes bytes from a device address on.
///
/// # Errors
///
/// A map of another mode or with steps, another count of coordinates, a source that is no multiple of 128 or too small,
/// rows shorter than the swizzle, or an error of `write`.
pub(crate) fn store_tiled(
    map: &Map,
    coords: &[i32],
    mut write: impl FnMut(u64, &[u8]) -> Result<(), String>,
    shared: &[u8],
    from: u32,
) -> Result<u32, String> {
    let stepped = map.element_strides.iter().skip(1).any(|&step| step != 1);
    if map.im2col.is_some() || stepped || coords.len() != map.sizes.len() {
        return Err(format!("a tiled store at {coords:?} by a map of another mode or rank"));
    }
    let (row_bytes, element) = (map.row_bytes()?, u64::from(map.element_bytes()?));
    if map.span().is_some_and(|span| row_bytes != span) {
        return Err(format!("a store of rows of {row_bytes} bytes, shorter than the swizzle"));
    }
    let rows: u32 = map.boxes[1..].iter().product();
    let end = u64::from(from) + u64::from(row_bytes) * u64::from(rows);
    if !from.is_multiple_of(128) || end > shared.len() as u64 {
        return Err(format!("a store of {from:#x}..{end:#x} of {} bytes", shared.len()));
    }
    let is_in = |at: i64, size: u64| u64::try_from(at).is_ok_and(|at| at < size);
    let mut line = vec![0; row_bytes as usize];
    for row in 0..rows {
        let (mut rest, mut address, mut inside) = (row, map.address, true);
        for (i, &side) in map.boxes.iter().enumerate().skip(1) {
            let at = i64::from(coords[i]) + i64::from(rest % side);
            rest /= side;
            inside &= is_in(at, map.sizes[i]);
            address = address.wrapping_add((at as u64).wrapping_mul(map.strides[i - 1]));
        }
        let start = from + row * row_bytes;
        for (at, piece) in (start..).step_by(16).zip(line.chunks_exact_mut(16)) {
            let at = map.span().map_or(at, |span| swizzled(at, span, 0)) as usize;
            piece.copy_from_slice(&shared[at..at + 16]);
        }
        let begin = i64::from(coords[0]);
        let end = begin + (u64::from(row_bytes) / element) as i64;
        let (first, last) = (begin.max(0), end.min(map.sizes[0] as i64));
        if inside && first < last {
            let place = |at: i64| (at - begin) as usize * element as usize;
            write(address + first as u64 * element, &line[place(first)..place(last)])?;
        }
    }
    Ok(row_bytes * rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::tma::load_tiled;

    /// What is stored is what a copy of the same box brings; nothing outside of the tensor.
    #[test]
    fn a_box_comes_back() {
        const BASE: u64 = 0x7f00_0000_0000;
        let row = 80 * 2;
        let map = Map {
            element: 9,
            address: BASE,
            sizes: vec![72, 5, 4, 1],
            strides: vec![row, row * 5, row * 20],
            boxes: vec![64, 3, 2, 1],
            element_strides: vec![1; 4],
            interleave: 0,
            swizzle: 3,
            fill_nan: false,
            im2col: None,
        };
        let shared: Vec<u8> = (0..2048).map(|i| (i * 7 % 251 + 1) as u8).collect();
        for coords in [[0, 0, 0, 0], [8, 2, 2, 0], [16, 3, -1, 0], [-8, -1, 3, 0], [80, 0, 0, 0]] {
            let mut memory = vec![0; (row * 20) as usize];
            let write = |address: u64, from: &[u8]| {
                let at = (address - BASE) as usize;
                memory.get_mut(at..at + from.len()).ok_or("past the tensor")?.copy_from_slice(from);
                Ok(())
            };
            assert_eq!(store_tiled(&map, &coords, write, &shared, 1024), Ok(768));
            let read = |address: u64, to: &mut [u8]| {
                let at = (address - BASE) as usize;
                to.copy_from_slice(memory.get(at..at + to.len()).ok_or("past the tensor")?);
                Ok(())
            };
            let mut back = vec![0; 2048];
            load_tiled(&map, &coords, read, &mut back, 1024).unwrap();
            let mut inside = 0;
            for (at, (&found, &stored)) in back.iter().zip(&shared).enumerate().skip(1024) {
                assert!(found == 0 || found == stored, "{at}");
                inside += usize::from(found != 0);
            }
            let written = memory.iter().filter(|byte| **byte != 0).count();
            assert_eq!(inside, written, "{coords:?}");
        }
    }
}
