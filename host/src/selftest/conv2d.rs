//! Runs of [`crate::ops::conv2d`].

use contract::conv2d::{
    Activation, Conv2dF32, Conv2dF32Small, Conv2dHalf, Conv2dJoinF32, Conv2dJoinHalf,
    Conv2dMmaBf16, Conv2dMmaF16, Conv2dTaps3F32, Conv2dTaps3Half, Conv2dTapsF32, Conv2dTapsHalf,
    Layout,
};
use contract::launch::Kernel;
use half::{bf16, f16};

use super::{Bed, Output, Run, RunError};
use crate::ops::conv2d::{Conv2d, Conv2dWeights, Images, Padding, Window};
use crate::ops::{Backend, Float, Math, RowType};
use crate::reference::conv2d::{Case, Extras, conv2d};

/// One convolution of floats.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Its tensors.
    pub case: Case,
    /// By which arithmetic.
    pub math: Math,
}

impl Inputs {
    /// By the one arithmetic.
    pub fn exact(case: &Case) -> Self {
        Self { case: case.clone(), math: Math::Exact }
    }

    /// What the oracle says.
    pub fn expected(&self) -> Vec<Output> {
        vec![Output::floats("y", &self.dims(), &conv2d(&self.case))]
    }

    fn dims(&self) -> [usize; 4] {
        let (Images { n, layout, .. }, [p, q], k) =
            (self.case.images, self.case.output(), self.case.oihw[0]);
        match layout {
            Layout::Nhwc => [n, p, q, k],
            Layout::Nchw => [n, k, p, q],
        }
    }

    fn run_as<B: Backend, T: Float>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let case = &self.case;
        let round = |values: &[f32]| -> Vec<T> { values.iter().map(|&v| T::round(v)).collect() };
        let x = bed.input(&round(&case.x))?;
        let backend = bed.backend();
        let w =
            Conv2dWeights::from_oihw(backend, "selftest", &round(&case.w), case.oihw, case.groups)?;
        let bias = case.bias.as_ref().map(|bias| bed.input(bias)).transpose()?;
        let residual = case.residual.as_ref().map(|r| bed.input(&round(r))).transpose()?;
        let mut y = bed.output(case.output_len())?;
        backend.conv2d(Conv2d {
            x: &x,
            w: &w,
            bias: bias.as_ref(),
            residual: residual.as_ref(),
            y: &mut y,
            images: case.images,
            window: case.window,
            activation: case.activation,
            math: self.math,
        })?;
        let values: Vec<T> = bed.read("y", &y)?;
        let values: Vec<f32> = values.into_iter().map(Float::widen).collect();
        bed.push(Output::floats("y", &self.dims(), &values));
        Ok(())
    }
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        match self.case.element {
            RowType::F32 => self.run_as::<B, f32>(bed),
            RowType::F16 => self.run_as::<B, f16>(bed),
            RowType::Bf16 => self.run_as::<B, bf16>(bed),
        }
    }
}

/// The cases of the doctor: kernel, shape in words, inputs. Those of tensor cores have whole numbers,
/// whose sums are exact in any order.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    use Math::{Exact, TensorCore};
    let (f32, f16, bf16) = (RowType::F32, RowType::F16, RowType::Bf16);
    let (nhwc, nchw) = (Layout::Nhwc, Layout::Nchw);
    let odd = Window { dilation: [2, 1], padding: Padding::both(2, 0), ..Window::new(1, 0) };
    let (plain, same, half) = (Window::new(1, 0), Window::new(1, 1), Window::new(2, 1));
    // Enough tiles to fill any device, or few; sums of one chunk, or of several to share.
    [
        (Conv2dF32::SPEC, f32, Exact, nhwc, [2, 160, 150], [9, 4, 1, 1], 1, plain),
        (Conv2dF32Small::SPEC, f32, Exact, nchw, [2, 8, 7], [10, 3, 3, 2], 2, half),
        (Conv2dJoinF32::SPEC, f32, Exact, nhwc, [1, 9, 9], [65, 116, 3, 3], 1, same),
        (Conv2dHalf::SPEC, f16, Exact, nhwc, [1, 9, 9], [65, 8, 3, 3], 1, odd),
        (Conv2dHalf::SPEC, bf16, Exact, nchw, [2, 8, 7], [10, 3, 3, 2], 2, half),
        (Conv2dJoinHalf::SPEC, bf16, Exact, nhwc, [1, 5, 6], [7, 116, 3, 3], 1, same),
        (Conv2dTapsF32::SPEC, f32, Exact, nchw, [1, 9, 8], [35, 1, 3, 3], 35, same),
        (Conv2dTapsHalf::SPEC, bf16, Exact, nhwc, [1, 9, 8], [6, 1, 3, 3], 3, same),
        (Conv2dTaps3F32::SPEC, f32, Exact, nhwc, [2, 9, 7], [20, 1, 3, 3], 20, same),
        (Conv2dTaps3Half::SPEC, f16, Exact, nhwc, [1, 8, 7], [8, 1, 3, 3], 8, half),
        (Conv2dMmaBf16::SPEC, bf16, TensorCore, nhwc, [2, 130, 140], [24, 16, 1, 1], 1, plain),
        (Conv2dMmaF16::SPEC, f16, TensorCore, nhwc, [2, 130, 140], [9, 4, 1, 2], 1, plain),
        (Conv2dMmaBf16::SPEC, bf16, TensorCore, nhwc, [1, 9, 9], [72, 24, 3, 3], 1, same),
        (Conv2dMmaF16::SPEC, f16, TensorCore, nchw, [2, 8, 7], [10, 3, 3, 2], 2, half),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, (spec, element, math, layout, [n, h, w], oihw, groups, window))| {
        let extras =
            Extras { bias: i % 3 != 1, residual: i % 2 == 0, activation: Activation::ALL[i % 4] };
        let images = Images { n, h, w, layout };
        let mut case = Case::new(element, images, oihw, groups, window, extras, 40 + i as u64);
        if math == TensorCore {
            case = case.whole();
        }
        let what = format!("{} {math:?} {images:?} {oihw:?} groups={groups}", element.name());
        (spec.symbol, what, Inputs { case, math })
    })
    .collect()
}
