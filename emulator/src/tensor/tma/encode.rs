//! Maps as the 128 bytes of a `CUtensorMap`, in a layout of our own.

use super::{Im2col, Map};

/// The first word: no map of NVIDIA's driver starts with it.
const MAGIC: u64 = u64::from_le_bytes(*b"emu tmap");
/// The most dimensions.
const MOST: usize = 5;
/// The most spatial ones.
const MOST_SPATIAL: usize = 3;

/// The map's 128 bytes: a magic word, the numbers, a checksum.
///
/// # Errors
///
/// What the driver refuses, and what is not emulated: elements of other types than [`Map::element`] names,
/// interleaved tensors, NaN outside.
pub(crate) fn encode(map: &Map) -> Result<[u64; 16], String> {
    map.check()?;
    let mut bytes = Vec::with_capacity(128);
    bytes.extend(MAGIC.to_le_bytes());
    let im2col = map.im2col.is_some();
    bytes.extend([map.element as u8, map.swizzle as u8, map.sizes.len() as u8, im2col.into()]);
    bytes.extend(map.address.to_le_bytes());
    let at = |numbers: &[u64], i: usize| numbers.get(i).copied().unwrap_or(1);
    for i in 0..MOST {
        bytes.extend(((at(&map.sizes, i) - 1) as u32).to_le_bytes());
        bytes.extend(&at(&map.strides, i).to_le_bytes()[..5]);
        bytes.push(map.element_strides.get(i).copied().unwrap_or(1) as u8);
    }
    match &map.im2col {
        Some(im2col) => {
            for i in 0..MOST_SPATIAL {
                for corner in [&im2col.low, &im2col.high] {
                    let corner = corner.get(i).copied().unwrap_or(0);
                    bytes.extend((corner as i16).to_le_bytes());
                }
            }
            bytes.extend((im2col.channels as u16).to_le_bytes());
            bytes.extend((im2col.pixels as u16).to_le_bytes());
        }
        None => {
            for side in &map.boxes {
                bytes.extend((*side as u16).to_le_bytes());
            }
        }
    }
    bytes.resize(128, 0);
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words[15] = checksum(&words);
    Ok(words)
}

/// The map of 128 bytes that [`encode`] made.
///
/// # Errors
///
/// They are no such bytes.
pub(crate) fn decode(words: &[u64; 16]) -> Result<Map, String> {
    if words[0] != MAGIC || words[15] != checksum(words) {
        return Err("these 128 bytes are no tensor map".into());
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut rest = &bytes[8..];
    let mut next = |count: usize| {
        let (first, after) = rest.split_at(count);
        rest = after;
        let number = |sum, &byte: &u8| sum << 8 | u64::from(byte);
        first.iter().rev().fold(0, number)
    };
    let (element, swizzle) = (next(1) as u32, next(1) as u32);
    let (rank, im2col) = (next(1) as usize, next(1) != 0);
    let address = next(8);
    let (mut sizes, mut strides, mut element_strides) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..MOST {
        sizes.push(next(4) + 1);
        strides.push(next(5));
        element_strides.push(next(1) as u32);
    }
    sizes.truncate(rank);
    strides.truncate(rank - 1);
    element_strides.truncate(rank);
    let mut boxes = Vec::new();
    let im2col = if im2col {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        for _ in 0..MOST_SPATIAL {
            low.push(i32::from(next(2) as i16));
            high.push(i32::from(next(2) as i16));
        }
        low.truncate(rank - 2);
        high.truncate(rank - 2);
        Some(Im2col { low, high, channels: next(2) as u32, pixels: next(2) as u32 })
    } else {
        boxes.extend((0..rank).map(|_| next(2) as u32));
        None
    };
    Ok(Map {
        element,
        address,
        sizes,
        strides,
        boxes,
        element_strides,
        interleave: 0,
        swizzle,
        fill_nan: false,
        im2col,
    })
}

/// Of all words but the last (FNV-1a).
fn checksum(words: &[u64; 16]) -> u64 {
    let bytes = words[..15].iter().flat_map(|word| word.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiles() -> Map {
        Map {
            element: 8,
            address: 0x7fff_ffff_ffff_fff0,
            sizes: vec![1 << 32, 2, 3, 4, 5],
            strides: vec![(1 << 40) - 16, 16, 32, 48],
            boxes: vec![2, 256, 1, 4, 5],
            element_strides: vec![1, 8, 3, 4, 5],
            interleave: 0,
            swizzle: 1,
            fill_nan: false,
            im2col: None,
        }
    }

    fn pixels() -> Map {
        let low = vec![-16, 15, -1];
        let im2col = Im2col { low, high: vec![1, 14, -16], channels: 64, pixels: 1024 };
        Map {
            element: 9,
            sizes: vec![64, 20, 20, 20, 7],
            boxes: vec![],
            swizzle: 3,
            im2col: Some(im2col),
            ..tiles()
        }
    }

    #[test]
    fn maps_come_back() {
        let four = Map {
            sizes: vec![64, 20, 20, 7],
            strides: vec![128, 2560, 51200],
            element_strides: vec![1, 2, 2, 1],
            im2col: Some(Im2col {
                low: vec![-128, -3],
                high: vec![127, 2],
                channels: 32,
                pixels: 1,
            }),
            ..pixels()
        };
        for map in [tiles(), pixels(), four] {
            assert_eq!(decode(&encode(&map).unwrap()), Ok(map));
        }
    }

    #[test]
    fn other_bytes_are_no_map() {
        let words = encode(&pixels()).unwrap();
        for i in 0..16 {
            let mut other = words;
            other[i] ^= 1 << (3 * i);
            assert!(decode(&other).is_err(), "word {i}");
        }
        assert!(decode(&[0; 16]).is_err());
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        type Change = fn(&mut Map);
        let changes: [Change; 12] = [
            |map| map.address += 8,
            |map| map.strides[1] = 24,
            |map| map.strides[0] = 1 << 40,
            |map| map.sizes[2] = 0,
            |map| map.boxes[1] = 257,
            |map| map.boxes[1] = 0,
            |map| map.boxes[0] = 1,
            |map| map.boxes[0] = 6,
            |map| map.element_strides[3] = 9,
            |map| map.element = 13,
            |map| map.interleave = 1,
            |map| map.fill_nan = true,
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let mut map = tiles();
            change(&mut map);
            assert!(encode(&map).is_err(), "change {i}");
        }
        let changes: [fn(&mut Im2col); 7] = [
            |pixels| pixels.low[0] = -17,
            |pixels| pixels.high[0] = 16,
            |pixels| pixels.pixels = 1025,
            |pixels| pixels.pixels = 0,
            |pixels| pixels.channels = 72,
            |pixels| pixels.channels = 4,
            |pixels| (pixels.low[1], pixels.high[1]) = (5, -15),
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let mut map = pixels();
            change(map.im2col.as_mut().unwrap());
            assert!(encode(&map).is_err(), "change {i} of pixels");
        }
    }
}
