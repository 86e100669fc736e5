//! Products of a warpgroup: `wgmma.mma_async` ("Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation").

use super::descriptor::Matrix;
use super::fragment::{self, Left, Piece, Right, left};
use super::product::{Sum, multiply};

/// The types of a product, `D = A B + D`, 64 by `N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WgmmaKind {
    /// `m64nNk16.f32.bf16.bf16`.
    Bf16,
    /// `m64nNk16.f32.f16.f16`.
    F16,
    /// `m64nNk32.s32.s8.s8`.
    S8,
}

/// Where `A` comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WgmmaLeft<'a> {
    /// A matrix descriptor.
    Shared(u64),
    /// Registers of the warp, `registers[i][lane]`.
    Registers(&'a [[u32; 32]; 4]),
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wgmma<'a> {
    /// Its types.
    pub(crate) kind: WgmmaKind,
    /// `N`, a multiple of 8 up to 256.
    pub(crate) n: usize,
    /// Where `A` comes from.
    pub(crate) a: WgmmaLeft<'a>,
    /// The matrix descriptor of `B`.
    pub(crate) b: u64,
    /// `scale-d`: whether to add to `D`.
    pub(crate) add: bool,
    /// Whether `imm-scale-a` and `imm-scale-b` are -1.
    pub(crate) negated: [bool; 2],
    /// `imm-trans-a` and `imm-trans-b`: which of `A` and `B` are mn-major in shared memory. For 16-bit
    /// types.
    pub(crate) transposed: [bool; 2],
}

impl Wgmma<'_> {
    /// Runs what warp `warp` of the four has of it, on the block's shared memory (`shared[0]` is address 0 of the
    /// shared window) and on `N / 2` accumulators of each lane, `d[i][lane]`.
    ///
    /// In register `i` lane `l` of warp `w` has row `16 w + l / 4 + 8 (i / 2 % 2)` and column
    /// `8 (i / 4) + 2 (l % 4) + i % 2` ("Register Fragments").
    ///
    /// Sums of floats are exact until they are rounded to f32; NaN is `0x7fffffff`. Sums of integers
    /// wrap.
    ///
    /// Returns where the 16-byte pieces of shared memory stand that it read.
    ///
    /// # Errors
    ///
    /// What the instruction does not have, or an address past the shared memory.
    pub(crate) fn run(
        &self,
        shared: &[u8],
        warp: usize,
        d: &mut [[u32; 32]],
    ) -> Result<Vec<u32>, String> {
        let n = self.n;
        if n == 0 || n > 256 || !n.is_multiple_of(8) {
            return Err(format!("wgmma with N = {n}"));
        }
        if d.len() != n / 2 {
            return Err(format!("wgmma with N = {n} on {} accumulators", d.len()));
        }
        let transposed = match self.a {
            WgmmaLeft::Shared(_) => self.transposed.contains(&true),
            WgmmaLeft::Registers(_) if self.transposed[0] => {
                return Err("wgmma transposes no registers".into());
            }
            WgmmaLeft::Registers(_) => self.transposed[1],
        };
        match self.kind {
            WgmmaKind::S8 if transposed || self.negated.contains(&true) => {
                Err("wgmma of bytes neither transposes nor negates".into())
            }
            WgmmaKind::S8 => self.with(shared, warp, d, fragment::s8),
            WgmmaKind::Bf16 => self.with(shared, warp, d, fragment::bf16),
            WgmmaKind::F16 => self.with(shared, warp, d, fragment::f16),
        }
    }

    /// With elements of which 16 bytes hold `E`.
    #[inline(always)]
    fn with<T: Sum, const E: usize>(
        &self,
        shared: &[u8],
        warp: usize,
        d: &mut [[u32; 32]],
        decode: impl Fn(Piece) -> [T; E],
    ) -> Result<Vec<u32>, String> {
        let from = Matrix::new(shared, self.b);
        let right = self.right(&from, &decode)?;
        let mut read = from.read();
        let mut a = match self.a {
            WgmmaLeft::Registers(registers) => left(registers, &decode),
            WgmmaLeft::Shared(of) => {
                let from = Matrix::new(shared, of);
                let a = left_of(&from, warp, self.transposed[0], &decode)?;
                read.extend(from.read());
                a
            }
        };
        if self.negated[0] != self.negated[1] {
            a.as_flattened_mut().as_flattened_mut().iter_mut().for_each(|x| *x = -*x);
        }
        for (b, d) in right.iter().zip(d.as_chunks_mut().0) {
            multiply(&a, b, d, self.add);
        }
        Ok(read)
    }

    /// `B`, eight columns at a time.
    #[inline(always)]
    fn right<T: Sum, const E: usize>(
        &self,
        from: &Matrix,
        decode: impl Fn(Piece) -> [T; E],
    ) -> Result<Vec<Right<T, E>>, String> {
        let mut b = vec![[[[T::default(); 8]; E]; 2]; self.n / 8];
        if self.transposed[1] {
            for k in 0..2 * E {
                for (piece, columns) in b.chunks_exact_mut(E / 8).enumerate() {
                    let values = decode(from.across_k(k, piece)?);
                    for (eight, values) in columns.iter_mut().zip(values.as_chunks().0) {
                        eight[k / E][k % E] = *values;
                    }
                }
            }
        } else {
            for (group, eight) in b.iter_mut().enumerate() {
                for (half, terms) in eight.iter_mut().enumerate() {
                    for column in 0..8 {
                        let values = decode(from.along_k(8 * group + column, half)?);
                        for (term, value) in terms.iter_mut().zip(values) {
                            term[column] = value;
                        }
                    }
                }
            }
        }
        Ok(b)
    }
}

/// The 16 rows of `A` of a warp.
#[inline(always)]
fn left_of<T: Sum, const E: usize>(
    from: &Matrix,
    warp: usize,
    transposed: bool,
    decode: impl Fn(Piece) -> [T; E],
) -> Result<Left<T, E>, String> {
    let mut a = [[[T::default(); E]; 2]; 16];
    if transposed {
        let pieces = 16 / E;
        for k in 0..2 * E {
            for piece in 0..pieces {
                let values = decode(from.across_k(k, pieces * warp + piece)?);
                for (row, value) in a[E * piece..].iter_mut().zip(values) {
                    row[k / E][k % E] = value;
                }
            }
        }
    } else {
        for (row, halves) in a.iter_mut().enumerate() {
            for (half, to) in halves.iter_mut().enumerate() {
                *to = decode(from.along_k(16 * warp + row, half)?);
            }
        }
    }
    Ok(a)
}

#[cfg(test)]
mod tests;
