//! Ternary weights on int8 activations in lines: codes expanded to 64 times the weight, a k-major left
//! factor. So a sum is 64 times what it should be, and so is what divides it.

use contract::conv2d::bulk_lines::{CHANNELS, PITCH, TernaryLines, WEIGHT_STAGES, Walk};
use contract::conv2d::int8::{Args, TOP_BITS, ternary_bytes_64};
use contract::conv2d::{
    ABSENT, Activation, Conv2dTernaryLines, Conv2dTernaryLinesPair, Conv2dTernaryPoints, Geometry,
    finish as finish_one, finish_cheap,
};
use contract::launch::Kernel;
use contract::w2a8::{Divisor, dequantise};

use super::{Form, Part, Room, Tile, Turn, run};
use crate::arch::hint::opaque_here;
use crate::arch::mbarrier;
use crate::arch::mem::{X4, ld_if, ld_nc, ld_or_zero_x4, ld_x4, st};
use crate::arch::mem_if::st_x4_if;
use crate::arch::shared::Shared;
use crate::arch::tensor::parameter_address;
use crate::arch::thread::thread_idx_x;
use crate::arch::wgmma::{self, Descriptor, swizzle};

/// Steps whose codes are under way.
const AHEAD: usize = 3;
/// Outputs of a thread that are under way together.
const TOGETHER: usize = 4;

/// The form.
struct Ternary;

/// The way of an expanding thread through the codes: those of a row, 64 of each step.
struct Codes<'a> {
    args: &'a TernaryLines,
    room: Room,
    part: Part,
    /// Its row of a tile, and which of the two blocks of a step.
    row: u32,
    block: u32,
    /// The tile, the codes of its row and whether there are any.
    index: u32,
    from: *const u32,
    there: bool,
    round: u32,
    step: u32,
    left: u32,
}

impl Codes<'_> {
    /// Asks for the codes of the next step; zeros where there are none.
    ///
    /// # Safety
    ///
    /// The kernel's contract.
    #[inline(always)]
    unsafe fn next(&mut self) -> X4<u32> {
        let (walk, g) = (&self.args.walk, &self.args.base.geometry);
        if self.index >= self.part.end || self.left == 0 {
            return [0; 4];
        }
        let block = 2 * self.round + self.block;
        // SAFETY: a step of the table.
        let [_, tap] = unsafe { self.room.step(self.step) };
        let from = self.from.wrapping_add((tap * (g.c / 64) + block) as usize * 4);
        // SAFETY: 64 codes of a packed row, aligned to 16 bytes.
        let codes = unsafe { ld_or_zero_x4(self.there && 64 * block < g.c, from.cast()) };
        self.step += 1;
        if self.step == walk.round {
            (self.round, self.step) = (self.round + 1, 0);
        }
        self.left -= 1;
        if self.left == 0 {
            self.start(self.index + self.part.step);
        }
        codes
    }

    /// Turns to a tile.
    #[inline(always)]
    fn start(&mut self, index: u32) {
        let (base, walk) = (&self.args.base, &self.args.walk);
        let (begins, round) = (self.part.begins, walk.round);
        self.index = index;
        (self.round, self.step) = (begins / round, begins % round);
        self.left = self.part.ends - begins;
        let tile = Tile::of(walk, index, 0);
        let of_group = tile.column0 + self.row;
        let row = (tile.group * base.geometry.k + of_group) as usize * base.row_words as usize;
        self.from = base.w.as_ptr().cast_const().wrapping_add(row);
        self.there = of_group < base.geometry.k;
    }
}

impl Form for Ternary {
    type Args = TernaryLines;
    const DEPTH: u32 = 128;
    const EXPANDED: bool = true;

    #[inline(always)]
    fn walk(args: &TernaryLines) -> &Walk {
        &args.walk
    }

    #[inline(always)]
    fn geometry(args: &TernaryLines) -> &Geometry {
        &args.base.geometry
    }

