//! Those who multiply: codes from the ring to registers, products, and places given back.

use contract::w2a8_gemm::GROUP_BYTES;

use super::super::tile::CODES;
use super::CONSUMERS;
use super::ring::{Place, Ring};
use crate::arch::hint::opaque;
use crate::arch::mbarrier;
use crate::arch::mma::ldmatrix_x4;
use crate::arch::shared::Shared;
use crate::arch::thread::{arrive_some, sync_some};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::{self, Descriptor};

/// The left factor of a slice: four products of depth 32.
type Left = [[u32; 4]; 4];

/// The barrier of the turns of the first of two warpgroups; the next one is that of the second.
const TURNS: u32 = 4;

/// A warp that multiplies, `STEP` slices at a time. While the products of a step run, the codes of the next one
/// are decoded, which takes as long as the products of few tokens: then a step is a whole group.
pub(super) struct Consumer<
    const TOKENS: u32,
    const STEP: usize,
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
> {
    acts: Ring<ACT_STAGES, ACT_BYTES>,
    codes: Ring<CODE_STAGES, CODE_BYTES>,
    act: Place<ACT_STAGES>,
    code: Place<CODE_STAGES>,
    /// Bytes of the warp's first row in a place of codes.
    row_bytes: u32,
    /// What a lane has of a group of codes: bit lane `j` of a word is for slice `j`.
    words: Left,
}

impl<
    const TOKENS: u32,
    const STEP: usize,
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
> Consumer<TOKENS, STEP, ACT_STAGES, ACT_BYTES, CODE_STAGES, CODE_BYTES>
{
    /// Whether the two warpgroups issue their products in turn: one then decodes while the other's run, where both would
    /// do either at the same time. 64 tokens: 3 to 7 % of all time. With 32 decoding takes longer than products, and with
    /// 128 a turn costs what it saves.
    const IN_TURN: bool = TOKENS == 64 && STEP == 4;

    /// A warp whose first row of the tile is `row`, at the first places of both rings.
    ///
    /// *Convergence*: every thread of [`CONSUMERS`] calls it, and [`Self::end`] after its last tile.
    #[inline(always)]
    pub(super) fn begin(
        acts: Ring<ACT_STAGES, ACT_BYTES>,
        codes: Ring<CODE_STAGES, CODE_BYTES>,
        row: u32,
    ) -> Self {
        if Self::IN_TURN && warp_id() / 4 == 1 {
            arrive_some(TURNS, CONSUMERS);
        }
        Self {
            acts,
            codes,
            act: Place::FIRST,
            code: Place::FIRST,
            row_bytes: row * GROUP_BYTES,
            words: [[0; 4]; 4],
        }
    }

    /// Takes the last turn, which nobody needs: no barrier is left half full.
    #[inline(always)]
    pub(super) fn end(&self) {
        if Self::IN_TURN && warp_id() / 4 == 0 {
            sync_some(TURNS, CONSUMERS);
        }
    }

    /// Takes the lane's words of a group of codes, and gives its place back: word `t` of each chunk, of rows `g` and
    /// `g + 8`, as the products of depth 32 take them.
    #[inline(always)]
    fn take(&mut self) {
        // SAFETY: this warp arrived at the barriers of the place once for each phase before.
        unsafe { mbarrier::wait(self.codes.full(self.code), self.code.parity) };
        let lane = lane_id();
        let row: Shared<u8> =
            self.codes.place(self.code).add(self.row_bytes + lane % 16 * GROUP_BYTES);
        let mut product = 0;
        while product < 4 {
            // Two chunks of 16 rows, swizzled as they were copied.
            let chunk = (2 * product as u32 + lane / 16) ^ lane % 8;
            // SAFETY: 16 bytes of a row of a group that was waited for.
            self.words[product] = unsafe { ldmatrix_x4(row.add(chunk * 16)) };
            product += 1;
        }
        // Without it the copy that takes the place passed the last of these reads, in one launch of about 1,000.
        wgmma::proxy_fence();
        // SAFETY: once for each phase of the place; this lane has read what it needs.
        unsafe { mbarrier::arrive(self.codes.empty(self.code)) };
        self.code = self.code.next();
    }

    /// The left factors of step `step` of a group of codes.
    #[inline(always)]
    fn left(&mut self, step: u32) -> [Left; STEP] {
        if step == 0 {
            self.take();
        }
        let mut left = [[[0; 4]; 4]; STEP];
        let mut i = 0;
        while i < STEP * 16 {
            let word = self.words[i / 4 % 4][i % 4];
            let slice = step * STEP as u32 + i as u32 / 16;
            left[i / 16][i / 4 % 4][i % 4] = (word >> (2 * slice)) & CODES;
            i += 1;
        }
        left
    }

    /// Gives the activations of a step back.
    #[inline(always)]
    fn release(&self, act: Place<ACT_STAGES>) {
        if lane_id() == 0 {
            // SAFETY: once for each phase of the place; its products are done.
            unsafe { mbarrier::arrive(self.acts.empty(act)) };
        }
    }

    /// Issues the products of a step, and gives `before`, the step before it, back when there was `one`.
    #[inline(always)]
    fn multiply(&mut self, left: &[Left; STEP], before: Place<ACT_STAGES>, one: bool) {
        // SAFETY: as in `take`.
        unsafe { mbarrier::wait(self.acts.full(self.act), self.act.parity) };
        let right = Descriptor::new(self.acts.place(self.act), 0, wgmma::ATOM_BYTES);
        if Self::IN_TURN {
            sync_some(TURNS + warp_id() / 4, CONSUMERS);
        }
        wgmma::fence();
        let mut i = 0;
        while i < 4 * STEP {
            let slice = i as u32 / 4;
            let b = right.advance_inside(slice * (TOKENS * GROUP_BYTES) + 32 * (i as u32 % 4));
            let left = left[i / 4][i % 4];
            // SAFETY: the slice is there, written by the async proxy, until this warp gives it back.
            unsafe {
                match TOKENS {
                    32 => wgmma::i8_n32(left, b, true),
                    64 => wgmma::i8_n64(left, b, true),
                    _ => wgmma::i8_n128(left, b, true),
                }
            }
            i += 1;
        }
        wgmma::commit();
        if Self::IN_TURN {
            arrive_some(TURNS + 1 - warp_id() / 4, CONSUMERS);
        }
        wgmma::wait::<1>();
        if one {
            self.release(before);
        }
        self.act = self.act.next();
    }

    /// Adds the products of `groups` groups of chunks.
    #[inline(always)]
    pub(super) fn tile(&mut self, groups: u32) {
        if groups == 0 {
            return;
        }
        let of_group = 4 / STEP as u32;
        let mut before = self.act;
        // Opaque, because LLVM would copy the first steps out of the loop.
        let mut step = opaque(0);
        let steps = step + groups * of_group;
        let mut one = opaque(0) != 0;
        let mut even = self.left(0);
        loop {
            let first = self.act;
            self.multiply(&even, before, one);
            before = first;
            if step + 1 == steps {
                break;
            }
            let odd = self.left(if STEP == 1 { (step + 1) % 4 } else { 1 % of_group });
            before = self.act;
            self.multiply(&odd, first, true);
            step += 2;
            if step == steps {
                break;
            }
            one = opaque(1) != 0;
            even = self.left(if STEP == 1 { step % 4 } else { 0 });
        }
        wgmma::wait::<0>();
        self.release(before);
    }
}
