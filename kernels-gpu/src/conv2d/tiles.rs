//! The depthwise kernels by tiles of channels last ([`contract::conv2d::tiles`]): what a tile reads comes to shared
//! memory at once, as it lies in memory, and a thread walks over the rows of its windows. Each output takes its
//! taps in the contract's order.

use contract::conv2d::{
    Activation, Conv2dTiles3Bf16, Conv2dTiles3F16, Conv2dTiles3F32, Conv2dTiles5Bf16,
    Conv2dTiles5F16, Conv2dTiles5F32, Conv2dTiles7Bf16, Conv2dTiles7F16, Conv2dTiles7F32,
    TILES_CHANNELS, TILES_OUTPUTS, TILES_THREADS, TilesArgs,
};
use contract::launch::Kernel;
use contract::num::{RowType, fma};

use super::epilogue::bias;
use super::value::{One, Value};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};

const OUTPUTS: usize = TILES_OUTPUTS as usize;

/// Sums of the outputs of a row, two channels of each.
type Sums = [[f32; 2]; OUTPUTS];
const NONE: Sums = [[0.0; 2]; OUTPUTS];

/// `sums` after the taps of a line.
#[inline(always)]
fn add<const S: usize, const STEP: usize, const COLUMNS: usize>(
    sums: &mut Sums,
    line: &[[f32; 2]; COLUMNS],
    taps: &[[f32; 2]; S],
) {
    let mut s = 0;
    while s < S {
        let mut q = 0;
        while q < OUTPUTS {
            let mut c = 0;
            while c < 2 {
                sums[q][c] = fma(line[q * STEP + s][c], taps[s][c], sums[q][c]);
                c += 1;
            }
            q += 1;
        }
        s += 1;
    }
}

/// Neighbours from `at` on, [`TILES_CHANNELS`] from one to the next.
///
/// # Safety
///
/// They are in shared memory, and nobody writes them meanwhile.
#[inline(always)]
unsafe fn read<T: Value, const N: usize>(kind: RowType, at: Shared<T>) -> [[f32; 2]; N] {
    // SAFETY: the caller's promise.
    let raw: [T::Two; N] =
        core::array::from_fn(|i| unsafe { T::read_two(at.add(i as u32 * TILES_CHANNELS)) });
    raw.map(|two| T::widen_two(kind, two))
}

/// Where a thread writes: its channels, and what follows a sum.
struct Output<'a> {
    args: &'a TilesArgs,
    biases: [f32; 2],
    /// What is below becomes 0.
    low: f32,
}

impl Output<'_> {
    /// Writes the first `count` outputs of a row, from element `at` of `y` on.
    ///
    /// # Safety
    ///
    /// They belong to this thread; `y` and `residual` cover the contract's table.
    #[inline(always)]
    unsafe fn write<T: Value>(&self, mut at: usize, count: u32, mut sums: Sums) {
        let args = &self.args.conv;
        sums = sums.map(|sum| core::array::from_fn(|c| sum[c] + self.biases[c]));
        // Opaque, here and below, because LLVM would copy all of the loop for every kind of epilogue.
        if opaque_here(u32::from(!args.residual.is_null())) != 0 {
            let residual = args.residual.as_ptr().cast::<T>().cast_const();
            let mut q = 0;
            while q < OUTPUTS {
                let from = residual.wrapping_add(at + q * args.geometry.y_step[0] as usize);
                // SAFETY: as large as y.
                let two = unsafe { T::load_two((q as u32) < count, from) };
                let two = T::widen_two(args.element, two);
                sums[q] = core::array::from_fn(|c| sums[q][c] + two[c]);
                q += 1;
            }
        }
        sums = sums.map(|sum| sum.map(|value| if value < self.low { 0.0 } else { value }));
        match Activation::from_u32(opaque_here(args.activation as u32)) {
            Activation::None | Activation::Relu => (),
            Activation::Relu2 => {
                sums = sums.map(|sum| sum.map(|value| Activation::Relu2.apply_cheap(value)));
            }
            Activation::Silu => {
                // What comes next in front: one copy of the body.
                let (turns, mut turn) = (opaque_here(TILES_OUTPUTS), 0);
                while turn < turns {
                    rolled();
                    let now = sums[0].map(|value| Activation::Silu.apply(value));
                    let mut q = 1;
                    while q < OUTPUTS {
                        sums[q - 1] = sums[q];
                        q += 1;
                    }
                    sums[OUTPUTS - 1] = now;
                    turn += 1;
                }
            }
        }
        let y = args.y.as_ptr().cast::<T>();
        let mut q = 0;
        while q < OUTPUTS {
            if (q as u32) < count {
                // SAFETY: two channels of an output of this thread.
                unsafe { T::store2(args.element, y.wrapping_add(at), sums[q]) };
            }
            at += args.geometry.y_step[0] as usize;
            q += 1;
        }
    }
}

