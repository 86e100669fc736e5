//! What a program may want to set before a model is loaded, for one text at a time or for several.

mod make;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::batch::BatchEngine;
use super::lookup::Lookup;
use super::{Grammars, LoadStats, Session, SessionError};
#[cfg(feature = "cuda")]
use crate::checkpoint::ModelConfig;
use crate::checkpoint::{Checkpoint, OpenOptions};
use crate::cpu::CpuBackend;
use crate::device_choice::{self, DeviceChoice};
use crate::model::{HeadKind, LoadProgress, Model};
use crate::ops::attention_paged::PageType;
use crate::ops::{Backend, Math, OpError, RowType, WeightLayout};
use crate::text::Tokenizer;
use crate::tune::{Tuning, TuningState};
use make::{Make, Many, One};

/// Positions of a context when none are asked for, unless the model takes fewer.
const DEFAULT_CONTEXT: usize = 4096;

/// What the KV cache keeps of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// bfloat16: half the memory, the default.
    #[default]
    Bf16,
    /// IEEE single precision.
    F32,
    /// MXINT8: a byte, and a byte for 32 of them; of a batch. Half the memory of bf16, and steps of many texts read half as much; keys and values are
    /// rounded to some 7 bits. Steps of heads of 128 elements are faster than over bf16 with [`SessionBuilder::attention`] on tensor cores, and slower without.
    Int8,
}

/// How the ternary weights lie on the device. The tokens are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// 2 bits a weight, unless 1.6 were measured to be faster for every matrix of the model ([`crate::tune`]).
    #[default]
    Auto,
    /// In this layout. 1.6 bits take a fifth less memory; steps then run operation by operation.
    In(WeightLayout),
}

/// How a step finds the next token. The tokens are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// By way of int8 on a GPU that has room for the copy when everything else is there, and half a GiB more; else by the
    /// stored table. Heads of less than 8 MiB as int8 gain nothing and stay as they are.
    #[default]
    Auto,
    /// In this way.
    By(HeadKind),
}

impl From<HeadKind> for Head {
    fn from(kind: HeadKind) -> Self {
        Self::By(kind)
    }
}

/// How far loading has come.
pub type Progress<'a> = &'a mut dyn FnMut(LoadProgress);

/// Settings of a [`Session`], each with a default.
#[derive(Clone, Debug, Default)]
pub struct SessionBuilder {
    model: Option<PathBuf>,
    devices: DeviceChoice,
    threads: Option<usize>,
    context: Option<usize>,
    kv: KvType,
    head: Head,
    max_batch: Option<usize>,
    prompt_share: Option<usize>,
    no_prefix_cache: bool,
    pages: Option<usize>,
    lookup: Lookup,
    attention: Math,
    prefill_rows: Option<NonZeroUsize>,
    pool_cap_bytes: Option<usize>,
    stream_priority: i32,
    profile: bool,
    no_mmap: bool,
    no_graph: bool,
    no_pdl: bool,
    tuning: Tuning,
    no_one_kernel: bool,
    weights: Weights,
}

impl SessionBuilder {
    /// A checkpoint folder, a `.safetensors` file or a `.gguf` file.
    #[must_use]
    pub fn model(mut self, path: impl Into<PathBuf>) -> Self {
        self.model = Some(path.into());
        self
    }

    /// Which device runs the model; by default the first GPU, or the CPU where there is none. A [`BatchEngine`] also
    /// takes several GPUs ([`DeviceChoice`]), each with a replica of the model; the other settings are of each of them.
    #[must_use]
    pub fn backend(mut self, backend: impl Into<DeviceChoice>) -> Self {
        self.devices = backend.into();
        self
    }

    /// Threads of the CPU backend; by default one per available core.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Positions of the context, prompt and text together; by default what the model takes, at
    /// most 4096.
    #[must_use]
    pub fn context(mut self, positions: usize) -> Self {
        self.context = Some(positions);
        self
    }

    /// Element type of the KV cache.
    #[must_use]
    pub fn kv(mut self, kv: KvType) -> Self {
        self.kv = kv;
        self
    }

    /// How a step finds the next token, by default [`Head::Auto`]: the same tokens either way; [`HeadKind::Int8`] is faster
    /// and takes more memory.
    #[must_use]
    pub fn head(mut self, head: impl Into<Head>) -> Self {
        self.head = head.into();
        self
    }

    /// How the ternary weights lie on the device.
    #[must_use]
    pub fn weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// How attention is summed: of a prompt, of a step of one text that runs as one kernel with all of the model (heads of 128 elements), and
    /// of a step of several texts that does not.
    /// [`Math::TensorCore`] is faster on GPUs from sm_80 and takes a bf16 cache; tokens may then differ from those of the exact default now
    /// and then, and those of a text with what else is in its batch.
    #[must_use]
    pub fn attention(mut self, math: Math) -> Self {
        self.attention = math;
        self
    }

