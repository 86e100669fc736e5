//! What a program may want to set before a model is loaded.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;

use super::engine::{Engine, Runner};
use super::{LoadStats, Session, SessionError};
use crate::checkpoint::{Checkpoint, OpenOptions};

use crate::cpu::CpuBackend;
use crate::device_choice::{self, BackendChoice};
use crate::model::{HeadKind, LoadProgress, Model, Sequence, SequenceOptions};
use crate::ops::{Backend, RowType};
use crate::text::Tokenizer;

/// Rows of the largest prefill step.
const PREFILL_CHUNK: usize = 256;
/// Positions of a context when none are asked for, unless the model takes fewer.
const DEFAULT_CONTEXT: usize = 4096;

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// bfloat16: half the memory, the default.
    #[default]
    Bf16,
    /// IEEE single precision.
    F32,
}

/// How far loading has come.
pub type Progress<'a> = &'a mut dyn FnMut(LoadProgress);

/// Settings of a [`Session`], each with a default.
#[derive(Clone, Debug, Default)]
pub struct SessionBuilder {
    model: Option<PathBuf>,
    backend: BackendChoice,
    threads: Option<usize>,
    context: Option<usize>,
    kv: KvType,
    head: HeadKind,
    pool_cap_bytes: Option<usize>,
    stream_priority: i32,
    profile: bool,
    no_mmap: bool,
    no_graph: bool,
    no_pdl: bool,
    no_one_kernel: bool,
}

impl SessionBuilder {
    /// A checkpoint folder, a `.safetensors` file or a `.gguf` file.
    #[must_use]
    pub fn model(mut self, path: impl Into<PathBuf>) -> Self {
        self.model = Some(path.into());
        self
    }

    /// Which device runs the model; by default the first GPU, or the CPU where there is none.
    #[must_use]
    pub fn backend(mut self, backend: BackendChoice) -> Self {
        self.backend = backend;
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

    /// How a step finds the next token: the same tokens either way; [`HeadKind::Int8`] is faster and
    /// takes more memory.
    #[must_use]
    pub fn head(mut self, head: HeadKind) -> Self {
        self.head = head;
        self
    }

    /// Most bytes of device memory to take.
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

    /// Whether a decode step runs all layers in one kernel, where the device and the sizes of the model allow
    /// it. The tokens are the same.
    #[must_use]
    pub fn one_kernel(mut self, one_kernel: bool) -> Self {
        self.no_one_kernel = !one_kernel;
        self
    }

    /// Loads the model.
    ///
    /// # Errors
    /// A file that cannot be read or is not a BitNet model, a device that cannot be used, too
    /// little memory.
    pub fn build(self) -> Result<Session, SessionError> {
        self.build_with(&mut |_| {})
    }

    /// Loads the model and reports how far it has come.
    ///
    /// # Errors
    /// As [`SessionBuilder::build`].
    pub fn build_with(self, progress: Progress<'_>) -> Result<Session, SessionError> {
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
        let resolved = self.backend.resolve()?;
        let (engine, device_seconds) = match resolved {
            device_choice::Backend::Cpu => {
                let backend = CpuBackend::new(self.threads)?;
                let seconds = device_started.elapsed().as_secs_f64();
                (self.engine(backend, &checkpoint, context, progress)?, seconds)
            }
            #[cfg(feature = "cuda")]
            device_choice::Backend::Cuda(ordinal) => {
                let backend = crate::ops::CudaBackend::open(crate::driver::CudaOptions {
                    ordinal,
                    pool_cap_bytes: self.pool_cap_bytes,
                    priority: self.stream_priority,
                    profile: self.profile,
                    pdl: !self.no_pdl,
                    ..Default::default()
                })?;
                let seconds = device_started.elapsed().as_secs_f64();
                (self.engine(backend, &checkpoint, context, progress)?, seconds)
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
        };
        Ok(Session { engine, tokenizer, template: OnceLock::new(), load })
    }

    fn engine<B: Backend>(
        &self,
        backend: B,
        checkpoint: &Checkpoint,
        context: usize,
        progress: Progress<'_>,
    ) -> Result<Box<dyn Engine>, SessionError> {
        let model = Model::load(backend, checkpoint, progress)?.with_head(self.head)?;
        let kv = match self.kv {
            KvType::Bf16 => RowType::Bf16,
            KvType::F32 => RowType::F32,
        };
        let options = SequenceOptions {
            capacity: context,
            kv,
            chunk: PREFILL_CHUNK.min(context),
            one_kernel: !self.no_one_kernel,
        };
        let sequence = Sequence::new(&model, options)?;
        model.backend().synchronize()?;
        Ok(Box::new(Runner::new(model, sequence, !self.no_graph && !self.profile)))
    }
}
