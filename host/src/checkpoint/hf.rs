//! Opening Hugging Face folders and single `.safetensors` files.
//!
//! `config.json` is needed; `generation_config.json` adds ids that end generation. Weights are
//! `model.safetensors`, or the shards of `model.safetensors.index.json`, or the one other
//! `.safetensors` file of the folder. Shards must be plain names beside the index, so that an index
//! cannot reach outside its folder. (Names that are symbolic links are followed: the Hub's cache is
//! made of them, and they are the user's, not the file's.)

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    CheckpointError, DenseSlot, Draft, OpenOptions, bytes, bytes::FileBytes, config, safetensors,
    slots::Names,
};

/// Longest `config.json` and `generation_config.json` read.
const MAX_CONFIG: u64 = 1 << 20;
/// Longest shard index read.
const MAX_INDEX: u64 = 64 << 20;
/// Most shards.
const MAX_SHARDS: usize = 4096;
const INDEX: &str = "model.safetensors.index.json";

/// Opens a folder: Hugging Face's form, or one that holds a single GGUF file.
pub(crate) fn open_folder(path: &Path, options: &OpenOptions) -> Result<Draft, CheckpointError> {
    let single = path.join("model.safetensors");
    if single.is_file() {
        return open_with(path, path, vec![single], None, options);
    }
    let index_path = path.join(INDEX);
    if index_path.is_file() {
        let index: Index = json(&index_path, MAX_INDEX)?;
        let names: BTreeSet<&String> = index.weight_map.values().collect();
        if names.is_empty() || names.len() > MAX_SHARDS {
            let (found, allowed) = (names.len(), format!("1 to {MAX_SHARDS}"));
            return Err(CheckpointError::malformed(
                &index_path,
                "the number of shards",
                found,
                allowed,
            ));
        }
        let mut shards = Vec::new();
        for name in names {
            if !is_plain_shard_name(name) {
                let name = name.chars().take(200).collect();
                return Err(CheckpointError::ShardName { file: index_path, name });
            }
            shards.push(path.join(name));
        }
        return open_with(path, path, shards, Some((&index_path, &index)), options);
    }
    if let (None, Some(gguf)) = (only_file(path, "safetensors")?, only_file(path, "gguf")?) {
        return super::gguf::open(&gguf, options);
    }
    let found = only_file(path, "safetensors")?.ok_or_else(|| CheckpointError::NoModel {
        path: path.to_owned(),
        what: format!(
            "there is no model.safetensors, no {INDEX} and no single .safetensors or .gguf file \
             (pickled .bin and .pt files are never read: they can run code)"
        ),
    })?;
    open_with(path, path, vec![found], None, options)
}

/// Opens one `.safetensors` file with its configuration beside it.
pub(crate) fn open_file(path: &Path, options: &OpenOptions) -> Result<Draft, CheckpointError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    open_with(path, folder, vec![path.to_owned()], None, options)
}

/// The only file in `folder` with this extension, `None` when there is none or several.
pub(crate) fn only_file(
    folder: &Path,
    extension: &str,
) -> Result<Option<PathBuf>, CheckpointError> {
    let mut found = None;
    for entry in std::fs::read_dir(folder).map_err(CheckpointError::io(folder))? {
        let path = entry.map_err(CheckpointError::io(folder))?.path();
        if path.extension().is_some_and(|e| e == extension) && path.is_file() {
            if found.is_some() {
                return Ok(None);
            }
            found = Some(path);
        }
    }
    Ok(found)
}

fn is_plain_shard_name(name: &str) -> bool {
    name.len() <= 255
        && name.ends_with(".safetensors")
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-+= ".contains(c))
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn json<T: for<'de> Deserialize<'de>>(path: &Path, most: u64) -> Result<T, CheckpointError> {
    let bytes = bytes::read_small(path, most)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| CheckpointError::Json { path: path.to_owned(), message: e.to_string() })
}

fn open_with(
    path: &Path,
    folder: &Path,
    shards: Vec<PathBuf>,
    index: Option<(&Path, &Index)>,
    options: &OpenOptions,
) -> Result<Draft, CheckpointError> {
    let config_file = folder.join("config.json");
    if !config_file.is_file() {
        return Err(CheckpointError::NoModel {
            path: path.to_owned(),
            what: format!("there is no {}", config_file.display()),
        });
    }
    let value: Value = json(&config_file, MAX_CONFIG)?;
    let generation_file = folder.join("generation_config.json");
    let generation = match generation_file.is_file() {
        true => Some(json::<Value>(&generation_file, MAX_CONFIG)?),
        false => None,
    };
    let generation = generation.as_ref().map(|value| (generation_file.as_path(), value));
    let (config, tie, quantization) = config::from_hugging_face(&config_file, &value, generation)?;

    let mut tensors = BTreeMap::new();
    let mut files = Vec::new();
    for shard in shards {
        let file = FileBytes::open(&shard, options.mmap)?;
        safetensors::read_header(&file, files.len(), &mut tensors)?;
        files.push(file);
    }
    if let Some((index_path, index)) = index {
        for (name, shard) in &index.weight_map {
            let file = tensors.get(name).map(|tensor| files[tensor.file].path());
            let found = file.and_then(|f| f.file_name()).and_then(|f| f.to_str());
            if found != Some(shard) {
                let what = format!("the place of {}", name.chars().take(200).collect::<String>());
                let allowed = found.unwrap_or("absent, since no shard has it");
                return Err(CheckpointError::malformed(index_path, what, shard, allowed));
            }
        }
    }
    // The published GPU layout by its names; there q and k have their rotary pairs side by side.
    let int2 = tensors.contains_key(Names::Int2.dense(DenseSlot::Embedding));
    Ok(Draft {
        path: path.to_owned(),
        config_file,
        files,
        tensors,
        config,
        tie,
        quantization,
        names: if int2 { Names::Int2 } else { Names::HuggingFace },
        interleaved_qk: int2,
        metadata: None,
    })
}
