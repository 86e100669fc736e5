//! `bitnet doctor`: what this machine has, what would be used, and whether it works.
//!
//! [`Report`] is the whole answer; it is printed as text or as JSON. No driver is a finding, not a
//! failure: the exit code is 0 unless a check failed.

use crate::failure::Failure;
use crate::locate;
use crate::output::Output;
use bitnet_gpu::device_choice::{Backend, BackendChoice};
use bitnet_gpu::hub::HubSettings;
use clap::builder::FalseyValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory};
use serde::Serialize;

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// auto, cpu, cuda or cuda:N
    #[arg(short, long, env = "BITNET_DEVICE", default_value = "auto")]
    device: BackendChoice,
    /// Do not run the kernel checks
    #[arg(long, env = "BITNET_NO_CHECKS", value_parser = FalseyValueParser::new())]
    no_checks: bool,
}

/// Everything that doctor knows.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    system: String,
    cpu: Cpu,
    /// Sentence for people: what `auto` would take, and why.
    would_use: String,
    gpu: Gpu,
    settings: Vec<Setting>,
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct Cpu {
    cores: usize,
    /// Instruction sets that the CPU backend can use here.
    features: Vec<&'static str>,
}

/// The NVIDIA side.
#[derive(Default, Serialize)]
struct Gpu {
    /// Whether this program was built with the `cuda` feature.
    built: bool,
    /// Driver version, when there is a driver.
    driver: Option<String>,
    /// Why there is none.
    problem: Option<String>,
    devices: Vec<Device>,
    ptx: Vec<PtxLevel>,
}

#[derive(Serialize)]
struct Device {
    index: u32,
    name: String,
    uuid: String,
    /// Such as `sm_90`.
    capability: String,
    multiprocessors: u32,
    memory_bytes: u64,
    /// PTX level that would be loaded.
    ptx: Option<String>,
    /// Why no level would be loaded.
    problem: Option<String>,
}

#[derive(Serialize)]
struct PtxLevel {
    /// Such as `sm_80`.
    level: String,
    /// PTX ISA, such as `7.0`.
    isa: String,
    kernels: usize,
}

/// An option with the value in force and its origin.
#[derive(Serialize)]
struct Setting {
    name: String,
    value: String,
    source: &'static str,
}

#[derive(Serialize)]
struct Check {
    name: String,
    passed: bool,
    detail: String,
}

pub(crate) fn run(
    args: DoctorArgs,
    given: Option<&ArgMatches>,
    output: &Output,
) -> Result<(), Failure> {
    let gpu = gpu();
    let would_use = would_use(args.device, &gpu);
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        cpu: cpu(),
        would_use,
        checks: if args.no_checks { Vec::new() } else { checks(args.device) },
        gpu,
        settings: settings(args.device, given.and_then(|m| m.value_source("device"))),
    };
    if output.json {
        output.document(&report)?;
    } else {
        output.stream(&text(&report, output))?;
    }
    let failed = report.checks.iter().filter(|c| !c.passed).count();
    if failed > 0 {
        return Err(Failure::new(
            format!("{failed} of {} checks failed", report.checks.len()),
            "a kernel on this machine does not give the bits it must give",
            "use --device cpu, and report the output of bitnet doctor --json",
        ));
    }
    Ok(())
}

/// Driver, devices and PTX levels.
#[cfg(feature = "cuda")]
fn gpu() -> Gpu {
    use bitnet_gpu::driver::{self, ptx};
    let mut gpu = Gpu { built: true, ..Gpu::default() };
    gpu.ptx = ptx::IMAGES
        .iter()
        .map(|image| PtxLevel {
            level: image.level.into(),
            isa: image.isa.into(),
            // Every entry point of a PTX file is one such line.
            kernels: image.ptx.lines().filter(|l| l.contains(".visible .entry")).count(),
        })
        .collect();
    let devices = match driver::Device::list() {
        Ok(devices) => devices,
        Err(error) => {
            gpu.problem = Some(error.to_string());
            return gpu;
        }
    };
    gpu.driver = devices.first().map(|d| format!("for CUDA {}", d.driver_version_text()));
    let forced = std::env::var(driver::PTX_LEVEL_VAR).ok().filter(|level| !level.is_empty());
    for device in devices {
        let level = ptx::candidates(ptx::IMAGES, device.sm, forced.as_deref());
        gpu.devices.push(Device {
            index: device.ordinal,
            name: device.name,
            uuid: device.uuid,
            capability: format!("sm_{}", device.sm),
            multiprocessors: device.sm_count,
            memory_bytes: device.memory_bytes as u64,
            ptx: level.as_ref().ok().and_then(|l| Some(l.first()?.level.to_owned())),
            problem: level.err().map(|error| error.to_string()),
        });
    }
    gpu
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> Gpu {
    Gpu {
        problem: Some("this program was built without the cuda feature".into()),
        ..Gpu::default()
    }
}

/// Every kernel variant of this machine against the CPU.
fn checks(_: BackendChoice) -> Vec<Check> {
    Vec::new()
}

/// What a command with this `--device` would run on.
fn would_use(choice: BackendChoice, gpu: &Gpu) -> String {
    match choice.resolve() {
        Ok(Backend::Cpu) if choice == BackendChoice::Cpu => "the CPU, as asked".into(),
        Ok(Backend::Cpu) => match &gpu.problem {
            Some(problem) => format!("the CPU: {problem}"),
            None => "the CPU: no CUDA device was found".into(),
        },
        Ok(Backend::Cuda(index)) => match gpu.devices.iter().find(|d| d.index == index) {
            Some(device) => format!("cuda:{index} {}", device.name),
            None => format!("cuda:{index}"),
        },
        Err(error) => format!("nothing: {error}"),
    }
}

fn cpu() -> Cpu {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_mut))]
    let mut features = Vec::new();
    #[cfg(target_arch = "x86_64")]
    for (name, found) in [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx-vnni", is_x86_feature_detected!("avxvnni")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512-vnni", is_x86_feature_detected!("avx512vnni")),
    ] {
        if found {
            features.push(name);
        }
    }
    #[cfg(target_arch = "aarch64")]
    for (name, found) in [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
    ] {
        if found {
            features.push(name);
        }
    }
    Cpu { cores, features }
}

