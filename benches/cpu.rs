//! `w2a8_gemv` and `w2a8_gemm` on the CPU backend, timed by criterion, against what the machine
//! reads per second.
//!
//! The control is a plain sum over a buffer far larger than any cache, on all threads, in this
//! process: the best of several passes. GEMV weights rotate over distinct copies of the same total
//! size, so that they come from memory, as they do in a model. Every case is first compared with the
//! naive reference, bit for bit. `--device`, `--pdl` and the like belong to the GPU benchmarks.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use bitnet_benches::{
    Case, Linear, Options, Quantiles, Report, Row, Timing, cpu_name, load_average, read_gb_per_s,
    same_bits,
};
use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::ops::Backend;
use clap::Parser;
use criterion::Criterion;

/// `(m, n, k)`: decode and prefill of the 2B-4T model.
const SHAPES: &[(usize, usize, usize)] = &[
    (1, 3840, 2560),
    (1, 2560, 2560),
    (1, 13_824, 2560),
    (1, 2560, 6912),
    (1, 20_480, 3200),
    (16, 3840, 2560),
    (16, 13_824, 2560),
    (64, 2560, 6912),
];
/// Bytes of the control's buffer, and of the weights that a GEMV rotates over.
const COLD_BYTES: usize = 256 << 20;
/// Outputs that are compared with the naive reference.
const COMPARED: usize = 512;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cpu: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    let cpu = CpuBackend::new(None)?;
    let mut report = Report::new("cpu", &cpu_name());
    let threads = cpu.threads().count();
    report.conditions.more =
        [("backend".to_owned(), cpu.describe().into()), ("threads".to_owned(), threads.into())]
            .into();
    if let Some(load) = load_average() {
        report.conditions.more.insert("load average at the start".into(), load.into());
        if load > 0.5 {
            report.notes.push("the machine was not idle: figures are too low".into());
        }
    }
    let read = read_gb_per_s(COLD_BYTES, threads);
    let what = format!("sum over {} MiB on {threads} threads (reads)", COLD_BYTES >> 20);
    report.control.gb_per_s.insert(what, read);
    report.control.best_gb_per_s = read;
    println!("cpu on {}: reads {read:.1} GB/s", cpu.describe());

    let scratch = tempfile::tempdir()?;
    let mut criterion = Criterion::default()
        .output_directory(scratch.path())
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .sample_size(20);
    for &(m, n, k) in SHAPES {
        let name = format!("{m}x{n}x{k}");
        if options.wants(&name) {
            let case = Linear::new(m, n, k);
            let compared = compare(&cpu, &case).with_context(|| name.clone())?;
            let mut row = measure(&cpu, &mut criterion, &case, read)?;
            row.compared = compared;
            report.rows.push(row);
        }
    }
    report.notes.push("cases are M x N x K; M = 1 is the GEMV, more the GEMM".into());
    if report.rows.is_empty() {
        println!("no case contains `{}`", options.filter.unwrap_or_default());
        return Ok(());
    }
    for path in report.write(&options.out)? {
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// The bits against plain loops over unpacked codes.
fn compare(cpu: &CpuBackend, case: &Linear) -> anyhow::Result<u64> {
    let mut tensors = case.tensors(cpu)?;
    case.run(cpu, &mut tensors)?;
    let found = case.output(cpu, &tensors)?;
    let rows = case.n.min(COMPARED);
    let (mut some, mut expected) = (Vec::new(), Vec::new());
    // The first and the last row of activations, each with rows of weights spread over all segments.
    for m in [0, case.m - 1] {
        for i in 0..rows {
            let n = i * case.n / rows;
            some.push(found[m * case.n + n]);
            expected.push(case.naive(m, n).to_bits());
        }
    }
    same_bits("w2a8", &some, &expected)?;
    Ok(some.len() as u64)
}

/// Times a case with criterion.
fn measure(
    cpu: &CpuBackend,
    criterion: &mut Criterion,
    case: &Linear,
    read_gb_per_s: f64,
) -> anyhow::Result<Row> {
    let copies = COLD_BYTES.div_ceil(case.bytes() as usize).max(2);
    let mut tensors = (0..copies).map(|_| case.tensors(cpu)).collect::<Result<Vec<_>, _>>()?;
    let mut failure = None;
    let mut seconds = Vec::new();
    let mut next = 0;
    criterion.bench_function(&case.name(), |bencher| {
        // Criterion decides how many calls make a sample; each sample is kept for the report.
        bencher.iter_custom(|calls| {
            let started = Instant::now();
            for _ in 0..calls {
                next = (next + 1) % copies;
                if let Err(error) = case.run(cpu, &mut tensors[next]) {
                    failure.get_or_insert(error);
                }
            }
            let elapsed = started.elapsed();
            seconds.push((calls, elapsed.as_secs_f64()));
            elapsed
        });
    });
    if let Some(error) = failure {
        return Err(error.into());
    }
    // The last samples are the measurement; those before are criterion's warm-up.
    let samples = &seconds[seconds.len().saturating_sub(20)..];
    let us = samples.iter().map(|&(calls, s)| 1e6 * s / calls as f64).collect();
    let us = Quantiles::of(us).context("criterion took no sample")?;
    let gb_per_s = case.bytes() as f64 / us.median / 1e3;
    let cold = Timing {
        us,
        launches: samples.iter().map(|s| s.0 as usize).sum(),
        copies,
        replays: samples.len(),
        gb_per_s,
        percent_of_control: 100.0 * gb_per_s / read_gb_per_s,
    };
    let mut row =
        Row { case: case.name(), bytes: case.bytes(), cold: Some(cold), ..Row::default() };
    let products = (case.m * case.n * case.k) as f64;
    row.set("int8_giga_ops_per_s", 2.0 * products / us.median / 1e3);
    Ok(row)
}
