//! Tensor-core products of a warpgroup (128 threads), both operands in shared memory (sm_90a).
//!
//! The accumulators are PTX registers that [`declare`] names in the kernel's entry block and that
//! every later line refers to by name. They are no values of Rust, so nothing is moved between the
//! instructions of a pipeline; `ptxas` serialises one that moves its accumulators.
//!
//! `D` is 64 rows (16 a warp) by `N` columns. In [`read`]`::<J>()[i]`, lane `l` of warp `w` has row
//! `16 w + l / 4 + 8 (i / 2 % 2)` and column `16 J + 8 (i / 4) + 2 (l % 4) + i % 2`.
//!
//! An operand is a [`Descriptor`] of tiles of rows of 128 bytes whose 16-byte pieces are swizzled:
//! piece `c` of row `r` stands at piece `c ^ (r % 8)` ([`swizzle`]); 8 rows, aligned to 1,024 bytes,
//! make an atom. A row holds 64 neighbours in k of one row of `A` or column of `B` ("k-major"), or
//! 64 rows of `A` or columns of `B` at one k ("mn-major", the instruction's transposed operands).
//!
//! *Convergence*: all 128 threads of the warpgroup call these together, from the same place. LLVM
//! does not know that of `asm!`: they belong in code that is uniform for the warpgroup, and the PTX
//! audit counts them.

use core::arch::asm;

use super::shared::Shared;

/// Rows of an accumulator tile.
pub const ROWS: u32 = 64;
/// Depth of one instruction.
pub const DEPTH: u32 = 16;
/// Bytes of an atom: 8 swizzled rows.
pub const ATOM_BYTES: u32 = 1024;

/// Byte offset of 16-byte piece `piece` (0 to 7) of row `row` in a column of atoms.
#[inline(always)]
pub const fn swizzle(row: u32, piece: u32) -> u32 {
    row * 128 + ((piece ^ (row % 8)) * 16)
}

/// Where an operand lies in shared memory, as the instruction reads it.
#[derive(Clone, Copy)]
pub struct Descriptor(u64);

impl Descriptor {
    /// An operand that starts at `tile`, aligned to 1,024 bytes (or advanced inside an atom).
    ///
    /// `stride`: bytes from 8 rows to the next 8 of the same 128 bytes. `leading`: bytes from 64
    /// rows or columns to the next 64, for mn-major operands wider than that.
    #[inline(always)]
    pub fn new<T>(tile: Shared<T>, leading: u32, stride: u32) -> Self {
        const SWIZZLE_128: u64 = 1 << 62;
        let field = |bytes: u32| u64::from((bytes & 0x3_ffff) >> 4);
        Self(field(tile.addr()) | field(leading) << 16 | field(stride) << 32 | SWIZZLE_128)
    }

    /// The same operand, `bytes` further (a multiple of 16).
    #[inline(always)]
    #[must_use]
    pub fn advance(self, bytes: u32) -> Self {
        Self(self.0 + u64::from(bytes >> 4))
    }

    /// The same where start and end are below 256 KiB: an addition of words.
    #[inline(always)]
    #[must_use]
    pub fn advance_inside(self, bytes: u32) -> Self {
        let low = (self.0 as u32).wrapping_add(bytes >> 4);
        Self(self.0 >> 32 << 32 | u64::from(low))
    }
}

/// Eight register names from a prefix.
macro_rules! eight {
    ($p:literal) => {
        concat!($p, "0,", $p, "1,", $p, "2,", $p, "3,", $p, "4,", $p, "5,", $p, "6,", $p, "7")
    };
}

macro_rules! names {
    ($first:literal $(, $p:literal)*) => { concat!(eight!($first) $(, ",", eight!($p))*) };
}

macro_rules! wide {
    (64) => {
        names!("WA", "WB", "WC", "WD")
    };
    (128) => {
        concat!(wide!(64), ",", names!("WE", "WF", "WG", "WH"))
    };
    (192) => {
        concat!(wide!(128), ",", names!("WI", "WJ", "WK", "WL"))
    };
    (256) => {
        concat!(wide!(192), ",", names!("WM", "WN", "WO", "WP"))
    };
}

