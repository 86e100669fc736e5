//! [`contract::lut_matmul`] on the CPU backend beside `w2a8_gemv`, in turns on the same weights, on
//! one thread and on all, with AVX2 and with the best instructions of the machine.
//!
//! Weights rotate over copies of [`COLD_BYTES`] in all, so that they come from memory, as they do in a
//! model. A sample is one pass over the copies; the arms take turns pass by pass. Results are first
//! compared with those of `w2a8_gemv`. `--device`, `--pdl` and the like belong to the GPU benchmarks.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::Context;
use bitnet_benches::{
    Arm, Case, Lookup, Options, Quantiles, Report, Row, Timing, Weights, cpu_name, load_average,
    read_gb_per_s,
};
use bitnet_gpu::cpu::{CpuBackend, CpuOptions, Simd};
use clap::Parser;
use contract::lut_matmul::Form;

/// `(n, k)`: the layers of the 2B-4T model.
const SHAPES: &[(usize, usize)] = &[(13_824, 2560), (2560, 6912), (2560, 2560)];
/// Bytes of W2A8 weights that a pass goes over.
const COLD_BYTES: usize = 192 << 20;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lut_matmul_cpu: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let all = CpuBackend::new(None)?;
    let mut report = Report::new("lut_matmul_cpu", &cpu_name());
    if let Some(load) = load_average() {
        report.conditions.more.insert("load average at the start".into(), load.into());
    }
    let read = read_gb_per_s(COLD_BYTES, all.threads().count());
    report.control.gb_per_s.insert("sum over 192 MiB on all threads (reads)".into(), read);
    report.control.best_gb_per_s = read;
    let mut levels: Vec<Simd> =
        ["avx2", "neon"].iter().filter_map(|n| Simd::by_name(n).ok()).collect();
    levels.extend(Some(Simd::detect()).filter(|best| !levels.contains(best)));
    let mut counts = vec![1];
    counts.extend(Some(all.threads().count()).filter(|&count| count > 1));
    for &(n, k) in SHAPES {
        if !options.wants(&format!("{n}x{k}")) {
            continue;
        }
        let weights = Rc::new(Weights::new(n, k)?);
        let arms =
            [Arm::Multiply, Arm::Exact(Form::Tl1, None), Arm::Exact(Form::Tl2, None), Arm::Lossy];
        let cases = arms.map(|arm| Lookup { weights: weights.clone(), arm });
        for (&simd, &threads) in levels.iter().flat_map(|l| counts.iter().map(move |c| (l, c))) {
            let settings = CpuOptions { threads: Some(threads), simd: Some(simd) };
            let rows =
                measure(&CpuBackend::open(settings)?, &cases, options.samples as usize, read)?;
            let median = |row: &Row| row.cold.map_or(f64::NAN, |t| t.us.median);
            let yardstick = rows.first().map_or(f64::NAN, median);
            for mut row in rows {
                row.variant =
                    format!("{}, {threads} threads, {}", row.variant, simd.level().name());
                row.set("of_w2a8_gemv", yardstick / median(&row));
                println!(
                    "{} {}: {:.1} us, {:.2} of w2a8_gemv",
                    row.case,
                    row.variant,
                    median(&row),
                    yardstick / median(&row)
                );
                report.rows.push(row);
            }
        }
    }
    report.notes.push("`of_w2a8_gemv` is the time of w2a8_gemv over that of the row".into());
    if report.rows.is_empty() {
        println!("no case contains `{}`", options.filter.as_deref().unwrap_or_default());
        return Ok(());
    }
    for path in report.write(&options.out)? {
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Compares the arms with the first, then times them in turns.
fn measure(
    cpu: &CpuBackend,
    cases: &[Lookup],
    passes: usize,
    read: f64,
) -> anyhow::Result<Vec<Row>> {
    let first = cases.first().context("no arm")?;
    let copies = COLD_BYTES.div_ceil(first.bytes() as usize).max(2);
    let mut tensors = (0..copies).map(|_| first.tensors(cpu)).collect::<Result<Vec<_>, _>>()?;
    let mut expected = Vec::new();
    for case in cases {
        case.run(cpu, &mut tensors[0])?;
        let found = case.output(cpu, &tensors[0])?;
        if expected.is_empty() {
            expected = found;
        } else {
            case.compare(&found, &expected).with_context(|| case.variant())?;
        }
    }
    let mut us = vec![Vec::new(); cases.len()];
    for _ in 0..passes {
        for (case, us) in cases.iter().zip(&mut us) {
            let started = Instant::now();
            for tensors in &mut tensors {
                case.run(cpu, tensors)?;
            }
            us.push(1e6 * started.elapsed().as_secs_f64() / copies as f64);
        }
    }
    let rows = cases.iter().zip(us).map(|(case, us)| {
        let us = Quantiles::of(us).context("no pass was timed")?;
        let gb_per_s = case.bytes() as f64 / us.median / 1e3;
        let cold = Timing {
            us,
            launches: copies,
            copies,
            replays: passes,
            gb_per_s,
            percent_of_control: 100.0 * gb_per_s / read,
        };
        let (bytes, compared) = (case.bytes(), expected.len() as u64);
        let cold = Some(cold);
        Ok(Row {
            case: case.name(),
            variant: case.variant(),
            bytes,
            compared,
            cold,
            ..Row::default()
        })
    });
    rows.collect()
}
