//! A model that continues prompts.

use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use bitnet_gpu::device_choice::DeviceChoice;
use bitnet_gpu::session::{
    Finish, Head, HeadKind, KvType, Session, SessionBuilder, TokenLogprobs, WeightLayout, Weights,
};
use bitnet_gpu::text::{Grammar, MAX_BIASES, MAX_LOGPROBS, Message, SamplingParams};

use crate::options::{self, defaults};
use crate::status::{Failure, Status, call};
use crate::{copy_text, slice, text, utf8};

/// `bitnet_session`.
pub struct Handle(Mutex<Held>);

/// What a handle has.
pub(crate) struct Held {
    pub(crate) session: Session,
    /// What was told of the tokens of the last text.
    pub(crate) told: Vec<TokenLogprobs>,
}

/// `bitnet_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    struct_bytes: usize,
    device: *const c_char,
    context: usize,
    threads: usize,
    pool_cap_bytes: usize,
    head: i32,
    attention: i32,
    kv: i32,
    weights: i32,
    max_batch: usize,
    pages: usize,
    prompt_share: usize,
    lookup: usize,
    no_prefix_cache: i32,
}

/// `bitnet_sampling`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sampling {
    struct_bytes: usize,
    seed: u64,
    max_tokens: usize,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    top_k: u32,
    ignore_eos: i32,
    stop: *const c_char,
    grammar: *const c_char,
    grammar_kind: i32,
    presence_penalty: f32,
    frequency_penalty: f32,
    bias_ids: *const u32,
    bias: *const f32,
    biases: usize,
    logprobs: i32,
}

/// `bitnet_generated`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Generated {
    struct_bytes: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
    prefill_seconds: f64,
    decode_seconds: f64,
    finish: i32,
}

/// Called for each token; another value than 0 ends the text.
type OnText = Option<extern "C" fn(*mut c_void, u32, *const c_char, usize) -> c_int>;

/// The struct behind `given`, which must begin with its own size.
///
/// # Safety
/// `given` is null or points to the words that its first one counts.
pub(crate) unsafe fn sized<T: Copy>(what: &'static str, given: *const T) -> Result<T, Failure> {
    let given = NonNull::new(given.cast_mut()).ok_or_else(|| Failure::null(what))?;
    // SAFETY: every struct of the interface begins with a `size_t`.
    let bytes = unsafe { given.cast::<usize>().read() };
    if bytes != size_of::<T>() {
        return Err(Failure::argument(format!(
            "{what} says that it has {bytes} bytes, and here it has {}; \
             fill it with its _default function, or set struct_bytes to its sizeof, and use the header of this version ({})",
            size_of::<T>(),
            env!("CARGO_PKG_VERSION")
        )));
    }
    // SAFETY: so many bytes are there, by the caller.
    Ok(unsafe { given.read() })
}

defaults!(Options, bitnet_options_default, {
    device: std::ptr::null(),
    context: 0,
    threads: 0,
    pool_cap_bytes: 0,
    head: 0,
    attention: 0,
    kv: 0,
    weights: 0,
    max_batch: 0,
    pages: 0,
    prompt_share: 0,
    lookup: 0,
    no_prefix_cache: 0,
});

