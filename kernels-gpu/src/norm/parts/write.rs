//! How segments of long rows are written, and what is beside them.

use contract::launch::DevPtr;
use contract::parts::SEGMENT;

use super::super::Norm;
use super::{Beside, Own, Work};
use crate::arch::mem::{X4, st_x4};
use crate::arch::mem_if::st_x4_if;
use crate::arch::mem_or::{ld_or, ld_or_x4};
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_idx};
use crate::float::{Float, window};
use crate::row::walk::Turn;
use crate::row::{map, take};

impl<E: Float, const ODD: bool, const CENTRED: bool> Work<E, ODD, CENTRED> {
    /// Writes item `n` of this lane, if it is whole: its first one begins at `to`, from where there are elements `left`, `odd` of a segment behind its
    /// others.
    ///
    /// # Safety
    ///
    /// They are elements of a row, and belong to this lane.
    #[inline(always)]
    pub(super) unsafe fn put_item((to, left, odd): (*mut E, u32, u32), n: usize, raw: X4<u32>) {
        let on = Own::<E>::on(n);
        let wrapped = ODD && n == 0 && odd > 0 && lane_id() == 0;
        let whole = if ODD { left >= on + E::PIECE as u32 } else { left > on };
        let to = to.wrapping_add(on as usize).cast();
        // SAFETY: the caller's promise.
        unsafe {
            if ODD && !CENTRED {
                st_x4_if(whole && !wrapped, to, raw);
            } else if whole && !wrapped {
                st_x4(to, raw);
            }
        }
    }

    /// What of a gain or an offset is beside this lane's item `n` of a segment whose row begins in such a place; words of `nothing` where there is none.
    ///
    /// # Safety
    ///
    /// It is one of the contract's table.
    #[inline(always)]
    unsafe fn beside(
        &self,
        (p, nothing): (DevPtr<u8>, u32),
        (segment, odd): (u32, u32),
        n: usize,
    ) -> X4<u32> {
        let (p, k) = (p.cast::<E>().as_ptr().cast_const(), self.shape[1]);
        let (start, own) = (segment * SEGMENT, Own::<E>::own() + Own::<E>::on(n));
        let there = if p.is_null() { 0 } else { k };
        let at = |element: u32| p.wrapping_add(element as usize);
        // SAFETY: elements of it.
        unsafe {
            if !ODD {
                return ld_or_x4(start + own < there, at(start + own).cast(), opaque(nothing));
            }
            let one = |i: usize| {
                let place = own + i as u32;
                let element = start + if place < odd { place + SEGMENT } else { place } - odd;
                E::load_bits_if(element < there, at(element))
            };
            let absent = if there == 0 { opaque(nothing) } else { 0 };
            core::array::from_fn(|i| match E::PIECE {
                4 => one(i) | absent,
                _ => one(2 * i) | one(2 * i + 1) << 16 | absent,
            })
        }
    }

    /// Where this lane's element at the edges of a segment is, whose row begins in such a place, and gain and offset beside it. All ones where there is
    /// none.
    ///
    /// # Safety
    ///
    /// As for [`Work::beside`].
    #[inline(always)]
    pub(super) unsafe fn beside_edge(&self, segment: u32, odd: u32) -> [u32; 2] {
        let start = segment * SEGMENT;
        let (there, from, place) = Own::<E>::edge(self.shape[1] + odd - start, odd);
        let [w, b] = [0, 1].map(|t| {
            let p = self.tensors[2 + t];
            let at =
                p.cast::<E>().as_ptr().wrapping_add((start + place).wrapping_sub(odd) as usize);
            let enabled = there && !p.is_null() && (CENTRED || t == 0);
            // SAFETY: an element of it.
            let bits = unsafe { E::load_bits_if(enabled, at.cast_const()) };
            if p.is_null() { Self::NOTHING[t] & E::ONE } else { bits }
        });
        [if there { from | place << 16 } else { u32::MAX }, w | b << 16]
    }

    /// The bits of gain and offset beside an element of a row.
    ///
    /// # Safety
    ///
    /// There is one.
    #[inline(always)]
    unsafe fn beside_one(&self, element: u32) -> [u32; 2] {
        [0, 1].map(|t| {
            let p = self.tensors[2 + t];
            let at = p.cast::<E>().as_ptr().cast_const().wrapping_add(element as usize);
            // SAFETY: an element of it.
            let bits = unsafe { E::load_bits_if(!p.is_null() && (CENTRED || t == 0), at) };
            if p.is_null() { Self::NOTHING[t] & E::ONE } else { bits }
        })
    }

