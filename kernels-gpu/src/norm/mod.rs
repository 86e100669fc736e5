//! What [`crate::rmsnorm`] and [`crate::layernorm`] share: a row with its residual add, and its output.

#[cfg(not(level_sm_90))]
pub mod alone;
#[cfg(level_sm_90)]
pub mod parts;
#[cfg(level_sm_90)]
pub mod ring;
#[cfg(level_sm_80)]
pub mod small;
pub mod sums;

use contract::launch::DevPtr;
use contract::row::LONG_THREADS;

use crate::arch::mem::X4;
use crate::arch::thread::{opaque, sync_threads};
use crate::float::{Float, Piece};
use crate::row::block::{self, Block, Chunk};
use crate::row::lanes::{Lanes, NOTHING, Raw};
use crate::row::{Line, map};

/// The tensors of a norm, at a row.
pub struct Norm<E, const PIECES: bool> {
    line: Line<PIECES>,
    /// `x[m, 0]`; the sum with `delta` is written back.
    x: *mut E,
    /// `delta[m, 0]`, or null.
    delta: *const E,
    /// Gain, or null.
    weight: *const E,
    /// Offset, or null.
    bias: *const E,
    /// `y[0, 0]`: where the row is comes anew where it is needed, which takes no register in between.
    y: *mut E,
}

/// The tensors `x`, `delta`, `weight`, `bias` and `y`, from their first row on.
pub type Tensors = [DevPtr<u8>; 5];

/// `M`, `K`.
pub type Shape = [u32; 2];

impl<E: Float, const PIECES: bool> Norm<E, PIECES> {
    /// Row `m`.
    #[inline(always)]
    fn new([x, delta, weight, bias, y]: Tensors, [rows, k]: Shape, m: u32) -> Self {
        let line = Line::new([m, rows, k]);
        let at = |p: DevPtr<u8>| p.cast::<E>().as_ptr().wrapping_add(line.start);
        let delta = if delta.is_null() { core::ptr::null() } else { at(delta).cast_const() };
        let (weight, bias) = (weight.cast().as_ptr(), bias.cast().as_ptr());
        Self { line, x: at(x), delta, weight, bias, y: y.cast().as_ptr() }
    }

    /// The same row, which may start anywhere, of so many.
    #[inline(always)]
    fn turned(mut self, boundary: u32, rows: u32) -> Self {
        self.line = self.line.turned(boundary, rows);
        let odd = self.line.odd.unwrap_or(0) as usize;
        self.x = self.x.wrapping_sub(odd);
        if self.adds() {
            self.delta = self.delta.wrapping_sub(odd);
        }
        self
    }

    /// Whether there is a residual add.
    #[inline(always)]
    fn adds(&self) -> bool {
        !self.delta.is_null()
    }

    /// `x + delta` of an item, rounded.
    #[inline(always)]
    fn sum(x: X4<u32>, delta: X4<u32>) -> X4<u32> {
        let delta = E::widen(delta);
        E::narrow(map::<E, PIECES>(E::widen(x), |i, x| x + delta[i]))
    }

    /// `x + delta` of an item, rounded and written back.
    ///
    /// # Safety
    ///
    /// The item from `first` on belongs to this thread.
    #[inline(always)]
    unsafe fn add(&self, first: u32, x: X4<u32>, delta: X4<u32>) -> X4<u32> {
        let sum = Self::sum(x, delta);
        // SAFETY: the sum goes where `x` came from.
        unsafe { self.line.store(self.x, first, sum) };
        sum
    }

    /// The items of the weight and the bias, zeros where there are none: `load` reads one.
    #[inline(always)]
    fn beside(&self, load: impl Fn(*const E) -> X4<u32>) -> [X4<u32>; 2] {
        let load = |p: *const E| if p.is_null() { [0; 4] } else { load(p) };
        [load(self.weight), load(self.bias)]
    }

    /// `value(x, weight, bias)` of an item; weight 1 and bias -0.0 where there are none.
    #[inline(always)]
    fn output(
        &self,
        x: Piece,
        beside: [X4<u32>; 2],
        value: impl Fn(f32, f32, f32) -> f32,
    ) -> X4<u32> {
        let or = |p: *const E, raw: X4<u32>, nothing: f32| {
            if p.is_null() { [nothing; 8] } else { E::widen(raw) }
        };
        let (w, b) = (or(self.weight, beside[0], 1.0), or(self.bias, beside[1], -0.0));
        E::narrow(map::<E, PIECES>(x, |i, x| value(x, w[i], b[i])))
    }

