//! Rows that come to shared memory by asynchronous copies, one after the other: a group of warps has several of them there, and works on one while
//! others come. Gain and offset lie there too, as the rows of the block do: these all begin in the same place of 16 bytes. From sm_90.
//!
//! What is not of a row in the pieces that it lies in is zero there.

mod group;

use core::marker::PhantomData;

use contract::ring::{GROUP, HELD, Near, Plan, THREADS, plan, scratch_bytes, stage_bytes};
use group::{Gain, Group};

use super::{Family, Held, Norm, Shape, Tensors};
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_part, wait_group};
use crate::arch::mem::{X4, ld_or_zero_x4, prefetch_l2_bulk, st_x4};
use crate::arch::mem_if::st_x4_if;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, opaque, sync_threads, thread_idx_x};
use crate::arch::warp::LANES;
use crate::float::Float;
use crate::row::lanes::Lanes;
use crate::row::map;
use crate::row::tree::tree_of_warps;

/// Pieces that are asked for, or written, at a time.
const SOME: u32 = 4;

/// A row in shared memory.
struct Row<'a, E, const W: u32> {
    group: Group<E, W>,
    /// Where it waits.
    at: Shared<u32>,
    /// This thread's first piece of the output.
    to: *mut E,
    /// The gain, where it is kept.
    gain: &'a Gain,
}

impl<E: Float, const W: u32> Row<'_, E, W> {
    /// Writes the output beside a gain that is kept.
    #[inline(always)]
    unsafe fn write_kept(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let group = &self.group;
        let [pieces, ..] = group.pieces();
        // Anew for each row, as what follows: there are no registers for all of it.
        let thread = opaque(group.thread);
        let mut i = 0;
        while i < HELD {
            let n = thread + Group::<E, W>::THREADS * i;
            // SAFETY: items that wait; the output is the group's.
            unsafe {
                if n < pieces {
                    let (on, first) = (Group::<E, W>::STEP * i, n * E::PIECE as u32);
                    let x = E::widen(self.at.byte_add(16 * thread + on).read_x4());
                    let w = E::widen(self.gain[i as usize].map(opaque));
                    let y = E::narrow(map::<E, true>(x, |i, x| value(x, w[i], -0.0)));
                    let to = self.to.cast::<u8>().wrapping_add(on as usize);
                    // Only the first one may begin in front of the row.
                    if (i > 0 || group.odd <= first) && first + E::PIECE as u32 <= group.end {
                        st_x4(to.cast(), y);
                    } else {
                        group.edge(first, to, y);
                    }
                }
            }
            i += 1;
        }
    }

    /// Writes the output of `COUNT` pieces of this thread, `n` the first, but for those at an edge of the row. With `LAST` not all threads have them.
    #[inline(always)]
    unsafe fn some<const COUNT: usize, const LAST: bool>(
        &self,
        n: u32,
        on: u32,
        whole: u32,
        value: &impl Fn(f32, f32, f32) -> f32,
    ) {
        let group = &self.group;
        let mut raw = [[[0; 4]; 3]; COUNT];
        let (mut there, mut places) = ([false; COUNT], [0; COUNT]);
        // SAFETY: items that wait; the output is the group's.
        unsafe {
            let own = self.at.byte_add(16 * group.thread);
            let mut i = 0;
            while i < COUNT {
                there[i] = !LAST || n + Group::<E, W>::THREADS * (i as u32) < whole;
                // Where there is none, the first one again.
                places[i] = if there[i] { on + Group::<E, W>::STEP * i as u32 } else { 0 };
                let [gain, offset] = group.beside.map(|at| at.byte_add(16 * group.thread));
                raw[i] = [own, gain, offset].map(|at| at.byte_add(places[i]).read_x4());
                i += 1;
            }
            let mut i = 0;
            while i < COUNT {
                let [x, w, b] = raw[i].map(E::widen);
                let y = E::narrow(map::<E, true>(x, |i, x| value(x, w[i], b[i])));
                let to = self.to.cast::<u8>().wrapping_add(places[i] as usize).cast();
                // Only the first one may begin in front of the row.
                if LAST || i == 0 {
                    let begun = i > 0 || group.odd <= n * E::PIECE as u32;
                    st_x4_if(there[i] && begun, to, y);
                } else {
                    st_x4(to, y);
                }
                i += 1;
            }
        }
    }

    /// Writes the output of pieces at an edge of the row, a thread for each element.
    #[inline(always)]
    unsafe fn edges(&self, whole: u32, value: &impl Fn(f32, f32, f32) -> f32) {
        let group = &self.group;
        let p = E::PIECE as u32;
        let thread = opaque(group.thread);
        let place = if thread < p { thread } else { (whole - 1) * p + thread };
        let first = thread < p && group.odd <= thread && group.odd > 0;
        if first || p <= thread && thread < 2 * p && place < group.end {
            let on = place * Group::<E, W>::BYTES;
            let one = |at: Shared<u32>| {
                // SAFETY: an element that waits.
                let bits = unsafe {
                    if E::PIECE == 4 {
                        at.byte_add(on).read()
                    } else {
                        u32::from(at.byte_add(on).cast::<u16>().read_u16())
                    }
                };
                let [value, ..] = E::widen([bits, 0, 0, 0]);
                value
            };
            let beside = group.beside.map(one);
            let y = E::narrow([value(one(self.at), beside[0], beside[1]); 8]);
            let to = self.to.cast::<u8>().wrapping_sub(16 * thread as usize);
            // SAFETY: the output is the group's.
            unsafe { E::store_bits(to.wrapping_add(on as usize).cast(), y[0]) };
        }
    }
}

