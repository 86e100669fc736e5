//! Sums of the longest rows of rmsnorm and layernorm, which have more elements than `WHOLE` of the family: of each segment, which
//! [`crate::parts::Parts`] combine.
//!
//! ```text
//! t_j, q_j    sum of segment j and, around its own mean t_j / n_j, of its squares      num::sum
//! t_p = sum of t_j,   q_p = sum of around(q_j, t_j, n_j, t_p / n_p)                      for each part p, num::tree8
//! t   = sum of t_p,   q   = sum of around(q_p, t_p, n_p, t / K)                          num::strided_sum
//! ```
//! with `n` elements of each. Where squares are around zero (rmsnorm) `t` is left out, and `q` are plain sums.

use crate::num;
use crate::parts::{LINE_BYTES, PART, SEGMENT, scratch_bytes};

/// The sum of the squares of `len` elements around `mean`, given that around their own mean, and their sum.
#[inline(always)]
pub fn around(squares: f32, sum: f32, len: u32, mean: f32) -> f32 {
    let apart = sum / len as f32 - mean;
    num::fma(apart * len as f32, apart, squares)
}

/// Parts of which the warps of a block may tell each other something at once.
pub const SETS: u32 = 8;

/// Segments of a warp in a block, of elements of so many bytes: on their way, or waiting for their row.
pub const fn stages(bytes: u32) -> u32 {
    if bytes == 4 { 3 } else { 6 }
}

/// Those of them that wait, of a row of so many parts: the others are on their way. Who has heard more parts, waits longer for them.
#[inline(always)]
pub const fn behind(bytes: u32, parts: u32) -> u32 {
    match bytes {
        4 if parts > FEW_PARTS => 2,
        4 => 1,
        _ => 4,
    }
}

/// Parts of a row that a lane each hears.
pub const FEW_PARTS: u32 = 32;

/// Whether blocks have the same part of every row: those that keep what is beside it, and those of longer rows, of which none has to begin
/// with a part while others wait for its part of the row in front.
pub const fn same_parts(bytes: u32, parts: u32) -> bool {
    bytes == 2 || parts > FEW_PARTS
}

/// Bytes of such a segment: up to a piece more than it has, where rows are in none.
pub const fn stage_bytes(bytes: u32) -> u32 {
    SEGMENT * bytes + LINE_BYTES
}

/// Blocks of parts on a multiprocessor.
pub const PART_BLOCKS: u32 = 2;

/// Shared memory of a block of a part.
pub const fn part_smem_bytes(bytes: u32) -> u32 {
    scratch_bytes(SETS) + PART * stages(bytes) * stage_bytes(bytes)
}

/// The kernels of parts of a norm, one for each element.
macro_rules! parts {
    ($($name:ident $symbol:literal $bytes:literal $doc:literal;)*) => {
        /// The only parameter of kernels of parts.
        pub type PartArgs = crate::parts::PartArgs<Args>;

        $(
            #[doc = concat!("Parts of long rows of ", $doc, ".")]
            pub enum $name {}

            impl Kernel for $name {
                type Args = PartArgs;
                const SPEC: LaunchSpec = LaunchSpec::new($symbol, crate::parts::PART_THREADS)
                    .with_smem(crate::norm::part_smem_bytes($bytes))
                    .with_min_sm(90)
                    .with_min_blocks(crate::norm::PART_BLOCKS)
                    .all_at_once();
            }
        )*
    };
}
pub(crate) use parts;

const _: () = {
    let mut bytes = 2;
    while bytes <= 4 {
        assert!(behind(bytes, u32::MAX) < stages(bytes) && behind(bytes, u32::MAX) + 1 < SETS);
        assert!(PART_BLOCKS * (part_smem_bytes(bytes) + 1024) <= 228 * 1024);
        bytes += 2;
    }
};
