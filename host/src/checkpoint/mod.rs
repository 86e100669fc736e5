//! Checkpoints: opened, checked as a whole, then read slot by slot.
//!
//! [`Checkpoint::open`] takes a Hugging Face folder (one or several `.safetensors`), a `.safetensors`
//! file with `config.json` beside it, or a `.gguf` file. By the time it returns, the configuration is
//! validated, every tensor that it asks for is present with the right shape and a readable type, no
//! unknown tensor is left, and nothing has been allocated by a declared size. Then
//! [`Checkpoint::linear`], [`Checkpoint::norm`] and [`Checkpoint::dense`] stream the weights, in one
//! form whatever the file holds: ternaries in the device layout with the dequantisation multiplier g,
//! gains in f32, dense rows in their own type. Reading never holds more than a piece of a tensor.

mod bytes;
mod config;
mod convert;
mod dense;
mod error;
mod gguf;
mod hf;
mod inspect;
mod resolve;
mod rows;
mod safetensors;
mod slots;
pub mod synth;
mod tensor;
mod write;

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use self::{bytes::FileBytes, resolve::Resolved, slots::Names};
pub use self::{
    config::{Activation, LinearClass, MAX_HEAD_DIM, MAX_LAYERS, MAX_POSITIONS, ModelConfig},
    convert::{ConvertReport, Target, TokenizerOutcome, convert},
    dense::DenseView,
    error::CheckpointError,
    gguf::{BlockType, GgufTokenizer},
    inspect::{DeviceBytes, LinearReport, ProjReport, Report, inspect},
    rows::{LinearKind, TernaryRows},
    slots::{DenseSlot, LinearSlot, NormSlot, Proj},
    tensor::{FloatType, StoredType, TensorEntry},
    write::ProgressFn,
};

/// How to open a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Map the files into memory (default) or read them piece by piece. While a file is mapped
    /// nobody may change it: a mapped file that is cut short kills the process with SIGBUS. Use
    /// `false` for files on network mounts or still being written.
    pub mmap: bool,
    /// Accept tensors that have no place in the model. Off by default: a tensor that is ignored
    /// (a bias, say) usually means another result.
    pub allow_extra_tensors: bool,
    /// Round float weights to ternaries even if nothing says they were trained for it.
    pub ternarise_any: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { mmap: true, allow_extra_tensors: false, ternarise_any: false }
    }
}

impl OpenOptions {
    /// The same with or without mapping.
    pub fn mmap(self, mmap: bool) -> Self {
        Self { mmap, ..self }
    }

    /// The same, ignoring tensors that have no place in the model.
    pub fn allow_extra_tensors(self, allow: bool) -> Self {
        Self { allow_extra_tensors: allow, ..self }
    }

    /// The same, rounding any float weights.
    pub fn ternarise_any(self, any: bool) -> Self {
        Self { ternarise_any: any, ..self }
    }
}

/// An opened, validated checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<FileBytes>,
    tensors: BTreeMap<String, TensorEntry>,
    config: ModelConfig,
    resolved: Resolved,
    names: Names,
    metadata: Option<BTreeMap<String, gguf::Value>>,
}

/// What a container says before the model is checked against it.
pub(crate) struct Draft {
    pub(crate) path: PathBuf,
    /// The file to name in errors about the configuration.
    pub(crate) config_file: PathBuf,
    pub(crate) files: Vec<FileBytes>,
    pub(crate) tensors: BTreeMap<String, TensorEntry>,
    pub(crate) config: ModelConfig,
    /// What the file says about tying, if it does.
    pub(crate) tie: Option<bool>,
    pub(crate) quantization: config::Quantization,
    pub(crate) names: Names,
    /// Whether rows of q and k are stored with interleaved rotary pairs.
    pub(crate) interleaved_qk: bool,
    /// Metadata of a GGUF file.
    pub(crate) metadata: Option<BTreeMap<String, gguf::Value>>,
}

impl Checkpoint {
    /// Opens a Hugging Face folder, a `.safetensors` file or a `.gguf` file, and checks all of it
    /// but the weights' content, which is checked as it is read.
    ///
    /// # Errors
    /// Every way in which the files can be damaged, contradictory or unsupported; see
    /// [`CheckpointError`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(CheckpointError::io(path))?;
        let draft = if metadata.is_dir() {
            hf::open_folder(path, options)?
        } else {
            match path.extension().and_then(|e| e.to_str()) {
                Some("safetensors") => hf::open_file(path, options)?,
                Some("gguf") => gguf::open(path, options)?,
                // Files of the Hub's cache have no extension.
                _ if bytes::starts_with(path, b"GGUF")? => gguf::open(path, options)?,
                _ => {
                    return Err(CheckpointError::NoModel {
                        path: path.to_owned(),
                        what: "neither a folder nor a .safetensors or .gguf file".into(),
                    });
                }
            }
        };
        resolve::resolve(draft, options)
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sizes and constants of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How the projections are stored.
    pub fn kind(&self) -> LinearKind {
        self.resolved.kind
    }