impl<E: Float, const W: u32> Held<E> for Row<'_, E, W> {
    #[inline(always)]
    unsafe fn sum(&mut self, which: u32, step: impl Fn(f32, f32) -> f32) -> f32 {
        let mut partials = [[0.0; 8]; 2];
        let group = &self.group;
        let own = self.at.byte_add(group.thread * Group::<E, W>::NEXT * Group::<E, W>::BYTES);
        let bytes = GROUP * Group::<E, W>::BYTES;
        // SAFETY: elements that wait; barriers of the group.
        unsafe {
            if group.sums() {
                let (mut at, groups) = (own, group.end.div_ceil(GROUP));
                let (mut left, mut last) = (groups, false);
                if which > 0 || W == 16 && group.tight {
                    left = group.end / GROUP;
                    last = left < groups;
                    if group.odd > 0 {
                        Group::<E, W>::take::<1>(at, None, &mut partials, &step);
                        group.without_first(&mut partials);
                        at = at.byte_add(bytes);
                        last &= left > 0;
                        left = left.saturating_sub(1);
                    }
                }
                while left >= 4 {
                    Group::<E, W>::take::<4>(at, None, &mut partials, &step);
                    at = at.byte_add(4 * bytes);
                    left = opaque(left - 4);
                }
                if left & 2 > 0 {
                    Group::<E, W>::take::<2>(at, None, &mut partials, &step);
                    at = at.byte_add(2 * bytes);
                }
                if left & 1 > 0 {
                    Group::<E, W>::take::<1>(at, None, &mut partials, &step);
                    at = at.byte_add(bytes);
                }
                if last {
                    Group::<E, W>::take::<1>(at, Some(group.edges[1]), &mut partials, &step);
                }
            }
            let [mut p, q] = partials;
            if W == 1 {
                let mut i = 0;
                while i < E::PIECE && Group::<E, W>::PARTS == 2 {
                    p[i] += q[i];
                    i += 1;
                }
                return Lanes::<1>::tree_of::<E>(LANES, E::PIECE, p);
            }
            let scratch = group.scratch.add(GROUP * which);
            if group.sums() {
                let to = scratch.add(group.thread * Group::<E, W>::NEXT);
                match Group::<E, W>::NEXT {
                    4 => to.write_x4([p[0], p[1], p[2], p[3]]),
                    2 => to.write_x2([p[0], p[1]]),
                    _ => to.write(p[0]),
                }
            }
            group.wait();
            tree_of_warps(scratch)
        }
    }

    #[inline(always)]
    unsafe fn write<const AT_ONCE: usize>(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let group = &self.group;
        if W == 16 && group.keeps {
            // SAFETY: handed on.
            return unsafe { self.write_kept(value) };
        }
        let [_, whole, rest] = group.pieces();
        let step = Group::<E, W>::THREADS;
        let (mut n, mut on, mut left) = (group.thread, 0, whole / step);
        // SAFETY: handed on.
        unsafe {
            while left >= SOME {
                self.some::<{ SOME as usize }, false>(n, on, whole, &value);
                (n, on) = (opaque(n + SOME * step), on + SOME * Group::<E, W>::STEP);
                left -= SOME;
            }
            if left & 2 > 0 {
                self.some::<2, false>(n, on, whole, &value);
                (n, on) = (n + 2 * step, on + 2 * Group::<E, W>::STEP);
            }
            if left & 1 > 0 {
                self.some::<1, false>(n, on, whole, &value);
                (n, on) = (n + step, on + Group::<E, W>::STEP);
            }
            if whole % step > 0 {
                self.some::<1, true>(n, on, whole, &value);
            }
            if group.odd > 0 || rest > 0 {
                self.edges(whole, &value);
            }
        }
    }
}

