//! What this machine has, what would be used, and whether it works: as data.
//!
//! [`report`] looks, and starts a GPU only to ask its driver which PTX it takes. [`self_test`] runs
//! every kernel and compares bits. No driver and no GPU are findings, not failures.

mod self_test;

use serde::Serialize;

use crate::cpu::{Level, SIMD_VAR, Simd};
use crate::device_choice::{Backend, BackendChoice, DEVICE_VAR, DeviceChoice, cuda_count};

pub use self_test::{Check, SelfTest, SelfTestError, self_test};

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The device, or the GPUs, that are asked for.
    pub device: DeviceChoice,
    /// Threads of the CPU backend; by default one per available core.
    pub threads: Option<usize>,
    /// The kernels that [`self_test`] runs: those whose symbol contains this; by default all.
    pub kernels: Option<String>,
}

/// Everything that [`report`] finds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Version of this library.
    pub version: &'static str,
    /// Operating system and architecture, such as `linux x86_64`.
    pub system: String,
    /// The compiler of this build.
    pub built_with: &'static str,
    /// The compiler of the embedded PTX.
    pub kernels_built_with: &'static str,
    /// The CPU.
    pub cpu: Cpu,
    /// The NVIDIA side.
    pub gpu: Gpu,
    /// A sentence: which devices would run a model, and why.
    pub would_use: String,
    /// Whether the devices that were asked for can be had.
    pub usable: bool,
    /// Variables of the environment that this library or the driver reads, and that are set.
    pub variables: Vec<Variable>,
}

/// The CPU and how it would be used.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Cpu {
    /// Cores that this process may use.
    pub cores: usize,
    /// Instruction sets among those that could matter here.
    pub features: Vec<&'static str>,
    /// Vector levels that operations can run at, the fastest last.
    pub levels: Vec<&'static str>,
    /// The level that would run, or why the one that was asked for cannot.
    pub level: String,
}

/// The driver, its devices and the PTX of this build.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Gpu {
    /// Whether this build has the `cuda` feature.
    pub built: bool,
    /// Highest CUDA version of the driver, such as `12.4`, when there is a driver.
    pub driver: Option<String>,
    /// Why no device can be used.
    pub problem: Option<String>,
    /// Visible devices.
    pub devices: Vec<Device>,
    /// Embedded PTX, lowest level first.
    pub ptx: Vec<PtxLevel>,
}

/// One GPU.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Device {
    /// Position among the visible devices.
    pub index: u32,
    /// Marketing name.
    pub name: String,
    /// UUID as `nvidia-smi` writes it.
    pub uuid: String,
    /// Such as `sm_90`.
    pub capability: String,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Second-level cache in bytes.
    pub l2_bytes: u64,
    /// Threads of a block, at most.
    pub block_threads: u32,
    /// Shared memory of a block in bytes, at most.
    pub smem_bytes: u32,
    /// Whether a kernel can start before the previous one has ended.
    pub pdl: bool,
    /// PTX level that was loaded, or that would be tried first on a device that was not started.
    pub ptx: Option<String>,
    /// Levels that fit and that the driver refused, each with its reason.
    pub skipped: Vec<String>,
    /// Why the kernels cannot be loaded.
    pub problem: Option<String>,
}

/// One embedded PTX file.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PtxLevel {
    /// Such as `sm_80`.
    pub level: String,
    /// PTX ISA, such as `7.0`.
    pub isa: String,
    /// Kernels in it.
    pub kernels: usize,
    /// Kernels of the contract that it lacks.
    pub lacks: Vec<&'static str>,
}

/// A variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

/// Variables that this library and the driver read.
const VARIABLES: &[&str] = &[
    DEVICE_VAR,
    SIMD_VAR,
    "BITNET_PTX_LEVEL",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_PATH",
    "CUDA_MODULE_LOADING",
    "CUDA_LAUNCH_BLOCKING",
];

/// The part of an error before its advice.
fn cause(error: &str) -> &str {
    error.split_once("; try: ").map_or(error, |(cause, _)| cause)
}