    /// Those of gain and offset beside `COUNT` items, from one on: no offset where squares are around zero.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// As for [`Work::beside`].
    #[inline(always)]
    pub(super) unsafe fn both<const COUNT: usize>(
        &self,
        segment: (u32, u32),
        from: usize,
    ) -> [[X4<u32>; 2]; COUNT] {
        let offset = if CENTRED { self.tensors[3] } else { DevPtr::NULL };
        let tensors = [self.tensors[2], offset];
        let start = segment.0 * SEGMENT + Own::<E>::own();
        let mut out = [[[0; 4]; 2]; COUNT];
        let whole = (segment.0 + 1) * SEGMENT <= self.shape[1];
        // SAFETY: pieces of the tensors.
        unsafe {
            if !ODD || !whole || !self.pieces {
                let mut i = 0;
                while i < COUNT {
                    out[i] = [0, 1]
                        .map(|t| self.beside((tensors[t], Self::NOTHING[t]), segment, from + i));
                    i += 1;
                }
                return out;
            }
            let load = |t: usize, n: usize| {
                let p = tensors[t];
                let at = p.cast::<E>().as_ptr().wrapping_add((start + Own::<E>::on(n)) as usize);
                ld_or_x4(!p.is_null(), at.cast_const().cast(), opaque(Self::NOTHING[t]))
            };
            // The piece in front of one is another lane's; in front of the first one is the segment's last.
            let mut before =
                [0, 1].map(|t| load(t, if from > 0 { from - 1 } else { Own::<E>::ITEMS - 1 }));
            let mut i = 0;
            while i < COUNT {
                out[i] = [0, 1].map(|t| load(t, from + i));
                i += 1;
            }
            let (last, lane) = (lane_id() == LANES - 1, lane_id().wrapping_sub(1) % LANES);
            let mut i = 0;
            while i < COUNT && segment.1 > 0 {
                let here = out[i];
                let mut t = 0;
                while t < if CENTRED { 2 } else { 1 } {
                    let front = core::array::from_fn(|word| {
                        shuffle_idx(if last { before[t][word] } else { here[t][word] }, lane)
                    });
                    out[i][t] = window(front, here[t], 16 - segment.1 * Self::BYTES);
                    t += 1;
                }
                before = here;
                i += 1;
            }
            out
        }
    }

    /// Writes this warp's segment of a turn, once its row is told: `wait` comes back then.
    ///
    /// # Safety
    ///
    /// What waits in the stage is the segment.
    #[inline(always)]
    pub(super) unsafe fn write(
        &self,
        (turn, segment): (Turn, u32),
        (at, set): (u32, u32),
        (near, edge): (&Beside, [u32; 2]),
        wait: impl Fn(),
        value: impl Fn([f32; 3], [f32; 2]) -> f32 + Copy,
    ) {
        let turn = Turn { pass: opaque(turn.pass), part: turn.part };
        let norm = self.norm(turn);
        let (start, own, odd) = (segment * SEGMENT, Own::<E>::own(), Self::odd(&norm));
        let stage = self.own_stage(at);
        // SAFETY: items of the row, which wait; the last warp put both words down before it arrived.
        unsafe {
            if ODD && !Self::KEPT {
                return self.write_elements(&norm, start, (at, set), wait, value);
            }
            let to = norm.to().wrapping_add((start + own) as usize);
            let left = (norm.line.k - start).saturating_sub(own);
            // What is not kept comes some at a time, the first while the row is waited for.
            let mut some = 0;
            while some < Own::<E>::ITEMS {
                let mut beside = [[[0; 4]; 2]; 8];
                if Self::KEPT {
                    let mut i = 0;
                    while i < Self::SOME {
                        beside[i] = near[some + i];
                        i += 1;
                    }
                } else if CENTRED {
                    let [a, b, c, d] = self.both::<4>((segment, odd), some);
                    beside = [a, b, c, d, a, b, c, d];
                } else {
                    beside = self.both::<8>((segment, odd), some);
                }
                if some == 0 {
                    wait();
                }
                let row = self.told.row(set).read_x2();
                let mut i = 0;
                while i < Self::SOME {
                    let on = Own::<E>::on(some + i);
                    let x = E::widen(stage.byte_add(on * Self::BYTES).read_x4());
                    let [w, b] = beside[i].map(E::widen);
                    let y = E::narrow(map::<E, true>(x, |i, x| value([x, w[i], b[i]], row)));
                    Self::put_item((to, left, odd), some + i, y);
                    i += 1;
                }
                some += Self::SOME;
            }
            if ODD && Self::KEPT {
                self.write_edge(&norm, start, (at, set), edge, value);
            }
        }
    }

