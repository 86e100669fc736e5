//! Batches over every GPU of the machine: whichever takes a request, its text is the one that a session on the first GPU
//! gives. On a machine with one GPU the lists are of that one.

use std::ops::ControlFlow;

use bitnet_gpu::device_choice::{BackendChoice, ChoiceError, DeviceChoice, cuda_count};
use bitnet_gpu::driver::DeviceError;
use bitnet_gpu::model::LoadError;
use bitnet_gpu::session::{Finish, Generated, HeadKind, Session, SessionBuilder, SessionError};
use bitnet_gpu::text::SamplingParams;

use crate::lane;
use crate::model::{Files, files};
use crate::support::repeats;

const CONTEXT: usize = 150;

fn builder(files: &Files, devices: impl Into<DeviceChoice>) -> SessionBuilder {
    Session::builder().model(&files.path).backend(devices).context(CONTEXT)
}

fn count() -> u32 {
    let count = cuda_count().expect("these tests need a GPU");
    if count == 1 {
        println!("one GPU: nothing is spread");
    }
    count
}

/// Each GPU alone, all of them, and all of them the other way round.
fn lists() -> Vec<DeviceChoice> {
    let count = count();
    let each = (0..count).map(|ordinal| BackendChoice::Cuda(ordinal).into());
    let back = DeviceChoice::Cuda((0..count).rev().collect());
    each.chain([DeviceChoice::AllCuda, back]).collect()
}

fn prompts() -> (Vec<&'static str>, Vec<SamplingParams>) {
    let texts =
        ["fn main() {", "use std::", "struct Point", "//! A", "impl ", "pub fn new(", "let x"];
    let params = (0..texts.len()).map(|i| SamplingParams {
        max_tokens: repeats([40, 3, 200, 25, 1, 60, 33][i]),
        temperature: [0.0, 0.8][i % 2],
        seed: i as u64,
        stop: if i == 3 { vec!["e".into()] } else { Vec::new() },
        ..SamplingParams::default()
    });
    (texts.to_vec(), params.collect())
}

fn parts(text: &Generated) -> (&[u32], &str, Finish) {
    (&text.tokens, &text.text, text.finish)
}

#[test]
fn texts_do_not_depend_on_the_list() {
    let _shared = lane::shared();
    let files = files("demo");
    let (texts, params) = prompts();
    let mut session = builder(&files, BackendChoice::Cuda(0)).build().expect("a session");
    let ids: Vec<_> = texts.iter().map(|text| session.encode(text).expect("ids")).collect();
    let alone: Vec<_> = ids
        .iter()
        .zip(&params)
        .map(|(ids, params)| session.generate(ids, params, |_| ControlFlow::Continue(())))
        .map(|text| text.expect("a text"))
        .collect();
    drop(session);
    for list in lists() {
        let several = list.resolve().expect("they are there").len() > 1;
        let ways = [(HeadKind::Stored, 2), (HeadKind::Int8, 3)];
        for (head, max_batch) in ways.into_iter().take(1 + usize::from(several)) {
            let what = format!("{list}, {head:?}, {max_batch} on each");
            let engine = builder(&files, list.clone()).head(head).max_batch(max_batch).pages(9);
            let mut engine = engine.build_batch().expect("an engine");
            let devices = engine.devices();
            assert_eq!(devices.len(), list.resolve().expect("they are there").len(), "{what}");
            assert_eq!(engine.max_batch(), devices.len() * max_batch, "{what}");
            assert_eq!(engine.pages().total, devices.len() * 9, "{what}");
            for (name, line) in list.resolve().expect("they are there").iter().zip(&devices) {
                assert!(line.starts_with(&format!("{name} ")), "{what}: {line}");
            }
            let mut streamed = vec![String::new(); texts.len()];
            let found = engine.generate(&ids, &params, |index, output| {
                streamed[index].push_str(&output.text);
                ControlFlow::Continue(())
            });
            for (i, (found, alone)) in found.expect("texts").iter().zip(&alone).enumerate() {
                assert_eq!(parts(found), parts(alone), "{what}, prompt {i}");
                assert_eq!(streamed[i], found.text, "{what}, prompt {i}");
            }
            assert_eq!((engine.len(), engine.pages().in_use), (0, 0), "{what}");
            assert!(engine.memory().in_use_bytes > 0, "{what}");
        }
    }
}

/// Requests go in the middle of their texts, and so does the engine.
#[test]
fn requests_and_engines_go_in_the_middle() {
    let _shared = lane::shared();
    let files = files("demo");
    let params = SamplingParams { max_tokens: 100, ignore_eos: true, ..SamplingParams::default() };
    count();
    let engine = builder(&files, DeviceChoice::AllCuda).max_batch(2).build_batch();
    let mut engine = engine.expect("an engine");
    let prompt = engine.encode("fn main() {").expect("ids");
    let mut ids = Vec::new();
    let full = loop {
        match engine.add_request(&prompt, &params) {
            Ok(id) => ids.push(id),
            Err(error) => break error,
        }
    };
    assert!(full.is_full(), "{full}");
    assert_eq!(ids.len(), engine.max_batch());
    let mut given = 0;
    while given < 6 {
        let outputs = engine.step().expect("a step");
        given += outputs.iter().filter(|output| output.id == ids[0]).count();
    }
    let gone = engine.remove_request(ids[0]).expect("it goes").expect("it was there");
    assert_eq!((gone.tokens.len(), gone.finish), (given, Finish::Cancelled));
    engine.add_request(&prompt, &params).expect("its place is free");
    engine.step().expect("a step");
    drop(engine);
}

#[test]
fn what_cannot_be_had_is_refused() {
    let count = count();
    let _shared = lane::shared();
    let files = files("tiny");
    let far = builder(&files, DeviceChoice::Cuda(vec![0, count])).build_batch();
    let none = DeviceError::NoSuchDevice { asked: count, found: count };
    assert!(matches!(far, Err(SessionError::Device(ChoiceError::Cuda { ordinal, source }))
        if ordinal == count && source == none));
    let twice = builder(&files, DeviceChoice::Cuda(vec![0, 0])).build_batch();
    assert!(matches!(twice, Err(SessionError::Device(ChoiceError::Twice { ordinal: 0, .. }))));
    let one = builder(&files, DeviceChoice::Cuda(vec![0, 1])).build();
    assert!(matches!(one, Err(SessionError::Device(ChoiceError::Several { .. }))));
    if count > 1 {
        let both = DeviceChoice::Cuda(vec![1, 0]);
        let timed = builder(&files, both.clone()).profile(true).build_batch();
        assert!(matches!(timed, Err(SessionError::ProfileOfSeveral { .. })));
        // The one that lacks the memory is named.
        let small = builder(&files, both).pool_cap(1 << 16).build_batch();
        match small.err() {
            Some(SessionError::Load(LoadError::Device { device, .. })) => {
                assert!(device.starts_with("cuda:1 "), "{device}");
            }
            other => panic!("{other:?}"),
        }
    }
}
