//! Errors of the text layer: what happened, with the numbers, and one thing to try.

use std::path::{Path, PathBuf};

/// Why a tokenizer, template, stop rule or sampling setting was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder has no `tokenizer.json`.
    #[error("no tokenizer.json in {}", folder.display())]
    NoTokenizer {
        /// The folder looked in.
        folder: PathBuf,
    },
    /// A file or string is larger than this library accepts.
    #[error("{what} has {found} bytes; at most {allowed} are accepted")]
    TooLarge {
        /// The file or field.
        what: String,
        /// Its size in bytes.
        found: u64,
        /// The limit in bytes.
        allowed: u64,
    },
    /// A file is not JSON.
    #[error("{what} is not valid JSON")]
    Json {
        /// The file.
        what: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file contradicts itself or its format.
    #[error("{what}: {reason}")]
    Malformed {
        /// The file.
        what: String,
        /// The first contradiction found.
        reason: String,
    },
    /// The tokenizer inside a checkpoint file could not be read.
    #[error("cannot read the tokenizer of the checkpoint")]
    Checkpoint(#[source] Box<crate::checkpoint::CheckpointError>),
    /// A tokenizer part that this library does not implement.
    #[error("{part} {found:?} is not supported (supported: {allowed})")]
    Unsupported {
        /// Which part: model, decoder, normalizer, ...
        part: &'static str,
        /// The name in the file.
        found: String,
        /// The names that would do.
        allowed: &'static str,
    },
    /// A token id that the tokenizer does not have.
    #[error("token id {id} is not in the tokenizer, whose largest id is {largest}")]
    UnknownId {
        /// The id asked for.
        id: u32,
        /// The largest id there is.
        largest: u32,
    },
    /// The tokenizer has ids that the model has no embedding row for.
    #[error(
        "the tokenizer has token {token:?} with id {id}, but the model has only {rows} embedding rows"
    )]
    VocabMismatch {
        /// The token with the largest id.
        token: String,
        /// That id.
        id: u32,
        /// Embedding rows of the model.
        rows: usize,
    },
    /// The text could not be turned into token ids.
    #[error("cannot encode {bytes} bytes of text: {reason}")]
    Encode {
        /// Length of the text in bytes.
        bytes: usize,
        /// What the tokenizer said.
        reason: String,
    },
    /// The chat template does not compile or failed while running.
    #[error("the chat template failed: {reason}")]
    Template {
        /// Kind and line of the failure.
        reason: String,
    },
    /// The chat template itself refused the conversation (`raise_exception`).
    #[error("the chat template refused the conversation: {message}")]
    TemplateRefused {
        /// The template's own words.
        message: String,
    },
    /// There is neither a chat template in the checkpoint nor a built-in one for its architecture.
    #[error("the checkpoint has no chat template, and there is none built in for {architecture:?}")]
    NoTemplate {
        /// `model_type` or GGUF architecture.
        architecture: String,
    },
    /// A grammar that is wrong, takes too much work, or that no text has.
    #[error("the grammar cannot be used: {reason}")]
    Grammar {
        /// What is wrong with it.
        reason: String,
    },
    /// A sampling setting outside its range.
    #[error("{name} = {found} is out of range; allowed: {allowed}")]
    Setting {
        /// The field of [`SamplingParams`](super::SamplingParams).
        name: &'static str,
        /// The value given.
        found: String,
        /// The range.
        allowed: &'static str,
    },
}

impl TextError {
    /// One thing to try, in the imperative; empty when there is nothing sensible.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Read { .. } => "check the path and its permissions",
            Self::NoTokenizer { .. } => {
                "copy tokenizer.json from the model's repository into the folder"
            }
            Self::TooLarge { .. } => "check that this is the right file",
            Self::Json { .. } | Self::Malformed { .. } | Self::Checkpoint(_) => {
                "download the file again"
            }
            Self::Unsupported { .. } => "use the tokenizer.json of a BPE model",
            Self::UnknownId { .. } | Self::VocabMismatch { .. } => {
                "use the tokenizer that belongs to this checkpoint"
            }
            Self::Encode { .. } => "pass a shorter text, or the model's own tokenizer",
            Self::Template { .. } | Self::NoTemplate { .. } => {
                "send the prompt without a template (--raw)"
            }
            Self::TemplateRefused { .. } => "change the order or the roles of the messages",
            Self::Grammar { .. } => "correct the grammar, or ask for a simpler one",
            Self::Setting { .. } => "choose a value inside the range",
        }
    }

    pub(super) fn malformed(what: &str, reason: impl Into<String>) -> Self {
        Self::Malformed { what: what.to_owned(), reason: reason.into() }
    }
}

/// Reads a whole file of at most `allowed` bytes.
///
/// The size is checked before anything is allocated, and again while reading, since a file may grow
/// or be a pipe.
pub(super) fn read_capped(path: &Path, allowed: u64) -> Result<Vec<u8>, TextError> {
    use std::io::Read;
    let wrap = |source| TextError::Read { path: path.to_owned(), source };
    // Before opening: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(wrap)?.is_file() {
        return Err(wrap(std::io::Error::other("this is not a regular file")));
    }
    let file = std::fs::File::open(path).map_err(wrap)?;
    let found = file.metadata().map_err(wrap)?.len();
    let too_large =
        |found| TextError::TooLarge { what: path.display().to_string(), found, allowed };
    if found > allowed {
        return Err(too_large(found));
    }
    let mut data = Vec::new();
    file.take(allowed + 1).read_to_end(&mut data).map_err(wrap)?;
    if data.len() as u64 > allowed {
        return Err(too_large(data.len() as u64));
    }
    Ok(data)
}

/// Runs a call into a crate that may panic on what a file says, and makes an error of a panic.
pub(super) fn guarded<T, E>(
    call: impl FnOnce() -> Result<T, E>,
    broken: impl FnOnce(String) -> E,
) -> Result<T, E> {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        Err(broken(words.to_owned()))
    })
}
