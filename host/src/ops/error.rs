//! Why an operation was refused or failed.

use std::ops::Range;

use thiserror::Error;

/// An operation that was refused before it ran, or a backend that failed while running it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpError {
    /// A tensor is too small for the shape that was asked for.
    #[error(
        "{op}: tensor `{tensor}` needs {needed} elements and has {found}; allocate it for the shape that is asked for"
    )]
    ShortTensor {
        /// The operation.
        op: &'static str,
        /// The tensor, by its name in the contract.
        tensor: &'static str,
        /// Elements needed.
        needed: usize,
        /// Elements found.
        found: usize,
    },
    /// A dimension that the operation does not take.
    #[error("{op}: {what} is {found}; {allowed}")]
    Dimension {
        /// The operation.
        op: &'static str,
        /// Which dimension or parameter.
        what: &'static str,
        /// What was asked for.
        found: usize,
        /// What it takes.
        allowed: &'static str,
    },
    /// Two tensors of one operation disagree.
    #[error("{op}: {what} is {found} in one tensor and {expected} in another")]
    Mismatch {
        /// The operation.
        op: &'static str,
        /// Which dimension.
        what: &'static str,
        /// The one value.
        found: usize,
        /// The other.
        expected: usize,
    },
    /// Weights in a layout that the operation does not take.
    #[error("{op}: the weights are packed as {found}; this operation takes {takes}")]
    Layout {
        /// The operation.
        op: &'static str,
        /// The layout of the weights.
        found: &'static str,
        /// What it takes.
        takes: &'static str,
    },
    /// The step that came last made no logits.
    #[error(
        "{op}: a step by way of the int8 head finds its token without them; choose the stored head to read logits"
    )]
    NoLogits {
        /// The operation.
        op: &'static str,
    },
    /// A copy outside of a buffer.
    #[error("{op}: elements {at}..{} of a buffer of {len}", at.saturating_add(*count))]
    Range {
        /// The copy.
        op: &'static str,
        /// First element.
        at: usize,
        /// Elements asked for.
        count: usize,
        /// Elements of the buffer.
        len: usize,
    },
    /// A copy onto what it reads.
    #[error("{op}: {count} elements from {from} to {to} overlap")]
    Overlap {
        /// The copy.
        op: &'static str,
        /// First element that is read.
        from: usize,
        /// First element that is written.
        to: usize,
        /// Elements.
        count: usize,
    },
    /// The host could not reserve memory.
    #[error("no memory for `{label}`: {bytes} bytes; use a smaller context or a smaller model")]
    HostMemory {
        /// What it was for.
        label: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The CPU backend cannot be made as asked.
    #[error(transparent)]
    Cpu(#[from] crate::cpu::CpuError),
    /// The GPU or its driver.
    #[error(transparent)]
    Cuda(#[from] crate::driver::CudaError),
}

impl OpError {
    /// Whether the device cannot have the variant of a kernel that was asked for: another one may run.
    pub fn is_absent(&self) -> bool {
        use crate::driver::CudaError;
        matches!(self, Self::Cuda(CudaError::Launch(error)) if error.is_absent())
    }
}

macro_rules! through_cuda_error {
    ($($error:ident)*) => { $(
        impl From<crate::driver::$error> for OpError {
            fn from(error: crate::driver::$error) -> Self {
                Self::Cuda(error.into())
            }
        }
    )* };
}
through_cuda_error! { LaunchError GraphError DriverError }

#[cfg(feature = "cuda")]
impl From<crate::memory::MemoryError> for OpError {
    fn from(error: crate::memory::MemoryError) -> Self {
        Self::Cuda(error.into())
    }
}

/// Refuses a tensor of fewer than `needed` elements.
pub(crate) fn at_least(
    op: &'static str,
    tensor: &'static str,
    found: usize,
    needed: usize,
) -> Result<(), OpError> {
    if found < needed {
        return Err(OpError::ShortTensor { op, tensor, needed, found });
    }
    Ok(())
}

/// Refuses a dimension outside of `1..=max`.
pub(crate) fn dimension(
    op: &'static str,
    what: &'static str,
    found: usize,
    max: usize,
    allowed: &'static str,
) -> Result<(), OpError> {
    if found == 0 || found > max {
        return Err(OpError::Dimension { op, what, found, allowed });
    }
    Ok(())
}

/// Refuses two values that should be one.
pub(crate) fn same(
    op: &'static str,
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), OpError> {
    if found != expected {
        return Err(OpError::Mismatch { op, what, found, expected });
    }
    Ok(())
}

/// The number of elements of these dimensions; refuses what no address space holds.
pub(crate) fn elements(op: &'static str, dims: &[usize]) -> Result<usize, OpError> {
    const MOST: usize = isize::MAX as usize / 8;
    let product = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    product.filter(|&product| product <= MOST).ok_or(OpError::Dimension {
        op,
        what: "number of elements",
        found: usize::MAX,
        allowed: "the product of the dimensions must stay below 2^60; use fewer rows",
    })
}

/// Elements `at..at + count` of a buffer of `len`.
pub(crate) fn place(
    op: &'static str,
    at: usize,
    count: usize,
    len: usize,
) -> Result<Range<usize>, OpError> {
    let end = at.checked_add(count).filter(|&end| end <= len);
    Ok(at..end.ok_or(OpError::Range { op, at, count, len })?)
}

/// The elements that a copy within a buffer of `len` reads, and those that it writes.
pub(crate) fn apart(
    op: &'static str,
    from: usize,
    to: usize,
    count: usize,
    len: usize,
) -> Result<[Range<usize>; 2], OpError> {
    let places = [place(op, from, count, len)?, place(op, to, count, len)?];
    if from.abs_diff(to) < count {
        return Err(OpError::Overlap { op, from, to, count });
    }
    Ok(places)
}
