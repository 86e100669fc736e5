//! Groups of warps, and what a thread of one has of a row that waits.

use core::marker::PhantomData;

use contract::ring::{GROUP, HELD, THREADS};

use crate::arch::mem::{X4, st, st_u16, st_x2};
use crate::arch::shared::Shared;
use crate::arch::thread::sync_some;
use crate::arch::warp::{LANES, sync_warp};
use crate::float::{Float, Piece};

/// Pieces of the gain that a thread keeps.
pub(super) type Gain = [X4<u32>; HELD as usize];

/// A group of `W` warps, and where its rows wait: all begin in the same place of a piece.
#[derive(Clone, Copy)]
pub(super) struct Group<E, const W: u32> {
    /// Which of its threads this is.
    pub(super) thread: u32,
    /// Which of the block's it is.
    pub(super) number: u32,
    /// Elements in front of a row in its first piece, and up to its end.
    pub(super) odd: u32,
    pub(super) end: u32,
    /// What this thread takes of the first elements of a row, and of the last: a bit for each.
    pub(super) edges: [u32; 2],
    /// Gain and offset, as they lie beside the first piece.
    pub(super) beside: [Shared<u32>; 2],
    /// Whether gain is kept in registers instead, and whether there is something else behind the last piece of a row.
    pub(super) keeps: bool,
    pub(super) tight: bool,
    /// Partials of two sums.
    pub(super) scratch: Shared<f32>,
    pub(super) element: PhantomData<E>,
}

impl<E: Float, const W: u32> Group<E, W> {
    /// Bytes of an element.
    pub(super) const BYTES: u32 = 16 / E::PIECE as u32;
    /// Its threads.
    pub(super) const THREADS: u32 = W * LANES;
    /// How many of the block's there are.
    pub(super) const COUNT: u32 = THREADS / Self::THREADS;
    /// Elements of [`GROUP`] neighbours of which a thread has the partials: none of the last threads of more than eight warps.
    pub(super) const OWN: u32 = if W > 8 { 1 } else { 8 / W };
    /// How many of these are neighbours, and how often there are such.
    pub(super) const NEXT: u32 =
        if Self::OWN > E::PIECE as u32 { E::PIECE as u32 } else { Self::OWN };
    pub(super) const PARTS: u32 = Self::OWN / Self::NEXT;
    /// Bytes from a piece of a thread to its next one.
    pub(super) const STEP: u32 = 16 * Self::THREADS;

    /// Whether the thread has partials.
    #[inline(always)]
    pub(super) fn sums(&self) -> bool {
        W <= 8 || self.thread < GROUP
    }

    /// Where part `i` of this thread is in its elements.
    #[inline(always)]
    pub(super) fn part(i: usize) -> u32 {
        let (on, part) = (i as u32 / Self::PARTS, i as u32 % Self::PARTS);
        GROUP * on + part * (GROUP / Self::PARTS)
    }

    /// The thread's bits of the elements from `first` on of which `own` says so.
    #[inline(always)]
    pub(super) fn bits(&self, first: u32, own: impl Fn(u32) -> bool) -> u32 {
        let (mut bits, mut i) = (0, 0);
        while i < Self::OWN {
            let place = first + self.thread * Self::NEXT + Self::part((i / Self::NEXT) as usize);
            bits |= u32::from(own(place + i % Self::NEXT)) << i;
            i += 1;
        }
        bits
    }

    /// Pieces that rows lie in, those of them that end in the row, and bytes of the one behind these.
    #[inline(always)]
    pub(super) fn pieces(&self) -> [u32; 3] {
        let p = E::PIECE as u32;
        [self.end.div_ceil(p), self.end / p, self.end % p * Self::BYTES]
    }

    /// What of a gain is beside this thread's pieces of a row, zeros where there is none.
    #[inline(always)]
    pub(super) unsafe fn beside(&self, gain: *const E, k: u32) -> Gain {
        let mut held = [[0; 4]; HELD as usize];
        let mut i = 0;
        while i < HELD as usize {
            let first = (self.thread + Self::THREADS * i as u32) * E::PIECE as u32;
            let one = |n: usize| {
                let element = (first + n as u32).wrapping_sub(self.odd);
                // SAFETY: an element of it.
                unsafe { E::load_bits_if(element < k, gain.wrapping_add(element as usize)) }
            };
            // A branch keeps the compiler from asking for all at once.
            if first < self.end {
                held[i] = core::array::from_fn(|n| one(2 * n) | one(2 * n + 1) << 16);
            }
            i += 1;
        }
        held
    }