    /// Most tokens of a prompt that run together. By default as many as take a twentieth of the memory of weights and cache, more with the int8 copy of the
    /// head ([`Model::prefill_rows`]); 768 on the CPU. More are faster and take more memory; the bits are the same.
    #[must_use]
    pub fn prefill_rows(mut self, rows: NonZeroUsize) -> Self {
        self.prefill_rows = Some(rows);
        self
    }

    /// Most bytes of device memory to take, on each device.
    #[must_use]
    pub fn pool_cap(mut self, bytes: usize) -> Self {
        self.pool_cap_bytes = Some(bytes);
        self
    }

    /// Priority of the stream that the steps run on; smaller is sooner, 0 the default. Values beyond
    /// what the device has are clamped to it. The CPU backend has no streams.
    #[must_use]
    pub fn stream_priority(mut self, priority: i32) -> Self {
        self.stream_priority = priority;
        self
    }

    /// Times every kernel (see [`Session::profile`]); steps are then launched one by one.
    #[must_use]
    pub fn profile(mut self, profile: bool) -> Self {
        self.profile = profile;
        self
    }

    /// Whether files are mapped (the default) or read. A mapped file must not change.
    #[must_use]
    pub fn mmap(mut self, mmap: bool) -> Self {
        self.no_mmap = !mmap;
        self
    }

    /// Whether decode steps are recorded as a graph and replayed, where the device can.
    #[must_use]
    pub fn graph(mut self, graph: bool) -> Self {
        self.no_graph = !graph;
        self
    }

    /// Whether kernels may start before their predecessor has ended (programmatic dependent
    /// launch), where the device can.
    #[must_use]
    pub fn pdl(mut self, pdl: bool) -> Self {
        self.no_pdl = !pdl;
        self
    }

    /// Which measured choices of kernel variants are in force, on a GPU; by default what is shipped for it
    /// and what `bitnet tune` has written. They change times and never results.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Requests that a [`BatchEngine`] runs at once, on each device: 1 to 1,024, by default 32.
    #[must_use]
    pub fn max_batch(mut self, requests: usize) -> Self {
        self.max_batch = Some(requests);
        self
    }

    /// Tokens of prompts that a [`BatchEngine`] runs beside a step, by default 768, so that a long prompt does not hold up the texts that
    /// run: the fewer, the sooner their next tokens come, and the later its own first one. 64 where it is less. Those beyond
    /// [`SessionBuilder::prefill_rows`] run in front of it.
    #[must_use]
    pub fn prompt_share(mut self, tokens: usize) -> Self {
        self.prompt_share = Some(tokens);
        self
    }

    /// Whether a request of a [`BatchEngine`] whose prompt begins like a text that is or was there has the keys and values of that beginning without computing them (the default),
    /// in whole pages of [`super::PAGE_SIZE`] positions, for as long as nobody else needs the pages: the next turn of a conversation runs little
    /// more than what is new in it. The tokens are the same; who can time first tokens can find out what others have asked.
    /// [`super::GenerateStats::cached_tokens`] counts them. Each device remembers its own.
    #[must_use]
    pub fn prefix_cache(mut self, share: bool) -> Self {
        self.no_prefix_cache = !share;
        self
    }

    /// Up to so many tokens of a text are guessed at once, by what stood behind its last ones before, and checked together (prompt lookup decoding): 1 to 255,
    /// [`Lookup::Auto`], or 0, the default, for none. A text that repeats its prompt or itself comes several tokens at a time, any other about as fast as without. The tokens are the
    /// same, but with [`SessionBuilder::attention`] on tensor cores, where they depend on the rows of a step. [`super::GenerateStats`] counts them.
    /// A [`Session`] with it keeps its cache in pages, as a batch does, and reuses that of a prompt's beginning in whole pages; it takes no
    /// [`Session::logits`].
    #[must_use]
    pub fn lookup(mut self, tokens: impl Into<Lookup>) -> Self {
        self.lookup = tokens.into();
        self
    }

    /// Pages of [`super::PAGE_SIZE`] positions that the requests of a [`BatchEngine`] share; by default enough
    /// for as many contexts as there are requests. Each device has as many.
    #[must_use]
    pub fn pages(mut self, pages: usize) -> Self {
        self.pages = Some(pages);
        self
    }

    /// Whether a decode step, of one sequence or of up to sixteen of a batch, runs all layers in one kernel, where the device and the
    /// sizes of the model allow it. The tokens are the same.
    #[must_use]
    pub fn one_kernel(mut self, one_kernel: bool) -> Self {
        self.no_one_kernel = !one_kernel;
        self
    }

