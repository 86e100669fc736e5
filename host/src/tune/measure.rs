//! The search on a GPU: seeded weights and rows of the shape, every variant against the CPU, then its time.
//!
//! Times are those of launches in a CUDA graph, as a session makes them, over copies of all tensors in
//! rotation, so many that a copy has left the cache when its turn comes again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use contract::w2a8::{Segments, act_bytes};

use super::record::{self, Entry, Record, Tried};
use super::search::{Bench, Effort, Failed, least_gain, median, search};
use super::{Options, Progress, Report, Shape, TuneError, apply, problems, store, today};
use crate::cpu::CpuBackend;
use crate::driver::{CudaOptions, Event, Graph};
use crate::memory::DeviceBuffer;
use crate::ops::bit_linear::{BitLinear, Finish};
use crate::ops::choices::{Choices, Family, Problem};
use crate::ops::w2a8_gemm::W2a8Gemm;
use crate::ops::w2a8_gemv::W2a8Gemv;
use crate::ops::w2a8_trits::W2a8Trits;
use crate::ops::{Backend, CudaBackend, OpError, PackedLinear, QuantActs, WeightLayout};
use crate::reference::Inputs;

/// Times the second-level cache that a rotation reads before it returns to a copy.
const CACHES: usize = 8;
/// Most copies of a matrix.
const MAX_COPIES: usize = 256;
/// Fewest launches of a graph.
const MIN_LAUNCHES: usize = 20;
/// Samples of [`Effort::Full`].
const SAMPLES: usize = 5;
/// Rows that are compared with the CPU; the others are compared with those of the first variant that passed.
const CPU_ROWS: usize = 4;
/// How long the clocks get to rise before anything is timed.
const RISE: Duration = Duration::from_millis(200);

