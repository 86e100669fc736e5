//! Products of warpgroups against naive ones, in every layout.

use super::*;
use crate::tensor::tests::Random;

/// Where a test puts a matrix: the address of its atoms, how far they are apart, the mode.
#[derive(Clone, Copy)]
struct Layout {
    start: usize,
    leading: usize,
    stride: usize,
    span: usize,
}

impl Layout {
    fn descriptor(&self) -> u64 {
        let mode = match self.span {
            128 => 1u64,
            64 => 2,
            32 => 3,
            _ => 0,
        };
        let field = |bytes: usize| bytes as u64 >> 4;
        field(self.start) | field(self.leading) << 16 | field(self.stride) << 32 | mode << 62
    }

    /// Byte `byte` of row `row` of an atom that starts at a multiple of 1,024.
    fn in_atom(&self, row: usize, byte: usize) -> usize {
        let pieces = self.span / 16;
        let line = row * self.span / 128;
        row * self.span + 16 * ((byte / 16) ^ (line % pieces)) + byte % 16
    }

    /// The byte at `byte` of the terms of a row, k-major.
    fn k_major(&self, row: usize, byte: usize) -> usize {
        if self.span == 16 {
            return self.start
                + row / 8 * self.stride
                + byte / 16 * self.leading
                + row % 8 * 16
                + byte % 16;
        }
        self.start + row / 8 * self.stride + self.in_atom(row % 8, byte)
    }

    /// The 16-bit element of a row at a term, mn-major.
    fn mn_major(&self, row: usize, k: usize) -> usize {
        if self.span == 16 {
            return self.start
                + row / 8 * self.stride
                + k / 8 * self.leading
                + k % 8 * 16
                + row % 8 * 2;
        }
        let rows = self.span / 2;
        let byte = row % rows * 2;
        self.start + row / rows * self.leading + k / 8 * self.stride + self.in_atom(k % 8, byte)
    }

    /// The 16-bit element of a row at a term.
    fn half(&self, transposed: bool, row: usize, k: usize) -> usize {
        if transposed { self.mn_major(row, k) } else { self.k_major(row, 2 * k) }
    }
}

/// A and B of 64 KiB each, with strides that leave gaps.
fn layouts(span: usize, transposed: [bool; 2]) -> [Layout; 2] {
    let one = |start, transposed: bool| match (span, transposed) {
        (16, _) => Layout { start, leading: 48 * 128, stride: 128, span },
        (_, false) => Layout { start, leading: 0, stride: 8 * span + 1024, span },
        (_, true) => Layout { start, leading: 4096, stride: 2048, span },
    };
    [one(1024, transposed[0]), one(1 << 16, transposed[1])]
}

