//! One run of one operation on any backend, with everything that it may write read back.
//!
//! Each family has one file of its name: the inputs of a case, and how they are put on a backend.
//! Outputs and scratch are filled with a poison first and are longer than they need to be, so that
//! an element that is not written, one that is written too far out, and a value that depends on
//! what memory held before all show. Tests hold the outputs against [`crate::reference`]; the
//! doctor holds one backend against another. Equality is that of bits; any NaN of a float equals any
//! other, because the contract does not fix its payload.

pub mod act_quant;
pub mod activation;
pub mod attention;
pub mod attention_paged;
pub mod attention_step;
pub mod bit_linear;
pub mod conv2d;
pub mod bmm;
pub mod cases;
pub mod decode_layers;
pub mod elementwise;
pub mod embed;
pub mod logprobs;
pub mod kv_append;
pub mod layernorm;
pub mod lm_head;
pub mod lm_head_int8;
pub mod pool2d;
pub mod lut_matmul;
pub mod rmsnorm;
pub mod rope;
pub mod image_quant;
pub mod sample;
pub mod softmax;
pub mod sparse;
pub mod w2a8_gemm;
pub mod w2a8_gemv;
pub mod w2a8_trits;

use std::fmt;

use thiserror::Error;

use crate::memory::Element;
use crate::ops::{Backend, Float, OpError, Tensor};

pub use cases::{Case, cases};

/// Elements behind every buffer of a run; an operation may not touch them.
pub const GUARD: usize = 64;

/// Bytes that memory is filled with: as `f32` the first is a small negative number, the second NaN.
pub const POISONS: [u8; 2] = [0xa5, 0xff];

/// A tensor that an operation wrote, or could have.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its name in the contract.
    pub tensor: &'static str,
    /// Its shape, outermost first.
    pub dims: Vec<usize>,
    /// Whether the elements are `f32`: then all NaN are equal.
    pub float: bool,
    /// One word for each element.
    pub bits: Vec<u32>,
    /// How far each element may be from another run's: only for math whose order of sums nobody
    /// fixes. Everything else is equal, bit for bit.
    pub within: Option<Vec<f32>>,
}

impl Output {
    /// A tensor of `f32`.
    pub fn floats(tensor: &'static str, dims: &[usize], values: &[f32]) -> Self {
        let bits = values.iter().map(|v| v.to_bits()).collect();
        Self { tensor, dims: dims.into(), float: true, bits, within: None }
    }

    /// A tensor of anything else.
    pub fn words(tensor: &'static str, dims: &[usize], bits: Vec<u32>) -> Self {
        Self { tensor, dims: dims.into(), float: false, bits, within: None }
    }

    /// The same, each element with the distance that its operation states.
    #[must_use]
    pub fn within(self, bounds: Vec<f32>) -> Self {
        Self { within: Some(bounds), ..self }
    }

    fn equal(&self, index: usize, found: u32) -> bool {
        let expected = self.bits[index];
        let [a, b] = [found, expected].map(f32::from_bits);
        let bound = self.within.as_ref().and_then(|within| within.get(index));
        found == expected
            || self.float && a.is_nan() && b.is_nan()
            || bound.is_some_and(|bound| bound.is_infinite() || (a - b).abs() <= *bound)
    }

    /// `[1, 0, 7]` of element `index`.
    fn at(&self, mut index: usize) -> Vec<usize> {
        let mut at: Vec<usize> =
            self.dims.iter().rev().map(|&d| take_digit(&mut index, d)).collect();
        at.reverse();
        at
    }
}

fn take_digit(index: &mut usize, base: usize) -> usize {
    let digit = *index % base.max(1);
    *index /= base.max(1);
    digit
}

/// Where two runs differ first, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The tensor.
    pub tensor: &'static str,
    /// Coordinates of the first element that differs.
    pub at: Vec<usize>,
    /// Its bits.
    pub found: u32,
    /// The bits it should have.
    pub expected: u32,
    /// Elements of the tensor that differ.
    pub count: usize,
    /// Elements of the tensor.
    pub len: usize,
    /// Whether the elements are `f32`.
    pub float: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, at, found, expected, count, len, float } = self;
        let value = |bits: u32| match float {
            true => format!("{bits:#010x} ({:e})", f32::from_bits(bits)),
            false => format!("{bits:#010x} ({})", bits as i32),
        };
        let (found, expected) = (value(*found), value(*expected));
        write!(f, "{tensor}{at:?} is {found}, expected {expected}; {count} of {len} differ")
    }
}

