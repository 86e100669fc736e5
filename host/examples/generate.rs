//! Loads a checkpoint and streams text.
//!
//! `cargo run --release --features cuda --example generate -- MODEL "prompt"`

use std::io::Write;
use std::ops::ControlFlow;

use bitnet_gpu::session::{Session, SessionError};
use bitnet_gpu::text::SamplingParams;

fn main() -> Result<(), SessionError> {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_else(|| "models/demo".into());
    let prompt = args.next().unwrap_or_else(|| "fn main() {".into());

    let mut session = Session::builder().model(model).build()?;
    let ids = session.encode(&prompt)?;
    let params = SamplingParams { max_tokens: 48, seed: 1, ..Default::default() };

    print!("{prompt}");
    let text = session.generate(&ids, &params, |piece| {
        print!("{}", piece.text);
        // A closed pipe ends the text.
        match std::io::stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    println!();
    eprintln!("{:.0} tok/s on {}", text.stats.decode_rate(), session.device());
    Ok(())
}
