//! Copies against naive walks over the tensor.

use super::*;
use crate::tensor::tests::Random;
use crate::tensor::tma::{decode, encode};
use crate::tensor::wgmma::{Wgmma, WgmmaKind, WgmmaLeft};

/// Where the tensors of these tests are.
const BASE: u64 = 0x7f00_0000_0000;

/// Reads a tensor, and nothing beside it.
fn from(memory: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), String> + '_ {
    |address, bytes| {
        let at = (address - BASE) as usize;
        bytes.copy_from_slice(memory.get(at..at + bytes.len()).ok_or("past the tensor")?);
        Ok(())
    }
}

fn random(count: usize) -> Vec<u8> {
    let mut random = Random(count as u64);
    (0..count).map(|_| random.next() as u8 | 1).collect()
}

fn map(element: u32, sizes: [u64; 4], boxes: [u32; 4], swizzle: u32) -> Map {
    let bytes = if element == 0 { 1 } else { 2 };
    let row = (sizes[0] * bytes).next_multiple_of(16);
    Map {
        element,
        address: BASE,
        sizes: sizes.to_vec(),
        strides: vec![row, row * sizes[1], row * sizes[1] * sizes[2]],
        boxes: boxes.to_vec(),
        element_strides: vec![1; 4],
        interleave: 0,
        swizzle,
        fill_nan: false,
        im2col: None,
    }
}

/// Bytes of the tensor of a map.
fn bytes_of(map: &Map) -> usize {
    (map.strides[2] * map.sizes[3]) as usize
}

/// Element by element, by the definition of a box.
#[test]
fn boxes_have_zeros_outside_and_steps() {
    for swizzle in 0..4 {
        let side = [32, 16, 32, 64][swizzle as usize];
        let mut map = map(9, [72, 5, 4, 3], [side, 4, 3, 2], swizzle);
        map.element_strides = vec![1, 3, 2, 1];
        let map = decode(&encode(&map).unwrap()).unwrap();
        let memory = random(bytes_of(&map));
        for coords in [[0, 0, 0, 0], [-3, -2, 1, -1], [40, 2, -1, 2], [100, 0, 0, 0]] {
            let mut shared = vec![0xee; 4096];
            let got = load_tiled(&map, &coords, from(&memory), &mut shared, 384).unwrap();
            assert_eq!(got, 2 * side * 2 * 2 * 2);
            let mut line = 0;
            for i3 in 0..2 {
                for i2 in [0, 2] {
                    for i1 in [0, 3] {
                        for i0 in 0..side as i64 {
                            let at = [i0, i1, i2, i3];
                            let at: Vec<i64> = at
                                .iter()
                                .zip(coords)
                                .map(|(index, start)| index + i64::from(start))
                                .collect();
                            let inside =
                                at.iter().zip(&map.sizes).all(|(&i, &n)| i >= 0 && i < n as i64);
                            let expected = if inside {
                                let line: u64 =
                                    (0..3).map(|i| at[i + 1] as u64 * map.strides[i]).sum();
                                memory[line as usize + 2 * at[0] as usize]
                            } else {
                                0
                            };
                            let linear = 384 + line * 2 * side as usize + 2 * i0 as usize;
                            // Lines of 128 bytes; their pieces change places with those of a group.
                            let bits = [0, 1, 3, 7][swizzle as usize];
                            let (in_line, piece) = (linear / 128, linear / 16 % 8);
                            let place = in_line * 128 + (piece ^ in_line & bits) * 16 + linear % 16;
                            assert_eq!(shared[place], expected, "{swizzle} {coords:?} {at:?}");
                        }
                        line += 1;
                    }
                }
            }
            assert!(shared[..384].iter().all(|&byte| byte == 0xee));
            assert!(shared[384 + got as usize..].iter().all(|&byte| byte == 0xee));
        }
    }
}

/// A box of 128-byte rows is what `wgmma` reads with swizzling of 128 bytes, at any row.
#[test]
fn products_read_what_copies_write() {
    let map = map(0, [160, 40, 1, 1], [128, 32, 1, 1], 3);
    let memory = random(bytes_of(&map));
    let mut shared = vec![0; 8192];
    load_tiled(&map, &[32, 5, 0, 0], from(&memory), &mut shared, 1024).unwrap();
    // A is one at term 7 of every row, so that D has B's term 7.
    let mut registers = [[0u32; 32]; 4];
    (0..8).for_each(|group| registers[0][4 * group + 1] = 1 << 24);
    let skipped = 3;
    let op = Wgmma {
        kind: WgmmaKind::S8,
        n: 16,
        a: WgmmaLeft::Registers(&registers),
        b: 1 << 62 | 64 << 32 | (1024 + 128 * skipped + 64) >> 4,
        add: false,
        negated: [false; 2],
        transposed: [false; 2],
    };
    let mut d = vec![[0u32; 32]; 8];
    op.run(&shared, 0, &mut d).unwrap();
    for column in 0..16u64 {
        let expected = memory[((5 + skipped + column) * 160 + 32 + 64 + 7) as usize] as i8;
        let (i, lane) = (column / 8 * 4 + column % 2, column % 8 / 2);
        assert_eq!(d[i as usize][lane as usize] as i32, expected.into(), "{column}");
    }
}