    /// All stored tensors, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorEntry> {
        self.tensors.values()
    }

    /// Bytes of all files with weights.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(FileBytes::len).sum()
    }

    /// One projection's ternaries. Float masters are read once, at the first call, to find their mean.
    pub fn linear(&self, slot: LinearSlot) -> Result<TernaryRows<'_>, CheckpointError> {
        let entry = self
            .resolved
            .linears
            .get(slot.layer)
            .ok_or(CheckpointError::Layer { layer: slot.layer, layers: self.config.num_layers })
            .map(|layer| &layer[slot.proj as usize])?;
        let file = &self.files[entry.tensor.file];
        let shape = self.config.linear_shape(slot.proj);
        TernaryRows::new(file, entry, shape)
    }

    /// Gains of a norm, as f32 (exact for every stored type).
    pub fn norm(&self, slot: NormSlot) -> Result<Vec<f32>, CheckpointError> {
        let (tensor, float) = self.norm_tensor(slot)?;
        let bytes = self.norm_bytes(slot)?;
        let mut gains = vec![0.0; bytes.len() / float.bytes()];
        float.decode(&bytes, &mut gains);
        match gains.iter().position(|v| !v.is_finite()) {
            Some(col) => {
                Err(CheckpointError::tensor(&tensor.name)(crate::pack::PackError::NotFinite {
                    row: 0,
                    col,
                    value: gains[col],
                }))
            }
            None => Ok(gains),
        }
    }

    fn norm_tensor(&self, slot: NormSlot) -> Result<&(TensorEntry, FloatType), CheckpointError> {
        let layers = self.config.num_layers;
        match slot {
            NormSlot::Input(layer)
            | NormSlot::PostAttention(layer)
            | NormSlot::AttnSub(layer)
            | NormSlot::FfnSub(layer)
                if layer >= layers =>
            {
                Err(CheckpointError::Layer { layer, layers })
            }
            _ => {
                self.resolved.norms.get(&slot).ok_or(CheckpointError::Absent { what: "sub-norms" })
            }
        }
    }

    pub(crate) fn norm_type(&self, slot: NormSlot) -> Result<FloatType, CheckpointError> {
        Ok(self.norm_tensor(slot)?.1)
    }

    /// A norm's bytes as stored.
    pub(crate) fn norm_bytes(&self, slot: NormSlot) -> Result<Cow<'_, [u8]>, CheckpointError> {
        let (tensor, _) = self.norm_tensor(slot)?;
        self.files[tensor.file].read(tensor.offset, tensor.bytes as usize)
    }

    /// Embedding or head, in the type it is stored in. The head of a tied model is the embedding.
    pub fn dense(&self, slot: DenseSlot) -> Result<DenseView<'_>, CheckpointError> {
        let (tensor, dtype) = match slot {
            DenseSlot::Head if self.config.tie_word_embeddings => &self.resolved.embedding,
            DenseSlot::Head => {
                self.resolved.head.as_ref().ok_or(CheckpointError::Absent { what: "head" })?
            }
            DenseSlot::Embedding => &self.resolved.embedding,
        };
        Ok(DenseView {
            file: &self.files[tensor.file],
            tensor,
            dtype: *dtype,
            rows: self.config.vocab_size,
            cols: self.config.hidden_size,
        })
    }

    /// The folder with `tokenizer.json` and its like: the checkpoint's own, or the one a single file
    /// stands in.
    pub fn tokenizer_folder(&self) -> &Path {
        let folder = match self.names {
            Names::HuggingFace if self.path.is_dir() => Some(self.path.as_path()),
            _ => self.files.first().and_then(|file| file.path().parent()),
        };
        folder.unwrap_or(Path::new(""))
    }

    /// The tokenizer that a GGUF file carries; `None` for other containers, and for GGUF files
    /// without one.
    pub fn gguf_tokenizer(&self) -> Result<Option<GgufTokenizer>, CheckpointError> {
        let (Some(metadata), Some(file)) = (&self.metadata, self.files.first()) else {
            return Ok(None);
        };
        let keys = gguf::Keys { path: file.path(), metadata };
        GgufTokenizer::read(file, &keys, self.config.vocab_size)
    }

    /// Every projection, layer by layer in the order they are applied.
    pub fn linear_slots(&self) -> impl Iterator<Item = LinearSlot> + use<> {
        (0..self.config.num_layers)
            .flat_map(|layer| Proj::ALL.map(|proj| LinearSlot { layer, proj }))
    }

    /// Every norm that this model has, layer by layer, the final one last.
    pub fn norm_slots(&self) -> impl Iterator<Item = NormSlot> + use<> {
        let sub = self.config.sub_norms;
        (0..self.config.num_layers)
            .flat_map(move |l| {
                let plain = [NormSlot::Input(l), NormSlot::PostAttention(l)];
                let subs = [NormSlot::AttnSub(l), NormSlot::FfnSub(l)];
                plain.into_iter().chain(subs.into_iter().filter(move |_| sub))
            })
            .chain([NormSlot::Final])
    }
}