/// Measures what the record of the device lacks for layers of `shapes`, and writes it.
///
/// # Errors
/// A device that cannot be opened or is lost, too little memory, a folder that cannot be written. A broken
/// or stale record is replaced, with a remark.
pub fn tune(
    shapes: &[Shape],
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, TuneError> {
    let started = Instant::now();
    let mut gpu = CudaBackend::open(CudaOptions::new(options.ordinal).pdl(true))?;
    let folder =
        options.folder.clone().or_else(store::folder).ok_or(store::StoreError::NoFolder)?;
    let here = apply::device_key(&gpu);
    let module = gpu.cuda().module();
    let path = store::file(&folder, &here, module.loaded_level());
    let hashes: HashMap<Family, String> = Family::ALL
        .into_iter()
        .filter_map(|family| Some((family, module.family_sha256(family.name())?)))
        .collect();
    let mut notes = Vec::new();
    let old = match store::read(&path) {
        Ok(old) => old,
        Err(store::StoreError::Record { source, .. }) => {
            notes.push(format!("the record that was there is replaced: {source}"));
            None
        }
        Err(error) => return Err(error.into()),
    };
    let pdl = gpu.cuda().stream().pdl();
    let mut record = Record::new(here.clone(), module.loaded_level(), pdl);
    record.ptx_sha256 = hashes.iter().map(|(f, hash)| (f.name().into(), hash.clone())).collect();
    if let Some(old) = old {
        match old.is_of(&here, true) {
            Err(stale) => notes.push(format!("the record that was there is replaced: {stale}")),
            Ok(()) => notes.extend(record.take_from(&old)),
        }
    }
    let sms = gpu.cuda().device().sm_count();
    // A family that this PTX does not have, or that leaves no choice, is not a problem.
    let variants = |gpu: &CudaBackend, problem: &Problem| -> Vec<usize> {
        (0..problem.family().variants_len())
            .filter(|&index| gpu.runs(problem, index) && problem.in_layers(index))
            .collect()
    };
    let asked: Vec<Problem> = problems(shapes, options.max_rows)
        .into_iter()
        .filter(|p| hashes.contains_key(&p.family()) && variants(&gpu, p).len() > 1)
        .collect();
    let has = |record: &Record, p: &Problem| record.entries.iter().any(|e| e.problem() == Some(*p));
    let todo: Vec<Problem> =
        asked.iter().copied().filter(|p| options.again || !has(&record, p)).collect();
    let (kept, total) = (asked.len() - todo.len(), todo.len());
    let mut measured = 0;
    if total > 0 {
        // What cannot be written is known before it is measured.
        store::update(&path, &mut record)?;
        let cpu = CpuBackend::new(None)?;
        let mut layer: Option<Layer> = None;
        let mut risen = false;
        for problem in todo {
            if started.elapsed() >= options.budget {
                break;
            }
            progress(Progress { problem, done: measured, total });
            let shape = Shape { n: problem.n(), k: problem.k() };
            if layer.as_ref().is_none_or(|layer| layer.shape != shape) {
                // The memory of the last one first. What it gave is kept, whatever ends this run.
                if layer.take().is_some() {
                    store::update(&path, &mut record)?;
                }
                let largest = asked.iter().filter(|p| (p.n(), p.k()) == (shape.n, shape.k));
                let rows = largest.map(Problem::m).max().unwrap_or(1);
                layer = Some(Layer::new(&gpu, &cpu, shape, rows)?);
            }
            let Some(layer) = &mut layer else { continue };
            let default = problem.default_variant(sms, pdl, |index| gpu.runs(&problem, index));
            let all = variants(&gpu, &problem);
            let mut case = Case::new(&mut gpu, &cpu, layer, problem)?;
            if !std::mem::replace(&mut risen, true) {
                case.warm(default);
            }
            let outcome = search(default, all, least_gain(&problem), &mut case)?;
            drop(case);
            let family = problem.family();
            record.put(Entry {
                family,
                m: problem.m(),
                n: problem.n(),
                k: problem.k(),
                date: today(),
                default: family.symbol(default).into(),
                chosen: outcome.chosen.map(|index| family.symbol(index).into()),
                tried: outcome
                    .tried
                    .into_iter()
                    .map(|(index, found)| tried(family, index, found))
                    .collect(),
            });
            measured += 1;
        }
        gpu.synchronize()?;
    }
    if measured > 0 || !notes.is_empty() {
        store::update(&path, &mut record)?;
    }
    Ok(Report {
        record,
        path,
        problems: asked,
        measured,
        kept,
        left: total - measured,
        seconds: started.elapsed().as_secs_f64(),
        notes,
    })
}

fn tried(family: Family, index: usize, found: Result<f64, String>) -> Tried {
    let variant = family.symbol(index).to_owned();
    match found {
        // A nanosecond is less than any clock here tells.
        Ok(us) => {
            let us = Some(((us * 1e3).round() / 1e3).max(0.001));
            Tried { variant, us, failed: None }
        }
        Err(reason) => Tried { variant, us: None, failed: Some(record::reason(&reason)) },
    }
}

/// The copies of one matrix and the rows that go through it.
struct Layer {
    shape: Shape,
    weights: Vec<PackedLinear<CudaBackend>>,
    /// The same at 1.6 bits a weight.
    trits: Vec<PackedLinear<CudaBackend>>,
    on_cpu: PackedLinear<CpuBackend>,
    /// Quantised rows, and one that is not, on the host.
    acts: Vec<u32>,
    stats: Vec<[u32; 2]>,
    x: Vec<f32>,
    /// Bytes that a rotation reads.
    cold_bytes: usize,
}

impl Layer {
    fn new(
        gpu: &CudaBackend,
        cpu: &CpuBackend,
        shape: Shape,
        rows: usize,
    ) -> Result<Self, OpError> {
        let Shape { n, k } = shape;
        let mut inputs = Inputs::new((n as u64) << 32 | k as u64);
        let words = inputs.packed_words(n, k);
        // Two scales, so that rows of both segments are compared.
        let parts = if n > 1 { vec![(n / 2, 0.013), (n - n / 2, 1.25)] } else { vec![(n, 0.013)] };
        let segments = Segments::new(&parts).ok_or(OpError::Dimension {
            op: "tune",
            what: "n",
            found: n,
            allowed: "1 to 2^24 are allowed",
        })?;
        let (acts, stats) = inputs.packed_acts(rows, k);
        let x = inputs.floats(k, 3.0);
        let device = gpu.cuda().device();
        let free = device.memory_info().map_err(|e| OpError::Cuda(e.into()))?.0;
        let cold_bytes = (CACHES * device.info().l2_bytes as usize).min(free / 4);
        let copies = cold_bytes.div_ceil(4 * words.len()).clamp(2, MAX_COPIES);
        let in_layout = |layout: WeightLayout| {
            let words = layout.rows_of(&words, k);
            let copy = |_| {
                let mut w = PackedLinear::alloc_in(gpu, "tuning", k, segments, layout)?;
                w.write_packed(gpu, &words)?;
                Ok(w)
            };
            (0..copies).map(copy).collect::<Result<Vec<_>, OpError>>()
        };
        let (weights, trits) = (in_layout(WeightLayout::Bits2)?, in_layout(WeightLayout::Trits)?);
        let mut on_cpu = PackedLinear::alloc(cpu, "tuning", k, segments)?;
        on_cpu.write_rows(cpu, 0, &words)?;
        gpu.synchronize()?;
        Ok(Self { shape, weights, trits, on_cpu, acts, stats, x, cold_bytes })
    }

    /// Rows `rows` on `backend`.
    fn rows<B: Backend>(&self, backend: &B, rows: &[usize]) -> Result<QuantActs<B>, OpError> {
        let width = act_bytes(self.shape.k) / 4;
        let mut acts = QuantActs::alloc(backend, rows.len(), self.shape.k)?;
        let words: Vec<u32> =
            rows.iter().flat_map(|&row| &self.acts[row * width..][..width]).copied().collect();
        let stats: Vec<[u32; 2]> = rows.iter().map(|&row| self.stats[row]).collect();
        backend.write(&mut acts.acts, 0, &words)?;
        backend.write(&mut acts.stats, 0, &stats)?;
        Ok(acts)
    }
}

/// Inputs and outputs of one turn of a rotation.
struct Turn {
    acts: QuantActs<CudaBackend>,
    x: DeviceBuffer<f32>,
    y: DeviceBuffer<f32>,
    /// Nothing: one row needs no scratch.
    unpacked: DeviceBuffer<u32>,
}

/// One problem on the GPU.
struct Case<'a> {
    gpu: &'a mut CudaBackend,
    layer: &'a Layer,
    problem: Problem,
    turns: Vec<Turn>,
    /// Some rows of the output by the CPU.
    expected: Vec<(usize, Vec<f32>)>,
    /// The output of a variant.
    found: Vec<f32>,
    /// The whole output of the first variant that agreed with the CPU, once there is one.
    agreed: Vec<f32>,
    agrees: bool,
    graphs: HashMap<usize, (Graph, usize)>,
    events: [Event; 2],
}

