//! Which backend to compute on: `auto`, `cpu`, `cuda` or `cuda:N`; for what can be spread over several GPUs also
//! `cuda:N,M` and `cuda:all`.
//!
//! Exists in every build. `auto` takes the first GPU and where there is none the CPU, never several; a GPU that
//! is asked for by name and cannot be had is an error, never a silent change. GPUs are counted as the driver counts
//! them: `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` come first.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::driver::DeviceError;

/// Names the environment variable that [`BackendChoice::from_env`] reads.
pub const DEVICE_VAR: &str = "BITNET_DEVICE";

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendChoice {
    /// The first GPU when there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this ordinal.
    Cuda(u32),
}

/// What the user asked for, where one device or several GPUs can be had.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    /// One device.
    One(BackendChoice),
    /// The GPUs of these ordinals.
    Cuda(Vec<u32>),
    /// Every visible GPU.
    AllCuda,
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
    /// Not one of the words, where several GPUs can be had.
    #[error(
        "unknown device {found:?}; allowed: auto, cpu, cuda, cuda:N, cuda:N,M and so on, cuda:all"
    )]
    UnknownList {
        /// What was given.
        found: String,
    },
    /// Devices that do not go together.
    #[error(
        "{found:?} mixes devices: a list is of GPUs alone; try: cuda:0,1, or cuda:all, or one device"
    )]
    Mixed {
        /// What was given.
        found: String,
    },
    /// A GPU that is listed twice.
    #[error("{found:?} names cuda:{ordinal} twice; try: each GPU once")]
    Twice {
        /// What was given.
        found: String,
        /// The ordinal.
        ordinal: u32,
    },
    /// Several GPUs where one device is taken.
    #[error(
        "one device is taken here and {found} asks for several; try: one of them, such as cuda:0"
    )]
    Several {
        /// What was asked for.
        found: String,
    },
    /// No GPU of all.
    #[error("cuda:all was asked for: {source}")]
    All {
        /// Why there is none.
        source: DeviceError,
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
            word => match word.strip_prefix("cuda:").and_then(ordinal) {
                Some(ordinal) => Ok(Self::Cuda(ordinal)),
                // The other reading asks back here for what is no list.
                None if word == "cuda:all" || word.contains(',') => {
                    let list: DeviceChoice = word.parse()?;
                    Err(ChoiceError::Several { found: list.to_string() })
                }
                None => Err(unknown()),
            },
        }
    }
}

/// An ordinal: digits alone. `parse` would take a sign too.
fn ordinal(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

impl Default for DeviceChoice {
    fn default() -> Self {
        Self::One(BackendChoice::default())
    }
}

impl From<BackendChoice> for DeviceChoice {
    fn from(choice: BackendChoice) -> Self {
        Self::One(choice)
    }
}

impl FromStr for DeviceChoice {
    type Err = ChoiceError;

    /// What [`BackendChoice`] takes, `cuda:all`, or ordinals behind `cuda:`, separated by commas.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let found = || text.to_owned();
        let unknown = || ChoiceError::UnknownList { found: found() };
        let words = text.trim().to_ascii_lowercase();
        if words == "cuda:all" {
            return Ok(Self::AllCuda);
        }
        if !words.contains(',') {
            let one = words.parse::<BackendChoice>().map_err(|_| unknown())?;
            return Ok(Self::One(one));
        }
        let mut ordinals = Vec::new();
        for (i, word) in words.split(',').map(str::trim).enumerate() {
            let ordinal = match (word, word.strip_prefix("cuda:")) {
                ("cpu" | "auto", _) => return Err(ChoiceError::Mixed { found: found() }),
                (_, Some(number)) => ordinal(number),
                (number, None) if i > 0 => ordinal(number),
                _ => None,
            };
            let ordinal = ordinal.ok_or_else(unknown)?;
            if ordinals.contains(&ordinal) {
                return Err(ChoiceError::Twice { found: found(), ordinal });
            }
            ordinals.push(ordinal);
        }
        Ok(Self::Cuda(ordinals))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(choice) => choice.fmt(f),
            Self::Cuda(ordinals) => {
                let ordinals: Vec<_> = ordinals.iter().map(u32::to_string).collect();
                write!(f, "cuda:{}", ordinals.join(","))
            }
            Self::AllCuda => f.write_str("cuda:all"),
        }
    }
}

