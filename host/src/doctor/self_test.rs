//! Every kernel against another implementation of the same contract, bit for bit.
//!
//! With a GPU: each kernel of [`contract::KERNELS`], every GEMV variant among them, against the CPU
//! backend. Without one: each vector level of the CPU against the plain code. The cases are those of
//! [`crate::selftest`]; memory is poisoned and guarded there.

use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use contract::launch::KernelInfo;
#[cfg(feature = "cuda")]
use contract::launch::LaunchSpec;
use serde::Serialize;
use thiserror::Error;

use crate::cpu::{CpuBackend, CpuError, CpuOptions, Simd};
use crate::device_choice::{Backend as Chosen, ChoiceError};
use crate::ops::{Backend, OpError};
use crate::selftest::{Case, Output, RunError, cases, difference};

use super::Options;

/// A self-test that could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SelfTestError {
    /// The device that was asked for cannot be had.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The GPU cannot be opened.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The CPU backend cannot be made.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// No kernel of the device has such a name.
    #[error("no kernel here has `{0}` in its name; try: part of a name that bitnet doctor lists")]
    NoKernel(String),
}

/// What the self-test found.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SelfTest {
    /// What was tested.
    pub tested: String,
    /// What gave the bits to hold it against.
    pub against: String,
    /// Wall time in seconds.
    pub seconds: f64,
    /// One row for each kernel that was asked for, in the order of [`contract::KERNELS`].
    pub checks: Vec<Check>,
}

impl SelfTest {
    /// Whether every kernel gave the right bits.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(Check::passed)
    }
}

/// One kernel.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Its symbol.
    pub kernel: &'static str,
    /// Cases that ran.
    pub cases: usize,
    /// Whether the tested device cannot have it: it is for newer ones.
    pub absent: bool,
    /// The first case that went wrong: its shape, and the first element that differs or the error.
    pub failure: Option<String>,
}

impl Check {
    /// Whether all cases ran and gave the right bits, or none can.
    pub fn passed(&self) -> bool {
        (self.cases > 0 || self.absent) && self.failure.is_none()
    }
}

/// Tests the device of `options`: a GPU, or each of several, against the CPU, or the CPU's vectors against plain code.
///
/// # Errors
/// A device that cannot be had or opened, a name that no kernel has. A kernel that gives wrong bits is a row of the
/// result.
pub fn self_test(options: &Options) -> Result<SelfTest, SelfTestError> {
    let started = Instant::now();
    let threads = options.threads;
    let wanted = |symbol: &str| options.kernels.as_deref().is_none_or(|name| symbol.contains(name));
    let cases: Vec<Case> = cases().into_iter().filter(|case| wanted(case.kernel)).collect();
    let devices = options.device.resolve()?;
    let (tested, against, checks) = match devices[0] {
        Chosen::Cpu => {
            let (plain, tested) = cpus(threads)?;
            let names: Vec<_> = tested.iter().map(|b| b.simd().level().name()).collect();
            let names = format!("cpu {}", names.join(", "));
            (names, plain.describe(), beside_each_other(threads, &cases, wanted)?)
        }
        #[cfg(feature = "cuda")]
        Chosen::Cuda(_) => {
            let ordinals = devices.iter().filter_map(|device| match device {
                Chosen::Cuda(ordinal) => Some(*ordinal),
                Chosen::Cpu => None,
            });
            gpus(ordinals, threads, cases, wanted)?
        }
        #[cfg(not(feature = "cuda"))]
        Chosen::Cuda(ordinal) => {
            let source = crate::driver::DeviceError::NotBuilt;
            return Err(ChoiceError::Cuda { ordinal, source }.into());
        }
    };
    if let (true, Some(name)) = (checks.is_empty(), &options.kernels) {
        return Err(SelfTestError::NoKernel(name.clone()));
    }
    Ok(SelfTest { tested, against, seconds: started.elapsed().as_secs_f64(), checks })
}

