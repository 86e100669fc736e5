//! Ternary weights in every layout they are stored in, and in the one the kernels read.
//!
//! The device layout (`contract::w2a8`) is the meeting point: each foreign layout has a module that
//! turns its bytes into device rows and device rows into its bytes, exactly, for every shape the
//! layout can hold. Shapes a layout cannot hold are refused with the numbers.
//!
//! | module      | code of t | order                                                         |
//! |-------------|-----------|---------------------------------------------------------------|
//! | [`hf`]      | t + 1     | byte row r: rows r, r+R, r+2R, r+3R; low bits first; R = ceil(N/4) |
//! | [`i2_s`]    | t + 1     | 128 values in 32 bytes, first quarter in the top bits         |
//! | [`tq::TQ1_0`] | base 3  | 256 values in 52 bytes and an f16 scale                       |
//! | [`tq::TQ2_0`] | t + 1   | 256 values in 64 bytes, first quarter in the low bits, f16 scale |
//! | [`int2`]    | t + 2     | 16 x 32 tiles, permuted                                       |
//! | [`tl`]      | pairs, triples | tiles of 32 rows for lookup matmul                       |
//! | [`bitnet_cpp`] | TL1, TL2 | tiled for generated CPU kernels; the tiling is not in the file |
//! | [`t_mac`]   | 1 to 4 bits | bit rows, permuted; the layout is not in the data            |
//! | [`bits`]    | 1 to 4 bits | the same tiles, bit by bit: no ternaries                    |
//! | [`ternary`] | -         | float masters, rounded by their mean absolute value           |

pub mod bitnet_cpp;
pub mod bits;
pub mod hf;
pub mod i2_s;
pub mod int2;
pub mod t_mac;
pub mod ternary;
pub mod tl;
pub mod tq;
pub mod trits;
pub mod w2;
pub mod word;

pub use bits::PackedBits;
pub use tl::PackedTl;
pub use w2::{PackedW2, TernaryHasher, TernarySource, W2Builder, ternary_sha256};

/// What a packed matrix can be refused for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// N or K outside what the device layout allows.
    #[error(
        "a matrix of {n} x {k} is outside the device layout (1 <= N <= {max_n}, 1 <= K <= {max_k})",
        max_n = contract::w2a8::MAX_ROWS, max_k = contract::w2a8::MAX_K
    )]
    Shape {
        /// Rows asked for.
        n: usize,
        /// Columns asked for.
        k: usize,
    },
    /// The layout only holds multiples of some block.
    #[error(
        "{layout} needs {dim} to be a multiple of {multiple}, found {found}; use the Hugging Face layout, which holds any shape"
    )]
    Multiple {
        /// The layout's name.
        layout: &'static str,
        /// `N` or `K`.
        dim: &'static str,
        /// The block.
        multiple: usize,
        /// What the matrix has.
        found: usize,
    },
    /// A buffer does not have the length that the shape needs.
    #[error("{what}: {expected} elements are needed, found {found}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements the shape needs.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// A range of rows outside the matrix.
    #[error("rows {start}..{end} are outside a matrix of {n} rows")]
    Rows {
        /// First row asked for.
        start: usize,
        /// One past the last row asked for.
        end: usize,
        /// Rows there are.
        n: usize,
    },
    /// A 2-bit code that stands for no ternary.
    #[error(
        "row {row}, column {col} holds code {code}, which stands for no ternary; the data is damaged or in another layout"
    )]
    InvalidCode {
        /// Logical row.
        row: usize,
        /// Logical column.
        col: usize,
        /// The code as stored.
        code: u8,
    },
    /// Weights of a width that there is no layout for.
    #[error("weights of {bits} bits; 1 to 4 are allowed")]
    Bits {
        /// What was asked for.
        bits: usize,
    },
    /// A code of more bits than its matrix has.
    #[error("row {row}, column {col} holds code {code}; a {bits}-bit code is below {}", 1u32 << bits)]
    CodeBits {
        /// Row.
        row: usize,
        /// Column.
        col: usize,
        /// The code.
        code: u8,
        /// Bits of the matrix.
        bits: usize,
    },
    /// A scale or zero point that nothing can be computed with.
    #[error("the {what} of row {row}, group {group} is {value}; it must be finite")]
    GroupValue {
        /// Which of them.
        what: &'static str,
        /// Row.
        row: usize,
        /// Group of columns.
        group: usize,
        /// The value.
        value: f32,
    },
    /// Padding that is not zero.
    #[error(
        "row {row}, column {col} is padding and not zero; the data is damaged or of another shape"
    )]
    Padding {
        /// Row, counted with padding.
        row: usize,
        /// Column, counted with padding.
        col: usize,
    },
    /// A ternary outside -1, 0, 1.
    #[error("row {row}, column {col} holds {value}; ternaries are -1, 0 and 1")]
    NotTernary {
        /// Logical row.
        row: usize,
        /// Logical column.
        col: usize,
        /// The value given.
        value: i8,
    },
    /// A scale that cannot multiply anything sensibly.
    #[error("a scale of {scale} is not a positive finite number")]
    Scale {
        /// The dequantisation multiplier.
        scale: f32,
    },
    /// Blocks of one matrix carry different scales, so it is no b1.58 matrix.
    #[error(
        "row {row}, block {block} has scale {found}, the blocks before it {expected}; a b1.58 matrix has one scale"
    )]
    ScalesDiffer {
        /// Logical row.
        row: usize,
        /// Block inside the row.
        block: usize,
        /// Scale of the earlier blocks.
        expected: f32,
        /// Scale of this block.
        found: f32,
    },
    /// A master weight is NaN or infinite.
    #[error("row {row}, column {col} holds {value}; master weights must be finite")]
    NotFinite {
        /// Logical row.
        row: usize,
        /// Logical column.
        col: usize,
        /// The value.
        value: f32,
    },
    /// Rows of different length in one fused matrix.
    #[error("a part with K = {found} cannot be fused with parts of K = {expected}")]
    FusedK {
        /// K of the earlier parts.
        expected: usize,
        /// K of this part.
        found: usize,
    },
    /// Too many or no parts in one fused matrix.
    #[error("{parts} parts cannot be fused; 1 to {max} can", max = contract::w2a8::MAX_SEGMENTS)]
    Parts {
        /// Parts given.
        parts: usize,
    },
}

/// Refuses a matrix the device layout cannot hold.
pub(crate) fn check_shape(n: usize, k: usize) -> Result<(), PackError> {
    use contract::w2a8::{MAX_K, MAX_ROWS};
    if n == 0 || k == 0 || n > MAX_ROWS || k > MAX_K {
        return Err(PackError::Shape { n, k });
    }
    Ok(())
}

/// Refuses a buffer of the wrong length.
pub(crate) fn check_len(
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), PackError> {
    if found != expected {
        return Err(PackError::Length { what, expected, found });
    }
    Ok(())
}

#[cfg(test)]
mod lut_tests;
#[cfg(test)]
mod tests;