/// Names the accumulators.
///
/// Stands once in a kernel, before every other use, in code that runs in every thread.
#[inline(always)]
pub fn declare() {
    // SAFETY: declares registers.
    unsafe {
        asm!(
            ".reg .b32 WA<8>, WB<8>, WC<8>, WD<8>, WE<8>, WF<8>, WG<8>, WH<8>;",
            ".reg .b32 WI<8>, WJ<8>, WK<8>, WL<8>, WM<8>, WN<8>, WO<8>, WP<8>;",
            options(nostack),
        );
    }
}

/// Calls a macro with the name of each group of accumulators that it is for.
macro_rules! match_group {
    ($j:expr, $call:ident) => {
        match $j {
            0 => $call!("WA"),
            1 => $call!("WB"),
            2 => $call!("WC"),
            3 => $call!("WD"),
            4 => $call!("WE"),
            5 => $call!("WF"),
            6 => $call!("WG"),
            7 => $call!("WH"),
            8 => $call!("WI"),
            9 => $call!("WJ"),
            10 => $call!("WK"),
            11 => $call!("WL"),
            12 => $call!("WM"),
            13 => $call!("WN"),
            14 => $call!("WO"),
            _ => $call!("WP"),
        }
    };
}

/// Sets group `J` (below 16) of eight accumulators to zero.
#[inline(always)]
pub fn clear<const J: u32>() {
    macro_rules! clear {
        (@ $w:literal $($i:literal)*) => {
            asm!($(concat!("mov.b32 ", $w, $i, ", 0;")),*, options(nostack))
        };
        ($w:literal) => {
            // SAFETY: writes registers that `declare` has named.
            unsafe { clear!(@ $w 0 1 2 3 4 5 6 7) }
        };
    }
    match_group!(J, clear)
}

/// Group `J` (below 16) of eight accumulators: columns `16 J` to `16 J + 15`. After
/// [`wait`]`::<0>()`.
#[inline(always)]
pub fn read<const J: u32>() -> [f32; 8] {
    let (a, b, c, d, e, f, g, h): (f32, f32, f32, f32, f32, f32, f32, f32);
    macro_rules! read {
        ($w:literal) => {
            // SAFETY: reads registers that `declare` has named.
            unsafe {
                asm!(
                    concat!("mov.b32 {a}, ", $w, "0; mov.b32 {b}, ", $w, "1;"),
                    concat!("mov.b32 {c}, ", $w, "2; mov.b32 {d}, ", $w, "3;"),
                    concat!("mov.b32 {e}, ", $w, "4; mov.b32 {f}, ", $w, "5;"),
                    concat!("mov.b32 {g}, ", $w, "6; mov.b32 {h}, ", $w, "7;"),
                    a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                    e = out(reg32) e, f = out(reg32) f, g = out(reg32) g, h = out(reg32) h,
                    options(nostack),
                )
            }
        };
    }
    match_group!(J, read);
    [a, b, c, d, e, f, g, h]
}

