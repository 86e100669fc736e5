//! Runs of [`crate::ops::conv2d`].

use contract::conv2d::{
    Activation, Conv2dF32, Conv2dF32Small, Conv2dHalf, Conv2dHopperBf16, Conv2dHopperF16,
    Conv2dHopperNarrowBf16, Conv2dHopperNarrowF16, Conv2dI8 as I8Dot, Conv2dI8Mma, Conv2dJoinF32,
    Conv2dJoinHalf, Conv2dLinesBf16, Conv2dLinesF16, Conv2dLinesPairBf16, Conv2dLinesPairF16,
    Conv2dLinesSplitBf16, Conv2dLinesSplitF16, Conv2dMmaBf16, Conv2dMmaF16, Conv2dPlanes3Bf16,
    Conv2dPlanes3F16, Conv2dPlanes3F32, Conv2dPlanes5Bf16, Conv2dPlanes5F16, Conv2dPlanes5F32,
    Conv2dPlanes7Bf16, Conv2dPlanes7F16, Conv2dPlanes7F32, Conv2dPointsBf16, Conv2dPointsF16,
    Conv2dPointsNarrowBf16, Conv2dPointsNarrowF16, Conv2dPointsWholeBf16, Conv2dPointsWholeF16,
    Conv2dRuns, Conv2dTaps3Bf16, Conv2dTaps3F16, Conv2dTaps3F32, Conv2dTaps5F32, Conv2dTapsF32,
    Conv2dTapsHalf, Conv2dTernary as TernaryDot, Conv2dTernaryHopper, Conv2dTernaryHopperSplit,
    Conv2dTernaryMma, Conv2dTernaryPoints, Conv2dTernaryStrips, Conv2dTernaryStrips96,
    Conv2dTernaryWhole32, Conv2dTernaryWhole48, Conv2dTernaryWhole64, Conv2dTernaryWhole96,
    Conv2dTernaryWhole128, Conv2dTiles3Bf16, Conv2dTiles3F16, Conv2dTiles3F32, Conv2dTiles5Bf16,
    Conv2dTiles5F16, Conv2dTiles5F32, Conv2dTiles7Bf16, Conv2dTiles7F16, Conv2dTiles7F32,
    Conv2dTurn, Layout,
};
use contract::launch::Kernel;
use half::{bf16, f16};

use super::{Bed, Output, Run, RunError};
use crate::ops::conv2d::{
    Conv2d, Conv2dI8, Conv2dI8Weights, Conv2dTernary, Conv2dTernaryWeights, Conv2dWeights, Images,
    Padding, Window,
};
use crate::ops::{Backend, Float, Math, RowType};
use crate::reference::conv2d::{
    Case, Extras, Scales, WholeCase, conv2d, conv2d_i8, conv2d_ternary,
};

/// One convolution of floats.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Its tensors.
    pub case: Case,
    /// By which arithmetic.
    pub math: Math,
    /// By which kernel; see [`Conv2d::kernel`].
    pub kernel: Option<&'static str>,
}