impl<'a> Case<'a> {
    fn new(
        gpu: &'a mut CudaBackend,
        cpu: &CpuBackend,
        layer: &'a Layer,
        problem: Problem,
    ) -> Result<Self, OpError> {
        let (n, k, m) = (problem.n(), problem.k(), problem.m());
        let bytes = 4 * layer.on_cpu_words() + m * act_bytes(k) + 4 * m * n;
        let copies = layer.cold_bytes.div_ceil(bytes).clamp(2, layer.weights.len());
        let all: Vec<usize> = (0..m).collect();
        let turns = (0..copies)
            .map(|_| {
                let mut x = gpu.alloc("tuning", k)?;
                gpu.write(&mut x, 0, &layer.x)?;
                Ok(Turn {
                    acts: layer.rows(gpu, &all)?,
                    x,
                    y: gpu.alloc("tuning", m * n)?,
                    unpacked: gpu.alloc("tuning", 1)?,
                })
            })
            .collect::<Result<Vec<_>, OpError>>()?;
        let mut rows: Vec<usize> = (0..CPU_ROWS).map(|i| i * (m - 1) / (CPU_ROWS - 1)).collect();
        rows.dedup();
        let mut y: <CpuBackend as Backend>::Buf<f32> = cpu.alloc("tuning", rows.len() * n)?;
        let w = &layer.on_cpu;
        if problem.family() == Family::BitLinear {
            let mut x = cpu.alloc("tuning", k)?;
            cpu.write(&mut x, 0, &layer.x)?;
            cpu.bit_linear(BitLinear {
                x: &x,
                norm: None,
                w,
                finish: Finish::Store { y: &mut y },
            })?;
        } else {
            let acts = layer.rows(cpu, &rows)?;
            cpu.w2a8_gemm(W2a8Gemm {
                chained: false,
                behind: Default::default(),
                w,
                acts: &acts,
                y: &mut y,
                m: rows.len(),
                variant: None,
            })?;
        }
        let mut values = vec![0.0f32; rows.len() * n];
        cpu.read(&y, 0, &mut values)?;
        let expected =
            rows.iter().zip(values.chunks_exact(n)).map(|(&row, y)| (row, y.to_vec())).collect();
        let event = || Event::with_timing(gpu.cuda().device()).map_err(|e| OpError::Cuda(e.into()));
        let events = [event()?, event()?];
        let [found, agreed] = [(); 2].map(|()| vec![0.0; m * n]);
        let graphs = HashMap::new();
        let agrees = false;
        Ok(Self { gpu, layer, problem, turns, expected, found, agreed, agrees, graphs, events })
    }

