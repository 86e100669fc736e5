//! Writing safetensors files piece by piece.
//!
//! Tensors are ordered by element size, largest first, then as given, so that every one is aligned
//! to its element; the header is padded to 8 bytes. One file, or shards with an index.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{NewFile, ProgressFn, json_file};
use crate::checkpoint::{CheckpointError, StoredType};

/// A tensor to be written; `content` tells the caller's function what to emit.
#[derive(Clone, Debug)]
pub(crate) struct Planned<T> {
    pub(crate) name: String,
    pub(crate) stored: StoredType,
    pub(crate) shape: Vec<usize>,
    pub(crate) content: T,
}

impl<T> Planned<T> {
    pub(crate) fn bytes(&self) -> u64 {
        let elements: u64 = self.shape.iter().map(|&d| d as u64).product();
        elements * self.stored.bits().unwrap_or(0) / 8
    }
}

/// Writes `tensors` into `folder` as one `model.safetensors` or as `shards` files with their index.
/// `emit` must put exactly the planned bytes.
pub(crate) fn write_folder<T>(
    folder: &Path,
    mut tensors: Vec<Planned<T>>,
    shards: usize,
    mut emit: impl FnMut(&Planned<T>, &mut NewFile) -> Result<(), CheckpointError>,
    progress: ProgressFn<'_>,
) -> Result<(), CheckpointError> {
    // Stable: names keep their order inside a type.
    tensors.sort_by_key(|t| std::cmp::Reverse(t.stored.bits()));
    let total: u64 = tensors.iter().map(Planned::bytes).sum();
    let shards = shards.clamp(1, tensors.len().max(1));
    let mut groups: Vec<Vec<Planned<T>>> = (0..shards).map(|_| Vec::new()).collect();
    let mut before = 0;
    for tensor in tensors {
        // Shards hold about the same number of bytes.
        let group = (before as u128 * shards as u128 / total.max(1) as u128) as usize;
        before += tensor.bytes();
        groups[group.min(shards - 1)].push(tensor);
    }
    groups.retain(|group| !group.is_empty());
    let count = groups.len();
    let mut done = 0;
    let mut map = Map::new();
    for (i, group) in groups.iter().enumerate() {
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        for tensor in group {
            map.insert(tensor.name.clone(), Value::String(name.clone()));
        }
        let mut each = |bytes| {
            done += bytes;
            progress(done, total);
        };
        write_file(&folder.join(&name), group, &mut emit, &mut each)?;
    }
    if count > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        json_file(&folder.join("model.safetensors.index.json"), &index)?;
    }
    Ok(())
}

/// Writes one file of tensors that are already in order; `done` gets each tensor's bytes.
pub(crate) fn write_file<T>(
    path: &Path,
    tensors: &[Planned<T>],
    emit: &mut impl FnMut(&Planned<T>, &mut NewFile) -> Result<(), CheckpointError>,
    done: &mut impl FnMut(u64),
) -> Result<(), CheckpointError> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.bytes();
        header.insert(
            tensor.name.clone(),
            json!({
                "dtype": tensor.stored.to_string(),
                "shape": tensor.shape,
                "data_offsets": [offset, end],
            }),
        );
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut file = NewFile::create(path)?;
    file.put(&(header.len() as u64).to_le_bytes())?;
    file.put(&header)?;
    for tensor in tensors {
        let before = file.written();
        emit(tensor, &mut file)?;
        let found = file.written() - before;
        if found != tensor.bytes() {
            let what = format!("what was written for {}", tensor.name);
            return Err(CheckpointError::malformed(path, what, found, tensor.bytes()));
        }
        done(found);
    }
    file.finish()
}