impl Inputs {
    /// By the one arithmetic.
    pub fn exact(case: &Case) -> Self {
        Self { case: case.clone(), math: Math::Exact, kernel: None }
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
            kernel: self.kernel,
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

/// One convolution of whole numbers.
#[derive(Clone, Debug)]
pub struct WholeInputs {
    /// Its tensors.
    pub whole: WholeCase,
    /// By which kernel; see [`Conv2d::kernel`].
    pub kernel: Option<&'static str>,
}

impl WholeInputs {
    /// What the oracle says.
    pub fn expected(&self) -> Vec<Output> {
        let dims = Inputs::exact(&self.whole.case).dims();
        vec![match self.whole.ternary {
            None => {
                let words = conv2d_i8(&self.whole).into_iter().map(|v| v as u32).collect();
                Output::words("y", &dims, words)
            }
            Some(_) => Output::floats("y", &dims, &conv2d_ternary(&self.whole)),
        }]
    }
}

impl WholeInputs {
    fn run_as<B: Backend, T: Float>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (case, backend) = (&self.whole.case, bed.backend());
        let dims = Inputs::exact(case).dims();
        let whole = |values: &[f32]| -> Vec<i8> { values.iter().map(|&v| v as i8).collect() };
        let x = bed.input(&whole(&case.x))?;
        let (images, window) = (case.images, case.window);
        let w = whole(&case.w);
        let Some(Scales { images: scales, segments }) = &self.whole.ternary else {
            let w = Conv2dI8Weights::from_oihw(backend, "selftest", &w, case.oihw, case.groups)?;
            let mut y = bed.output::<i32>(case.output_len())?;
            let kernel = self.kernel;
            backend.conv2d_i8(Conv2dI8 { x: &x, w: &w, y: &mut y, images, window, kernel })?;
            let words = bed.read("y", &y)?.into_iter().map(|v| v as u32).collect();
            bed.push(Output::words("y", &dims, words));
            return Ok(());
        };
        let (oihw, groups) = (case.oihw, case.groups);
        let w = Conv2dTernaryWeights::from_oihw(backend, "selftest", &w, oihw, groups, segments)?;
        let scales = bed.input(scales)?;
        let bias = case.bias.as_ref().map(|bias| bed.input(bias)).transpose()?;
        let round = |values: &Vec<f32>| values.iter().map(|&v| T::round(v)).collect::<Vec<_>>();
        let residual = case.residual.as_ref().map(|r| bed.input(&round(r))).transpose()?;
        let mut y = bed.output(case.output_len())?;
        backend.conv2d_ternary(Conv2dTernary {
            x: &x,
            scales: &scales,
            w: &w,
            bias: bias.as_ref(),
            residual: residual.as_ref(),
            y: &mut y,
            images,
            window,
            activation: case.activation,
            kernel: self.kernel,
        })?;
        let values: Vec<T> = bed.read("y", &y)?;
        let values: Vec<f32> = values.into_iter().map(Float::widen).collect();
        bed.push(Output::floats("y", &dims, &values));
        Ok(())
    }
}

impl Run for WholeInputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        match self.whole.case.element {
            RowType::F32 => self.run_as::<B, f32>(bed),
            RowType::F16 => self.run_as::<B, f16>(bed),
            RowType::Bf16 => self.run_as::<B, bf16>(bed),
        }
    }
}

