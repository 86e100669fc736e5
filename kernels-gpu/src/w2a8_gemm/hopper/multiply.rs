//! Those who multiply: codes from the ring to registers, products, and places given back.

use contract::w2a8_gemm::GROUP_BYTES;

use super::super::tile::CODES;
use super::ring::{Place, Ring};
use crate::arch::mbarrier;
use crate::arch::warp::lane_id;
use crate::arch::wgmma::{self, Descriptor};

/// The left factor of a slice: four products of depth 32 for each block of 64 rows.
type Left<const BLOCKS: usize> = [[[u32; 4]; 4]; BLOCKS];

/// A warp that multiplies.
pub(super) struct Consumer<
    const BLOCKS: usize,
    const TOKENS: u32,
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
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
> Consumer<BLOCKS, TOKENS, ACT_STAGES, ACT_BYTES, CODE_STAGES, CODE_BYTES>
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

    /// Gives a slice back.
    #[inline(always)]
    fn release(&self, act: Place<ACT_STAGES>) {
        if lane_id() == 0 {
            // SAFETY: once for each phase of the place; its products are done.
            unsafe { mbarrier::arrive(self.acts.empty(act)) };
        }
    }

    /// Issues the products of a slice, and gives the slice before it back, if there was one. Without
    /// `add` the sums were empty.
    #[inline(always)]
    fn multiply(&mut self, left: &Left<BLOCKS>, add: bool, before: Option<Place<ACT_STAGES>>) {
        // SAFETY: as for `open`.
        unsafe { mbarrier::wait(self.acts.shown(self.act), self.act.parity) };
        let right = Descriptor::new(self.acts.place(self.act), 0, wgmma::ATOM_BYTES);
        wgmma::fence();
        let mut i = 0;
        while i < 4 {
            let b = right.advance(32 * i as u32);
            let add = add || i > 0;
            // SAFETY: the slice is there, shown to the async proxy, until this warp gives it back.
            unsafe {
                match TOKENS {
                    8 => wgmma::i8_n8(left[0][i], b, add),
                    16 => wgmma::i8_n16(left[0][i], b, add),
                    32 => wgmma::i8_n32(left[0][i], b, add),
                    64 => wgmma::i8_n64(left[0][i], b, add),
                    128 => wgmma::i8_n128(left[0][i], b, add),
                    _ => wgmma::i8_n256(left[0][i], b, add),
                }
                if BLOCKS == 2 {
                    wgmma::i8_n128_second(left[BLOCKS - 1][i], b, add);
                }
            }
            i += 1;
        }
        wgmma::commit();
        wgmma::wait::<1>();
        if let Some(before) = before {
            self.release(before);
        }
        self.act = self.act.next();
    }

    /// Adds the products of `groups` groups of chunks. The sums were empty, or are with `add` zeros.
    #[inline(always)]
    pub(super) fn tile(&mut self, groups: u32, add: bool) {
        if groups == 0 {
            return;
        }
        // Words are asked for a slice before they are decoded, where there are registers for it.
        let early = BLOCKS == 1;
        self.open();
        let mut even = Self::decode(&self.words(0));
        let mut words = if early { self.words(1) } else { even };
        let mut before = None;
        let mut group = 0;
        while group < groups {
            let first = self.act;
            self.multiply(&even, add || group > 0, before);
            let odd = Self::decode(&if early { words } else { self.words(1) });
            if early {
                words = self.words(2);
            }
            let second = self.act;
            self.multiply(&odd, true, Some(first));
            even = Self::decode(&if early { words } else { self.words(2) });
            if early {
                words = self.words(3);
            }
            let third = self.act;
            self.multiply(&even, true, Some(second));
            let odd = Self::decode(&if early { words } else { self.words(3) });
            self.close();
            group += 1;
            if group < groups && early {
                self.open();
                words = self.words(0);
            }
            before = Some(self.act);
            self.multiply(&odd, true, Some(third));
            if group < groups {
                if !early {
                    self.open();
                    words = self.words(0);
                }
                even = Self::decode(&words);
                if early {
                    words = self.words(1);
                }
            }
        }
        wgmma::wait::<0>();
        if let Some(before) = before {
            self.release(before);
        }
    }
}
