//! Carrying the tokenizer over.
//!
//! Between folders its files are copied. Into a GGUF file goes the whole `tokenizer.json` under the
//! format's own key for it, and, for byte-level BPE, also the lists that llama.cpp reads. Out of a
//! GGUF file comes the embedded `tokenizer.json`, if there is one.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::TokenizerOutcome;
use crate::checkpoint::{
    Checkpoint, CheckpointError, bytes,
    write::{self, gguf::Metadata},
};

/// Longest tokenizer file read.
const MAX_FILE: u64 = 64 << 20;
const FILES: [&str; 8] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
];

pub(super) fn to_folder(
    source: &Checkpoint,
    folder: &Path,
) -> Result<TokenizerOutcome, CheckpointError> {
    if let Some(tokenizer) = source.gguf_tokenizer()?
        && let Some(json) = &tokenizer.hugging_face_json
    {
        write::small_file(&folder.join("tokenizer.json"), json.as_bytes())?;
        let mut settings = Map::new();
        let mut token = |key: &str, id: Option<u32>| {
            if let Some(text) = id.and_then(|id| tokenizer.tokens.get(id as usize)) {
                settings.insert(key.into(), text.as_str().into());
            }
        };
        token("bos_token", tokenizer.bos_token_id);
        token("eos_token", tokenizer.eos_token_id);
        if let Some(template) = &tokenizer.chat_template {
            settings.insert("chat_template".into(), template.as_str().into());
        }
        write::json_file(&folder.join("tokenizer_config.json"), &Value::Object(settings))?;
        return Ok(TokenizerOutcome::Kept);
    }
    let from = source.tokenizer_folder();
    let mut outcome = TokenizerOutcome::Missing;
    for name in FILES {
        let path = from.join(name);
        if path.is_file() {
            write::small_file(&folder.join(name), &bytes::read_small(&path, MAX_FILE)?)?;
            if name == "tokenizer.json" || name == "tokenizer.model" {
                outcome = TokenizerOutcome::Kept;
            }
        }
    }
    Ok(outcome)
}

pub(super) fn to_gguf(
    source: &Checkpoint,
    meta: &mut Metadata,
) -> Result<TokenizerOutcome, CheckpointError> {
    if let Some(tokenizer) = source.gguf_tokenizer()? {
        copy_gguf(&tokenizer, meta);
        return Ok(TokenizerOutcome::Kept);
    }
    let folder = source.tokenizer_folder();
    let path = folder.join("tokenizer.json");
    if !path.is_file() {
        return Ok(TokenizerOutcome::Missing);
    }
    let text = bytes::read_small(&path, MAX_FILE)?;
    let broken = |message: String| CheckpointError::Json { path: path.clone(), message };
    let text = String::from_utf8(text).map_err(|_| broken("not UTF-8".into()))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| broken(e.to_string()))?;
    meta.text("tokenizer.huggingface.json", &text);
    if let Some(template) = chat_template(folder)? {
        meta.text("tokenizer.chat_template", &template);
    }
    let Some(lists) = Lists::of(&json, source.config().vocab_size) else {
        return Ok(TokenizerOutcome::JsonOnly);
    };
    meta.text("tokenizer.ggml.model", "gpt2");
    meta.texts("tokenizer.ggml.tokens", &lists.tokens);
    meta.ints("tokenizer.ggml.token_type", &lists.types);
    meta.texts("tokenizer.ggml.merges", &lists.merges);
    Ok(TokenizerOutcome::Kept)
}

fn copy_gguf(tokenizer: &crate::checkpoint::GgufTokenizer, meta: &mut Metadata) {
    // Ids that begin and end text are written from the config.
    if !tokenizer.model.is_empty() {
        meta.text("tokenizer.ggml.model", &tokenizer.model);
        meta.texts("tokenizer.ggml.tokens", &tokenizer.tokens);
        meta.texts("tokenizer.ggml.merges", &tokenizer.merges);
    }
    if !tokenizer.scores.is_empty() {
        meta.floats("tokenizer.ggml.scores", &tokenizer.scores);
    }
    if !tokenizer.token_types.is_empty() {
        meta.ints("tokenizer.ggml.token_type", &tokenizer.token_types);
    }
    for (key, text) in [
        ("tokenizer.ggml.pre", &tokenizer.pre),
        ("tokenizer.chat_template", &tokenizer.chat_template),
        ("tokenizer.huggingface.json", &tokenizer.hugging_face_json),
    ] {
        if let Some(text) = text {
            meta.text(key, text);
        }
    }
    for (key, id) in [
        ("tokenizer.ggml.unknown_token_id", tokenizer.unknown_token_id),
        ("tokenizer.ggml.padding_token_id", tokenizer.padding_token_id),
    ] {
        if let Some(id) = id {
            meta.uint(key, id);
        }
    }
    for (key, flag) in [
        ("tokenizer.ggml.add_bos_token", tokenizer.add_bos_token),
        ("tokenizer.ggml.add_space_prefix", tokenizer.add_space_prefix),
    ] {
        if let Some(flag) = flag {
            meta.flag(key, flag);
        }
    }
}

fn chat_template(folder: &Path) -> Result<Option<String>, CheckpointError> {
    let jinja = folder.join("chat_template.jinja");
    if jinja.is_file() {
        let text = bytes::read_small(&jinja, MAX_FILE)?;
        return Ok(String::from_utf8(text).ok());
    }
    let settings = folder.join("tokenizer_config.json");
    if !settings.is_file() {
        return Ok(None);
    }
    let json: Value = serde_json::from_slice(&bytes::read_small(&settings, MAX_FILE)?)
        .map_err(|e| CheckpointError::Json { path: settings, message: e.to_string() })?;
    Ok(json["chat_template"].as_str().map(str::to_owned))
}

/// The lists that GGUF readers build a byte-level BPE tokenizer from.
struct Lists {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
}

impl Lists {
    /// `None` when the tokenizer is of another kind, or has ids outside the vocabulary.
    fn of(tokenizer: &Value, vocab_size: usize) -> Option<Self> {
        const NORMAL: i32 = 1;
        const CONTROL: i32 = 3;
        const USER_DEFINED: i32 = 4;
        const UNUSED: i32 = 5;
        let model = &tokenizer["model"];
        let byte_level = tokenizer["decoder"]["type"] == json!("ByteLevel");
        if model["type"] != json!("BPE") || !byte_level {
            return None;
        }
        let mut tokens: Vec<String> = (0..vocab_size).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![UNUSED; vocab_size];
        let mut put = |id: &Value, text: &str, kind: i32| {
            let id = usize::try_from(id.as_u64()?).ok().filter(|&id| id < vocab_size)?;
            text.clone_into(&mut tokens[id]);
            types[id] = kind;
            Some(())
        };
        for (text, id) in model["vocab"].as_object()? {
            put(id, text, NORMAL)?;
        }
        for added in tokenizer["added_tokens"].as_array()? {
            let special = added["special"].as_bool()?;
            let kind = if special { CONTROL } else { USER_DEFINED };
            put(&added["id"], added["content"].as_str()?, kind)?;
        }
        // Merges are "a b", or since 2024 ["a", "b"].
        let merges = model["merges"].as_array()?.iter().map(|merge| match merge {
            Value::String(text) => Some(text.clone()),
            Value::Array(pair) => match pair.as_slice() {
                [a, b] => Some(format!("{} {}", a.as_str()?, b.as_str()?)),
                _ => None,
            },
            _ => None,
        });
        let merges = merges.collect::<Option<Vec<_>>>()?;
        Some(Self { tokens, types, merges })
    }
}