/// Compares halves, both in shared memory, with a naive product.
fn check_halves(kind: WgmmaKind, n: usize, span: usize, transposed: [bool; 2], add: bool) {
    let mut random = Random(n as u64 + span as u64);
    let mut shared = vec![0u8; 1 << 18];
    let [at_a, at_b] = layouts(span, transposed);
    let mut fill = |rows: usize, layout: Layout, transposed| -> Vec<[f64; 16]> {
        let element = |row: usize, k: usize| {
            let value = (random.next() % 31) as f32 - 15.0;
            let bits = match kind {
                WgmmaKind::Bf16 => half::bf16::from_f32(value).to_bits(),
                _ => half::f16::from_f32(value).to_bits(),
            };
            let at = layout.half(transposed, row, k);
            assert_eq!(shared[at..at + 2], [0, 0], "two elements at one place");
            shared[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            value.into()
        };
        let mut element = element;
        (0..rows).map(|row| std::array::from_fn(|k| element(row, k))).collect()
    };
    let a = fill(64, at_a, transposed[0]);
    let b = fill(n, at_b, transposed[1]);
    let before = |row: usize, column: usize| (row * 3 + column) as f32;
    let mut d = vec![vec![[0u32; 32]; n / 2]; 4];
    for row in 0..64 {
        for column in 0..n {
            let (i, lane) = accumulator(row, column);
            d[row / 16][i][lane] = before(row, column).to_bits();
        }
    }
    let op = Wgmma {
        kind,
        n,
        a: WgmmaLeft::Shared(at_a.descriptor()),
        b: at_b.descriptor(),
        add,
        negated: [false; 2],
        transposed,
    };
    run(&op, &shared, &mut d).unwrap();
    for row in 0..64 {
        for (column, b) in b.iter().enumerate() {
            let (i, lane) = accumulator(row, column);
            let sum: f64 = (0..16).map(|k| a[row][k] * b[k]).sum();
            let sum = sum as f32 + if add { before(row, column) } else { 0.0 };
            assert_eq!(f32::from_bits(d[row / 16][i][lane]), sum, "{span} {row} {column}");
        }
    }
}

/// Register and lane of an element of `D`, of the warp of its row.
fn accumulator(row: usize, column: usize) -> (usize, usize) {
    let i = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
    (i, row % 8 * 4 + column % 8 / 2)
}

/// All four warps, with `A` in these registers where it is in registers.
fn run_with(
    op: &Wgmma,
    registers: &[[[u32; 32]; 4]; 4],
    shared: &[u8],
    d: &mut [Vec<[u32; 32]>],
) -> Result<(), String> {
    for (warp, d) in d.iter_mut().enumerate() {
        let a = match op.a {
            WgmmaLeft::Registers(_) => WgmmaLeft::Registers(&registers[warp]),
            shared => shared,
        };
        Wgmma { a, ..*op }.run(shared, warp, d)?;
    }
    Ok(())
}

fn run(op: &Wgmma, shared: &[u8], d: &mut [Vec<[u32; 32]>]) -> Result<(), String> {
    run_with(op, &[[[0; 32]; 4]; 4], shared, d)
}

#[test]
fn halves_of_every_layout() {
    for span in [16, 32, 64, 128] {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            check_halves(WgmmaKind::Bf16, 64, span, transposed, true);
            check_halves(WgmmaKind::F16, 128, span, transposed, false);
        }
    }
    check_halves(WgmmaKind::F16, 256, 128, [true, true], true);
    check_halves(WgmmaKind::Bf16, 256, 128, [false, false], true);
}

/// Bytes: `A` from registers or from shared memory, `B` from 32 bytes further in its rows.
fn check_bytes(n: usize, from_registers: bool, add: bool) {
    let mut random = Random(n as u64);
    let mut shared = vec![0u8; 1 << 17];
    let [at_a, at_b] = layouts(128, [false; 2]);
    let mut fill = |rows: usize, layout: Layout| -> Vec<[i8; 32]> {
        let mut element = |row: usize, k: usize| {
            let value = random.next() as i8;
            shared[layout.k_major(row, 32 + k)] = value as u8;
            value
        };
        (0..rows).map(|row| std::array::from_fn(|k| element(row, k))).collect()
    };
    let (a, b) = (fill(64, at_a), fill(n, at_b));
    let mut registers = [[[0u32; 32]; 4]; 4];
    for (row, terms) in a.iter().enumerate() {
        for (k, &term) in terms.iter().enumerate() {
            let (i, lane) = (row % 16 / 8 + k / 16 * 2, row % 8 * 4 + k % 16 / 4);
            registers[row / 16][i][lane] |= u32::from(term as u8) << (8 * (k % 4));
        }
    }
    let further = |layout: Layout| layout.descriptor() + 2;
    let op = Wgmma {
        kind: WgmmaKind::S8,
        n,
        a: if from_registers {
            WgmmaLeft::Registers(&registers[0])
        } else {
            WgmmaLeft::Shared(further(at_a))
        },
        b: further(at_b),
        add,
        negated: [false; 2],
        transposed: [false; 2],
    };
    let c = 0x7fff_ff00u32;
    let mut d = vec![vec![[c; 32]; n / 2]; 4];
    run_with(&op, &registers, &shared, &mut d).unwrap();
    for row in 0..64 {
        for (column, &b) in b.iter().enumerate() {
            let (i, lane) = accumulator(row, column);
            let terms = a[row].iter().zip(b);
            let sum: i32 = terms.map(|(&x, y)| i32::from(x) * i32::from(y)).sum();
            let sum = (sum as u32).wrapping_add(if add { c } else { 0 });
            assert_eq!(d[row / 16][i][lane], sum, "{row} {column}");
        }
    }
}

