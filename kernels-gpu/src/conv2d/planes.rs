//! The depthwise kernels for images in planes: square windows, steps of 1 or 2, zero padding. A thread walks
//! down some rows of outputs, `V` neighbours of each: it reads a row of the input once and gives it to the rows
//! of outputs that it meets, while the next rows are on their way. Each output takes its taps in the contract's
//! order.

use contract::conv2d::{
    Activation, Args, Conv2dPlanes3Bf16, Conv2dPlanes3F16, Conv2dPlanes3F32, Conv2dPlanes5Bf16,
    Conv2dPlanes5F16, Conv2dPlanes5F32, Conv2dPlanes7Bf16, Conv2dPlanes7F16, Conv2dPlanes7F32,
    Conv2dTaps5F32, PLANES_FOUR, PLANES_THREADS, PlanesArgs,
};
use contract::launch::Kernel;
use contract::num::{RowType, fma};

use super::epilogue::bias;
use super::value::{One, Value};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::thread::{block_idx_x, thread_idx_x};

/// Outputs of a thread side by side.
const FOUR: usize = PLANES_FOUR as usize;

/// What a thread reads of a row, as it lies in memory: `ONES` single elements, `LEFT` of them in front of the
/// fours and the others behind.
#[derive(Clone, Copy)]
struct Line<T: Value, const LEFT: usize, const ONES: usize, const FOURS: usize> {
    ones: [T::Raw; ONES],
    fours: [T::Four; FOURS],
}

impl<T: Value, const LEFT: usize, const ONES: usize, const FOURS: usize>
    Line<T, LEFT, ONES, FOURS>
{
    /// The columns from `first` on, `apart` elements from one to the next, of a row that is `width` wide and has
    /// `first` at `row`; +0 outside.
    ///
    /// # Safety
    ///
    /// The row is readable, and its fours aligned: each is inside of it or outside.
    #[inline(always)]
    unsafe fn load(row: *const T, first: i32, width: u32, apart: u32) -> Self {
        let inside = |j: usize| ((first + j as i32) as u32) < width;
        // SAFETY: inside of the row, or not read.
        let ones = core::array::from_fn(|j| unsafe {
            let j = if j < LEFT { j } else { j + 4 * FOURS };
            T::load_raw(inside(j), row.wrapping_add(j * apart as usize))
        });
        // SAFETY: as above.
        let fours = core::array::from_fn(|j| unsafe {
            T::load_four(inside(LEFT + 4 * j), row.wrapping_add(LEFT + 4 * j))
        });
        Self { ones, fours }
    }

    /// The values.
    #[inline(always)]
    fn widen<const COLUMNS: usize>(&self, kind: RowType) -> [f32; COLUMNS] {
        const { assert!(COLUMNS == ONES + 4 * FOURS && LEFT <= ONES) };
        let mut values = [0.0; COLUMNS];
        let mut j = 0;
        while j < ONES {
            let to = if j < LEFT { j } else { j + 4 * FOURS };
            values[to] = T::widen_raw(kind, self.ones[j]);
            j += 1;
        }
        let mut j = 0;
        while j < FOURS {
            let four = T::widen_four(kind, self.fours[j]);
            let mut c = 0;
            while c < 4 {
                values[LEFT + 4 * j + c] = four[c];
                c += 1;
            }
            j += 1;
        }
        values
    }
}

/// Asks for the lines of a thread, in order.
struct Input<T> {
    /// The first column that is read, of the row that comes next.
    row: *const T,
    first: i32,
    /// That row, the one behind the last that is needed and there, and the width of all.
    h: i32,
    end: u32,
    width: u32,
    /// Elements between columns, and between rows.
    apart: [u32; 2],
}

impl<T: Value> Input<T> {
    /// The next line; zeros where there is none.
    ///
    /// # Safety
    ///
    /// The plane is readable; as for [`Line::load`].
    #[inline(always)]
    unsafe fn ask<const LEFT: usize, const ONES: usize, const FOURS: usize>(
        &mut self,
    ) -> Line<T, LEFT, ONES, FOURS> {
        let width = if (self.h as u32) < self.end { self.width } else { 0 };
        // SAFETY: the caller's promise.
        let line = unsafe { Line::load(self.row, self.first, width, self.apart[0]) };
        self.row = self.row.wrapping_add(self.apart[1] as usize);
        self.h += 1;
        line
    }
}

