//! Checks a `tokenizer.json` before the `tokenizers` crate sees it.
//!
//! The crate trusts its input in places: a merge that is longer than every token, or a byte prefix
//! that cuts a character, makes it panic or build text that is not UTF-8. So only byte-pair models
//! of the kinds that BitNet checkpoints use pass: ids below [`MAX_IDS`] and unique, every merge made
//! of known tokens, parts from a list, patterns short, growth of a text by normalisation bounded.
//! What passes cannot make the tables of `super::bytes` larger than a small multiple of the file.

use super::TextError;
use super::bytes::byte_char;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Largest accepted `tokenizer.json`; the largest in use has about 35 MB.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;
/// Token ids are below this; the largest vocabulary in use has about 262,000.
pub(super) const MAX_IDS: u64 = 1 << 20;
const MAX_PATTERN_BYTES: usize = 4096;
const MAX_GROWTH: usize = 64;
const MAX_PARTS: usize = 64;
const FILE: &str = "tokenizer.json";

const NORMALIZERS: &[&str] =
    &["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Prepend", "Replace"];
const PRE_TOKENIZERS: &[&str] =
    &["ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "Metaspace"];

/// One entry of `added_tokens`.
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) special: bool,
}

/// How tokens become bytes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoding {
    /// Every character of a token stands for one byte (GPT-2's alphabet).
    ByteLevel,
    /// `▁` is a space; `<0x41>` is a byte when `byte_fallback`; one leading space of a text is
    /// dropped when `strip_first`.
    SentencePiece { byte_fallback: bool, strip_first: bool },
}

/// What [`vet`] learned from the file.
pub(super) struct Vetted {
    /// Token texts with their ids, added tokens included.
    pub(super) tokens: Vec<(String, u32)>,
    pub(super) added: Vec<AddedToken>,
    pub(super) decoding: Decoding,
    /// The id that the post-processor puts in front of a text.
    pub(super) prefix: Option<u32>,
    /// Bytes that no token spells.
    pub(super) missing: Vec<u8>,
}

fn bad(reason: impl Into<String>) -> TextError {
    TextError::malformed(FILE, reason)
}

/// Checks the whole file.
pub(super) fn vet(root: &Value) -> Result<Vetted, TextError> {
    let root = root.as_object().ok_or_else(|| bad("the top level is not an object"))?;
    match root.get("version") {
        None | Some(Value::Null) => {}
        Some(Value::String(version)) if version == "1.0" => {}
        Some(other) => {
            return Err(TextError::Unsupported {
                part: "tokenizer.json version",
                found: other.to_string(),
                allowed: "\"1.0\"",
            });
        }
    }
    let model = root.get("model").and_then(Value::as_object).ok_or_else(|| bad("no model"))?;
    let vocab = vet_vocab(model)?;
    vet_merges(model, &vocab)?;
    let added = vet_added(root, &vocab)?;
    vet_normalizers(root.get("normalizer"))?;
    vet_pre_tokenizers(root.get("pre_tokenizer"))?;
    let decoding = decoding(root.get("decoder"))?;
    let prefix = prefix(root.get("post_processor"))?;
    let missing = missing_bytes(root, model, &vocab, decoding)?;
    let mut tokens: Vec<(String, u32)> = vocab.iter().map(|(t, &id)| (t.to_string(), id)).collect();
    tokens.extend(
        added
            .iter()
            .filter(|t| !vocab.contains_key(t.content.as_str()))
            .map(|t| (t.content.clone(), t.id)),
    );
    Ok(Vetted { tokens, added, decoding, prefix, missing })
}

fn id(value: &Value, of: &str) -> Result<u32, TextError> {
    match value.as_u64() {
        Some(id) if id < MAX_IDS => Ok(id as u32),
        _ => {
            Err(bad(format!("the id of {of:?} is {value}; ids are whole numbers below {MAX_IDS}")))
        }
    }
}

fn vet_vocab(model: &Map<String, Value>) -> Result<HashMap<&str, u32>, TextError> {
    match model.get("type").and_then(Value::as_str) {
        Some("BPE") => {}
        found => {
            let found = found.unwrap_or("(none)").to_owned();
            return Err(TextError::Unsupported { part: "tokenizer model", found, allowed: "BPE" });
        }
    }
    for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if !matches!(model.get(name), None | Some(Value::Null)) && model[name].as_str() != Some("")
        {
            return Err(TextError::Unsupported {
                part: "BPE option",
                found: name.to_owned(),
                allowed: "BPE without word marks",
            });
        }
    }
    if !matches!(model.get("dropout"), None | Some(Value::Null))
        && model["dropout"].as_f64() != Some(0.0)
    {
        return Err(bad("dropout is set, so that the same text would give different tokens"));
    }
    let vocab = model.get("vocab").and_then(Value::as_object).ok_or_else(|| bad("no vocab"))?;
    if vocab.is_empty() {
        return Err(bad("the vocabulary is empty"));
    }
    let mut seen = HashSet::with_capacity(vocab.len());
    let mut ids = HashMap::with_capacity(vocab.len());
    for (token, value) in vocab {
        let id = id(value, token)?;
        if !seen.insert(id) {
            return Err(bad(format!("two tokens have the id {id}; one of them is {token:?}")));
        }
        ids.insert(token.as_str(), id);
    }
    if let Some(unk) = model.get("unk_token").and_then(Value::as_str)
        && !ids.contains_key(unk)
    {
        return Err(bad(format!("the unknown token {unk:?} is not in the vocabulary")));
    }
    Ok(ids)
}