    /// Makes `variant` the one that runs.
    fn force(&mut self, variant: usize) -> Result<(), OpError> {
        let mut choices = Choices::default();
        choices.insert(self.problem, variant)?;
        self.gpu.set_choices(choices)
    }

    /// One launch on the tensors of turn `turn`.
    fn run(&mut self, turn: usize) -> Result<(), OpError> {
        let weights = self.layer.weights_of(self.problem.family());
        launch(self.gpu, &weights[turn], &mut self.turns[turn], self.problem)
    }

    /// Keeps the device busy until its clocks have risen.
    fn warm(&mut self, variant: usize) {
        let end = Instant::now() + RISE;
        while Instant::now() < end {
            // What fails here fails again where it counts.
            let warmed = self.time(variant, Effort::Probe);
            if warmed.is_err() {
                return;
            }
        }
    }

    /// A failure of one variant, unless the device is lost with it.
    fn failed(&self, error: OpError) -> Failed {
        match self.gpu.synchronize() {
            Ok(()) => Failed::Variant(error.to_string()),
            Err(lost) => Failed::Device(lost),
        }
    }

    fn compare(&mut self, variant: usize) -> Result<Result<(), String>, OpError> {
        self.force(variant)?;
        // What a variant leaves out must not look like what the last one wrote.
        self.gpu.fill(&mut self.turns[0].y, 0xff)?;
        self.run(0)?;
        self.gpu.read(&self.turns[0].y, 0, &mut self.found)?;
        let n = self.problem.n();
        let found: &[u32] = bytemuck::cast_slice(&self.found);
        let different = |first: usize, found: &[u32], expected: &[f32], what: &str| {
            // As whole slices first: they are equal almost always, and hundreds of megabytes.
            let expected: &[u32] = bytemuck::cast_slice(expected);
            if found == expected {
                return Ok(());
            }
            let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
            let (a, b) = (f32::from_bits(found[at]), f32::from_bits(expected[at]));
            Err(format!("y[{}, {}] is {a:e} and {b:e} {what}", first + at / n, at % n))
        };
        // What equals an output that agrees with the CPU agrees with it too.
        if self.agrees {
            return Ok(different(0, found, &self.agreed, "by another variant"));
        }
        for (row, expected) in &self.expected {
            if let Err(reason) = different(*row, &found[row * n..][..n], expected, "on the CPU") {
                return Ok(Err(reason));
            }
        }
        self.agrees = true;
        std::mem::swap(&mut self.found, &mut self.agreed);
        Ok(Ok(()))
    }

