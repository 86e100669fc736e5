//! Whole checkpoints: written, opened in every way, read back, damaged.

mod convert;
mod damage;
mod inspect;
mod quantised_dense;
mod round_trip;

use std::path::Path;

use super::{
    Checkpoint, CheckpointError, OpenOptions,
    synth::{self, NamedConfig, SynthOptions},
};

fn write(folder: &Path, name: &str, options: &SynthOptions) {
    let named = NamedConfig::find(name).unwrap();
    synth::write_with(folder, &named, 7, options, &mut |_, _| {}).unwrap();
}

fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(path, &OpenOptions::default())
}

fn tiny() -> impl Iterator<Item = NamedConfig> {
    NamedConfig::all().filter(|named| named.name.starts_with("tiny"))
}