/// The cases of the doctor for whole numbers, each for its kernel.
pub(super) fn whole_cases() -> Vec<(&'static str, String, WholeInputs)> {
    let (nhwc, nchw) = (Layout::Nhwc, Layout::Nchw);
    let (plain, same, half) = (Window::new(1, 0), Window::new(1, 1), Window::new(2, 1));
    [
        (symbol::<I8Dot>(), false, nchw, [2, 8, 7], [10, 3, 3, 2], 2, half),
        (symbol::<Conv2dI8Mma>(), false, nhwc, [1, 9, 9], [72, 48, 3, 3], 1, same),
        (symbol::<TernaryDot>(), true, nchw, [2, 8, 7], [10, 3, 3, 2], 2, half),
        (symbol::<Conv2dTernaryMma>(), true, nhwc, [2, 9, 10], [72, 48, 3, 3], 1, plain),
        (symbol::<Conv2dTernaryHopper>(), true, nhwc, [2, 9, 9], [136, 128, 3, 3], 1, same),
        (symbol::<Conv2dTernaryHopperSplit>(), true, nhwc, [2, 8, 7], [74, 64, 3, 2], 2, half),
        (symbol::<Conv2dTernaryPoints>(), true, nhwc, [2, 19, 19], [1474, 64, 1, 1], 1, plain),
        (symbol::<Conv2dTernaryWhole32>(), true, nhwc, [2, 9, 7], [74, 256, 3, 2], 1, half),
        (symbol::<Conv2dTernaryWhole48>(), true, nhwc, [1, 9, 10], [136, 128, 3, 3], 1, same),
        (symbol::<Conv2dTernaryWhole64>(), true, nhwc, [2, 6, 5], [64, 512, 3, 3], 2, same),
        (symbol::<Conv2dTernaryWhole96>(), true, nhwc, [3, 7, 9], [72, 304, 1, 1], 1, plain),
        (symbol::<Conv2dTernaryWhole128>(), true, nhwc, [2, 8, 11], [140, 128, 3, 3], 1, half),
        // Several tiles a warpgroup, an odd number of steps; entries that are no outputs.
        (symbol::<Conv2dTernaryStrips>(), true, nhwc, [3, 9, 11], [200, 384, 1, 1], 1, plain),
        (symbol::<Conv2dTernaryStrips>(), true, nhwc, [3, 13, 15], [136, 256, 1, 1], 1, half),
        (symbol::<Conv2dTernaryStrips>(), true, nhwc, [9, 15, 15], [64, 128, 1, 1], 1, plain),
        (symbol::<Conv2dTernaryStrips96>(), true, nhwc, [3, 9, 11], [200, 400, 1, 1], 1, plain),
        (symbol::<Conv2dTernaryStrips96>(), true, nhwc, [9, 15, 15], [64, 128, 1, 1], 1, plain),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, (kernel, ternary, layout, [n, h, w], oihw, groups, window))| {
        let mut extras =
            Extras { bias: i == 3, residual: i > 2, activation: Activation::ALL[i % 4] };
        let mut element = [RowType::F32, RowType::Bf16, RowType::F16][i % 3];
        if kernel.contains("strips") {
            // What they take.
            let [none, relu, ..] = Activation::ALL;
            extras = Extras { bias: true, residual: false, activation: [none, relu][i % 2] };
            element = [RowType::Bf16, RowType::F16][i % 2];
        }
        let images = Images { n, h, w, layout };
        let case = Case::new(element, images, oihw, groups, window, extras, 60 + i as u64);
        let kind = element.name();
        let what = format!("ternary={ternary} {kind} {images:?} {oihw:?} groups={groups}");
        let whole = WholeCase::new(case, ternary, i as u64);
        (kernel, what, WholeInputs { whole, kernel: Some(kernel) })
    })
    .collect()
}

const fn symbol<K: Kernel>() -> &'static str {
    K::SPEC.symbol
}