    /// The row's output.
    #[inline(always)]
    fn to(&self) -> *mut E {
        self.y.wrapping_add(self.line.start)
    }
}

/// A norm.
pub trait Family {
    /// The kernel parameter.
    type Args;

    /// Makes a row.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table.
    unsafe fn make<E: Float>(args: &Self::Args, row: impl Held<E>);
}

/// A row that waits somewhere.
pub trait Held<E: Float> {
    /// A sum over the row: `step(acc, x)`. `which` is 0 and 1 for the two sums of a kernel; zeros leave the first as it is.
    ///
    /// # Safety
    ///
    /// Each `which` is used once, in order.
    unsafe fn sum(&mut self, which: u32, step: impl Fn(f32, f32) -> f32) -> f32;

    /// Writes `value(x, weight, bias)` of the row; one in shared memory asks for what is beside `AT_ONCE` items at a time.
    ///
    /// # Safety
    ///
    /// The output belongs to these threads.
    unsafe fn write<const AT_ONCE: usize>(&self, value: impl Fn(f32, f32, f32) -> f32);
}

/// Pieces of the next row that lanes ask for before they work on one.
const AHEAD: usize = 4;

/// A row in the registers of the lanes of a warp, or of `W` warps.
pub struct Near<E, const W: u32> {
    norm: Norm<E, true>,
    lanes: Lanes<W>,
    /// As it came: values of 16 bits take half the registers.
    raw: Raw,
}

impl<E: Float, const W: u32> Near<E, W> {
    /// Row `m`, of which nothing came.
    #[inline(always)]
    fn start(tensors: Tensors, shape: Shape, lanes: Lanes<W>, m: u32) -> Self {
        Self { norm: Norm::new(tensors, shape, m), lanes, raw: NOTHING }
    }

    /// Asks for the first pieces of row `m`.
    ///
    /// # Safety
    ///
    /// The tensors are those of the contract, in pieces; block and grid are the contract's.
    #[inline(always)]
    pub unsafe fn ask(tensors: Tensors, shape: Shape, lanes: Lanes<W>, m: u32) -> Raw {
        let row = Self::start(tensors, shape, lanes, m);
        let all = (row.norm.x.cast_const(), row.norm.line.k);
        // SAFETY: pieces of the row.
        unsafe { row.lanes.load::<_, AHEAD>(&row.norm.line, all, 0, false, NOTHING) }
    }

    /// Row `m`, for which [`Near::ask`] asked, with the residual added.
    ///
    /// # Safety
    ///
    /// As for [`Near::ask`].
    #[inline(always)]
    pub unsafe fn new(tensors: Tensors, shape: Shape, lanes: Lanes<W>, m: u32, raw: Raw) -> Self {
        let row = Self::start(tensors, shape, lanes, m);
        let (norm, lanes, line) = (&row.norm, row.lanes, &row.norm.line);
        // SAFETY: pieces of the row; those of this lane.
        let mut raw =
            unsafe { lanes.load::<_, AHEAD>(line, (norm.x.cast_const(), line.k), 0, true, raw) };
        if norm.adds() {
            lanes.own::<E>(line, |n, at| {
                // SAFETY: a piece of the row that this lane has.
                unsafe {
                    let delta = lanes.piece(norm.delta, at, shape[1], 0);
                    raw[n] = Norm::<E, true>::sum(raw[n], delta);
                    lanes.write(norm.x, at, raw[n]);
                }
            });
        }
        Self { raw, ..row }
    }

    /// The values of piece `n`: of middle rows widened anew each time, which leaves registers for more blocks.
    #[inline(always)]
    fn piece(&self, n: usize) -> Piece {
        let anew = E::PIECE == 8 && (W == 2 || W == 4);
        E::widen(if anew { self.raw[n].map(opaque) } else { self.raw[n] })
    }
}

impl<E: Float, const W: u32> Held<E> for Near<E, W> {
    #[inline(always)]
    unsafe fn sum(&mut self, which: u32, step: impl Fn(f32, f32) -> f32) -> f32 {
        let line = &self.norm.line;
        // SAFETY: handed on.
        unsafe { self.lanes.sum::<E>((which, which == 0), line, |n| self.piece(n), step) }
    }

