//! Device side of [`contract::attention_step`]: one key block of one head per block of 128 threads; the
//! last of a head to finish combines.
//!
//! What a block does with its keys is [`crate::attention::query`]'s. Each block leaves its result in
//! `partial` and draws a ticket from the counter of its head. Whoever draws the last one takes the results
//! first to last, so that the order of arrival does not show, and sets the counter back.
//!
//! No block reads what another one stores: the new key and value are made again where they are needed.

use contract::attention_step::{
    Args, AttentionStepBf16, AttentionStepF32, KEY_BLOCK, THREADS, partial_len,
};
use contract::kv_append::kv_stride;
use contract::launch::{DevPtr, Kernel};
use contract::num::{BlockSum, Running};
use contract::rope::rotate;

use crate::arch::atomic;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_nc, ld_relaxed, st};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::attention::query::{
    DIMS, NewKey, Plain, Query, shared_k, shared_q, shared_scores, write_out,
};
use crate::element::{Bf16, CacheElement};

/// Results in flight at once when they are combined.
const COMBINE: usize = 8;

/// The row that is taken, at one key block of one head.
struct Step<'a> {
    args: &'a Args,
    head: u32,
    kv_head: u32,
    /// Its position; past the capacity it is neither rotated nor stored.
    pos: u32,
    /// Whether its key is in this key block.
    has_new: bool,
}

impl Step<'_> {
    /// Element 0 of head `head` of the row: the q heads, the k heads, the v heads.
    #[inline(always)]
    fn source(&self, head: u32) -> *const f32 {
        let at = head as usize * self.args.head_dim as usize;
        self.args.qkv.as_ptr().cast_const().wrapping_add(at)
    }

    /// Brings the rotated query into shared memory, and the new key and value where they are needed.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table.
    #[inline(always)]
    unsafe fn load<E: CacheElement>(&self) -> Option<NewKey> {
        let Args { heads, kv_heads, head_dim, capacity, cos, sin, .. } = *self.args;
        let half = head_dim / 2;
        let pairs = if self.has_new { 2 * half } else { half };
        let mut i = thread_idx_x();
        while i < pairs {
            let is_key = i >= half;
            let pair = if is_key { i - half } else { i };
            let from = self.source(if is_key { heads + self.kv_head } else { self.head });
            // SAFETY: both elements of a pair of a head of the row.
            let (mut lo, mut hi) = unsafe {
                (
                    ld(from.wrapping_add(pair as usize)),
                    ld(from.wrapping_add((pair + half) as usize)),
                )
            };
            if self.pos < capacity {
                let at = self.pos as usize * half as usize + pair as usize; // cos[pos, pair]
                // SAFETY: pos < capacity and pair < head_dim / 2; the tables never change.
                let (cos, sin) = unsafe {
                    (
                        ld_nc(cos.as_ptr().cast_const().wrapping_add(at)),
                        ld_nc(sin.as_ptr().cast_const().wrapping_add(at)),
                    )
                };
                (lo, hi) = rotate(lo, hi, cos, sin);
            }
            let to = if is_key { shared_k() } else { shared_q() };
            if is_key {
                (lo, hi) = (E::kept(lo), E::kept(hi));
            }
            // SAFETY: pair + half < head_dim <= MAX_HEAD_DIM.
            unsafe {
                to.add(pair).write(lo);
                to.add(pair + half).write(hi);
            }
            i += THREADS;
        }
        let pad = head_dim + thread_idx_x();
        if pad < kv_stride(head_dim as usize) as u32 {
            // SAFETY: kv_stride(head_dim) <= MAX_HEAD_DIM.
            unsafe {
                shared_q().add(pad).write(0.0);
                shared_k().add(pad).write(0.0);
            }
        }
        let values = self.source(heads + kv_heads + self.kv_head);
        let value = core::array::from_fn(|i| {
            let d = thread_idx_x() + THREADS * i as u32;
            if self.has_new && d < head_dim {
                // SAFETY: v[kv head, d] of the row.
                E::kept(unsafe { ld(values.wrapping_add(d as usize)) })
            } else {
                0.0
            }
        });
        sync_threads();
        if self.has_new { Some(NewKey { value }) } else { None }
    }

    /// Stores the new key and value, padding and all.
    ///
    /// # Safety
    ///
    /// As for [`Step::load`], which put the key into shared memory; no other block stores this head.
    #[inline(always)]
    unsafe fn store<E: CacheElement>(&self, new: NewKey) {
        let Args { head_dim, capacity, k_cache, v_cache, .. } = *self.args;
        let stride = kv_stride(head_dim as usize);
        // cache[kv head, pos]
        let at = (self.kv_head as usize * capacity as usize + self.pos as usize) * stride;
        let mut i = 0;
        while i < DIMS {
            let d = thread_idx_x() + THREADS * i as u32;
            if (d as usize) < stride {
                // SAFETY: cache[kv head, pos, d] with pos < capacity and d < stride belongs to this
                // thread; the key has stride elements. Values past the head are zeros.
                unsafe {
                    let key = shared_k().add(d).read();
                    E::store(k_cache.cast::<E>().as_ptr().wrapping_add(at + d as usize), key);
                    let value = v_cache.cast::<E>().as_ptr().wrapping_add(at + d as usize);
                    E::store(value, new.value[i]);
                }
            }
            i += 1;
        }
    }
}