/// Looks at this machine. Never fails: what cannot be had is part of the answer.
pub fn report(options: &Options) -> Report {
    let resolved = options.device.resolve();
    let ordinal = |device: &Backend| match device {
        Backend::Cuda(ordinal) => Some(*ordinal),
        Backend::Cpu => None,
    };
    let started: Vec<u32> = resolved.iter().flatten().filter_map(ordinal).collect();
    let gpu = gpu(&started);
    let found = |ordinal: &u32| gpu.devices.iter().find(|device| device.index == *ordinal);
    let auto = options.device == DeviceChoice::One(BackendChoice::Auto);
    let would_use = match &resolved {
        Err(error) => format!("nothing: {error}"),
        Ok(_) if started.is_empty() && auto => match &gpu.problem {
            Some(problem) => format!("the CPU: {}", cause(problem)),
            None => "the CPU: no CUDA device was found".into(),
        },
        Ok(_) if started.is_empty() => "the CPU, as asked".into(),
        Ok(_) => {
            let name = |ordinal| match found(ordinal) {
                Some(device) => format!("cuda:{ordinal} {}", device.name),
                None => format!("cuda:{ordinal}"),
            };
            started.iter().map(name).collect::<Vec<_>>().join(", ")
        }
    };
    let can = |ordinal: &u32| found(ordinal).is_some_and(|device| device.problem.is_none());
    let usable = resolved.is_ok() && started.iter().all(can);
    Report {
        version: env!("CARGO_PKG_VERSION"),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        built_with: env!("BITNET_BUILT_WITH"),
        kernels_built_with: env!("BITNET_KERNELS_BUILT_WITH"),
        cpu: cpu(),
        gpu,
        would_use,
        usable,
        variables: variables(|name| std::env::var_os(name)),
    }
}

fn variables(look: impl Fn(&str) -> Option<std::ffi::OsString>) -> Vec<Variable> {
    let set = |name: &&'static str| {
        let value = look(name).filter(|value| !value.is_empty())?;
        Some(Variable { name, value: value.to_string_lossy().into_owned() })
    };
    VARIABLES.iter().filter_map(set).collect()
}

fn cpu() -> Cpu {
    let asked = std::env::var(SIMD_VAR).ok();
    let level = match asked.map(|name| Simd::by_name(&name)) {
        None => Simd::detect().level().name().to_owned(),
        Some(Ok(simd)) => format!("{} ({SIMD_VAR})", simd.level().name()),
        Some(Err(error)) => format!("none: {SIMD_VAR}: {error}"),
    };
    Cpu {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        features: features(),
        levels: Simd::available().map(|simd| Level::name(simd.level())).collect(),
        level,
    }
}

fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let list = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx-vnni", is_x86_feature_detected!("avxvnni")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512-vnni", is_x86_feature_detected!("avx512vnni")),
    ];
    #[cfg(target_arch = "aarch64")]
    let list = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let list: [(&str, bool); 0] = [];
    list.into_iter().filter_map(|(name, found)| found.then_some(name)).collect()
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: &[u32]) -> Gpu {
    let problem = cuda_count().err().map(|error| error.to_string());
    Gpu { problem, ..Gpu::default() }
}

