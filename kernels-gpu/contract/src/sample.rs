//! Picks the next token, on the device, and moves the sequence on.
//!
//! | tensor     | element          | shape     | meaning                                       |
//! |------------|------------------|-----------|-----------------------------------------------|
//! | `logits`   | `f32`            | `[vocab]` | input                                         |
//! | `adjusted` | `f32`            | `[vocab]` | scratch, for draws: logits after penalty and temperature; room for [`adjusted_len`] |
//! | `tops`     | `u32`            | `[groups(vocab)]` | scratch: largest key of each [`GROUP`] logits |
//! | `marks`    | `u8`             | `[vocab]` | [`SEEN`] for tokens of prompt and text, updated; [`FORBIDDEN`], [`BIASED`], [`GIVEN`] |
//! | `bias`     | `f32`            | `[vocab]` or null | of [`BIASED`] tokens what is added to their logits, updated; null: that mark does not count, and there are no presence and frequency penalties |
//! | `best`     | `u64`            | `[1]`     | scratch, 0 before and after every step        |
//! | `params`   | [`SampleParams`] | `[1]`     | what was asked for                            |
//! | `state`    | [`StepState`]    | `[1]`     | token, position, step, done; updated          |
//! | `out`      | `u32`            | `[out_len]` | `out[step]` receives the token              |
//!
//! Steps (each order-free, so that any split over threads gives the same token):
//!
//! 1. `x[i] = temper(penalise(logit[i]) + bias[i])`, so that forbidden tokens have minus infinity; the best is the largest `(order_key(x), lowest i)`.
//!    NaN counts as the smallest. Unless [`has_bias`] nothing is added.
//! 2. Temperature 0: the best is the token. Otherwise each token weighs
//!    `u[i] = trunc(exp(x[i] - x[best]) * 2^31)`, an integer, so sums are exact in `u64`.
//!    A token lighter than 2^-31 of the best weighs 0 and cannot be drawn.
//! 3. Top-k keeps the tokens whose key is not below the k-th largest (ties stay).
//! 4. Top-p keeps, of those, the tokens at or above the largest key `c` for which the tokens with
//!    key >= `c` weigh at least [`top_p_target`] together (ties stay). A top-p of 1 keeps all.
//! 5. Min-p keeps tokens with `u[i] >= min_weight`.
//! 6. With `S` the weight of the kept and `r` a 64-bit Philox number of (seed, step), the token is
//!    the first in index order whose running weight exceeds `high64(r * S)`.
//!
//! Then, unless `done` was already set: `out[step] = token` (when `step < out_len`), `marks[token] = SEEN` (with a bias [`given`], and
//! `bias[token] = lowered`), `token`, `step + 1`, `pos + 1`, and `done = 1` after a stop id or the last allowed step. When `done` was set,
//! nothing changes, so that steps launched ahead of the host are harmless.
//!
//! Several sequences take a row each: the tensors of row `r` stand behind those of row 0
//! ([`Args::of_row`]), and rows know nothing of each other.
//!
//! `sample_prepare` does step 1 over the whole GPU, `sample_pick` the rest in one block a row: from a short
//! list of the best logits, found through `tops`, or else from all of them.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;