macro_rules! product {
    ($(#[$doc:meta])* $name:ident, $n:tt, $ty:literal) => {
        product! { $(#[$doc])* $name, $n, $ty, wide!($n) }
    };
    ($(#[$doc:meta])* $name:ident, $n:literal, $ty:literal, $sums:expr) => {
        $(#[$doc])*
        ///
        /// `TA`, `TB`: whether that operand is mn-major (1) or k-major (0). Without `add`, `D` was empty.
        ///
        /// # Safety
        ///
        /// The descriptors cover shared memory of the block that this thread's proxy fence and a
        /// barrier have shown to the async proxy, and that nobody writes until the product is
        /// waited for; [`fence`] came before the first product of a series.
        #[inline(always)]
        pub unsafe fn $name<const TA: u32, const TB: u32>(a: Descriptor, b: Descriptor, add: bool) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred add; setp.ne.u32 add, {add}, 0;",
                    concat!(
                        "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.", $ty, ".", $ty, " {{",
                        $sums, "}}, {a}, {b}, add, 1, 1, {ta}, {tb};"
                    ),
                    "}}",
                    a = in(reg64) a.0, b = in(reg64) b.0, add = in(reg32) u32::from(add),
                    ta = const TA, tb = const TB,
                    options(nostack),
                );
            }
        }
    };
}

product! {
    /// `D += A B` of bf16, `N` = 256. `wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16`
    bf16_n256, 256, "bf16"
}
product! {
    /// `D += A B` of bf16, `N` = 192. `wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16`
    bf16_n192, 192, "bf16"
}
product! {
    /// `D += A B` of bf16, `N` = 128. `wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16`
    bf16_n128, 128, "bf16"
}
product! {
    /// `D += A B` of bf16, `N` = 64. `wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16`
    bf16_n64, 64, "bf16"
}
product! {
    /// `D += A B` of f16, `N` = 256. `wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16`
    f16_n256, 256, "f16"
}
product! {
    /// `D += A B` of f16, `N` = 192. `wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16`
    f16_n192, 192, "f16"
}
product! {
    /// `D += A B` of f16, `N` = 128. `wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16`
    f16_n128, 128, "f16"
}
product! {
    /// `D += A B` of f16, `N` = 64. `wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16`
    f16_n64, 64, "f16"
}

product! {
    /// The same as [`bf16_n128`] with a second `D` of the thread: groups 8 to 15 of [`read`].
    bf16_n128_second, 128, "bf16", names!("WI", "WJ", "WK", "WL", "WM", "WN", "WO", "WP")
}
product! {
    /// The same as [`bf16_n64`] with a second `D` of the thread: groups 8 to 11 of [`read`].
    bf16_n64_second, 64, "bf16", names!("WI", "WJ", "WK", "WL")
}
product! {
    /// The same as [`f16_n128`] with a second `D` of the thread: groups 8 to 15 of [`read`].
    f16_n128_second, 128, "f16", names!("WI", "WJ", "WK", "WL", "WM", "WN", "WO", "WP")
}
product! {
    /// The same as [`f16_n64`] with a second `D` of the thread: groups 8 to 11 of [`read`].
    f16_n64_second, 64, "f16", names!("WI", "WJ", "WK", "WL")
}

macro_rules! product_i8 {
    ($(#[$doc:meta])* $name:ident, $n:literal, $sums:expr) => {
        $(#[$doc])*
        ///
        /// `a`: words as [`super::mma`] has them for 8-bit factors; warp `w` of the warpgroup gives
        /// rows `16 w` to `16 w + 15`. `B` is k-major. Without `add`, `D` was empty.
        ///
        /// # Safety
        ///
        /// As for the products of halves; nothing writes the registers of `a` until the product is
        /// waited for, which `ptxas` sees to.
        #[inline(always)]
        pub unsafe fn $name(a: [u32; 4], b: Descriptor, add: bool) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred add; setp.ne.u32 add, {add}, 0;",
                    concat!(
                        "wgmma.mma_async.sync.aligned.m64n", $n, "k32.s32.s8.s8 {{", $sums,
                        "}}, {{{w}, {x}, {y}, {z}}}, {b}, add;"
                    ),
                    "}}",
                    w = in(reg32) a[0], x = in(reg32) a[1], y = in(reg32) a[2], z = in(reg32) a[3],
                    b = in(reg64) b.0, add = in(reg32) u32::from(add),
                    options(nostack),
                );
            }
        }
    };
}

product_i8! {
    /// `D += A B` of i8, exact, `N` = 256, `A` in registers.
    /// `wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8`
    i8_n256, 256, wide!(256)
}
product_i8! {
    /// `D += A B` of i8, exact, `N` = 128, `A` in registers.
    /// `wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8`
    i8_n128, 128, wide!(128)
}
product_i8! {
    /// `D += A B` of i8, exact, `N` = 64, `A` in registers.
    /// `wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8`
    i8_n64, 64, wide!(64)
}
product_i8! {
    /// `D += A B` of i8, exact, `N` = 96, `A` in registers.
    /// `wgmma.mma_async.sync.aligned.m64n96k32.s32.s8.s8`
    i8_n96, 96, names!("WA", "WB", "WC", "WD", "WE", "WF")
}
product_i8! {
    /// `D += A B` of i8, exact, `N` = 48, `A` in registers.
    /// `wgmma.mma_async.sync.aligned.m64n48k32.s32.s8.s8`
    i8_n48, 48, names!("WA", "WB", "WC")
}
product_i8! {
    /// `D += A B` of i8, exact, `N` = 32, `A` in registers.
    /// `wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8`
    i8_n32, 32, names!("WA", "WB")
}
product_i8! {
    /// `D += A B` of i8, exact, `N` = 16, `A` in registers.
    /// `wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8`
    i8_n16, 16, names!("WA")
}
product_i8! {
    /// `D += A B` of i8, exact, `N` = 8, `A` in registers.
    /// `wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8`
    i8_n8, 8, "WA0,WA1,WA2,WA3"
}
macro_rules! product_i8_both {
    ($(#[$doc:meta])* $name:ident, $n:literal, $sums:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As for the products of halves.
        #[inline(always)]
        pub unsafe fn $name(a: Descriptor, b: Descriptor, add: bool) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred add; setp.ne.u32 add, {add}, 0;",
                    concat!(
                        "wgmma.mma_async.sync.aligned.m64n", $n, "k32.s32.s8.s8 {{", $sums,
                        "}}, {a}, {b}, add;"
                    ),
                    "}}",
                    a = in(reg64) a.0, b = in(reg64) b.0, add = in(reg32) u32::from(add),
                    options(nostack),
                );
            }
        }
    };
}