    /// [`Work::write`] of a segment from `start` on, element by element: lanes side by side have neighbours, so that a gain of `f32` comes as it is.
    ///
    /// # Safety
    ///
    /// As for [`Work::write`].
    #[inline(always)]
    unsafe fn write_elements(
        &self,
        norm: &Norm<E, true>,
        start: u32,
        (at, set): (u32, u32),
        wait: impl Fn(),
        value: impl Fn([f32; 3], [f32; 2]) -> f32,
    ) {
        let odd = Self::odd(norm);
        let (left, own) = (norm.line.k - odd - start, start + lane_id());
        let beside = |t: usize, on: u32, enabled: bool| {
            let p = self.tensors[2 + t].cast::<u32>().as_ptr().cast_const();
            let enabled = enabled && !p.is_null() && (CENTRED || t == 0);
            // SAFETY: an element of the gain or the offset.
            unsafe { ld_or(enabled, p.wrapping_add((own + on) as usize), opaque(Self::NOTHING[t])) }
        };
        let to = norm.to().wrapping_add((odd + own) as usize);
        let one = |on: u32, w: u32, b: u32, row: [f32; 2]| {
            // The last elements of a segment are in front.
            let from = (odd + lane_id() + on) % SEGMENT;
            // SAFETY: an element that waits, and that of the output.
            unsafe {
                let x = self.stage(at).byte_add(from * Self::BYTES).read();
                let y = value([x, w, b].map(f32::from_bits), row);
                E::store_bits(to.wrapping_add(on as usize), y.to_bits());
            }
        };
        if left >= SEGMENT {
            let mut some = 0;
            while some < SEGMENT {
                let each = |i: usize| some + LANES * i as u32;
                let w: [u32; 16] = core::array::from_fn(|i| beside(0, each(i), true));
                let b: [u32; 16] = core::array::from_fn(|i| beside(1, each(i), true));
                if some == 0 {
                    wait();
                }
                // SAFETY: both words, which the last warp put down before it arrived.
                let row = unsafe { self.told.row(set).read_x2() };
                let mut i = 0;
                while i < 16 {
                    one(each(i), w[i], b[i], row);
                    i += 1;
                }
                some += 16 * LANES;
            }
            return;
        }
        wait();
        // SAFETY: as above.
        let row = unsafe { self.told.row(set).read_x2() };
        let mut on = 0;
        while on < left {
            let there = |i: usize| lane_id() + on + LANES * (i as u32) < left;
            let w: [u32; 4] = core::array::from_fn(|i| beside(0, on + LANES * i as u32, there(i)));
            let b: [u32; 4] = core::array::from_fn(|i| beside(1, on + LANES * i as u32, there(i)));
            let mut i = 0;
            while i < 4 {
                if there(i) {
                    one(on + LANES * i as u32, w[i], b[i], row);
                }
                i += 1;
            }
            on = opaque(on + 4 * LANES);
        }
    }

    /// Writes the element of this lane at the edges of a segment from `start` on.
    ///
    /// # Safety
    ///
    /// As for [`Work::write`].
    #[inline(always)]
    unsafe fn write_edge(
        &self,
        norm: &Norm<E, true>,
        start: u32,
        (at, set): (u32, u32),
        [spot, beside]: [u32; 2],
        value: impl Fn([f32; 3], [f32; 2]) -> f32,
    ) {
        let odd = Self::odd(norm);
        let (there, from, place) = if CENTRED {
            Own::<E>::edge(norm.line.k - start, odd)
        } else {
            (spot != u32::MAX, spot % 0x1_0000, spot >> 16)
        };
        if there {
            let one = |bits: u32| E::widen([bits, 0, 0, 0])[0];
            // SAFETY: an element of the row.
            unsafe {
                let [w, b] = if CENTRED {
                    self.beside_one(start + place - odd).map(one)
                } else {
                    [one(beside), -0.0]
                };
                let x = one(take::<E>(self.stage(at).byte_add(from * Self::BYTES)));
                let y = value([x, w, b], self.told.row(set).read_x2());
                let y = E::narrow([y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
                E::store_bits(norm.to().wrapping_add((start + place) as usize), y[0]);
            }
        }
    }
}