    #[inline(always)]
    unsafe fn weights(args: &TernaryLines, _: u64, room: Room, part: Part, thread: u32) {
        let (row, block) = (thread / 2, thread % 2);
        let (from, there) = (core::ptr::null(), false);
        let mut codes = Codes {
            args,
            room,
            part,
            row,
            block,
            index: 0,
            from,
            there,
            round: 0,
            step: 0,
            left: 0,
        };
        codes.start(part.first);
        // SAFETY: the kernel's contract, here and below.
        let mut ahead: [X4<u32>; AHEAD] = core::array::from_fn(|_| unsafe { codes.next() });
        let (mut turn, mut index, mut left) = (Turn::FIRST, part.first, part.ends - part.begins);
        // Steps come in as many as are ahead: codes that were handed on from register to register would be
        // waited for there.
        'all: while index < part.end && left > 0 {
            let mut place = 0;
            while place < AHEAD {
                let words = ahead[place];
                // SAFETY: as above.
                ahead[place] = unsafe { codes.next() };
                // SAFETY: the barriers were made; once for each phase of the place.
                unsafe { mbarrier::wait(room.weights_empty(turn), turn.parity ^ 1) };
                let to = room.weights(turn);
                let mut i = 0;
                while i < 4 {
                    let piece = words.map(|word| ternary_bytes_64(word, i, TOP_BITS));
                    let at = to.add(swizzle(row, 4 * block + i)).cast::<u32>();
                    // SAFETY: a piece of this thread, in a place that is free.
                    unsafe { at.write_x4(piece) };
                    i += 1;
                }
                // SAFETY: as above.
                unsafe { mbarrier::arrive(room.weights_full(turn)) };
                turn = turn.next(WEIGHT_STAGES);
                left -= 1;
                if left == 0 {
                    (index, left) = (index + part.step, part.ends - part.begins);
                    if index >= part.end {
                        break 'all;
                    }
                }
                place += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn product(weights: Descriptor, entries: Descriptor, k: u32, add: bool) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::i8_both_n128(weights.advance(k * 32), entries.advance(k * 32), add) }
    }

    #[inline(always)]
    fn add(a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }

    #[inline(always)]
    unsafe fn divisor(args: &TernaryLines, image: u32) -> [u32; 3] {
        let scales = args.base.scales.as_ptr().cast_const();
        // SAFETY: a number for each image.
        Divisor::new(64.0 * unsafe { ld_nc(scales.wrapping_add(image as usize)) }).words()
    }

    #[inline(always)]
    unsafe fn finish(
        args: &TernaryLines,
        sums: Shared<u32>,
        head: Shared<u32>,
        tile: Tile,
        rows: [u32; 2],
    ) {
        let g = &args.base.geometry;
        let quad = thread_idx_x() % ACROSS * 4;
        let of_group = tile.column0 + quad;
        if of_group >= g.k {
            return;
        }
        let column = Column {
            channel: tile.group * g.k + of_group,
            count: (g.k - of_group).min(4),
            sums: sums.cast::<i32>().add(quad),
            head,
            rows: [rows[0] + thread_idx_x() % 128 / ACROSS, rows[1]],
        };
        // SAFETY: the caller's promise, for both.
        unsafe {
            let mut rest = true;
            if g.k % 4 == 0 && args.base.activation.is_cheap() {
                rest = fours(&args.base, &column);
            }
            if rest {
                singly(&args.base, &column);
            }
        }
    }
}

/// Threads, four channels each, of an output.
const ACROSS: u32 = CHANNELS / 4;
/// Outputs of a warpgroup at a time.
const DOWN: u32 = 128 / ACROSS;

/// A few neighbouring channels of a tile, as one thread writes them.
struct Column {
    /// First channel of all, and how many there are.
    channel: u32,
    count: u32,
    /// Its sums of the warpgroup's first output, and the table of outputs.
    sums: Shared<i32>,
    head: Shared<u32>,
    /// First of its outputs, and the end of all.
    rows: [u32; 2],
}

/// The outputs of images with an ordinary scale, four channels at once. Whether there are others.
///
/// # Safety
///
/// As for [`Form::finish`]; the channels are whole fours.
#[inline(always)]
unsafe fn fours(base: &Args, column: &Column) -> bool {
    let g = &base.geometry;
    let mut weight_scales = [0.0f32; 4];
    let mut c = 0;
    while c < 4 {
        weight_scales[c] = base.segments.scale_of(column.channel + c as u32);
        c += 1;
    }
    let plain = base.bias.is_null() && base.residual.is_null();
    let plain = plain && matches!(base.activation, Activation::None);
    let (mut row, end, mut others) = (column.rows[0], column.rows[1], false);
    while row < end {
        let (mut heads, mut out) = ([[0u32; 4]; TOGETHER], [[0.0f32; 4]; TOGETHER]);
        let mut i = 0;
        while i < TOGETHER {
            // Past the last one: that one again.
            let here = (row + i as u32 * DOWN).min(end - 1);
            // SAFETY: the table, and sums of an output.
            let sums = unsafe {
                heads[i] = column.head.add(4 * here).read_x4();
                column.sums.add(here * PITCH).read_x4()
            };
            let [scale, reciprocal, ordinary, _] = heads[i];
            let divisor = Divisor::from_words([scale, reciprocal, ordinary]);
            let quotients = divisor.divide4_ordinary(sums);
            out[i] = core::array::from_fn(|c| quotients[c] * weight_scales[c]);
            i += 1;
        }
        let there = |i: usize| heads[i][3] != u32::MAX && row + (i as u32 * DOWN) < end;
        let at =
            |i: usize| u64::from(heads[i][3]) * u64::from(g.y_step[0]) + u64::from(column.channel);
        let mut i = 0;
        while !plain && i < TOGETHER {
            if there(i) {
                // SAFETY: four channels of an output of this thread.
                out[i] = unsafe { extras(base, column.channel, at(i) as usize, out[i]) };
            }
            i += 1;
        }
        // Without a branch for each: what is worked out behind one would wait for the output before.
        let mut i = 0;
        while i < TOGETHER {
            let ordinary = heads[i][2] != 0;
            let y = base.y.as_ptr().wrapping_add(at(i) as usize);
            // SAFETY: four outputs that belong to this thread, where there are any.
            unsafe { st_x4_if(there(i) && ordinary, y.cast(), out[i].map(f32::to_bits)) };
            others |= there(i) && !ordinary;
            i += 1;
        }
        row += TOGETHER as u32 * DOWN;
    }
    others
}

