//! Products of floats whose factors are copied first: to lines of whole pieces of 16 bytes, 16-bit floats to f32.
//!
//! `k` becomes a multiple of four. What is added to `A` is -0 and what is added to `B` +0: their product is -0, which
//! changes no sum, not even one of -0. So the bits are those of the product that was asked for.

use super::{Args, Matrix, sums};
use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num::RowType;

/// One factor and its copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// The first element.
    pub from: DevPtr<u8>,
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
    /// Their length.
    pub to_len: u32,
    /// Matrices; 0: the factor stays where it is.
    pub matrices: u32,
    /// The bits of what stands where the factor has no element.
    pub fill: u32,
    /// The type of its elements, a [`RowType`].
    pub element: u32,
    /// 0.
    pub pad: u32,
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

/// f32 that is copied in a nanosecond, about: measured on one H100.
const ELEMENTS_PER_NS: u64 = 330;
/// What a launch takes.
const LAUNCH_NS: u64 = 3000;
/// The same of 16-bit floats, in whole pieces of 16 bytes or not, measured on one H200.
const HALVES_PER_NS: [u64; 2] = [500, 300];
/// See [`HALVES_PER_NS`].
const HALF_LAUNCH_NS: u64 = 2500;

impl Copied {
    fn new(matrix: &mut Matrix, along: bool, [sides, k]: [u32; 2], args: &Args, fill: u32) -> Self {
        let [lines, len] = if along { [sides, k] } else { [k, sides] };
        // Terms in fours, whichever way they lie, and lines too.
        let terms = k.next_multiple_of(4);
        let to = if along { [lines, terms] } else { [terms, sides.next_multiple_of(4)] };
        let half = args.element != RowType::F32 as u32;
        let copied = half || matrix.unit < 16 || terms != k;
        Self::to(matrix, [lines, len], to, if copied { args.batch } else { 0 }, args.element, fill)
    }

    /// As it lies, widened; without what lies between lines, or matrices.
    fn wide(matrix: &mut Matrix, along: bool, [sides, k]: [u32; 2], args: &Args, fill: u32) -> Self {
        let [lines, len] = if along { [sides, k] } else { [k, sides] };
        let area = u64::from(lines) * u64::from(len);
        let one = |apart: u64, len: u64, count: u32| count <= 1 || apart == len;
        let whole = one(matrix.ld, len.into(), lines) && matrix.stride == area;
        let all = area * if matrix.stride == 0 { 1 } else { u64::from(args.batch) };
        let whole = whole || matrix.stride == 0 && one(matrix.ld, len.into(), lines);
        let sizes = [lines, len];
        let mut copied = Self::to(matrix, sizes, sizes, args.batch, args.element, fill);
        let last = ((matrix.stride | matrix.ld) * 4) | 16;
        matrix.unit = 1 << last.trailing_zeros();
        if let (true, Ok(all)) = (whole, u32::try_from(all)) {
            (copied.lines, copied.len, copied.matrices) = (1, all, 1);
            (copied.to_lines, copied.to_len) = (1, all);
        }
        copied
    }

    fn to(
        matrix: &mut Matrix,
        [lines, len]: [u32; 2],
        [to_lines, to_len]: [u32; 2],
        batch: u32,
        element: u32,
        fill: u32,
    ) -> Self {
        let Matrix { addr: from, stride, ld, .. } = *matrix;
        let matrices = if stride == 0 { batch.min(1) } else { batch };
        if matrices > 0 {
            let all = u64::from(to_lines) * u64::from(to_len);
            matrix.stride = if stride == 0 { 0 } else { all };
            matrix.ld = to_len.into();
            matrix.unit = 16;
        }
        let (to, pad) = (DevPtr::NULL, 0);
        Self { from, stride, ld, to, lines, len, to_lines, to_len, matrices, fill, element, pad }
    }

    /// Lines of the copy.
    pub const fn all_lines(&self) -> u64 {
        self.matrices as u64 * self.to_lines as u64
    }

    /// Pieces of a line, a warp's each.
    #[inline(always)]
    #[allow(clippy::manual_div_ceil, reason = "no sum overflows here, and the kernel computes it")]
    pub const fn line_pieces(&self) -> u32 {
        (self.to_len - 1) / COPY_PIECE + 1
    }

