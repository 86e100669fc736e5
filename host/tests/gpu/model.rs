//! Whole models: every way to run one gives the bits of plain CPU code on one thread.
//!
//! The models are the demo and one synthetic relative of each family. What is compared: the logits of
//! every position, whatever the chunks of the prefill; after each decode step, the logits against
//! those of the prefill; 256 greedy and 256 sampled tokens, launched one by one and replayed from a
//! recording, read at the end; both types of cache.

use std::path::{Path, PathBuf};

use bitnet_gpu::checkpoint::synth::{self, NamedConfig};
use bitnet_gpu::checkpoint::{Checkpoint, OpenOptions};
use bitnet_gpu::cpu::{CpuBackend, CpuOptions, Simd};
use bitnet_gpu::model::{HeadKind, Model, Sequence, SequenceOptions};
use bitnet_gpu::ops::{Backend, OpError, RowType, TokenLog, WeightLayout};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::sample::{GREEDY, pick};
use contract::sample::{ONE_WEIGHT, SampleParams};

use crate::lane;
use crate::support::{due, repeats};

/// Tokens of the prompt: more than one block of keys.
fn prompt_len() -> usize {
    repeats(75)
}

/// Tokens of a text. Prompt and text together pass 256 positions, where a new recording is made.
fn text_len() -> usize {
    repeats(256)
}

/// Positions of the cache: no multiple of anything.
fn capacity() -> usize {
    prompt_len() + text_len() + 6
}

/// Everything on at once.
const SAMPLED: SampleParams = SampleParams {
    seed: 0xb17_4e7,
    temperature: 0.9,
    top_k: 40,
    top_p_q32: 4_080_218_931,
    min_weight: ONE_WEIGHT / 100,
    repetition_penalty: 1.1,
    ..GREEDY
};

const FEW: SampleParams = SampleParams { top_p_q32: 1 << 32, min_weight: 0, top_k: 5, ..SAMPLED };
const ALL: SampleParams = SampleParams { top_k: 0, ..FEW };

macro_rules! models {
    ($($test:ident = $name:literal;)*) => { $(
        #[test]
        fn $test() {
            every_way_gives_the_same_bits($name);
        }
    )* };
}

models! {
    demo = "demo";
    bitnet_family = "tiny";
    bitnet_family_in_whole_blocks = "tiny-blocks";
    one_bit_llm_family = "tiny-large";
    llama_family = "tiny-llama3";
    falcon3_family = "tiny-falcon3";
    falcon_e_family = "tiny-falcon-e";
}

/// Fails when a synthetic family is added and not tested here.
#[test]
fn every_tiny_model_is_tested() {
    let names: Vec<_> =
        NamedConfig::all().map(|c| c.name).filter(|n| n.starts_with("tiny")).collect();
    let tested =
        ["tiny", "tiny-blocks", "tiny-large", "tiny-llama3", "tiny-falcon3", "tiny-falcon-e"];
    assert_eq!(names, tested);
}

/// A checkpoint, in a folder that goes away with it when it was made here.
pub(crate) struct Files {
    pub(crate) path: PathBuf,
    _folder: Option<tempfile::TempDir>,
}

impl Files {
    pub(crate) fn open(&self) -> Checkpoint {
        Checkpoint::open(&self.path, &OpenOptions::default()).expect("the checkpoint opens")
    }
}

/// The demo model, or a synthetic one by name.
pub(crate) fn files(name: &str) -> Files {
    if name == "demo" {
        // Tests run in the folder of their package, in a bundle too.
        return Files { path: Path::new("../models/demo").into(), _folder: None };
    }
    written(&NamedConfig::find(name).expect("a known name"))
}

/// A synthetic model of this configuration.
pub(crate) fn written(config: &NamedConfig) -> Files {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(config.name);
    synth::write(&path, config, 17, &mut |_, _| {}).expect("a synthetic model");
    Files { path, _folder: Some(folder) }
}

/// What the plain code says.
struct Truth {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    sampled: Vec<u32>,
    /// Drawn from the best five, and from all.
    few: Vec<u32>,
    all: Vec<u32>,
    /// Logits of each position of the prompt and of the greedy text.
    logits: Vec<Vec<u32>>,
}

impl Truth {
    /// Prompt and greedy text; the last token is never run.
    fn text(&self) -> Vec<u32> {
        [&self.prompt[..], &self.greedy[..text_len() - 1]].concat()
    }
}

/// A model and its one sequence.
struct Runner<B: Backend> {
    model: Model<B>,
    sequence: Sequence<B>,
}

