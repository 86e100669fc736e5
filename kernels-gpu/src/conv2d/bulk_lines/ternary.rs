//! Ternary weights on int8 activations in lines: codes expanded to 64 times the weight, a k-major left
//! factor. So a sum is 64 times what it should be, and so is what divides it.

use contract::conv2d::bulk_lines::{CHANNELS, PITCH, TernaryLines, WEIGHT_STAGES, Walk};
use contract::conv2d::int8::{TOP_BITS, ternary_bytes_64};
use contract::conv2d::{Conv2dTernaryPoints, Geometry};
use contract::launch::Kernel;
use contract::w2a8::Divisor;

use super::{Form, Part, Room, Tile, Turn, run};
use crate::arch::mbarrier;
use crate::arch::mem::{X4, ld_nc, ld_or_zero_x4};
use crate::arch::shared::Shared;
use crate::arch::tensor::parameter_address;
use crate::arch::thread::thread_idx_x;
use crate::arch::wgmma::{self, Descriptor, swizzle};
use crate::conv2d::ternary_finish::{self, Column, Here, finish, weight_scales};

/// Steps whose codes are under way.
const AHEAD: usize = 3;

const _: () = assert!(PITCH == ternary_finish::PITCH);

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
        let channel = tile.group * g.k + of_group;
        let column = Column {
            channel,
            count: (g.k - of_group).min(4),
            sums: Here::<1>(sums.cast::<i32>().add(quad), 0),
            head,
            weight_scales: weight_scales(&args.base, channel),
            rows: [rows[0] + thread_idx_x() % 128 / ACROSS, rows[1]],
            down: 128 / ACROSS,
        };
        // SAFETY: the caller's promise.
        unsafe { finish::<_, 4>(&args.base, &column) };
    }
}

/// Threads, four channels each, of an output.
const ACROSS: u32 = CHANNELS / 4;

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
    Conv2dTernaryPoints conv2d_ternary_points: 1 true;
}
