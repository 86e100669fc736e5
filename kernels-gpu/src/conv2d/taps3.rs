//! The depthwise kernels for windows of 3 by 3 taps, steps of 1 or 2, zero padding, channels side by
//! side: bound by memory. A thread walks down some rows of outputs, four channels of [`TAPS_PIXELS`] of
//! each: it reads a line of the input once and gives it to the rows of outputs that it meets, while the
//! next ones are on their way ([`super::taps3_queue`]). Each output takes its taps in the contract's order.

use contract::conv2d::{
    ABSENT, Activation, Args, Conv2dTaps3Bf16, Conv2dTaps3F16, Conv2dTaps3F32, TAPS_PIXELS,
    TAPS_THREADS, Taps3Args, finish, finish_cheap,
};
use contract::launch::Kernel;
use contract::num::fma;

use super::epilogue::{bias, residual};
use super::taps3_queue::{Input, Queue, lines};
use super::value::{One, Value};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, thread_idx_x};

const PIXELS: usize = TAPS_PIXELS as usize;

/// Sums of some pixels of a row of outputs.
type Sums<const N: usize> = [[f32; 4]; N];

/// `sums` after the three taps of a line.
#[inline(always)]
fn add<const STEP: usize, const COLUMNS: usize, const N: usize>(
    mut sums: Sums<N>,
    line: &[[f32; 4]; COLUMNS],
    taps: &[[f32; 4]],
) -> Sums<N> {
    let mut s = 0;
    while s < 3 {
        let mut q = 0;
        while q < N {
            let mut c = 0;
            while c < 4 {
                sums[q][c] = fma(line[q * STEP + s][c], taps[s][c], sums[q][c]);
                c += 1;
            }
            q += 1;
        }
        s += 1;
    }
    sums
}

/// Where a thread writes: its channels, and what follows a sum.
struct Output<'a> {
    args: &'a Args,
    image: u32,
    channel: u32,
    /// First pixel of a row, and how many there are.
    q0: u32,
    pixels: u32,
    biases: [f32; 4],
    /// Whether nothing is added but the bias, and no activation but relu follows; what is below `low`
    /// then becomes 0.
    plain: bool,
    low: f32,
}

impl<'a> Output<'a> {
    #[inline(always)]
    fn new(
        args: &'a Args,
        image: u32,
        channel: u32,
        biases: [f32; 4],
        (q0, pixels): (u32, u32),
    ) -> Self {
        let relu = matches!(args.activation, Activation::Relu);
        let plain =
            args.residual.is_null() && (relu || matches!(args.activation, Activation::None));
        let low = if relu { 0.0 } else { f32::NEG_INFINITY };
        Self { args, image, channel, q0, pixels, biases, plain, low }
    }

    /// Writes the outputs of row `p`.
    ///
    /// # Safety
    ///
    /// They belong to this thread; `y`, `bias` and `residual` cover the contract's table.
    #[inline(always)]
    unsafe fn write<T: Value, const N: usize>(&self, p: u32, sums: Sums<N>) {
        let (args, g) = (self.args, &self.args.geometry);
        let at = |q: u32| {
            let inside = (p * g.out[1] + self.q0 + q) * g.y_step[0] + self.channel;
            (u64::from(self.image) * g.y_image + u64::from(inside)) as usize
        };
        let y = args.y.as_ptr().cast::<T>();
        // Opaque, because LLVM would copy all of the loop for every kind of epilogue.
        if opaque_here(u32::from(self.plain)) != 0 {
            let first = y.wrapping_add(at(0));
            let mut q = 0;
            while q < N as u32 {
                if q < self.pixels {
                    let out = core::array::from_fn(|c| {
                        let value = sums[q as usize][c] + self.biases[c];
                        if value < self.low { 0.0 } else { value }
                    });
                    // SAFETY: four channels of one output of this thread.
                    unsafe {
                        T::store4(args.element, first.wrapping_add((q * g.y_step[0]) as usize), out)
                    };
                }
                q += 1;
            }
            return;
        }
        if args.activation.is_cheap() {
            let mut q = 0;
            while q < N as u32 {
                if q < self.pixels {
                    let residual = args.residual.as_ptr().cast::<T>().cast_const();
                    // Opaque, because LLVM would copy all of this for every kind of epilogue.
                    let has = opaque_here(u32::from(!args.residual.is_null())) != 0;
                    let activation = Activation::from_u32(opaque_here(args.activation as u32));
                    // SAFETY: as large as y; four channels of one output of this thread.
                    unsafe {
                        let residual = T::load4(args.element, has, residual.wrapping_add(at(q)));
                        let out = core::array::from_fn(|c| {
                            let residual = if has { residual[c] } else { ABSENT };
                            finish_cheap(sums[q as usize][c], self.biases[c], residual, activation)
                        });
                        T::store4(args.element, y.wrapping_add(at(q)), out);
                    }
                }
                q += 1;
            }
            return;
        }
        // Through shared memory of this thread alone, so that there is one copy of the activation.
        let own = dynamic_shared_mem::<f32>().add(thread_idx_x() * 4);
        let slot = |q: u32| own.add(q * TAPS_THREADS * 4);
        let mut q = 0;
        while q < N {
            // SAFETY: PIXELS slots of four for each thread.
            unsafe { slot(q as u32).write_x4(sums[q]) };
            q += 1;
        }
        let mut q = 0;
        while q < self.pixels {
            let (count, mut c) = (opaque_here(4), 0);
            while c < count {
                // SAFETY: written above by this thread; an output channel; as large as y.
                unsafe {
                    let slot = slot(q).add(c);
                    let bias = bias(args, self.channel + c);
                    let residual = residual::<T>(args, at(q) + c as usize);
                    let activation = Activation::from_u32(args.activation as u32);
                    slot.write(finish(slot.read(), bias, residual, activation));
                }
                c += 1;
            }
            // SAFETY: four channels of one output, which belong to this thread.
            unsafe { T::store4(args.element, y.wrapping_add(at(q)), slot(q).read_x4()) };
            q += 1;
        }
    }
}

