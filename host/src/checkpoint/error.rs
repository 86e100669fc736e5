//! What can be wrong with a checkpoint: each variant says what was found, what is allowed, what to do.

use std::path::PathBuf;

use crate::pack::PackError;

/// Why a checkpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Nothing readable at the path.
    #[error("{}: {what}; give a Hugging Face folder (config.json and .safetensors), or a .gguf file", path.display())]
    NoModel {
        /// The path given.
        path: PathBuf,
        /// What was looked for and not found.
        what: String,
    },
    /// A side file is larger than any real one.
    #[error("{}: {bytes} bytes, more than the {allowed} allowed for such a file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The cap.
        allowed: u64,
    },
    /// A JSON file does not parse.
    #[error("{}: {message}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's words with line and column.
        message: String,
    },
    /// A container contradicts itself or its length: damaged, cut short or hostile.
    #[error("{}: {what} is {found}, allowed is {allowed}; the file is damaged or incomplete, fetch it again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which part of it.
        what: String,
        /// What stands there.
        found: String,
        /// What may stand there.
        allowed: String,
    },
    /// A configuration field has a value that is not supported.
    #[error("{}: {field} = {value} is not supported; allowed: {allowed}", file.display())]
    Field {
        /// The file with the field.
        file: PathBuf,
        /// Its name.
        field: String,
        /// Its value.
        value: String,
        /// What is supported.
        allowed: String,
    },
    /// A configuration field that is needed is absent.
    #[error("{}: {field} is missing; it is needed to run the model", file.display())]
    MissingField {
        /// The file.
        file: PathBuf,
        /// The field's name.
        field: String,
    },
    /// A tensor that the configuration asks for is absent.
    #[error(
        "tensor {tensor} is missing{}; the files do not belong to this config, or are incomplete",
        near_text(near)
    )]
    MissingTensor {
        /// Its name.
        tensor: String,
        /// A present tensor with a similar name.
        near: Option<String>,
    },
    /// A tensor that this kind of model does not have: ignoring it would change the result.
    #[error(
        "tensor {tensor} has no place in a model of type {model_type}; ignoring it would change the output, so the checkpoint is refused (OpenOptions::allow_extra_tensors ignores it)"
    )]
    UnexpectedTensor {
        /// Its name.
        tensor: String,
        /// The configured model type.
        model_type: String,
    },
    /// A tensor's shape does not follow from the configuration.
    #[error("tensor {tensor} has shape {found:?}, the config asks for {expected:?}")]
    Shape {
        /// Its name.
        tensor: String,
        /// Shape in the file, outermost first.
        found: Vec<u64>,
        /// Shape that follows from the configuration.
        expected: Vec<u64>,
    },
    /// A tensor's element type cannot be used in its place.
    #[error("tensor {tensor} is stored as {found}; allowed here: {allowed}")]
    StoredType {
        /// Its name.
        tensor: String,
        /// Type in the file.
        found: String,
        /// Types that can be read there.
        allowed: &'static str,
    },
    /// A tensor's content is wrong.
    #[error("tensor {tensor}: {source}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What is wrong.
        source: PackError,
    },
    /// A request that does not fit the matrix.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A shard index names a file outside its folder.
    #[error("{}: shard name {name:?} is refused; shards must be plain file names beside the index", file.display())]
    ShardName {
        /// The index.
        file: PathBuf,
        /// The name in it.
        name: String,
    },
    /// Float weights that nothing declares to be BitNet masters.
    #[error("{}: float weights and no sign of BitNet training (no quantization_config, no weight_bits = 1, model_type {model_type}); rounding an ordinary model to ternaries gives noise (OpenOptions::ternarise_any does it anyway)", path.display())]
    NotBitNet {
        /// The checkpoint.
        path: PathBuf,
        /// Its model type.
        model_type: String,
    },
    /// A layer number outside the model.
    #[error("layer {layer} was asked for; the model has {layers}")]
    Layer {
        /// Layer asked for.
        layer: usize,
        /// Layers there are.
        layers: usize,
    },
    /// Something that this model does not have was asked for.
    #[error("the model has no {what}")]
    Absent {
        /// What was asked for.
        what: &'static str,
    },
    /// The output would overwrite something.
    #[error("{}: exists already; choose another path or remove it", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The target format cannot hold the model.
    #[error("{target} cannot hold this model: {why}")]
    Target {
        /// The format.
        target: String,
        /// The reason, with the numbers.
        why: String,
    },
    /// A conversion changed ternaries: a defect of this program, found before the result was used.
    #[error(
        "converting changed {tensor}: ternary SHA-256 {before} became {after}; please report this"
    )]
    Changed {
        /// The tensor.
        tensor: String,
        /// Hash in the source.
        before: String,
        /// Hash in the result.
        after: String,
    },
    /// No configuration of this name is known.
    #[error("no configuration is named {name:?}; known: {known}")]
    UnknownConfig {
        /// The name asked for.
        name: String,
        /// Names there are.
        known: String,
    },
}

fn near_text(near: &Option<String>) -> String {
    near.as_ref().map(|name| format!(" (there is {name})")).unwrap_or_default()
}

impl CheckpointError {
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn tensor(tensor: &str) -> impl FnOnce(PackError) -> Self + '_ {
        move |source| Self::Tensor { tensor: tensor.to_owned(), source }
    }

    pub(crate) fn malformed(
        path: &std::path::Path,
        what: impl Into<String>,
        found: impl ToString,
        allowed: impl ToString,
    ) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            what: what.into(),
            found: found.to_string(),
            allowed: allowed.to_string(),
        }
    }
}