/// What a block goes through.
struct Work<E, const W: u32> {
    group: Group<E, W>,
    tensors: Tensors,
    shape: Shape,
    stages: u32,
    /// Bytes of a row that waits.
    stage: u32,
    /// Its first one.
    area: Shared<u32>,
    /// Whether there is a residual add whose rows come too.
    comes: bool,
}

impl<E: Float, const W: u32> Work<E, W> {
    /// Row `m`.
    #[inline(always)]
    fn norm(&self, m: u32) -> Norm<E, true> {
        Norm::new(self.tensors, self.shape, m).turned(E::PIECE as u32, self.shape[0])
    }

    /// Where rows are that wait.
    #[inline(always)]
    fn stage(&self, at: u32) -> Shared<u32> {
        let bytes = if self.comes { 2 * self.stage } else { self.stage };
        self.area.byte_add(at * bytes)
    }

    /// Asks for this thread's pieces of a row of a tensor, `from` its first one, up to the row's end.
    #[inline(always)]
    unsafe fn ask(&self, to: Shared<u32>, from: *const u8) {
        let step = Group::<E, W>::STEP;
        let [_, whole, rest] = self.group.pieces();
        let (mut n, mut to, mut from) =
            (self.group.thread, to.byte_add(16 * self.group.thread), from);
        // SAFETY: the caller's promise.
        unsafe {
            while n + (SOME - 1) * Group::<E, W>::THREADS < whole {
                let mut i = 0;
                while i < SOME {
                    copy_x16(to.byte_add(i * step), from.wrapping_add((i * step) as usize), true);
                    i += 1;
                }
                (to, from) = (to.byte_add(SOME * step), from.wrapping_add((SOME * step) as usize));
                n = opaque(n + SOME * Group::<E, W>::THREADS);
            }
            while n < whole {
                copy_x16(to, from, true);
                (to, from) = (to.byte_add(step), from.wrapping_add(step as usize));
                n = opaque(n + Group::<E, W>::THREADS);
            }
            if n == whole && rest > 0 {
                copy_x16_part(to, from, rest);
            }
        }
    }

    /// Asks for row `m`, if there is one: `on` bytes behind the first.
    #[inline(always)]
    unsafe fn ask_row(&self, m: u32, at: u32, on: usize) {
        if m < self.shape[0] {
            let to = self.stage(at);
            // SAFETY: handed on.
            unsafe {
                self.ask(to, self.first(0).wrapping_add(on));
                if self.comes {
                    self.ask(to.byte_add(self.stage), self.first(1).wrapping_add(on));
                } else if W == 16 && !self.tensors[1].is_null() && self.group.thread == 0 {
                    let [_, whole, _] = self.group.pieces();
                    prefetch_l2_bulk(self.first(1).wrapping_add(on), 16 * whole);
                }
            }
        }
        commit_group();
    }

    /// This thread's first piece of the first row of a tensor.
    #[inline(always)]
    fn first(&self, tensor: usize) -> *mut u8 {
        self.tensors[tensor].as_ptr().wrapping_add(16 * self.group.thread as usize)
    }

    /// Has zeros in front of a row, in the first piece.
    #[inline(always)]
    unsafe fn cut(&self, at: Shared<u32>) {
        let odd = self.group.odd;
        if odd > 0 && self.group.thread == 0 {
            // SAFETY: the caller's promise.
            unsafe {
                let words = odd * Group::<E, W>::BYTES / 4;
                let mut i = 0;
                while i < 3 {
                    if i < words {
                        at.add(i).write(0);
                    }
                    i += 1;
                }
                if Group::<E, W>::BYTES == 2 && odd % 2 == 1 {
                    at.cast::<u16>().add(odd - 1).write_u16(0);
                }
            }
        }
    }

