//! What is told of tokens, and the ids that are asked by.

use std::ffi::{c_char, c_int};
use std::ops::ControlFlow;
use std::ptr::NonNull;

use bitnet_gpu::session::{SessionError, TokenLogprobs};
use bitnet_gpu::text::{MAX_LOGPROBS, Tokenizer};

use crate::batch::Batch;
use crate::session::{Handle, known, sized};
use crate::status::{Failure, Status, call};
use crate::{batch, room, session, slice, utf8};

/// `BITNET_MAX_LOGPROBS`.
const MAX: usize = MAX_LOGPROBS as usize;

/// `bitnet_logprobs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Logprobs {
    struct_bytes: usize,
    logprob: f32,
    rank: u32,
    top: u32,
    top_ids: [u32; MAX],
    top_logprobs: [f32; MAX],
}

impl Logprobs {
    pub(crate) fn of(told: &TokenLogprobs) -> Self {
        let (mut top_ids, mut top_logprobs) = ([0; MAX], [0.0; MAX]);
        let mut top = 0;
        for ((id, logprob), given) in top_ids.iter_mut().zip(&mut top_logprobs).zip(&told.top) {
            (*id, *logprob) = *given;
            top += 1;
        }
        let TokenLogprobs { logprob, rank, .. } = *told;
        Self { struct_bytes: size_of::<Self>(), logprob, rank, top, top_ids, top_logprobs }
    }
}

/// What was told of token `index` of the last text of a session.
///
/// # Safety
/// An open session; `out` is null or begins with its size and can hold a struct of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_session_logprobs(
    session: *const Handle,
    index: usize,
    out: *mut Logprobs,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let held = unsafe { session::locked(session)? };
        // SAFETY: by the caller. It must say which version it is of.
        unsafe { sized("out", out.cast_const())? };
        let Some(told) = held.told.get(index) else {
            return Err(Failure::argument(format!(
                "index = {index}, and {} tokens of the last text were told; set logprobs in its bitnet_sampling",
                held.told.len()
            )));
        };
        // SAFETY: by the caller; not null, as was just found.
        unsafe { out.write(Logprobs::of(told)) };
        Ok(())
    })
}

/// Where ids go: as many as there is room for, and how many there are.
struct Ids {
    ids: *mut u32,
    room: usize,
    count: *mut usize,
}

impl Ids {
    /// Encodes `text`, with the BOS token of a prompt unless `bos` is 0.
    ///
    /// # Safety
    /// `text` is null or has so many bytes; `ids` is null or has room for so many; `count` is null or can hold a number.
    unsafe fn encode(
        self,
        tokenizer: Option<&Tokenizer>,
        text: (*const c_char, usize),
        bos: c_int,
    ) -> Result<(), Failure> {
        let Self { ids: out, room: most, count } = self;
        let count = NonNull::new(count).ok_or_else(|| Failure::null("count"))?;
        if most > 0 {
            room("ids", out.cast_const(), most)?;
        }
        // SAFETY: by the caller.
        let text = unsafe { utf8("text", text)? };
        let ids = tokenizer.ok_or(SessionError::NoTokenizer)?.encode(text, bos != 0)?;
        // SAFETY: by the caller; `ids` is new, so that nothing overlaps, and no more are copied than there is room for.
        unsafe {
            if most > 0 {
                std::ptr::copy_nonoverlapping(ids.as_ptr(), out, ids.len().min(most));
            }
            count.write(ids.len());
        }
        Ok(())
    }
}

/// The ids of a text.
///
/// # Safety
/// An open session; `text` has `text_len` bytes; `ids` is null or has room for `room`; `count` is null or can hold a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_session_encode(
    session: *const Handle,
    text: *const c_char,
    text_len: usize,
    bos: c_int,
    ids: *mut u32,
    room: usize,
    count: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let held = unsafe { session::locked(session)? };
        let (out, tokenizer) = (Ids { ids, room, count }, held.session.tokenizer());
        // SAFETY: by the caller.
        unsafe { out.encode(tokenizer, (text, text_len), bos) }
    })
}

/// As [`bitnet_session_encode`].
///
/// # Safety
/// As [`bitnet_session_encode`], with an open batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_encode(
    batch: *const Batch,
    text: *const c_char,
    text_len: usize,
    bos: c_int,
    ids: *mut u32,
    room: usize,
    count: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let engine = unsafe { batch::locked(batch)? };
        // SAFETY: by the caller.
        unsafe { Ids { ids, room, count }.encode(engine.tokenizer(), (text, text_len), bos) }
    })
}

/// Refuses lengths of texts that a context of `most` positions does not hold, and adds them up.
fn total(lengths: &[usize], most: usize) -> Result<usize, Failure> {
    let mut sum = 0_usize;
    for (at, &len) in lengths.iter().enumerate() {
        let refused = |why: &str| {
            Failure::argument(format!(
                "lengths[{at}] = {len}; {why}; 1 to {most} ids of each text are allowed"
            ))
        };
        if !(1..=most).contains(&len) {
            return Err(refused("the context has no place for it"));
        }
        sum =
            sum.checked_add(len).ok_or_else(|| refused("all together are more than memory has"))?;
    }
    Ok(sum)
}

/// Log probabilities of the ids of each text but the first.
///
/// # Safety
/// An open batch; `lengths` is null or has `texts` numbers, `ids` is null or has as many as they add up to, `logprobs` and `ranks` are null or
/// have room for as many less one of each text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_score(
    batch: *mut Batch,
    ids: *const u32,
    lengths: *const usize,
    texts: usize,
    logprobs: *mut f32,
    ranks: *mut u32,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let mut engine = unsafe { batch::locked(batch)? };
        // SAFETY: by the caller.
        let lengths = unsafe { slice("lengths", lengths, texts)? };
        let sum = total(lengths, engine.context())?;
        // SAFETY: by the caller.
        let mut rest = unsafe { slice("ids", ids, sum)? };
        known("ids", rest, engine.config().vocab_size)?;
        // No length is 0.
        let len = sum - texts;
        if len > 0 {
            room("logprobs", logprobs.cast_const(), len)?;
            if !ranks.is_null() {
                room("ranks", ranks.cast_const(), len)?;
            }
        }
        if !engine.is_empty() {
            let words =
                "requests are under way, whose outputs would be lost; step until they have ended";
            return Err(Failure::full(words));
        }
        let mut prompts = Vec::with_capacity(texts);
        for &length in lengths {
            let (text, behind) = rest.split_at(length);
            prompts.push(text.to_vec());
            rest = behind;
        }
        let told = engine.score(&prompts, 0, |_| ControlFlow::Continue(()))?;
        let found = told.iter().map(Vec::len);
        if !found.eq(lengths.iter().map(|length| length - 1)) {
            let found: usize = told.iter().map(Vec::len).sum();
            let words = format!("{found} of {len} tokens were told; try it again");
            return Err(Failure::failed(words));
        }
        for (at, of) in told.iter().flatten().enumerate() {
            // SAFETY: by the caller; `at` is below `len`, and neither is null unless it was found to be so.
            unsafe {
                logprobs.add(at).write(of.logprob);
                if !ranks.is_null() {
                    ranks.add(at).write(of.rank);
                }
            }
        }
        Ok(())
    })
}
