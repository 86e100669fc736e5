//! Parameters of the kernels, with maps for those that the copy engine serves.

use contract::bmm::{Args, BULK_BOX, BulkArgs, Matrix};
use contract::launch::{Kernel, TensorMap};
use contract::num::RowType;

use super::OP;
use crate::driver::{MapElement, Mapped};
use crate::ops::{CudaBackend, OpError};

/// A kernel's parameter, made of the product.
pub(super) trait Parameter: Sized {
    /// `None`: the driver makes no map of a factor.
    fn of(args: Args) -> Option<Self>;
}

impl Parameter for Args {
    fn of(args: Args) -> Option<Self> {
        Some(args)
    }
}

impl Parameter for BulkArgs {
    fn of(base: Args) -> Option<Self> {
        let Args { m, n, k, .. } = base;
        Some(Self { a: map(&base, &base.a, [m, k])?, b: map(&base, &base.b, [k, n])?, base })
    }
}

/// The map of a factor of so many rows and columns.
fn map(args: &Args, matrix: &Matrix, [rows, columns]: [u32; 2]) -> Option<TensorMap> {
    let (lines, len) = if matrix.transposed == 0 { (rows, columns) } else { (columns, rows) };
    let line = if matrix.ld == 0 { u64::from(len) } else { matrix.ld };
    // One matrix for all has no stride.
    let (batch, stride) = match matrix.stride {
        0 => (1, line * u64::from(lines)),
        stride => (args.batch, stride),
    };
    let half = args.element == RowType::F16 as u32;
    let mapped = Mapped {
        element: if half { MapElement::F16 } else { MapElement::Bf16 },
        address: matrix.addr.addr(),
        sizes: [len.into(), lines.into(), batch.into(), 1],
        strides: [2 * line, 2 * stride, 2 * stride],
    };
    mapped.tiles([BULK_BOX, BULK_BOX, 1, 1])
}

/// Launches a kernel of the family.
///
/// # Safety
///
/// As [`CudaBackend::launch`].
pub(super) unsafe fn launch<K: Kernel<Args: Parameter>>(
    cuda: &CudaBackend,
    grid: [u32; 3],
    args: Args,
) -> Result<(), OpError> {
    let Some(args) = K::Args::of(args) else {
        let allowed = "the driver makes no tensor map of a factor; name another variant";
        return Err(OpError::Dimension { op: OP, what: "variant", found: 0, allowed });
    };
    // SAFETY: the caller's promise.
    unsafe { cuda.launch::<K>(grid, args) }
}
