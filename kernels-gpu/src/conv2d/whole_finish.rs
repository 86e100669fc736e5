//! The epilogue of [`super::whole`]: from sums in shared memory, which are there 64 times, to `y`, eight channels at a
//! time.

use contract::conv2d::int8::Args;
use contract::conv2d::lines::CHANNELS;
use contract::conv2d::{ABSENT, Activation, finish_cheap};
use contract::num::{RowType, quotient};
use contract::w2a8::Divisor;

use super::ternary_finish::PITCH;
use super::value::{Half, Value};
use crate::arch::half::{pack_bf16, pack_f16};
use crate::arch::hint::opaque_here;
use crate::arch::mem::ld_x4;
use crate::arch::mem_if::st_x4_if;
use crate::arch::shared::Shared;

/// Channels of a thread.
pub(super) const EIGHT: u32 = 8;

/// Where the sums of a position's 64 channels are, by the type of `y`. A thread's eight are two fours. In 16 bits they are
/// neighbours, so that they are written at once, and even and odd fours are apart here; in 32 bits fours of neighbouring threads are
/// neighbours. Either way the threads that read a position touch every bank once, and so do the warps that write one.
#[derive(Clone, Copy)]
pub(super) struct Places {
    /// Words from rows 0 to 3 of eight to rows 4 to 7.
    rows: u32,
    /// Words from eight channels to the next.
    eights: u32,
}

impl Places {
    #[inline(always)]
    pub(super) fn new(is_f32: bool) -> Self {
        if is_f32 { Self { rows: 4, eights: 8 } } else { Self { rows: APART, eights: 4 } }
    }

    /// First channel of a thread's first four (0) or second (1).
    #[inline(always)]
    pub(super) fn channel(self, eight: u32, four: u32) -> u32 {
        let (first, second) = if self.rows == 4 { (4, F32::SECOND) } else { (8, Bf16::SECOND) };
        first * eight + second * four
    }

    /// The sum of the channel `8 eight + row`.
    #[inline(always)]
    pub(super) fn of(self, sums: Shared<i32>, eight: u32, row: u32) -> Shared<i32> {
        sums.add(self.eights * eight + self.rows * (row / 4) + row % 4)
    }
}

/// Words from a thread's first four to its second, in 16 bits.
const APART: u32 = CHANNELS / 2 + 4;

/// The four words of the table for a position: minus the scale, its reciprocal, the pixel for [`finish`], all ones where there is
/// none or the scale is not ordinary, and the pixel.
#[inline(always)]
pub(super) fn head(scale: f32, pixel: u32) -> [u32; 4] {
    let divisor = Divisor::new(scale);
    let [_, reciprocal, _] = divisor.words();
    let ordinary = if divisor.is_ordinary() { pixel } else { u32::MAX };
    [(-scale).to_bits(), reciprocal, ordinary, pixel]
}

/// An element of `y`.
pub(super) trait Out {
    /// As residuals are read.
    type Element: Value;
    /// Its type.
    const TYPE: RowType;
    /// Channels from a thread's first four to its second.
    const SECOND: u32;
    /// Words from the sums of those to the sums of these.
    const APART: u32;

    /// Rounds and writes both fours, each where it is there.
    ///
    /// # Safety
    ///
    /// Those that are there are this thread's, and aligned to 16 bytes; neighbours are there together.
    unsafe fn write(there: [bool; 2], p: *mut u8, values: [f32; 8]);
}

/// Types of `y`.
pub(super) enum F32 {}
/// See [`F32`].
pub(super) enum F16 {}
/// See [`F32`].
pub(super) enum Bf16 {}

impl Out for F32 {
    type Element = f32;
    const TYPE: RowType = RowType::F32;
    const SECOND: u32 = CHANNELS / 2;
    const APART: u32 = CHANNELS / 2;

