//! Ternary weights by windows of one tap, outputs of 16 bits: see [`contract::conv2d::strips`].

use contract::conv2d::int8::Args;
use contract::conv2d::strips::{CHANNELS, MOST_BYTES, StripsArgs, WARPGROUPS};
use contract::conv2d::{Conv2dTernaryStrips, Conv2dTernaryStrips96};
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

/// Symbol and positions of a tile of each kernel.
const FORMS: [(&str, u32); 2] = [
    (Conv2dTernaryStrips::SPEC.symbol, Conv2dTernaryStrips::POSITIONS),
    (Conv2dTernaryStrips96::SPEC.symbol, Conv2dTernaryStrips96::POSITIONS),
];

/// The launch but for the map: of those that are expected to be fast the one whose warpgroups have the least to do. The numbers
/// were fitted on an H100 and an H200.
fn choice(args: Args, images: u32, asked: Option<&'static str>, sms: u32) -> Option<StripsArgs> {
    let all = args.geometry.k.div_ceil(CHANNELS);
    // Two blocks share a multiprocessor.
    let beside = |args: &StripsArgs| 2 * args.bytes() <= MOST_BYTES;
    let turns = |args: &StripsArgs| {
        let rings = if args.strips == 1 { WARPGROUPS } else { 1 };
        args.walk.tiles.div_ceil(args.step * rings)
    };
    let forms = FORMS.into_iter().filter(|(symbol, _)| asked.is_none_or(|asked| asked == *symbol));
    let ways = forms.flat_map(|(_, positions)| [(positions, 2), (positions, 4)]);
    let launches = ways.filter_map(|(positions, strips)| {
        let strips = if all > 2 { strips } else { all.min(2) };
        let new = |places| StripsArgs::new(args, images, positions, strips, 2 * sms, places);
        let args = new(2).filter(beside).or_else(|| new(1))?;
        // Long sums, and few tiles, are for blocks that share them.
        let tiles = args.walk.tiles * all.div_ceil(2);
        let good = args.walk.rounds <= 2 && 2 * tiles >= 7 * sms;
        // Where warpgroups have tiles of their own, small ones only where there is one for each.
        let good = good && (all > 1 || positions > 96 || turns(&args) == 1);
        (good || asked.is_some()).then_some(args)
    });
    launches.min_by_key(|args| {
        // With as much to do either way: a tile whose pixels are waited for once, small tiles of two strips, large ones of more.
        let (turns, small) = (turns(args), args.positions == 96);
        (turns * args.positions * args.strips, turns > 1, small != (all == 2))
    })
}

impl Launch {
    /// # Safety
    /// As for the kernel: the pointers of the arguments cover the contract's table, and `y` is borrowed
    /// exclusively.
    pub(super) unsafe fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        let Self(args) = self;
        let grid = shape::grid(TERNARY, args.blocks().into())?;
        // SAFETY: the contract's grid; by the caller.
        unsafe {
            if args.positions == Conv2dTernaryStrips96::POSITIONS {
                cuda.launch::<Conv2dTernaryStrips96>(grid, args)
            } else {
                cuda.launch::<Conv2dTernaryStrips>(grid, args)
            }
        }
    }
}