    /// Adds the residual to a row that waits, and writes it back.
    #[inline(always)]
    unsafe fn add(&self, norm: &Norm<E, true>, at: Shared<u32>) {
        let line = &norm.line;
        let [pieces, whole, _] = self.group.pieces();
        let mut n = self.group.thread;
        // SAFETY: pieces of this thread.
        unsafe {
            if W == 16 && !self.comes {
                // Those that are all of the row, some at a time: their residuals come from the second-level cache.
                while n < whole {
                    let place = |i: usize| n + Group::<E, W>::THREADS * i as u32;
                    let mut delta = [[0; 4]; SOME as usize];
                    let mut i = 0;
                    while i < SOME as usize {
                        let from = norm.delta.cast::<X4<u32>>().wrapping_add(place(i) as usize);
                        delta[i] = ld_or_zero_x4(place(i) < whole, from);
                        i += 1;
                    }
                    let mut i = 0;
                    while i < SOME as usize {
                        if place(i) < whole {
                            let x = at.byte_add(16 * place(i));
                            let sum = Norm::<E, true>::sum(x.read_x4(), delta[i]);
                            let to = norm.x.cast::<X4<u32>>().wrapping_add(place(i) as usize);
                            if i > 0 || place(i) > 0 || self.group.odd == 0 {
                                x.write_x4(sum);
                                st_x4(to, sum);
                            } else {
                                x.write_x4(line.own::<E>(0, sum));
                                self.group.edge(0, to.cast(), sum);
                            }
                        }
                        i += 1;
                    }
                    n = opaque(n + SOME * Group::<E, W>::THREADS);
                }
                n = if self.group.thread == whole % Group::<E, W>::THREADS {
                    whole
                } else {
                    pieces
                };
            }
            while n < pieces {
                let (first, x) = (n * E::PIECE as u32, at.byte_add(16 * n));
                let delta = if self.comes {
                    x.byte_add(self.stage).read_x4()
                } else {
                    line.load(true, norm.delta, first)
                };
                let sum = Norm::<E, true>::sum(x.read_x4(), delta);
                let to = norm.x.wrapping_add(first as usize);
                if line.inside::<E>(first) {
                    x.write_x4(sum);
                    st_x4(to.cast(), sum);
                } else {
                    x.write_x4(line.own::<E>(first, sum));
                    self.group.edge(first, to.cast(), sum);
                }
                n = opaque(n + Group::<E, W>::THREADS);
            }
        }
    }

    /// Has a gain or an offset lie as the rows do, or `nothing` where there is none.
    #[inline(always)]
    unsafe fn put_beside(&self, to: Shared<u32>, p: *const E, nothing: f32) {
        let (k, odd, t) = (self.shape[1], self.group.odd, thread_idx_x());
        let bytes = Group::<E, W>::BYTES;
        // SAFETY: the caller's promise.
        unsafe {
            if p.is_null() || odd > 0 || !(p as usize).is_multiple_of(16) {
                let nothing = E::narrow([nothing; 8]);
                let mut i = t;
                while i < k {
                    let mut bits = [nothing[0]; 8];
                    let mut n = 0;
                    while n < 8 {
                        let own = i + THREADS * n as u32;
                        if !p.is_null() {
                            bits[n] = E::load_bits_if(own < k, p.wrapping_add(own as usize));
                        }
                        n += 1;
                    }
                    let mut n = 0;
                    while n < 8 {
                        let own = i + THREADS * n as u32;
                        if own < k && bytes == 4 {
                            to.add(odd + own).write(bits[n]);
                        } else if own < k {
                            to.cast::<u16>().add(odd + own).write_u16(bits[n] as u16);
                        }
                        n += 1;
                    }
                    i = opaque(i + 8 * THREADS);
                }
            } else {
                let mut n = t;
                while 16 * n < k * bytes {
                    let left = k * bytes - 16 * n;
                    let from = p.cast::<u8>().wrapping_add(16 * n as usize);
                    copy_x16_part(to.byte_add(16 * n), from, if left < 16 { left } else { 16 });
                    n = opaque(n + THREADS);
                }
            }
        }
    }

    /// Has zeros behind the pieces of rows, of all that wait.
    #[inline(always)]
    unsafe fn clear(&self) {
        let [pieces, ..] = self.group.pieces();
        let rows = self.stages * if self.comes { 2 } else { 1 };
        let mut row = 0;
        while row < rows {
            let mut n = pieces + self.group.thread;
            while 16 * n < self.stage {
                // SAFETY: pieces of the group, which nothing comes to.
                unsafe { self.area.byte_add(row * self.stage + 16 * n).write_x4([0; 4]) };
                n = opaque(n + Group::<E, W>::THREADS);
            }
            row = opaque(row + 1);
        }
    }
}

