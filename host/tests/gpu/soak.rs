//! Many short texts in one process: no memory is lost, and a prompt gives the same tokens every time,
//! whatever was generated or given up on before it.

use std::collections::HashMap;
use std::ops::ControlFlow;

use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::session::Session;
use bitnet_gpu::text::SamplingParams;

use crate::lane;
use crate::model::files;

/// Texts in all.
const GENERATIONS: usize = 2000;
/// Different prompts among them.
const PROMPTS: usize = 24;

#[test]
fn two_thousand_texts() {
    let _shared = lane::shared();
    let files = files("tiny-falcon-e");
    let builder = Session::builder().model(&files.path).backend(lane::choice()).context(160);
    let mut session = builder.build().expect("a session");
    let vocab = session.config().vocab_size;
    let mut seeded = Seeded::new(31);
    let prompts: Vec<Vec<u32>> = (0..PROMPTS)
        .map(|_| (0..1 + seeded.below(90)).map(|_| seeded.below(vocab) as u32).collect())
        .collect();
    // Tokens of the longest text that each prompt has given so far.
    let mut first: HashMap<usize, Vec<u32>> = HashMap::new();
    let mut settled = None;
    for i in 0..GENERATIONS {
        let prompt = if i < PROMPTS { i } else { seeded.below(PROMPTS) };
        let params = SamplingParams {
            seed: prompt as u64,
            // Some prompts are continued greedily.
            temperature: if prompt % 3 == 0 { 0.0 } else { 0.8 },
            max_tokens: 1 + seeded.below(60),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        // Every fifth text is given up on its way.
        let patience = if i % 5 == 0 { 1 + seeded.below(9) } else { usize::MAX };
        let mut given = 0;
        let text = session
            .generate(&prompts[prompt], &params, |_| {
                given += 1;
                if given < patience { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .unwrap_or_else(|error| panic!("text {i}: {error}"));
        let known = first.entry(prompt).or_default();
        let common = known.len().min(text.tokens.len());
        assert_eq!(text.tokens[..common], known[..common], "text {i} of prompt {prompt}");
        if text.tokens.len() > known.len() {
            *known = text.tokens;
        }
        // Recordings and staging are made in the first texts.
        let memory = session.memory();
        let held = (memory.in_use_bytes, memory.reserved_bytes);
        if i >= GENERATIONS / 4 {
            let settled = settled.get_or_insert(held);
            assert_eq!(*settled, held, "text {i}: bytes in use and reserved");
        }
    }
    assert_eq!(first.len(), PROMPTS, "every prompt had its turn");
    println!("{GENERATIONS} texts, bytes in use and reserved: {settled:?}");
}
