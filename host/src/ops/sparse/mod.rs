//! Host side of [`contract::sparse`]: matrices with unstructured zeros, and products with them.
//!
//! A matrix is made and checked on the host ([`Csr`], [`Bitmap`], [`TernaryBitmap`]), put on a backend
//! ([`SparseLinear`], [`SparseCsr`], [`SparseTernary`], [`SparseConv2d`]) and multiplied by an
//! operation ([`Linear`], [`LinearCsr`], [`LinearTernary`], [`Conv2d`]). [`prune`] makes zeros by
//! magnitude, [`pays_off`] says from where on they are worth it.

mod bitmap;
mod choose;
mod conv2d;
#[cfg(feature = "cuda")]
mod cost;
mod csr;
mod linear;
mod linear_csr;
mod prune;
mod ternary;

use contract::sparse::MAX_SIDE;
use thiserror::Error;

use super::Float;

pub use bitmap::Bitmap;
pub use choose::{Measured, measured, pays_off};
pub use conv2d::{Conv2d, ConvShape, SparseConv2d, bitmap_from_torch};
pub use csr::Csr;
pub use linear::{Linear, SparseLinear};
pub use linear_csr::{LinearCsr, SparseCsr};
pub use prune::prune;
pub use ternary::{LinearTernary, SparseTernary, TernaryBitmap};

const OP: &str = "sparse";

/// A sparse matrix that cannot be.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SparseError {
    /// A side of the matrix.
    #[error("a matrix of {n} by {k}; sides of 1 to 2^24 with at most 2^40 elements are allowed")]
    Sides {
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
    },
    /// A part of another length than the others say.
    #[error(
        "{what}: {found} found, {expected} expected; the matrix was cut or belongs to other sides"
    )]
    Count {
        /// Which part.
        what: &'static str,
        /// What was found.
        found: usize,
        /// What the other parts say.
        expected: usize,
    },
    /// Row offsets that descend or pass the end.
    #[error(
        "row {row} goes from value {from} to {to} of {stored}; offsets may not descend or pass the end"
    )]
    Offsets {
        /// The row.
        row: usize,
        /// Its first value.
        from: usize,
        /// The end of its values.
        to: usize,
        /// Values of the matrix.
        stored: usize,
    },
    /// A column outside of the matrix.
    #[error("row {row}: column {column} at entry {at}; columns are below {k}")]
    Column {
        /// The row.
        row: usize,
        /// The entry.
        at: usize,
        /// What it says.
        column: usize,
        /// Columns of the matrix.
        k: usize,
    },
    /// Columns that do not ascend.
    #[error(
        "row {row}: column {column} after column {before} at entry {at}; sort each row and join equal columns"
    )]
    Order {
        /// The row.
        row: usize,
        /// The second entry of the two.
        at: usize,
        /// The first column.
        before: usize,
        /// The second.
        column: usize,
    },
    /// A bit of the mask that stands for no element.
    #[error("the mask has a weight at row {row}, column {column} of a matrix of {n} by {k}")]
    Outside {
        /// The row.
        row: usize,
        /// The column.
        column: usize,
        /// Rows of the matrix.
        n: usize,
        /// Columns of the matrix.
        k: usize,
    },
    /// A weight that is not ternary.
    #[error("row {row}, column {column}: {found}; ternary weights are -1, 0 and 1")]
    NotTernary {
        /// The row.
        row: usize,
        /// The column.
        column: usize,
        /// The weight.
        found: i8,
    },
    /// More values than offsets can count.
    #[error("{stored} values; split the matrix by rows")]
    TooMany {
        /// Values so far.
        stored: usize,
    },
    /// A sparsity that is no share.
    #[error("a sparsity of {asked}; 0 to 1 is allowed")]
    Sparsity {
        /// What was asked for.
        asked: f64,
    },
}

/// Whether a dense element is kept: everything but +0, so that what comes back has the same bits.
fn is_stored<T: Float>(value: T) -> bool {
    bytemuck::bytes_of(&value).iter().any(|&byte| byte != 0)
}

fn sides(n: usize, k: usize) -> Result<(), SparseError> {
    let fits = |side: usize| (1..=MAX_SIDE).contains(&side);
    match fits(n) && fits(k) && n * k <= 1 << 40 {
        true => Ok(()),
        false => Err(SparseError::Sides { n, k }),
    }
}