/// Block `(key block, head)` takes one key block; the last of a head combines.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for caches of `E`, `counters` is zero; block
/// and grid are the contract's.
#[inline(always)]
unsafe fn attention_step<E: CacheElement>(args: &Args) {
    launch_dependents();
    dependency_wait();
    const KEYS: u32 = KEY_BLOCK as u32;
    let (head, block) = (block_idx_x() / args.key_blocks, block_idx_x() % args.key_blocks);
    // SAFETY: one element, there by the contract.
    let pos = unsafe { ld(args.start.as_ptr().cast_const()) };
    let visible = pos.saturating_add(1).min(args.capacity);
    // A grid made for fewer positions than there are gives NaN, not an answer to half the keys.
    let needed = visible.div_ceil(KEYS);
    let (blocks, whole) = (needed.min(args.key_blocks), needed <= args.key_blocks);
    if block >= blocks {
        return; // the whole block: the grid is made for a longer sequence
    }
    let group = args.heads / args.kv_heads;
    let kv_head = head / group;
    let has_new = pos < args.capacity && block == pos / KEYS;
    let step = Step { args, head, kv_head, pos, has_new };
    // SAFETY: the launch contract, handed on.
    let new = unsafe { step.load::<E>() };
    if let Some(new) = new
        && head % group == 0
    {
        // SAFETY: one block for each kv head.
        unsafe { step.store::<E>(new) };
    }
    let stride = kv_stride(args.head_dim as usize);
    let at = kv_head as usize * args.capacity as usize * stride;
    let plain = |cache: DevPtr<u8>| Plain::<E> {
        at: cache.cast::<E>().as_ptr().cast_const().wrapping_add(at),
        stride,
    };
    let query = Query {
        head_dim: args.head_dim,
        scale: args.scale,
        keys: plain(args.k_cache),
        values: plain(args.v_cache),
        visible,
    };
    // SAFETY: block < blocks; the new key is the last visible one.
    let (sums, values) = unsafe { query.key_block::<16, 64>(block, new) };
    let out = args.out.as_ptr().wrapping_add(head as usize * args.head_dim as usize);
    if blocks == 1 && whole {
        let mut running = Running::EMPTY;
        let weights = running.take(sums);
        let values = values.map(|v| weights.combine(0.0, v));
        // SAFETY: no other block has work for this head.
        unsafe { write_out(out, args.head_dim, running, values) };
        return; // the whole block
    }

    let len = partial_len(args.head_dim as usize);
    let partial = args.partial.as_ptr();
    let partial = partial.wrapping_add(head as usize * args.key_blocks as usize * len);
    let own = partial.wrapping_add(block as usize * len);
    // SAFETY: partial[head, block] belongs to this block; dimensions to one thread each.
    unsafe {
        if thread_idx_x() == 0 {
            st(own, sums.max);
            st(own.wrapping_add(1), sums.sum);
        }
        let mut i = 0;
        while i < DIMS {
            let d = thread_idx_x() + THREADS * i as u32;
            if d < args.head_dim {
                st(own.wrapping_add(2 + d as usize), values[i]);
            }
            i += 1;
        }
    }

    // The barrier puts the block's writes before the release of its first thread, whose ticket
    // says whether all others have done the same.
    sync_threads();
    let ticket: Shared<u32> = shared_scores().cast();
    let counter = args.counters.as_ptr().wrapping_add(head as usize);
    if thread_idx_x() == 0 {
        // SAFETY: counters[head]; the scores were last read before the barrier.
        unsafe { ticket.write(atomic::add_acq_rel(counter, 1)) };
    }
    sync_threads();
    // SAFETY: written before the barrier.
    if unsafe { ticket.read() } + 1 < blocks {
        return; // the whole block
    }
    if thread_idx_x() == 0 {
        // SAFETY: every block of the head has passed the counter.
        unsafe { st(counter, 0) };
    }
    // SAFETY: every block of the head has left its result.
    let (running, mut values) = unsafe { combine(partial, len, blocks, args.head_dim) };
    if !whole {
        values = [f32::NAN; DIMS];
    }
    // SAFETY: this is the last block of the head.
    unsafe { write_out(out, args.head_dim, running, values) };
}

/// Takes the results of `blocks` key blocks, first to last.
///
/// # Safety
///
/// `partial` starts so many results of `len` words, written before an acquire of this block.
#[inline(always)]
unsafe fn combine(
    partial: *const f32,
    len: usize,
    blocks: u32,
    head_dim: u32,
) -> (Running, [f32; DIMS]) {
    let mut running = Running::EMPTY;
    let mut values = [0.0; DIMS];
    let mut first = 0;
    while first < blocks {
        let mut sums = [BlockSum { max: 0.0, sum: 0.0 }; COMBINE];
        let mut news = [[0.0; DIMS]; COMBINE];
        let mut b = 0;
        while b < COMBINE {
            // Past the last block it is read again and not used: no branch between the loads.
            let from = partial.wrapping_add((first + b as u32).min(blocks - 1) as usize * len);
            // SAFETY: partial[head, < blocks]; d < head_dim.
            unsafe {
                sums[b] = BlockSum { max: ld_relaxed(from), sum: ld_relaxed(from.wrapping_add(1)) };
                let mut i = 0;
                while i < DIMS {
                    let d = (thread_idx_x() + THREADS * i as u32).min(head_dim - 1);
                    news[b][i] = ld_relaxed(from.wrapping_add(2 + d as usize));
                    i += 1;
                }
            }
            b += 1;
        }
        let mut b = 0;
        while b < COMBINE {
            if first + (b as u32) < blocks {
                let weights = running.take(sums[b]);
                let mut i = 0;
                while i < DIMS {
                    values[i] = weights.combine(values[i], news[b][i]);
                    i += 1;
                }
            }
            b += 1;
        }
        first += COMBINE as u32;
    }
    (running, values)
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { attention_step::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    attention_step_bf16 AttentionStepBf16 Bf16;
    attention_step_f32 AttentionStepF32 f32;
}