/// The rows of a block, in groups of `W` warps.
///
/// # Safety
///
/// The tensors are those of the contract, rows start on boundaries of 16 bytes as `contract::ring` has it; block, grid and shared memory are its.
#[inline(always)]
unsafe fn rows_of<F: Family, E: Float, const W: u32>(
    args: &F::Args,
    tensors: Tensors,
    shape: Shape,
    (plan, beside): (Plan, u32),
) {
    let (thread, number) = (thread_idx_x() % (W * LANES), thread_idx_x() / (W * LANES));
    let [rows, k] = shape;
    let Plan { stages, comes, near, stage, .. } = plan;
    let keeps = W == 16 && near == Near::Registers;
    let held = if keeps { 0 } else { beside };
    let all = dynamic_shared_mem::<u32>().kept();
    let places = all.byte_add(scratch_bytes(W));
    let places = [places, places.byte_add((beside - 1) * stage)];
    let own = stages * stage * if comes { 2 } else { 1 };
    let odd = (block_idx_x() * k) % E::PIECE as u32;
    let end = odd + k;
    let mut group = Group::<E, W> {
        thread,
        number,
        odd,
        end,
        edges: [0; 2],
        beside: places,
        keeps,
        tight: stage < stage_bytes(k, Group::<E, W>::BYTES),
        scratch: all.cast::<f32>().add(2 * GROUP * number),
        element: PhantomData,
    };
    group.edges = [
        group.bits(0, |place| odd <= place && place < end),
        group.bits(end / GROUP * GROUP, |place| place < end),
    ];
    let area = all.byte_add(scratch_bytes(W) + held * stage + number * own);
    let work = Work::<E, W> { group, tensors, shape, stages, stage, area, comes };
    let bytes = |rows: u32| rows as usize * (k * Group::<E, W>::BYTES) as usize;
    let step = grid_dim_x() * Group::<E, W>::COUNT;
    let mut m = block_idx_x() + grid_dim_x() * number;
    // Where this row's first piece is in its tensor.
    let mut on = bytes(m) - (odd * Group::<E, W>::BYTES) as usize;
    let (far, ahead) = (bytes(step), bytes(step) * (work.stages - 1) as usize);
    // SAFETY: handed on. A stage is asked for anew behind a barrier behind its last use.
    unsafe {
        let mut at = 0;
        while at + 1 < work.stages {
            work.ask_row(m + at * step, at, on + at as usize * far);
            at = opaque(at + 1);
        }
        work.clear();
        if held > 0 {
            work.put_beside(places[0], tensors[2].cast::<E>().as_ptr(), 1.0);
        }
        if held > 1 {
            work.put_beside(places[1], tensors[3].cast::<E>().as_ptr(), -0.0);
        }
        let mut gain = [[0; 4]; HELD as usize];
        if keeps {
            gain = work.group.beside(tensors[2].cast::<E>().as_ptr().cast_const(), k);
        }
        commit_group();
        wait_group::<0>();
        sync_threads();
        let mut at = 0;
        while m < rows {
            match work.stages {
                2 => wait_group::<0>(),
                3 => wait_group::<1>(),
                _ => wait_group::<2>(),
            }
            let here = work.stage(at);
            work.cut(here);
            if !tensors[1].is_null() {
                work.add(&work.norm(m), here);
            }
            work.group.wait();
            let behind = if at == 0 { work.stages - 1 } else { at - 1 };
            work.ask_row(m + (work.stages - 1) * step, behind, on + ahead);
            let to = work.first(4).wrapping_add(on).cast();
            F::make(args, Row { group: work.group, at: here, to, gain: &gain });
            (m, on) = (opaque(m + step), on + far);
            at = opaque(if at + 1 == work.stages { 0 } else { at + 1 });
        }
    }
}

/// The rows of a block, of a family with so many tensors `beside` them.
///
/// # Safety
///
/// As for [`rows_of`].
#[inline(always)]
pub unsafe fn rows<F: Family, E: Float>(
    args: &F::Args,
    tensors: Tensors,
    shape: Shape,
    beside: u32,
) {
    let Some(plan) = plan(shape[1], 16 / E::PIECE as u32, beside, !tensors[1].is_null()) else {
        return;
    };
    // SAFETY: handed on.
    unsafe {
        match plan.warps {
            1 => rows_of::<F, E, 1>(args, tensors, shape, (plan, beside)),
            2 => rows_of::<F, E, 2>(args, tensors, shape, (plan, beside)),
            4 => rows_of::<F, E, 4>(args, tensors, shape, (plan, beside)),
            8 => rows_of::<F, E, 8>(args, tensors, shape, (plan, beside)),
            _ => rows_of::<F, E, 16>(args, tensors, shape, (plan, beside)),
        }
    }
}