impl Options {
    /// What loads `model` so.
    ///
    /// # Safety
    /// The texts end with a zero byte.
    pub(crate) unsafe fn builder(&self, model: *const c_char) -> Result<SessionBuilder, Failure> {
        // SAFETY: by the caller.
        let mut builder = Session::builder().model(unsafe { text("model", model)? });
        if !self.device.is_null() {
            // SAFETY: by the caller.
            let device = unsafe { text("device", self.device)? };
            let choice: DeviceChoice =
                device.parse().map_err(|error| Failure::argument(format!("{error}")))?;
            builder = builder.backend(choice);
        }
        if self.context > 0 {
            builder = builder.context(self.context);
        }
        if self.threads > 0 {
            builder = builder.threads(self.threads);
        }
        if self.pool_cap_bytes > 0 {
            builder = builder.pool_cap(self.pool_cap_bytes);
        }
        if self.max_batch > 0 {
            builder = builder.max_batch(self.max_batch);
        }
        if self.pages > 0 {
            builder = builder.pages(self.pages);
        }
        if self.prompt_share > 0 {
            builder = builder.prompt_share(self.prompt_share);
        }
        let heads = [Head::Auto, Head::By(HeadKind::Stored), Head::By(HeadKind::Int8)];
        let kinds = [KvType::Bf16, KvType::F32, KvType::Int8];
        let layouts =
            [Weights::Auto, Weights::In(WeightLayout::Bits2), Weights::In(WeightLayout::Trits)];
        Ok(builder
            .prefix_cache(self.no_prefix_cache == 0)
            .lookup(self.lookup)
            .head(nth("head", heads, self.head)?)
            .attention(options::math(self.attention)?)
            .kv(nth("kv", kinds, self.kv)?)
            .weights(nth("weights", layouts, self.weights)?))
    }
}

/// What a number of `bitnet.h` stands for.
fn nth<T>(what: &str, all: impl IntoIterator<Item = T>, found: i32) -> Result<T, Failure> {
    let mut all = all.into_iter();
    let none = || Failure::argument(format!("{what} = {found} is no number of its enum"));
    usize::try_from(found).ok().and_then(|at| all.nth(at)).ok_or_else(none)
}

/// Fills `out` with the defaults.
///
/// # Safety
/// `out` is null or can hold one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_sampling_default(out: *mut Sampling) -> Status {
    call(|| {
        let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
        let params = SamplingParams::default();
        let sampling = Sampling {
            struct_bytes: size_of::<Sampling>(),
            seed: params.seed,
            max_tokens: params.max_tokens,
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition_penalty: params.repetition_penalty,
            top_k: params.top_k,
            ignore_eos: 0,
            stop: std::ptr::null(),
            grammar: std::ptr::null(),
            grammar_kind: 0,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            bias_ids: std::ptr::null(),
            bias: std::ptr::null(),
            biases: 0,
            logprobs: -1,
        };
        // SAFETY: by the caller.
        unsafe { out.write(sampling) };
        Ok(())
    })
}

/// Loads a model.
///
/// # Safety
/// Texts end with a zero byte; `options` is null or a whole struct; `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_session_open(
    model: *const c_char,
    options: *const Options,
    out: *mut *mut Handle,
) -> Status {
    call(|| {
        let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
        // SAFETY: by the caller; no handle is left in it when this fails.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: by the caller.
        let builder = unsafe { Options::given(options)?.builder(model)? };
        let held = Held { session: builder.build()?, told: Vec::new() };
        let handle = Box::new(Handle(Mutex::new(held)));
        // SAFETY: by the caller.
        unsafe { out.write(Box::into_raw(handle)) };
        Ok(())
    })
}

/// Ends a session.
///
/// # Safety
/// `session` is null, or came from [`bitnet_session_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_session_free(session: *mut Handle) {
    call(|| {
        if !session.is_null() {
            // SAFETY: by the caller.
            drop(unsafe { Box::from_raw(session) });
        }
        Ok(())
    });
}

/// A session that a panic cannot have left half-way: its own errors make it consistent again.
///
/// # Safety
/// `session` is null or an open session.
pub(crate) unsafe fn locked<'a>(
    session: *const Handle,
) -> Result<std::sync::MutexGuard<'a, Held>, Failure> {
    // SAFETY: by the caller.
    let session = unsafe { session.as_ref() }.ok_or_else(|| Failure::null("session"))?;
    Ok(session.0.lock().unwrap_or_else(PoisonError::into_inner))
}

