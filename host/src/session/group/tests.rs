//! The group over devices that are made up, so that they can be slow, fail and be counted; and over two CPU backends.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::*;
use crate::checkpoint::{Checkpoint, OpenOptions, synth::NamedConfig};
use crate::cpu::CpuBackend;
use crate::device_choice::BackendChoice;
use crate::model::{Batch, Model};
use crate::ops::attention_paged::PageType;
use crate::ops::{OpError, RowType, WeightLayout};
use crate::session::runner::{BatchRunner, End};
use crate::session::{BatchEngine, Finish, LoadStats, Session};
use crate::text::{SamplingParams, Tokenizer};

const OPTIONS: BatchOptions = BatchOptions {
    max_batch: 2,
    capacity: 640,
    pages: 12,
    kv: PageType::Float(RowType::Bf16),
    chunk: 64,
    prompt_share: 64,
    prefix_cache: true,
    one_kernel: true,
    draft_rows: 0,
};

/// What a test sees of a device, and how the device behaves.
struct Script {
    admitted: AtomicUsize,
    removed: AtomicUsize,
    steps: AtomicUsize,
    dropped: AtomicUsize,
    /// Steps that it may make: it waits in the one after them. Tests whose end hangs on which device is ahead hold
    /// one, as the system may let either thread wait for any time.
    may_make: AtomicUsize,
    /// Of a step.
    time: Duration,
    fails_at: Option<usize>,
    panics_at: Option<usize>,
    refuses: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            admitted: AtomicUsize::new(0),
            removed: AtomicUsize::new(0),
            steps: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            may_make: AtomicUsize::new(usize::MAX),
            time: Duration::ZERO,
            fails_at: None,
            panics_at: None,
            refuses: false,
        }
    }
}

/// A device that counts on from the first token of a prompt.
struct Fake {
    config: ModelConfig,
    script: Arc<Script>,
    /// Next token, tokens left, stop ids.
    slots: Vec<Option<(u32, usize, Vec<u32>)>>,
}

impl Batched for Fake {
    fn devices(&self) -> Vec<String> {
        vec!["a fake".into()]
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn options(&self) -> BatchOptions {
        OPTIONS
    }

    fn pages(&self) -> PageUsage {
        PageUsage::default()
    }

    fn memory(&self) -> MemoryUsage {
        MemoryUsage { in_use_bytes: 7, per_label: [("kv", 7)].into(), ..MemoryUsage::default() }
    }

    fn profile(&self) -> Result<Option<Profile>, SessionError> {
        Ok(None)
    }

    fn admit(
        &mut self,
        prompt: &[u32],
        Wish { params, .. }: &Wish,
        _: MakeGuide<'_>,
    ) -> Result<usize, SessionError> {
        if self.script.refuses {
            return Err(OpError::NoLogits { op: "admit" }.into());
        }
        let slot = self.slots.iter().position(Option::is_none).expect("the group counts slots");
        let stops = params.stop_ids[..params.stop_len as usize].to_vec();
        self.slots[slot] = Some((prompt[0], params.max_steps as usize, stops));
        self.script.admitted.fetch_add(1, SeqCst);
        Ok(slot)
    }

    fn remove(&mut self, slot: usize) -> Result<(), SessionError> {
        assert!(self.slots[slot].take().is_some());
        self.script.removed.fetch_add(1, SeqCst);
        Ok(())
    }

    fn queue(&mut self) -> Result<(), SessionError> {
        thread::sleep(self.script.time);
        until(|| self.script.steps.load(SeqCst) < self.script.may_make.load(SeqCst));
        let step = Some(self.script.steps.fetch_add(1, SeqCst));
        assert_ne!(step, self.script.panics_at, "as the test wants it");
        match step == self.script.fails_at {
            true => Err(OpError::NoLogits { op: "queue" }.into()),
            false => Ok(()),
        }
    }

    fn next(&mut self, slot: usize) -> Result<Next, SessionError> {
        let (token, left, stops) = self.slots[slot].as_mut().expect("a sequence");
        *left = left.checked_sub(1).expect("nothing is asked for behind the last token");
        let found = *token;
        if stops.contains(&found) {
            *left = 0;
        }
        *token += 1;
        let is_last = *left == 0 && !stops.contains(&found);
        Ok(Next::Token { token: found, told: None, end: is_last.then_some(End::Limit) })
    }

    fn counts(&self, _: usize) -> Counts {
        Counts::default()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.script.dropped.fetch_add(1, SeqCst);
    }
}

fn engine<const N: usize>(scripts: [Script; N]) -> (BatchEngine, [Arc<Script>; N]) {
    let scripts = scripts.map(Arc::new);
    let config = NamedConfig::find("tiny").expect("a known name").config;
    let fakes = scripts.iter().enumerate().map(|(i, script)| {
        let slots = vec![None; OPTIONS.max_batch];
        let fake = Fake { config: config.clone(), script: script.clone(), slots };
        (format!("fake:{i}"), Box::new(fake) as Box<dyn Batched>)
    });
    let group = Group::start(fakes.collect()).expect("threads");
    (BatchEngine::new(Box::new(group), None, LoadStats::default()), scripts)
}

fn slow(millis: u64) -> Script {
    Script { time: Duration::from_millis(millis), ..Script::default() }
}

fn held() -> Script {
    Script { may_make: AtomicUsize::new(0), ..Script::default() }
}

fn params(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, ignore_eos: true, temperature: 0.0, ..Default::default() }
}

