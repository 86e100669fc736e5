//! Writing GGUF files (version 3): metadata, tensor table, aligned data.

use std::path::Path;

use super::NewFile;
use crate::checkpoint::{CheckpointError, StoredType};

/// Every tensor starts at a multiple of this.
const ALIGNMENT: u64 = 32;

/// Metadata in its file form.
#[derive(Default)]
pub(crate) struct Metadata {
    count: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    pub(crate) fn uint(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn float(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        self.key(key, 7);
        self.bytes.push(value.into());
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        text(&mut self.bytes, value);
    }

    pub(crate) fn texts(&mut self, key: &str, values: &[impl AsRef<str>]) {
        self.key(key, 9);
        self.bytes.extend(8u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            text(&mut self.bytes, value.as_ref());
        }
    }

    pub(crate) fn floats(&mut self, key: &str, values: &[f32]) {
        self.key(key, 9);
        self.bytes.extend(6u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        self.bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }

    pub(crate) fn ints(&mut self, key: &str, values: &[i32]) {
        self.key(key, 9);
        self.bytes.extend(5u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        self.bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A tensor to be written; `shape` is outermost first.
#[derive(Clone, Debug)]
pub(crate) struct PlannedGguf<T> {
    pub(crate) name: String,
    pub(crate) stored: StoredType,
    pub(crate) shape: Vec<usize>,
    pub(crate) content: T,
}

impl<T> PlannedGguf<T> {
    /// GGML type number and bytes in the file; `None` for types that are not written.
    fn layout(&self) -> Option<(u32, u64)> {
        let elements: u64 = self.shape.iter().map(|&d| d as u64).product();
        Some(match self.stored {
            StoredType::F32 => (0, elements * 4),
            StoredType::F16 => (1, elements * 2),
            StoredType::Bf16 => (30, elements * 2),
            StoredType::Tq1_0 => (34, elements / 256 * 54),
            StoredType::Tq2_0 => (35, elements / 256 * 66),
            StoredType::I2S => (36, elements / 4 + 32),
            _ => return None,
        })
    }
}

/// Writes a file. `emit` must put exactly the bytes of its tensor; `done` gets bytes done and in all.
pub(crate) fn write_file<T>(
    path: &Path,
    metadata: &Metadata,
    tensors: &[PlannedGguf<T>],
    mut emit: impl FnMut(&PlannedGguf<T>, &mut NewFile) -> Result<(), CheckpointError>,
    done: &mut dyn FnMut(u64, u64),
) -> Result<(), CheckpointError> {
    let mut table = Vec::new();
    let mut offset = 0u64;
    let mut sizes = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let (kind, bytes) = tensor.layout().ok_or_else(|| CheckpointError::StoredType {
            tensor: tensor.name.clone(),
            found: tensor.stored.to_string(),
            allowed: "F32, F16, BF16, I2_S, TQ1_0, TQ2_0",
        })?;
        text(&mut table, &tensor.name);
        table.extend((tensor.shape.len() as u32).to_le_bytes());
        for &dim in tensor.shape.iter().rev() {
            table.extend((dim as u64).to_le_bytes());
        }
        table.extend(kind.to_le_bytes());
        table.extend(offset.to_le_bytes());
        sizes.push(bytes);
        offset += bytes.next_multiple_of(ALIGNMENT);
    }
    let mut file = NewFile::create(path)?;
    file.put(b"GGUF")?;
    file.put(&3u32.to_le_bytes())?;
    file.put(&(tensors.len() as u64).to_le_bytes())?;
    file.put(&metadata.count.to_le_bytes())?;
    file.put(&metadata.bytes)?;
    file.put(&table)?;
    pad(&mut file)?;
    let start = file.written();
    for (tensor, bytes) in tensors.iter().zip(sizes) {
        let before = file.written();
        emit(tensor, &mut file)?;
        let found = file.written() - before;
        if found != bytes {
            let what = format!("what was written for {}", tensor.name);
            return Err(CheckpointError::malformed(path, what, found, bytes));
        }
        pad(&mut file)?;
        done(file.written() - start, offset);
    }
    file.finish()
}

fn pad(file: &mut NewFile) -> Result<(), CheckpointError> {
    let missing = file.written().next_multiple_of(ALIGNMENT) - file.written();
    file.put(&[0; ALIGNMENT as usize][..missing as usize])
}
