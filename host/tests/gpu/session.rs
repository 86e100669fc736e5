//! What a session chooses by itself on a GPU.

use std::ops::ControlFlow;

use bitnet_gpu::checkpoint::synth::{self, NamedConfig};
use bitnet_gpu::device_choice::BackendChoice;
use bitnet_gpu::session::{HeadKind, Session, SessionBuilder};
use bitnet_gpu::text::SamplingParams;

use crate::lane;

/// A session makes the int8 copy of a large head where there is room for it, and says so; the texts are the same.
#[test]
fn the_head_that_has_room() {
    let _shared = lane::shared();
    let mut config = NamedConfig::find("tiny-blocks").expect("a known name");
    // 272 bytes a row: a little over the size from which a copy is worth its memory.
    config.config.vocab_size = 31_000;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wide");
    synth::write(&path, &config, 3, &mut |_, _| {}).expect("a synthetic model");
    let prompt = [1, 77, 30_999, 400];
    let params = |temperature| SamplingParams {
        max_tokens: 2,
        temperature,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let builder = |device| Session::builder().model(&path).context(64).backend(device);
    let texts = |builder: SessionBuilder| {
        let mut session = builder.build().expect("a session");
        let texts = [0.0, 0.8].map(|temperature| {
            let text =
                session.generate(&prompt, &params(temperature), |_| ControlFlow::Continue(()));
            text.expect("a text").tokens
        });
        (session.load_stats().head, texts, session.memory().in_use_bytes)
    };
    let gpu = BackendChoice::Cuda(0);
    let (stored, expected, in_use) = texts(builder(gpu).head(HeadKind::Stored));
    assert_eq!(stored, HeadKind::Stored);
    let (head, found, _) = texts(builder(gpu));
    assert_eq!((head, &found), (HeadKind::Int8, &expected));
    let capped = builder(gpu).pool_cap(in_use + (64 << 20)).max_batch(2).pages(4);
    let mut engine = capped.build_batch().expect("an engine");
    assert_eq!(engine.load_stats().head, HeadKind::Stored);
    let params = [params(0.0), params(0.8)];
    let found = engine
        .generate(&[prompt.to_vec(), prompt.to_vec()], &params, |_, _| ControlFlow::Continue(()));
    let found: Vec<_> = found.expect("texts").into_iter().map(|text| text.tokens).collect();
    assert_eq!(found, expected);
    let (head, found, _) = texts(builder(BackendChoice::Cpu));
    assert_eq!((head, &found), (HeadKind::Stored, &expected));
}