/// Threads of a `sample_prepare` block.
pub const PREPARE_THREADS: u32 = 256;
/// Logits that a `sample_prepare` block looks at together.
pub const PREPARE_TILE: u32 = 1024;
/// Threads of the one `sample_pick` block: 64 registers each on the smallest GPU.
pub const PICK_THREADS: u32 = 512;
/// Blocks that share a row in `sample_pick_wide`.
pub const WIDE_BLOCKS: u32 = 8;
/// Most rows that have so many: of more, a block each.
pub const WIDE_ROWS: u32 = 8;
/// Bins of the histogram by which `sample_pick` narrows a key down, 11 bits at a time.
pub const PICK_BINS: u32 = 2048;
/// Shared memory of `sample_pick` in bytes: the histogram, a word of 64 bits of each warp, and what
/// one thread tells the others.
pub const PICK_SMEM_BYTES: u32 = 8 * (PICK_BINS + PICK_THREADS / 32 + 2);
/// Logits that share an element of `tops`: the lanes of a warp.
pub const GROUP: u32 = 32;
/// Logits on the short list of `sample_pick`, at most.
pub const SHORT_LIST: u32 = PICK_THREADS;
/// Logits that the short list is sure to hold, where there are so many, for top-p without top-k.
pub const TOP_P_LIST: u32 = 256;
/// Most sequences of a launch.
pub const MAX_SAMPLERS: usize = 65_535;
/// Most stop ids.
pub const MAX_STOP_IDS: usize = 16;
/// Bit of a token that stands in prompt or text.
pub const SEEN: u8 = 1;
/// Bit of a token that must not be picked, while there is another one. [`SampleAllow`] writes it.
pub const FORBIDDEN: u8 = 2;
/// Bit of a token that has a bias, which counts under a [`SampleParams::repetition_penalty`] below 0.
pub const BIASED: u8 = 4;
/// Bit of a token that the text has given under presence and frequency penalties.
pub const GIVEN: u8 = 8;
/// [`StepState::done`] of a text that waits for [`SampleAllow`]. Steps meanwhile run its last token again and store the same keys and values.
pub const RESTS: u32 = 2;
/// Threads of a block of [`SampleAllow`].
pub const ALLOW_THREADS: u32 = 256;
/// Words of a warp of it, a lane for each of their bits.
pub const ALLOW_WORDS: u32 = 8;
/// The weight of the best token.
pub const ONE_WEIGHT: u32 = 1 << 31;

/// What was asked for, in the form the kernel needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParams {
    /// Philox key.
    pub seed: u64,
    /// `top_p * 2^32`, at most `2^32`, which keeps everything.
    pub top_p_q32: u64,
    /// Divides the logits; 0 picks the best token.
    pub temperature: f32,
    /// Its magnitude divides positive and multiplies negative logits of [`SEEN`] tokens. With 1 the marks are not looked at, so with none
    /// [`FORBIDDEN`]; -1 is no penalty and looks at them. Below 0 a bias counts too.
    pub repetition_penalty: f32,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: u32,
    /// `min_p * 2^31`, at most [`ONE_WEIGHT`].
    pub min_weight: u32,
    /// Steps after which `done` is set.
    pub max_steps: u32,
    /// Valid entries of `stop_ids`.
    pub stop_len: u32,
    /// Tokens that end the text.
    pub stop_ids: [u32; MAX_STOP_IDS],
    /// What the first time that the text gives a token takes off its bias.
    pub presence_penalty: f32,
    /// What each time takes off it.
    pub frequency_penalty: f32,
    /// Not 0: behind each token the text [`RESTS`] until [`SampleAllow`] says what may come next.
    pub rests: u32,
    /// Not 0: the head by way of int8 makes every logit, as log probabilities and a bias need them.
    pub every: u32,
}