    #[inline(always)]
    unsafe fn write<const AT_ONCE: usize>(&self, value: impl Fn(f32, f32, f32) -> f32) {
        self.lanes.own::<E>(&self.norm.line, |n, at| {
            // SAFETY: a piece of this lane.
            unsafe {
                let (norm, lanes) = (&self.norm, &self.lanes);
                let end = norm.line.k;
                let load = |p: *const E| lanes.piece(p, at, end, 0);
                let y = norm.output(self.piece(n), norm.beside(load), &value);
                lanes.write(norm.to(), at, y);
            }
        });
    }
}

/// A longer row, in shared memory as far as it fits; one that may start anywhere where that is `ODD`.
pub struct Long<E, const T: u32, const ROOM: u32, const PIECES: bool, const ODD: bool> {
    norm: Norm<E, PIECES>,
    block: Block<E, T, ROOM, PIECES, true>,
}

impl<E: Float, const T: u32, const ROOM: u32, const PIECES: bool, const ODD: bool>
    Long<E, T, ROOM, PIECES, ODD>
{
    /// Row `m`, which belongs to this block or warp.
    ///
    /// # Safety
    ///
    /// The tensors are those of the contract; block, grid and shared memory too. Where that is `ODD`, `x`, `delta` and `y` start on boundaries of
    /// 16 bytes.
    #[inline(always)]
    pub unsafe fn new(tensors: Tensors, shape: Shape, m: u32) -> Self {
        let norm = Norm::new(tensors, shape, m);
        let norm = if ODD { norm.turned(E::PIECE as u32, shape[0]) } else { norm };
        let block = Block::new(&norm.line);
        Self { norm, block }
    }

    /// Whether the row comes by asynchronous copies.
    #[inline(always)]
    fn comes(&self) -> bool {
        Block::<E, T, ROOM, PIECES, true>::COMES && self.block.fits()
    }

    /// Has the row come, adds the residual, and takes the elements into partials, as they come.
    ///
    /// # Safety
    ///
    /// As for [`Long::new`]; the row fits.
    #[inline(always)]
    unsafe fn come(&self, partials: &mut [f32; block::MOST], step: impl Fn(f32, f32) -> f32) {
        let norm = &self.norm;
        // SAFETY: pieces of this thread, and a barrier between what one puts down and another takes.
        unsafe {
            self.block.ask_all(&norm.line, norm.x.cast_const(), norm.line.k);
            self.block.came(|group| {
                if norm.adds() {
                    self.block.own(group, |s| {
                        let first = self.block.element(s);
                        let delta = norm.line.load(true, norm.delta, first);
                        let x = Block::<E, T, ROOM, PIECES, true>::raw(s);
                        Block::<E, T, ROOM, PIECES, true>::put_raw(s, norm.add(first, x, delta));
                    });
                }
                Block::<E, T, ROOM, PIECES, true>::wait();
                self.block.take(group, partials, &step);
            });
        }
    }

    /// This thread's items of a chunk, with the residual added unless that was done before: `each(s, first, x)`.
    ///
    /// # Safety
    ///
    /// What was added was written by this thread.
    #[inline(always)]
    unsafe fn chunk(&self, chunk: Chunk, added: bool, mut each: impl FnMut(u32, u32, X4<u32>)) {
        let (norm, line) = (&self.norm, &self.norm.line);
        let (x, adds) = (norm.x.cast_const(), norm.adds() && !added);
        // SAFETY: items of this thread.
        unsafe {
            if adds {
                let load = |there: bool, first: u32| {
                    [line.load(there, x, first), line.load(there, norm.delta, first)]
                };
                self.block.load::<_, 2>(chunk, [[0; 4]; 2], load, |s, first, [x, delta]| {
                    each(s, first, norm.add(first, x, delta));
                });
            } else {
                let load = |there: bool, first: u32| line.load(there, x, first);
                if !cfg!(level_sm_80) && E::PIECE == 8 {
                    self.block.load::<_, 2>(chunk, [0; 4], load, &mut each);
                } else if (T == LONG_THREADS || !cfg!(level_sm_90)) && E::PIECE == 8 {
                    // There are no registers for more.
                    self.block.load::<_, 4>(chunk, [0; 4], load, &mut each);
                } else {
                    self.block.load::<_, 8>(chunk, [0; 4], load, &mut each);
                }
            }
        }
    }
}