/// The GPU side; device `start` is started to load its kernels.
#[cfg(feature = "cuda")]
fn gpu(start: &[u32]) -> Gpu {
    use std::collections::HashSet;

    use crate::driver::{self, ptx};
    const ENTRY: &str = ".entry ";
    let mut images = ptx::IMAGES.to_vec();
    images.sort_by_key(|image| image.target());
    let levels = images.iter().map(|image| {
        let ptx = image.ptx().unwrap_or_default(); // a damaged one has no kernels
        let entries: HashSet<_> = ptx
            .match_indices(ENTRY)
            .filter_map(|(at, _)| ptx[at + ENTRY.len()..].split_once('(').map(|(name, _)| name))
            .collect();
        let has = |symbol: &str| entries.contains(symbol);
        let symbols = || contract::KERNELS.iter().map(|kernel| kernel.spec.symbol);
        PtxLevel {
            level: image.level.into(),
            isa: image.isa.into(),
            kernels: symbols().filter(|symbol| has(symbol)).count(),
            lacks: symbols().filter(|symbol| !has(symbol)).collect(),
        }
    });
    let mut gpu = Gpu { built: true, ptx: levels.collect(), ..Gpu::default() };
    match driver::Device::list() {
        Ok(devices) => {
            gpu.driver = devices.first().map(driver::DeviceInfo::driver_version_text);
            gpu.devices = devices.iter().map(|info| device(info, start)).collect();
            gpu.problem = devices.is_empty().then(|| "no device is visible".into());
        }
        Err(error) => gpu.problem = Some(error.to_string()),
    }
    // A count of zero is told apart from a driver that does not start.
    gpu.problem = gpu.problem.or_else(|| cuda_count().err().map(|error| error.to_string()));
    gpu
}

#[cfg(feature = "cuda")]
fn device(info: &crate::driver::DeviceInfo, start: &[u32]) -> Device {
    use crate::driver::{CudaError, Module, PTX_LEVEL_VAR, ptx};
    let mut device = Device {
        index: info.ordinal,
        name: info.name.clone(),
        uuid: info.uuid.clone(),
        capability: format!("sm_{}", info.sm),
        multiprocessors: info.sm_count,
        memory_bytes: info.memory_bytes as u64,
        l2_bytes: info.l2_bytes.into(),
        block_threads: info.limits.block_threads,
        smem_bytes: info.limits.smem_optin_bytes.max(info.limits.smem_bytes),
        pdl: info.supports_pdl(),
        ptx: None,
        skipped: Vec::new(),
        problem: None,
    };
    if start.contains(&info.ordinal) {
        let opened = crate::driver::Device::open(info.ordinal).map_err(CudaError::from);
        match opened.and_then(|device| Ok(Module::load(&device)?)) {
            Ok(module) => {
                device.ptx = Some(module.loaded_level().into());
                let why = |s: &crate::driver::error::PtxFallback| {
                    format!("{} (ISA {}): {}", s.level, s.isa, s.reason)
                };
                device.skipped = module.skipped().iter().map(why).collect();
            }
            Err(error) => device.problem = Some(error.to_string()),
        }
        return device;
    }
    let forced = std::env::var(PTX_LEVEL_VAR).ok().filter(|level| !level.is_empty());
    match ptx::candidates(ptx::IMAGES, info.sm, forced.as_deref()) {
        Ok(list) => device.ptx = list.first().map(|image| image.level.into()),
        Err(error) => device.problem = Some(error.to_string()),
    }
    device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_device_and_the_level() {
        let report = report(&Options { device: BackendChoice::Cpu.into(), ..Options::default() });
        assert!(report.usable);
        assert_eq!(report.would_use, "the CPU, as asked");
        assert!(report.cpu.cores > 0);
        assert_eq!(report.cpu.levels[0], "scalar");
        assert_eq!(report.gpu.built, cfg!(feature = "cuda"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cpu"]["levels"][0], "scalar");
    }

    #[test]
    fn a_device_that_is_not_there_is_a_finding() {
        for device in [BackendChoice::Cuda(u32::MAX).into(), DeviceChoice::Cuda(vec![u32::MAX])] {
            let report = report(&Options { device, ..Options::default() });
            assert!(!report.usable);
            assert!(report.would_use.starts_with("nothing: device cuda:4294967295"), "{report:?}");
        }
    }

    #[test]
    fn only_variables_that_are_set_are_listed() {
        let look = |name: &str| match name {
            "BITNET_DEVICE" => Some("cpu".into()),
            "CUDA_VISIBLE_DEVICES" => Some("".into()),
            _ => None,
        };
        assert_eq!(variables(look), [Variable { name: "BITNET_DEVICE", value: "cpu".into() }]);
    }
}
