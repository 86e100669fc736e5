//! Products of a warp: `mma.sync` ("Matrix multiply-accumulate operation using mma
//! instruction").

use super::fragment::{self, Piece, Right, left, of_lanes};
use super::product::{Sum, multiply};

/// The types of a product, `D = A B + C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MmaKind {
    /// `m16n8k16.row.col.f32.bf16.bf16.f32`.
    Bf16,
    /// `m16n8k16.row.col.f32.f16.f16.f32`.
    F16,
    /// `m16n8k8.row.col.f32.tf32.tf32.f32`.
    Tf32,
    /// `m16n8k32.row.col.s32.s8.s8.s32`.
    S8,
    /// `m16n8k32.row.col.s32.u8.s8.s32`.
    U8S8,
}

/// The registers of `D`. `x[i][lane]` is register `i` of a lane: four of `A`, two of `B`, four of `C`, in the
/// layouts of "Matrix Fragments for mma.m16n8k16" and its neighbours.
///
/// Sums of floats are exact until they are rounded to f32; NaN is `0x7fffffff`. Sums of integers wrap.
///
/// # Panics
///
/// Where there are fewer registers.
pub(crate) fn mma(
    kind: MmaKind,
    a: &[[u32; 32]],
    b: &[[u32; 32]],
    c: &[[u32; 32]],
) -> [[u32; 32]; 4] {
    let a = a.first_chunk().expect("A has four registers");
    let b = b.first_chunk().expect("B has two registers");
    let c = c.first_chunk().expect("C has four registers");
    match kind {
        MmaKind::Bf16 => run(a, b, c, fragment::bf16, fragment::bf16),
        MmaKind::F16 => run(a, b, c, fragment::f16, fragment::f16),
        MmaKind::Tf32 => run(a, b, c, fragment::tf32, fragment::tf32),
        MmaKind::S8 => run(a, b, c, fragment::s8, fragment::s8),
        MmaKind::U8S8 => run(a, b, c, fragment::u8, fragment::s8),
    }
}

