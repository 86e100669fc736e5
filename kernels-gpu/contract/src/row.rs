//! How the families that reduce rows spread them over threads: softmax, layernorm, rmsnorm.
//!
//! Short rows belong to 8, 16 or 32 lanes of a warp and wait in their registers; longer ones belong to a block, or to the
//! blocks of a cluster, and wait in shared memory as `f32`; those that do not fit there pass through it in chunks, and
//! are read again in every pass. Of a cluster each block has the same number of partials, side by side, and their elements.
//! Rows are read and written in pieces of 16 bytes where each starts on such a boundary, else element by element.
//!
//! Partial `p` of the 256-partial sum ([`crate::num`]) takes its elements in order, wherever they wait. None of this shows in a
//! bit, and neither does the batch.

/// Threads of a block that has short rows.
pub const THREADS: u32 = 256;

/// Threads of a block that has one row of up to [`MIDDLE`] elements: few, so that what a row costs beside its elements
/// is not done by many.
pub const MIDDLE_THREADS: u32 = 128;

/// Threads of a block that has one longer row, or its part of one.
pub const LONG_THREADS: u32 = 256;

/// Most elements, of `bytes` each, of a row of a block of [`MIDDLE_THREADS`] where there is another choice. Measured.
const fn few(bytes: u32) -> u32 {
    if bytes == 4 { 4096 } else { MIDDLE }
}

/// Most elements of a short row.
pub const SHORT: u32 = 1024;

/// Most elements of a row in the shared memory of a block of [`MIDDLE_THREADS`].
pub const MIDDLE: u32 = 8192;

/// Most elements in the shared memory of a block of [`LONG_THREADS`], from sm_90.
pub const LONG: u32 = 56 * 1024;

/// Blocks of [`LONG_THREADS`] that share a row of `k` elements: so many that several rows fit on a multiprocessor,
/// since a row that is loaded and one that is written then overlap.
#[inline(always)]
pub const fn split(k: u32) -> u32 {
    match k {
        0..=16384 => 1,
        16385..=32768 => 2,
        32769..=65536 => 4,
        _ => 8,
    }
}

/// Most elements of a row.
pub const MAX_LEN: usize = 1 << 30;

/// Most rows.
pub const MAX_ROWS: usize = (1 << 31) - 1;

/// Bytes of shared memory beside a row: two times 256 partials, and a word of each warp of a cluster.
pub const SCRATCH_BYTES: u32 = 4 * (2 * 256 + 64);

/// Shared memory of a block that holds `elements`, in bytes.
pub const fn smem_bytes(elements: u32) -> u32 {
    4 * elements + SCRATCH_BYTES
}

/// Who has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// So many lanes of a warp.
    Lanes(u32),
    /// A block of [`MIDDLE_THREADS`].
    Block,
    /// A block of [`LONG_THREADS`], or several.
    LongBlock,
}

/// Who has a row of `k` elements of `bytes` each.
#[inline(always)]
pub const fn owner(k: u32, bytes: u32) -> Owner {
    match k {
        0..=64 => Owner::Lanes(8),
        65..=128 => Owner::Lanes(16),
        129..=SHORT => Owner::Lanes(32),
        _ if k <= few(bytes) => Owner::Block,
        _ => Owner::LongBlock,
    }
}

/// Rows that lanes of `m` rows of `k` elements have one after the other: more than one where rows are many and
/// short, so that a block lives long enough to be worth its start.
#[inline(always)]
pub const fn turns(m: u32, k: u32, lanes: u32) -> u32 {
    let most = if k > SHORT / 2 { 1 } else { SHORT / if k < 128 { 128 } else { k } };
    let many = m / (THREADS / lanes) / 2048;
    if many < 1 {
        1
    } else if many < most {
        many
    } else {
        most
    }
}

/// Blocks of a launch over `m` rows of `k` elements.
pub const fn grid(m: u32, k: u32, owner: Owner) -> [u32; 3] {
    let blocks = match owner {
        Owner::Lanes(lanes) => m.div_ceil(THREADS / lanes * turns(m, k, lanes)),
        Owner::Block => m,
        Owner::LongBlock => m * split(k),
    };
    [blocks, 1, 1]
}

/// Shared memory of a launch over rows of `k` elements, in blocks with room for `room`, `blocks` of a row.
pub const fn smem_of(k: u32, room: u32, blocks: u32) -> u32 {
    let own = k.div_ceil(256) * (256 / blocks);
    smem_bytes(if blocks == 1 && k < room {
        k.next_multiple_of(8)
    } else if own < room {
        own
    } else {
        room
    })
}

/// The kernels of a family, one for each owner of a row and each element.
macro_rules! kernels {
    ($($short:ident $middle:ident $long:ident $symbols:expr, $doc:literal;)*) => {$(
        #[doc = concat!("Short rows of ", $doc, ".")]
        pub enum $short {}

        impl Kernel for $short {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbols[0], crate::row::THREADS)
                .with_smem(4 * crate::row::SHORT * (crate::row::THREADS / 32))
                .with_min_blocks(3);
        }

        #[doc = concat!("Rows of ", $doc, ", a block each.")]
        pub enum $middle {}

        impl Kernel for $middle {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbols[1], crate::row::MIDDLE_THREADS)
                .with_smem(crate::row::smem_bytes(crate::row::MIDDLE))
                .with_min_blocks(7);

            fn smem_bytes(args: &Args) -> u32 {
                crate::row::smem_of(args.k, crate::row::MIDDLE, 1)
            }
        }

        #[doc = concat!("Long rows of ", $doc, ", a block or several each.")]
        pub enum $long {}

        impl Kernel for $long {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbols[2], crate::row::LONG_THREADS)
                .with_smem(crate::row::smem_bytes(crate::row::LONG))
                .with_min_sm(90)
                .with_min_blocks(4);

            fn smem_bytes(args: &Args) -> u32 {
                crate::row::smem_of(args.k, crate::row::LONG, crate::row::split(args.k))
            }

            fn cluster(args: &Args) -> u32 {
                crate::row::split(args.k)
            }
        }
    )*};
}
pub(crate) use kernels;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_owners() {
        for bytes in [2, 4] {
            let owner = |k| owner(k, bytes);
            assert_eq!((owner(1), owner(64)), (Owner::Lanes(8), Owner::Lanes(8)));
            assert_eq!((owner(65), owner(128)), (Owner::Lanes(16), Owner::Lanes(16)));
            assert_eq!((owner(129), owner(1024)), (Owner::Lanes(32), Owner::Lanes(32)));
            assert_eq!((owner(1025), owner(few(bytes))), (Owner::Block, Owner::Block));
            assert_eq!(owner(few(bytes) + 1), Owner::LongBlock);
        }
        assert_eq!(grid(3, 40_000, Owner::LongBlock), [12, 1, 1]);
        assert_eq!(grid(100, 64, Owner::Lanes(8)), [4, 1, 1]);
        assert_eq!(grid(1 << 20, 64, Owner::Lanes(8)), [4096, 1, 1]);
        assert_eq!(grid(100, 2000, Owner::Block), [100, 1, 1]);
        for k in [4097, 8192, 8193, 20_001, 32_768, 131_072, 8 * LONG] {
            let own = k.div_ceil(256) * (256 / split(k));
            assert!(own <= LONG && smem_of(k, LONG, split(k)) >= smem_bytes(k.div_ceil(split(k))));
        }
        assert_eq!(smem_of(1 << 20, LONG, 8), smem_bytes(LONG));
    }
}
