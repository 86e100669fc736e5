//! Host time of a call: checks, choice of the kernel, its plan, memory, arguments, up to the
//! driver.
//!
//! With a driver whose launches return at once that is all there is to measure:
//!
//! ```text
//! BITNET_EMULATED_LAUNCHES=0 cargo xtask emulate cargo bench -p bitnet-benches --bench host_time
//! ```
//!
//! On a GPU the driver's part of a launch is in the figures. Calls are timed [`QUEUED`] at a time
//! with an empty queue in front of them, so that none waits for the device; the figures are medians
//! over these, so that a call that the system interrupts is not in them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bitnet_benches::{
    Case, Options, Quantiles, Report, Row, blank, cpu_name, load_average, upload,
};
use bitnet_gpu::driver::{CudaOptions, launch_count};
use bitnet_gpu::ops::{Backend, CudaBackend};
use clap::Parser;
use criterion::Criterion;

#[path = "host_time/convolutions.rs"]
mod convolutions;
#[path = "host_time/models.rs"]
mod models;
#[path = "host_time/products.rs"]
mod products;
#[path = "host_time/rows.rs"]
mod rows;

/// Calls that are timed at once: few enough for a driver's queue.
const QUEUED: u64 = 64;

/// The benchmark under way.
struct Host {
    options: Options,
    gpu: CudaBackend,
    criterion: Criterion,
    report: Report,
    _scratch: tempfile::TempDir,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("host_time: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    let gpu = CudaBackend::open(CudaOptions::new(options.device).pdl(options.pdl))?;
    let mut report = Report::new("host_time", &cpu_name());
    let runs = launches_run(&gpu)?;
    let launches = if runs { "run: the driver's part is in the figures" } else { "return at once" };
    report.conditions.more = [
        ("device".to_owned(), gpu.describe().into()),
        ("multiprocessors".to_owned(), gpu.cuda().device().sm_count().into()),
        ("launches".to_owned(), launches.into()),
        ("load average at the start".to_owned(), load_average().into()),
    ]
    .into();
    println!("host_time on {}; launches {launches}", gpu.describe());
    let scratch = tempfile::tempdir()?;
    let criterion = Criterion::default()
        .output_directory(scratch.path())
        .warm_up_time(Duration::from_millis(20))
        .measurement_time(Duration::from_millis(100))
        .sample_size(options.samples as usize)
        .nresamples(2000);
    let mut host = Host { options, gpu, criterion, report, _scratch: scratch };
    rows::measure(&mut host)?;
    products::measure(&mut host)?;
    convolutions::measure(&mut host)?;
    models::measure(&mut host)?;
    let Host { options, report, .. } = host;
    if report.rows.is_empty() {
        println!("no case contains `{}`", options.filter.unwrap_or_default());
        return Ok(());
    }
    for path in report.write(&options.out)? {
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Whether a kernel that is launched writes its output.
fn launches_run(gpu: &CudaBackend) -> anyhow::Result<bool> {
    use bitnet_gpu::ops::elementwise::{Elementwise, Function};
    let (a, mut y) = (upload(gpu, &[1.0f32])?, blank::<_, f32>(gpu, 1)?);
    let function = Function::Affine { alpha: 2.0, beta: 0.0 };
    gpu.elementwise(Elementwise { a: &a, function, relu: false, y: &mut y, m: 1, k: 1 })?;
    let mut found = [0.0f32];
    gpu.read(&y, 0, &mut found)?;
    ensure!(found[0] == 2.0 || found[0].to_bits() == u32::MAX, "a launch gave {}", found[0]);
    Ok(found[0] == 2.0)
}

impl Host {
    /// Whether a case of this name was asked for.
    fn wants(&self, name: &str) -> bool {
        self.options.wants(name)
    }

    /// Times `call`, whose tensors `make` makes, if it was asked for.
    fn time<T, E: Into<anyhow::Error>>(
        &mut self,
        name: &str,
        make: impl FnOnce(&CudaBackend) -> anyhow::Result<T>,
        mut call: impl FnMut(&CudaBackend, &mut T) -> Result<(), E>,
    ) -> anyhow::Result<()> {
        if !self.wants(name) {
            return Ok(());
        }
        let mut tensors = make(&self.gpu).with_context(|| name.to_owned())?;
        self.measure(name, &mut |gpu| call(gpu, &mut tensors).map_err(Into::into))
    }

    /// Times `call`.
    fn measure(
        &mut self,
        name: &str,
        call: &mut dyn FnMut(&CudaBackend) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // The first call loads the kernels.
        call(&self.gpu).with_context(|| name.to_owned())?;
        let before = launch_count();
        call(&self.gpu)?;
        let launches = launch_count() - before;
        let mut failure = None;
        let mut samples = Vec::new();
        let gpu = &self.gpu;
        self.criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|calls| {
                let (mut sum, mut queues) = (Duration::ZERO, Vec::new());
                let mut left = calls;
                while left > 0 {
                    let now = left.min(QUEUED);
                    let started = Instant::now();
                    let result = (0..now).try_for_each(|_| call(gpu));
                    let elapsed = started.elapsed();
                    sum += elapsed;
                    queues.push(1e6 * elapsed.as_secs_f64() / now as f64);
                    if let Err(error) =
                        result.and_then(|()| Ok(gpu.cuda().device().synchronize()?))
                    {
                        failure.get_or_insert(error);
                    }
                    left -= now;
                }
                samples.push(queues);
                sum
            });
        });
        if let Some(error) = failure {
            return Err(error).with_context(|| name.to_owned());
        }
        // The last samples are the measurement; those before are criterion's warm-up.
        let warm_up = samples.len().saturating_sub(self.options.samples as usize);
        let us = Quantiles::of(samples.split_off(warm_up).concat());
        let us = us.context("criterion took no sample")?;
        let mut row = Row { case: name.to_owned(), ..Row::default() };
        row.set("launches", launches);
        row.set("us", us.median);
        row.set("p10_us", us.p10);
        row.set("p90_us", us.p90);
        println!("  {name:<48} {launches} launches {:8.2} us ({:.2})", us.median, us.p10);
        self.report.rows.push(row);
        Ok(())
    }

    /// The same for a case of another benchmark.
    fn time_case(&mut self, name: &str, case: &impl Case) -> anyhow::Result<()> {
        self.time(name, |gpu| Ok(case.tensors(gpu)?), |gpu, tensors| case.run(gpu, tensors))
    }
}
