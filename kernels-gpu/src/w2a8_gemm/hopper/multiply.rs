//! Those who multiply: codes from the ring to registers, products, and places given back.

use contract::w2a8_gemm::GROUP_BYTES;

use super::super::tile::CODES;
use super::ring::{Place, Ring};
use crate::arch::hint::opaque;
use crate::arch::mbarrier;
use crate::arch::warp::lane_id;
use crate::arch::wgmma::{self, Descriptor};

/// The left factor of a slice: four products of depth 32 for each block of 64 rows.
type Left<const BLOCKS: usize> = [[[u32; 4]; 4]; BLOCKS];

/// A warp that multiplies, `STEP` slices at a time. While the products of a step run, the codes of the next one
/// are decoded, which takes as long as the products of few tokens: then a step is a whole group.
pub(super) struct Consumer<
    const BLOCKS: usize,
    const TOKENS: u32,
    const STEP: usize,
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
> {
    pub(super) acts: Ring<ACT_STAGES, ACT_BYTES>,
    pub(super) codes: Ring<CODE_STAGES, CODE_BYTES>,
    pub(super) act: Place<ACT_STAGES>,
    pub(super) code: Place<CODE_STAGES>,
    /// Bytes of the lane's first row in a place of codes.
    pub(super) row_bytes: u32,
}

impl<
    const BLOCKS: usize,
    const TOKENS: u32,
    const STEP: usize,
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
> Consumer<BLOCKS, TOKENS, STEP, ACT_STAGES, ACT_BYTES, CODE_STAGES, CODE_BYTES>
{
    /// Waits for a group of codes.
    #[inline(always)]
    fn open(&self) {
        // SAFETY: this warp arrived at the barriers of the place once for each phase before.
        unsafe { mbarrier::wait(self.codes.full(self.code), self.code.parity) }
    }

    /// The words of a lane for slice `word` of the group: of each block of 64 rows, of each chunk, of
    /// rows `g` and `g + 8`.
    #[inline(always)]
    fn words(&self, word: u32) -> Left<BLOCKS> {
        let g = lane_id() / 4;
        let rows = self.codes.place(self.code).add(self.row_bytes);
        let mut words = [[[0; 4]; 4]; BLOCKS];
        let mut block = 0;
        while block < BLOCKS {
            let rows = rows.add(block as u32 * 64 * GROUP_BYTES);
            let mut chunk = 0;
            while chunk < 8 {
                let at = rows.add((chunk ^ g) * 16 + word * 4).cast::<u32>();
                let (product, side) = (chunk as usize / 2, chunk as usize % 2 * 2);
                // SAFETY: word `word` of a chunk of a group that `open` showed.
                unsafe {
                    words[block][product][side] = at.read();
                    words[block][product][side + 1] = at.add(8 * GROUP_BYTES / 4).read();
                }
                chunk += 1;
            }
            block += 1;
        }
        words
    }

    /// The words of a lane for slices `2 half` and `2 half + 1`: lanes that read the same eight bytes cost
    /// shared memory half of what they cost word by word.
    #[inline(always)]
    fn pair(&self, half: u32) -> [Left<BLOCKS>; 2] {
        let g = lane_id() / 4;
        let rows = self.codes.place(self.code).add(self.row_bytes);
        let mut words = [[[[0; 4]; 4]; BLOCKS]; 2];
        let mut i = 0;
        while i < BLOCKS * 8 {
            let (block, chunk) = (i / 8, i % 8);
            let at = rows.add(block as u32 * 64 * GROUP_BYTES + (chunk as u32 ^ g) * 16 + half * 8);
            let (product, side) = (chunk / 2, chunk % 2 * 2);
            let mut below = 0;
            while below < 2 {
                let at = at.add(below as u32 * 8 * GROUP_BYTES).cast::<u32>();
                // SAFETY: two words of a chunk of a group that `open` showed.
                let [first, second] = unsafe { at.read_x2() };
                words[0][block][product][side + below] = first;
                words[1][block][product][side + below] = second;
                below += 1;
            }
            i += 1;
        }
        words
    }

    /// The codes of a lane in its words.
    #[inline(always)]
    fn decode(words: &Left<BLOCKS>) -> Left<BLOCKS> {
        let mut left = [[[0; 4]; 4]; BLOCKS];
        let mut i = 0;
        while i < BLOCKS * 16 {
            let word = words[i / 16][i / 4 % 4][i % 4];
            left[i / 16][i / 4 % 4][i % 4] = (word >> (2 * (lane_id() % 4))) & CODES;
            i += 1;
        }
        left
    }

    /// Gives the group of codes back.
    #[inline(always)]
    fn close(&mut self) {
        // SAFETY: once for each phase of the place; this lane has read what it needs.
        unsafe { mbarrier::arrive(self.codes.empty(self.code)) };
        self.code = self.code.next();
    }

    /// The left factors of step `step` of a group of codes.
    #[inline(always)]
    fn left(&mut self, step: u32) -> [Left<BLOCKS>; STEP] {
        if step == 0 {
            self.open();
        }
        let mut left = [[[[0; 4]; 4]; BLOCKS]; STEP];
        if STEP == 1 {
            left[0] = Self::decode(&self.words(step));
        }
        let mut half = 0;
        while half < STEP / 2 {
            let words = self.pair((step as usize * STEP / 2 + half) as u32);
            left[2 * half] = Self::decode(&words[0]);
            left[2 * half + 1] = Self::decode(&words[1]);
            half += 1;
        }
        if step as usize * STEP + STEP == 4 {
            self.close();
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
    fn multiply(&mut self, left: &[Left<BLOCKS>; STEP], before: Place<ACT_STAGES>, one: bool) {
        // SAFETY: as for `open`.
        unsafe { mbarrier::wait(self.acts.full(self.act), self.act.parity) };
        let right = Descriptor::new(self.acts.place(self.act), 0, wgmma::ATOM_BYTES);
        wgmma::fence();
        let mut i = 0;
        while i < 4 * STEP {
            let slice = i / 4;
            let b =
                right.advance_inside(slice as u32 * (TOKENS * GROUP_BYTES) + 32 * (i as u32 % 4));
            let left = &left[slice];
            // SAFETY: the slice is there, written by the async proxy, until this warp gives it back.
            unsafe {
                match TOKENS {
                    32 => wgmma::i8_n32(left[0][i % 4], b, true),
                    64 => wgmma::i8_n64(left[0][i % 4], b, true),
                    _ => wgmma::i8_n128(left[0][i % 4], b, true),
                }
                if BLOCKS == 2 {
                    wgmma::i8_n128_second(left[BLOCKS - 1][i % 4], b, true);
                }
            }
            i += 1;
        }
        wgmma::commit();
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