impl DeviceChoice {
    /// Settles the choice on this machine: at least one device, each once.
    ///
    /// # Errors
    /// As [`BackendChoice::resolve`], of each GPU that is named; no GPU at all; a GPU that is named twice.
    pub fn resolve(&self) -> Result<Vec<Backend>, ChoiceError> {
        match self {
            Self::One(choice) => Ok(vec![choice.resolve()?]),
            Self::Cuda(ordinals) => {
                let twice = ordinals.iter().enumerate().find(|(i, o)| ordinals[..*i].contains(o));
                if let Some((_, &ordinal)) = twice {
                    return Err(ChoiceError::Twice { found: self.to_string(), ordinal });
                }
                if ordinals.is_empty() {
                    return Err(ChoiceError::UnknownList { found: self.to_string() });
                }
                ordinals.iter().map(|&ordinal| BackendChoice::Cuda(ordinal).resolve()).collect()
            }
            Self::AllCuda => match cuda_count() {
                Ok(0) => {
                    let source = DeviceError::NoSuchDevice { asked: 0, found: 0 };
                    Err(ChoiceError::All { source })
                }
                Ok(found) => Ok((0..found).map(Backend::Cuda).collect()),
                Err(source) => Err(ChoiceError::All { source }),
            },
        }
    }

    /// The one device that is asked for.
    ///
    /// # Errors
    /// Several.
    pub fn one(&self) -> Result<BackendChoice, ChoiceError> {
        match self {
            Self::One(choice) => Ok(*choice),
            Self::Cuda(ordinals) if ordinals.len() == 1 => Ok(BackendChoice::Cuda(ordinals[0])),
            _ => Err(ChoiceError::Several { found: self.to_string() }),
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
    fn several_gpus_are_read_and_written_back() {
        for (text, choice, canonical) in [
            ("auto", DeviceChoice::default(), "auto"),
            ("cuda", BackendChoice::Cuda(0).into(), "cuda:0"),
            (" CUDA:0, 2 ", DeviceChoice::Cuda(vec![0, 2]), "cuda:0,2"),
            ("cuda:3,cuda:1", DeviceChoice::Cuda(vec![3, 1]), "cuda:3,1"),
            ("cuda:all", DeviceChoice::AllCuda, "cuda:all"),
        ] {
            assert_eq!(text.parse().as_ref(), Ok(&choice));
            assert_eq!(choice.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(choice));
        }
        // One device is not several.
        for text in ["cuda:0,1", "cuda:all"] {
            let several = Err(ChoiceError::Several { found: text.into() });
            assert_eq!(text.parse::<BackendChoice>(), several);
            assert_eq!(text.parse::<DeviceChoice>().unwrap().one(), several);
        }
        assert_eq!(DeviceChoice::Cuda(vec![5]).one(), Ok(BackendChoice::Cuda(5)));
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let error = |text: &str| text.parse::<DeviceChoice>().unwrap_err();
        for text in ["", ",", "gpu", "cuda:", "cuda:0,", "cuda,1", "0,1", "cuda:0,-1", "cuda:0,x"] {
            assert_eq!(error(text), ChoiceError::UnknownList { found: text.into() });
        }
        for text in ["cpu,cuda:0", "cuda:0,cpu", "auto,cuda:1", "cpu,cpu"] {
            assert_eq!(error(text), ChoiceError::Mixed { found: text.into() });
        }
        let twice = |found: &str| ChoiceError::Twice { found: found.into(), ordinal: 1 };
        assert_eq!(error("cuda:1,0,cuda:1"), twice("cuda:1,0,cuda:1"));
        assert_eq!(DeviceChoice::Cuda(vec![1, 1]).resolve(), Err(twice("cuda:1,1")));
        assert!(DeviceChoice::Cuda(Vec::new()).resolve().is_err());
        let far = DeviceChoice::Cuda(vec![u32::MAX, u32::MAX - 1]).resolve().unwrap_err();
        assert!(matches!(far, ChoiceError::Cuda { ordinal: u32::MAX, .. }));
        match DeviceChoice::AllCuda.resolve() {
            Ok(all) => assert_eq!(all.len(), cuda_count().unwrap() as usize),
            Err(error) => assert!(error.to_string().starts_with("cuda:all was asked for: ")),
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