/// What follows the scales, for four channels from `channel` on.
///
/// # Safety
///
/// They are channels of output `at`.
#[inline(always)]
unsafe fn extras(base: &Args, channel: u32, at: usize, mut values: [f32; 4]) -> [f32; 4] {
    let (mut bias, mut residual) = ([ABSENT; 4], [ABSENT; 4]);
    if opaque_here(u32::from(!base.bias.is_null())) != 0 {
        let from = base.bias.as_ptr().cast_const().wrapping_add(channel as usize);
        // SAFETY: a number for each output channel; the buffer and the channel are multiples of 4.
        bias = unsafe { ld_x4(from.cast()) };
    }
    if opaque_here(u32::from(!base.residual.is_null())) != 0 {
        let from = base.residual.as_ptr().cast_const().wrapping_add(at);
        // SAFETY: as large as y.
        residual = unsafe { ld_x4(from.cast()) };
    }
    let mut c = 0;
    while c < 4 {
        values[c] = finish_cheap(values[c], bias[c], residual[c], Activation::None);
        c += 1;
    }
    let activation = Activation::from_u32(opaque_here(base.activation as u32));
    match activation {
        Activation::Relu => values.map(|value| Activation::Relu.apply_cheap(value)),
        Activation::Relu2 => values.map(|value| Activation::Relu2.apply_cheap(value)),
        _ => values,
    }
}

/// All outputs, one channel at a time: one copy of the activations.
///
/// # Safety
///
/// As for [`Form::finish`].
#[inline(always)]
unsafe fn singly(base: &Args, column: &Column) {
    let g = &base.geometry;
    let [mut row, end] = column.rows;
    while row < end {
        // SAFETY: the table.
        let pixel = unsafe { column.head.add(4 * row + 3).read() };
        let sums = column.sums.add(row * PITCH);
        row += DOWN;
        if pixel == u32::MAX {
            continue;
        }
        let scales = base.scales.as_ptr().cast_const();
        let image = g.by_image.div_rem(pixel).0;
        // SAFETY: a number for each image.
        let scale: f32 = unsafe { ld_nc(scales.wrapping_add(image as usize)) };
        let (count, mut c) = (opaque_here(column.count), 0);
        while c < count {
            let channel = column.channel + c;
            let at = u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel);
            let residual = base.residual.as_ptr().cast_const().wrapping_add(at as usize);
            let bias = base.bias.as_ptr().cast_const().wrapping_add(channel as usize);
            let (has_bias, has) = (!base.bias.is_null(), !base.residual.is_null());
            // SAFETY: a sum of the output.
            let sum = unsafe { sums.add(c).read() };
            let value = dequantise(sum >> 6, scale, base.segments.scale_of(channel));
            // SAFETY: a number for each output channel; as large as y; an output of this thread.
            unsafe {
                let bias = if has_bias { ld_nc(bias) } else { ABSENT };
                let r = if has { ld_if(has, residual) } else { ABSENT };
                let value = finish_one(value, bias, r, base.activation);
                st(base.y.as_ptr().wrapping_add(at as usize), value.to_bits());
            }
            c += 1;
        }
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident: $cluster:literal $apart:literal;)*) => { $(
        /// # Safety
        ///
        /// As for [`run`].
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $symbol(args: TernaryLines) {
            const { assert!($kernel::SPEC.cluster == $cluster) };
            // SAFETY: the caller's promise.
            unsafe { run::<Ternary, $cluster, $apart>(&args, parameter_address!($symbol)) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTernaryLines conv2d_ternary_lines: 1 false;
    Conv2dTernaryLinesPair conv2d_ternary_lines_pair: 2 false;
    Conv2dTernaryPoints conv2d_ternary_points: 1 true;
}
