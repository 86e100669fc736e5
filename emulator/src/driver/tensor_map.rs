//! Tensor maps, which the copy engine finds boxes of a tensor by.

use crate::tensor::tma::{Im2col, Map, encode};

use super::code::Code;
use super::{In, Out, complain, entries};

/// `CUtensorMap`, at an address that is a multiple of 64.
type Words = [u64; 16];

/// A refusal, with its reason.
fn refused(why: &str) -> Code {
    complain(&format!("a tensor map is refused: {why}"));
    Code::INVALID_VALUE
}

/// A tensor as both functions describe it. `boxes` and `im2col` are still missing.
fn tensor(
    [element, rank]: [u32; 2],
    address: u64,
    sizes: &In<u64>,
    strides: &In<u64>,
    element_strides: &In<u32>,
    [interleave, swizzle, promotion, fill]: [u32; 4],
) -> Result<Map, Code> {
    if !(1..=5).contains(&rank) || promotion > 3 || fill > 1 {
        return Err(refused("a rank, a promotion or a fill that there is not"));
    }
    let rank = rank as usize;
    Ok(Map {
        element,
        address,
        sizes: sizes.list(rank)?.to_vec(),
        strides: strides.list(rank - 1)?.to_vec(),
        boxes: Vec::new(),
        element_strides: element_strides.list(rank)?.to_vec(),
        interleave,
        swizzle,
        fill_nan: fill == 1,
        im2col: None,
    })
}

/// Writes a map that is complete, if it can be.
fn put(to: *mut Words, map: &Map) -> Result<(), Code> {
    if !to.addr().is_multiple_of(64) {
        return Err(refused("its own address is no multiple of 64"));
    }
    Out(to).put(encode(map).map_err(|why| refused(&why))?)
}

entries! {
    /// A map of boxes.
    fn cuTensorMapEncodeTiled(
        to: *mut Words,
        element: u32,
        rank: u32,
        address: u64,
        sizes: In<u64>,
        strides: In<u64>,
        boxes: In<u32>,
        element_strides: In<u32>,
        interleave: u32,
        swizzle: u32,
        promotion: u32,
        fill: u32,
    ) {
        let how = [interleave, swizzle, promotion, fill];
        let mut map = tensor([element, rank], address, &sizes, &strides, &element_strides, how)?;
        map.boxes = boxes.list(rank as usize)?.to_vec();
        put(to, &map)
    }

    /// A map of the pixels that a filter reads.
    fn cuTensorMapEncodeIm2col(
        to: *mut Words,
        element: u32,
        rank: u32,
        address: u64,
        sizes: In<u64>,
        strides: In<u64>,
        low: In<i32>,
        high: In<i32>,
        channels: u32,
        pixels: u32,
        element_strides: In<u32>,
        interleave: u32,
        swizzle: u32,
        promotion: u32,
        fill: u32,
    ) {
        let how = [interleave, swizzle, promotion, fill];
        let mut map = tensor([element, rank], address, &sizes, &strides, &element_strides, how)?;
        let corners = map.sizes.len().checked_sub(2).ok_or_else(|| refused("its rank"))?;
        let (low, high) = (low.list(corners)?.to_vec(), high.list(corners)?.to_vec());
        map.im2col = Some(Im2col { low, high, channels, pixels });
        put(to, &map)
    }
}
