//! Host side of [`contract::bmm`].

use contract::bmm::{Kind, MAX_DIM, finish, finish_i32};
use contract::num::{RowType, fma};

use super::error::at_least;
use super::{Backend, Element, Float, Math, OpError, Tensor};
use crate::cpu::bmm::Block;

const OP: &str = "bmm";

/// An element of `A` and `B`: `f32`, [`half::f16`], [`half::bf16`] or `i8`.
pub trait Operand: Element + sealed::Sealed {
    /// An element of `C`: the same type, `i32` for `i8`.
    type Out: Element + Default;
    /// What sums, `alpha` and `beta` are: `f32` or `i32`.
    type Sum: Element + PartialEq + std::fmt::Debug + Block;
    /// Which of the four it is.
    const KIND: Kind;
    /// `alpha` of a plain product.
    const ONE: Self::Sum;
    /// `beta` of a plain product, and an empty sum.
    const ZERO: Self::Sum;

    /// The value, exactly.
    fn widen(self) -> Self::Sum;
    /// `sum + a b`, rounded once (floats) or modulo 2^32.
    fn step(a: Self::Sum, b: Self::Sum, sum: Self::Sum) -> Self::Sum;
    /// `a + b`.
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// `alpha sum + beta c` as the contract has it, rounded to the type of `C`.
    fn finish(alpha: Self::Sum, sum: Self::Sum, beta: Self::Sum, c: Self::Out) -> Self::Out;
    /// The bits of a factor.
    fn bits(sum: Self::Sum) -> u32;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for i8 {}
}

macro_rules! float {
    ($element:ty, $ty:ident) => {
        impl Operand for $element {
            type Out = Self;
            type Sum = f32;
            const KIND: Kind = Kind::Float(RowType::$ty);
            const ONE: f32 = 1.0;
            const ZERO: f32 = 0.0;

            #[inline(always)]
            fn widen(self) -> f32 {
                Float::widen(self)
            }
            #[inline(always)]
            fn step(a: f32, b: f32, sum: f32) -> f32 {
                fma(a, b, sum)
            }
            #[inline(always)]
            fn add(a: f32, b: f32) -> f32 {
                a + b
            }
            #[inline(always)]
            fn finish(alpha: f32, sum: f32, beta: f32, c: Self) -> Self {
                <Self as Float>::round(finish(alpha, sum, beta, Float::widen(c)))
            }
            fn bits(sum: f32) -> u32 {
                sum.to_bits()
            }
        }
    };
}

float!(f32, F32);
float!(half::f16, F16);
float!(half::bf16, Bf16);

impl Operand for i8 {
    type Out = i32;
    type Sum = i32;
    const KIND: Kind = Kind::I8;
    const ONE: i32 = 1;
    const ZERO: i32 = 0;

    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }
    #[inline(always)]
    fn step(a: i32, b: i32, sum: i32) -> i32 {
        sum.wrapping_add(a.wrapping_mul(b))
    }
    #[inline(always)]
    fn add(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn finish(alpha: i32, sum: i32, beta: i32, c: i32) -> i32 {
        finish_i32(alpha, sum, beta, c)
    }
    fn bits(sum: i32) -> u32 {
        sum as u32
    }
}

/// How the matrices of a batch lie in a buffer. All numbers count elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First element of matrix 0.
    pub at: usize,
    /// From one matrix to the next; 0: one matrix for all.
    pub stride: usize,
    /// From one row in memory to the next.
    pub ld: usize,
    /// Whether a row in memory is a column of the matrix.
    pub transposed: bool,
}

impl Layout {
    /// Matrices of `rows` by `columns`, row by row, one behind the other.
    pub const fn rows(rows: usize, columns: usize) -> Self {
        Self { at: 0, stride: rows.saturating_mul(columns), ld: columns, transposed: false }
    }

    /// Matrices of `rows` by `columns`, column by column, one behind the other: what
    /// [`Layout::rows`] of `columns` by `rows` is, seen as its transpose.
    pub const fn columns(rows: usize, columns: usize) -> Self {
        Self { transposed: true, ..Self::rows(columns, rows) }
    }

    /// The same, from element `at` on.
    pub const fn at(self, at: usize) -> Self {
        Self { at, ..self }
    }

    /// The same, one matrix for the whole batch.
    pub const fn broadcast(self) -> Self {
        Self { stride: 0, ..self }
    }

    /// The place of an element.
    #[inline]
    pub const fn index(&self, batch: usize, row: usize, column: usize) -> usize {
        let (far, near) = if self.transposed { (column, row) } else { (row, column) };
        self.at + batch * self.stride + far * self.ld + near
    }

    /// Rows in memory and their length, of a matrix of `rows` by `columns`.
    const fn lines(&self, rows: usize, columns: usize) -> [usize; 2] {
        if self.transposed { [columns, rows] } else { [rows, columns] }
    }

    /// Elements that a buffer needs for `batch` matrices of `rows` by `columns`; 0 where there are
    /// none, `usize::MAX` where no buffer is that long.
    pub fn span(&self, batch: usize, rows: usize, columns: usize) -> usize {
        let [lines, len] = self.lines(rows, columns);
        if batch == 0 || lines == 0 || len == 0 {
            return 0;
        }
        let last = (batch - 1).saturating_mul(self.stride);
        let last = last.saturating_add((lines - 1).saturating_mul(self.ld));
        self.at.saturating_add(last).saturating_add(len)
    }
}

