//! What can go wrong between a program and a GPU.
//!
//! Every driver failure is a [`DriverError`]: the driver's own code, name and text, the call that
//! returned it, and one thing to try. The other enums say what was refused before the driver was
//! asked. All of them exist without the `cuda` feature, so that a caller's `match` does not depend
//! on it.

use std::fmt;

use thiserror::Error;

/// A call of the CUDA driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverError {
    /// The driver's result code (`CUresult`); codes newer than this crate are kept as they are.
    pub code: i32,
    /// The driver's name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: Box<str>,
    /// The driver's description of the code.
    pub text: Box<str>,
    /// The function that returned it.
    pub call: &'static str,
}

impl DriverError {
    /// An error of `call` with the driver's `name` and `text`.
    pub fn new(
        code: i32,
        name: impl Into<Box<str>>,
        text: impl Into<Box<str>>,
        call: &'static str,
    ) -> Self {
        Self { code, name: name.into(), text: text.into(), call }
    }

    /// One thing to try; empty where nothing useful is known.
    pub fn hint(&self) -> &'static str {
        hint(self.code)
    }

    /// Whether the context is lost: every later call of this process fails with the same code.
    pub fn is_sticky(&self) -> bool {
        matches!(self.code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {} ({}): {}", self.call, self.name, self.code, self.text)?;
        match self.hint() {
            "" => Ok(()),
            hint => write!(f, "; try: {hint}"),
        }
    }
}

impl std::error::Error for DriverError {}

fn hint(code: i32) -> &'static str {
    match code {
        2 => "a smaller context or batch, or free memory that other programs hold (nvidia-smi)",
        3 => "open a device first",
        34..=36 => "install the driver of this GPU: the libcuda found is a stub or too old",
        46 => "wait until no other program holds the GPU in exclusive mode",
        100 => "check that nvidia-smi lists a GPU and that CUDA_VISIBLE_DEVICES is not empty",
        101 => "an ordinal below the number of devices (`bitnet doctor` lists them)",
        200 | 218 => "an older PTX level with BITNET_PTX_LEVEL, and report this",
        209 => "a PTX level for this GPU with BITNET_PTX_LEVEL",
        221 | 223 => "a driver installation with its PTX compiler, and no CUDA_DISABLE_PTX_JIT",
        222 => "a newer driver, or a lower PTX level with BITNET_PTX_LEVEL",
        700 | 715..=719 => {
            "restart the process (the context is lost); compute-sanitizer shows the access"
        }
        701 => "a smaller block or less shared memory",
        702 => "a GPU without a display, or a larger watchdog limit",
        800 => "the permissions of /dev/nvidia*",
        802 => "wait for the fabric manager (nvidia-fabricmanager) to be running",
        803 => "reboot, or reinstall the driver: kernel module and libcuda differ",
        804 => "remove the compatibility libcuda from LD_LIBRARY_PATH",
        _ => "",
    }
}

/// A device could not be opened or used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// The library was built without the `cuda` feature.
    #[error("this build has no CUDA backend; try: build with `--features cuda`, or use the CPU")]
    NotBuilt,
    /// libcuda could not be loaded.
    #[error("no CUDA driver: {reason}; try: install the NVIDIA driver, or use the CPU")]
    NoDriver {
        /// What the dynamic loader said.
        reason: String,
    },
    /// libcuda lacks a function that this crate needs.
    #[error("the CUDA driver has no {symbol}; try: a driver for CUDA 11.4 (r470) or newer")]
    DriverTooOld {
        /// The missing function.
        symbol: &'static str,
    },
    /// There is no device of this ordinal.
    #[error("CUDA device {asked} was asked for, {found} found; try: an ordinal below {found}")]
    NoSuchDevice {
        /// The ordinal asked for.
        asked: u32,
        /// The number of devices.
        found: u32,
    },
    /// The device is older than every kernel.
    #[error("{name} has compute capability sm_{found}, at least sm_{need} is needed; try: the CPU")]
    TooOldGpu {
        /// The device's name.
        name: String,
        /// Its capability, `10 * major + minor`.
        found: u32,
        /// The least capability.
        need: u32,
    },
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A PTX level that was passed over while loading, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PtxFallback {
    /// The level, such as `sm_90a`.
    pub level: String,
    /// The PTX ISA version it is written in, such as `8.0`.
    pub isa: String,
    /// The driver's refusal.
    pub reason: DriverError,
    /// What the driver's PTX compiler wrote; may be empty.
    pub log: String,
}

