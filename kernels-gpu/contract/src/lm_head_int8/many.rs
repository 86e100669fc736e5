//! The scans of several inputs, on tensor cores.

use super::Args;
use crate::launch::{Kernel, LaunchSpec, TensorMap};

/// Threads of the scan of several inputs.
pub const MANY_THREADS: u32 = 256;
/// Bytes of a table row, or of a digit of an input, in a slice.
pub const MANY_SLICE: u32 = 128;

/// A scan of several inputs.
#[derive(Clone, Copy, Debug)]
pub struct Many {
    /// Rows of the table that a block takes.
    pub rows: u32,
    /// Inputs that a block takes.
    pub inputs: u32,
    /// Slices in shared memory.
    pub stages: u32,
}

/// [`ScanFew`].
pub const FEW: Many = Many { rows: 256, inputs: 8, stages: 3 };
/// [`ScanSome`].
pub const SOME: Many = Many { rows: 128, inputs: 32, stages: 4 };
/// [`ScanMany`].
pub const MANY: Many = Many { rows: 128, inputs: 64, stages: 4 };
/// [`ScanWide`].
pub const WIDE: Many = Many { rows: 256, inputs: 64, stages: 4 };
/// [`ScanWideSome`]: a slice more in the room of the digits that it does not have.
pub const WIDE_SOME: Many = Many { rows: 256, inputs: 32, stages: 5 };
/// Threads of a block of [`ScanWide`] and [`ScanWideSome`]: 128 for each 64 rows.
pub const WIDE_THREADS: u32 = 2 * WIDE.rows;
const _: () = assert!(WIDE_SOME.rows == WIDE.rows);

impl Many {
    /// Bytes of a slice: rows, then both digits of the inputs.
    pub const fn slice_bytes(&self) -> u32 {
        MANY_SLICE * (self.rows + 2 * self.inputs)
    }

    /// Shared memory: the slices, then eight words for each input.
    pub const fn smem_bytes(&self) -> u32 {
        self.stages * self.slice_bytes() + 32 * self.inputs
    }

    /// The same of a scan on `wgmma`: its ring is aligned to 1,024 bytes; behind the words of the inputs stand one for each warp and
    /// input, and a barrier for each slice.
    pub const fn wide_smem_bytes(&self) -> u32 {
        self.smem_bytes() + 4 * (self.rows / 16) * self.inputs + 8 * self.stages + 1024
    }

    /// Blocks for `m` inputs: those of the first inputs, then those of the next.
    pub const fn grid(&self, vocab: u32, m: u32) -> [u32; 3] {
        [vocab.div_ceil(self.rows), m.div_ceil(self.inputs), 1]
    }

    /// The same where a block makes tile after tile, on `sms` multiprocessors.
    pub const fn looped_grid(&self, vocab: u32, m: u32, sms: u32) -> [u32; 3] {
        let [tiles, inputs, _] = self.grid(vocab, m);
        let room = if sms > inputs { sms / inputs } else { 1 };
        [if tiles < room { tiles } else { room }, inputs, 1]
    }
}

/// Parameter of the scans on `wgmma`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WideArgs {
    /// The copy of the table by boxes of 128 bytes of [`WIDE`]'s rows.
    pub table: TensorMap,
    /// Both digits of the inputs by boxes of 128 bytes of each.
    pub digits: TensorMap,
    /// The rest.
    pub scan: Args,
}

macro_rules! scans {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal, $cut:ident, $blocks:literal $(, $more:ident)?;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, MANY_THREADS)
                .with_min_sm(80)
                .with_smem($cut.smem_bytes())
                .with_min_blocks($blocks)$(.$more())?;
        }
    )* };
}

scans! {
    /// Bounds of every row for a few inputs at once, on tensor cores; grid [`Many::grid`].
    ScanFew: "lm_head_int8_scan_few", FEW, 2;
    /// The same for some inputs.
    ScanSome: "lm_head_int8_scan_some", SOME, 2, not_in_sm_90a;
    /// The same for many inputs.
    ScanMany: "lm_head_int8_scan_many", MANY, 1, not_in_sm_90a;
}

macro_rules! wide_scans {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal, $cut:ident;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = WideArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, WIDE_THREADS)
                .only_on(90)
                .with_tensor_maps()
                .with_smem($cut.wide_smem_bytes())
                .with_min_blocks(1);
        }
    )* };
}

wide_scans! {
    /// The same on `wgmma`, grid [`Many::looped_grid`]: a block makes tile after tile.
    ScanWide: "lm_head_int8_scan_wide", WIDE;
    /// The same for some inputs.
    ScanWideSome: "lm_head_int8_scan_wide_some", WIDE_SOME;
}

#[cfg(test)]
mod tests {
    use super::WIDE;

    #[test]
    fn a_looped_grid_has_a_block_for_each_multiprocessor_at_most() {
        assert_eq!(WIDE.looped_grid(1000, 33, 132), WIDE.grid(1000, 33));
        assert_eq!(WIDE.looped_grid(128_256, 64, 132), [132, 1, 1]);
        assert_eq!(WIDE.looped_grid(128_256, 130, 132), [44, 3, 1]);
        assert_eq!(WIDE.looped_grid(128_256, 1024, 8), [1, 16, 1]);
    }
}