fn vet_merges(model: &Map<String, Value>, vocab: &HashMap<&str, u32>) -> Result<(), TextError> {
    let merges = model.get("merges").and_then(Value::as_array).ok_or_else(|| bad("no merges"))?;
    let mut joined = String::new();
    for (rank, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(line) => line.split_once(' ').filter(|(_, right)| !right.contains(' ')),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => {
                    Some((left.as_str(), right.as_str()))
                }
                _ => None,
            },
            _ => None,
        };
        // The crate would skip a line that begins like a comment.
        let (left, right) = pair
            .filter(|(left, _)| merge.is_array() || !left.starts_with("#version"))
            .ok_or_else(|| bad(format!("merge {rank} is not a pair of tokens")))?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        for token in [left, right, &joined] {
            if !vocab.contains_key(token) {
                let reason =
                    format!("merge {rank} needs {token:?}, which is not in the vocabulary");
                return Err(bad(reason));
            }
        }
    }
    Ok(())
}

fn vet_added(
    root: &Map<String, Value>,
    vocab: &HashMap<&str, u32>,
) -> Result<Vec<AddedToken>, TextError> {
    let list = match root.get("added_tokens") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(bad("added_tokens is not a list")),
    };
    let mut ids: HashMap<u32, &str> = vocab.iter().map(|(token, &id)| (id, *token)).collect();
    let mut seen = HashSet::new();
    let mut added = Vec::with_capacity(list.len());
    for entry in list {
        let content = entry.get("content").and_then(Value::as_str).unwrap_or("");
        if content.is_empty() || !seen.insert(content) {
            return Err(bad(format!("the added token {content:?} is empty or stands twice")));
        }
        let id = id(entry.get("id").unwrap_or(&Value::Null), content)?;
        let clash = ids.insert(id, content).is_some_and(|other| other != content);
        if clash || vocab.get(content).is_some_and(|&other| other != id) {
            return Err(bad(format!(
                "the added token {content:?} disagrees with another about id {id}"
            )));
        }
        let special = entry.get("special").and_then(Value::as_bool).unwrap_or(false);
        added.push(AddedToken { id, content: content.to_owned(), special });
    }
    Ok(added)
}

/// The parts of a possibly nested `Sequence`, each with its type name.
fn parts<'v>(
    value: Option<&'v Value>,
    list: &str,
    part: &'static str,
) -> Result<Vec<(&'v str, &'v Value)>, TextError> {
    let mut found = Vec::new();
    // A stack, so that nesting in the file is not nesting of calls.
    let mut todo: Vec<&Value> = value.into_iter().filter(|v| !v.is_null()).collect();
    while let Some(value) = todo.pop() {
        let name = value.get("type").and_then(Value::as_str);
        let name = name.ok_or_else(|| bad(format!("a {part} without a type")))?;
        if name == "Sequence" {
            let inner = value.get(list).and_then(Value::as_array);
            todo.extend(
                inner.ok_or_else(|| bad(format!("a {part} sequence without parts")))?.iter().rev(),
            );
        } else {
            found.push((name, value));
        }
        if found.len() + todo.len() > MAX_PARTS {
            return Err(bad(format!("more than {MAX_PARTS} {part} parts")));
        }
    }
    Ok(found)
}

/// The `pattern` of a part: its text, and whether it is a regular expression.
fn pattern(value: &Value) -> Result<(&str, bool), TextError> {
    let pattern = value.get("pattern").unwrap_or(&Value::Null);
    let (text, is_regex) = match (pattern.get("String"), pattern.get("Regex")) {
        (Some(text), None) => (text.as_str(), false),
        (None, Some(text)) => (text.as_str(), true),
        _ => (None, false),
    };
    match text {
        Some(text) if !text.is_empty() && text.len() <= MAX_PATTERN_BYTES => Ok((text, is_regex)),
        Some(text) => Err(TextError::TooLarge {
            what: "a pattern of tokenizer.json (which may not be empty either)".to_owned(),
            found: text.len() as u64,
            allowed: MAX_PATTERN_BYTES as u64,
        }),
        None => Err(bad("a pattern is neither a string nor a regular expression")),
    }
}