/// The cases of the doctor: kernel, shape in words, inputs. Those of tensor cores have whole numbers,
/// whose sums are exact in any order.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    use Math::{Exact, TensorCore};
    let (f32, f16, bf16) = (RowType::F32, RowType::F16, RowType::Bf16);
    let (nhwc, nchw) = (Layout::Nhwc, Layout::Nchw);
    let odd = Window { dilation: [2, 1], padding: Padding::both(2, 0), ..Window::new(1, 0) };
    let (plain, same, half) = (Window::new(1, 0), Window::new(1, 1), Window::new(2, 1));
    let (two, two_half, three) = (Window::new(1, 2), Window::new(2, 2), Window::new(1, 3));
    // Enough tiles to fill any device, or few; sums of one chunk, or of several to share.
    [
        (Conv2dF32::SPEC, f32, Exact, nhwc, [2, 160, 150], [9, 4, 1, 1], 1, plain),
        (Conv2dF32Small::SPEC, f32, Exact, nchw, [2, 8, 7], [10, 3, 3, 2], 2, half),
        (Conv2dJoinF32::SPEC, f32, Exact, nhwc, [1, 9, 9], [65, 116, 3, 3], 1, same),
        (Conv2dHalf::SPEC, f16, Exact, nhwc, [1, 9, 9], [65, 8, 3, 3], 1, odd),
        (Conv2dHalf::SPEC, bf16, Exact, nchw, [2, 8, 7], [10, 3, 3, 2], 2, half),
        (Conv2dJoinHalf::SPEC, bf16, Exact, nhwc, [1, 5, 6], [7, 116, 3, 3], 1, same),
        (Conv2dTapsF32::SPEC, f32, Exact, nchw, [1, 9, 8], [35, 1, 3, 4], 35, same),
        (Conv2dTapsHalf::SPEC, bf16, Exact, nhwc, [1, 9, 8], [6, 1, 3, 3], 3, same),
        (Conv2dTaps3F32::SPEC, f32, Exact, nhwc, [2, 9, 7], [20, 1, 3, 3], 20, same),
        (Conv2dTaps3F16::SPEC, f16, Exact, nhwc, [1, 8, 7], [8, 1, 3, 3], 8, half),
        (Conv2dTaps3Bf16::SPEC, bf16, Exact, nhwc, [1, 8, 7], [8, 1, 3, 3], 8, same),
        (Conv2dPlanes3F32::SPEC, f32, Exact, nchw, [2, 9, 8], [10, 1, 3, 3], 10, same),
        (Conv2dPlanes3F16::SPEC, f16, Exact, nchw, [1, 9, 7], [12, 1, 3, 3], 6, half),
        (Conv2dPlanes3Bf16::SPEC, bf16, Exact, nchw, [2, 9, 16], [3, 1, 3, 3], 3, half),
        (Conv2dPlanes5F32::SPEC, f32, Exact, nchw, [1, 9, 7], [5, 1, 5, 5], 5, same),
        (Conv2dPlanes5F16::SPEC, f16, Exact, nchw, [2, 40, 8], [5, 1, 5, 5], 5, two),
        (Conv2dPlanes5Bf16::SPEC, bf16, Exact, nchw, [1, 9, 16], [6, 1, 5, 5], 3, two_half),
        (Conv2dPlanes7F32::SPEC, f32, Exact, nchw, [1, 60, 12], [3, 1, 7, 7], 3, three),
        (Conv2dPlanes7F16::SPEC, f16, Exact, nchw, [2, 7, 7], [4, 1, 7, 7], 4, three),
        (Conv2dPlanes7Bf16::SPEC, bf16, Exact, nchw, [1, 9, 9], [4, 1, 7, 7], 4, two_half),
        (Conv2dTaps5F32::SPEC, f32, Exact, nhwc, [2, 9, 7], [5, 1, 5, 5], 5, two),
        (Conv2dTiles3F32::SPEC, f32, Exact, nhwc, [2, 9, 8], [20, 1, 3, 3], 20, same),
        (Conv2dTiles3F16::SPEC, f16, Exact, nhwc, [1, 9, 7], [40, 1, 3, 3], 40, half),
        (Conv2dTiles3Bf16::SPEC, bf16, Exact, nhwc, [1, 8, 16], [24, 1, 3, 3], 24, same),
        (Conv2dTiles5F32::SPEC, f32, Exact, nhwc, [1, 9, 9], [36, 1, 5, 5], 36, two_half),
        (Conv2dTiles5F16::SPEC, f16, Exact, nhwc, [2, 8, 7], [40, 1, 5, 5], 40, two),
        (Conv2dTiles5Bf16::SPEC, bf16, Exact, nhwc, [1, 15, 15], [8, 1, 5, 5], 8, two_half),
        (Conv2dTiles7F32::SPEC, f32, Exact, nhwc, [2, 8, 9], [36, 1, 7, 7], 36, three),
        (Conv2dTiles7F16::SPEC, f16, Exact, nhwc, [1, 7, 7], [8, 1, 7, 7], 8, three),
        (Conv2dTiles7Bf16::SPEC, bf16, Exact, nhwc, [1, 9, 15], [40, 1, 7, 7], 40, three),
        (Conv2dTurn::SPEC, bf16, TensorCore, nchw, [2, 9, 8], [72, 24, 3, 3], 1, same),
        (Conv2dRuns::SPEC, f16, TensorCore, nhwc, [2, 9, 8], [20, 33, 3, 3], 1, half),
        (Conv2dRuns::SPEC, bf16, TensorCore, nhwc, [2, 30, 17], [64, 3, 7, 7], 1, two_half),
        (Conv2dMmaBf16::SPEC, bf16, TensorCore, nhwc, [1, 9, 9], [72, 24, 3, 3], 1, same),
        (Conv2dMmaF16::SPEC, f16, TensorCore, nchw, [2, 8, 7], [10, 3, 3, 2], 2, half),
        (Conv2dHopperBf16::SPEC, bf16, TensorCore, nhwc, [2, 13, 14], [136, 72, 3, 3], 1, same),
        (Conv2dHopperF16::SPEC, f16, TensorCore, nchw, [1, 9, 10], [68, 12, 3, 3], 2, half),
        (
            Conv2dHopperNarrowBf16::SPEC,
            bf16,
            TensorCore,
            nhwc,
            [1, 14, 14],
            [64, 200, 3, 3],
            1,
            same,
        ),
        (Conv2dHopperNarrowF16::SPEC, f16, TensorCore, nhwc, [2, 16, 17], [40, 16, 1, 1], 1, plain),
        (Conv2dLinesBf16::SPEC, bf16, TensorCore, nhwc, [2, 13, 14], [136, 72, 3, 3], 1, same),
        (Conv2dLinesF16::SPEC, f16, TensorCore, nhwc, [1, 16, 17], [40, 64, 3, 3], 1, half),
        (Conv2dLinesPairBf16::SPEC, bf16, TensorCore, nhwc, [1, 9, 9], [64, 64, 3, 3], 1, same),
        (Conv2dLinesPairF16::SPEC, f16, TensorCore, nhwc, [1, 7, 9], [50, 64, 3, 3], 1, half),
        (Conv2dLinesSplitBf16::SPEC, bf16, TensorCore, nhwc, [1, 14, 14], [66, 200, 3, 3], 1, same),
        (Conv2dLinesSplitF16::SPEC, f16, TensorCore, nhwc, [2, 9, 8], [64, 128, 3, 2], 2, half),
        // More tiles than multiprocessors, so that both warpgroups of a block have some.
        (Conv2dPointsBf16::SPEC, bf16, TensorCore, nhwc, [2, 37, 37], [904, 72, 1, 1], 1, plain),
        (Conv2dPointsF16::SPEC, f16, TensorCore, nhwc, [3, 65, 65], [776, 8, 1, 1], 1, half),
        (
            Conv2dPointsNarrowBf16::SPEC,
            bf16,
            TensorCore,
            nhwc,
            [2, 37, 37],
            [456, 72, 1, 1],
            1,
            plain,
        ),
        (Conv2dPointsNarrowF16::SPEC, f16, TensorCore, nhwc, [2, 9, 8], [144, 64, 3, 2], 2, half),
        (Conv2dPointsWholeBf16::SPEC, bf16, TensorCore, nhwc, [2, 9, 9], [72, 328, 1, 1], 1, plain),
        (Conv2dPointsWholeF16::SPEC, f16, TensorCore, nhwc, [3, 9, 8], [144, 64, 3, 3], 2, half),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, (spec, element, math, layout, [n, h, w], oihw, groups, window))| {
        let extras =
            Extras { bias: i % 3 != 1, residual: i % 2 == 0, activation: Activation::ALL[i % 4] };
        // These take no other activation.
        let square = spec.symbol.contains("conv2d_points");
        let activation = if square { Activation::ALL[i % 2] } else { extras.activation };
        let extras = Extras { activation, ..extras };
        let images = Images { n, h, w, layout };
        let mut case = Case::new(element, images, oihw, groups, window, extras, 40 + i as u64);
        if math == TensorCore {
            case = case.whole();
        }
        let what = format!("{} {math:?} {images:?} {oihw:?} groups={groups}", element.name());
        // A joining kernel runs behind the one that the shape chooses.
        let kernel = (!spec.symbol.contains("join")).then_some(spec.symbol);
        (spec.symbol, what, Inputs { case, math, kernel })
    })
    .collect()
}
