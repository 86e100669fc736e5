//! Convolution on tensor cores: the product of [`super::mma`] with rows that are patches of an image.
//!
//! Nothing is unfolded in memory: eight neighbouring columns of a patch are eight channels of one
//! element of the kernel, since the channels are a multiple of 8, and stand side by side in the input.
//! A tile's fragments meet 32 pixels, two of its eight `j` at a time; the next two are on their way.

use contract::launch::Kernel;
use contract::sparse::{BLOCK, Conv2dArgs, PERIOD, Patches, SparseConv2dMma, WAYS, steps};

use super::mma::finish;
use super::stream::{Stream, Tile, first_row, stream_memory};
use crate::arch::bitmap::take;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::ld_x4;
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

    /// The one 32 behind.
    #[inline(always)]
    fn advance(&mut self, patches: &Patches) {
        self.channel += 32;
        while self.channel >= patches.channels {
            self.channel -= patches.channels;
            self.s += 1;
            if self.s == patches.kernel_width {
                (self.r, self.s) = (self.r + 1, 0);
            }
        }
    }

    /// Eight of them of the patch at `corner`, two to a word; zeros outside of the image, and of the
    /// kernel when not `inside`.
    ///
    /// # Safety
    ///
    /// The arguments obey the contract with bf16 input; `corner` is that of a pixel.
    #[inline(always)]
    unsafe fn load(self, args: &Conv2dArgs, corner: (u32, u32, u32), inside: bool) -> [u32; 4] {
        let p = &args.patches;
        let row = corner.1.wrapping_add(self.r * p.dilation[0]);
        let column = corner.2.wrapping_add(self.s * p.dilation[1]);
        let mut words = [0; 4];
        if inside && row < p.height && column < p.width {
            let line = corner.0 as usize * p.height as usize + row as usize;
            let pixel = line * p.width as usize + column as usize;
            let at = pixel * p.channels as usize + self.channel as usize;
            let x = args.linear.x.cast::<u16>().as_ptr().cast_const().wrapping_add(at);
            // SAFETY: eight channels of a pixel, aligned.
            words = unsafe { ld_x4(x.cast()) };
        }
        words
    }
}

/// # Safety
///
/// The launch obeys `SparseConv2dMma::SPEC` and the linear grid for 32 pixels at a time; the pointers
/// cover the contract's table with bf16 values and input, whose channels are a multiple of 8.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sparse_conv2d_mma(args: Conv2dArgs) {
    launch_dependents();
    dependency_wait();
    let (way, lane) = (warp_id(), lane_id());
    let tiles = steps(args.linear.k as usize, PER_UNIT) as u32;
    let mut mb = block_idx_y();
    while mb * (8 * NT as u32) < args.linear.m {
        let first = mb * 8 * NT as u32;
        let corners: [(u32, u32, u32); NT] = core::array::from_fn(|n| {
            // Pixels past the last one repeat it: their products go nowhere.
            args.patches.corner((first + 8 * n as u32 + lane / 4).min(args.linear.m - 1))
        });
        let mut acc = [[0.0f32; 4]; NT];
        // SAFETY: the launch contract.
        let mut stream = unsafe {
            let first = (block_idx_x() * WAYS as u32 + way) as usize * tiles as usize;
            Stream::new(&args.linear, first, tiles, stream_memory(way))
        };
        let mut index = 0;
        while index < tiles {
            let column = index * PERIOD as u32 + way * BLOCK as u32 + lane % 4 * 8;
            let mut at_column = Column::of(&args.patches, column);
            let mut load = |j: usize| -> [[[u32; 4]; NT]; 2] {
                core::array::from_fn(|i| {
                    let inside = column + 32 * ((j + i) as u32) < args.linear.k;
                    // SAFETY: the launch contract.
                    let x = core::array::from_fn(|n| unsafe {
                        at_column.load(&args, corners[n], inside)
                    });
                    at_column.advance(&args.patches);
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
                    let bit = |i: usize| 0x8000_0000_u32 >> (4 * j + 2 * s + i);
                    // SAFETY: stored units, where their bits are set.
                    let a = unsafe {
                        let a0 = take(masks[0], bit(0), &mut at[0]);
                        let a1 = take(masks[1], bit(0), &mut at[1]);
                        let a2 = take(masks[0], bit(1), &mut at[0]);
                        let a3 = take(masks[1], bit(1), &mut at[1]);
                        [a0, a1, a2, a3]
                    };
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
        // SAFETY: every stream was read to its end.
        unsafe { finish::<NT, 4>(&args.linear, first_row(), first, acc) };
        mb += grid_dim_y();
    }
}

const _: unsafe extern "ptx-kernel" fn(<SparseConv2dMma as Kernel>::Args) = sparse_conv2d_mma;
