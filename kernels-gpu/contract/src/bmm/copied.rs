//! Products of f32 whose factors are copied first, to lines of whole pieces of 16 bytes.
//!
//! `k` becomes a multiple of four. What is added to `A` is -0 and what is added to `B` +0: their product is -0, which
//! changes no sum, not even one of -0. So the bits are those of the product that was asked for.

use super::{Args, Matrix};
use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// One factor and its copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// The first element.
    pub from: DevPtr<f32>,
    /// Elements from one matrix to the next.
    pub stride: u64,
    /// Elements from one line in memory to the next.
    pub ld: u64,
    /// The copy: lines of [`Self::to_len`], matrices of [`Self::to_lines`] lines, nothing in between.
    pub to: DevPtr<f32>,
    /// Lines of a matrix.
    pub lines: u32,
    /// Their length.
    pub len: u32,
    /// Lines of a matrix of the copy.
    pub to_lines: u32,
    /// Their length, a multiple of four.
    pub to_len: u32,
    /// Matrices; 0: the factor stays where it is.
    pub matrices: u32,
    /// The bits of what stands where the factor has no element.
    pub fill: u32,
}

/// The parameter of the kernel that copies factors, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyArgs {
    /// `A`.
    pub a: Copied,
    /// `B`.
    pub b: Copied,
}

/// Elements that are copied in a nanosecond, about: measured on one H100.
const ELEMENTS_PER_NS: u64 = 330;
/// What a launch takes.
const LAUNCH_NS: u64 = 3000;

impl Copied {
    fn new(matrix: &mut Matrix, along: bool, [sides, k]: [u32; 2], batch: u32, fill: u32) -> Self {
        let [lines, len] = if along { [sides, k] } else { [k, sides] };
        // Terms in fours, whichever way they lie, and lines too.
        let terms = k.next_multiple_of(4);
        let [to_lines, to_len] =
            if along { [lines, terms] } else { [terms, sides.next_multiple_of(4)] };
        let Matrix { addr, stride, ld, .. } = *matrix;
        let copied = matrix.unit < 16 || terms != k;
        let matrices = if stride == 0 { 1 } else { batch };
        let matrices = if copied { matrices } else { 0 };
        if copied {
            let all = u64::from(to_lines) * u64::from(to_len);
            matrix.stride = if stride == 0 { 0 } else { all };
            matrix.ld = to_len.into();
            matrix.unit = 16;
        }
        let from = addr.cast();
        Self { from, stride, ld, to: DevPtr::NULL, lines, len, to_lines, to_len, matrices, fill }
    }

    /// Lines of the copy.
    pub const fn all_lines(&self) -> u64 {
        self.matrices as u64 * self.to_lines as u64
    }

    /// Elements of the copy, a multiple of four.
    pub const fn elements(&self) -> u64 {
        self.all_lines() * self.to_len as u64
    }
}

impl CopyArgs {
    /// The copies that make every factor one in pieces of 16 bytes, and the product of them. Addresses of copies are
    /// the caller's to set. `None` where there is nothing to copy, or too much.
    pub fn of(args: &Args) -> Option<(Self, Args)> {
        let mut product = *args;
        let (along_a, along_b) = (args.a.transposed == 0, args.b.transposed != 0);
        let a = Copied::new(&mut product.a, along_a, [args.m, args.k], args.batch, 0x8000_0000);
        let b = Copied::new(&mut product.b, along_b, [args.n, args.k], args.batch, 0);
        product.k = args.k.next_multiple_of(4);
        let copies = Self { a, b };
        let fits = args.k > 0 && copies.blocks() > 0 && copies.blocks() <= i32::MAX as u64;
        fits.then_some((copies, product))
    }

    /// Elements of both copies.
    pub const fn elements(&self) -> u64 {
        self.a.elements() + self.b.elements()
    }

    /// Its blocks: a warp a line.
    pub const fn blocks(&self) -> u64 {
        (self.a.all_lines() + self.b.all_lines()).div_ceil(COPY_WARPS as u64)
    }

    /// Nanoseconds that it takes, about: all elements, or all lines, or the longest line, which is a warp's.
    pub fn cost(&self) -> u64 {
        let line = |factor: &Copied| if factor.matrices > 0 { factor.to_len } else { 0 };
        let longest = u64::from(line(&self.a).max(line(&self.b)));
        let lines = (self.a.all_lines() + self.b.all_lines()) * 3 / 16;
        LAUNCH_NS + (self.elements() / ELEMENTS_PER_NS).max(lines).max(longest * 5 / 2)
    }
}

/// Warps of a block.
pub const COPY_WARPS: u32 = 4;

/// Copies the factors of a product of f32.
pub enum BmmF32Copy {}

impl Kernel for BmmF32Copy {
    type Args = CopyArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("bmm_f32_copy", 32 * COPY_WARPS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bmm::{K_CHUNK, VARIANTS};
    use crate::num::RowType;

    fn args([m, n, k, batch]: [u32; 4], transposed: [u32; 2], broadcast: bool) -> Args {
        let matrix = |transposed: u32, rows: u32, columns: u32, broadcast: bool| {
            let [lines, len] = if transposed == 1 { [columns, rows] } else { [rows, columns] };
            let stride = if broadcast { 0 } else { u64::from(lines) * u64::from(len) };
            let all = (stride | u64::from(len)) * 4;
            let unit = 1 << all.trailing_zeros().min(4);
            Matrix { addr: DevPtr::NULL, stride, ld: len.into(), transposed, unit }
        };
        let (alpha, beta, element, split) = (1.0f32.to_bits(), 0, RowType::F32 as u32, 0);
        let a = matrix(transposed[0], m, k, false);
        let b = matrix(transposed[1], k, n, broadcast);
        let c = matrix(0, m, n, false);
        Args { a, b, c, m, n, k, batch, alpha, beta, element, split }
    }

    #[test]
    fn copies_are_whole_pieces_that_the_fast_kernels_take() {
        let fast = VARIANTS.iter().find(|v| v.spec.symbol == "bmm_f32_64").expect("a kernel");
        let kind = crate::bmm::Kind::Float(RowType::F32);
        for sides in [[65, 67, 33, 2], [1, 1, 1, 1], [64, 197, 66, 3], [7, 8, 1025, 5]] {
            for way in 0..8 {
                let asked = args(sides, [way & 1, way >> 1 & 1], way >> 2 == 1);
                let (copies, product) = CopyArgs::of(&asked).expect("something to copy");
                assert!(fast.takes(kind, false, &product), "{sides:?} {way}");
                assert!(product.k >= asked.k && product.k < asked.k + 4);
                assert_eq!(product.k.div_ceil(K_CHUNK as u32), asked.k.div_ceil(K_CHUNK as u32));
                assert!(copies.elements() > 0 && copies.elements().is_multiple_of(4));
                let one = copies.b.matrices == 0 || copies.b.matrices == 1;
                assert!(one || way >> 2 == 0);
            }
        }
        // Nothing to copy.
        assert!(CopyArgs::of(&args([64, 64, 64, 2], [0, 1], false)).is_none());
        assert!(CopyArgs::of(&args([3, 5, 0, 2], [0, 0], false)).is_none());
    }
}
