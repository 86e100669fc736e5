//! Ternary weights by the kernels that ask for all of a tile at once: see [`contract::conv2d::whole`].

use contract::conv2d::int8::Args;
use contract::conv2d::whole::{MOST_BYTES, Whole, WholeArgs};
use contract::conv2d::{
    Conv2dTernaryWhole32, Conv2dTernaryWhole48, Conv2dTernaryWhole64, Conv2dTernaryWhole96,
    Conv2dTernaryWhole128,
};
use contract::launch::Kernel;

use super::bulk_lines::entries;
use super::int8::TERNARY;
use super::shape;
use crate::driver::MapElement;
use crate::ops::{CudaBackend, OpError};

/// Symbol and blocks of a kernel.
type Form = (&'static str, Whole);

/// The kernels.
const FORMS: [Form; 5] = [
    (Conv2dTernaryWhole32::SPEC.symbol, Conv2dTernaryWhole32::WHOLE),
    (Conv2dTernaryWhole48::SPEC.symbol, Conv2dTernaryWhole48::WHOLE),
    (Conv2dTernaryWhole64::SPEC.symbol, Conv2dTernaryWhole64::WHOLE),
    (Conv2dTernaryWhole96::SPEC.symbol, Conv2dTernaryWhole96::WHOLE),
    (Conv2dTernaryWhole128::SPEC.symbol, Conv2dTernaryWhole128::WHOLE),
];

/// A launch that can be made.
pub(super) struct Launch {
    args: WholeArgs,
    symbol: &'static str,
}

/// The launch of `args`, where these kernels take it, by the one that is expected to be the fastest, or asked for.
pub(super) fn ternary(
    cuda: &CudaBackend,
    args: Args,
    images: u32,
    asked: Option<&'static str>,
) -> Option<Launch> {
    if !cuda.has::<Conv2dTernaryWhole32>() {
        return None;
    }
    let sms = u64::from(cuda.cuda().device().info().sm_count);
    let (symbol, args) = choice(args, images, asked, sms)?;
    let entries = entries(&args.base.geometry, &args.walk, args.base.x.addr(), (MapElement::U8, 1));
    entries.map(|entries| Launch { args: WholeArgs { entries, ..args }, symbol })
}

/// The kernel, and its launch but for the map.
fn choice(
    args: Args,
    images: u32,
    asked: Option<&'static str>,
    sms: u64,
) -> Option<(&'static str, WholeArgs)> {
    let forms = FORMS.into_iter().filter(|(symbol, _)| asked.is_none_or(|asked| asked == *symbol));
    let ways = forms.flat_map(|(symbol, whole)| {
        let ways = [1, 2].into_iter();
        ways.filter_map(move |parts| {
            let args = WholeArgs::new(args, images, whole, parts)?;
            Some((cost(whole, &args, sms), symbol, args))
        })
    });
    ways.min_by_key(|(cost, ..)| *cost).map(|(_, symbol, args)| (symbol, args))
}

/// About how many cycles a launch takes; the numbers were fitted on an H100 and an H200.
fn cost(whole: Whole, args: &WholeArgs, sms: u64) -> u64 {
    let (tiles, steps) = (u64::from(args.walk.tiles), u64::from(args.share));
    let positions = u64::from(whole.positions);
    // Two blocks share a multiprocessor where both fit.
    let beside = if 2 * whole.bytes(&args.walk) <= MOST_BYTES { 2 } else { 1 };
    // What blocks beside each other wait for each other's products and outputs, and what they do not.
    let (rounds, rest) = (tiles / (beside * sms), tiles % (beside * sms));
    let outputs = 4 * u64::from(args.parts) * positions;
    let mut shared = steps * (3 * positions + 64) + outputs + 450;
    if rounds > 0 && beside > 1 && positions == 128 && steps >= 9 {
        // Large blocks beside each other for long wait for products: 29,000 cycles where the sum says 24,300.
        shared += shared / 4;
    }
    // Many rounds of one tap whose terms are shared: more of their codes are asked for at the start.
    let shares = args.parts > 1 && args.walk.rounds >= 8 && args.base.geometry.taps == 1;
    let start = if shares { 1000 } else { 2000 };
    let block = |beside: u64| start + 10 * positions + 200 * steps + beside * shared;
    rounds * block(beside) + if rest > 0 { block(rest.div_ceil(sms)) } else { 0 }
}

impl Launch {
    /// # Safety
    /// As for the kernels: the pointers of the arguments cover the contract's table, and `y` is borrowed
    /// exclusively.
    pub(super) unsafe fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        let Self { args, symbol } = self;
        let grid = shape::grid(TERNARY, args.walk.tiles.into())?;
        macro_rules! run {
            ($($kernel:ident)*) => { $(
                if symbol == $kernel::SPEC.symbol {
                    // SAFETY: a block for each tile; by the caller.
                    return unsafe { cuda.launch::<$kernel>(grid, args) };
                }
            )* };
        }
        run!(Conv2dTernaryWhole32 Conv2dTernaryWhole48 Conv2dTernaryWhole64 Conv2dTernaryWhole96
            Conv2dTernaryWhole128);
        Err(super::launch::no_kernel(TERNARY))
    }
}