/// `COLUMNS`: what a row of outputs reads, `STEP * (PIXELS - 1) + 3`.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` and is what `taps3` says, windows are 3 by 3 with both steps `STEP` and no dilation,
/// `vectors` holds, and the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn three<T: Value, const STEP: usize, const COLUMNS: usize, const LINES: u32>(
    args: &Taps3Args,
) {
    let (way, args) = (args, &args.conv);
    let (g, rows) = (&args.geometry, way.rows);
    let (rest, quad) = way.by_quads.div_rem(block_idx_x() * TAPS_THREADS + thread_idx_x());
    let (rest, pair) = way.by_across.div_rem(rest);
    let (image, piece) = way.by_down.div_rem(rest);
    let (q0, p0, channel) = (pair * TAPS_PIXELS, piece * rows, quad * 4);
    launch_dependents();
    dependency_wait();
    if image >= args.images {
        return;
    }
    let w = args.w.as_ptr().cast::<T>().cast_const().wrapping_add(channel as usize);
    // SAFETY: w[tap, channel..channel + 4].
    let taps: [[f32; 4]; 9] = core::array::from_fn(|tap| unsafe {
        T::load4(args.element, true, w.wrapping_add(tap * args.columns as usize))
    });
    let x = args.x.as_ptr().cast::<T>().cast_const();
    let x = x.wrapping_add((u64::from(image) * g.x_image) as usize + channel as usize);
    let input = Input { args, x, column: q0 as i32 * STEP as i32 - g.pad[1] };
    // SAFETY: output channels.
    let biases = core::array::from_fn(|c| unsafe { bias(args, channel + c as u32) });
    let output = Output::new(args, image, channel, biases, (q0, TAPS_PIXELS.min(g.out[1] - q0)));
    let (none, end) = ([[0.0f32; 4]; PIXELS], rows.min(g.out[0] - p0));
    let top = p0 as i32 * STEP as i32 - g.pad[0];
    if STEP == 1 {
        // A line is the last of one row of outputs, the second of the next and the first of the third.
        let (mut two, mut one) = (none, none);
        let count = end + 2;
        // SAFETY: the image; this thread's places of the queue, here and below.
        let mut queue = unsafe { Queue::<T, COLUMNS, LINES>::new(&input, top, count) };
        let mut i = opaque(0);
        while i < count {
            // SAFETY: as above.
            let line = unsafe { queue.turn(&input) };
            let all = add::<STEP, COLUMNS, PIXELS>(two, &line, &taps[6..]);
            two = add::<STEP, COLUMNS, PIXELS>(one, &line, &taps[3..6]);
            one = add::<STEP, COLUMNS, PIXELS>(none, &line, &taps[..3]);
            if i >= 2 {
                // SAFETY: a row of outputs that is there and this thread's.
                unsafe { output.write::<T, PIXELS>(p0 + i - 2, all) };
            }
            i += 1;
        }
    } else {
        // Every other line is the last of one row of outputs and the first of the next.
        // SAFETY: the image; this thread's places of the queue, here and below.
        let mut queue = unsafe { Queue::<T, COLUMNS, LINES>::new(&input, top, 2 * end + 1) };
        // SAFETY: as above.
        let line = unsafe { queue.turn(&input) };
        let mut one = add::<STEP, COLUMNS, PIXELS>(none, &line, &taps[..3]);
        let mut i = opaque(0);
        while i < end {
            // SAFETY: as above.
            let second = unsafe { queue.turn(&input) };
            let two = add::<STEP, COLUMNS, PIXELS>(one, &second, &taps[3..6]);
            // SAFETY: as above.
            let third = unsafe { queue.turn(&input) };
            let all = add::<STEP, COLUMNS, PIXELS>(two, &third, &taps[6..]);
            one = add::<STEP, COLUMNS, PIXELS>(none, &third, &taps[..3]);
            // SAFETY: a row of outputs that is there and this thread's.
            unsafe { output.write::<T, PIXELS>(p0 + i, all) };
            i += 1;
        }
    }
}

