//! Runs of [`crate::ops::sparse`].

use half::{bf16, f16};

use super::w2a8_gemv::Product;
use super::{Bed, Run, RunError};
use crate::ops::sparse::{
    Bitmap, Conv2d, ConvShape, Csr, Linear as Op, LinearCsr, LinearTernary, SparseConv2d,
    SparseCsr, SparseLinear, SparseTernary, TernaryBitmap,
};
use crate::ops::{Backend, Float, Math, QuantActs, RowType};
use crate::reference::sparse::Matrix;

/// One product with a bitmap.
#[derive(Clone, Debug)]
pub struct Linear {
    /// Weights; rounded to `types[0]`.
    pub w: Matrix,
    /// Rows `[m, k]`; rounded to `types[1]`.
    pub x: Vec<f32>,
    /// Element types of weights and inputs.
    pub types: [RowType; 2],
    /// How.
    pub math: Math,
    /// From compressed sparse rows, which always are exact.
    pub csr: bool,
    /// By which kernel; see [`Op::kernel`].
    pub kernel: Option<&'static str>,
}

impl Linear {
    /// The exact product with a bitmap.
    pub fn exact(w: Matrix, x: Vec<f32>, types: [RowType; 2]) -> Self {
        Self { w, x, types, math: Math::Exact, csr: false, kernel: None }
    }

    /// Input rows.
    pub fn m(&self) -> usize {
        self.x.len() / self.w.k
    }

    fn run_as<B: Backend, W: Float, X: Float>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (m, n, k) = (self.m(), self.w.n, self.w.k);
        let dense = rounded::<W>(&self.w.dense);
        let x = &bed.input(&rounded::<X>(&self.x))?;
        let mut y = bed.output(m * n)?;
        if self.csr {
            let w = Csr::from_dense(n, k, &dense)?;
            let w = &SparseCsr::upload(bed.backend(), "selftest", &w)?;
            bed.backend().sparse_csr(LinearCsr { w, x, y: &mut y, m })?;
        } else {
            let w = Bitmap::from_dense(n, k, &dense)?;
            let w = &SparseLinear::upload(bed.backend(), "selftest", &w)?;
            let Self { math, kernel, .. } = *self;
            bed.backend().sparse_linear(Op { w, x, y: &mut y, m, math, kernel })?;
        }
        bed.keep("y", &[m, n], &y)
    }
}

/// Values in another element type, rounded to nearest.
pub fn rounded<T: Float>(values: &[f32]) -> Vec<T> {
    values.iter().map(|&value| T::round(value)).collect()
}

impl Run for Linear {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        use RowType::{Bf16, F16, F32};
        match self.types {
            [F32, F32] => self.run_as::<B, f32, f32>(bed),
            [F32, F16] => self.run_as::<B, f32, f16>(bed),
            [F32, Bf16] => self.run_as::<B, f32, bf16>(bed),
            [F16, F32] => self.run_as::<B, f16, f32>(bed),
            [F16, F16] => self.run_as::<B, f16, f16>(bed),
            [F16, Bf16] => self.run_as::<B, f16, bf16>(bed),
            [Bf16, F32] => self.run_as::<B, bf16, f32>(bed),
            [Bf16, F16] => self.run_as::<B, bf16, f16>(bed),
            [Bf16, Bf16] => self.run_as::<B, bf16, bf16>(bed),
        }
    }
}

/// One convolution.
#[derive(Clone, Debug)]
pub struct Conv {
    /// Weights `[out channels, k]`; rounded to `types[0]`.
    pub w: Matrix,
    /// Input; rounded to `types[1]`.
    pub x: Vec<f32>,
    /// Sides.
    pub shape: ConvShape,
    /// By which kernel; see [`Conv2d::kernel`].
    pub kernel: Option<&'static str>,
    /// Element types of weights and input.
    pub types: [RowType; 2],
    /// How.
    pub math: Math,
}

impl Conv {
    fn run_as<B: Backend, W: Float, X: Float>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (n, shape, math) = (self.w.n, self.shape, self.math);
        let w = Bitmap::from_dense(n, self.w.k, &rounded::<W>(&self.w.dense))?;
        let ConvShape { kernel, channels, .. } = shape;
        let w = &SparseConv2d::upload(bed.backend(), "selftest", &w, kernel, channels)?;
        let x = &bed.input(&rounded::<X>(&self.x))?;
        let mut y = bed.output(shape.pixels() * n)?;
        bed.backend().sparse_conv2d(Conv2d {
            w,
            x,
            y: &mut y,
            shape,
            math,
            kernel: self.kernel,
        })?;
        let [height, width] = shape.out();
        bed.keep("y", &[shape.batch, height, width, n], &y)
    }
}

impl Run for Conv {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        use RowType::{Bf16, F16, F32};
        match self.types {
            [F32, F32] => self.run_as::<B, f32, f32>(bed),
            [F32, _] => self.run_as::<B, f32, bf16>(bed),
            [F16, F32] => self.run_as::<B, f16, f32>(bed),
            [F16, _] => self.run_as::<B, f16, f16>(bed),
            [Bf16, F32] => self.run_as::<B, bf16, f32>(bed),
            [Bf16, F16] => self.run_as::<B, bf16, f16>(bed),
            [Bf16, Bf16] => self.run_as::<B, bf16, bf16>(bed),
        }
    }
}

/// A product with a ternary matrix as mask and signs.
#[derive(Clone, Debug)]
pub struct Ternary<'a> {
    /// The product.
    pub case: &'a Product,
}

impl Run for Ternary<'_> {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let Product { m, n, k, ref t, segments, .. } = *self.case;
        let w = TernaryBitmap::new(k, t, segments)?;
        let w = &SparseTernary::upload(bed.backend(), "selftest", &w)?;
        let acts = bed.input(&self.case.acts())?;
        let acts = &QuantActs { acts, stats: bed.input(&self.case.stats())? };
        let mut y = bed.output(m * n)?;
        bed.backend().sparse_ternary(LinearTernary { w, acts, y: &mut y, m })?;
        bed.keep("y", &[m, n], &y)
    }
}

/// A convolution with a square kernel that keeps the sides at stride 1.
pub fn shape(
    batch: usize,
    [height, width]: [usize; 2],
    channels: usize,
    kernel: usize,
    stride: usize,
) -> ConvShape {
    ConvShape {
        batch,
        height,
        width,
        channels,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [kernel / 2; 2],
        dilation: [1; 2],
    }
}