impl<E: Float, const T: u32, const ROOM: u32, const PIECES: bool, const ODD: bool>
    Long<E, T, ROOM, PIECES, ODD>
{
    /// [`Held::write`] of a row that may start anywhere, in words: gain and offset do not lie as it does.
    ///
    /// # Safety
    ///
    /// As for that.
    #[inline(always)]
    unsafe fn write_turned(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let (norm, line) = (&self.norm, &self.norm.line);
        // SAFETY: words of this thread.
        unsafe {
            self.block.words(|words, s| {
                let first = |i: usize| self.block.element(s[i]);
                let mut beside = [[[0; 4]; 2]; 4];
                let mut i = 0;
                while i < 4 {
                    if i < words {
                        beside[i] = norm.beside(|p| line.word_beside(p, first(i)));
                    }
                    i += 1;
                }
                let mut i = 0;
                while i < 4 {
                    if i < words {
                        let word = Block::<E, T, ROOM, PIECES, true>::raw_at(s[i]).read();
                        let x = E::widen([word, 0, 0, 0]);
                        let y = norm.output(x, beside[i], &value);
                        line.store_word(norm.to(), first(i), y[0]);
                    }
                    i += 1;
                }
            });
        }
    }
}

impl<E: Float, const T: u32, const ROOM: u32, const PIECES: bool, const ODD: bool> Held<E>
    for Long<E, T, ROOM, PIECES, ODD>
{
    #[inline(always)]
    unsafe fn sum(&mut self, which: u32, step: impl Fn(f32, f32) -> f32) -> f32 {
        let mut partials = [0.0; block::MOST];
        // SAFETY: barriers stand between what one thread puts down and another reads. What a row that does
        // not fit wrote back was written by the thread that reads it again.
        unsafe {
            self.block.chunks(|chunk| {
                if which == 0 && self.comes() {
                    return self.come(&mut partials, &step);
                }
                if which == 0 || !self.block.fits() {
                    self.chunk(chunk, which != 0, |s, _, x| {
                        Block::<E, T, ROOM, PIECES, true>::put_raw(s, x);
                    });
                    Block::<E, T, ROOM, PIECES, true>::wait();
                }
                self.block.take(chunk.all(), &mut partials, &step);
                if !self.block.fits() {
                    sync_threads();
                }
            });
            if which == 0 {
                self.block.meet();
            }
            self.block.tree(which, partials)
        }
    }

    #[inline(always)]
    unsafe fn write<const AT_ONCE: usize>(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let norm = &self.norm;
        // SAFETY: items of this thread.
        unsafe {
            if self.block.fits() {
                let line = &norm.line;
                let beside =
                    |there: bool, first: u32| norm.beside(|p: *const E| line.load(there, p, first));
                let chunk = self.block.chunk(0);
                if ODD {
                    return self.write_turned(value);
                }
                self.block.load::<_, AT_ONCE>(chunk, [[0; 4]; 2], beside, |s, first, beside| {
                    let x = Block::<E, T, ROOM, PIECES, true>::get(s);
                    line.store(norm.to(), first, norm.output(x, beside, &value));
                });
            } else {
                self.block.chunks(|chunk| {
                    self.chunk(chunk, true, |_, first, x| {
                        let beside = norm.beside(|p: *const E| norm.line.load(true, p, first));
                        let y = norm.output(E::widen(x), beside, &value);
                        norm.line.store(norm.to(), first, y);
                    });
                });
            }
        }
    }
}

