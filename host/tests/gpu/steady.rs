//! The sizes of a real model, again and again: a prompt has the same logits every time, and a busy batch gives each text what it gives alone.
//!
//! What these find is rare. A copy of the next codes that overtook the last read of those before it changed one feature of a tile
//! in one launch of a thousand of one product, and no test of a single launch saw it. Single operations are in `steady_ops`,
//! `steady_rows` and `steady_layers`.

use std::collections::HashMap;
use std::ops::ControlFlow;

use bitnet_gpu::checkpoint::synth::NamedConfig;
use bitnet_gpu::model::{HeadKind, Model, Sequence, SequenceOptions};
use bitnet_gpu::ops::RowType;
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::session::Session;
use bitnet_gpu::text::SamplingParams;

use crate::batch::bits;
use crate::lane;
use crate::model::{Files, written};
use crate::support::{emulated_sms, repeats};

/// A model as wide as BitNet b1.58 2B4T, with enough layers that weights come from memory every time; a small one on an emulated GPU.
fn wide() -> Files {
    let name = if emulated_sms().is_some() { "tiny" } else { "2b4t" };
    let mut named = NamedConfig::find(name).expect("a known name");
    named.config.num_layers = named.config.num_layers.min(6);
    named.config.vocab_size = named.config.vocab_size.min(8192);
    written(&named)
}

#[test]
fn a_prompt_has_the_same_logits_every_time() {
    let _shared = lane::shared();
    let files = wide();
    let checkpoint = files.open();
    let vocab = checkpoint.config().vocab_size;
    for (way, backend) in lane::ways() {
        let model = Model::load(backend, &checkpoint, &mut |_| {}).expect("the model loads");
        let options =
            SequenceOptions { capacity: 512, kv: RowType::Bf16, chunk: 512, one_kernel: true };
        let mut sequence = Sequence::new(&model, options).expect("a sequence");
        // The last tile of tokens is full, or not; parts of k are shared by blocks, or not.
        for rows in [2, 17, 64, 200, 300, 512] {
            let mut seeded = Seeded::new(rows as u64);
            let rows = repeats(rows);
            let ids: Vec<u32> = (0..rows).map(|_| seeded.below(vocab) as u32).collect();
            let mut first = None;
            for i in 0..repeats(500) {
                model.prefill(&mut sequence, &ids, 0).expect("a prefill");
                let logits = bits(&sequence.read_logits(model.backend()).expect("logits"));
                let first = first.get_or_insert_with(|| logits.clone());
                let differ = logits.iter().zip(&*first).filter(|(a, b)| a != b).count();
                assert_eq!(differ, 0, "{way}, {rows} rows, time {i}: logits that differ");
            }
        }
    }
}

#[test]
fn a_busy_batch_gives_what_each_gives_alone() {
    let _shared = lane::shared();
    let files = wide();
    let builder = || Session::builder().model(&files.path).backend(lane::choice()).context(512);
    let mut seeded = Seeded::new(77);
    for head in [HeadKind::Int8, HeadKind::Stored] {
        let mut session = builder().head(head).build().expect("a session");
        let vocab = session.config().vocab_size;
        let mut ids =
            |n: usize| -> Vec<u32> { (0..n).map(|_| seeded.below(vocab) as u32).collect() };
        let common = ids(120);
        let texts: Vec<(Vec<u32>, SamplingParams)> = (0..repeats(100))
            .map(|i| {
                let own = ids(repeats([1, 3, 20, 60, 150, 300][i % 6]));
                // A third begin alike.
                let prompt = if i % 3 == 0 { [&common[..], &own].concat() } else { own };
                let params = SamplingParams {
                    seed: i as u64,
                    temperature: if i % 4 == 0 { 0.0 } else { 0.9 },
                    max_tokens: repeats(1 + i * 37 % 90),
                    ignore_eos: true,
                    ..SamplingParams::default()
                };
                (prompt, params)
            })
            .collect();
        let alone: Vec<Vec<u32>> = texts
            .iter()
            .map(|(prompt, params)| {
                let text = session.generate(prompt, params, |_| ControlFlow::Continue(()));
                text.expect("a text").tokens
            })
            .collect();
        drop(session);

        let mut batch = builder().head(head).max_batch(64).build_batch().expect("a batch");
        let mut seeded = Seeded::new(78);
        let mut running = HashMap::new();
        let (mut left, mut removed) = (repeats(3000), 0);
        while left > 0 || !running.is_empty() {
            // They come in bursts, until there is no room.
            while left > 0 && batch.len() < batch.max_batch() && seeded.below(10) < 7 {
                let i = seeded.below(texts.len());
                let (prompt, params) = &texts[i];
                running.insert(batch.add_request(prompt, params).expect("there is room"), i);
                left -= 1;
            }
            // Some go before their end.
            if seeded.below(10) == 0
                && let Some(&id) = running.keys().next()
            {
                running.remove(&id);
                assert!(batch.remove_request(id).expect("it goes").is_some());
                removed += 1;
            }
            for output in batch.step().expect("a step") {
                let Some(made) = output.finished else { continue };
                let i = running.remove(&output.id).expect("it runs");
                assert_eq!(
                    made.tokens, alone[i],
                    "{head:?}, text {i}, {} cached",
                    made.stats.cached_tokens
                );
            }
        }
        println!("{head:?}: {} texts, {removed} of them removed", repeats(3000));
    }
}