/// What follows a sum.
struct Output<'a> {
    args: &'a PlanesArgs,
    bias: f32,
    /// What is below becomes 0.
    low: f32,
}

impl Output<'_> {
    /// Writes the first `count` of `V` neighbours of a row, from element `at` of `y` on.
    ///
    /// # Safety
    ///
    /// They belong to this thread, four of them aligned; `y` and `residual` cover the contract's table.
    #[inline(always)]
    unsafe fn write<T: Value, const V: usize, const LAST: bool>(
        &self,
        at: usize,
        count: u32,
        sums: [f32; V],
    ) {
        let args = &self.args.conv;
        let mut out = sums.map(|sum| sum + self.bias);
        // Opaque, here and below, because LLVM would copy all of the loop for every kind of epilogue.
        if opaque_here(u32::from(!args.residual.is_null())) != 0 {
            let residual = args.residual.as_ptr().cast::<T>().cast_const().wrapping_add(at);
            // SAFETY: as large as y.
            let residual: [f32; V] = unsafe { load::<T, V, LAST>(args, count, residual) };
            out = core::array::from_fn(|i| out[i] + residual[i]);
        }
        out = out.map(|value| if value < self.low { 0.0 } else { value });
        match Activation::from_u32(opaque_here(args.activation as u32)) {
            Activation::None | Activation::Relu => (),
            Activation::Relu2 => out = out.map(|value| Activation::Relu2.apply_cheap(value)),
            Activation::Silu => {
                // What comes next in front: one copy of the body.
                let (count, mut i) = (opaque_here(V as u32), 0);
                while i < count {
                    rolled();
                    let value = Activation::Silu.apply(out[0]);
                    let mut j = 1;
                    while j < V {
                        out[j - 1] = out[j];
                        j += 1;
                    }
                    out[V - 1] = value;
                    i += 1;
                }
            }
        }
        let y = args.y.as_ptr().cast::<T>().wrapping_add(at);
        // SAFETY: outputs of this thread.
        unsafe { store::<T, V, LAST>(args, count, y, out) };
    }
}

/// `V` neighbours, side by side or, channels last, a pixel apart and `count` of them.
///
/// # Safety
///
/// As for [`Value::load`] or [`Value::load4`].
#[inline(always)]
unsafe fn load<T: Value, const V: usize, const LAST: bool>(
    args: &Args,
    count: u32,
    p: *const T,
) -> [f32; V] {
    let kind = args.element;
    let mut values = [0.0; V];
    // SAFETY: the caller's promise.
    unsafe {
        if V == FOUR && !LAST {
            values.copy_from_slice(&T::load4(kind, true, p));
        } else {
            let apart = args.geometry.y_step[0] as usize;
            let mut v = 0;
            while v < V {
                values[v] = T::load(kind, (v as u32) < count, p.wrapping_add(v * apart));
                v += 1;
            }
        }
    }
    values
}

/// Writes as many.
///
/// # Safety
///
/// As for [`Value::store`] or [`Value::store4`].
#[inline(always)]
unsafe fn store<T: Value, const V: usize, const LAST: bool>(
    args: &Args,
    count: u32,
    p: *mut T,
    values: [f32; V],
) {
    let kind = args.element;
    // SAFETY: the caller's promise.
    unsafe {
        if V == FOUR && !LAST {
            T::store4(kind, p, core::array::from_fn(|i| values[i]));
        } else {
            let apart = args.geometry.y_step[0] as usize;
            let mut v = 0;
            while v < V {
                if (v as u32) < count {
                    T::store(kind, p.wrapping_add(v * apart), values[v]);
                }
                v += 1;
            }
        }
    }
}

/// Windows of `S` by `S`, `V` neighbouring outputs. `AGES`: rows of outputs that meet one row of the input;
/// `COLUMNS`: what `V` outputs read of it, in the form of [`Line`]; `AHEAD`: lines under way, each in registers
/// of its own, because a line that is moved would be waited for.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::conv2d::planes` for this window, step
/// and number of outputs; their pointers cover the contract's table.
#[inline(always)]
unsafe fn planes<
    T: Value,
    const S: usize,
    const STEP: usize,
    const V: usize,
    const AGES: usize,
    const LEFT: usize,
    const ONES: usize,
    const FOURS: usize,
    const COLUMNS: usize,
    const AHEAD: usize,
    const LAST: bool,