/// The first tensor that differs; also one that is missing or of another shape, which counts as
/// different in every element.
pub fn difference(found: &[Output], expected: &[Output]) -> Option<Difference> {
    for (f, e) in found.iter().zip(expected) {
        if (f.tensor, &f.dims, f.bits.len()) != (e.tensor, &e.dims, e.bits.len()) {
            return Some(Difference {
                tensor: e.tensor,
                at: f.dims.clone(),
                found: f.bits.len() as u32,
                expected: e.bits.len() as u32,
                count: e.bits.len(),
                len: e.bits.len(),
                float: false,
            });
        }
        let unequal = |i: &usize| !e.equal(*i, f.bits[*i]);
        if let Some(first) = (0..e.bits.len()).find(unequal) {
            return Some(Difference {
                tensor: e.tensor,
                at: e.at(first),
                found: f.bits[first],
                expected: e.bits[first],
                count: (first..e.bits.len()).filter(unequal).count(),
                len: e.bits.len(),
                float: e.float,
            });
        }
    }
    let extra = found.len().min(expected.len());
    let lone = found.get(extra).or(expected.get(extra))?;
    Some(Difference {
        tensor: lone.tensor,
        at: Vec::new(),
        found: found.len() as u32,
        expected: expected.len() as u32,
        count: lone.bits.len(),
        len: lone.bits.len(),
        float: false,
    })
}

/// Why a run gave no outputs that can be held against others.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The operation was refused or failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The inputs of the case do not make a matrix.
    #[error(transparent)]
    Pack(#[from] crate::pack::PackError),
    /// The inputs make no sparse matrix.
    #[error(transparent)]
    Sparse(#[from] crate::ops::sparse::SparseError),
    /// Something wrote behind a tensor.
    #[error("{tensor}: element {past} past its end was written")]
    Overrun {
        /// The tensor.
        tensor: &'static str,
        /// Which element of the guard zone.
        past: usize,
    },
    /// Something wrote in front of a tensor.
    #[error("{tensor}: element {element} in front of it was written")]
    Front {
        /// The tensor.
        tensor: &'static str,
        /// Which element of its buffer.
        element: usize,
    },
    /// The outputs depend on what memory held before.
    #[error("what memory held before shows in the result: {0}")]
    Poison(Difference),
}

/// Buffers of one run on one backend.
pub struct Bed<'a, B: Backend> {
    backend: &'a B,
    poison: u8,
    outputs: Vec<Output>,
}

impl<'a, B: Backend> Bed<'a, B> {
    /// The backend that runs.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    /// A tensor of `values`.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    pub fn input<T: Element>(&self, values: &[T]) -> Result<B::Buf<T>, OpError> {
        let mut buf = self.output(values.len())?;
        self.backend.write(&mut buf, 0, values)?;
        Ok(buf)
    }

    /// A tensor of `len` elements of poison.
    ///
    /// # Errors
    /// Out of memory; a failed launch.
    pub fn output<T: Element>(&self, len: usize) -> Result<B::Buf<T>, OpError> {
        let mut buf = self.backend.alloc("selftest", len + GUARD)?;
        self.backend.fill(&mut buf, self.poison)?;
        Ok(buf)
    }

    /// Reads a tensor of this bed back, and looks at what is behind it.
    ///
    /// # Errors
    /// Whatever an operation failed with; something was written behind the tensor.
    pub fn read<T: Element>(
        &self,
        tensor: &'static str,
        buf: &B::Buf<T>,
    ) -> Result<Vec<T>, RunError> {
        let mut values = vec![T::zeroed(); buf.len()];
        self.backend.read(buf, 0, &mut values)?;
        let guard = values.split_off(values.len().saturating_sub(GUARD));
        let bytes: &[u8] = bytemuck::cast_slice(&guard);
        match bytes.iter().position(|&b| b != self.poison) {
            Some(byte) => Err(RunError::Overrun { tensor, past: byte / size_of::<T>() }),
            None => Ok(values),
        }
    }

    /// Keeps a tensor of `f32` as an output.
    ///
    /// # Errors
    /// As [`Bed::read`].
    pub fn keep(
        &mut self,
        tensor: &'static str,
        dims: &[usize],
        buf: &B::Buf<f32>,
    ) -> Result<(), RunError> {
        let values = self.read(tensor, buf)?;
        self.outputs.push(Output::floats(tensor, dims, &values));
        Ok(())
    }

    /// Reads an output of this bed back, of which the first `at` elements were to be left alone: those behind them.
    ///
    /// # Errors
    /// As [`Bed::read`]; something was written in front.
    pub fn read_behind(
        &self,
        tensor: &'static str,
        buf: &B::Buf<f32>,
        at: usize,
    ) -> Result<Vec<f32>, RunError> {
        let mut values = self.read(tensor, buf)?;
        let behind = values.split_off(at.min(values.len()));
        let poison = u32::from_ne_bytes([self.poison; 4]);
        match values.iter().position(|v| v.to_bits() != poison) {
            Some(element) => Err(RunError::Front { tensor, element }),
            None => Ok(behind),
        }
    }

    /// A tensor of numbers of `T`, given as `f32`.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    pub fn floats<T: Float>(&self, values: &[f32]) -> Result<B::Buf<T>, OpError> {
        self.input(&values.iter().map(|&v| T::round(v)).collect::<Vec<_>>())
    }

    /// Keeps a tensor of `T` as an output, as `f32`.
    ///
    /// # Errors
    /// As [`Bed::read`].
    pub fn keep_floats<T: Float>(
        &mut self,
        tensor: &'static str,
        dims: &[usize],
        buf: &B::Buf<T>,
    ) -> Result<(), RunError> {
        let values: Vec<_> = self.read(tensor, buf)?.into_iter().map(T::widen).collect();
        self.outputs.push(Output::floats(tensor, dims, &values));
        Ok(())
    }

    /// Keeps a tensor of whole numbers as an output.
    ///
    /// # Errors
    /// As [`Bed::read`].
    pub fn keep_words(
        &mut self,
        tensor: &'static str,
        dims: &[usize],
        buf: &B::Buf<u32>,
    ) -> Result<(), RunError> {
        let values = self.read(tensor, buf)?;
        self.outputs.push(Output::words(tensor, dims, values));
        Ok(())
    }

    /// Keeps what was read in another way.
    pub fn push(&mut self, output: Output) {
        self.outputs.push(output);
    }
}