impl fmt::Display for PtxFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX level {} (ISA {}) skipped: {}", self.level, self.isa, self.reason)?;
        if self.log.is_empty() { Ok(()) } else { write!(f, "\n{}", self.log) }
    }
}

/// The kernels could not be loaded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModuleError {
    /// The crate was built where no PTX was.
    #[error("this build embeds no PTX; try: `cargo xtask build-ptx`, then build again")]
    NoPtx,
    /// `BITNET_PTX_LEVEL` names a level that is not embedded, or that does not fit the device.
    #[error("PTX level {asked} does not fit sm_{device_sm}; try: one of {have}")]
    UnknownLevel {
        /// The level asked for.
        asked: String,
        /// The device's capability, `10 * major + minor`.
        device_sm: u32,
        /// The levels that fit, separated by commas.
        have: String,
    },
    /// No level is low enough for the device.
    #[error("no embedded PTX level runs on sm_{device_sm} (lowest: {lowest}); try: the CPU")]
    NoLevelFits {
        /// The device's capability, `10 * major + minor`.
        device_sm: u32,
        /// The lowest embedded level.
        lowest: String,
    },
    /// The driver refused every level that fits.
    #[error(
        "the driver refused every PTX level: {}; try: a newer driver",
        skipped.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    AllRefused {
        /// One entry for each level tried, highest first.
        skipped: Vec<PtxFallback>,
    },
    /// The driver refused the PTX for a reason that no other level would cure.
    #[error("loading PTX {level} failed: {source}\n{log}")]
    Jit {
        /// The level or name of the PTX.
        level: String,
        /// What the driver's PTX compiler wrote; may be empty.
        log: String,
        /// The driver's error.
        source: DriverError,
    },
    /// The PTX holds a zero byte, so it is not text.
    #[error("PTX {level} holds a zero byte at offset {at}; try: `cargo xtask build-ptx`")]
    NotText {
        /// The level or name of the PTX.
        level: String,
        /// Where.
        at: usize,
    },
    /// The loaded level has no such kernel.
    #[error("kernel {symbol} is not in the loaded PTX level {level}; try: a device of sm_{min_sm}")]
    MissingKernel {
        /// The entry's name.
        symbol: &'static str,
        /// The loaded level.
        level: String,
        /// The capability that the kernel needs, `10 * major + minor`.
        min_sm: u32,
    },
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A launch was refused before the driver was called, or by the driver.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchError {
    /// A grid dimension is zero.
    #[error("{kernel}: grid {grid:?} has an empty dimension; every one must be at least 1")]
    EmptyGrid {
        /// The entry's name.
        kernel: &'static str,
        /// The grid asked for.
        grid: [u32; 3],
    },
    /// A grid dimension is beyond the device's limit.
    #[error("{kernel}: grid {grid:?} exceeds the device's {limit:?}; try: smaller pieces")]
    GridTooLarge {
        /// The entry's name.
        kernel: &'static str,
        /// The grid asked for.
        grid: [u32; 3],
        /// The device's limit.
        limit: [u32; 3],
    },
    /// The kernel's block does not fit the device.
    #[error("{kernel}: block {block:?} exceeds {limit:?} or {threads} threads")]
    BlockTooLarge {
        /// The entry's name.
        kernel: &'static str,
        /// The kernel's block.
        block: [u32; 3],
        /// The device's limit for each dimension.
        limit: [u32; 3],
        /// The device's limit for the product.
        threads: u32,
    },
    /// The kernel needs more shared memory than a block can have.
    #[error(
        "{kernel}: {asked} bytes of shared memory asked, {allowed} allowed; try: another variant"
    )]
    SharedMemory {
        /// The entry's name.
        kernel: &'static str,
        /// Bytes of the kernel's block.
        asked: u32,
        /// The device's opt-in limit.
        allowed: u32,
    },
    /// The device is older than the kernel, or the kernel is for one capability only.
    #[error(
        "{kernel} needs sm_{need}{}, the device is sm_{found}; try: another variant",
        if *only { " and nothing newer" } else { "" }
    )]
    UnsupportedSm {
        /// The entry's name.
        kernel: &'static str,
        /// The kernel's minimum, `10 * major + minor`.
        need: u32,
        /// Whether it runs there only.
        only: bool,
        /// The device's, `10 * major + minor`.
        found: u32,
    },
    /// The stream belongs to another device than the kernel.
    #[error("{kernel} is loaded on CUDA device {kernel_device}, the stream is on {stream_device}")]
    WrongDevice {
        /// The entry's name.
        kernel: &'static str,
        /// Ordinal of the kernel's device.
        kernel_device: u32,
        /// Ordinal of the stream's device.
        stream_device: u32,
    },
    /// The kernel could not be resolved.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The driver refused the launch.
    #[error("{kernel}: {source}")]
    Driver {
        /// The entry's name.
        kernel: &'static str,
        /// The driver's error.
        source: DriverError,
    },
}