    /// Loads the model.
    ///
    /// # Errors
    /// A file that cannot be read or is not a BitNet model, a device that cannot be used, several devices, too
    /// little memory.
    pub fn build(self) -> Result<Session, SessionError> {
        self.build_with(&mut |_| {})
    }

    /// Loads the model and reports how far it has come.
    ///
    /// # Errors
    /// As [`SessionBuilder::build`].
    pub fn build_with(self, progress: Progress<'_>) -> Result<Session, SessionError> {
        let (engine, tokenizer, load) = self.open(One, progress)?;
        let tokenizer = tokenizer.map(Arc::new);
        let grammars = Grammars::new(tokenizer.clone(), engine.config().vocab_size);
        Ok(Session { engine, tokenizer, template: OnceLock::new(), grammars, load })
    }

    /// Loads the model for several texts at once. The checkpoint is read and decoded once, for however many devices.
    ///
    /// # Errors
    /// As [`SessionBuilder::build`], but for several devices; kernel times of several devices.
    pub fn build_batch(self) -> Result<BatchEngine, SessionError> {
        self.build_batch_with(&mut |_| {})
    }

    /// Loads the model for several texts at once, and reports how far it has come.
    ///
    /// # Errors
    /// As [`SessionBuilder::build_batch`].
    pub fn build_batch_with(self, progress: Progress<'_>) -> Result<BatchEngine, SessionError> {
        let (engine, tokenizer, load) = self.open(Many, progress)?;
        Ok(BatchEngine::new(engine, tokenizer, load))
    }

    /// Opens checkpoint and device, and makes what runs the model.
    fn open<M: Make>(
        &self,
        make: M,
        progress: Progress<'_>,
    ) -> Result<(M::Engine, Option<Tokenizer>, LoadStats), SessionError> {
        let started = Instant::now();
        let path = self.model.clone().ok_or(SessionError::NoModel)?;
        let checkpoint = Checkpoint::open(&path, &OpenOptions::default().mmap(!self.no_mmap))?;
        let config = checkpoint.config();
        let context = self.context.unwrap_or(config.max_positions.min(DEFAULT_CONTEXT));
        if context > config.max_positions {
            let allowed = config.max_positions;
            return Err(SessionError::ContextTooLong { asked: context, allowed });
        }
        let tokenizer = Tokenizer::of_checkpoint(&checkpoint)?;
        let device_started = Instant::now();
        let devices = match M::TAKES_SEVERAL {
            true => self.devices.resolve()?,
            false => vec![self.devices.one()?.resolve()?],
        };
        if self.profile && devices.len() > 1 {
            return Err(SessionError::ProfileOfSeveral { devices: self.devices.to_string() });
        }
        #[cfg_attr(not(feature = "cuda"), expect(unused_mut))]
        let mut tuning = TuningState::default();
        let ((engine, head), device_seconds) = match devices[0] {
            device_choice::Backend::Cpu => {
                let backend = CpuBackend::new(self.threads)?;
                let seconds = device_started.elapsed().as_secs_f64();
                let backends = vec![(backend, WeightLayout::Bits2)];
                (self.load(make, &devices, backends, &checkpoint, context, progress)?, seconds)
            }
            #[cfg(feature = "cuda")]
            device_choice::Backend::Cuda(_) => {
                let (backends, state) = self.open_gpus(&devices, config)?;
                tuning = state;
                let seconds = device_started.elapsed().as_secs_f64();
                (self.load(make, &devices, backends, &checkpoint, context, progress)?, seconds)
            }
            #[cfg(not(feature = "cuda"))]
            device_choice::Backend::Cuda(ordinal) => {
                let source = crate::driver::DeviceError::NotBuilt;
                return Err(device_choice::ChoiceError::Cuda { ordinal, source }.into());
            }
        };
        let load = LoadStats {
            seconds: started.elapsed().as_secs_f64(),
            file_bytes: checkpoint.file_bytes(),
            device_seconds,
            tuning,
            head,
        };
        Ok((engine, tokenizer, load))
    }