    /// Writes what is of the row of its piece from element `first` on, at `to`, which is at one edge of it.
    #[inline(always)]
    pub(super) unsafe fn edge(&self, first: u32, to: *mut u8, [a, b, c, d]: X4<u32>) {
        let to = |byte: u32| to.wrapping_add(byte as usize);
        let word = |byte: u32| {
            let [low, high] = if byte < 8 { [a, b] } else { [c, d] };
            if byte & 4 == 0 { low } else { high }
        };
        // SAFETY: the output is the group's.
        unsafe {
            if first < self.odd {
                // From one byte on.
                let mut from = (self.odd - first) * Self::BYTES;
                if from & 2 > 0 {
                    st_u16(to(from).cast(), (word(from) >> 16) as u16);
                    from += 2;
                }
                if from & 4 > 0 {
                    st(to(from).cast(), word(from));
                    from += 4;
                }
                if from == 8 {
                    st_x2(to(from).cast(), [c, d]);
                }
            } else {
                let end = (self.end - first) * Self::BYTES;
                if end & 8 > 0 {
                    st_x2(to(0).cast(), [a, b]);
                }
                if end & 4 > 0 {
                    st(to(end & 8).cast(), word(end & 8));
                }
                if end & 2 > 0 {
                    st_u16(to(end & 12).cast(), word(end & 12) as u16);
                }
            }
        }
    }

    /// Waits for all of its threads.
    ///
    /// *Convergence*: every one of them calls it.
    #[inline(always)]
    pub(super) fn wait(&self) {
        if W == 1 { sync_warp() } else { sync_some(1 + self.number, Self::THREADS) }
    }

    /// The neighbours of this thread from `at` on.
    #[inline(always)]
    pub(super) unsafe fn read(at: Shared<u32>) -> Piece {
        // SAFETY: the caller's promise.
        unsafe {
            let raw = match Self::NEXT * Self::BYTES {
                16 => at.read_x4(),
                8 => {
                    let [a, b] = at.read_x2();
                    [a, b, 0, 0]
                }
                4 => [at.read(), 0, 0, 0],
                _ => [u32::from(at.cast::<u16>().read_u16()), 0, 0, 0],
            };
            E::widen(raw)
        }
    }

    /// Has zeros for partials of which there is none in the first elements.
    #[inline(always)]
    pub(super) fn without_first(&self, partials: &mut [Piece; 2]) {
        if self.thread * Self::NEXT < self.odd {
            let mut i = 0;
            while i < Self::OWN {
                if self.edges[0] >> i & 1 == 0 {
                    partials[(i / Self::NEXT % Self::PARTS) as usize][(i % Self::NEXT) as usize] =
                        0.0;
                }
                i += 1;
            }
        }
    }

    /// Takes `COUNT` groups of elements from `at` on into partials: all, or those of one group that `bits` names.
    #[inline(always)]
    pub(super) unsafe fn take<const COUNT: usize>(
        at: Shared<u32>,
        bits: Option<u32>,
        partials: &mut [Piece; 2],
        step: &impl Fn(f32, f32) -> f32,
    ) {
        let mut values = [[0.0; 8]; 8];
        let all = COUNT * Self::PARTS as usize;
        let mut i = 0;
        while i < all {
            // SAFETY: elements that wait.
            values[i] = unsafe { Self::read(at.byte_add(Self::part(i) * Self::BYTES)) };
            i += 1;
        }
        let mut i = 0;
        while i < all {
            let p = &mut partials[i % Self::PARTS as usize];
            let mut n = 0;
            while n < Self::NEXT as usize {
                let own = bits.is_none_or(|bits| bits >> (i * Self::NEXT as usize + n) & 1 == 1);
                let taken = step(p[n], values[i][n]);
                p[n] = if own { taken } else { p[n] };
                n += 1;
            }
            i += 1;
        }
    }
}