/// The checks of GPUs: what each has, against the CPU.
#[cfg(feature = "cuda")]
fn gpus(
    ordinals: impl Iterator<Item = u32>,
    threads: Option<usize>,
    cases: Vec<Case>,
    wanted: impl Fn(&str) -> bool,
) -> Result<(String, String, Vec<Check>), SelfTestError> {
    let open = |ordinal| crate::ops::CudaBackend::open(crate::driver::CudaOptions::new(ordinal));
    let gpus = ordinals.map(open).collect::<Result<Vec<_>, _>>()?;
    let here = |kernel: &KernelInfo| {
        let is_in =
            |gpu: &crate::ops::CudaBackend| is_in(gpu.cuda().module().loaded_level(), &kernel.spec);
        gpus.iter().any(is_in) && wanted(kernel.spec.symbol)
    };
    let has =
        |case: &Case| contract::KERNELS.iter().any(|k| k.spec.symbol == case.kernel && here(k));
    let cases: Vec<Case> = cases.into_iter().filter(has).collect();
    let family = |name: &str| cases.iter().any(|c| contract::family_of(c.kernel) == Some(name));
    // The CPU's side beside the driver's compiler, whose longest kernels leave cores free.
    let (cpu, expected) = thread::scope(|scope| {
        let expected = scope.spawn(|| -> Result<_, CpuError> {
            let cpu = CpuBackend::open(CpuOptions { threads, ..CpuOptions::default() })?;
            let outputs: Vec<_> = cases.iter().map(|case| case.outputs(&cpu)).collect();
            Ok((cpu.describe(), outputs))
        });
        // A kernel that the driver refuses is refused again in its own case, which says so.
        for gpu in &gpus {
            let _ = gpu.cuda().module().compile(family);
        }
        expected.join().unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    let names: Vec<_> = gpus.iter().map(Backend::describe).collect();
    let tested: Vec<_> = gpus.iter().collect();
    let checks = compare(&tested, &cpu, cases.iter().zip(expected), here);
    Ok((names.join(", "), cpu, checks))
}

/// Whether the PTX level `sm_NN` or `sm_NNa` should have a kernel: its variants for newer GPUs are no
/// part of an older one.
#[cfg(feature = "cuda")]
fn is_in(level: &str, spec: &LaunchSpec) -> bool {
    if spec.not_in_sm_90a && level == "sm_90a" {
        return false;
    }
    let name = level.trim_start_matches("sm_");
    let sm: u32 = name.trim_end_matches('a').parse().unwrap_or(0);
    sm >= spec.min_sm && (!spec.arch_specific || sm == spec.min_sm && name.ends_with('a'))
}

/// Plain code, and each vector level of this machine.
fn cpus(threads: Option<usize>) -> Result<(CpuBackend, Vec<CpuBackend>), CpuError> {
    let plain = CpuOptions { threads: Some(1), simd: Some(Simd::SCALAR) };
    let tested =
        Simd::available().map(|simd| CpuBackend::open(CpuOptions { threads, simd: Some(simd) }));
    Ok((CpuBackend::open(plain)?, tested.collect::<Result<_, _>>()?))
}

/// The checks of the CPU. Most of a case's time is plain code on one thread, so each core takes cases of its own.
fn beside_each_other(
    threads: Option<usize>,
    cases: &[Case],
    wanted: impl Fn(&str) -> bool + Sync,
) -> Result<Vec<Check>, CpuError> {
    let wanted = &wanted;
    let workers = thread::available_parallelism().map_or(1, usize::from).min(8);
    let parts: Vec<Result<Vec<Check>, CpuError>> = thread::scope(|scope| {
        let part = |worker| {
            scope.spawn(move || {
                let (plain, tested) = cpus(threads)?;
                let cases = cases.iter().skip(worker).step_by(workers);
                let cases = cases.map(|case| (case, case.outputs(&plain)));
                let tested: Vec<_> = tested.iter().collect();
                Ok(compare(&tested, &plain.describe(), cases, |k| wanted(k.spec.symbol)))
            })
        };
        let running: Vec<_> = (0..workers).map(part).collect();
        let ended = running.into_iter().map(thread::ScopedJoinHandle::join);
        ended.map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut checks: Vec<Check> = Vec::new();
    for part in parts {
        let part = part?;
        if checks.is_empty() {
            checks = part;
            continue;
        }
        for (check, other) in checks.iter_mut().zip(part) {
            check.cases += other.cases;
            check.absent |= other.absent;
            check.failure = check.failure.take().or(other.failure);
        }
    }
    Ok(checks)
}

/// One check for each of `kernels`, over all of `tested`; each case comes with what it must give, by `against`.
fn compare<'a, B: Backend>(
    tested: &[&B],
    against: &str,
    cases: impl Iterator<Item = (&'a Case, Result<Vec<Output>, RunError>)>,
    kernels: impl Fn(&KernelInfo) -> bool,
) -> Vec<Check> {
    let mut checks: Vec<Check> = contract::KERNELS
        .iter()
        .filter(|kernel| kernels(kernel))
        .map(|kernel| Check { kernel: kernel.spec.symbol, cases: 0, absent: false, failure: None })
        .collect();
    for (case, expected) in cases {
        let Some(check) = checks.iter_mut().find(|check| check.kernel == case.kernel) else {
            continue;
        };
        // Where several are tested, a kernel is there if one of them has it.
        let mut lacking = 0;
        let failure = match expected {
            Err(error) => Some(format!("{against}: {error}")),
            Ok(expected) => tested.iter().find_map(|&backend| {
                let failed = match case.outputs(backend) {
                    Ok(found) => difference(&found, &expected)?.to_string(),
                    Err(RunError::Op(error)) if error.is_absent() => {
                        lacking += 1;
                        return None;
                    }
                    Err(error) => error.to_string(),
                };
                Some(format!("{}: {failed}", backend.describe()))
            }),
        };
        check.absent |= lacking == tested.len();
        check.cases += usize::from(!check.absent);
        check.failure =
            check.failure.take().or(failure.map(|failure| format!("{}: {failure}", case.what)));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_choice::BackendChoice;

    #[cfg(feature = "cuda")]
    #[test]
    fn a_level_has_what_its_gpus_can_run() {
        let plain = LaunchSpec::new("k", 32);
        for (level, spec, expected) in [
            ("sm_53", plain, true),
            ("sm_75", plain.with_min_sm(80), false),
            ("sm_90", plain.with_min_sm(80), true),
            ("sm_90a", plain.only_on(90), true),
            ("sm_90", plain.only_on(90), false),
            ("sm_100a", plain.only_on(90), false),
            ("sm_90", plain.not_in_sm_90a(), true),
            ("sm_90a", plain.not_in_sm_90a(), false),
        ] {
            assert_eq!(is_in(level, &spec), expected, "{level} {spec:?}");
        }
    }

    #[test]
    fn every_kernel_of_the_contract_is_checked_on_the_cpu() {
        let device = BackendChoice::Cpu.into();
        let options = Options { device, threads: Some(2), kernels: None };
        let result = self_test(&options).unwrap();
        assert_eq!(result.checks.len(), contract::KERNELS.len());
        for check in &result.checks {
            assert!(check.passed(), "{check:?}");
        }
        // 17 s alone on two cores, less optimised and beside other programs several times as long.
        assert!(result.passed() && result.seconds < 90.0, "{} s", result.seconds);
    }

    #[test]
    fn a_part_of_a_name_chooses_kernels() {
        let named = |name: &str| Options {
            device: BackendChoice::Cpu.into(),
            threads: Some(1),
            kernels: Some(name.into()),
        };
        let result = self_test(&named("w2a8_trits_l32")).unwrap();
        assert!(result.passed() && !result.checks.is_empty());
        assert!(result.checks.iter().all(|check| check.kernel.contains("w2a8_trits_l32")));
        let refused = self_test(&named("no such kernel"));
        assert!(matches!(refused, Err(SelfTestError::NoKernel(name)) if name == "no such kernel"));
    }
}