/// A convolution of images of `[height, width]` with windows `[3, 2]`.
#[derive(Clone, Copy)]
struct Shape {
    edges: [i64; 2],
    pad: [i64; 2],
    stride: [i64; 2],
    dilation: [i64; 2],
}

const WINDOW: [i64; 2] = [3, 2];
const IMAGES: i64 = 3;
const CHANNELS: u64 = 40;

impl Shape {
    /// Rows and columns of outputs.
    fn outputs(&self) -> [i64; 2] {
        std::array::from_fn(|i| {
            let window = self.dilation[i] * (WINDOW[i] - 1) + 1;
            (self.edges[i] + 2 * self.pad[i] - window) / self.stride[i] + 1
        })
    }

    fn map(&self, pixels: u32) -> Map {
        let [height, width] = self.edges;
        let outputs = self.outputs();
        let high = |i: usize| {
            let last = -self.pad[i] + self.stride[i] * (outputs[i] - 1);
            (last - (self.edges[i] - 1)) as i32
        };
        let sizes = [CHANNELS, width as u64, height as u64, IMAGES as u64];
        let mut map = map(0, sizes, [1; 4], 3);
        map.boxes.clear();
        map.strides = vec![48, 48 * width as u64, 48 * (width * height) as u64];
        map.element_strides = vec![1, self.stride[1] as u32, self.stride[0] as u32, 1];
        let low = vec![-self.pad[1] as i32, -self.pad[0] as i32];
        map.im2col = Some(Im2col { low, high: vec![high(1), high(0)], channels: 128, pixels });
        decode(&encode(&map).unwrap()).unwrap()
    }

    /// Byte `channel` of a pixel, by the definition of a convolution.
    fn input(&self, memory: &[u8], channel: u64, [row, column]: [i64; 2], image: i64) -> u8 {
        let [height, width] = self.edges;
        let inside = (0..height).contains(&row) && (0..width).contains(&column);
        if !inside || image >= IMAGES || channel >= CHANNELS {
            return 0;
        }
        memory[((image * height + row) * width + column) as usize * 48 + channel as usize]
    }
}

#[test]
fn pixels_are_those_of_a_convolution() {
    let shapes = [
        Shape { edges: [7, 9], pad: [1, 0], stride: [1, 1], dilation: [1, 1] },
        Shape { edges: [8, 6], pad: [2, 1], stride: [2, 2], dilation: [1, 1] },
        Shape { edges: [9, 10], pad: [0, 3], stride: [3, 1], dilation: [2, 4] },
    ];
    for shape in shapes {
        let map = shape.map(50);
        let memory = random(bytes_of(&map));
        let [rows, columns] = shape.outputs();
        // The last walks end past the last image.
        for first in [0, 1, columns - 1, rows * columns + 2, IMAGES * rows * columns - 7] {
            let output = |at: i64| [at / columns / rows, at / columns % rows, at % columns];
            let [n, i, j] = output(first);
            let [h, w] = [shape.stride[0] * i - shape.pad[0], shape.stride[1] * j - shape.pad[1]];
            for (r, s) in (0..WINDOW[0]).flat_map(|r| (0..WINDOW[1]).map(move |s| (r, s))) {
                let mut shared = vec![0xee; 8192];
                let coords = [16, w as i32, h as i32, n as i32];
                let offsets = [shape.dilation[1] * s, shape.dilation[0] * r].map(|at| at as u16);
                let got = load_im2col(&map, &coords, &offsets, from(&memory), &mut shared, 1024);
                assert_eq!(got, Ok(50 * 128));
                for pixel in 0..50 {
                    let [n, i, j] = output(first + pixel as i64);
                    let at = [
                        shape.stride[0] * i - shape.pad[0] + shape.dilation[0] * r,
                        shape.stride[1] * j - shape.pad[1] + shape.dilation[1] * s,
                    ];
                    for channel in 0..128 {
                        let place = 16 * ((channel / 16) ^ (pixel % 8)) + channel % 16;
                        let expected = shape.input(&memory, 16 + channel as u64, at, n);
                        assert_eq!(shared[1024 + pixel * 128 + place], expected, "{pixel} {at:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn wrong_copies_are_errors() {
    let map = map(0, [160, 40, 1, 1], [128, 32, 1, 1], 3);
    let memory = random(bytes_of(&map));
    let mut shared = vec![0; 8192];
    let mut load =
        |map: &Map, coords: &[i32], to| load_tiled(map, coords, from(&memory), &mut shared, to);
    assert_eq!(load(&map, &[0; 4], 4096), Ok(4096));
    assert!(load(&map, &[0; 4], 64).unwrap_err().contains("0x40"));
    assert!(load(&map, &[0; 4], 4224).is_err());
    assert!(load(&map, &[0; 3], 0).is_err());
    let short = Map { boxes: vec![64, 32, 1, 1], ..map.clone() };
    assert!(load(&short, &[0; 4], 0).unwrap_err().contains("shorter"));
    let past = Map { sizes: vec![160, 41, 1, 1], ..map.clone() };
    assert_eq!(load(&past, &[0, 40, 0, 0], 0), Err("past the tensor".into()));
    assert!(load_im2col(&map, &[0; 4], &[0; 2], from(&memory), &mut shared, 0).is_err());
}