fn counted(from: u32, len: usize) -> Vec<u32> {
    (from..from + len as u32).collect()
}

/// Waits for what another thread does.
fn until(what: impl Fn() -> bool) {
    let started = Instant::now();
    while !what() {
        assert!(started.elapsed() < Duration::from_secs(60), "it takes too long");
        thread::sleep(Duration::from_micros(100));
    }
}

/// Runs a request of three tokens to its end; whether the second device took it.
fn second_takes(engine: &mut BatchEngine, [a, b]: &[Arc<Script>; 2], prompt: &[u32]) -> bool {
    let admitted = || [a, b].map(|script| script.admitted.load(SeqCst));
    let before = admitted();
    let id = engine.add_request(prompt, &params(3)).unwrap();
    let made = loop {
        let ended = engine.step().unwrap().into_iter().find(|o| o.id == id && o.finished.is_some());
        if let Some(made) = ended.and_then(|output| output.finished) {
            break made;
        }
    };
    assert_eq!(made.tokens, counted(prompt[0], 3));
    admitted()[1] != before[1]
}

#[test]
fn the_device_that_has_the_beginning_of_a_prompt_takes_it() {
    let (mut engine, scripts) = engine([slow(1), slow(1)]);
    let [known, other] = [[1; 150], [2; 150]];
    assert!(!second_takes(&mut engine, &scripts, &known), "both are empty");
    let holds = engine.add_request(&[9], &params(250)).unwrap();
    until(|| scripts[0].admitted.load(SeqCst) == 2);
    assert!(second_takes(&mut engine, &scripts, &other), "it has more room");
    assert!(!second_takes(&mut engine, &scripts, &known), "not much more");
    // Of a beginning it is the longest, and what was answered belongs to it: 62 tokens and two of three.
    let asked = [5; 62];
    assert!(second_takes(&mut engine, &scripts, &asked));
    engine.remove_request(holds).unwrap().expect("it was there");
    let turn = [&asked[..], &counted(5, 3), &[8]].concat();
    assert!(second_takes(&mut engine, &scripts, &turn));
    assert!(second_takes(&mut engine, &scripts, &other));
    assert!(!second_takes(&mut engine, &scripts, &asked), "less than a page");
    // One that has no place leaves it to the others.
    let full = [(); 2].map(|()| engine.add_request(&known, &params(90)).unwrap());
    until(|| scripts[0].admitted.load(SeqCst) == 6);
    assert!(second_takes(&mut engine, &scripts, &known));
    for id in full {
        engine.remove_request(id).unwrap().expect("it was there");
    }
    assert_eq!(engine.pages().in_use, 0);
}

