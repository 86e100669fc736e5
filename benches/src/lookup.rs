//! One product by multiplying and by lookup tables: the arms of the `lut_matmul` benchmarks.

use std::rc::Rc;

use anyhow::bail;
use bitnet_gpu::ops::lut_matmul::{
    LossyLinear, LossyTables, LutBuildLossy, LutLinear, LutMatmul, LutMatmulLossy,
};
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::pack::{PackError, PackedBits, PackedTl};
use contract::lut_matmul::{Form, VARIANTS};

use crate::{Case, Linear, LinearTensors, bits, same_bits, upload};

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// `w2a8_gemv`: the yardstick.
    Multiply,
    /// An exact form, by the kernel of this number or by the one that is chosen.
    Exact(Form, Option<usize>),
    /// The bit-serial form with 2 bits, tables built in each call.
    Lossy,
}

/// The weights of one product in every layout.
pub struct Weights {
    linear: Linear,
    tl1: PackedTl,
    tl2: PackedTl,
    bits: PackedBits,
    x: Vec<f32>,
}

impl Weights {
    /// Seeded inputs: one row of activations.
    ///
    /// # Errors
    /// None for the shapes of a model.
    pub fn new(n: usize, k: usize) -> Result<Self, PackError> {
        let linear = Linear::new(1, n, k);
        let w2 = linear.packed();
        Ok(Self {
            tl1: PackedTl::from_w2(Form::Tl1, &w2)?,
            tl2: PackedTl::from_w2(Form::Tl2, &w2)?,
            bits: PackedBits::from_w2(&w2)?,
            x: linear.activations(),
            linear,
        })
    }
}

/// One arm of a product.
pub struct Lookup {
    /// The product.
    pub weights: Rc<Weights>,
    /// What runs.
    pub arm: Arm,
}

/// The tensors of a [`Lookup`], for any arm.
pub struct LookupTensors<B: Backend> {
    linear: LinearTensors<B>,
    tl1: LutLinear<B>,
    tl2: LutLinear<B>,
    bits: LossyLinear<B>,
    x: B::Buf<f32>,
    tables: LossyTables<B>,
}

impl Case for Lookup {
    type Tensors<B: Backend> = LookupTensors<B>;

    fn name(&self) -> String {
        format!("{}x{}", self.weights.linear.n, self.weights.linear.k)
    }

    fn variant(&self) -> String {
        match self.arm {
            Arm::Multiply => "w2a8_gemv".to_owned(),
            Arm::Exact(_, Some(index)) => VARIANTS[index].spec.symbol.to_owned(),
            Arm::Exact(form, None) => form.name().to_lowercase(),
            Arm::Lossy => "lossy, 2 bits".to_owned(),
        }
    }

    fn bytes(&self) -> u64 {
        let weights = &self.weights;
        let of_w2 = 4 * weights.linear.packed().words.len();
        let tiles = match self.arm {
            Arm::Multiply => of_w2,
            Arm::Exact(Form::Tl1, _) => weights.tl1.bytes().len(),
            Arm::Exact(Form::Tl2, _) => weights.tl2.bytes().len(),
            Arm::Lossy => weights.bits.bytes().len(),
        };
        weights.linear.bytes() + tiles as u64 - of_w2 as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<LookupTensors<B>, OpError> {
        let Weights { linear, tl1, tl2, bits, x } = &*self.weights;
        Ok(LookupTensors {
            linear: linear.tensors(backend)?,
            tl1: LutLinear::new(backend, "weights", tl1)?,
            tl2: LutLinear::new(backend, "weights", tl2)?,
            bits: LossyLinear::new(backend, "weights", bits)?,
            x: upload(backend, x)?,
            tables: LossyTables::published(backend, 1, linear.k)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut LookupTensors<B>) -> Result<(), OpError> {
        let LinearTensors { w, acts, y } = &mut t.linear;
        match self.arm {
            Arm::Multiply => backend.w2a8_gemv(W2a8Gemv { w, acts, y, variant: None }),
            Arm::Exact(form, variant) => {
                let w = if form == Form::Tl1 { &t.tl1 } else { &t.tl2 };
                backend.lut_matmul(LutMatmul { w, acts, y, m: 1, variant })
            }
            Arm::Lossy => {
                let tables = &mut t.tables;
                backend.lut_build_lossy(LutBuildLossy { x: &t.x, tables, m: 1 })?;
                let op = LutMatmulLossy { w: &t.bits, tables, y, m: 1 };
                backend.lut_matmul_lossy(op)
            }
        }
    }

    fn output<B: Backend>(&self, backend: &B, t: &LookupTensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.linear.y)
    }

    /// The exact forms are held to the bits of `w2a8_gemv`, the lossy one to the published error.
    fn compare(&self, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
        if self.arm != Arm::Lossy {
            return same_bits(&self.variant(), found, expected);
        }
        let (mut error, mut power) = (0.0, 0.0);
        for (found, expected) in found.iter().zip(expected) {
            let [found, expected] = [found, expected].map(|v| f64::from(f32::from_bits(*v)));
            error += (found - expected).powi(2);
            power += expected.powi(2);
        }
        match error / power {
            nmse if nmse < 5e-4 => Ok(()),
            nmse => bail!("a normalised mean square error of {nmse:e}; 5e-4 is allowed"),
        }
    }
}