    /// Opens each of `devices`, with the layout that was measured to be the best for a model of `config`, and says what
    /// was measured.
    #[cfg(feature = "cuda")]
    fn open_gpus(
        &self,
        devices: &[device_choice::Backend],
        config: &ModelConfig,
    ) -> Result<(Vec<(crate::ops::CudaBackend, WeightLayout)>, TuningState), SessionError> {
        let open = |device: device_choice::Backend| {
            let device_choice::Backend::Cuda(ordinal) = device else {
                return Err(SessionError::NoDeviceLeft { devices: device.to_string() });
            };
            let mut backend = crate::ops::CudaBackend::open(crate::driver::CudaOptions {
                ordinal,
                pool_cap_bytes: self.pool_cap_bytes,
                priority: self.stream_priority,
                profile: self.profile,
                pdl: !self.no_pdl,
                ..Default::default()
            })?;
            let tuning = crate::tune::apply(&mut backend, &self.tuning)?;
            let measured = crate::tune::layout(&backend, config);
            Ok(((backend, measured), tuning))
        };
        let open = |device| open(device).map_err(|error| self.on(devices, device, error));
        // The first one compiles the kernels, if they are not in the driver's cache; the others find them there.
        let mut opened = vec![open(devices[0])?];
        let others = std::thread::scope(|scope| {
            let others = devices[1..].iter().map(|&device| scope.spawn(move || open(device)));
            let others: Vec<_> = others.collect();
            let ended = others.into_iter().map(std::thread::ScopedJoinHandle::join);
            let ended = ended.map(|end| end.unwrap_or_else(|p| std::panic::resume_unwind(p)));
            ended.collect::<Result<Vec<_>, _>>()
        });
        opened.extend(others?);
        let (backends, states): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        Ok((backends, TuningState::of_all(states)))
    }

    /// An error that names `device`, where there are several.
    fn on(
        &self,
        devices: &[device_choice::Backend],
        device: device_choice::Backend,
        error: SessionError,
    ) -> SessionError {
        match devices.len() {
            1 => error,
            _ => SessionError::OnDevice { device: device.to_string(), source: Box::new(error) },
        }
    }

    fn load<M: Make, B: Backend>(
        &self,
        make: M,
        devices: &[device_choice::Backend],
        backends: Vec<(B, WeightLayout)>,
        checkpoint: &Checkpoint,
        context: usize,
        progress: Progress<'_>,
    ) -> Result<(M::Engine, HeadKind), SessionError> {
        let layout = |measured| match self.weights {
            Weights::Auto => measured,
            Weights::In(layout) => layout,
        };
        let backends = backends.into_iter().map(|(b, measured)| (b, layout(measured))).collect();
        let models = Model::load_each(backends, checkpoint, progress)?;
        let mut head = HeadKind::Int8;
        let made = models.into_iter().zip(devices).map(|(model, &device)| {
            let made = make.one(model.with_attention(self.attention), self, context);
            let (made, kind) = made.map_err(|error| self.on(devices, device, error))?;
            if kind == HeadKind::Stored {
                head = kind;
            }
            Ok((device.to_string(), made))
        });
        let made = made.collect::<Result<_, SessionError>>()?;
        Ok((make.all(made)?, head))
    }

    /// `model` with the head that is asked for, and what `make` makes for it.
    fn with_head<B: Backend, T>(
        &self,
        model: Model<B>,
        make: impl Fn(&Model<B>) -> Result<T, OpError>,
    ) -> Result<(Model<B>, T), OpError> {
        let kind = match self.head {
            Head::By(kind) => kind,
            Head::Auto => {
                // What everything else takes is known when it is there. It is made for one kind of head.
                let made = make(&model)?;
                if !model.int8_pays()? {
                    return Ok((model, made));
                }
                HeadKind::Int8
            }
        };
        let model = model.with_head(kind)?;
        let made = make(&model)?;
        Ok((model, made))
    }

    /// Of the pages of a batch.
    fn page_type(&self) -> PageType {
        match self.kv {
            KvType::Bf16 => RowType::Bf16.into(),
            KvType::F32 => RowType::F32.into(),
            KvType::Int8 => PageType::Int8,
        }
    }

    /// Of the cache of one sequence.
    ///
    /// # Errors
    /// [`KvType::Int8`].
    fn kv_type(&self) -> Result<RowType, OpError> {
        match self.page_type() {
            PageType::Float(element) => Ok(element),
            other => {
                let allowed = "a cache of one text holds bf16 or f32; run a batch for 8 bits";
                let (what, found) = ("bits of a cache", other.bits());
                Err(OpError::Dimension { op: "session", what, found, allowed })
            }
        }
    }

    /// How many tokens of a prompt run together, beside a cache of so many pages.
    fn chunk<B: Backend>(&self, model: &Model<B>, context: usize, pages: usize) -> usize {
        let (heads, layers) = (model.heads(), model.config().num_layers);
        let page = 2 * layers * heads.kv_heads * self.page_type().part_bytes(heads.head_dim);
        let rows = self.prefill_rows.map(NonZeroUsize::get);
        rows.unwrap_or_else(|| model.prefill_rows(pages.saturating_mul(page))).min(context)
    }

    /// Whether steps are recorded.
    fn records(&self) -> bool {
        !self.no_graph && !self.profile
    }
}
