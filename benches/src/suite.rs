//! The run of one benchmark on one GPU.
//!
//! Criterion decides how many calls make a sample; its clock is a pair of events around replays of
//! a CUDA graph. A graph holds at least [`MIN_LAUNCHES`] calls and about [`GRAPH_US`] of work, and
//! replays are queued back to back, so that neither the host nor the start of a graph is in the
//! figures; the kernels' own launch (a graph node) is. *Cold*: the calls rotate over copies of all tensors, hundreds of megabytes
//! apart, so that none is still in the cache when its turn comes; cases so small that the rotation
//! would need more than [`MAX_LAUNCHES`] calls have no cold regime. *Warm*: one copy. The
//! samples are kept for the report, whose median and spread are over them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::driver::{CudaOptions, Event, Graph};
use bitnet_gpu::memory::DeviceBuffer;
use bitnet_gpu::ops::elementwise::{Elementwise, Function};
use bitnet_gpu::ops::lm_head::LmHead;
use bitnet_gpu::ops::{Backend, CudaBackend, Dense, OpError, RowType};
use clap::Parser;
use criterion::{Criterion, SamplingMode};
use sha2::{Digest, Sha256};

use crate::{Case, Control, Options, Quantiles, Report, Row, Timing, host, peers};

/// Fewest calls of a graph.
const MIN_LAUNCHES: usize = 20;
/// Most calls of a graph.
const MAX_LAUNCHES: usize = 512;
/// Work of a graph that is aimed at, in microseconds.
const GRAPH_US: f64 = 1000.0;
/// Untimed replays before a figure that criterion does not take.
const WARM_UP: usize = 2;
/// Criterion's warm-up and measurement of one arm; a case so slow that its samples take longer is
/// measured longer.
const ARM: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];
/// How long the clocks get to rise before anything is timed.
const RISE: Duration = Duration::from_millis(300);
/// Bytes of the bandwidth control.
const CONTROL_BYTES: usize = 1 << 30;
/// Behind the name of a benchmark in the results of runs with programmatic dependent launch.
const PDL: &str = "_pdl";
/// Row of the control's table: the hidden size of the 2B-4T model.
const CONTROL_WIDTH: usize = 2560;
/// Row of the control that reads and writes.
const COPIED_ROW: usize = 1 << 14;

/// A benchmark under way.
pub struct Suite {
    bench: String,
    options: Options,
    /// Values that were compared.
    compared: u64,
    gpu: CudaBackend,
    cpu: CpuBackend,
    report: Report,
    criterion: Criterion,
    /// Where criterion writes; the report is what is kept.
    _scratch: tempfile::TempDir,
}

