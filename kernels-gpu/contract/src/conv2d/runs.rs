//! Runs of 16-bit elements, copied to places of another length.
//!
//! The kernels for tensor cores read and write pieces of 16 bytes. Where channels are in no eights, they are copied to where
//! they are before one of them runs, and its outputs back behind it. What is copied are *runs*: the channels of a pixel, or,
//! where those are few, of all pixels under a row of the window, which stand side by side with channels last: then what was
//! a window is one column of it, and the channels are so many more. What a place has more than a run is zeros, as is what a
//! run has in front of its row and behind it.

use super::Divisor;
use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Elements that a thread writes.
pub const EACH: u32 = 8;

/// The parameter of the kernel, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RunsArgs {
    /// Rows of runs.
    pub from: DevPtr<u16>,
    /// Places, one behind the other; at a multiple of 16 bytes.
    pub to: DevPtr<u16>,
    /// Elements of a row.
    pub row: u32,
    /// Elements from the start of a run to that of the next.
    pub step: u32,
    /// Elements from the start of the first run of a row to that of the row, which it is in front of.
    pub lead: u32,
    /// Elements of a run.
    pub take: u32,
    /// Elements of a place.
    pub place: u32,
    /// Elements of all places.
    pub count: u32,
    /// By the elements of a place.
    pub by_place: Divisor,
    /// By the runs of a row.
    pub by_runs: Divisor,
}

/// Rows of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Rows.
    pub rows: u64,
    /// Runs of each.
    pub runs: u64,
    /// See [`RunsArgs`].
    pub row: u64,
    /// See [`RunsArgs`].
    pub step: u64,
    /// See [`RunsArgs`].
    pub lead: u64,
    /// See [`RunsArgs`].
    pub take: u64,
    /// See [`RunsArgs`].
    pub place: u64,
}

impl Runs {
    /// Rows of runs that stand side by side, as the channels of pixels do.
    pub const fn dense(rows: u64, runs: u64, take: u64, place: u64) -> Self {
        Self { rows, runs, row: runs * take, step: take, lead: 0, take, place }
    }

    /// The first `take` elements of each run.
    pub const fn taking(self, take: u64) -> Self {
        Self { take, ..self }
    }

    /// Elements of all places.
    pub const fn count(&self) -> u64 {
        self.rows * self.runs * self.place
    }

    /// Whether every run is its place already.
    pub const fn is_there(&self) -> bool {
        let Self { runs, row, step, lead, take, place, .. } = *self;
        lead == 0 && take == place && step == place && row == runs * place
    }

    /// The kernel's parameter; `None` where a number is too large for it.
    pub const fn args(&self, from: DevPtr<u16>, to: DevPtr<u16>) -> Option<RunsArgs> {
        let Self { runs, row, step, lead, take, place, .. } = *self;
        let (most, reach) = (1 << 31, runs * step + take);
        if row >= most || reach >= most || lead >= most || self.count() >= most - EACH as u64 {
            return None;
        }
        Some(RunsArgs {
            from,
            to,
            row: row as u32,
            step: step as u32,
            lead: lead as u32,
            take: take as u32,
            place: place as u32,
            count: self.count() as u32,
            by_place: Divisor::new(place as u32),
            by_runs: Divisor::new(runs as u32),
        })
    }
}

impl RunsArgs {
    /// Blocks.
    pub const fn blocks(&self) -> u32 {
        self.count.div_ceil(EACH * THREADS)
    }
}

/// Copies runs of 16-bit elements.
pub enum Conv2dRuns {}

impl Kernel for Conv2dRuns {
    type Args = RunsArgs;
    const SPEC: LaunchSpec =
        LaunchSpec::new("conv2d_runs", THREADS).with_min_blocks(4).with_min_sm(80);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_its_place_is_not_copied() {
        assert!(Runs::dense(2, 9, 8, 8).is_there());
        assert!(!Runs::dense(2, 9, 5, 8).is_there());
        let patch = Runs { rows: 28, runs: 14, row: 672, step: 48, lead: 0, take: 48, place: 48 };
        assert!(patch.is_there());
        assert!(!Runs { lead: 3, ..patch }.is_there() && !Runs { row: 675, ..patch }.is_there());
        let back = Runs::dense(1, 9, 8, 5).taking(5);
        assert_eq!((back.row, back.step, back.take, back.count()), (72, 8, 5, 45));
    }

    #[test]
    fn too_many_elements_have_no_launch() {
        let args = |runs: Runs| runs.args(DevPtr::NULL, DevPtr::NULL);
        assert!(args(Runs::dense(1, 1 << 27, 3, 8)).is_some());
        assert!(args(Runs::dense(1, 1 << 28, 3, 8)).is_none());
        assert!(args(Runs::dense(1, 1 << 28, 8, 3).taking(3)).is_none());
    }
}