/// Few outputs: a thread has one of them, and asks for all that it reads at once.
///
/// # Safety
///
/// As for [`three`], where `few` says so.
#[inline(always)]
unsafe fn few<T: Value, const STEP: usize>(args: &Taps3Args) {
    let (way, args) = (args, &args.conv);
    let g = &args.geometry;
    let (rest, quad) = way.by_quads.div_rem(block_idx_x() * TAPS_THREADS + thread_idx_x());
    let (rest, q) = way.by_across.div_rem(rest);
    let (image, p) = way.by_down.div_rem(rest);
    let there = image < args.images;
    let channel = quad * 4;
    let w = args.w.as_ptr().cast::<T>().cast_const().wrapping_add(channel as usize);
    // Weights never change.
    // SAFETY: w[tap, channel..channel + 4].
    let taps: [T::Four; 9] = core::array::from_fn(|tap| unsafe {
        T::load_four(there, w.wrapping_add(tap * args.columns as usize))
    });
    launch_dependents();
    dependency_wait();
    if !there {
        return;
    }
    let x = args.x.as_ptr().cast::<T>().cast_const();
    let x = x.wrapping_add((u64::from(image) * g.x_image) as usize + channel as usize);
    let input = Input { args, x, column: q as i32 * STEP as i32 - g.pad[1] };
    let top = p as i32 * STEP as i32 - g.pad[0];
    let lines: [[T::Four; 3]; 3] = core::array::from_fn(|r| {
        core::array::from_fn(|j| {
            let (at, inside) = input.at(top + r as i32, j);
            // SAFETY: four channels of a pixel of the image.
            unsafe { T::load_four(inside, at) }
        })
    });
    // SAFETY: output channels.
    let biases = core::array::from_fn(|c| unsafe { bias(args, channel + c as u32) });
    let output = Output::new(args, image, channel, biases, (q, 1));
    let (mut sums, mut r) = ([[0.0f32; 4]], 0);
    while r < 3 {
        let line = lines[r].map(|four| T::widen_four(args.element, four));
        let taps: [[f32; 4]; 3] =
            core::array::from_fn(|s| T::widen_four(args.element, taps[3 * r + s]));
        sums = add::<STEP, 3, 1>(sums, &line, &taps);
        r += 1;
    }
    // SAFETY: an output of this thread.
    unsafe { output.write::<T, 1>(p, sums) };
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty;)*) => { $(
        /// # Safety
        ///
        /// As for the general kernels; moreover `contract::conv2d::taps3` gives grid and arguments.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Taps3Args) {
            // SAFETY: the caller's promise.
            unsafe {
                match (args.conv.geometry.stride[0], args.few) {
                    (1, 0) => three::<$ty, 1, { PIXELS + 2 }, { lines(size_of::<$ty>(), PIXELS + 2) }>(&args),
                    (_, 0) => three::<$ty, 2, { 2 * PIXELS + 1 }, { lines(size_of::<$ty>(), 2 * PIXELS + 1) }>(&args),
                    (1, _) => few::<$ty, 1>(&args),
                    _ => few::<$ty, 2>(&args),
                }
            }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTaps3F32 conv2d_taps3_f32 f32;
    Conv2dTaps3F16 conv2d_taps3_f16 One<true>;
    Conv2dTaps3Bf16 conv2d_taps3_bf16 One<false>;
}