/// `C[b] = alpha (A[b] x B[b]) + beta C[b]`, for `batch` matrices: see [`contract::bmm`].
///
/// ```
/// use bitnet_gpu::cpu::CpuBackend;
/// use bitnet_gpu::ops::Backend;
/// use bitnet_gpu::ops::bmm::{Bmm, Layout};
///
/// let cpu = CpuBackend::new(Some(1))?;
/// let (mut a, mut b, mut c) = (cpu.alloc("a", 6)?, cpu.alloc("b", 6)?, cpu.alloc("c", 4)?);
/// cpu.write(&mut a, 0, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// cpu.write(&mut b, 0, &[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0])?;
/// // [2, 3] times [3, 2], and then with the same memory of B seen as the transpose of [2, 3].
/// cpu.bmm(Bmm::new(&a, &b, &mut c, [2, 2, 3], 1))?;
/// let mut out = [0.0; 4];
/// cpu.read(&c, 0, &mut out)?;
/// assert_eq!(out, [4.0, 5.0, 10.0, 11.0]);
/// let transposed = Layout::columns(3, 2);
/// cpu.bmm(Bmm { b_layout: transposed, ..Bmm::new(&a, &b, &mut c, [2, 2, 3], 1) })?;
/// cpu.read(&c, 0, &mut out)?;
/// assert_eq!(out, [1.0, 6.0, 4.0, 15.0]);
/// # Ok::<(), bitnet_gpu::ops::OpError>(())
/// ```
pub struct Bmm<'a, B: Backend, T: Operand> {
    /// Left factors, `[batch, m, k]`.
    pub a: &'a B::Buf<T>,
    /// How they lie.
    pub a_layout: Layout,
    /// Right factors, `[batch, k, n]`.
    pub b: &'a B::Buf<T>,
    /// How they lie.
    pub b_layout: Layout,
    /// Results, `[batch, m, n]`; read only where `beta` is not 0.
    pub c: &'a mut B::Buf<T::Out>,
    /// How they lie: not transposed, and no element twice.
    pub c_layout: Layout,
    /// Rows of a result.
    pub m: usize,
    /// Columns of a result.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
    /// Matrices.
    pub batch: usize,
    /// Factor of the product.
    pub alpha: T::Sum,
    /// Factor of what `C` held.
    pub beta: T::Sum,
    /// How floats are summed.
    pub math: Math,
    /// One of [`contract::bmm::VARIANTS`] instead of the measured choice. What an exact one needs is copied first: f32 in smaller
    /// pieces, 16-bit floats for one of f32. Of no effect on the CPU.
    pub variant: Option<usize>,
}

impl<'a, B: Backend, T: Operand> Bmm<'a, B, T> {
    /// The plain product of contiguous matrices, exact.
    pub fn new(
        a: &'a B::Buf<T>,
        b: &'a B::Buf<T>,
        c: &'a mut B::Buf<T::Out>,
        [m, n, k]: [usize; 3],
        batch: usize,
    ) -> Self {
        Self {
            a,
            a_layout: Layout::rows(m, k),
            b,
            b_layout: Layout::rows(k, n),
            c,
            c_layout: Layout::rows(m, n),
            m,
            n,
            k,
            batch,
            alpha: T::ONE,
            beta: T::ZERO,
            math: Math::Exact,
            variant: None,
        }
    }

    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let Self { m, n, k, batch, .. } = *self;
        for (what, found) in [("m", m), ("n", n), ("k", k), ("batch", batch)] {
            if found > MAX_DIM {
                let allowed = "0 to 2^31 - 1 are allowed; split the product";
                return Err(OpError::Dimension { op: OP, what, found, allowed });
            }
        }
        let sides = [
            ("a", "a_layout.ld", self.a_layout, self.a.len(), [m, k]),
            ("b", "b_layout.ld", self.b_layout, self.b.len(), [k, n]),
            ("c", "c_layout.ld", self.c_layout, self.c.len(), [m, n]),
        ];
        for (tensor, what, layout, len, [rows, columns]) in sides {
            let found = layout.ld;
            if found < layout.lines(rows, columns)[1] {
                let allowed = "a row in memory is longer; use at least its length";
                return Err(OpError::Dimension { op: OP, what, found, allowed });
            }
            at_least(OP, tensor, len, layout.span(batch, rows, columns))?;
        }
        let Layout { stride, ld, transposed, .. } = self.c_layout;
        if transposed {
            let allowed =
                "only rows are written; use the transpose: swap the factors and transpose both";
            return Err(OpError::Dimension {
                op: OP,
                what: "c_layout.transposed",
                found: 1,
                allowed,
            });
        }
        // Apart, or interleaved row by row: both without an element that stands for two.
        let apart = self.c_layout.at(0).span(1, m, n) <= stride;
        let between =
            n <= stride && (batch.max(1) - 1).saturating_mul(stride).saturating_add(n) <= ld;
        if batch > 1 && m > 0 && n > 0 && !apart && !between {
            let allowed = "matrices of the result overlap; use a stride of at least one matrix, or \\
                           rows that lie between those of the others";
            return Err(OpError::Dimension {
                op: OP,
                what: "c_layout.stride",
                found: stride,
                allowed,
            });
        }
        if let Some(found) = self.variant
            && found >= contract::bmm::VARIANTS.len()
        {
            let allowed = "it counts the entries of contract::bmm::VARIANTS";
            return Err(OpError::Dimension { op: OP, what: "variant", found, allowed });
        }
        Ok(())
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0 || self.batch == 0
    }
}

#[cfg(feature = "cuda")]
mod bulk;

#[cfg(feature = "cuda")]
mod copies;
#[cfg(feature = "cuda")]
mod launch;
