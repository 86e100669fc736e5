//! Runs of [`crate::ops::bit_linear`].

use super::{Bed, Run, RunError};
use crate::ops::bit_linear::{BitLinear, Finish, Norm};
use crate::ops::{Backend, PackedLinear};

pub use crate::reference::bit_linear::{Case, Finish as Then};

impl Run for Case {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let Self { product, x, norm, eps, finish, y } = self;
        let mut w = PackedLinear::alloc(bed.backend(), "selftest", product.k, product.segments)?;
        w.write_rows(bed.backend(), 0, &product.words())?;
        let x = bed.input(x)?;
        let norm = norm.as_ref().map(|gain| bed.input(gain)).transpose()?;
        let mut out = match finish {
            Then::Add => bed.input(y)?,
            _ => bed.output(y.len())?,
        };
        bed.backend().bit_linear(BitLinear {
            x: &x,
            norm: norm.as_ref().map(|weight| Norm { weight, eps: *eps }),
            w: &w,
            finish: match *finish {
                Then::Store => Finish::Store { y: &mut out },
                Then::Add => Finish::Add { y: &mut out },
                Then::Gated(gate) => Finish::Gated { gate, y: &mut out },
            },
        })?;
        bed.keep("y", &[y.len()], &out)
    }
}

/// Cases of the doctor: shape, layer and row.
pub(super) fn cases() -> Vec<(String, Case)> {
    let shapes = [(2, 1), (34, 65), (130, 1000), (6, 5000)];
    let case = |(i, (n, k)): (usize, (usize, usize))| {
        let mut case = Case::new(n, k, i % 2 == 1, Then::ALL[i], 9);
        super::cases::unusual(&mut case.y);
        (format!("n={n} k={k} {:?}", Then::ALL[i]), case)
    };
    shapes.into_iter().enumerate().map(case).collect()
}