impl SampleParams {
    /// Whether tokens of the text lose something by it, beside [`SampleParams::repetition_penalty`].
    #[inline(always)]
    pub const fn lowers(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Where a sequence stands. Read by every kernel that needs a position.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepState {
    /// Position of the token that is processed next: tokens already in the cache.
    pub pos: u32,
    /// That token.
    pub token: u32,
    /// Tokens picked so far.
    pub step: u32,
    /// 0 while the text goes on; [`RESTS`], or another number once it has ended: steps then leave it as it is.
    pub done: u32,
}

/// The marks of a token as far as they count.
#[inline(always)]
pub const fn counted(marks: u8, penalty: f32) -> u8 {
    if penalty == 1.0 { 0 } else { marks }
}

/// Repetition penalty of one logit, or minus infinity, by [`counted`] marks.
#[inline(always)]
pub const fn penalise(x: f32, marks: u8, penalty: f32) -> f32 {
    let x = if marks & FORBIDDEN != 0 { f32::NEG_INFINITY } else { x };
    if marks & SEEN == 0 {
        x
    } else if x > 0.0 {
        x / penalty.abs()
    } else {
        x * penalty.abs()
    }
}

/// Whether a token with these marks has a bias that counts.
#[inline(always)]
pub const fn has_bias(marks: u8, penalty: f32) -> bool {
    marks & BIASED != 0 && penalty < 0.0
}

/// The marks of a token that the text has given, where tokens have a bias; `lowers` as [`SampleParams::lowers`] says.
#[inline(always)]
pub const fn given(marks: u8, lowers: bool) -> u8 {
    SEEN | if lowers { BIASED | GIVEN } else { marks & BIASED }
}

/// The bias of a token that the text gives once more, which had `marks` and `bias`.
#[inline(always)]
pub const fn lowered(marks: u8, bias: f32, presence: f32, frequency: f32) -> f32 {
    let bias = if marks & BIASED == 0 { 0.0 } else { bias };
    let bias = if marks & GIVEN == 0 { bias - presence } else { bias };
    bias - frequency
}

/// Temperature of one logit; 0 leaves it as it is: a division by 1. (A GPU makes it in any case, and takes the long
/// way for a divisor of 0.)
#[inline(always)]
pub fn temper(x: f32, temperature: f32) -> f32 {
    x / if temperature > 0.0 { temperature } else { 1.0 }
}

/// A token as one number: the larger is the better, ties go to the lower index.
#[inline(always)]
pub fn rank(x: f32, index: u32) -> u64 {
    rank_of(num::order_key(x), index)
}

/// The [`rank`] of a token whose logit has this key.
#[inline(always)]
pub const fn rank_of(key: u32, index: u32) -> u64 {
    ((key as u64) << 32) | (!index) as u64
}

/// The index inside a [`rank`].
#[inline(always)]
pub const fn rank_index(rank: u64) -> u32 {
    !(rank as u32)
}

/// The integer weight of a logit beside the best one.
#[inline(always)]
pub fn weight(x: f32, best: f32) -> u32 {
    // The difference of equal infinities is NaN; the best token always weighs one.
    if x == best {
        return ONE_WEIGHT;
    }
    let e = num::exp(x - best) * ONE_WEIGHT as f32;
    // NaN compares false and weighs nothing.
    if e >= ONE_WEIGHT as f32 {
        ONE_WEIGHT
    } else if e > 0.0 {
        e as u32
    } else {
        0
    }
}

/// A key below which every token weighs 0 beside the best one.
///
/// `x < fl(best - 22)` means `x < best - 22`, as rounding keeps the order; and `exp(-22) * 2^31` is
/// 0.6. Infinities and NaN subtract to themselves.
#[inline(always)]
pub const fn weight_floor(best: f32) -> u32 {
    num::order_key(best - 22.0)
}

/// Blocks of `sample_prepare`: one for each tile, or fewer of each of many rows.
pub const fn prepare_grid(vocab: u32, rows: u32) -> [u32; 3] {
    let tiles = vocab.div_ceil(PREPARE_TILE);
    let most = if rows < 32 { tiles } else { 32 };
    [if tiles < most { tiles } else { most }, rows, 1]
}

/// Elements of `tops`.
#[inline(always)]
pub const fn groups(vocab: u32) -> u32 {
    vocab.div_ceil(GROUP)
}

/// Elements of `adjusted`: whole vectors of four, so that the last is loaded like all others.
#[inline(always)]
pub const fn adjusted_len(vocab: u32) -> u32 {
    vocab.next_multiple_of(4)
}

/// The weight that top-p asks of the kept tokens, given the weight `total` of all candidates.
#[inline(always)]
pub const fn top_p_target(total: u64, top_p_q32: u64) -> u64 {
    let target = ((total >> 16) * top_p_q32) >> 16;
    if target == 0 { 1 } else { target }
}

/// Upper half of the product: a uniform number below `total` from 64 random bits.
#[inline(always)]
pub const fn scale_random(random: u64, total: u64) -> u64 {
    ((random as u128 * total as u128) >> 64) as u64
}

/// The 64 random bits of a step.
#[inline(always)]
pub fn random(seed: u64, step: u32) -> u64 {
    let r = num::philox4x32([step, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    ((r[1] as u64) << 32) | r[0] as u64
}

/// The only parameter of both kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Logits.
    pub logits: DevPtr<f32>,
    /// Scratch.
    pub adjusted: DevPtr<f32>,
    /// Scratch: the largest key of each group.
    pub tops: DevPtr<u32>,
    /// Tokens of prompt and text, and forbidden ones.
    pub marks: DevPtr<u8>,
    /// What is added to logits, or null.
    pub bias: DevPtr<f32>,
    /// Scratch: the best [`rank`].
    pub best: DevPtr<u64>,
    /// What was asked for.
    pub params: DevPtr<SampleParams>,
    /// Where the sequence stands.
    pub state: DevPtr<StepState>,
    /// Picked tokens; may be host memory mapped into the device.
    pub out: DevPtr<u32>,
    /// Elements of `out`.
    pub out_len: u32,
    /// Number of logits.
    pub vocab: u32,
}

impl Args {
    /// The tensors of row `row` of a batch, given those of row 0: rows stand one behind the other.
    #[inline(always)]
    pub const fn of_row(&self, row: u32) -> Self {
        const fn past<T>(first: DevPtr<T>, count: u64) -> DevPtr<T> {
            DevPtr::from_addr(first.addr() + count * size_of::<T>() as u64)
        }
        let (row, vocab) = (row as u64, self.vocab as u64);
        Self {
            logits: past(self.logits, row * vocab),
            adjusted: past(self.adjusted, row * adjusted_len(self.vocab) as u64),
            tops: past(self.tops, row * groups(self.vocab) as u64),
            marks: past(self.marks, row * vocab),
            bias: if self.bias.is_null() { self.bias } else { past(self.bias, row * vocab) },
            best: past(self.best, row),
            params: past(self.params, row),
            state: past(self.state, row),
            out: past(self.out, row * self.out_len as u64),
            ..*self
        }
    }
}

/// The parameter of [`SampleAllow`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllowArgs {
    /// `[limit, vocab]`: marks; [`FORBIDDEN`] is written, the others stay.
    pub marks: DevPtr<u8>,
    /// `[limit]`: a text that rests goes on.
    pub state: DevPtr<StepState>,
    /// The row of each mask, `[masks]`; one from `limit` on is left out.
    pub rows: DevPtr<u32>,
    /// `[masks, words]`: bit `i` of word `w` is set where token `32 w + i` may be picked.
    pub allowed: DevPtr<u32>,
    /// Rows of the sampler.
    pub limit: u32,
    /// Tokens.
    pub vocab: u32,
    /// Words of a mask.
    pub words: u32,
}

/// Blocks of [`SampleAllow`] for `masks` masks.
pub const fn allow_grid(vocab: u32, masks: u32) -> [u32; 3] {
    [vocab.div_ceil(ALLOW_THREADS * ALLOW_WORDS), masks, 1]
}

/// Which tokens texts may pick next; grid [`allow_grid`].
pub enum SampleAllow {}

impl Kernel for SampleAllow {
    type Args = AllowArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("sample_allow", ALLOW_THREADS).with_min_blocks(4);
}

/// Penalty, temperature, best token; grid [`prepare_grid`].
pub enum SamplePrepare {}
/// Filters, draws, moves the sequence on; grid `[1, rows, 1]`.
pub enum SamplePick {}
/// The same by a cluster of blocks for each row; grid `[WIDE_BLOCKS, rows, 1]`. From sm_90.
pub enum SamplePickWide {}

impl Kernel for SamplePrepare {
    type Args = Args;
    const SPEC: LaunchSpec =
        LaunchSpec::new("sample_prepare", PREPARE_THREADS).with_smem(64).with_min_blocks(4);
}

impl Kernel for SamplePickWide {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("sample_pick_wide", PICK_THREADS)
        .with_min_sm(90)
        .with_smem(PICK_SMEM_BYTES)
        .with_min_blocks(1);

    fn cluster(_: &Args) -> u32 {
        WIDE_BLOCKS
    }
}

impl Kernel for SamplePick {
    type Args = Args;
    const SPEC: LaunchSpec =
        LaunchSpec::new("sample_pick", PICK_THREADS).with_smem(PICK_SMEM_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_floor(best: f32) {
        let floor = weight_floor(best);
        for below in (1..100).chain([1 << 20, 1 << 30]) {
            let x = num::order_value(floor.saturating_sub(below));
            assert!(num::order_key(x) >= floor || weight(x, best) == 0, "{x} {best}");
        }
        assert!(num::order_key(best) >= floor);
    }

    #[test]
    fn logits_below_the_floor_weigh_nothing() {
        let inf = f32::INFINITY;
        for best in [inf, -inf, f32::NAN, 0.0, -0.0, 22.0, -22.0, f32::MAX, f32::MIN] {
            check_floor(best);
        }
        let mut best = 1e-40f32;
        while best < 1e38 {
            best *= 1.37;
            check_floor(best);
            check_floor(-best);
        }
    }
}