fn vet_normalizers(value: Option<&Value>) -> Result<(), TextError> {
    let mut growth = 1_usize;
    for (name, part) in parts(value, "normalizers", "normalizer")? {
        if !NORMALIZERS.contains(&name) {
            return Err(TextError::Unsupported {
                part: "normalizer",
                found: name.to_owned(),
                allowed: "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace",
            });
        }
        let text = |key| part.get(key).and_then(Value::as_str).unwrap_or("").len();
        growth = match name {
            "Replace" => {
                let (from, is_regex) = pattern(part)?;
                // A regular expression may match nothing, between any two bytes.
                let unit = if is_regex { 1 } else { from.len() };
                growth.saturating_mul(text("content").div_ceil(unit).max(1) + usize::from(is_regex))
            }
            "Prepend" => growth.saturating_add(text("prepend")),
            _ => growth,
        };
    }
    if growth > MAX_GROWTH {
        return Err(bad(format!(
            "its normalizers may make a text {growth} times longer; at most {MAX_GROWTH} times is accepted"
        )));
    }
    Ok(())
}

fn vet_pre_tokenizers(value: Option<&Value>) -> Result<(), TextError> {
    for (name, part) in parts(value, "pretokenizers", "pre-tokenizer")? {
        if !PRE_TOKENIZERS.contains(&name) {
            return Err(TextError::Unsupported {
                part: "pre-tokenizer",
                found: name.to_owned(),
                allowed: "ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace",
            });
        }
        if name == "Split" {
            pattern(part)?;
        }
    }
    Ok(())
}

fn decoding(value: Option<&Value>) -> Result<Decoding, TextError> {
    let parts = parts(value, "decoders", "decoder")?;
    let unsupported = |found: String| TextError::Unsupported {
        part: "decoder",
        found,
        allowed: "ByteLevel, or Replace \u{2581}, ByteFallback, Fuse, Strip, Metaspace",
    };
    if let [("ByteLevel", _)] = parts.as_slice() {
        return Ok(Decoding::ByteLevel);
    }
    let (mut space, mut byte_fallback, mut strip_first) = (false, false, false);
    for (name, part) in &parts {
        let text = |key| part.get(key).and_then(Value::as_str);
        let count = |key| part.get(key).and_then(Value::as_u64);
        let known = match *name {
            "Replace" => {
                space = true;
                pattern(part)? == ("\u{2581}", false) && text("content") == Some(" ")
            }
            "ByteFallback" => {
                byte_fallback = true;
                true
            }
            "Fuse" => true,
            "Strip" => {
                strip_first = count("start") == Some(1);
                text("content") == Some(" ") && strip_first && count("stop").unwrap_or(0) == 0
            }
            "Metaspace" => {
                space = true;
                strip_first = text("prepend_scheme") != Some("never")
                    && part.get("add_prefix_space").and_then(Value::as_bool) != Some(false);
                text("replacement") == Some("\u{2581}")
            }
            _ => false,
        };
        if !known {
            return Err(unsupported((*name).to_owned()));
        }
    }
    match space {
        true => Ok(Decoding::SentencePiece { byte_fallback, strip_first }),
        false => Err(unsupported(parts.first().map_or("(none)", |p| p.0).to_owned())),
    }
}

/// The id of the special token that a `TemplateProcessing` puts first.
fn prefix(value: Option<&Value>) -> Result<Option<u32>, TextError> {
    for (name, part) in parts(value, "processors", "post-processor")? {
        if name != "TemplateProcessing" {
            continue;
        }
        let first = part.get("single").and_then(Value::as_array).and_then(|list| list.first());
        let Some(token) = first.and_then(|f| f.get("SpecialToken")?.get("id")?.as_str()) else {
            continue;
        };
        let ids = part.get("special_tokens").and_then(|t| t.get(token)?.get("ids")?.as_array());
        let first = ids.and_then(|ids| ids.first());
        let first = first
            .ok_or_else(|| bad(format!("the post-processor names {token:?} without an id")))?;
        return Ok(Some(id(first, token)?));
    }
    Ok(None)
}

/// Bytes that no token spells; the crate would leave them out of the ids in silence.
fn missing_bytes(
    root: &Map<String, Value>,
    model: &Map<String, Value>,
    vocab: &HashMap<&str, u32>,
    decoding: Decoding,
) -> Result<Vec<u8>, TextError> {
    let has_unk = model.get("unk_token").is_some_and(Value::is_string);
    let spelled = |byte: u8| match decoding {
        Decoding::ByteLevel => vocab.contains_key(byte_char(byte).encode_utf8(&mut [0; 4]) as &str),
        Decoding::SentencePiece { .. } => vocab.contains_key(format!("<{byte:#04X}>").as_str()),
    };
    let missing: Vec<u8> = (0..=255).filter(|&byte| !spelled(byte)).collect();
    match decoding {
        Decoding::ByteLevel => {
            let parts = parts(root.get("pre_tokenizer"), "pretokenizers", "pre-tokenizer")?;
            if !parts.iter().any(|(name, _)| *name == "ByteLevel") {
                return Err(bad("the decoder is ByteLevel, but no pre-tokenizer is"));
            }
            Ok(if has_unk { Vec::new() } else { missing })
        }
        Decoding::SentencePiece { byte_fallback, .. } => {
            if !(has_unk || byte_fallback && missing.is_empty()) {
                return Err(bad("there is neither an unknown token nor a token for every byte"));
            }
            Ok(Vec::new())
        }
    }
}