/// Windows of `S` by `S` in steps of `STEP`, `EACH` rows of outputs a thread; `COLUMNS`: what a row of them reads.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::conv2d::tiles_of` for this window, step and
/// number of rows; their pointers cover the contract's table.
#[inline(always)]
unsafe fn tiles<
    T: Value,
    const S: usize,
    const STEP: usize,
    const EACH: usize,
    const COLUMNS: usize,
>(
    args: &TilesArgs,
) {
    const { assert!(COLUMNS == (OUTPUTS - 1) * STEP + S && (EACH == 1 || STEP == 1)) };
    let conv = &args.conv;
    let g = &conv.geometry;
    let size = size_of::<T>() as u32;
    // Pieces of 16 bytes of the channels of a tile, and elements of one.
    let (pieces, of_piece) = (TILES_CHANNELS * size / 16, 16 / size);
    let of_weights = (S * S) as u32 * TILES_CHANNELS;
    // First channel, image, and first row and column of outputs of a tile.
    let place = |tile: u32| {
        let (rest, part) = args.by_channels.div_rem(tile);
        let (rest, right) = args.by_columns.div_rem(rest);
        let (image, down) = args.by_down.div_rem(rest);
        (part * TILES_CHANNELS, image, down * args.rows, right * args.columns)
    };
    let ask_weights = |tile: u32, to: Shared<T>| {
        let channel0 = place(tile).0;
        let w = conv.w.as_ptr().cast::<T>().cast_const().wrapping_add(channel0 as usize);
        let mut i = thread_idx_x();
        while i < (S * S) as u32 * pieces {
            let (tap, element) = (i / pieces, i % pieces * of_piece);
            let from = w.wrapping_add((tap * conv.columns + element) as usize);
            // SAFETY: w[tap, channel0 + element..], a place of this block.
            unsafe { copy_x16(to.add(i * of_piece), from, channel0 + element < g.groups) };
            i += TILES_THREADS;
        }
    };
    let ask_pixels = |tile: u32, to: Shared<T>| {
        let (channel0, image, p0, q0) = place(tile);
        let to = to.add(of_weights);
        let x = conv.x.as_ptr().cast::<T>().cast_const();
        let x = x.wrapping_add((u64::from(image) * g.x_image) as usize + channel0 as usize);
        let (h0, w0) = (p0 as i32 * STEP as i32 - g.pad[0], q0 as i32 * STEP as i32 - g.pad[1]);
        let mut i = thread_idx_x();
        while i < args.pixels * pieces {
            let (pixel, piece) = (i / pieces, i % pieces);
            let (line, column) = args.by_line.div_rem(pixel);
            let (h, w) = ((h0 + line as i32) as u32, (w0 + column as i32) as u32);
            let inside = h < g.edges[0].len as u32
                && w < g.edges[1].len as u32
                && channel0 + piece * of_piece < g.groups;
            let from = h.wrapping_mul(g.x_step[0]).wrapping_add(w.wrapping_mul(g.x_step[1]));
            let from = x.wrapping_add(from as usize + (piece * of_piece) as usize);
            let to = to.byte_add(line * args.pitch + (column * pieces + piece) * 16);
            // SAFETY: a piece of a pixel of the image; a place of this block.
            unsafe { copy_x16(to, from, inside) };
            i += TILES_THREADS;
        }
    };
    let (mut tile, mut stage) = (block_idx_x(), dynamic_shared_mem::<T>());
    let mut other = stage.byte_add(args.stage);
    // Weights never change.
    ask_weights(tile, stage);
    launch_dependents();
    dependency_wait();
    ask_pixels(tile, stage);
    commit_group();
    loop {
        rolled();
        let next = tile + args.blocks;
        if next < args.tiles {
            ask_weights(next, other);
            ask_pixels(next, other);
        }
        commit_group();
        wait_group::<1>();
        sync_threads();
        // SAFETY: the tile came, and nobody writes it before the barrier below.
        unsafe { make::<T, S, STEP, EACH, COLUMNS>(args, place(tile), stage) };
        if next >= args.tiles {
            return;
        }
        sync_threads();
        (tile, stage, other) = (next, other, stage);
    }
}

/// Makes the outputs of the tile at `(channel0, image, p0, q0)`, of which `weights` holds what it reads.
///
/// # Safety
///
/// As for [`tiles`]; nobody writes there meanwhile.
#[inline(always)]
unsafe fn make<
    T: Value,
    const S: usize,
    const STEP: usize,
    const EACH: usize,
    const COLUMNS: usize,
