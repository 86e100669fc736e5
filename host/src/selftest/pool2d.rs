//! Runs of [`crate::ops::pool2d`].

use super::{Bed, Run, RunError, typed};
use crate::ops::pool2d::{Layout, Pool2d};
use crate::ops::{Backend, Float};
use crate::reference::pool2d::output_size;

pub use crate::reference::pool2d::{Case as Inputs, square};

typed!(Inputs);

impl Inputs {
    fn run_as<T: Float, B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let pooling = self.pooling;
        let [h, w] = output_size(&pooling);
        let (n, c) = (pooling.n, pooling.c);
        let x = &bed.floats::<T>(&self.x)?;
        let mut y = bed.output(n * c * h * w)?;
        bed.backend().pool2d(Pool2d { pooling, x, y: &mut y })?;
        let dims = match pooling.layout {
            Layout::Nchw => [n, c, h, w],
            Layout::Nhwc => [n, h, w, c],
        };
        bed.keep_floats("y", &dims, &y)
    }
}
