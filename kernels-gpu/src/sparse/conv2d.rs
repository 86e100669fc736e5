//! Convolution on tensor cores: the product of [`super::mma`] with rows that are patches of an image.
//!
//! Nothing is unfolded in memory: eight neighbouring columns of a patch are eight channels of one
//! element of the kernel, since the channels are a multiple of 8, and stand side by side in the input.
//! A tile's fragments meet 32 pixels, two of its eight `j` at a time; the next two are on their way.

use contract::launch::Kernel;
use contract::sparse::{
    BLOCK, Conv2dArgs, PERIOD, Patches, RING_BYTES, SparseConv2dMma, WAYS, steps,
};

use super::mma::{finish, fragment};
use super::stream::{Stream, Tile, first_row, stream_memory};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::ld_or_zero_x4;
use crate::arch::mma::mma_bf16;
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y};
use crate::arch::warp::{lane_id, sync_warp, warp_id};

const PER_UNIT: usize = 2;
/// Groups of eight pixels.
const NT: usize = 4;

/// A column of a patch: kernel row and column, channel.
#[derive(Clone, Copy)]
struct Column {
    r: u32,
    s: u32,
    channel: u32,
}

impl Column {
    #[inline(always)]
    fn of(patches: &Patches, k: u32) -> Self {
        let tap = k / patches.channels;
        let (r, s) = (tap / patches.kernel_width, tap % patches.kernel_width);
        Self { r, s, channel: k % patches.channels }
    }

    /// The one 32 behind. Whether it belongs to another element of the kernel.
    #[inline(always)]
    fn advance(&mut self, patches: &Patches) -> bool {
        self.channel += 32;
        let turned = self.channel >= patches.channels;
        while self.channel >= patches.channels {
            self.channel -= patches.channels;
            self.s += 1;
            if self.s == patches.kernel_width {
                (self.r, self.s) = (self.r + 1, 0);
            }
        }
        turned
    }

    /// Where the first channel of this element of the kernel stands in the input, for the patch at
    /// `corner`; and whether it is inside of the image.
    #[inline(always)]
    fn pixel(self, args: &Conv2dArgs, corner: (u32, u32, u32)) -> (*const u16, bool) {
        let p = &args.patches;
        let row = corner.1.wrapping_add(self.r * p.dilation[0]);
        let column = corner.2.wrapping_add(self.s * p.dilation[1]);
        let line = corner.0 as usize * p.height as usize + row as usize;
        let at = (line * p.width as usize).wrapping_add(column as usize);
        let x = args.linear.x.cast::<u16>().as_ptr().cast_const();
        let x = x.wrapping_add(at.wrapping_mul(p.channels as usize));
        (x, row < p.height && column < p.width)
    }
}

/// # Safety
///
/// The launch obeys `SparseConv2dMma::SPEC` and the linear grid for 32 pixels at a time; the pointers
/// cover the contract's table with bf16 values and input, whose channels are a multiple of 8.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sparse_conv2d_mma(args: Conv2dArgs) {
    let (way, lane) = (warp_id(), lane_id());
    let tiles = steps(args.linear.k as usize, PER_UNIT) as u32;
    // Tiles of the way as far as the matrix goes.
    let way_k = args.linear.k.saturating_sub(way * BLOCK as u32);
    let filled = way_k.div_ceil(PERIOD as u32);
    let mut mb = block_idx_y();
    while mb * (8 * NT as u32) < args.linear.m {
        let first = mb * 8 * NT as u32;
        let corners: [(u32, u32, u32); NT] = core::array::from_fn(|n| {
            // Pixels past the last one repeat it: their products go nowhere.
            args.patches.corner((first + 8 * n as u32 + lane / 4).min(args.linear.m - 1))
        });
        let mut acc = [[0.0f32; 4]; NT];
        // SAFETY: tiles of the matrix; memory of this stream alone.
        let mut stream = unsafe {
            let first = (block_idx_x() * WAYS as u32 + way) as usize * tiles as usize;
            Stream::new(&args.linear, first, filled, stream_memory(way, RING_BYTES))
        };
        // The weights are constants: what came before this kernel may still run.
        dependency_wait();
        let mut index = 0;
        while index < filled {
            let column = index * PERIOD as u32 + way * BLOCK as u32 + lane % 4 * 8;
            let mut at_column = Column::of(&args.patches, column);
            let mut pixels: [(*const u16, bool); NT] =
                core::array::from_fn(|n| at_column.pixel(&args, corners[n]));
            let mut load = |j: usize| -> [[[u32; 4]; NT]; 2] {
                core::array::from_fn(|i| {
                    let inside = column + 32 * ((j + i) as u32) < args.linear.k;
                    let x = core::array::from_fn(|n| {
                        let (pixel, valid) = pixels[n];
                        let x = pixel.wrapping_add(at_column.channel as usize);
                        // SAFETY: eight channels of a pixel of the image, aligned.
                        unsafe { ld_or_zero_x4(inside && valid, x.cast()) }
                    });
                    if at_column.advance(&args.patches) {
                        pixels = core::array::from_fn(|n| at_column.pixel(&args, corners[n]));
                    }
                    x
                })
            };
            let mut next = load(0);
            let Tile { masks, mut at } = stream.tile();
            let mut j = 0;
            while j < 8 {
                let x = next;
                if j + 2 < 8 {
                    next = load(j + 2);
                }
                // Keeps the loads in front.
                sync_warp();
                let mut s = 0;
                while s < 4 {
                    // SAFETY: stored units, where their bits are set.
                    let a = unsafe { fragment(masks, 4 * j + 2 * s, &mut at) };
                    let mut n = 0;
                    while n < NT {
                        let x = x[s / 2][n];
                        acc[n] = mma_bf16(a, [x[s % 2 * 2], x[s % 2 * 2 + 1]], acc[n]);
                        n += 1;
                    }
                    s += 1;
                }
                j += 2;
            }
            index += 1;
        }
        // Not before: blocks of the next kernel would crowd where there is room already.
        launch_dependents();
        stream.end();
        // SAFETY: every stream was read to its end.
        unsafe { finish::<NT>(&args.linear, first_row(), first, WAYS as u32, acc) };
        mb += grid_dim_y();
    }
}

const _: unsafe extern "ptx-kernel" fn(<SparseConv2dMma as Kernel>::Args) = sparse_conv2d_mma;
