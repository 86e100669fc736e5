//! Token rows of the embedding table, widened to `f32`.
//!
//! | tensor  | element         | shape           | layout                      |
//! |---------|-----------------|-----------------|-----------------------------|
//! | `ids`   | `u32`           | `[M]`           | `ids_stride` apart          |
//! | `table` | bf16, f16, f32  | `[vocab, width]`| rows of `stride` elements   |
//! | `out`   | `f32`           | `[M, width]`    | contiguous                  |
//!
//! `out[m, i] = f32(table[ids[m], i])`, exact. The host refuses ids it can see; a row whose id is
//! not below `vocab` is filled with NaN.

use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Threads of a block; block `(m, y)` copies `THREADS` elements of row `m`.
pub const THREADS: u32 = 256;

/// Elements between two rows of a dense table on the device: `width` rounded up to 16 bytes for
/// every element type.
pub const fn row_stride(width: usize) -> usize {
    width.div_ceil(8) * 8
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Token ids.
    pub ids: DevPtr<u32>,
    /// Embedding table in the kernel's element type.
    pub table: DevPtr<u8>,
    /// Output rows.
    pub out: DevPtr<f32>,
    /// Elements from id to id.
    pub ids_stride: u32,
    /// Rows of the table.
    pub vocab: u32,
    /// Elements of a row.
    pub width: u32,
    /// Elements between two rows of the table.
    pub stride: u32,
}

/// Reads a bf16 table.
pub enum EmbedBf16 {}
/// Reads an f16 table.
pub enum EmbedF16 {}
/// Reads an f32 table.
pub enum EmbedF32 {}

impl Kernel for EmbedBf16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("embed_bf16", THREADS);
}

impl Kernel for EmbedF16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("embed_f16", THREADS);
}

impl Kernel for EmbedF32 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("embed_f32", THREADS);
}