impl LaunchError {
    /// Whether the device, or the PTX that it loaded, cannot have the kernel: another variant may run.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::UnsupportedSm { .. } | Self::SharedMemory { .. } | Self::BlockTooLarge { .. } => {
                true
            }
            Self::Module(error) => matches!(error, ModuleError::MissingKernel { .. }),
            _ => false,
        }
    }
}

/// A graph could not be captured, built or launched.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphError {
    /// The stream is already being captured.
    #[error("the stream is already being captured; try: one capture at a time on a stream")]
    AlreadyCapturing,
    /// Something that a graph cannot hold was called inside a capture.
    #[error("{what} is not possible while a graph is captured; try: it before the capture")]
    NotInCapture {
        /// The operation.
        what: &'static str,
    },
    /// A stream that joined the capture through an event was not joined back.
    #[error("a stream joined the capture and was not joined back; try: `wait` on an event of it")]
    Unjoined {
        /// The driver's error.
        source: DriverError,
    },
    /// A call inside the capture broke it.
    #[error("the capture was invalidated: {source}")]
    Invalidated {
        /// The driver's error.
        source: DriverError,
    },
    /// Graph and stream belong to different devices.
    #[error("the graph is of CUDA device {graph_device}, the stream of {stream_device}")]
    WrongDevice {
        /// Ordinal of the graph's device.
        graph_device: u32,
        /// Ordinal of the stream's device.
        stream_device: u32,
    },
    /// The driver lacks graphs.
    #[error("the CUDA driver has no {symbol}; try: a driver for CUDA 11.4 (r470) or newer")]
    Unsupported {
        /// The missing function.
        symbol: &'static str,
    },
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Any failure of the CUDA side.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// Opening or asking a device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Loading kernels.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// Launching a kernel.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Memory.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// Graphs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A plain driver call.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_error_says_what_where_and_what_to_try() {
        let error = DriverError::new(100, "CUDA_ERROR_NO_DEVICE", "no device", "cuInit");
        let text = error.to_string();
        assert!(text.starts_with("cuInit failed with CUDA_ERROR_NO_DEVICE (100): no device; try:"));
        assert!(text.contains("CUDA_VISIBLE_DEVICES"));
        let bare = DriverError::new(12345, "unknown code", "none", "cuX");
        assert_eq!(bare.to_string(), "cuX failed with unknown code (12345): none");
    }

    #[test]
    fn the_codes_that_users_meet_have_hints() {
        for code in [2, 35, 36, 100, 209, 218, 222, 700, 719, 803] {
            assert!(!hint(code).is_empty(), "{code}");
        }
    }

    #[test]
    fn errors_carry_their_source() {
        use std::error::Error as _;
        let source = DriverError::new(218, "CUDA_ERROR_INVALID_PTX", "bad", "cuModuleLoadDataEx");
        let error = ModuleError::Jit {
            level: "sm_80".into(),
            log: "line 3".into(),
            source: source.clone(),
        };
        assert_eq!(error.source().and_then(|e| e.downcast_ref()), Some(&source));
        assert!(error.to_string().contains("line 3"));
    }

    #[test]
    fn only_faults_that_kill_the_context_are_sticky() {
        let of = |code| DriverError::new(code, "", "", "").is_sticky();
        assert!(of(700) && of(719));
        assert!(!of(2) && !of(600) && !of(701) && !of(900));
    }
}