>(
    args: &TilesArgs,
    (channel0, image, p0, q0): (u32, u32, u32, u32),
    weights: Shared<T>,
) {
    let conv = &args.conv;
    let (g, kind) = (&conv.geometry, conv.element);
    let pixels = weights.add((S * S) as u32 * TILES_CHANNELS);
    let mut task = thread_idx_x();
    while task < args.tasks {
        rolled();
        let (rest, two) = (task / (TILES_CHANNELS / 2), task % (TILES_CHANNELS / 2) * 2);
        let (group, row) = args.by_rows.div_rem(rest);
        task += TILES_THREADS;
        let (p, q) = (p0 + row * EACH as u32, q0 + group * TILES_OUTPUTS);
        let channel = channel0 + two;
        if p >= g.out[0] || q >= g.out[1] || channel >= g.groups {
            continue;
        }
        let mut at = pixels
            .byte_add(row * (EACH * STEP) as u32 * args.pitch)
            .add(group * TILES_OUTPUTS * STEP as u32 * TILES_CHANNELS + two);
        let mut tap = weights.add(two);
        let next = S as u32 * TILES_CHANNELS;
        let (mut above, mut below) = (NONE, NONE);
        // SAFETY: a row of weights.
        let taps = |tap: Shared<T>| unsafe { read::<T, S>(kind, tap) };
        // SAFETY: a line of the tile.
        let line = |at: Shared<T>| unsafe { read::<T, COLUMNS>(kind, at) };
        if EACH == 1 {
            let (count, mut r) = (opaque(S as u32), 0);
            while r < count {
                rolled();
                add::<S, STEP, COLUMNS>(&mut above, &line(at), &taps(tap));
                (at, tap, r) = (at.byte_add(args.pitch), tap.add(next), r + 1);
            }
        } else {
            // A line is row r of the windows above and row r - 1 of those below.
            let mut first = taps(tap);
            add::<S, STEP, COLUMNS>(&mut above, &line(at), &first);
            let (count, mut r) = (opaque(S as u32 / 2), 0);
            while r < count {
                rolled();
                let second = taps(tap.add(next));
                let now = line(at.byte_add(args.pitch));
                add::<S, STEP, COLUMNS>(&mut above, &now, &second);
                add::<S, STEP, COLUMNS>(&mut below, &now, &first);
                first = taps(tap.add(2 * next));
                let now = line(at.byte_add(2 * args.pitch));
                add::<S, STEP, COLUMNS>(&mut above, &now, &first);
                add::<S, STEP, COLUMNS>(&mut below, &now, &second);
                (at, tap, r) = (at.byte_add(2 * args.pitch), tap.add(2 * next), r + 1);
            }
            add::<S, STEP, COLUMNS>(&mut below, &line(at.byte_add(args.pitch)), &first);
        }
        // SAFETY: output channels.
        let biases = core::array::from_fn(|c| unsafe { bias(conv, channel + c as u32) });
        let relu = matches!(conv.activation, Activation::Relu);
        let low = if relu { 0.0 } else { f32::NEG_INFINITY };
        let output = Output { args, biases, low };
        let inside = (p * g.out[1] + q) * g.y_step[0] + channel;
        let to = (u64::from(image) * g.y_image + u64::from(inside)) as usize;
        let count = TILES_OUTPUTS.min(g.out[1] - q);
        // SAFETY: outputs of this thread.
        unsafe {
            output.write::<T>(to, count, above);
            if EACH == 2 && p + 1 < g.out[0] {
                output.write::<T>(to + (g.out[1] * g.y_step[0]) as usize, count, below);
            }
        }
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty, $s:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with the arguments that `contract::conv2d::tiles_of` gives for a
        /// window of this side; their pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: TilesArgs) {
            // SAFETY: the caller's promise.
            unsafe {
                match (args.conv.geometry.stride[0], args.each) {
                    (1, 1) => tiles::<$ty, $s, 1, 1, { $s + OUTPUTS - 1 }>(&args),
                    (1, _) => tiles::<$ty, $s, 1, 2, { $s + OUTPUTS - 1 }>(&args),
                    _ => tiles::<$ty, $s, 2, 1, { $s + 2 * OUTPUTS - 2 }>(&args),
                }
            }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTiles3F32 conv2d_tiles3_f32 f32, 3;
    Conv2dTiles3F16 conv2d_tiles3_f16 One<true>, 3;
    Conv2dTiles3Bf16 conv2d_tiles3_bf16 One<false>, 3;
    Conv2dTiles5F32 conv2d_tiles5_f32 f32, 5;
    Conv2dTiles5F16 conv2d_tiles5_f16 One<true>, 5;
    Conv2dTiles5Bf16 conv2d_tiles5_bf16 One<false>, 5;
    Conv2dTiles7F32 conv2d_tiles7_f32 f32, 7;
    Conv2dTiles7F16 conv2d_tiles7_f16 One<true>, 7;
    Conv2dTiles7Bf16 conv2d_tiles7_bf16 One<false>, 7;
}
