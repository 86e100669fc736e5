//! Tensor-core products of one warp (`mma.sync`) and the loads that feed them (`ldmatrix`).
//!
//! Fragments, for lane `l`, with `g = l / 4` and `t = l % 4` (PTX ISA, "Matrix Fragments"). `A` is
//! 16 rows, `B` 8 columns, `D` is 16 by 8. A word holds neighbours in k, the first in its low bits.
//!
//! | operand | word | 16-bit, k16 | 8-bit, k32 | tf32, k8 |
//! |---------|------|-------------|------------|----------|
//! | `A[i]`  | row `g + 8 (i % 2)`, k from | `2 t + 8 (i / 2)` | `4 t + 16 (i / 2)` | `t + 4 (i / 2)` |
//! | `B[i]`  | column `g`, k from          | `2 t + 8 i`       | `4 t + 16 i`       | `t + 4 i`       |
//! | `D[i]`  | row `g + 8 (i / 2)`, column `2 t + i % 2` | same | same | same |
//!
//! *Convergence*, for everything here: all 32 lanes call it together, from the same place. From
//! sm_80. The floating forms sum in an order that NVIDIA does not document.

use core::arch::asm;

#[cfg(not(level_sm_90))]
use super::dot::permute;
use super::shared::Shared;
#[cfg(not(level_sm_90))]
use super::warp::{lane_id, shuffle_idx};

/// What the intrinsics return.
#[repr(C)]
struct Words4<T>(T, T, T, T);
#[repr(C)]
struct Words2(u32, u32);

#[rustfmt::skip]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.mma.m16n8k16.row.col.bf16"]
    fn bf16_k16(a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, w: f32, x: f32, y: f32, z: f32) -> Words4<f32>;
    #[link_name = "llvm.nvvm.mma.m16n8k8.row.col.tf32"]
    fn tf32_k8(a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, w: f32, x: f32, y: f32, z: f32) -> Words4<f32>;
    #[link_name = "llvm.nvvm.mma.m16n8k32.row.col.s8"]
    fn s8_k32(a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, w: i32, x: i32, y: i32, z: i32) -> Words4<i32>;
    #[link_name = "llvm.nvvm.mma.m16n8k32.row.col.u8.s8"]
    fn u8_s8_k32(a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, w: i32, x: i32, y: i32, z: i32) -> Words4<i32>;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x1.b16.p0"]
    fn ldmatrix_1(p: *const u8) -> u32;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.b16.p0"]
    fn ldmatrix_2(p: *const u8) -> Words2;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p0"]
    fn ldmatrix_4(p: *const u8) -> Words4<u32>;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.trans.b16.p0"]
    fn ldmatrix_2_trans(p: *const u8) -> Words2;
    #[link_name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.trans.b16.p0"]
    fn ldmatrix_4_trans(p: *const u8) -> Words4<u32>;
}

/// `A B + c` of bf16, f32 sums. `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`
#[inline(always)]
pub fn mma_bf16(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    // SAFETY: arithmetic on the registers of the warp; see the convergence rule.
    let d = unsafe { bf16_k16(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [d.0, d.1, d.2, d.3]
}

/// `A B + c` of f16, f32 sums. `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`
///
/// Unlike the others this is `asm!`: rustc cannot pass the intrinsic its pairs of f16. The code
/// around it must not branch on what differs between lanes.
#[inline(always)]
pub fn mma_f16(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    let (w, x, y, z): (f32, f32, f32, f32);
    // SAFETY: as for bf16. Neither `pure` nor `nomem`: it stays where it is.
    unsafe {
        asm!(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{w}, {x}, {y}, {z}}},",
            "{{{a}, {b}, {c}, {d}}}, {{{e}, {f}}}, {{{cw}, {cx}, {cy}, {cz}}};",
            w = out(reg32) w, x = out(reg32) x, y = out(reg32) y, z = out(reg32) z,
            a = in(reg32) a[0], b = in(reg32) a[1], c = in(reg32) a[2], d = in(reg32) a[3],
            e = in(reg32) b[0], f = in(reg32) b[1],
            cw = in(reg32) c[0], cx = in(reg32) c[1], cy = in(reg32) c[2], cz = in(reg32) c[3],
            options(nostack),
        );
    }
    [w, x, y, z]
}