    #[inline(always)]
    unsafe fn write(there: [bool; 2], p: *mut u8, values: [f32; 8]) {
        let [a, b, c, d, e, f, g, h] = values.map(f32::to_bits);
        // SAFETY: the caller's promise, for both.
        unsafe {
            st_x4_if(there[0], p.cast(), [a, b, c, d]);
            st_x4_if(there[1], p.wrapping_add(4 * Self::SECOND as usize).cast(), [e, f, g, h]);
        }
    }
}

macro_rules! halves {
    ($($name:ident $pack:ident;)*) => { $(
        impl Out for $name {
            type Element = Half;
            const TYPE: RowType = RowType::$name;
            const SECOND: u32 = 4;
            const APART: u32 = APART;

            #[inline(always)]
            unsafe fn write(there: [bool; 2], p: *mut u8, [a, b, c, d, e, f, g, h]: [f32; 8]) {
                let words = [$pack(a, b), $pack(c, d), $pack(e, f), $pack(g, h)];
                // SAFETY: the caller's promise.
                unsafe { st_x4_if(there[0], p.cast(), words) };
            }
        }
    )* };
}

halves! {
    F16 pack_f16;
    Bf16 pack_bf16;
}

/// Eight channels of a tile, two fours, as one thread writes them.
#[derive(Clone, Copy)]
pub(super) struct Eight {
    /// First channel of all, and whether the second four is there.
    pub(super) channel: u32,
    /// See `channel`.
    pub(super) second: bool,
    /// Its sums.
    pub(super) sums: Shared<i32>,
    /// See [`head()`].
    pub(super) head: Shared<u32>,
    /// The multipliers of its channels.
    pub(super) weight_scales: [f32; 8],
    /// First of its positions.
    pub(super) row: u32,
}

impl Eight {
    /// The eight number `eight` of the 64 channels whose sums and multipliers are given, the first of them `channel`, of which `left`
    /// are there; `None` where this eight is not.
    ///
    /// # Safety
    ///
    /// The multipliers are written and shown.
    #[inline(always)]
    pub(super) unsafe fn new<T: Out>(
        (sums, head, scales): (Shared<i32>, Shared<u32>, Shared<f32>),
        (channel, left): (u32, u32),
        (eight, row): (u32, u32),
    ) -> Option<Self> {
        let first = if T::SECOND == 4 { EIGHT } else { 4 } * eight;
        let scales = scales.add(first);
        // SAFETY: the caller's promise, for both.
        let scales: [[f32; 4]; 2] = unsafe { [scales.read_x4(), scales.add(T::SECOND).read_x4()] };
        let weight_scales = core::array::from_fn(|c| scales[c / 4][c % 4]);
        let second = first + T::SECOND < left;
        let sums = sums.add(4 * eight);
        let eight = Self { channel: channel + first, second, sums, head, weight_scales, row };
        (first < left).then_some(eight)
    }
}

/// Writes outputs where the scale is ordinary, `TOGETHER` at a time: of positions that are `DOWN` apart, up to `POSITIONS`; their sums
/// are in `PARTS` parts `part_words` apart. Whether there are others.
///
/// # Safety
///
/// Sums and table are written and shown; the outputs are this thread's, channels whole eights; the kernel's contract.
#[inline(always)]
pub(super) unsafe fn finish<
    T: Out,
    const POSITIONS: u32,
    const PARTS: u32,
    const DOWN: u32,
    const TOGETHER: usize,