    /// Pieces of all lines.
    #[inline(always)]
    pub const fn pieces(&self) -> u64 {
        if self.matrices == 0 { 0 } else { self.all_lines() * self.line_pieces() as u64 }
    }

    /// Elements of the copy, in fours.
    pub const fn elements(&self) -> u64 {
        (self.all_lines() * self.to_len as u64).next_multiple_of(4)
    }
}

impl CopyArgs {
    /// The copies that make every factor one of f32 in pieces of 16 bytes, and the product of them. Addresses of copies are
    /// the caller's to set. `None` where there is nothing to copy, or too much.
    pub fn of(args: &Args) -> Option<(Self, Args)> {
        let (copies, product) = Self::each(args, Copied::new);
        Self::fitting(copies, Args { k: args.k.next_multiple_of(4), ..product })
    }

    /// The copies that make every factor of 16-bit floats one of f32, in the lines that it has. As [`Self::of`].
    pub fn wide(args: &Args) -> Option<(Self, Args)> {
        let (copies, product) = Self::each(args, Copied::wide);
        Self::fitting(copies, product).filter(|_| args.element != RowType::F32 as u32)
    }

    fn each(
        args: &Args,
        copied: impl Fn(&mut Matrix, bool, [u32; 2], &Args, u32) -> Copied,
    ) -> (Self, Args) {
        let mut product = *args;
        let (along_a, along_b) = (args.a.transposed == 0, args.b.transposed != 0);
        let a = copied(&mut product.a, along_a, [args.m, args.k], args, 0x8000_0000);
        let b = copied(&mut product.b, along_b, [args.n, args.k], args, 0);
        if args.element != RowType::F32 as u32 {
            // Sums of f32, which another kernel finishes.
            (product.c, product.element) = (sums(args), RowType::F32 as u32);
            (product.alpha, product.beta) = (1f32.to_bits(), 0);
        }
        (Self { a, b }, product)
    }

    fn fitting(copies: Self, product: Args) -> Option<(Self, Args)> {
        let fits = product.k > 0 && copies.blocks() > 0 && copies.blocks() <= 1 << 29;
        fits.then_some((copies, product))
    }

    /// Elements of both copies.
    pub const fn elements(&self) -> u64 {
        self.a.elements() + self.b.elements()
    }

    /// Its blocks: a warp a piece.
    pub const fn blocks(&self) -> u64 {
        (self.a.pieces() + self.b.pieces()).div_ceil(COPY_WARPS as u64)
    }

    /// Nanoseconds that it takes, about: all elements, or all lines, or the longest line, which is a warp's.
    pub fn cost(&self) -> u64 {
        let lines = self.a.all_lines() + self.b.all_lines();
        if self.a.element.min(self.b.element) != RowType::F32 as u32 {
            let single = |factor: &Copied| ((factor.from.addr() / 2) | factor.stride | factor.ld) & 7 != 0;
            let per_ns = HALVES_PER_NS[usize::from(single(&self.a) || single(&self.b))];
            return HALF_LAUNCH_NS + (self.elements() / per_ns).max(lines * 2 / 5);
        }
        let line = |factor: &Copied| if factor.matrices > 0 { factor.to_len } else { 0 };
        let longest = u64::from(line(&self.a).max(line(&self.b)));
        LAUNCH_NS + (self.elements() / ELEMENTS_PER_NS).max(lines * 3 / 16).max(longest * 5 / 2)
    }
}

/// Warps of a block.
pub const COPY_WARPS: u32 = 4;
/// Elements of a line, at most, of a warp.
pub const COPY_PIECE: u32 = 1024;

/// Copies the factors of a product of f32.
pub enum BmmF32Copy {}
/// The same of 16-bit floats, as f32, for [`super::BmmParts`].
pub enum BmmF32Widen {}

impl Kernel for BmmF32Copy {
    type Args = CopyArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("bmm_f32_copy", 32 * COPY_WARPS);
}

impl Kernel for BmmF32Widen {
    type Args = CopyArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("bmm_f32_widen", 32 * COPY_WARPS).only_on(90);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bmm::{K_CHUNK, VARIANTS};

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