/// One line about the device.
///
/// # Safety
/// An open session; a buffer of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_session_device(
    session: *const Handle,
    out: *mut c_char,
    len: usize,
) -> Status {
    // SAFETY: by the caller.
    call(|| unsafe { copy_text(&locked(session)?.session.device(), out, len) })
}

/// Continues a prompt, or answers it as one turn of a conversation.
///
/// # Safety
/// An open session; `prompt` has `prompt_len` bytes; `system` is null or ends with a zero byte; structs are null or whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_session_generate(
    session: *mut Handle,
    prompt: *const c_char,
    prompt_len: usize,
    chat: c_int,
    system: *const c_char,
    sampling: *const Sampling,
    on_text: OnText,
    user: *mut c_void,
    out: *mut Generated,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let mut held = unsafe { locked(session)? };
        let Held { session, told } = &mut *held;
        // SAFETY: by the caller.
        let params = unsafe { params(sampling, session.config().vocab_size)? };
        let result = NonNull::new(out);
        if !out.is_null() {
            // SAFETY: by the caller. It must say which version it is of.
            unsafe { sized("out", out.cast_const())? };
        }
        // SAFETY: by the caller.
        let prompt = unsafe { Prompt::new((prompt, prompt_len), chat, system)? };
        let ids = match prompt {
            Prompt::Text(text) => session.encode(text)?,
            Prompt::Chat(messages) => session.encode_chat(&messages)?,
        };
        told.clear();
        let made = session.generate(&ids, &params, |piece| {
            let Some(on_text) = on_text else { return ControlFlow::Continue(()) };
            match on_text(user, piece.token, piece.text.as_ptr().cast(), piece.text.len()) {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        })?;
        if let Some(result) = result {
            // SAFETY: by the caller.
            unsafe { result.write(Generated::of(&made)) };
        }
        *told = made.logprobs;
        Ok(())
    })
}

impl Generated {
    /// Of a text that goes on.
    pub(crate) const NONE: Self = Self {
        struct_bytes: size_of::<Self>(),
        prompt_tokens: 0,
        cached_tokens: 0,
        generated_tokens: 0,
        drafted_tokens: 0,
        accepted_tokens: 0,
        prefill_seconds: 0.0,
        decode_seconds: 0.0,
        finish: 0,
    };

    pub(crate) fn of(made: &bitnet_gpu::session::Generated) -> Self {
        Self {
            struct_bytes: size_of::<Self>(),
            prompt_tokens: made.stats.prompt_tokens,
            cached_tokens: made.stats.cached_tokens,
            generated_tokens: made.stats.generated_tokens,
            drafted_tokens: made.stats.drafted_tokens,
            accepted_tokens: made.stats.accepted_tokens,
            prefill_seconds: made.stats.prefill_seconds,
            decode_seconds: made.stats.decode_seconds,
            finish: match made.finish {
                Finish::StopToken => 0,
                Finish::StopString => 1,
                Finish::MaxTokens => 2,
                Finish::ContextFull => 3,
                Finish::Cancelled => 4,
                Finish::Grammar => 5,
                Finish::GrammarLimit => 6,
            },
        }
    }
}

/// What a text is to begin with.
pub(crate) enum Prompt<'a> {
    Text(&'a str),
    Chat(Vec<Message>),
}

impl<'a> Prompt<'a> {
    /// # Safety
    /// `prompt` has so many bytes, and lives for `'a`; `system` is null or ends with a zero byte.
    pub(crate) unsafe fn new(
        prompt: (*const c_char, usize),
        chat: c_int,
        system: *const c_char,
    ) -> Result<Self, Failure> {
        // SAFETY: by the caller.
        let prompt = unsafe { utf8("prompt", prompt)? };
        match chat {
            0 if system.is_null() => Ok(Self::Text(prompt)),
            0 => Err(Failure::argument("a system text was given, and chat is 0")),
            _ => {
                let mut messages = Vec::new();
                if !system.is_null() {
                    // SAFETY: by the caller.
                    messages.push(Message::new("system", unsafe { text("system", system)? }));
                }
                messages.push(Message::new("user", prompt));
                Ok(Self::Chat(messages))
            }
        }
    }
}

