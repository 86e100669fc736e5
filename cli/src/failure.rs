//! How a command fails: what happened, because of what, and one thing to try.

use crate::output::Output;
use bitnet_gpu::checkpoint::CheckpointError;
use bitnet_gpu::device_choice::ChoiceError;
use bitnet_gpu::hub::HubError;
use bitnet_gpu::session::SessionError;
use bitnet_gpu::text::TextError;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something failed; exit code 1, or 2 when the command line asked for something impossible.
    Failed {
        /// What happened.
        what: String,
        /// Causes, nearest first.
        because: Vec<String>,
        /// One thing to try; may be empty.
        advice: String,
        /// Whether the command line is at fault.
        usage: bool,
    },
    /// Standard output was closed by its reader: not a failure.
    ClosedPipe,
    /// Ctrl-C.
    Interrupted,
}

impl Failure {
    /// A failure with its causes read from `error`.
    ///
    /// The library writes an error as `what: cause; try: advice`, where the cause is also the
    /// error's source. Here the three are taken apart again; `advice` serves where the text has none.
    pub(crate) fn from_error(error: &(dyn Error + 'static), advice: impl Into<String>) -> Self {
        let mut texts = Vec::new();
        let mut next = Some(error);
        while let Some(error) = next {
            texts.push(error.to_string());
            next = error.source();
        }
        for i in 1..texts.len() {
            if let Some(own) = texts[i - 1].strip_suffix(&texts[i]) {
                texts[i - 1] = own.trim_end_matches([':', ' ']).to_owned();
            }
        }
        let mut found = None;
        for text in &mut texts {
            if let Some((what, tried)) = text.split_once("; try: ") {
                found.get_or_insert(tried.to_owned());
                *text = what.to_owned();
            }
        }
        let mut texts = texts.into_iter().filter(|text| !text.is_empty());
        Self::Failed {
            what: texts.next().unwrap_or_default(),
            because: texts.collect(),
            advice: found.unwrap_or_else(|| advice.into()),
            usage: false,
        }
    }

    /// A failure in our own words.
    pub(crate) fn new(
        what: impl Into<String>,
        because: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let because = vec![because.into()];
        Self::Failed { what: what.into(), because, advice: advice.into(), usage: false }
    }

    /// Marks the command line as the cause.
    pub(crate) fn usage(self) -> Self {
        match self {
            Self::Failed { what, because, advice, .. } => {
                Self::Failed { what, because, advice, usage: true }
            }
            other => other,
        }
    }

    /// The same with something else to try.
    pub(crate) fn advise(self, other: impl Into<String>) -> Self {
        match self {
            Self::Failed { what, because, usage, .. } => {
                Self::Failed { what, because, advice: other.into(), usage }
            }
            failure => failure,
        }
    }

    /// Prints the failure and gives the exit code.
    pub(crate) fn report(&self, output: &Output) -> ExitCode {
        match self {
            Self::Failed { what, because, advice, usage } => {
                output.error(what, because, advice);
                ExitCode::from(if *usage { 2 } else { 1 })
            }
            Self::ClosedPipe => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(130),
        }
    }
}

/// Errors of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::new(
                "cannot write to standard output",
                error.to_string(),
                "check the disk or the program that reads the output",
            ),
        }
    }
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        let failure = Self::from_error(&error, error.advice());
        // A sampling value out of range came from an option.
        if matches!(error, TextError::Setting { .. }) { failure.usage() } else { failure }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::from_error(&error, error.advice())
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        Self::from_error(&error, "")
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Text(error) => error.into(),
            SessionError::ContextTooLong { .. }
            | SessionError::ProfileOfSeveral { .. }
            | SessionError::Device(ChoiceError::Several { .. }) => {
                Self::from_error(&error, "").usage()
            }
            error => Self::from_error(&error, ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no driver: {0}; try: install it")]
    struct Inner(&'static str);

    #[derive(Debug, thiserror::Error)]
    #[error("cuda:1 was asked for: {0}")]
    struct Outer(#[source] Inner);

    #[test]
    fn a_chain_is_taken_apart_and_nothing_is_said_twice() {
        match Failure::from_error(&Outer(Inner("not found")), "unused") {
            Failure::Failed { what, because, advice, usage } => {
                assert_eq!(what, "cuda:1 was asked for");
                assert_eq!(because, ["no driver: not found"]);
                assert_eq!(advice, "install it");
                assert!(!usage);
            }
            other => panic!("{other:?}"),
        }
        match Failure::from_error(&io::Error::other("plain"), "look") {
            Failure::Failed { what, because, advice, .. } => {
                assert_eq!((what.as_str(), advice.as_str()), ("plain", "look"));
                assert!(because.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
}