impl<B: Backend> Runner<B> {
    fn new(backend: B, checkpoint: &Checkpoint) -> Self {
        Self::new_in(WeightLayout::Bits2, backend, checkpoint)
    }

    fn new_in(layout: WeightLayout, backend: B, checkpoint: &Checkpoint) -> Self {
        let model = Model::load_in(backend, checkpoint, layout, &mut |_| {});
        let model = model.expect("the model loads");
        assert_eq!(model.layout(), layout);
        let options =
            SequenceOptions { capacity: capacity(), kv: RowType::Bf16, chunk: 1, one_kernel: true };
        let sequence = Sequence::new(&model, options).expect("a sequence");
        Self { model, sequence }
    }

    fn with(&mut self, kv: RowType, chunk: usize) {
        let options = SequenceOptions { capacity: capacity(), kv, chunk, one_kernel: true };
        self.sequence = Sequence::new(&self.model, options).expect("a sequence");
    }

    /// Bits of the logits of every position.
    fn logits(&mut self, tokens: &[u32]) -> Vec<Vec<u32>> {
        let mut all = Vec::new();
        let each = |logits: &[f32]| all.push(bits(logits));
        self.model.logits(&mut self.sequence, tokens, 0, each).expect("a prefill");
        all
    }

    /// The tokens of a text, none of them read before the last is queued. `each` is called after
    /// each step.
    fn generate(
        &mut self,
        prompt: &[u32],
        params: &SampleParams,
        record: bool,
        mut each: impl FnMut(usize, &Self),
    ) -> Vec<u32> {
        let Self { model, sequence } = self;
        sequence.begin(model.backend(), prompt, params).expect("a beginning");
        model.prefill(sequence, prompt, 0).expect("a prefill");
        model.sample(sequence).expect("a first token");
        each(prompt.len() - 1, self);
        for step in 1..text_len() {
            let pos = prompt.len() + step - 1;
            self.model.decode(&mut self.sequence, pos, record).expect("a step");
            each(pos, self);
        }
        self.model.backend().synchronize().expect("the steps end");
        (0..text_len()).map(|step| self.sequence.tokens().get(step)).collect()
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

fn truth(checkpoint: &Checkpoint, kv: RowType) -> Truth {
    let options = CpuOptions { threads: Some(1), simd: Some(Simd::SCALAR) };
    let mut plain = Runner::new(CpuBackend::open(options).expect("a CPU"), checkpoint);
    plain.with(kv, capacity());
    let vocab = checkpoint.config().vocab_size;
    let mut seeded = Seeded::new(23);
    let prompt: Vec<u32> = (0..prompt_len()).map(|_| seeded.below(vocab) as u32).collect();
    let greedy = plain.generate(&prompt, &GREEDY, false, |_, _| {});
    let sampled = plain.generate(&prompt, &SAMPLED, false, |_, _| {});
    let [few, all] = [FEW, ALL].map(|params| plain.generate(&prompt, &params, false, |_, _| {}));
    let mut truth = Truth { prompt, greedy, sampled, few, all, logits: Vec::new() };
    truth.logits = plain.logits(&truth.text());
    truth
}

/// Text and logits of the plain code belong together, and are not those of a model that is stuck.
fn check_truth(name: &str, truth: &Truth) {
    for (step, &token) in truth.greedy.iter().enumerate() {
        let logits: Vec<f32> =
            truth.logits[prompt_len() - 1 + step].iter().map(|&x| f32::from_bits(x)).collect();
        assert!(logits.iter().all(|x| x.is_finite()), "{name}: logits of step {step}");
        assert_eq!(
            pick(&logits, &vec![0; logits.len()], &[], &GREEDY, 0),
            token,
            "{name}: step {step}"
        );
    }
    let mut distinct = truth.sampled.clone();
    distinct.sort_unstable();
    distinct.dedup();
    // A text of a few tokens says nothing about that.
    if text_len() >= 64 {
        assert!(distinct.len() > text_len() / 32, "{name}: {} distinct tokens", distinct.len());
        assert_ne!(truth.greedy, truth.sampled, "{name}");
    }
}

fn every_way_gives_the_same_bits(name: &str) {
    // The device is this test's alone.
    let _shared = lane::shared();
    let files = files(name);
    let checkpoint = files.open();
    let truths = [RowType::Bf16, RowType::F32].map(|kv| (kv, truth(&checkpoint, kv)));
    for (i, (way, backend)) in lane::ways().into_iter().enumerate() {
        let mut runner = Runner::new(backend, &checkpoint);
        let truths = || truths.iter().enumerate().filter(|(j, _)| due(i + j, 2)).map(|(_, it)| it);
        for (kv, truth) in truths() {
            let what = format!("{name}, {way}, {kv:?} cache");
            check_truth(&what, truth);
            check_way(&mut runner, *kv, truth, &what);
        }
        let Runner { model, sequence } = runner;
        let model = model.with_head(HeadKind::Int8).expect("a copy of the head");
        let mut runner = Runner { model, sequence };
        for (kv, truth) in truths() {
            check_int8_head(
                &mut runner,
                *kv,
                truth,
                &format!("{name}, {way}, int8 head, {kv:?} cache"),
            );
        }
    }
}

fn check_way<B: Backend>(runner: &mut Runner<B>, kv: RowType, truth: &Truth, what: &str) {
    let text = truth.text();
    for chunk in [1, 23, capacity()] {
        runner.with(kv, chunk);
        let found = runner.logits(&text);
        for pos in 0..text.len() {
            let (found, expected) = (&found[pos], &truth.logits[pos]);
            check_row(&format!("{what}, chunks of {chunk}, position {pos}"), found, expected);
        }
    }
    runner.with(kv, 32);
    for &record in lane::RECORD {
        let what = format!("{what}, recorded {record}");
        // Looking at every step.
        let tokens = runner.generate(&truth.prompt, &GREEDY, record, |pos, now| {
            let logits = now.sequence.read_logits(now.model.backend()).expect("logits");
            check_row(&format!("{what}, decoded {pos}"), &bits(&logits), &truth.logits[pos]);
        });
        check_tokens(&format!("{what}, greedy"), &tokens, &truth.greedy);
        // Looking at nothing before all steps are queued.
        let tokens = runner.generate(&truth.prompt, &SAMPLED, record, |_, _| {});
        check_tokens(&format!("{what}, sampled"), &tokens, &truth.sampled);
    }
}

/// Weights of 1.6 bits: the same bits, by the operations one by one.
#[test]
fn weights_of_1_6_bits() {
    let _shared = lane::shared();
    let files = files("tiny");
    let checkpoint = files.open();
    let kv = RowType::Bf16;
    let truth = truth(&checkpoint, kv);
    for (way, backend) in lane::ways() {
        let mut runner = Runner::new_in(WeightLayout::Trits, backend, &checkpoint);
        check_way(&mut runner, kv, &truth, &format!("tiny at 1.6 bits, {way}"));
    }
}

/// By the int8 copy of the head: the same texts.
fn check_int8_head<B: Backend>(runner: &mut Runner<B>, kv: RowType, truth: &Truth, what: &str) {
    runner.with(kv, 32);
    for &record in lane::RECORD {
        let what = format!("{what}, recorded {record}");
        let tokens = runner.generate(&truth.prompt, &GREEDY, record, |pos, now| {
            let logits = now.sequence.read_logits(now.model.backend());
            // The first token is of the prompt, whose logits the stored head makes.
            let expected = match pos + 1 == truth.prompt.len() {
                true => logits.is_ok(),
                false => matches!(logits, Err(OpError::NoLogits { .. })),
            };
            assert!(expected, "{what}, {pos}: {:?}", logits.err());
        });
        check_tokens(&format!("{what}, greedy"), &tokens, &truth.greedy);
        let tokens = runner.generate(&truth.prompt, &SAMPLED, record, |_, _| {});
        check_tokens(&format!("{what}, sampled"), &tokens, &truth.sampled);
        // Another number of candidates, and all of them.
        for (params, expected) in [(FEW, &truth.few), (ALL, &truth.all)] {
            let tokens = runner.generate(&truth.prompt, &params, record, |_, _| {});
            check_tokens(&format!("{what}, top-k {}", params.top_k), &tokens, expected);
        }
    }
}

fn check_row(what: &str, found: &[u32], expected: &[u32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differs = |i: &usize| found[*i] != expected[*i];
    if let Some(i) = (0..found.len()).find(differs) {
        let count = (0..found.len()).filter(differs).count();
        let (found, expected) = (found[i], expected[i]);
        panic!(
            "{what}: logit {i} is {found:#010x} ({:e}), expected {expected:#010x} ({:e}); {count} differ",
            f32::from_bits(found),
            f32::from_bits(expected)
        );
    }
}

fn check_tokens(what: &str, found: &[u32], expected: &[u32]) {
    if let Some(step) = (0..text_len()).find(|&i| found[i] != expected[i]) {
        let (found, expected) = (found[step], expected[step]);
        panic!("{what}: token {step} is {found}, expected {expected}");
    }
}
