//! How a command fails: what happened, because of what, and one thing to try.

use crate::output::Output;
use bitnet_gpu::hub::HubError;
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
    pub(crate) fn from_error(error: &(dyn Error + 'static), advice: impl Into<String>) -> Self {
        let mut because = Vec::new();
        let mut cause = error.source();
        while let Some(inner) = cause {
            because.push(inner.to_string());
            cause = inner.source();
        }
        Self::Failed { what: error.to_string(), because, advice: advice.into(), usage: false }
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