#[test]
fn bytes_of_every_width() {
    for n in [32, 64, 128, 256] {
        check_bytes(n, true, n != 64);
        check_bytes(n, false, n == 64);
    }
}

/// Rows that start at any multiple of 128 are swizzled by their address, as the lines of a convolution are.
#[test]
fn a_start_between_atoms_is_swizzled_by_address() {
    let mut shared = vec![0u8; 1 << 14];
    for row in 0..11 {
        for k in 0..32 {
            shared[1024 + row * 128 + 16 * ((k / 16) ^ (row % 8)) + k % 16] = row as u8;
        }
    }
    let registers = [[[0x0101_0101u32; 32]; 4]; 4];
    let at_b = Layout { start: 1024 + 3 * 128, leading: 0, stride: 1024, span: 128 };
    let mut op = Wgmma {
        kind: WgmmaKind::S8,
        n: 8,
        a: WgmmaLeft::Registers(&registers[0]),
        b: at_b.descriptor(),
        add: false,
        negated: [false; 2],
        transposed: [false; 2],
    };
    let mut d = vec![vec![[0u32; 32]; 4]; 4];
    run_with(&op, &registers, &shared, &mut d).unwrap();
    assert_eq!((d[0][0][0], d[0][1][0], d[0][1][3]), (96, 128, 320));

    // The same rows at a pattern that starts there, told by the base offset.
    let moved: Vec<u8> = shared[1024..1024 + 1024].to_vec();
    shared[1024 + 3 * 128..][..1024].copy_from_slice(&moved);
    op.b |= 3 << 49;
    run_with(&op, &registers, &shared, &mut d).unwrap();
    assert_eq!((d[0][0][0], d[0][1][0], d[0][1][3]), (0, 32, 7 * 32));
}

#[test]
fn signs_are_applied() {
    let mut shared = vec![0u8; 1 << 12];
    shared.chunks_exact_mut(2).for_each(|x| x.copy_from_slice(&0x3f80u16.to_le_bytes()));
    let mut op = Wgmma {
        kind: WgmmaKind::Bf16,
        n: 8,
        a: WgmmaLeft::Shared(8 << 32),
        b: 8 << 32,
        add: true,
        negated: [true, false],
        transposed: [false; 2],
    };
    let mut d = vec![vec![[1.0f32.to_bits(); 32]; 4]; 4];
    run(&op, &shared, &mut d).unwrap();
    assert_eq!(f32::from_bits(d[3][3][31]), -15.0);
    op.negated = [true, true];
    run(&op, &shared, &mut d).unwrap();
    assert_eq!(f32::from_bits(d[3][3][31]), 1.0);
}

#[test]
fn what_is_not_there_is_an_error() {
    let shared = vec![0u8; 4096];
    let registers = [[[0u32; 32]; 4]; 4];
    let op = Wgmma {
        kind: WgmmaKind::S8,
        n: 32,
        a: WgmmaLeft::Registers(&registers[0]),
        b: 1 << 62 | 64 << 32,
        add: false,
        negated: [false; 2],
        transposed: [false; 2],
    };
    let mut d = vec![vec![[0u32; 32]; 16]; 4];
    assert_eq!(run_with(&op, &registers, &shared, &mut d), Ok(()));
    let past = Wgmma { b: op.b + 1, ..op };
    assert!(run(&past, &shared[..4000], &mut d).unwrap_err().contains("shared memory"));
    assert!(run(&Wgmma { n: 20, ..op }, &shared, &mut d).is_err());
    assert!(run(&Wgmma { n: 64, ..op }, &shared, &mut d).is_err());
    assert!(run(&Wgmma { transposed: [false, true], ..op }, &shared, &mut d).is_err());
}
