//! Ternary weights by windows of one tap, outputs of 16 bits: see [`contract::conv2d::strips`].

use contract::conv2d::Conv2dTernaryStrips;
use contract::conv2d::int8::Args;
use contract::conv2d::strips::{CHANNELS, MOST_BYTES, StripsArgs};
use contract::launch::Kernel;

use super::bulk_lines::entries;
use super::int8::TERNARY;
use super::shape;
use crate::driver::MapElement;
use crate::ops::{CudaBackend, OpError};

/// A launch that can be made.
pub(super) struct Launch(StripsArgs);

/// The launch of `args`, where the kernel takes it and is expected to be the fastest, or is asked for.
pub(super) fn ternary(
    cuda: &CudaBackend,
    args: Args,
    images: u32,
    asked: Option<&'static str>,
) -> Option<Launch> {
    if !cuda.has::<Conv2dTernaryStrips>() {
        return None;
    }
    let sms = cuda.cuda().device().info().sm_count;
    let args = choice(args, images, asked, sms)?;
    let entries = entries(&args.base.geometry, &args.walk, args.base.x.addr(), (MapElement::U8, 1));
    entries.map(|entries| Launch(StripsArgs { entries, ..args }))
}

/// The launch but for the map. The numbers were fitted on an H100.
fn choice(args: Args, images: u32, asked: Option<&'static str>, sms: u32) -> Option<StripsArgs> {
    if asked.is_some_and(|symbol| symbol != Conv2dTernaryStrips::SPEC.symbol) {
        return None;
    }
    let strips = args.geometry.k.div_ceil(CHANNELS);
    let new = |places| StripsArgs::new(args, images, strips.min(2), 2 * sms, places);
    // Two blocks share a multiprocessor.
    let beside = |args: &StripsArgs| 2 * args.bytes() <= MOST_BYTES;
    let args = new(2).filter(beside).or_else(|| new(1))?;
    // Long sums, and few tiles, are for blocks that share them.
    let tiles = args.walk.tiles * strips.div_ceil(2);
    let good = args.walk.rounds <= 2 && tiles >= 4 * sms;
    (good || asked.is_some()).then_some(args)
}

impl Launch {
    /// # Safety
    /// As for the kernel: the pointers of the arguments cover the contract's table, and `y` is borrowed
    /// exclusively.
    pub(super) unsafe fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        let Self(args) = self;
        let grid = shape::grid(TERNARY, args.blocks().into())?;
        // SAFETY: the contract's grid; by the caller.
        unsafe { cuda.launch::<Conv2dTernaryStrips>(grid, args) }
    }
}
