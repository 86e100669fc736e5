//! Dense tables as rows of one of the three element types.

use contract::num::{RowType, bf16_to_f32, f16_to_f32};

/// A table `[rows, width]` whose rows start every `stride` elements.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// The elements, aligned for their type.
    pub data: &'a [u8],
    /// Element type.
    pub element: RowType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements between two rows.
    pub stride: usize,
}

/// Reads a row in its own element type: the body is compiled for each of them.
pub(super) trait RowReader {
    /// What comes of it.
    type Output;
    /// Takes the row's elements and the way to widen one.
    fn read<T: Copy>(self, row: &[T], widen: impl Fn(T) -> f32 + Copy) -> Self::Output;
}

impl Table<'_> {
    /// Row `row`, which is below `rows`.
    #[inline(always)]
    pub(super) fn read<R: RowReader>(&self, row: usize, reader: R) -> R::Output {
        let bytes = self.element.bytes();
        let row = &self.data[row * self.stride * bytes..][..self.width * bytes];
        match self.element {
            RowType::Bf16 => reader.read(bytemuck::cast_slice::<u8, u16>(row), bf16_to_f32),
            RowType::F16 => reader.read(bytemuck::cast_slice::<u8, u16>(row), f16_to_f32),
            RowType::F32 => reader.read(bytemuck::cast_slice::<u8, f32>(row), |v| v),
        }
    }
}
