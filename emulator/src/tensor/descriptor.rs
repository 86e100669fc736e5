//! Matrices in shared memory, as `wgmma` finds them.

use std::cell::RefCell;

use super::fragment::Piece;
use super::swizzled;

/// Shared memory and a matrix descriptor ("Matrix Descriptor Format").
///
/// Numbers in a descriptor are in 16 bytes: bits 0 to 13 the address, 16 to 29 the leading dimension
/// byte offset, 32 to 45 the stride dimension byte offset; bits 49 to 51 are the base offset, 62 and 63 the
/// swizzling mode (1: 128 bytes, 2: 64, 3: 32).
///
/// Addresses are found without swizzling first, from the start address on, which may lie inside of an atom;
/// then their bits 4 to 6 change by bits 7 to 9, less the base offset.
pub(super) struct Matrix<'a> {
    shared: &'a [u8],
    start: u32,
    leading: u32,
    stride: u32,
    phase: u32,
    /// Bytes of a swizzled row; 16 where nothing is swizzled.
    span: u32,
    /// Where the pieces stand that were read.
    read: RefCell<Vec<u32>>,
}

impl<'a> Matrix<'a> {
    /// `shared[0]` is address 0 of the shared window.
    pub(super) fn new(shared: &'a [u8], descriptor: u64) -> Self {
        let bytes = |bit: u32| ((descriptor >> bit & 0x3fff) as u32) << 4;
        Self {
            shared,
            start: bytes(0),
            leading: bytes(16),
            stride: bytes(32),
            phase: (descriptor >> 49 & 7) as u32,
            span: [16, 128, 64, 32][(descriptor >> 62) as usize],
            read: RefCell::default(),
        }
    }

    /// Where the pieces stand that were read.
    pub(super) fn read(self) -> Vec<u32> {
        self.read.into_inner()
    }

    /// Of a k-major matrix: 16 bytes of row `row` of `A` or column `row` of `B`, of half `half` of the 32 bytes.
    ///
    /// Eight rows, each `span` bytes after the one before, make an atom; the next eight follow at the stride. Without
    /// swizzling the second half stands at the leading offset.
    pub(super) fn along_k(&self, row: usize, half: usize) -> Result<Piece, String> {
        let (row, half) = (row as u32, half as u32);
        let across = if self.span == 16 { self.leading } else { 16 };
        self.piece(row / 8 * self.stride + row % 8 * self.span + half * across)
    }

    /// Of an mn-major matrix: the `piece`-th 16 bytes of rows of `A` or columns of `B`, at term `k`.
    ///
    /// A row of `span` bytes holds neighbours at one k, eight of these rows make an atom. The next neighbours stand
    /// at the leading offset, the next eight terms at the stride; the other way round without swizzling.
    pub(super) fn across_k(&self, k: usize, piece: usize) -> Result<Piece, String> {
        let (k, piece) = (k as u32, piece as u32);
        let pieces = self.span / 16;
        let (next, deeper) = match self.span {
            16 => (self.stride, self.leading),
            _ => (self.leading, self.stride),
        };
        let in_row = piece / pieces * next + piece % pieces * 16;
        self.piece(in_row + k / 8 * deeper + k % 8 * self.span)
    }

    /// The 16 bytes at an offset.
    fn piece(&self, offset: u32) -> Result<Piece, String> {
        let at = swizzled(self.start + offset, self.span, self.phase) as usize;
        let bytes = self.shared.get(at..at + 16).ok_or_else(|| {
            let bytes = self.shared.len();
            format!("wgmma reads 16 bytes at {at:#x} of {bytes} bytes of shared memory")
        })?;
        self.read.borrow_mut().push(at as u32);
        let word = |i: usize| [bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]];
        Ok(std::array::from_fn(|i| u32::from_le_bytes(word(4 * i))))
    }
}
