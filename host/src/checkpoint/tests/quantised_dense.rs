//! GGUF files whose embedding is in quantised blocks, as the tools that write ternary files leave it.

use std::path::Path;

use super::{open, write};
use crate::checkpoint::{
    BlockType, CheckpointError, DenseSlot, FloatType, Target, convert, synth::SynthOptions,
};

const NAME: &[u8] = b"token_embd.weight";

/// Puts `blocks` behind the data of a GGUF file and lets the embedding point there, as type `kind`.
fn replace_embedding(path: &Path, kind: u32, blocks: &[u8]) {
    let data_start = open(path).unwrap().dense(DenseSlot::Embedding).unwrap().tensor.offset;
    let mut file = std::fs::read(path).unwrap();
    let name = file.windows(NAME.len()).position(|w| w == NAME).unwrap();
    let entry = name + NAME.len() + 4 + 2 * 8; // past the dimensions
    file.resize(file.len().next_multiple_of(32), 0);
    let offset = file.len() as u64 - data_start;
    file[entry..entry + 4].copy_from_slice(&kind.to_le_bytes());
    file[entry + 4..entry + 12].copy_from_slice(&offset.to_le_bytes());
    file.extend(blocks);
    std::fs::write(path, file).unwrap();
}

/// Random blocks whose scales are small finite numbers.
fn blocks(kind: BlockType, values: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9u32;
    let mut bytes: Vec<u8> = (0..values / kind.values() * kind.bytes())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    for block in bytes.chunks_exact_mut(kind.bytes()) {
        match kind {
            BlockType::Q8_0 => block[1] = 0x14,
            BlockType::Q4K => (block[1], block[3]) = (0x04, 0x08),
            BlockType::Q6K => block[209] = 0x04,
        }
    }
    bytes
}

#[test]
fn quantised_embeddings_are_read_as_f32() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("start"), "tiny-blocks", &SynthOptions::default());
    let start = open(&dir.path().join("start")).unwrap();
    for (kind, number) in [(BlockType::Q8_0, 8), (BlockType::Q4K, 12), (BlockType::Q6K, 14)] {
        let path = dir.path().join(format!("{}.gguf", kind.name()));
        convert(&start, &path, Target::GgufTq2, &mut |_, _| {}).unwrap();
        let (rows, cols) = (start.config().vocab_size, start.config().hidden_size);
        let blocks = blocks(kind, rows * cols);
        replace_embedding(&path, number, &blocks);

        let read = open(&path).unwrap();
        let view = read.dense(DenseSlot::Embedding).unwrap();
        assert_eq!((view.dtype, view.rows, view.cols), (FloatType::F32, rows, cols));
        let mut expected = vec![0.0; rows * cols];
        kind.decode(&blocks, &mut expected);
        let mut found = vec![0.0; 3 * cols];
        view.rows_f32(7..10, &mut found).unwrap();
        assert_eq!(found, expected[7 * cols..10 * cols], "{}", kind.name());
        drop(view);

        // A conversion keeps the values that were read.
        let back = dir.path().join(format!("{}-hf", kind.name()));
        convert(&read, &back, Target::HfPacked, &mut |_, _| {}).unwrap();
        let back = open(&back).unwrap();
        let view = back.dense(DenseSlot::Embedding).unwrap();
        let mut found = vec![0.0; rows * cols];
        view.rows_f32(0..rows, &mut found).unwrap();
        assert_eq!((view.dtype, found), (FloatType::F32, expected));
    }
}

#[test]
fn types_that_are_not_read_are_named_with_those_that_are() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("start"), "tiny-blocks", &SynthOptions::default());
    let start = open(&dir.path().join("start")).unwrap();
    let path = dir.path().join("model.gguf");
    convert(&start, &path, Target::GgufI2S, &mut |_, _| {}).unwrap();
    let values = start.config().vocab_size * start.config().hidden_size;
    replace_embedding(&path, 13, &vec![0; values / 256 * 176]);
    let error = open(&path).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::StoredType { found, allowed, .. }
            if found == "Q5_K" && allowed.contains("Q6_K")),
        "{error}"
    );
}