#[test]
fn the_device_with_the_most_room_takes_a_request() {
    let (mut engine, [a, b]) = engine([slow(1), slow(1)]);
    assert_eq!((engine.max_batch(), engine.pages().total), (4, 24));
    assert_eq!(engine.devices(), ["a fake", "a fake"]);
    assert_eq!((engine.memory().in_use_bytes, engine.memory().per_label["kv"]), (14, 14));
    // Two take turns.
    let ids: Vec<_> = (0..4).map(|i| engine.add_request(&[i], &params(300)).unwrap()).collect();
    until(|| a.admitted.load(SeqCst) == 2 && b.admitted.load(SeqCst) == 2);
    assert_eq!(engine.pages().in_use, 4 * 5);
    let full = engine.add_request(&[4], &params(1)).unwrap_err();
    let batch_full = |e| matches!(e, SessionError::Model(ModelError::BatchFull { max_batch: 4 }));
    assert!(full.is_full() && batch_full(full));
    // A place is free at once where one goes; one page fits, more do not.
    engine.remove_request(ids[1]).unwrap().expect("it was there");
    let full = engine.add_request(&[4], &params(513)).unwrap_err();
    let pages = |e: &SessionError| {
        matches!(e, SessionError::Model(ModelError::PagesFull { needed: 9, free: 7, total: 12 }))
    };
    assert!(pages(&full), "{full}");
    engine.add_request(&[4], &params(1)).unwrap();
    until(|| b.admitted.load(SeqCst) == 3);
    // What no batch can take is told at once, and takes nothing.
    let in_use = engine.pages().in_use;
    let refused = |e: Result<_, SessionError>| matches!(e, Err(SessionError::Model(_)));
    assert!(refused(engine.add_request(&[], &params(1))));
    assert!(refused(engine.add_request(&[0; 641], &params(1))));
    assert!(refused(engine.add_request(&[u32::MAX], &params(1))));
    assert_eq!((engine.len(), engine.pages().in_use), (4, in_use));
    assert_eq!(engine.pages().peak, 20);
}