>(
    args: &PlanesArgs,
) {
    const { assert!(COLUMNS == (V - 1) * STEP + S && AGES == S.div_ceil(STEP)) };
    const { assert!(AHEAD % STEP == 0) };
    let conv = &args.conv;
    let (g, kind) = (&conv.geometry, conv.element);
    let at = block_idx_x() * PLANES_THREADS + thread_idx_x();
    let (image, channel, source, column, piece) = if LAST {
        let (rest, channel) = args.by_channels.div_rem(at);
        let (rest, column) = args.by_across.div_rem(rest);
        let (image, piece) = args.by_down.div_rem(rest);
        (image, channel, args.by_multiplier.div_rem(channel).0, column, piece)
    } else {
        let (rest, column) = args.by_across.div_rem(at);
        let (plane, piece) = args.by_down.div_rem(rest);
        let (_, channel) = args.by_channels.div_rem(plane);
        // Planes of all images.
        (plane, channel, args.by_multiplier.div_rem(plane).0, column, piece)
    };
    let (p0, q0) = (piece * args.rows, column * V as u32);
    launch_dependents();
    dependency_wait();
    if at >= args.threads {
        return;
    }
    let rows = args.rows.min(g.out[0] - p0);
    let x = conv.x.as_ptr().cast::<T>().cast_const();
    let mut from = u64::from(source) * u64::from(g.x_step[2]);
    if LAST {
        from += u64::from(image) * g.x_image;
    }
    let x = x.wrapping_add(from as usize);
    let (height, width) = (g.edges[0].len, g.edges[1].len as u32);
    let h = p0 as i32 * STEP as i32 - g.pad[0];
    let first = q0 as i32 * STEP as i32 - g.pad[1];
    let apart = if LAST { [g.x_step[1], g.x_step[0]] } else { [1, width] };
    let [across, down] = apart.map(|apart| apart as usize as isize);
    let row = x.wrapping_offset(h as isize * down + first as isize * across);
    let end = (h + ((rows - 1) * STEP as u32) as i32 + S as i32).clamp(0, height);
    let mut input = Input { row, first, h, end: end as u32, width, apart };
    // SAFETY: the plane; of fours, rows and columns start at multiples of four.
    let mut lines: [Line<T, LEFT, ONES, FOURS>; AHEAD] =
        core::array::from_fn(|_| unsafe { input.ask() });
    let w = conv.w.as_ptr().cast::<T>().cast_const().wrapping_add(channel as usize);
    let taps: [[f32; S]; S] = core::array::from_fn(|r| {
        // SAFETY: w[tap, channel].
        core::array::from_fn(|s| unsafe {
            T::load(kind, true, w.wrapping_add((r * S + s) * conv.columns as usize))
        })
    });
    let relu = matches!(conv.activation, Activation::Relu);
    let low = if relu { 0.0 } else { f32::NEG_INFINITY };
    // SAFETY: an output channel.
    let output = Output { args, bias: unsafe { bias(conv, channel) }, low };
    let pixel = p0 * g.out[1] + q0;
    let (mut to, line) = if LAST {
        let inside = pixel * g.y_step[0] + channel;
        ((u64::from(image) * g.y_image + u64::from(inside)) as usize, g.out[1] * g.y_step[0])
    } else {
        ((u64::from(image) * u64::from(g.y_step[1]) + u64::from(pixel)) as usize, g.out[1])
    };
    let count = if LAST { g.out[1] - q0 } else { V as u32 };
    // The sums of the row of outputs that starts, and of those that started that many turns before.
    let mut ages = [[0.0f32; V]; AGES];
    let mut t = opaque(0);
    loop {
        let mut turn = 0;
        while turn < AHEAD {
            let mut j = 0;
            while j < STEP {
                let pixels: [f32; COLUMNS] = lines[turn + j].widen(kind);
                let mut age = 0;
                while age < AGES {
                    let r = age * STEP + j;
                    // For large windows it pays to leave out rows of outputs that are another thread's.
                    if r < S && (S == 3 || t.wrapping_sub(age as u32) < rows) {
                        let mut s = 0;
                        while s < S {
                            let mut v = 0;
                            while v < V {
                                ages[age][v] = fma(pixels[v * STEP + s], taps[r][s], ages[age][v]);
                                v += 1;
                            }
                            s += 1;
                        }
                    }
                    age += 1;
                }
                j += 1;
            }
            if t >= AGES as u32 - 1 {
                // SAFETY: a row of outputs that is there and this thread's.
                unsafe { output.write::<T, V, LAST>(to, count, ages[AGES - 1]) };
                to += line as usize;
            }
            // Behind the stores, which no load passes: so a line comes to the registers of the one that is used up.
            let mut j = 0;
            while j < STEP {
                // SAFETY: as above.
                lines[turn + j] = unsafe { input.ask() };
                j += 1;
            }
            let mut age = AGES - 1;
            while age > 0 {
                ages[age] = ages[age - 1];
                age -= 1;
            }
            ages[0] = [0.0; V];
            t += 1;
            if t == rows + AGES as u32 - 1 {
                return;
            }
            turn += STEP;
        }
    }
}