/// `A B + c` of tf32 (see [`super::half::round_tf32`]), f32 sums.
/// `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`
#[inline(always)]
pub fn mma_tf32(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    // SAFETY: as for bf16.
    let d = unsafe { tf32_k8(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [d.0, d.1, d.2, d.3]
}

/// `A B + c` of i8, exact; wraps. `mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32`
#[inline(always)]
pub fn mma_s8(a: [u32; 4], b: [u32; 2], c: [i32; 4]) -> [i32; 4] {
    // SAFETY: as for bf16.
    let d = unsafe { s8_k32(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [d.0, d.1, d.2, d.3]
}

/// `A B + c` of u8 by i8, exact; wraps. `mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32`
#[inline(always)]
pub fn mma_u8_s8(a: [u32; 4], b: [u32; 2], c: [i32; 4]) -> [i32; 4] {
    // SAFETY: as for bf16.
    let d = unsafe { u8_s8_k32(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [d.0, d.1, d.2, d.3]
}

/// Columns of an 8 by 8 matrix of 16-bit elements whose rows the lanes hold: lane `l` has elements `2 t, 2 t + 1` of row `g`, and gets
/// those of column `g`. So what a product left, rounded, becomes a factor `B`. `movmatrix.sync.aligned.m8n8.trans.b16` (sm_90, whose PTX is
/// new enough; two shuffles below)
///
/// `asm!`, as [`mma_f16`]: the code around it must not branch on what differs between lanes.
#[cfg(level_sm_90)]
#[inline(always)]
pub fn transposed(word: u32) -> u32 {
    let turned: u32;
    // SAFETY: exchanges registers of the warp. Neither `pure` nor `nomem`: it stays where it is.
    unsafe {
        asm!(
            "movmatrix.sync.aligned.m8n8.trans.b16 {turned}, {word};",
            turned = out(reg32) turned, word = in(reg32) word,
            options(nostack),
        );
    }
    turned
}
#[cfg(not(level_sm_90))]
#[inline(always)]
pub fn transposed(word: u32) -> u32 {
    let (g, t) = (lane_id() / 4, lane_id() % 4);
    let [even, odd] = [0, 1].map(|row| shuffle_idx(word, 4 * (2 * t + row) + g / 2));
    permute(even, odd, if g % 2 == 0 { 0x5410 } else { 0x7632 })
}

/// One 8 by 8 matrix of 16-bit elements: lane `l` gets elements `2 t, 2 t + 1` of row `g`. Lanes
/// 0 to 7 give the addresses of its rows of 16 bytes. `ldmatrix.sync.aligned.m8n8.x1.shared.b16`
///
/// # Safety
///
/// Each address that is used starts 16 bytes of the block's shared memory, aligned to 16, that no
/// other thread writes without a barrier between.
#[inline(always)]
pub unsafe fn ldmatrix_x1<T>(row: Shared<T>) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { ldmatrix_1(row.generic()) }
}

/// Two matrices; lanes 8 to 15 give the rows of the second. `ldmatrix...x2`
///
/// # Safety
///
/// As for [`ldmatrix_x1`].
#[inline(always)]
pub unsafe fn ldmatrix_x2<T>(row: Shared<T>) -> [u32; 2] {
    // SAFETY: the caller's promise.
    let w = unsafe { ldmatrix_2(row.generic()) };
    [w.0, w.1]
}

/// Four matrices; each group of 8 lanes gives the rows of one. `ldmatrix...x4`
///
/// # Safety
///
/// As for [`ldmatrix_x1`].
#[inline(always)]
pub unsafe fn ldmatrix_x4<T>(row: Shared<T>) -> [u32; 4] {
    // SAFETY: the caller's promise.
    let w = unsafe { ldmatrix_4(row.generic()) };
    [w.0, w.1, w.2, w.3]
}

/// [`ldmatrix_x2`], each matrix transposed: lane `l` gets rows `2 t, 2 t + 1` of column `g`.
/// `ldmatrix...x2.trans`
///
/// # Safety
///
/// As for [`ldmatrix_x1`].
#[inline(always)]
pub unsafe fn ldmatrix_x2_trans<T>(row: Shared<T>) -> [u32; 2] {
    // SAFETY: the caller's promise.
    let w = unsafe { ldmatrix_2_trans(row.generic()) };
    [w.0, w.1]
}

/// [`ldmatrix_x4`], each matrix transposed. `ldmatrix...x4.trans`
///
/// # Safety
///
/// As for [`ldmatrix_x1`].
#[inline(always)]
pub unsafe fn ldmatrix_x4_trans<T>(row: Shared<T>) -> [u32; 4] {
    // SAFETY: the caller's promise.
    let w = unsafe { ldmatrix_4_trans(row.generic()) };
    [w.0, w.1, w.2, w.3]
}
