//! Sums, products and scaled sums of two tensors, and a tensor scaled and shifted; relu behind it.
//!
//! | tensor | element          | shape                 | meaning                                         |
//! |--------|------------------|-----------------------|-------------------------------------------------|
//! | `a`    | f32, f16 or bf16 | `[ROWS, K]`           | first operand                                   |
//! | `b`    | the same         | `[ROWS, K]` or `[K]`  | second operand, or one row of it for all; absent in `affine` |
//! | `y`    | the same         | `[ROWS, K]`           | output; may not overlap the inputs              |
//!
//! ```text
//! add      y = a + b
//! mul      y = a * b
//! axpby    y = fma(alpha, a, beta * b)
//! affine   y = fma(alpha, a, beta)
//! ```
//! in `f32`, then `num::relu` where asked for, rounded to the element once. NaN gives NaN.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;
use crate::stream::THREADS;

/// Which function of two numbers.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// `a + b`.
    Add = 0,
    /// `a * b`.
    Mul = 1,
    /// `alpha a + beta b`.
    Axpby = 2,
    /// `alpha a + beta`, without `b`.
    Affine = 3,
}

impl Function {
    /// Its value; `b` is not looked at in [`Function::Affine`].
    #[inline(always)]
    pub fn apply(self, a: f32, b: f32, alpha: f32, beta: f32) -> f32 {
        match self {
            Self::Add => a + b,
            Self::Mul => a * b,
            Self::Axpby => num::fma(alpha, a, beta * b),
            Self::Affine => num::fma(alpha, a, beta),
        }
    }
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// First operand.
    pub a: DevPtr<u8>,
    /// Second operand; null in [`Function::Affine`].
    pub b: DevPtr<u8>,
    /// Output.
    pub y: DevPtr<u8>,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub k: u64,
    /// Elements from row to row of `b`: `k`, or 0 when one row serves all.
    pub b_stride: u64,
    /// Factor of `a`.
    pub alpha: f32,
    /// Factor of `b`, or what is added.
    pub beta: f32,
    /// 1 when whole pieces can be read and written, else 0: [`crate::stream::aligned`].
    pub aligned: u32,
    /// [`Function`] as a number.
    pub function: u32,
    /// 1 for a relu behind it, else 0.
    pub relu: u32,
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS);
        }
    )*};
}

kernels! {
    ElementwiseF32 "elementwise_f32" "Elements of `f32`.";
    ElementwiseF16 "elementwise_f16" "Elements of f16.";
    ElementwiseBf16 "elementwise_bf16" "Elements of bf16.";
}
