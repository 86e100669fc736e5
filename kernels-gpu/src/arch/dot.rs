//! Four-way dot products of bytes, accumulated in `i32`.
//!
//! One instruction from sm_61; the sm_53 level computes the same integers byte by byte. All sums
//! wrap.

/// `acc + sum_i u8(a[i]) * i8(b[i])` over the four bytes of each word.
/// `dp4a.u32.s32` (sm_61)
#[cfg(level_sm_61)]
#[inline(always)]
pub fn dp4a_us(a: u32, b: u32, acc: i32) -> i32 {
    let sum: i32;
    // SAFETY: arithmetic on registers.
    unsafe {
        core::arch::asm!(
            "dp4a.u32.s32 {sum}, {a}, {b}, {acc};",
            sum = out(reg32) sum, a = in(reg32) a, b = in(reg32) b, acc = in(reg32) acc,
            options(pure, nomem, nostack),
        );
    }
    sum
}

/// `acc + sum_i i8(a[i]) * i8(b[i])` over the four bytes of each word.
/// `dp4a.s32.s32` (sm_61)
#[cfg(level_sm_61)]
#[inline(always)]
pub fn dp4a_ss(a: u32, b: u32, acc: i32) -> i32 {
    let sum: i32;
    // SAFETY: arithmetic on registers.
    unsafe {
        core::arch::asm!(
            "dp4a.s32.s32 {sum}, {a}, {b}, {acc};",
            sum = out(reg32) sum, a = in(reg32) a, b = in(reg32) b, acc = in(reg32) acc,
            options(pure, nomem, nostack),
        );
    }
    sum
}

/// `acc + sum_i u8(a[i]) * i8(b[i])`, without the instruction.
#[cfg(not(level_sm_61))]
#[inline(always)]
pub fn dp4a_us(a: u32, b: u32, acc: i32) -> i32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    let mut sum = acc;
    let mut i = 0;
    while i < 4 {
        sum = sum.wrapping_add(i32::from(a[i]) * i32::from(b[i] as i8));
        i += 1;
    }
    sum
}

/// `acc + sum_i i8(a[i]) * i8(b[i])`, without the instruction.
#[cfg(not(level_sm_61))]
#[inline(always)]
pub fn dp4a_ss(a: u32, b: u32, acc: i32) -> i32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    let mut sum = acc;
    let mut i = 0;
    while i < 4 {
        sum = sum.wrapping_add(i32::from(a[i] as i8) * i32::from(b[i] as i8));
        i += 1;
    }
    sum
}

/// Four of the eight bytes of `a` (0 to 3) and `b` (4 to 7), by the nibbles of `selector`. `prmt.b32`
#[inline(always)]
pub fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let d: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        core::arch::asm!(
            "prmt.b32 {d}, {a}, {b}, {s};",
            d = out(reg32) d, a = in(reg32) a, b = in(reg32) b, s = in(reg32) selector,
            options(pure, nomem, nostack),
        );
    }
    d
}
