//! The tokenizer inside a GGUF file, as plain data for whoever builds one from it.

use super::{
    Keys,
    reader::{ArrayPlace, Cursor, Value, kind},
};
use crate::checkpoint::{CheckpointError, bytes::FileBytes};

/// Longest token or merge in bytes.
const MAX_TOKEN: u64 = 1 << 16;

/// What `tokenizer.*` keys say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `gpt2` (byte-level BPE), `llama` (sentencepiece), ...
    pub model: String,
    /// Name of the pre-tokenizer (`llama-bpe`, ...).
    pub pre: Option<String>,
    /// Text of every token, by id; at most the model's vocabulary.
    pub tokens: Vec<String>,
    /// Scores by id; empty when the file has none, else as many as tokens.
    pub scores: Vec<f32>,
    /// Types by id (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte); empty or as
    /// many as tokens.
    pub token_types: Vec<i32>,
    /// Merges in order of rank, two parts with a space between.
    pub merges: Vec<String>,
    /// Beginning of text.
    pub bos_token_id: Option<u32>,
    /// End of text.
    pub eos_token_id: Option<u32>,
    /// End of a turn.
    pub eot_token_id: Option<u32>,
    /// Unknown piece.
    pub unknown_token_id: Option<u32>,
    /// Padding.
    pub padding_token_id: Option<u32>,
    /// Whether text starts with the beginning-of-text token.
    pub add_bos_token: Option<bool>,
    /// Whether a space is put in front.
    pub add_space_prefix: Option<bool>,
    /// Jinja source of the chat template.
    pub chat_template: Option<String>,
    /// A whole Hugging Face `tokenizer.json`, if embedded.
    pub hugging_face_json: Option<String>,
}

impl GgufTokenizer {
    /// Reads it; `None` when the file has no tokenizer.
    pub(crate) fn read(
        file: &FileBytes,
        keys: &Keys<'_>,
        vocab_size: usize,
    ) -> Result<Option<Self>, CheckpointError> {
        let embedded = keys.text("tokenizer.huggingface.json")?.map(str::to_owned);
        let Some(model) = keys.text("tokenizer.ggml.model")? else {
            return Ok(
                embedded.map(|json| Self { hugging_face_json: Some(json), ..Self::default() })
            );
        };
        let id = |name: &str| -> Result<Option<u32>, CheckpointError> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            match keys.id(&key)? {
                Some(id) if id as usize >= vocab_size => {
                    let allowed = format!("below the vocabulary of {vocab_size}");
                    Err(keys.refuse(&key, &Value::Uint(id.into()), &allowed))
                }
                id => Ok(id),
            }
        };
        let tokenizer = Self {
            model: model.to_owned(),
            pre: keys.text("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: strings(file, keys, "tokenizer.ggml.tokens")?,
            scores: numbers(file, keys, "tokenizer.ggml.scores", kind::F32, f32::from_bits)?,
            token_types: numbers(file, keys, "tokenizer.ggml.token_type", kind::I32, |v| v as i32)?,
            merges: strings(file, keys, "tokenizer.ggml.merges")?,
            bos_token_id: id("bos")?,
            eos_token_id: id("eos")?,
            eot_token_id: id("eot")?,
            unknown_token_id: id("unknown")?,
            padding_token_id: id("padding")?,
            add_bos_token: keys.flag("tokenizer.ggml.add_bos_token")?,
            add_space_prefix: keys.flag("tokenizer.ggml.add_space_prefix")?,
            chat_template: keys.text("tokenizer.chat_template")?.map(str::to_owned),
            hugging_face_json: embedded,
        };
        let tokens = tokenizer.tokens.len();
        let lengths = [
            ("tokenizer.ggml.tokens", tokens, tokens <= vocab_size),
            ("tokenizer.ggml.scores", tokenizer.scores.len(), true),
            ("tokenizer.ggml.token_type", tokenizer.token_types.len(), true),
        ];
        for (key, len, fits) in lengths {
            if !fits || (len != 0 && len != tokens) {
                let allowed = format!("one for each token, at most the vocabulary of {vocab_size}");
                return Err(keys.refuse(key, &Value::Uint(len as u64), &allowed));
            }
        }
        Ok(Some(tokenizer))
    }
}

fn place(keys: &Keys<'_>, key: &str, element: u32) -> Result<Option<ArrayPlace>, CheckpointError> {
    match keys.metadata.get(key) {
        None => Ok(None),
        Some(&Value::Array(place)) if place.element == element => Ok(Some(place)),
        Some(other) => Err(keys.refuse(key, other, "an array of the type this key has")),
    }
}

/// The reader has walked the array, so every length lies inside the file; the vector grows with what
/// is read, not with what is declared.
fn strings(file: &FileBytes, keys: &Keys<'_>, key: &str) -> Result<Vec<String>, CheckpointError> {
    let Some(place) = place(keys, key, kind::STRING)? else { return Ok(Vec::new()) };
    let mut cursor = Cursor::at(file, place.offset);
    let mut all = Vec::new();
    for _ in 0..place.count {
        all.push(cursor.text(MAX_TOKEN, key)?);
    }
    Ok(all)
}

fn numbers<T>(
    file: &FileBytes,
    keys: &Keys<'_>,
    key: &str,
    element: u32,
    of: impl Fn(u32) -> T,
) -> Result<Vec<T>, CheckpointError> {
    let Some(place) = place(keys, key, element)? else { return Ok(Vec::new()) };
    let mut cursor = Cursor::at(file, place.offset);
    let mut all = Vec::new();
    for _ in 0..place.count {
        all.push(of(cursor.u32(key)?));
    }
    Ok(all)
}
