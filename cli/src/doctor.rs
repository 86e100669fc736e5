//! `bitnet doctor`: what this machine has, what would be used, and whether it works.
//!
//! [`bitnet_gpu::doctor`] looks and tests; this prints, as text or as JSON. No driver is a finding,
//! not a failure: the exit code is 0 unless a check failed or the device asked for cannot be had.

use crate::failure::Failure;
use crate::locate;
use crate::output::Output;
use bitnet_gpu::device_choice::DeviceChoice;
use bitnet_gpu::doctor::{self, Gpu, Report, SelfTest};
use bitnet_gpu::hub::HubSettings;
use clap::builder::FalseyValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory};
use serde::Serialize;

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// auto (the first GPU, else the CPU), cpu, cuda:N, several GPUs as cuda:N,M, or cuda:all
    #[arg(short, long, env = "BITNET_DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Do not run the kernel checks
    #[arg(long, env = "BITNET_NO_CHECKS", value_parser = FalseyValueParser::new())]
    no_checks: bool,
    /// Check only kernels with this in their name
    #[arg(short, long, value_name = "NAME", env = "BITNET_KERNEL", conflicts_with = "no_checks")]
    kernel: Option<String>,
}

/// Everything that doctor knows: the library's report, the settings of this program, the checks.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    machine: Report,
    settings: Vec<Setting>,
    /// What was tested against what; absent with `--no-checks`.
    self_test: Option<SelfTest>,
    /// Why the self-test could not start.
    self_test_problem: Option<String>,
}

/// An option with the value in force and its origin.
#[derive(Serialize)]
struct Setting {
    name: String,
    value: String,
    source: &'static str,
}

pub(crate) fn run(
    args: DoctorArgs,
    given: Option<&ArgMatches>,
    output: &Output,
) -> Result<(), Failure> {
    let options =
        doctor::Options { device: args.device.clone(), threads: None, kernels: args.kernel };
    let machine = doctor::report(&options);
    let source = given.and_then(|m| m.value_source("device"));
    let settings = settings(&args.device, source, &machine);
    let tested = (!args.no_checks).then(|| doctor::self_test(&options)).transpose();
    let (self_test, problem) = match tested {
        Ok(self_test) => (self_test, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let answer = Answer { machine, settings, self_test, self_test_problem: problem };
    if output.json {
        output.document(&answer)?;
    } else {
        output.stream(&text(&answer, output))?;
    }
    if let Some(problem) = answer.self_test_problem {
        let advice = problem.split_once("; try: ").map(|(_, advice)| advice);
        return Err(Failure::new(
            "the kernels could not be checked",
            cause(&problem),
            advice.unwrap_or("use --device cpu, or --no-checks to look only"),
        ));
    }
    let checks = answer.self_test.map_or(Vec::new(), |test| test.checks);
    let failed = checks.iter().filter(|check| !check.passed()).count();
    if failed > 0 {
        return Err(Failure::new(
            format!("{failed} of {} checks failed", checks.len()),
            "a kernel on this machine does not give the bits it must give",
            "use --device cpu, and report the output of bitnet doctor --json",
        ));
    }
    Ok(())
}

/// The part of an error before its advice.
fn cause(error: &str) -> &str {
    error.split_once("; try: ").map_or(error, |(cause, _)| cause)
}

/// Every option that has a variable set, and the ones whose default needs looking up.
fn settings(device: &DeviceChoice, source: Option<ValueSource>, machine: &Report) -> Vec<Setting> {
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
    names.push("HF_ENDPOINT".into());
    let ours = machine.variables.iter().map(|variable| variable.name.to_owned());
    names.extend(ours.filter(|name| name != "BITNET_DEVICE"));
    names.sort();
    names.dedup();
    for name in names.into_iter().filter(|name| is_set(name)) {
        let value = std::env::var(&name).unwrap_or_else(|_| "(not UTF-8)".into());
        settings.push(Setting { name, value, source: "environment" });
    }
    settings
}

fn text(answer: &Answer, output: &Output) -> String {
    let head = |title: &str| format!("{}\n", output.paint("1", title));
    let report = &answer.machine;
    let mut out = head("bitnet");
    out += &format!("  version   {} on {}\n", report.version, report.system);
    out += &format!("  built by  {}\n", report.built_with);
    out += &format!("  kernels   {}\n", report.kernels_built_with);
    out += &format!("  would use {}\n", report.would_use);
    out += &head("CPU");
    let cpu = &report.cpu;
    out += &format!("  cores     {}\n  features  {}\n", cpu.cores, cpu.features.join(" "));
    out += &format!("  vectors   {} of {}\n", cpu.level, cpu.levels.join(", "));
    out += &head("GPU");
    out += &gpu(&report.gpu);
    out += &head("Settings");
    for setting in &answer.settings {
        out += &format!("  {} = {} ({})\n", setting.name, setting.value, setting.source);
    }
    if let Some(test) = &answer.self_test {
        out += &head("Checks");
        out += &format!("  {} against {}, bit for bit\n", test.tested, test.against);
        for check in &test.checks {
            let mark = match (check.passed(), check.absent) {
                (true, false) => "ok",
                (true, true) => "not on this device:",
                (false, _) => "FAILED",
            };
            let failure = check.failure.as_ref().map(|f| format!(": {f}")).unwrap_or_default();
            out += &format!("  {mark} {} ({} cases){failure}\n", check.kernel, check.cases);
        }
        let passed = test.checks.iter().filter(|check| check.passed()).count();
        let total = test.checks.len();
        out += &format!("  {passed} of {total} kernels right, in {:.1} s\n", test.seconds);
    }
    out
}

fn gpu(gpu: &Gpu) -> String {
    let driver = gpu.driver.as_ref().map(|version| format!("for CUDA {version}"));
    let driver = driver.or(gpu.problem.clone()).unwrap_or_else(|| "no device was found".into());
    let mut out = format!("  driver    {}\n", cause(&driver));
    if let Some((_, advice)) = driver.split_once("; try: ") {
        out += &format!("  try       {advice}\n");
    }
    for device in &gpu.devices {
        let memory = crate::output::human_bytes(device.memory_bytes);
        let level = device.ptx.as_ref().map(|level| format!("loads PTX level {level}"));
        let level = level.or_else(|| device.problem.clone()).unwrap_or_default();
        let name = format!("{} {} {memory}", device.name, device.capability);
        out += &format!("  cuda:{}    {name}: {level}\n", device.index);
        for skipped in &device.skipped {
            out += &format!("            skipped {skipped}\n");
        }
    }
    for level in &gpu.ptx {
        // Up to hundreds of names: they stand in the JSON document.
        let lacks = match level.lacks.len() {
            0 => String::new(),
            some => format!(", not {some} of other levels"),
        };
        let line = format!("{} (ISA {}), {} kernels{lacks}", level.level, level.isa, level.kernels);
        out += &format!("  PTX       {line}\n");
    }
    out
}
