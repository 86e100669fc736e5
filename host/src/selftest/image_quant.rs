//! Runs of [`crate::ops::image_quant`].

use contract::image_quant::{
    ImageQuantBf16, ImageQuantF16, ImageQuantF32, ImageTopBf16, ImageTopF16, ImageTopF32,
};
use contract::launch::Kernel;

use super::{Bed, Output, Run, RunError, typed};
use crate::ops::image_quant::ImageQuant;
use crate::ops::{Backend, Float, RowType};
use crate::reference::image_quant::image_quant;

pub use crate::reference::image_quant::Case as Inputs;

typed!(Inputs);

impl Inputs {
    /// What every run has to give.
    pub fn expected(&self) -> Vec<Output> {
        let (q, scales) = image_quant(self);
        self.outputs(&q, &scales)
    }

    fn outputs(&self, q: &[i8], scales: &[f32]) -> Vec<Output> {
        let words = q.iter().map(|&q| i32::from(q) as u32).collect();
        vec![
            Output::words("q", &[self.n, self.len], words),
            Output::floats("scales", &[self.n], scales),
        ]
    }

    fn run_as<T: Float, B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Self { n, len, .. } = self;
        let x = &bed.floats::<T>(&self.x)?;
        let (mut q, mut scales) = (bed.output::<i8>(n * len)?, bed.output::<f32>(n)?);
        bed.backend().image_quant(ImageQuant { x, q: &mut q, scales: &mut scales, n, len })?;
        let (q, scales) = (bed.read("q", &q)?, bed.read("scales", &scales)?);
        for output in self.outputs(&q, &scales) {
            bed.push(output);
        }
        Ok(())
    }
}

/// The cases of the doctor: kernel, shape in words, inputs. One case runs both kernels of its type.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    use RowType::{Bf16, F16, F32};
    [
        (ImageTopF32::SPEC, F32, 20_000),
        (ImageQuantF32::SPEC, F32, 9_001),
        (ImageTopF16::SPEC, F16, 20_000),
        (ImageQuantF16::SPEC, F16, 9_001),
        (ImageTopBf16::SPEC, Bf16, 20_000),
        (ImageQuantBf16::SPEC, Bf16, 9_001),
    ]
    .into_iter()
    .map(|(spec, element, len)| {
        let what = format!("{} n=3 len={len}", element.name());
        (spec.symbol, what, Inputs::new(element, 3, len, 1))
    })
    .collect()
}
