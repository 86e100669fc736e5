//! Factors in scratch memory, for kernels that want them in other pieces, lines or elements.

use contract::bmm::{
    Args, BmmF32Copy, BmmF32Widen, BmmI8Lines, CopyArgs, Kind, LinesArgs, Variant, rounded,
};
use contract::launch::DevPtr;
use contract::num::RowType;

use crate::ops::{CudaBackend, OpError};

/// Bytes of scratch memory that are taken unasked.
const MOST: u64 = 1 << 30;

/// What is copied to scratch memory before a product of it is made.
#[derive(Clone, Copy)]
pub(super) enum Copies {
    /// f32, in lines of whole pieces.
    Floats(CopyArgs),
    /// 16-bit floats, as f32; so are their sums, which another kernel finishes.
    Halves(CopyArgs),
    /// i8, in lines of terms.
    Bytes(LinesArgs),
}

impl Copies {
    /// The copies of a product, and the product of them: every way that there is.
    pub(super) fn of(cuda: &CudaBackend, kind: Kind, args: &Args) -> [Option<(Self, Args)>; 2] {
        let lines = |(copies, product)| (Self::Bytes(copies), product);
        let halves = |(copies, product)| (Self::Halves(copies), product);
        match kind {
            Kind::Float(RowType::F32) if cuda.has::<BmmF32Copy>() => {
                let floats = |(copies, product)| (Self::Floats(copies), product);
                [CopyArgs::of(args).map(floats), None]
            }
            Kind::Float(_) if cuda.has::<BmmF32Widen>() => {
                let wide = CopyArgs::wide(args).map(halves);
                // Where lines are whole pieces anyway, others would be the same.
                let whole = |product: &Args| product.a.unit.min(product.b.unit) >= 16;
                let whole =
                    args.k.is_multiple_of(4) && wide.is_some_and(|(_, product)| whole(&product));
                [wide, if whole { None } else { CopyArgs::of(args).map(halves) }]
            }
            Kind::I8 if cuda.has::<BmmI8Lines>() => [LinesArgs::of(args).map(lines), None],
            _ => [None; 2],
        }
    }

    /// What the product of them is of.
    pub(super) fn kind(&self) -> Kind {
        if matches!(self, Self::Bytes(_)) { Kind::I8 } else { Kind::Float(RowType::F32) }
    }

    /// Whether a kernel is one that they are made for.
    pub(super) fn serve(&self, variant: &Variant) -> bool {
        match self {
            Self::Floats(_) | Self::Halves(_) => !variant.tensor,
            Self::Bytes(_) => variant.units[0] == 16,
        }
    }

    /// Whether they are made unasked, for a product that `args` asks for.
    pub(super) fn unasked(&self, tensor: bool, args: &Args) -> bool {
        let exact = matches!(self, Self::Bytes(_)) || !tensor;
        let outputs = u64::from(args.m) * u64::from(args.n) * u64::from(args.batch);
        let sums = if self.finishes() { outputs.saturating_mul(4) } else { 0 };
        exact && self.bytes().saturating_add(sums) <= MOST
    }

    /// Whether sums become the result in a kernel of its own.
    pub(super) fn finishes(&self) -> bool {
        matches!(self, Self::Halves(_))
    }

    /// Bytes of scratch memory.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Floats(copies) | Self::Halves(copies) => copies.elements() * 4,
            Self::Bytes(copies) => copies.bytes(),
        }
    }

    /// Nanoseconds that all takes beside the product, about.
    pub(super) fn cost(&self, args: &Args) -> u64 {
        match self {
            Self::Floats(copies) => copies.cost(),
            Self::Halves(copies) => copies.cost() + rounded(args).1,
            Self::Bytes(copies) => copies.cost(),
        }
    }

    /// Puts them at `to`, for the product too.
    pub(super) fn put(&mut self, to: DevPtr<u8>, product: &mut Args) {
        let at = |bytes: u64| DevPtr::<u8>::from_addr(to.addr() + bytes);
        let (matrices, second) = match self {
            Self::Floats(copies) | Self::Halves(copies) => {
                let second = at(copies.a.elements() * 4);
                (copies.a.to, copies.b.to) = (to.cast(), second.cast());
                ([copies.a.matrices, copies.b.matrices], second)
            }
            Self::Bytes(copies) => {
                let second = at(copies.a.bytes());
                (copies.a.to, copies.b.to) = (to, second);
                ([copies.a.matrices, copies.b.matrices], second)
            }
        };
        if matrices[0] > 0 {
            product.a.addr = to;
        }
        if matrices[1] > 0 {
            product.b.addr = second;
        }
    }

    /// Makes them.
    ///
    /// # Safety
    ///
    /// The factors cover what the product says, and the copies have a place each.
    pub(super) unsafe fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Floats(copies) => {
                    cuda.launch::<BmmF32Copy>([copies.blocks() as u32, 1, 1], copies)
                }
                Self::Halves(copies) => {
                    cuda.launch::<BmmF32Widen>([copies.blocks() as u32, 1, 1], copies)
                }
                Self::Bytes(copies) => {
                    cuda.launch::<BmmI8Lines>([copies.blocks() as u32, 1, 1], copies)
                }
            }
        }
    }
}
