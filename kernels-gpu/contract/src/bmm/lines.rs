//! Products of i8 whose factors are copied first, to lines of terms in whole pieces of 16 bytes, as wgmma takes them.
//!
//! `k` becomes a multiple of 16; what is added is 0, which changes no sum.

use super::{Args, Matrix};
use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Rows (columns of `B`) and terms that a block of the kernel copies.
pub const LINES_SIDES: u32 = 128;
/// See [`LINES_SIDES`].
pub const LINES_TERMS: u32 = 64;

/// One factor and its copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lined {
    /// The first element.
    pub from: DevPtr<u8>,
    /// Elements from one matrix to the next.
    pub stride: u64,
    /// Elements from one line in memory to the next.
    pub ld: u64,
    /// The copy: a line of [`Self::to_len`] terms for each row (column of `B`), nothing in between.
    pub to: DevPtr<u8>,
    /// Rows (columns of `B`).
    pub sides: u32,
    /// Their terms.
    pub k: u32,
    /// The same in the copy, a multiple of 16.
    pub to_len: u32,
    /// Matrices; 0: the factor stays where it is.
    pub matrices: u32,
    /// 1 where neighbours in memory are neighbours in k.
    pub along: u32,
    /// 0.
    pub pad: u32,
}

/// The parameter of the kernel that copies factors of i8, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinesArgs {
    /// `A`.
    pub a: Lined,
    /// `B`.
    pub b: Lined,
}

/// Bytes that are copied in a nanosecond, about: measured on one H100.
const BYTES_PER_NS: u64 = 1150;
/// What a launch takes, and a block of it, about: that of a small matrix copies little.
const LAUNCH_NS: u64 = 2000;
/// See [`LAUNCH_NS`].
const BLOCK_NS: u64 = 2;

impl Lined {
    fn new(matrix: &mut Matrix, along: bool, [sides, k]: [u32; 2], batch: u32) -> Self {
        let to_len = k.next_multiple_of(16);
        let Matrix { addr, stride, ld, unit, .. } = *matrix;
        let copied = unit < 16 || !along || to_len != k;
        let matrices = if stride == 0 { 1 } else { batch };
        let matrices = if copied { matrices } else { 0 };
        if copied {
            let all = u64::from(sides) * u64::from(to_len);
            matrix.stride = if stride == 0 { 0 } else { all };
            matrix.ld = to_len.into();
            matrix.unit = 16;
        }
        let along = along.into();
        Self { from: addr, stride, ld, to: DevPtr::NULL, sides, k, to_len, matrices, along, pad: 0 }
    }

    /// Blocks that copy it.
    pub const fn blocks(&self) -> u64 {
        let tiles =
            self.sides.div_ceil(LINES_SIDES) as u64 * self.to_len.div_ceil(LINES_TERMS) as u64;
        tiles * self.matrices as u64
    }

    /// Bytes of the copy.
    pub const fn bytes(&self) -> u64 {
        self.matrices as u64 * self.sides as u64 * self.to_len as u64
    }
}

impl LinesArgs {
    /// The copies that make every factor one of lines of terms in pieces of 16 bytes, and the product of them. Addresses of
    /// copies are the caller's to set. `None` where there is nothing to copy, or too much.
    pub fn of(args: &Args) -> Option<(Self, Args)> {
        let mut product = *args;
        let (along_a, along_b) = (args.a.transposed == 0, args.b.transposed != 0);
        let a = Lined::new(&mut product.a, along_a, [args.m, args.k], args.batch);
        let b = Lined::new(&mut product.b, along_b, [args.n, args.k], args.batch);
        (product.a.transposed, product.b.transposed) = (0, 1);
        product.k = args.k.next_multiple_of(16);
        let copies = Self { a, b };
        let fits = args.k > 0 && copies.blocks() > 0 && copies.blocks() <= i32::MAX as u64;
        fits.then_some((copies, product))
    }

    /// Bytes of both copies.
    pub const fn bytes(&self) -> u64 {
        self.a.bytes() + self.b.bytes()
    }

    /// Its blocks.
    pub const fn blocks(&self) -> u64 {
        self.a.blocks() + self.b.blocks()
    }

    /// Nanoseconds that it takes, about.
    pub fn cost(&self) -> u64 {
        LAUNCH_NS + (self.bytes() / BYTES_PER_NS).max(self.blocks() * BLOCK_NS)
    }
}

/// Copies the factors of a product of i8.
pub enum BmmI8Lines {}

impl Kernel for BmmI8Lines {
    type Args = LinesArgs;
    const SPEC: LaunchSpec =
        LaunchSpec::new("bmm_i8_lines", 256).with_smem(LINES_SIDES * LINES_TERMS).only_on(90);
}