#[test]
fn uneven_devices_give_every_text_in_the_order_of_the_prompts() {
    let (mut engine, [first, slowest, last]) = engine([slow(0), held(), slow(0)]);
    let lens: Vec<usize> = (0..50).map(|i| 1 + i * 7 % 23).collect();
    let prompts: Vec<Vec<u32>> = (0..50).map(|i| vec![i * 3]).collect();
    let all: Vec<_> = lens.iter().map(|&len| params(len)).collect();
    let mut streamed = vec![Vec::new(); 50];
    let texts = engine
        .generate(&prompts, &all, |index, output| {
            streamed[index].push(output.token);
            // One that makes no step keeps what it has room for, and the others go on to the last prompt.
            if first.admitted.load(SeqCst) + last.admitted.load(SeqCst) == 48 {
                slowest.may_make.store(usize::MAX, SeqCst);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    for (i, text) in texts.iter().enumerate() {
        assert_eq!(text.tokens, counted(3 * i as u32, lens[i]));
        assert_eq!((&text.tokens, text.finish), (&streamed[i], Finish::MaxTokens));
    }
    let [first, slowest, last] = [first, slowest, last].map(|script| script.admitted.load(SeqCst));
    assert_eq!((first + last, slowest), (48, 2));
    assert!(engine.is_empty() && engine.pages().in_use == 0);
    assert!(engine.step().unwrap().is_empty(), "a step of nothing does not wait");
}

#[test]
fn outputs_of_a_step_are_in_the_order_of_the_requests() {
    let (mut engine, _) = engine([slow(0), slow(1)]);
    let ids: Vec<_> = (0..4).map(|i| engine.add_request(&[i], &params(40)).unwrap()).collect();
    let mut seen = [0; 4];
    while !engine.is_empty() {
        let outputs = engine.step().unwrap();
        assert!(outputs.is_sorted_by_key(|output| output.id));
        for output in outputs {
            let at = ids.iter().position(|id| *id == output.id).unwrap();
            assert_eq!(output.token, at as u32 + seen[at]);
            seen[at] += 1;
            assert_eq!(output.finished.is_some(), seen[at] == 40);
        }
    }
    assert_eq!(seen, [40; 4]);
}

#[test]
fn a_request_that_is_taken_out_has_given_what_was_handed_out() {
    // The second is held, or it might end before it is taken out.
    let (mut engine, scripts) = engine([slow(0), held()]);
    let ids: Vec<_> = (0..3).map(|i| engine.add_request(&[9 * i], &params(300)).unwrap()).collect();
    let mut given = Vec::new();
    while given.len() < 5 {
        let outputs = engine.step().unwrap();
        given.extend(outputs.iter().filter(|o| o.id == ids[0]).map(|o| o.token));
    }
    // The device has gone on; nobody has seen that.
    let gone = engine.remove_request(ids[0]).unwrap().expect("it was there");
    assert_eq!((gone.tokens, gone.finish), (given, Finish::Cancelled));
    assert!(engine.remove_request(ids[0]).unwrap().is_none());
    assert!(engine.step().unwrap().iter().all(|output| output.id != ids[0]));
    // Its place is the next one's, whose tokens are its own.
    let id = engine.add_request(&[100], &params(3)).unwrap();
    let mut text = None;
    while text.is_none() {
        let outputs = engine.step().unwrap();
        text = outputs.into_iter().find(|o| o.id == id).and_then(|o| o.finished);
    }
    assert_eq!(text.map(|text| text.tokens), Some(counted(100, 3)));
    engine.remove_request(ids[1]).unwrap().expect("it was there");
    engine.remove_request(ids[2]).unwrap().expect("it was there");
    assert!(engine.is_empty() && engine.pages().in_use == 0);
    scripts[1].may_make.store(usize::MAX, SeqCst);
    until(|| scripts.iter().map(|script| script.removed.load(SeqCst)).sum::<usize>() == 4);
}

#[test]
fn nothing_is_asked_for_behind_a_stop() {
    let (mut engine, _) = engine([slow(0), slow(0)]);
    let stops = SamplingParams { stop_ids: vec![12, 25], ..params(100) };
    let texts =
        engine
            .generate(&[vec![10], vec![20], vec![30]], &vec![stops; 3], |_, _| {
                ControlFlow::Continue(())
            })
            .unwrap();
    let found: Vec<_> = texts.iter().map(|text| (text.tokens.len(), text.finish)).collect();
    let stop = Finish::StopToken;
    assert_eq!(found, [(3, stop), (6, stop), (100, Finish::MaxTokens)]);
}

#[test]
fn a_device_waits_for_who_takes_its_steps() {
    let (mut engine, [script]) = engine([slow(0)]);
    let id = engine.add_request(&[0], &params(600)).unwrap();
    until(|| script.steps.load(SeqCst) == LEAD);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(script.steps.load(SeqCst), LEAD);
    let mut tokens = Vec::new();
    while !engine.is_empty() {
        tokens.extend(engine.step().unwrap().into_iter().map(|output| output.token));
        assert!(script.steps.load(SeqCst) <= tokens.len() + LEAD + 1);
    }
    assert_eq!(tokens, counted(0, 600));
    assert!(engine.remove_request(id).unwrap().is_none());
}

fn failed_on(error: &SessionError, name: &str) -> bool {
    matches!(error, SessionError::OnDevice { device, source }
        if device == name && matches!(**source, SessionError::Op(OpError::NoLogits { .. })))
}

#[test]
fn a_device_that_fails_is_named_and_the_others_go_on() {
    let fails = Script { fails_at: Some(4), ..slow(1) };
    let (mut engine, [ok, _, _]) = engine([slow(0), fails, Script { refuses: true, ..slow(0) }]);
    engine.add_request(&[0], &params(600)).unwrap();
    engine.add_request(&[1], &params(600)).unwrap();
    let error = loop {
        if let Err(error) = engine.step() {
            break error;
        }
    };
    assert!(failed_on(&error, "fake:1"), "{error}");
    assert!(error.to_string().starts_with("fake:1: "), "{error}");
    // All are taken out; the device is no longer counted.
    assert_eq!((engine.len(), engine.pages().in_use, engine.max_batch()), (0, 0, 4));
    assert_eq!(engine.memory().in_use_bytes, 14);
    // One that cannot even begin a sequence says so in the next step.
    engine.add_request(&[2], &params(3)).unwrap();
    engine.add_request(&[3], &params(3)).unwrap();
    let error = loop {
        if let Err(error) = engine.step() {
            break error;
        }
    };
    assert!(failed_on(&error, "fake:2"), "{error}");
    until(|| ok.removed.load(SeqCst) == ok.admitted.load(SeqCst));
    let text = engine.generate(&[vec![5]], &[params(9)], |_, _| ControlFlow::Continue(()));
    assert_eq!(text.unwrap()[0].tokens, counted(5, 9));
}

#[test]
fn without_a_device_that_is_left_there_is_an_error_and_no_waiting() {
    let fails = || Script { fails_at: Some(2), ..Script::default() };
    let (mut engine, scripts) = engine([fails(), fails()]);
    for _ in 0..2 {
        let error = engine.generate(&[vec![5]], &[params(9)], |_, _| ControlFlow::Continue(()));
        assert!(matches!(error, Err(SessionError::OnDevice { .. })));
    }
    let error = engine.add_request(&[1], &params(1)).unwrap_err();
    assert!(!error.is_full());
    assert_eq!(
        error.to_string(),
        "no device is left: fake:0, fake:1 have failed before; load the model again"
    );
    assert!(engine.step().unwrap().is_empty());
    assert_eq!(engine.memory().in_use_bytes, 0);
    assert!(scripts.iter().all(|script| script.dropped.load(SeqCst) == 1));
}

#[test]
fn a_panic_of_a_device_is_that_of_the_caller() {
    let panics = Script { panics_at: Some(3), ..Script::default() };
    let (mut engine, scripts) = engine([slow(1), panics]);
    for i in 0..4 {
        engine.add_request(&[i], &params(300)).unwrap();
    }
    let panic = catch_unwind(AssertUnwindSafe(|| while engine.step().is_ok() {})).unwrap_err();
    let text = panic.downcast_ref::<String>().expect("the text of the assertion");
    assert!(text.contains("as the test wants it"), "{text}");
    drop(engine);
    assert!(scripts.iter().all(|script| script.dropped.load(SeqCst) == 1));
}

#[test]
fn an_engine_is_dropped_in_the_middle_of_everything() {
    for steps in [0, 1, 7] {
        let (mut engine, scripts) = engine([slow(0), slow(2), slow(0)]);
        for i in 0..6 {
            engine.add_request(&[i], &params(300)).unwrap();
        }
        for _ in 0..steps {
            engine.step().unwrap();
        }
        drop(engine);
        assert!(scripts.iter().all(|script| script.dropped.load(SeqCst) == 1));
    }
}

/// Two CPU backends instead of two GPUs: the loader reads once for both, and texts are those of one session.
#[test]
fn texts_of_two_backends_are_those_of_a_session() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    let checkpoint = Checkpoint::open(&path, &OpenOptions::default()).expect("the demo model");
    let session = Session::builder().model(&path).backend(BackendChoice::Cpu).context(150);
    let mut session = session.threads(1).build().expect("a session");
    let texts = ["fn main() {", "use std::", "struct Point", "impl ", "//! A", "pub fn new("];
    let prompts: Vec<_> = texts.iter().map(|text| session.encode(text).expect("ids")).collect();
    let all: Vec<_> = (0..prompts.len())
        .map(|i| SamplingParams {
            max_tokens: [30, 3, 24, 17, 1, 40][i],
            temperature: [0.0, 0.8][i % 2],
            seed: i as u64,
            stop: if i == 3 { vec!["e".into()] } else { Vec::new() },
            ..SamplingParams::default()
        })
        .collect();
    let alone: Vec<_> = prompts
        .iter()
        .zip(&all)
        .map(|(ids, params)| session.generate(ids, params, |_| ControlFlow::Continue(())))
        .map(|text| text.expect("a text"))
        .collect();

    // Without guesses, and with up to five of them at once.
    for drafts in [0, 5] {
        let backend = |threads| CpuBackend::new(Some(threads)).expect("a CPU backend");
        let layouts = [WeightLayout::Bits2, WeightLayout::Trits];
        let backends = vec![(backend(1), layouts[0]), (backend(2), layouts[1])];
        let mut last = 0;
        let models = Model::load_each(backends, &checkpoint, &mut |at| {
            assert!(at.done > last, "every weight is decoded once");
            last = at.done;
            assert!(at.done <= at.total);
        });
        let models = models.expect("both");
        assert_eq!([models[0].layout(), models[1].layout()], layouts);
        let options = BatchOptions { capacity: 150, pages: 6, draft_rows: 16, ..OPTIONS };
        let engines = models.into_iter().enumerate().map(|(i, model)| {
            let batch = Batch::new(&model, options).expect("a batch");
            let runner = BatchRunner::new(model, batch, true, drafts);
            (format!("cpu:{i}"), Box::new(runner) as Box<dyn Batched>)
        });
        let group = Group::start(engines.collect()).expect("threads");
        let tokenizer = Tokenizer::of_checkpoint(&checkpoint).expect("the demo's tokenizer");
        let mut engine = BatchEngine::new(Box::new(group), tokenizer, LoadStats::default());
        let mut streamed = vec![String::new(); prompts.len()];
        let together = engine.generate(&prompts, &all, |index, output| {
            streamed[index].push_str(&output.text);
            ControlFlow::Continue(())
        });
        for (i, (found, alone)) in together.expect("texts").iter().zip(&alone).enumerate() {
            let parts = |text: &crate::session::Generated| {
                (text.tokens.clone(), text.text.clone(), text.finish)
            };
            assert_eq!(parts(found), parts(alone), "prompt {i}, {drafts} guessed");
            assert_eq!(streamed[i], found.text, "prompt {i}, {drafts} guessed");
        }
        assert_eq!((engine.len(), engine.pages().in_use), (0, 0));
    }
}