/// Inputs of an operation that know how to run it.
pub trait Run {
    /// Puts the inputs on the bed, runs, and keeps every tensor that the operation may write.
    ///
    /// # Errors
    /// The operation was refused or failed, or wrote behind a tensor.
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError>;
}

/// Implements [`Run`] for inputs with an `element` by their `run_as` of that type.
macro_rules! typed {
    ($inputs:ty) => {
        impl Run for $inputs {
            fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
                match self.element {
                    crate::ops::RowType::F32 => self.run_as::<f32, B>(bed),
                    crate::ops::RowType::F16 => self.run_as::<half::f16, B>(bed),
                    crate::ops::RowType::Bf16 => self.run_as::<half::bf16, B>(bed),
                }
            }
        }
    };
}
use typed;

/// Runs a case once over each of [`POISONS`].
///
/// # Errors
/// As [`Run::run`]; outputs that depend on the poison.
pub fn run<B: Backend>(backend: &B, case: &impl Run) -> Result<Vec<Output>, RunError> {
    let [first, second] = POISONS.map(|poison| {
        let mut bed = Bed { backend, poison, outputs: Vec::new() };
        case.run(&mut bed).map(|()| bed.outputs)
    });
    let first = first?;
    // The same backend twice is equal also where another one need not be.
    let exact: Vec<_> = first.iter().map(|o| Output { within: None, ..o.clone() }).collect();
    match difference(&second?, &exact) {
        Some(found) => Err(RunError::Poison(found)),
        None => Ok(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn the_first_difference_is_named_and_all_are_counted() {
        let want = Output::floats("y", &[2, 3], &[0.0, 1.0, f32::NAN, 3.0, 4.0, 5.0]);
        assert_eq!(difference(from_ref(&want), from_ref(&want)), None);
        let mut found = want.clone();
        found.bits[2] = 0xffff_ffff;
        assert_eq!(difference(from_ref(&found), from_ref(&want)), None, "every NaN is one");
        found.bits[0] = (-0.0f32).to_bits();
        found.bits[4] = 7;
        let first = difference(from_ref(&found), from_ref(&want)).unwrap();
        assert_eq!((&first.at[..], first.count), (&[0, 0][..], 2), "minus zero is not zero");
        found.bits[0] = 0;
        let first = difference(&[found], &[want]).unwrap();
        assert_eq!((&first.at[..], first.found, first.len), (&[1, 1][..], 7, 6));
        assert!(first.to_string().starts_with("y[1, 1] is 0x00000007"), "{first}");
    }

    #[test]
    fn a_missing_tensor_and_another_shape_are_differences() {
        let y = Output::words("y", &[2], vec![1, 2]);
        assert!(difference(&[], from_ref(&y)).is_some());
        assert!(difference(from_ref(&y), &[]).is_some());
        let other = Output::words("y", &[1, 2], vec![1, 2]);
        assert!(difference(&[other], &[y]).is_some());
    }

    #[test]
    fn integers_with_the_bits_of_a_nan_are_compared_as_integers() {
        let (a, b) = (0x7fc0_0000, 0x7fc0_0001);
        let words = |bits| Output::words("q", &[1], vec![bits]);
        assert!(difference(&[words(a)], &[words(b)]).is_some());
    }

    /// Writes one element too far.
    struct TooFar;

    impl Run for TooFar {
        fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
            let mut y = bed.output::<f32>(5)?;
            bed.backend().write(&mut y, 0, &[1.0; 6])?;
            bed.keep("y", &[5], &y)
        }
    }

    /// Leaves one element as it was.
    struct TooShort;

    impl Run for TooShort {
        fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
            let mut y = bed.output::<f32>(5)?;
            bed.backend().write(&mut y, 0, &[1.0; 4])?;
            bed.keep("y", &[5], &y)
        }
    }

    #[test]
    fn an_element_too_many_and_one_too_few_are_found() {
        let cpu = crate::cpu::CpuBackend::new(Some(1)).unwrap();
        let past = run(&cpu, &TooFar).unwrap_err();
        assert!(matches!(past, RunError::Overrun { tensor: "y", past: 0 }), "{past}");
        match run(&cpu, &TooShort).unwrap_err() {
            RunError::Poison(first) => assert_eq!((&first.at[..], first.count), (&[4][..], 1)),
            other => panic!("{other}"),
        }
    }
}