/// Every option that has a variable set, and the ones whose default needs looking up.
fn settings(device: BackendChoice, source: Option<ValueSource>) -> Vec<Setting> {
    let from = |set: bool| if set { "environment" } else { "default" };
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    // Only looked at: a hub name must not start a download here.
    let demo = || locate::demo_here().ok().map(|path| path.display().to_string());
    let model = std::env::var("BITNET_MODEL").ok().filter(|m| !m.is_empty()).or_else(demo);
    let hub = HubSettings::from_env();
    let hub_set = ["HF_HUB_CACHE", "HF_HOME"].iter().any(|n| is_set(n));
    let mut settings = vec![
        Setting {
            name: "device".into(),
            value: device.to_string(),
            source: match source {
                Some(ValueSource::CommandLine) => "flag",
                Some(ValueSource::EnvVariable) => "environment",
                _ => "default",
            },
        },
        Setting {
            name: "model".into(),
            value: model.unwrap_or_else(|| "(none found)".into()),
            source: from(is_set("BITNET_MODEL")),
        },
        Setting {
            name: "hub cache".into(),
            value: hub.cache.display().to_string(),
            source: from(hub_set),
        },
        Setting {
            name: "hub offline".into(),
            value: hub.offline.to_string(),
            source: from(is_set("HF_HUB_OFFLINE")),
        },
    ];
    let mut names: Vec<String> = crate::args::Cli::command()
        .get_subcommands()
        .flat_map(|c| c.get_arguments())
        .filter_map(|a| Some(a.get_env()?.to_str()?.to_owned()))
        .filter(|name| !["BITNET_DEVICE", "BITNET_MODEL"].contains(&name.as_str()))
        .collect();
    names.extend(["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HF_ENDPOINT"].map(String::from));
    names.sort();
    names.dedup();
    for name in names.into_iter().filter(|name| is_set(name)) {
        let value = std::env::var(&name).unwrap_or_else(|_| "(not UTF-8)".into());
        settings.push(Setting { name, value, source: "environment" });
    }
    settings
}

fn text(report: &Report, output: &Output) -> String {
    let head = |title: &str| format!("{}\n", output.paint("1", title));
    let mut out = head("bitnet");
    out += &format!("  version   {} on {}\n", report.version, report.system);
    out += &format!("  would use {}\n", report.would_use);
    out += &head("CPU");
    out += &format!(
        "  cores     {}\n  features  {}\n",
        report.cpu.cores,
        report.cpu.features.join(" ")
    );
    out += &head("GPU");
    let gpu = &report.gpu;
    let driver = gpu.driver.as_ref().or(gpu.problem.as_ref());
    out += &format!("  driver    {}\n", driver.map_or("no device was found", String::as_str));
    for device in &gpu.devices {
        let memory = crate::output::human_bytes(device.memory_bytes);
        let level = device.ptx.as_ref().map(|level| format!("loads PTX level {level}"));
        let level = level.or_else(|| device.problem.clone()).unwrap_or_default();
        let name = format!("{} {} {memory}", device.name, device.capability);
        out += &format!("  cuda:{}    {name}: {level}\n", device.index);
    }
    for level in &gpu.ptx {
        let line = format!("{} (ISA {}), {} kernels", level.level, level.isa, level.kernels);
        out += &format!("  PTX       {line}\n");
    }
    out += &head("Settings");
    for setting in &report.settings {
        out += &format!("  {} = {} ({})\n", setting.name, setting.value, setting.source);
    }
    if !report.checks.is_empty() {
        out += &head("Checks");
    }
    for check in &report.checks {
        let mark = if check.passed { "ok" } else { "FAILED" };
        out += &format!("  {mark} {} {}\n", check.name, check.detail);
    }
    out
}
