//! Chooses what to compute on: the first argument, else `BITNET_DEVICE`, else what is there.
//!
//! `cargo run --example choose_backend -- auto|cpu|cuda[:N]`

use bitnet_gpu::device_choice::{BackendChoice, ChoiceError, cuda_count, is_cuda_available};

fn main() -> Result<(), ChoiceError> {
    let choice = match std::env::args().nth(1) {
        Some(word) => word.parse()?,
        None => BackendChoice::from_env()?.unwrap_or_default(),
    };
    if !is_cuda_available() {
        match cuda_count() {
            Ok(_) => println!("no GPU is visible"),
            Err(why) => println!("no GPU: {why}"),
        }
    }
    println!("{choice} -> {}", choice.resolve()?);
    Ok(())
}