impl Sampling {
    /// What is added to the logits of a model with `vocab` tokens.
    ///
    /// # Safety
    /// The lists are null or as long as is said.
    unsafe fn logit_bias(&self, vocab: usize) -> Result<Vec<(u32, f32)>, Failure> {
        let len = self.biases;
        if len > MAX_BIASES {
            let words = format!("biases = {len}; at most {MAX_BIASES} are allowed");
            return Err(Failure::argument(words));
        }
        // SAFETY: by the caller.
        let (ids, bias) =
            unsafe { (slice("bias_ids", self.bias_ids, len)?, slice("bias", self.bias, len)?) };
        known("bias_ids", ids, vocab)?;
        Ok(ids.iter().copied().zip(bias.iter().copied()).collect())
    }
}

/// Refuses ids that are none of a model's `vocab` tokens.
pub(crate) fn known(what: &str, ids: &[u32], vocab: usize) -> Result<(), Failure> {
    match ids.iter().position(|&id| id as usize >= vocab) {
        None => Ok(()),
        Some(at) => {
            let id = ids[at];
            let words = format!(
                "{what}[{at}] = {id}; the model has tokens 0 to {}",
                vocab.saturating_sub(1)
            );
            Err(Failure::argument(words))
        }
    }
}

/// The library's parameters, which are in range, for a model with `vocab` tokens.
///
/// # Safety
/// `sampling` is null or a whole struct.
pub(crate) unsafe fn params(
    sampling: *const Sampling,
    vocab: usize,
) -> Result<SamplingParams, Failure> {
    if sampling.is_null() {
        return Ok(SamplingParams::default());
    }
    // SAFETY: by the caller.
    let given = unsafe { sized("sampling", sampling)? };
    let stop = if given.stop.is_null() {
        Vec::new()
    } else {
        // SAFETY: by the caller.
        vec![unsafe { text("stop", given.stop)? }.to_owned()]
    };
    let grammar = match (given.grammar_kind, given.grammar.is_null()) {
        (0, true) => None,
        (0, false) => return Err(Failure::argument("a grammar was given, and grammar_kind is 0")),
        (_, true) => return Err(Failure::null("grammar")),
        (kind, false) => {
            // SAFETY: by the caller.
            let text = unsafe { text("grammar", given.grammar)? };
            Some(match kind {
                1 => Grammar::JsonSchema(serde_json::from_str(text).map_err(|error| {
                    Failure::argument(format!("the JSON schema is no JSON: {error}"))
                })?),
                2 => Grammar::Regex(text.to_owned()),
                3 => Grammar::Lark(text.to_owned()),
                other => {
                    let words = format!("grammar_kind = {other}; see bitnet_grammar");
                    return Err(Failure::argument(words));
                }
            })
        }
    };
    let logprobs = match given.logprobs {
        -1 => None,
        top => Some(u32::try_from(top).map_err(|_| {
            let words = format!("logprobs = {top}; -1, for none, to {MAX_LOGPROBS} are allowed");
            Failure::argument(words)
        })?),
    };
    let params = SamplingParams {
        seed: given.seed,
        max_tokens: given.max_tokens,
        temperature: given.temperature,
        top_p: given.top_p,
        min_p: given.min_p,
        repetition_penalty: given.repetition_penalty,
        presence_penalty: given.presence_penalty,
        frequency_penalty: given.frequency_penalty,
        // SAFETY: by the caller.
        logit_bias: unsafe { given.logit_bias(vocab)? },
        logprobs,
        top_k: given.top_k,
        ignore_eos: given.ignore_eos != 0,
        stop,
        grammar,
        ..SamplingParams::default()
    };
    params.validate().map_err(|error| Failure::argument(error.to_string()))?;
    Ok(params)
}