    fn graph(&mut self, variant: usize) -> Result<(), OpError> {
        if self.graphs.contains_key(&variant) {
            return Ok(());
        }
        self.force(variant)?;
        let Self { gpu, layer, problem, turns, .. } = self;
        let launches = MIN_LAUNCHES.next_multiple_of(turns.len());
        let graph = gpu.record(|| {
            (0..launches).try_for_each(|i| {
                let turn = i % turns.len();
                launch(gpu, &layer.weights_of(problem.family())[turn], &mut turns[turn], *problem)
            })
        })?;
        let graph = graph.ok_or(OpError::Dimension {
            op: "tune",
            what: "graphs of the device",
            found: 0,
            allowed: "times are taken of recorded launches",
        })?;
        self.gpu.replay(&graph)?;
        self.graphs.insert(variant, (graph, launches));
        Ok(())
    }

    fn timed(&mut self, variant: usize, effort: Effort) -> Result<f64, OpError> {
        let cuda = |error: crate::driver::DriverError| OpError::Cuda(error.into());
        if effort == Effort::Glance {
            self.force(variant)?;
            self.events[0].record(self.gpu.cuda().stream()).map_err(cuda)?;
            self.run(1)?;
            self.events[1].record(self.gpu.cuda().stream()).map_err(cuda)?;
            self.gpu.synchronize()?;
            return self.events[1].elapsed_us(&self.events[0]).map_err(cuda);
        }
        self.graph(variant)?;
        let (graph, launches) = &self.graphs[&variant];
        let stream = self.gpu.cuda().stream();
        let samples = if effort == Effort::Full { SAMPLES } else { 1 };
        let mut times = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.events[0].record(stream).map_err(cuda)?;
            self.gpu.replay(graph)?;
            self.events[1].record(stream).map_err(cuda)?;
            self.gpu.synchronize()?;
            let us = self.events[1].elapsed_us(&self.events[0]).map_err(cuda)?;
            times.push(us / *launches as f64);
        }
        Ok(median(&mut times))
    }
}

impl Layer {
    /// In the layout that the kernels of `family` read.
    fn weights_of(&self, family: Family) -> &[PackedLinear<CudaBackend>] {
        match family {
            Family::W2a8Trits => &self.trits,
            Family::BitLinear | Family::W2a8Gemv | Family::W2a8Gemm => &self.weights,
        }
    }

    fn on_cpu_words(&self) -> usize {
        self.shape.n * contract::w2a8::row_words(self.shape.k)
    }
}

impl Bench for Case<'_> {
    fn check(&mut self, variant: usize) -> Result<(), Failed> {
        match self.compare(variant) {
            Ok(agrees) => agrees.map_err(Failed::Variant),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn time(&mut self, variant: usize, effort: Effort) -> Result<f64, Failed> {
        self.timed(variant, effort).map_err(|error| self.failed(error))
    }
}

/// One launch of the family of `problem`, by whichever variant is chosen.
fn launch(
    gpu: &CudaBackend,
    w: &PackedLinear<CudaBackend>,
    turn: &mut Turn,
    problem: Problem,
) -> Result<(), OpError> {
    let Turn { acts, x, y, unpacked } = turn;
    match problem.family() {
        Family::BitLinear => {
            gpu.bit_linear(BitLinear { x, norm: None, w, finish: Finish::Store { y } })
        }
        Family::W2a8Gemv => gpu.w2a8_gemv(W2a8Gemv { w, acts, y, variant: None }),
        Family::W2a8Gemm => gpu.w2a8_gemm(W2a8Gemm {
            chained: true,
            behind: Default::default(),
            w,
            acts,
            y,
            m: problem.m(),
            variant: None,
        }),
        Family::W2a8Trits => {
            gpu.w2a8_trits(W2a8Trits { w, acts, y, m: problem.m(), unpacked, variant: None })
        }
    }
}