product_i8_both! {
    /// `D += A B` of i8, exact, `N` = 128, both k-major in shared memory.
    /// `wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8`
    i8_both_n128, 128, wide!(128)
}
product_i8_both! {
    /// The same, `N` = 64. `wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8`
    i8_both_n64, 64, wide!(64)
}
/// Orders this warpgroup's accesses to its accumulators before the products that follow.
/// `wgmma.fence.sync.aligned`
#[inline(always)]
pub fn fence() {
    // SAFETY: orders register accesses.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack)) }
}

/// Closes the group of the products so far. `wgmma.commit_group.sync.aligned`
#[inline(always)]
pub fn commit() {
    // SAFETY: counts products.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

/// Waits until at most the `N` newest groups are under way. `wgmma.wait_group.sync.aligned N`
#[inline(always)]
pub fn wait<const N: u32>() {
    // SAFETY: only waits.
    unsafe { asm!("wgmma.wait_group.sync.aligned {n};", n = const N, options(nostack)) }
}

/// Puts what this thread did with shared memory in front of what the async proxy does there behind the next barrier: shows writes (stores,
/// `cp.async` that was waited for) to products, and ends reads before a copy of the engine writes. Such a copy does not wait in
/// line with reads that are under way, whatever barrier stands between. `fence.proxy.async.shared::cta`
#[inline(always)]
pub fn proxy_fence() {
    // SAFETY: orders memory accesses, makes none.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}

/// Writes four 8 by 8 matrices of 16-bit elements, each transposed, in all lanes of a warp together: word `i` of lane
/// `l` has rows `2 (l % 4)` and the next of column `l / 4` of matrix `i`; lane `8 i + r` gives the address of its row
/// `r` in memory. `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16`
///
/// # Safety
///
/// The sixteen bytes are the block's, aligned, and nobody else accesses them meanwhile.
#[inline(always)]
pub unsafe fn stmatrix_x4_trans<T>(row: Shared<T>, words: [u32; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{row}], {{{a}, {b}, {c}, {d}}};",
            row = in(reg32) row.addr(),
            a = in(reg32) words[0], b = in(reg32) words[1], c = in(reg32) words[2], d = in(reg32) words[3],
            options(nostack),
        );
    }
}

/// Gives registers of this thread back, down to `N` (24 to 256, a multiple of 8).
/// `setmaxnreg.dec.sync.aligned.u32 N`
#[inline(always)]
pub fn give_registers<const N: u32>() {
    // SAFETY: ptxas keeps to the number that it reads here.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const N, options(nostack)) }
}

/// Takes registers that others gave back, up to `N`, and waits until they are there.
/// `setmaxnreg.inc.sync.aligned.u32 N`
#[inline(always)]
pub fn take_registers<const N: u32>() {
    // SAFETY: ptxas keeps to the number that it reads here.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const N, options(nostack)) }
}