/// The form for the step and the number of outputs, each with the lines that it has under way.
macro_rules! forms {
    ($args:expr, $ty:ty, $s:literal, $ahead:expr) => {
        match ($args.conv.geometry.stride[0], $args.outputs) {
            (1, 1) => planes::<$ty, $s, 1, 1, $s, $s, $s, 0, $s, { $ahead[0] }, false>($args),
            (1, _) => {
                const HALF: usize = $s / 2;
                planes::<$ty, $s, 1, FOUR, $s, HALF, { $s - 1 }, 1, { $s + 3 }, { $ahead[1] }, false>(
                    $args,
                )
            }
            (_, 1) => {
                const AGES: usize = $s / 2 + 1;
                planes::<$ty, $s, 2, 1, AGES, $s, $s, 0, $s, { $ahead[2] }, false>($args)
            }
            _ => {
                const HALF: usize = $s / 2;
                planes::<
                    $ty,
                    $s,
                    2,
                    FOUR,
                    { HALF + 1 },
                    HALF,
                    { $s - 2 },
                    2,
                    { $s + 6 },
                    { $ahead[3] },
                    false,
                >($args)
            }
        }
    };
}

/// Lines under way, by the side of a window, of the forms of `forms`.
const THREE: [usize; 4] = [6, 3, 4, 2];
const FIVE: [usize; 4] = [3, 2, 2, 2];
const SEVEN: [usize; 4] = [2, 2, 2, 2];

/// The same where channels are side by side: [`FOUR`] outputs of a row.
macro_rules! last {
    ($args:expr, $ty:ty, $s:literal, $ahead:expr) => {
        if $args.conv.geometry.stride[0] == 1 {
            planes::<$ty, $s, 1, FOUR, $s, 0, { $s + 3 }, 0, { $s + 3 }, { $ahead[0] }, true>($args)
        } else {
            const AGES: usize = $s / 2 + 1;
            planes::<$ty, $s, 2, FOUR, AGES, 0, { $s + 6 }, 0, { $s + 6 }, { $ahead[1] }, true>(
                $args,
            )
        }
    };
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $form:ident $ty:ty, $s:literal, $ahead:ident;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with the arguments and the threads that
        /// `contract::conv2d::planes` gives for a window of this side; their pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: PlanesArgs) {
            // SAFETY: the caller's promise.
            unsafe { $form!(&args, $ty, $s, $ahead) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

/// Lines under way of the forms of `last`.
const LAST_FIVE: [usize; 2] = [3, 2];

kernels! {
    Conv2dTaps5F32 conv2d_taps5_f32 last f32, 5, LAST_FIVE;
    Conv2dPlanes3F32 conv2d_planes3_f32 forms f32, 3, THREE;
    Conv2dPlanes3F16 conv2d_planes3_f16 forms One<true>, 3, THREE;
    Conv2dPlanes3Bf16 conv2d_planes3_bf16 forms One<false>, 3, THREE;
    Conv2dPlanes5F32 conv2d_planes5_f32 forms f32, 5, FIVE;
    Conv2dPlanes5F16 conv2d_planes5_f16 forms One<true>, 5, FIVE;
    Conv2dPlanes5Bf16 conv2d_planes5_bf16 forms One<false>, 5, FIVE;
    Conv2dPlanes7F32 conv2d_planes7_f32 forms f32, 7, SEVEN;
    Conv2dPlanes7F16 conv2d_planes7_f16 forms One<true>, 7, SEVEN;
    Conv2dPlanes7Bf16 conv2d_planes7_bf16 forms One<false>, 7, SEVEN;
}