/// Of elements of which 16 bytes hold `E`.
#[inline(always)]
fn run<T: Sum, const E: usize>(
    a: &[[u32; 32]; 4],
    b: &[[u32; 32]; 2],
    c: &[[u32; 32]; 4],
    decode_a: impl Fn(Piece) -> [T; E],
    decode_b: impl Fn(Piece) -> [T; E],
) -> [[u32; 32]; 4] {
    let left = left(a, decode_a);
    let mut right: Right<T, E> = [[[T::default(); 8]; E]; 2];
    for (half, register) in right.iter_mut().zip(b) {
        for column in 0..8 {
            for (term, value) in half.iter_mut().zip(decode_b(of_lanes(register, column))) {
                term[column] = value;
            }
        }
    }
    let mut d = *c;
    multiply(&left, &right, &mut d, true);
    d
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::tests::Random;

    /// Element of `A` (row, k) and `B` (k, column) as the tables of the ISA have them: register, lane, part.
    fn place_a(bits: usize, row: usize, k: usize) -> (usize, usize, usize) {
        let in_word = 32 / bits;
        let (word, part) = (k / in_word, k % in_word);
        (row / 8 + 2 * (word / 4), 4 * (row % 8) + word % 4, part)
    }

    fn place_b(bits: usize, k: usize, column: usize) -> (usize, usize, usize) {
        let in_word = 32 / bits;
        let (word, part) = (k / in_word, k % in_word);
        (word / 4, 4 * column + word % 4, part)
    }

    fn element(registers: &[[u32; 32]], bits: usize, at: (usize, usize, usize)) -> u32 {
        let word = u64::from(registers[at.0][at.1]);
        (word >> (bits * at.2) & ((1 << bits) - 1)) as u32
    }

    fn registers<const N: usize>(next: &mut impl FnMut() -> u32) -> [[u32; 32]; N] {
        std::array::from_fn(|_| std::array::from_fn(|_| next()))
    }

    /// Compares with sums over the elements, found one by one.
    fn check(
        kind: MmaKind,
        (bits, k): (usize, usize),
        mut next: impl FnMut() -> u32,
        sum: impl Fn(u32, &[(u32, u32)]) -> u32,
    ) {
        let (a, b, c) =
            (registers::<4>(&mut next), registers::<2>(&mut next), registers::<4>(&mut next));
        let d = mma(kind, &a, &b, &c);
        for row in 0..16 {
            for column in 0..8 {
                let (i, lane) = (row / 8 * 2 + column % 2, row % 8 * 4 + column / 2);
                let terms: Vec<_> = (0..k)
                    .map(|k| {
                        let a = element(&a, bits, place_a(bits, row, k));
                        (a, element(&b, bits, place_b(bits, k, column)))
                    })
                    .collect();
                assert_eq!(d[i][lane], sum(c[i][lane], &terms), "{kind:?} {row} {column}");
            }
        }
    }

    #[test]
    fn integers_are_exact_and_wrap() {
        let mut random = Random(7);
        check(
            MmaKind::S8,
            (8, 32),
            || random.next(),
            |c, terms| {
                let sum = terms.iter().map(|&(a, b)| i32::from(a as i8) * i32::from(b as i8));
                sum.fold(c as i32, i32::wrapping_add) as u32
            },
        );
        check(
            MmaKind::U8S8,
            (8, 32),
            || random.next(),
            |c, terms| {
                let sum = terms.iter().map(|&(a, b)| i32::from(a as u8) * i32::from(b as i8));
                sum.fold(c as i32, i32::wrapping_add) as u32
            },
        );
        check(MmaKind::S8, (8, 32), || 0x8080_8080, |c, _| c.wrapping_add(32 << 14));
    }

    #[test]
    fn halves_are_where_the_tables_say() {
        let mut random = Random(8);
        // Small integers, so that every order of summing is exact.
        let mut small = || (random.next() % 31) as f32 - 15.0;
        let mut pair = |to: fn(f32) -> u16| u32::from(to(small())) | u32::from(to(small())) << 16;
        let bf16: fn(f32) -> u16 = |x| half::bf16::from_f32(x).to_bits();
        let f16: fn(f32) -> u16 = |x| half::f16::from_f32(x).to_bits();
        check(
            MmaKind::Bf16,
            (16, 16),
            || pair(bf16) & 0xfff0_fff0,
            |c, terms| {
                let of = |x: u32| half::bf16::from_bits(x as u16).to_f64();
                let sum: f64 = terms.iter().map(|&(a, b)| of(a) * of(b)).sum();
                ((f64::from(f32::from_bits(c)) + sum) as f32).to_bits()
            },
        );
        check(
            MmaKind::F16,
            (16, 16),
            || pair(f16),
            |c, terms| {
                let of = |x: u32| half::f16::from_bits(x as u16).to_f64();
                let sum: f64 = terms.iter().map(|&(a, b)| of(a) * of(b)).sum();
                ((f64::from(f32::from_bits(c)) + sum) as f32).to_bits()
            },
        );
    }

    #[test]
    fn tf32_is_where_the_tables_say() {
        let mut random = Random(9);
        let next = || ((random.next() % 31) as f32 - 15.0).to_bits();
        check(MmaKind::Tf32, (32, 8), next, |c, terms| {
            let sum: f32 = terms.iter().map(|&(a, b)| f32::from_bits(a) * f32::from_bits(b)).sum();
            (f32::from_bits(c) + sum).to_bits()
        });
    }

    #[test]
    fn nan_is_canonical_and_infinity_stays() {
        let mut a = [[0u32; 32]; 4];
        let (b, mut c) = ([[0x3f80_3f80u32; 32]; 2], [[0u32; 32]; 4]);
        a[0][0] = 0xff81; // row 0
        a[1][4] = 0x7f80; // row 9
        c[3][31] = 0xff80_0000; // row 15, column 7
        let d = mma(MmaKind::Bf16, &a, &b, &c);
        assert_eq!(d[0][..5], [0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff, 0]);
        assert_eq!((d[2][4], d[3][7]), (0x7f80_0000, 0x7f80_0000));
        assert_eq!((d[3][30], d[3][31]), (0, 0xff80_0000));
    }
}
