//! Which backend to compute on: `auto`, `cpu`, `cuda` or `cuda:N`.
//!
//! Exists in every build. `auto` takes a GPU that can be opened and otherwise the CPU; a GPU that
//! is asked for by name and cannot be had is an error, never a silent change.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::driver::DeviceError;

/// Names the environment variable that [`BackendChoice::from_env`] reads.
pub const DEVICE_VAR: &str = "BITNET_DEVICE";

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendChoice {
    /// A GPU when there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this ordinal.
    Cuda(u32),
}

/// What will be computed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The CPU.
    Cpu,
    /// The GPU of this ordinal.
    Cuda(u32),
}

/// A backend that cannot be chosen.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChoiceError {
    /// Not one of the words.
    #[error("unknown device {found:?}; allowed: auto, cpu, cuda, cuda:N")]
    Unknown {
        /// What was given.
        found: String,
    },
    /// What the environment variable holds cannot be used.
    #[error("{DEVICE_VAR}: {0}")]
    Variable(#[source] Box<ChoiceError>),
    /// The GPU asked for cannot be had.
    #[error("device cuda:{ordinal} was asked for: {source}")]
    Cuda {
        /// The ordinal asked for.
        ordinal: u32,
        /// Why not.
        source: DeviceError,
    },
}

impl FromStr for BackendChoice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let unknown = || ChoiceError::Unknown { found: text.into() };
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            word => {
                let ordinal = word.strip_prefix("cuda:").ok_or_else(unknown)?;
                // `parse` takes a sign, an ordinal has none.
                if !ordinal.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(unknown());
                }
                ordinal.parse().map(Self::Cuda).map_err(|_| unknown())
            }
        }
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl BackendChoice {
    /// The choice in [`DEVICE_VAR`]; `None` when it is not set or empty.
    ///
    /// # Errors
    /// A value that is not one of the words.
    pub fn from_env() -> Result<Option<Self>, ChoiceError> {
        match std::env::var_os(DEVICE_VAR) {
            Some(value) if !value.is_empty() => value
                .to_string_lossy()
                .parse()
                .map(Some)
                .map_err(|error| ChoiceError::Variable(Box::new(error))),
            _ => Ok(None),
        }
    }

    /// Settles the choice on this machine.
    ///
    /// # Errors
    /// A GPU asked for by name that is not there, or a build without the `cuda` feature.
    pub fn resolve(self) -> Result<Backend, ChoiceError> {
        match self {
            Self::Cpu => Ok(Backend::Cpu),
            Self::Auto if is_cuda_available() => Ok(Backend::Cuda(0)),
            Self::Auto => Ok(Backend::Cpu),
            Self::Cuda(ordinal) => match cuda_count() {
                Ok(found) if ordinal < found => Ok(Backend::Cuda(ordinal)),
                Ok(found) => {
                    let source = DeviceError::NoSuchDevice { asked: ordinal, found };
                    Err(ChoiceError::Cuda { ordinal, source })
                }
                Err(source) => Err(ChoiceError::Cuda { ordinal, source }),
            },
        }
    }
}

/// Whether a GPU can be used: the build has the backend, the driver loads, and a device is visible.
/// Never fails; [`cuda_count`] says why not.
pub fn is_cuda_available() -> bool {
    cuda_count().is_ok_and(|count| count > 0)
}

/// The number of visible GPUs.
///
/// # Errors
/// A build without the `cuda` feature, no driver, or a driver that does not start.
pub fn cuda_count() -> Result<u32, DeviceError> {
    #[cfg(feature = "cuda")]
    return crate::driver::Device::count();
    #[cfg(not(feature = "cuda"))]
    Err(DeviceError::NotBuilt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_and_written_back() {
        for (text, choice) in [
            ("auto", BackendChoice::Auto),
            ("CPU", BackendChoice::Cpu),
            (" cuda ", BackendChoice::Cuda(0)),
            ("cuda:0", BackendChoice::Cuda(0)),
            ("cuda:17", BackendChoice::Cuda(17)),
        ] {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }

    #[test]
    fn other_words_are_refused_with_what_is_allowed() {
        for text in
            ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "cuda:99999999999", "cuda:1:2"]
        {
            let error = text.parse::<BackendChoice>().unwrap_err();
            assert_eq!(error, ChoiceError::Unknown { found: text.into() });
            assert!(error.to_string().contains("auto, cpu, cuda, cuda:N"));
        }
    }

    #[test]
    fn the_cpu_can_always_be_had_and_a_missing_gpu_is_an_error() {
        assert_eq!(BackendChoice::Cpu.resolve(), Ok(Backend::Cpu));
        let available = is_cuda_available();
        let auto = BackendChoice::Auto.resolve().unwrap();
        assert_eq!(auto == Backend::Cuda(0), available);
        let far = BackendChoice::Cuda(u32::MAX).resolve().unwrap_err();
        assert!(far.to_string().starts_with("device cuda:4294967295 was asked for: "));
        if !available {
            assert!(matches!(
                BackendChoice::Cuda(0).resolve(),
                Err(ChoiceError::Cuda { ordinal: 0, .. })
            ));
        }
    }
}
