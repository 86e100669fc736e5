//! Why a session could not be made or could not go on.

use crate::checkpoint::CheckpointError;
use crate::device_choice::ChoiceError;
use crate::model::{LoadError, ModelError};
use crate::ops::OpError;
use crate::text::TextError;

/// Why a session could not be made or could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The chosen device cannot be used.
    #[error(transparent)]
    Device(#[from] ChoiceError),
    /// The weights could not be brought to the device.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model could not run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An operation outside of the model failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Tokenizer, template or sampling parameters.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A tuning record that was asked for by name.
    #[error(transparent)]
    Tune(#[from] crate::tune::TuneError),
    /// One of several devices. The others go on.
    #[error("{device}: {source}")]
    OnDevice {
        /// Its name, such as `cuda:1`.
        device: String,
        /// What failed there.
        source: Box<SessionError>,
    },
    /// Every device of a batch has failed, which was told when it did.
    #[error("no device is left: {devices} have failed before; load the model again")]
    NoDeviceLeft {
        /// Their names.
        devices: String,
    },
    /// Kernel times of several devices.
    #[error("kernels are timed on one device and {devices} were asked for; ask for one device")]
    ProfileOfSeveral {
        /// What was asked for.
        devices: String,
    },
    /// The system refused a thread for a device.
    #[error("cannot start the thread of {device}: {source}; use fewer devices")]
    Start {
        /// Its name.
        device: String,
        /// Why.
        source: std::io::Error,
    },
    /// No model was named.
    #[error("no model was given; name a checkpoint folder or a .gguf file")]
    NoModel,
    /// The checkpoint has no tokenizer, and text was given or asked for.
    #[error(
        "the checkpoint has no tokenizer; put its tokenizer.json beside the weights or work with token ids"
    )]
    NoTokenizer,
    /// A context longer than the model was made for.
    #[error(
        "a context of {asked} positions was asked for and the model takes {allowed}; ask for at most {allowed}"
    )]
    ContextTooLong {
        /// Positions asked for.
        asked: usize,
        /// Positions of the model.
        allowed: usize,
    },
    /// Prompts and parameters of a batch that do not belong together.
    #[error(
        "{prompts} prompts and {params} sets of parameters were given; give one for each prompt"
    )]
    ParamsCount {
        /// Prompts.
        prompts: usize,
        /// Sets of parameters.
        params: usize,
    },
    /// Logits of a session that guesses tokens.
    #[error("a session with lookup gives no logits; make it without")]
    LogitsOfLookup,
    /// Log probabilities of a prompt of a session.
    #[error(
        "a session tells nothing of its prompt; use a batch (SessionBuilder::build_batch), or leave prompt_logprobs out"
    )]
    PromptLogprobs,
    /// More stop ids than the sampler holds.
    #[error("{found} stop ids were given and the sampler holds {allowed}; use fewer")]
    TooManyStopIds {
        /// Stop ids given.
        found: usize,
        /// Stop ids that fit.
        allowed: usize,
    },
}

impl SessionError {
    /// Whether a request found no place because others have it: it may be added when one of them has ended.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Model(ModelError::BatchFull { .. } | ModelError::PagesFull { .. }))
    }
}
