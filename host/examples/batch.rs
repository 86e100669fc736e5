//! Continues several prompts at once; each gives the text that it gives alone, on one device or on several GPUs.
//!
//! `cargo run --release --features cuda --example batch -- MODEL cuda:0,1`

use bitnet_gpu::device_choice::DeviceChoice;
use bitnet_gpu::session::{Finish, Session, SessionError};
use bitnet_gpu::text::SamplingParams;

fn main() -> Result<(), SessionError> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "models/demo".into());
    let devices = match std::env::args().nth(2) {
        Some(list) => list.parse()?,
        None => DeviceChoice::default(),
    };
    // Two at a time on each device, over 16 pages of 64 positions.
    let builder = Session::builder().model(model).backend(devices);
    let mut engine = builder.context(256).max_batch(2).pages(16).build_batch()?;

    let prompts = ["fn main() {", "use std::", "/// The number of", "struct "];
    let mut waiting = Vec::new();
    for (i, prompt) in prompts.iter().enumerate().rev() {
        // Every request has parameters of its own.
        let params =
            SamplingParams { max_tokens: 12 + 8 * i, seed: i as u64, ..Default::default() };
        waiting.push((*prompt, engine.encode(prompt)?, params));
    }
    let mut names = Vec::new();
    while !(waiting.is_empty() && engine.is_empty()) {
        // A new one as soon as there is room.
        while let Some((prompt, ids, params)) = waiting.pop() {
            match engine.add_request(&ids, &params) {
                Ok(id) => names.push((id, prompt)),
                Err(error) if error.is_full() => {
                    waiting.push((prompt, ids, params));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        for output in engine.step()? {
            let Some(text) = output.finished else { continue };
            let prompt = names.iter().find(|(id, _)| *id == output.id).map_or("", |name| name.1);
            assert_ne!(text.finish, Finish::Cancelled);
            println!("{} tokens: {prompt}{}", text.tokens.len(), text.text);
        }
    }
    let pages = engine.pages();
    println!("at most {} of {} pages on {}", pages.peak, pages.total, engine.device());
    Ok(())
}
