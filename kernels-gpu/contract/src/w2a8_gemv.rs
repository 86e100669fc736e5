//! W2A8 GEMV, `M = 1`: `y[n] = dequantise(sum_k q[k] * t[n, k])`.
//!
//! Layout, tensors and formula: [`crate::w2a8`]. The integer sum is exact, so every variant gives
//! the same bits. A variant is `LANES` lanes to a row, `ROWS` rows at once per lane group, and
//! `UNROLL` chunks whose loads are all in flight before the first is used; `PARTS` lane groups of a block share
//! the K of their rows. Each takes any N and K.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::{ActStats, Segments};

/// Most shared memory that [`Args::room`] asks for, in bytes: three such blocks find room on a multiprocessor of 228 KB.
pub const MAX_ROOM: u32 = 75 * 1024;

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Packed weights `[n, 4 * chunks]`.
    pub w: DevPtr<u32>,
    /// One row of quantised activations.
    pub acts: DevPtr<u32>,
    /// Its scale and sum.
    pub stats: DevPtr<ActStats>,
    /// Output `[n]`.
    pub y: DevPtr<f32>,
    /// Output rows.
    pub n: u32,
    /// 16-byte chunks of a weight row: `K / 64`, rounded up.
    pub chunks: u32,
    /// Weight scales.
    pub segments: Segments,
    /// Shared memory of a block in bytes, to keep blocks apart: see [`room`].
    pub room: u32,
}

/// A compiled variant, as data for the choice and for the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its launch rules.
    pub spec: LaunchSpec,
    /// Lanes that share one row.
    pub lanes: u32,
    /// Rows of one lane group.
    pub rows: u32,
    /// Chunks in flight per lane and row.
    pub unroll: u32,
    /// Lane groups that share the K of their rows.
    pub parts: u32,
}

impl Variant {
    /// Output rows of one block.
    pub const fn rows_per_block(&self) -> u32 {
        self.spec.block[0] / self.lanes / self.parts * self.rows
    }


    /// Blocks for `n` output rows.
    pub const fn grid(&self, n: u32) -> [u32; 3] {
        [n.div_ceil(self.rows_per_block()), 1, 1]
    }
}

/// Shared memory of a block of `spec`, in bytes, so that a multiprocessor of 228 KB has places for half more blocks than its share
/// of `blocks`, with `sms` of them. In a chain with programmatic dependent launch the blocks of the next kernel begin before those of this one have
/// ended, and take what places there are: all on some multiprocessors, where the others would take as many. 0 where that is not to be kept from:
/// more than six blocks fill a multiprocessor.
pub const fn room(spec: &LaunchSpec, blocks: u32, sms: u32) -> u32 {
    let places = (3 * blocks as u64).div_ceil(2 * sms as u64);
    match places {
        _ if spec.room_bytes == 0 => 0,
        0..=3 => spec.room_bytes,
        // A block has a KB for itself besides.
        4..=6 => (228 / places as u32 - 1) * 1024,
        _ => 0,
    }
}

macro_rules! variants {
    ($($name:ident $symbol:literal $threads:literal $lanes:literal $rows:literal $unroll:literal $parts:literal $room:literal;)*) => {
        $(
            #[doc = concat!("Kernel `", $symbol, "`.")]
            pub enum $name {}

            impl Kernel for $name {
                type Args = Args;
                // The parts of a row meet in shared memory.
                const SPEC: LaunchSpec = LaunchSpec::new($symbol, $threads)
                    .with_smem(if $parts > 1 { 4 * $rows * ($threads / $lanes) } else { 0 })
                    .with_room($room * MAX_ROOM);

                fn smem_bytes(args: &Args) -> u32 {
                    if Self::SPEC.room_bytes > 0 { args.room } else { Self::SPEC.smem_bytes }
                }
            }
        )*

        /// Every compiled variant.
        pub const VARIANTS: &[Variant] = &[
            $(Variant { spec: $name::SPEC, lanes: $lanes, rows: $rows, unroll: $unroll, parts: $parts }),*
        ];

        /// Calls `$mac! { Name "symbol" threads lanes rows unroll parts; ... }` with every variant.
        #[macro_export]
        macro_rules! for_each_w2a8_gemv {
            ($mac:ident) => { $mac! { $($name $symbol $threads $lanes $rows $unroll $parts;)* } };
        }
    };
}

// Symbol, threads, lanes, rows, chunks, parts, whether blocks are kept apart.
variants! {
    L16R1U4 "w2a8_gemv_l16r1u4" 128 16 1 4 1 0;
    L16R4U1 "w2a8_gemv_l16r4u1" 128 16 4 1 1 0;
    L32R2U2 "w2a8_gemv_l32r2u2" 128 32 2 2 1 0;
    L32R2U4 "w2a8_gemv_l32r2u4" 64 32 2 4 1 0;
    L32R4U1 "w2a8_gemv_l32r4u1" 128 32 4 1 1 0;
    L32R4U2 "w2a8_gemv_l32r4u2" 64 32 4 2 1 1;
    L32R4U2P2 "w2a8_gemv_l32r4u2p2" 64 32 4 2 2 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_few_rows_are_kept_apart() {
        let places = |n: u32, sms| {
            let bytes = room(&L32R4U2::SPEC, VARIANTS[5].grid(n)[0], sms);
            assert!(bytes <= MAX_ROOM);
            if bytes == 0 { 0 } else { 228 * 1024 / (bytes + 1024) }
        };
        // Measured on an H200: the best of each.
        for (n, best) in [(2560, 4), (3200, 5), (3840, 6), (4096, 6), (4800, 0), (6144, 0)] {
            assert_eq!(places(n, 132), best, "{n}");
        }
        assert_eq!([places(1, 132), places(u32::MAX, 1)], [3, 0]);
        assert_eq!(room(&L32R4U1::SPEC, 320, 132), 0);
    }
}