/// The entries of a norm, given its [`Family`] and `tensors(args)`.
macro_rules! entries {
    ($body:ident: $($symbol:ident $kernel:ident $held:ident<$($part:tt),*>;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            launch_dependents();
            dependency_wait();
            let shape = [args.m, args.k];
            // SAFETY: the launch contract, handed on.
            unsafe { crate::norm::entries!(@ $held<$($part),*> shape, args, $body) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
    (@ Short<$element:ident> $shape:ident, $args:ident, $body:ident) => {{
        let turns = Turns::new::<$element>($args.m, $args.k, LANE);
        let all = tensors(&$args);
        let pieces = in_pieces::<$element>($args.k, &all);
        // Older compilers do not fit a row into the registers.
        if cfg!(level_sm_80) && pieces {
            crate::norm::entries!(@ Turns<$element, 1> all, turns, $shape, $args, $body);
        } else {
            let (mut m, end) = turns.warp_rows($args.m);
            while m < end {
                if !cfg!(level_sm_80) && pieces {
                    $body::make(&$args, Long::<$element, 32, SHORT, true, false>::new(all, $shape, m));
                } else {
                    $body::make(&$args, Long::<$element, 32, SHORT, false, false>::new(all, $shape, m));
                }
                sync_warp();
                m += WARPS;
            }
        }
    }};
    (@ Small<$element:ident> $shape:ident, $args:ident, $body:ident) => {
        crate::norm::small::rows::<$body, $element>(&$args, tensors(&$args), $shape, small(&$args))
    };
    (@ Turns<$element:ident, $warps:literal> $all:ident, $turns:ident, $shape:ident, $args:ident, $body:ident) => {{
        let lanes = Lanes::<$warps>::new::<$element>($args.k, LANE);
        let ask = |turn| Near::<$element, $warps>::ask($all, $shape, lanes, $turns.row(turn));
        let mut turn = 0;
        let mut next = ask(0);
        while $turns.more(turn) {
            let row = Near::<$element, $warps>::new($all, $shape, lanes, $turns.row(turn), next);
            turn = opaque(turn + 1);
            next = ask(turn);
            $body::make(&$args, row);
        }
    }};
    (@ Near<$element:ident, $warps:literal> $all:ident, $shape:ident, $args:ident, $body:ident) => {{
        let lanes = Lanes::<$warps>::new::<$element>($args.k, LANE);
        let m = Lanes::<$warps>::row();
        let x = Near::<$element, $warps>::ask($all, $shape, lanes, m);
        $body::make(&$args, Near::<$element, $warps>::new($all, $shape, lanes, m, x))
    }};
    (@ Long<$element:ident, $threads:ident, $room:ident, $warps:literal> $shape:ident, $args:ident, $body:ident) => {{
        let all = tensors(&$args);
        #[cfg(not(level_sm_90))]
        if $args.k > WHOLE {
            return long::<$element>(&$args);
        }
        let halves = <$element as Float>::PIECE == 8;
        let pieces = in_pieces::<$element>($args.k, &all);
        if pieces && near::<$element, $warps>($args.k) {
            if $warps == 4 && near::<$element, 2>($args.k) {
                crate::norm::entries!(@ Near<$element, 2> all, $shape, $args, $body)
            } else {
                crate::norm::entries!(@ Near<$element, $warps> all, $shape, $args, $body)
            }
            return;
        }
        let blocks = Block::<$element, $threads, $room, true, true>::blocks($args.k);
        let mut rows = block::Rows::<$threads>::new(blocks, $args.m);
        loop {
            let m = rows.m;
            if !pieces {
                $body::make(&$args, Long::<$element, $threads, $room, false, false>::new(all, $shape, m));
            } else if !halves || !cfg!(level_sm_90) || $threads == LONG_THREADS {
                // Where there are long blocks, others have no longer rows.
                $body::make(&$args, Long::<$element, $threads, $room, true, false>::new(all, $shape, m));
            }
            if !rows.next() {
                return;
            }
        }
    }};
    (@ LongTurned<$element:ident> $shape:ident, $args:ident, $body:ident) => {{
        let all = tensors(&$args);
        let blocks = Block::<$element, LONG_THREADS, LONG, true, true>::blocks(lies($args.k));
        let mut rows = block::Rows::<LONG_THREADS>::new(blocks, $args.m);
        loop {
            let row = Long::<$element, LONG_THREADS, LONG, true, true>::new(all, $shape, rows.m);
            $body::make(&$args, row);
            if !rows.next() {
                return;
            }
        }
    }};
}

/// The entries of the parts of a norm, given `tensors(args)`, `row_of(args, sums)` and `value([x, weight, bias], row)`.
#[cfg(level_sm_90)]
macro_rules! entries_of_parts {
    ($centred:literal, $row_of:ident, $value:ident: $($symbol:ident $kernel:ident $element:ident;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: PartArgs) {
            let launch = Launch { exchange: args.exchange, rows: [args.first, args.count] };
            let rows = args.rows;
            let row_of = |sums| $row_of(&rows, sums);
            // SAFETY: the launch contract, handed on.
            unsafe {
                parts::rows::<$element, $centred>(tensors(&rows), [rows.m, rows.k], launch, row_of, $value);
            }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

/// The entries of the rings of a norm, given its [`Family`] and `tensors(args)`.
#[cfg(level_sm_90)]
macro_rules! entries_of_rings {
    ($family:ident, $beside:literal: $($symbol:ident $kernel:ident $element:ident;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            launch_dependents();
            dependency_wait();
            let shape = [args.m, args.k];
            // SAFETY: the launch contract, handed on.
            unsafe { ring::rows::<$family, $element>(&args, tensors(&args), shape, $beside) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}
pub(crate) use entries;
#[cfg(level_sm_90)]
pub(crate) use entries_of_parts;
#[cfg(level_sm_90)]
pub(crate) use entries_of_rings;
