//! Several texts at once.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use bitnet_gpu::session::BatchEngine;

use crate::copy_text;
use crate::linear::hold;
use crate::logprobs::Logprobs;
use crate::session::{Generated, Options, Prompt, Sampling, params};
use crate::status::{Failure, Status, call};

/// `bitnet_batch`.
pub struct Batch(Mutex<BatchEngine>);

/// `bitnet_output`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Output {
    struct_bytes: usize,
    request: u64,
    text: *const c_char,
    text_bytes: usize,
    token: u32,
    finished: i32,
    generated: Generated,
    logprobs: *const Logprobs,
}

/// Called for each output of a step.
type OnOutput = Option<extern "C" fn(*mut c_void, *const Output)>;

/// A batch that a panic cannot have left half-way: its own errors make it consistent again.
///
/// # Safety
/// `batch` is null or open.
pub(crate) unsafe fn locked<'a>(
    batch: *const Batch,
) -> Result<MutexGuard<'a, BatchEngine>, Failure> {
    // SAFETY: by the caller.
    let Batch(engine) = unsafe { batch.as_ref() }.ok_or_else(|| Failure::null("batch"))?;
    Ok(hold(engine))
}

/// Loads a model for several texts.
///
/// # Safety
/// Texts end with a zero byte; `options` is null or a whole struct; `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_open(
    model: *const c_char,
    options: *const Options,
    out: *mut *mut Batch,
) -> Status {
    call(|| {
        let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
        // SAFETY: by the caller; no handle is left in it when this fails.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: by the caller.
        let builder = unsafe { Options::given(options)?.builder(model)? };
        let batch = Box::new(Batch(Mutex::new(builder.build_batch()?)));
        // SAFETY: by the caller.
        unsafe { out.write(Box::into_raw(batch)) };
        Ok(())
    })
}

/// Ends a batch, with its requests.
///
/// # Safety
/// `batch` is null, or came from [`bitnet_batch_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_free(batch: *mut Batch) {
    call(|| {
        if !batch.is_null() {
            // SAFETY: by the caller.
            drop(unsafe { Box::from_raw(batch) });
        }
        Ok(())
    });
}

/// One line about the devices.
///
/// # Safety
/// An open batch; a buffer of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_device(
    batch: *const Batch,
    out: *mut c_char,
    len: usize,
) -> Status {
    // SAFETY: by the caller.
    call(|| unsafe { copy_text(&locked(batch)?.device(), out, len) })
}

/// Adds a request, whose prompt runs in the steps that follow.
///
/// # Safety
/// An open batch; `prompt` has `prompt_len` bytes; `system` is null or ends with a zero byte; `sampling` is null or whole; `request`
/// is null or can hold a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_add(
    batch: *mut Batch,
    prompt: *const c_char,
    prompt_len: usize,
    chat: c_int,
    system: *const c_char,
    sampling: *const Sampling,
    request: *mut u64,
) -> Status {
    call(|| {
        let out = NonNull::new(request).ok_or_else(|| Failure::null("request"))?;
        // SAFETY: by the caller.
        let mut engine = unsafe { locked(batch)? };
        // SAFETY: by the caller.
        let params = unsafe { params(sampling, engine.config().vocab_size)? };
        // SAFETY: by the caller.
        let prompt = unsafe { Prompt::new((prompt, prompt_len), chat, system)? };
        let ids = match prompt {
            Prompt::Text(text) => engine.encode(text)?,
            Prompt::Chat(messages) => engine.encode_chat(&messages)?,
        };
        let added = match engine.add_request(&ids, &params) {
            // What has no place in an empty batch never has one.
            Err(error) if error.is_full() && !engine.is_empty() => {
                return Err(Failure::full(error.to_string()));
            }
            added => added?,
        };
        // SAFETY: by the caller.
        unsafe { out.write(added.into()) };
        Ok(())
    })
}

/// Takes a request out before its end, if it is there.
///
/// # Safety
/// An open batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_remove(batch: *mut Batch, request: u64) -> Status {
    call(|| {
        // SAFETY: by the caller.
        unsafe { locked(batch)? }.remove_request(request.into())?;
        Ok(())
    })
}

/// Requests under way.
///
/// # Safety
/// An open batch; `requests` is null or can hold a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_len(batch: *const Batch, requests: *mut usize) -> Status {
    call(|| {
        let out = NonNull::new(requests).ok_or_else(|| Failure::null("requests"))?;
        // SAFETY: by the caller.
        unsafe { out.write(locked(batch)?.len()) };
        Ok(())
    })
}

/// Gives requests their next tokens; one whose prompt has not run to its end, or whose grammar is still being followed, has none.
///
/// # Safety
/// An open batch; `on_output` takes `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_batch_step(
    batch: *mut Batch,
    on_output: OnOutput,
    user: *mut c_void,
) -> Status {
    call(|| {
        // The batch is free again when its outputs are handed out.
        // SAFETY: by the caller.
        let outputs = unsafe { locked(batch)? }.step()?;
        let Some(on_output) = on_output else { return Ok(()) };
        for output in &outputs {
            let generated = output.finished.as_ref().map(Generated::of);
            let told = output.logprobs.as_ref().map(Logprobs::of);
            let output = Output {
                struct_bytes: size_of::<Output>(),
                request: output.id.into(),
                text: output.text.as_ptr().cast(),
                text_bytes: output.text.len(),
                token: output.token,
                finished: generated.is_some().into(),
                generated: generated.unwrap_or(Generated::NONE),
                logprobs: told.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            };
            on_output(user, &output);
        }
        Ok(())
    })
}