>(
    base: &Args,
    eight: &Eight,
    part_words: u32,
) -> bool {
    let size = T::TYPE.bytes() as u32;
    let plain = base.bias.is_null() && base.residual.is_null();
    let plain = plain && matches!(base.activation, Activation::None);
    let y = base.y.as_ptr().cast::<u8>().wrapping_add((eight.channel * size) as usize);
    let step = base.geometry.y_step[0] as u32;
    let (mut row, mut others) = (eight.row, 0);
    while row < POSITIONS {
        let (mut out, mut at) = ([[0.0f32; 8]; TOGETHER], [u32::MAX; TOGETHER]);
        let mut i = 0;
        while i < TOGETHER {
            let here = row + i as u32 * DOWN;
            let there = POSITIONS.is_multiple_of(DOWN * TOGETHER as u32) || here < POSITIONS;
            // Past the last one: that one again.
            let here = if there { here } else { POSITIONS - 1 };
            // SAFETY: the table.
            let [minus, reciprocal, pixel, any]: [u32; 4] =
                unsafe { eight.head.add(4 * here).read_x4() };
            let (scale, reciprocal) = (-f32::from_bits(minus), f32::from_bits(reciprocal));
            others |= pixel ^ any;
            at[i] = if there { pixel } else { u32::MAX };
            let (mut sums, mut part) = ([[0; 4]; 2], 0);
            while part < PARTS {
                let from = eight.sums.add(here * PITCH + part * part_words);
                // SAFETY: sums of a position.
                let more: [[i32; 4]; 2] = unsafe { [from.read_x4(), from.add(T::APART).read_x4()] };
                sums = core::array::from_fn(|h| core::array::from_fn(|c| sums[h][c] + more[h][c]));
                part += 1;
            }
            out[i] = core::array::from_fn(|c| {
                quotient(sums[c / 4][c % 4] as f32, scale, reciprocal) * eight.weight_scales[c]
            });
            i += 1;
        }
        let mut i = 0;
        while !plain && i < TOGETHER {
            if at[i] != u32::MAX {
                let from = u64::from(at[i]) * u64::from(step) + u64::from(eight.channel);
                // SAFETY: channels of an output of this thread.
                out[i] = unsafe { extras::<T>(base, eight, from as usize, out[i]) };
            }
            i += 1;
        }
        // Without a branch for each: what is worked out behind one would wait for the output before.
        let mut i = 0;
        while i < TOGETHER {
            let there = at[i] != u32::MAX;
            let to = y.wrapping_add((u64::from(at[i]) * u64::from(step * size)) as usize);
            // SAFETY: eight outputs that belong to this thread, where there are any.
            unsafe { T::write([there, there && eight.second], to, out[i]) };
            i += 1;
        }
        row += TOGETHER as u32 * DOWN;
    }
    others != 0
}

/// What follows the scales.
///
/// # Safety
///
/// The channels are those of an output whose first is `at`.
#[inline(always)]
unsafe fn extras<T: Out>(base: &Args, eight: &Eight, at: usize, values: [f32; 8]) -> [f32; 8] {
    let (mut bias, mut residual) = ([[ABSENT; 4]; 2], [[ABSENT; 4]; 2]);
    // A second four that is not there reads the first.
    let fours = [0, if eight.second { T::SECOND as usize } else { 0 }];
    if opaque_here(u32::from(!base.bias.is_null())) != 0 {
        let from = base.bias.as_ptr().cast_const().wrapping_add(eight.channel as usize);
        // SAFETY: a number for each output channel; the buffer and the channels are multiples of 4.
        bias = fours.map(|four| unsafe { ld_x4(from.wrapping_add(four).cast()) });
    }
    if opaque_here(u32::from(!base.residual.is_null())) != 0 {
        let from = base.residual.as_ptr().cast_const().cast::<T::Element>().wrapping_add(at);
        // SAFETY: as large as y.
        residual =
            fours.map(|four| unsafe { T::Element::load4(T::TYPE, true, from.wrapping_add(four)) });
    }
    let values = core::array::from_fn(|c| {
        finish_cheap(values[c], bias[c / 4][c % 4], residual[c / 4][c % 4], Activation::None)
    });
    match Activation::from_u32(opaque_here(base.activation as u32)) {
        Activation::Relu => values.map(|value| Activation::Relu.apply_cheap(value)),
        Activation::Relu2 => values.map(|value| Activation::Relu2.apply_cheap(value)),
        _ => values,
    }
}