/// The main function of a benchmark: opens the GPU, runs `body`, prints the table and writes the
/// files.
pub fn run(bench: &str, body: impl FnOnce(&mut Suite) -> anyhow::Result<()>) -> ExitCode {
    let result = Suite::open(bench, Options::parse()).and_then(|mut suite| {
        body(&mut suite)?;
        suite.finish()
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{bench}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One graph that is timed.
struct Arm {
    graph: Graph,
    launches: usize,
    copies: usize,
    /// Replays and microseconds of a call, of each sample.
    samples: Vec<(usize, f64)>,
}

impl Suite {
    /// Opens the GPU and measures the controls.
    ///
    /// # Errors
    /// No GPU that can be used; a failed driver.
    pub fn open(bench: &str, options: Options) -> anyhow::Result<Self> {
        let settings = CudaOptions::new(options.device).pdl(options.pdl);
        let gpu = CudaBackend::open(settings).context("this benchmark needs an NVIDIA GPU")?;
        let info = gpu.cuda().device().info();
        // Figures with and without it stand beside each other, and so do parts.
        let part = options.part.map(|(part, parts)| format!("_{part}of{parts}"));
        let pdl = if options.pdl { PDL } else { "" };
        let name = format!("{bench}{pdl}{}", part.unwrap_or_default());
        let mut report = Report::new(&name, &info.name);
        let module = gpu.cuda().module();
        let mut more = vec![
            ("compute capability", format!("sm_{}", info.sm)),
            ("multiprocessors", info.sm_count.to_string()),
            ("CUDA version of the driver", info.driver_version_text()),
            ("L2", format!("{} bytes", info.l2_bytes)),
            ("PTX", format!("{}, ISA {}", module.loaded_level(), module.loaded_isa())),
            ("programmatic dependent launch", gpu.cuda().stream().pdl().to_string()),
        ];
        let images = bitnet_gpu::driver::ptx::IMAGES;
        if let Some(image) = images.iter().find(|image| image.level == module.loaded_level()) {
            let hash: String = Sha256::digest(image.ptx()?.as_bytes())
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            more.push(("PTX sha256", hash));
        }
        let more = more.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        report.conditions.more = more.collect();
        let scratch = tempfile::tempdir()?;
        let criterion = Criterion::default()
            .output_directory(scratch.path())
            .warm_up_time(ARM[0])
            .measurement_time(ARM[1])
            .sample_size(options.samples as usize)
            .nresamples(2000);
        if options.filter.is_none() {
            // On every core first, instead of one after the other when each is first used.
            module.compile(|symbol| symbol.starts_with(bench))?;
        }
        let cpu = CpuBackend::new(None)?;
        let (bench, compared) = (bench.to_owned(), 0);
        let mut suite =
            Self { bench, options, compared, cpu, gpu, report, criterion, _scratch: scratch };
        println!("{} on {}", suite.bench, suite.gpu.describe());
        if suite.options.check {
            return Ok(suite);
        }
        suite.clocks("clocks before");
        suite.report.control = suite.control()?;
        for (what, rate) in &suite.report.control.gb_per_s {
            println!("  control, {what}: {rate:.0} GB/s");
        }
        Ok(suite)
    }

    /// The command line.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The GPU.
    pub fn gpu(&self) -> &CudaBackend {
        &self.gpu
    }

    /// The report so far.
    pub fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    /// The same with a caller's own build of the kernels: `body` measures on it.
    ///
    /// # Errors
    /// PTX that the driver refuses; whatever `body` fails with.
    pub fn with_ptx<T>(
        &mut self,
        level: &str,
        ptx: &str,
        body: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        // SAFETY: what the command line names as a build of these kernels; every result is compared.
        let cuda = unsafe { self.gpu.cuda().clone().with_ptx(level, ptx)? };
        let other = CudaBackend::new(cuda)?;
        let ours = std::mem::replace(&mut self.gpu, other);
        let result = body(self);
        self.gpu = ours;
        result
    }

    /// Compares and times one case, unless the filter leaves it out. Returns its row, for further
    /// columns.
    ///
    /// # Errors
    /// A bit that differs between GPU and CPU; a failed operation.
    pub fn measure<C: Case>(&mut self, case: &C) -> anyhow::Result<Option<&mut Row>> {
        Ok(self.measure_variants(std::slice::from_ref(case))?.first_mut())
    }

    /// The same for several variants of one case, which share its tensors and take turns.
    ///
    /// # Errors
    /// As [`Suite::measure`].
    pub fn measure_variants<C: Case>(&mut self, variants: &[C]) -> anyhow::Result<&mut [Row]> {
        let first_row = self.report.rows.len();
        if let Some(case) = variants.first().filter(|case| self.options.wants(&case.name())) {
            let compared = self.compare(variants).with_context(|| case.name())?;
            self.compared += compared;
            if self.options.check {
                println!("  {:<28} {compared} values are the same", case.name());
                return Ok(&mut []);
            }
            let arms = self.time(case, variants).with_context(|| case.name())?;
            for (case, (cold, warm)) in variants.iter().zip(arms) {
                let row = Row {
                    case: case.name(),
                    variant: case.variant(),
                    bytes: case.bytes(),
                    compared,
                    cold: cold.map(|arm| self.timing(case.bytes(), arm)),
                    warm: warm.map(|arm| self.timing(case.bytes(), arm)),
                    ..Row::default()
                };
                let us = |t: &Option<Timing>| match t {
                    Some(t) => format!("{:9.2} us {:5.0} GB/s", t.us.median, t.gb_per_s),
                    None => " ".repeat(23),
                };
                let (cold, warm) = (us(&row.cold), us(&row.warm));
                println!("  {:<28} {:<20} cold {cold}  warm {warm}", row.case, row.variant);
                self.report.rows.push(row);
            }
        }
        Ok(&mut self.report.rows[first_row..])
    }

    /// The bits of every variant against those of the CPU. Returns how many values there are.
    fn compare<C: Case>(&self, variants: &[C]) -> anyhow::Result<u64> {
        let Some(case) = variants.first() else { return Ok(0) };
        let mut on_cpu = case.tensors(&self.cpu)?;
        case.run(&self.cpu, &mut on_cpu)?;
        let expected = case.output(&self.cpu, &on_cpu)?;
        for case in variants {
            let mut on_gpu = case.tensors(&self.gpu)?;
            case.run(&self.gpu, &mut on_gpu)?;
            let found = case.output(&self.gpu, &on_gpu)?;
            case.compare(&found, &expected)?;
        }
        Ok(expected.len() as u64)
    }

    /// Cold and warm arm of each variant.
    fn time<C: Case>(
        &mut self,
        case: &C,
        variants: &[C],
    ) -> anyhow::Result<Vec<(Option<Arm>, Option<Arm>)>> {
        let bytes = case.bytes();
        let wanted = (self.options.cold_mb * 1_000_000).div_ceil(bytes.max(1)) as usize;
        let rotates = case.rotates() && wanted <= MAX_LAUNCHES;
        let copies = if rotates { wanted.max(2) } else { 1 };
        let mut tensors =
            (0..copies).map(|_| case.tensors(&self.gpu)).collect::<Result<Vec<_>, _>>()?;
        self.gpu.synchronize()?;
        let mut arms = Vec::new();
        for case in variants {
            let us = self.median_us(&self.graph(4, || case.run(&self.gpu, &mut tensors[0]))?, 4)?;
            let target = ((GRAPH_US / us) as usize).clamp(MIN_LAUNCHES, MAX_LAUNCHES);
            let mut arm = |copies: usize| -> anyhow::Result<Arm> {
                let launches = target.next_multiple_of(copies);
                let mut turn = 0;
                let graph = self.graph(launches, || {
                    turn += 1;
                    case.run(&self.gpu, &mut tensors[turn % copies])
                })?;
                Ok(Arm { graph, launches, copies, samples: Vec::new() })
            };
            let cold = if copies > 1 { Some(arm(copies)?) } else { None };
            arms.push((cold, Some(arm(1)?)));
        }
        for (case, (cold, warm)) in variants.iter().zip(&mut arms) {
            let name = [case.name(), case.variant()].join(" ");
            for (regime, arm) in [("cold", cold), ("warm", warm)] {
                if let Some(arm) = arm {
                    self.sample(&format!("{} {regime}", name.trim()), arm)?;
                }
            }
        }
        Ok(arms)
    }

    /// Lets criterion measure one arm.
    fn sample(&mut self, name: &str, arm: &mut Arm) -> anyhow::Result<()> {
        let mut failure = None;
        let mut criterion = std::mem::take(&mut self.criterion);
        let mut group = criterion.benchmark_group(self.report.bench.clone());
        group.sampling_mode(SamplingMode::Flat).bench_function(name, |bencher| {
            bencher.iter_custom(|calls| {
                let replays = (calls as usize).div_ceil(arm.launches);
                let us = self.replays_us(&arm.graph, replays).unwrap_or_else(|error| {
                    failure.get_or_insert(error);
                    vec![1.0; replays]
                });
                let us = us.iter().sum::<f64>() / (replays * arm.launches) as f64;
                arm.samples.push((replays, us));
                Duration::from_secs_f64(1e-6 * us * calls as f64)
            });
        });
        group.finish();
        self.criterion = criterion;
        // The last samples are the measurement; those before are criterion's warm-up.
        let warm_up = arm.samples.len().saturating_sub(self.options.samples as usize);
        arm.samples.drain(..warm_up);
        failure.map_or(Ok(()), Err)
    }

    /// Device time of each of `count` replays, queued one behind the other.
    fn replays_us(&self, graph: &Graph, count: usize) -> anyhow::Result<Vec<f64>> {
        let (device, stream) = (self.gpu.cuda().device(), self.gpu.cuda().stream());
        let events =
            (0..2 * count).map(|_| Event::with_timing(device)).collect::<Result<Vec<_>, _>>()?;
        for pair in events.chunks_exact(2) {
            pair[0].record(stream)?;
            graph.launch(stream)?;
            pair[1].record(stream)?;
        }
        stream.synchronize()?;
        let times = events.chunks_exact(2).map(|pair| pair[1].elapsed_us(&pair[0]));
        Ok(times.collect::<Result<_, _>>()?)
    }

    fn timing(&self, bytes: u64, arm: Arm) -> Timing {
        let replays = arm.samples.iter().map(|sample| sample.0).sum();
        let us = arm.samples.iter().map(|sample| sample.1).collect();
        let us = Quantiles::of(us).unwrap_or(Quantiles { median: 0.0, p10: 0.0, p90: 0.0 });
        let gb_per_s = bytes as f64 / us.median / 1e3;
        Timing {
            us,
            launches: arm.launches,
            copies: arm.copies,
            replays,
            gb_per_s,
            percent_of_control: 100.0 * gb_per_s / self.report.control.best_gb_per_s,
        }
    }

    /// What this session can move: a copy by the driver, a pass that only reads, and a kernel that
    /// reads and writes; and the time of the smallest kernel.
    fn control(&self) -> anyhow::Result<Control> {
        let gpu = &self.gpu;
        let stream = gpu.cuda().stream();
        let mut control = Control::default();
        {
            let mut from: DeviceBuffer<u8> = gpu.alloc("control", CONTROL_BYTES)?;
            let mut to: DeviceBuffer<u8> = gpu.alloc("control", CONTROL_BYTES)?;
            gpu.fill(&mut from, 0x3c)?;
            gpu.fill(&mut to, 0)?;
            let copy = self.graph(4, || {
                to.as_slice_mut()
                    .copy_from(stream, from.as_slice())
                    .map_err(|error| bitnet_gpu::driver::CudaError::from(error).into())
            })?;
            let risen = Instant::now() + RISE;
            while Instant::now() < risen {
                self.replays_us(&copy, 4)?;
            }
            let us = self.median_us(&copy, 4)?;
            let rate = 2.0 * CONTROL_BYTES as f64 / us / 1e3;
            control.gb_per_s.insert("copy of 1 GiB (reads and writes)".into(), rate);
        }
        {
            let rows = CONTROL_BYTES.div_ceil(2 * CONTROL_WIDTH);
            let mut table = Dense::alloc(gpu, "control", RowType::Bf16, rows, CONTROL_WIDTH)?;
            let chunk = vec![0x3cu8; 1024 * 2 * CONTROL_WIDTH];
            for first in (0..rows).step_by(1024) {
                let count = 1024.min(rows - first);
                table.write_rows(gpu, first, &chunk[..count * 2 * CONTROL_WIDTH])?;
            }
            let mut x = gpu.alloc("control", CONTROL_WIDTH)?;
            gpu.fill(&mut x, 0x3c)?;
            let mut logits = gpu.alloc("control", rows)?;
            let pass = self.graph(4, || {
                gpu.lm_head(LmHead { x: &x, x_at: 0, w: &table, logits: &mut logits, m: 1 })
            })?;
            let us = self.median_us(&pass, 4)?;
            let bytes = (rows * (2 * CONTROL_WIDTH + 4)) as f64;
            control.gb_per_s.insert("lm_head over 1 GiB of bf16 (reads)".into(), bytes / us / 1e3);
        }
        {
            // What a kernel that reads and writes can reach: the copy above is the driver's, and slower.
            let (m, k) = (CONTROL_BYTES / 4 / COPIED_ROW, COPIED_ROW);
            let mut a = gpu.alloc::<f32>("control", m * k)?;
            gpu.fill(&mut a, 0)?;
            let mut y = gpu.alloc("control", m * k)?;
            let pass = self.graph(4, || {
                let function = Function::Affine { alpha: 1.0, beta: 0.0 };
                gpu.elementwise(Elementwise { a: &a, function, relu: false, y: &mut y, m, k })
            })?;
            let rate = (2 * 4 * m * k) as f64 / self.median_us(&pass, 4)? / 1e3;
            control
                .gb_per_s
                .insert("elementwise over 1 GiB of f32 (reads and writes)".into(), rate);
        }
        control.best_gb_per_s = control.gb_per_s.values().copied().fold(0.0, f64::max);
        let mut a = gpu.alloc::<f32>("control", 1)?;
        gpu.fill(&mut a, 0)?;
        let mut y = gpu.alloc("control", 1)?;
        let smallest = self.graph(200, || {
            let function = Function::Affine { alpha: 1.0, beta: 0.0 };
            gpu.elementwise(Elementwise { a: &a, function, relu: false, y: &mut y, m: 1, k: 1 })
        })?;
        control.node_us = Some(self.median_us(&smallest, 200)?);
        Ok(control)
    }

    fn graph(
        &self,
        calls: usize,
        mut call: impl FnMut() -> Result<(), OpError>,
    ) -> anyhow::Result<Graph> {
        let graph = self.gpu.record(|| (0..calls).try_for_each(|_| call()))?;
        graph.ok_or_else(|| anyhow!("the GPU backend records no graphs"))
    }

    fn median_us(&self, graph: &Graph, calls: usize) -> anyhow::Result<f64> {
        self.replays_us(graph, WARM_UP)?;
        let us = Quantiles::of(self.replays_us(graph, 10)?).context("no replay was timed")?;
        Ok(us.median / calls as f64)
    }

    fn clocks(&mut self, name: &str) {
        let fields = host::clocks(&self.gpu.cuda().device().info().uuid);
        if !fields.is_empty() {
            let fields = fields.into_iter().map(|(name, value)| (name, value.into())).collect();
            self.report.conditions.more.insert(name.to_owned(), serde_json::Value::Object(fields));
        }
    }

    /// Puts the peers' times beside ours. `PEER_ratio` is their time over ours, cold where both are.
    fn peers(&mut self) -> anyhow::Result<()> {
        let mut cases: Vec<_> = self.report.rows.iter().map(|row| row.case.clone()).collect();
        cases.dedup();
        let Options { cold_mb, device, ref ms_kernel, .. } = self.options;
        let peers = peers::measure(&self.bench, &cases, cold_mb, device, ms_kernel.as_deref())?;
        if peers.rows.is_empty() {
            println!("  {} has no peer in {}", self.bench, peers.about);
        }
        for peer in &peers.rows {
            for row in self.report.rows.iter_mut().filter(|row| row.case == peer.case) {
                let name = &peer.peer;
                let of = |timing: &Option<Timing>| timing.as_ref().map(|t| t.us.median);
                let ratio = match (peer.cold_us, of(&row.cold)) {
                    (Some(theirs), Some(ours)) => theirs / ours,
                    _ => peer.warm_us / of(&row.warm).unwrap_or(f64::NAN),
                };
                println!("  {:<28} {:<20} {name} {ratio:.2}x", row.case, row.variant);
                if let Some(us) = peer.cold_us {
                    row.set(&format!("{name}_cold_us"), us);
                }
                row.set(&format!("{name}_warm_us"), peer.warm_us);
                row.set(&format!("{name}_ratio"), ratio);
            }
        }
        if !peers.rows.is_empty() {
            self.report.notes.push(format!("peers, in the same run: {}", peers.about));
        }
        Ok(())
    }

    /// Writes the report, if there is anything in it.
    fn finish(mut self) -> anyhow::Result<()> {
        let Options { check, ref filter, part, .. } = self.options;
        if self.compared == 0 && self.report.rows.is_empty() {
            let filter = filter.as_deref().unwrap_or_default();
            let part = part.map(|(part, parts)| format!(" in part {part} of {parts}"));
            let part = part.unwrap_or_default();
            println!("  no case of this benchmark{part} contains `{filter}`");
            return Ok(());
        }
        if check {
            println!("  {} values compared, nothing timed", self.compared);
            return Ok(());
        }
        if self.options.peers {
            self.peers()?;
        }
        self.clocks("clocks after");
        for path in self.report.write(&self.options.out)? {
            println!("  wrote {}", path.display());
        }
        Ok(())
    }
}
