//! The tokenizer stored in a GGUF file, turned into a `tokenizer.json`.
//!
//! Two models occur in BitNet files. `gpt2`: a byte-level vocabulary with merges, where
//! `tokenizer.ggml.pre` names the rule that splits words. `llama`: sentencepiece tokens with scores,
//! whose merges are all splits of a token into two tokens, best score first. Both go through the
//! same checks as a file from disk.

use super::{TextError, vet};
use crate::checkpoint::GgufTokenizer;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

const FILE: &str = "the GGUF tokenizer";
/// Values of `tokenizer.ggml.token_type`.
const TYPE_CONTROL: i32 = 3;
const TYPE_USER: i32 = 4;

/// Word splitting of Llama 3 and of models with its vocabulary.
const LLAMA3_SPLIT: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// A GGUF tokenizer and the `general.architecture` of its file, which decides where it says too
/// little.
pub(super) struct Source<'a> {
    pub(super) data: &'a GgufTokenizer,
    pub(super) architecture: &'a str,
}

impl Source<'_> {
    /// Whether the begin token goes in front: as stored, else yes for `llama` and for BitNet files.
    pub(super) fn adds_bos(&self) -> bool {
        self.data.add_bos_token.unwrap_or(self.data.model == "llama" || self.is_bitnet())
    }

    fn is_bitnet(&self) -> bool {
        self.architecture.starts_with("bitnet")
    }

    /// The same tokenizer as the contents of a `tokenizer.json`.
    pub(super) fn to_tokenizer_json(&self) -> Result<Value, TextError> {
        let mut vocab = Map::new();
        for (id, token) in self.data.tokens.iter().enumerate() {
            if let Some(other) = vocab.insert(token.clone(), json!(id)) {
                let reason = format!("the ids {other} and {id} have the same token {token:?}");
                return Err(TextError::malformed(FILE, reason));
            }
        }
        for (name, len) in
            [("token_type", self.data.token_types.len()), ("scores", self.data.scores.len())]
        {
            if len != 0 && len != self.data.tokens.len() {
                let reason =
                    format!("{} tokens but {len} entries of {name}", self.data.tokens.len());
                return Err(TextError::malformed(FILE, reason));
            }
        }
        let mut root = match self.data.model.as_str() {
            "gpt2" => self.byte_level(vocab)?,
            "llama" => self.sentencepiece(vocab)?,
            other => {
                return Err(TextError::Unsupported {
                    part: "GGUF tokenizer model",
                    found: other.to_owned(),
                    allowed: "gpt2, llama",
                });
            }
        };
        root["version"] = json!("1.0");
        root["added_tokens"] = self.added_tokens()?;
        Ok(root)
    }

    /// Control and user-defined tokens, and the begin and end tokens whatever their type.
    fn added_tokens(&self) -> Result<Value, TextError> {
        let ends = [self.data.bos_token_id, self.data.eos_token_id, self.data.eot_token_id];
        for id in ends.into_iter().chain([self.data.unknown_token_id]).flatten() {
            if id as usize >= self.data.tokens.len() {
                let reason =
                    format!("id {id} is named, but there are {} tokens", self.data.tokens.len());
                return Err(TextError::malformed(FILE, reason));
            }
        }
        let kind = |id: usize| self.data.token_types.get(id).copied().unwrap_or(1);
        let is_end = |id: usize| ends.contains(&Some(id as u32));
        let added = self.data.tokens.iter().enumerate().filter_map(|(id, token)| {
            let special = kind(id) == TYPE_CONTROL || is_end(id);
            (special || kind(id) == TYPE_USER).then(|| {
                json!({"id": id, "content": token, "single_word": false, "lstrip": false,
                       "rstrip": false, "normalized": false, "special": special})
            })
        });
        Ok(Value::Array(added.collect()))
    }

    fn byte_level(&self, vocab: Map<String, Value>) -> Result<Value, TextError> {
        let byte_level = |use_regex| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                   "use_regex": use_regex})
        };
        let llama3 = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3_SPLIT}, "behavior": "Isolated",
             "invert": false},
            byte_level(false),
        ]});
        let (pre_tokenizer, ignore_merges) = match self.data.pre.as_deref() {
            Some("llama-bpe" | "llama-v3" | "llama3" | "falcon3" | "falcon-h1") => (llama3, true),
            Some("gpt-2") => (byte_level(true), false),
            // Early BitNet files name no rule, or "default"; their vocabulary is Llama 3's.
            None | Some("default") if self.is_bitnet() => (llama3, true),
            other => {
                return Err(TextError::Unsupported {
                    part: "GGUF word splitting (tokenizer.ggml.pre)",
                    found: other.unwrap_or("(none)").to_owned(),
                    allowed: "llama-bpe, llama3, falcon3, gpt-2",
                });
            }
        };
        Ok(json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": self.data.merges,
                      "ignore_merges": ignore_merges},
            "pre_tokenizer": pre_tokenizer,
            "decoder": byte_level(true),
        }))
    }

    fn sentencepiece(&self, vocab: Map<String, Value>) -> Result<Value, TextError> {
        self.check_splits()?;
        if self.data.scores.is_empty() || self.data.scores.iter().any(|s| s.is_nan()) {
            return Err(TextError::malformed(FILE, "a llama tokenizer without usable scores"));
        }
        let unk = self.data.tokens.get(self.data.unknown_token_id.unwrap_or(0) as usize);
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let mut normalizers = vec![replace(" ", "\u{2581}")];
        let mut decoders = vec![
            replace("\u{2581}", " "),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.data.add_space_prefix.unwrap_or(true) {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": self.merges_from_scores(),
                      "unk_token": unk, "fuse_unk": true, "byte_fallback": true},
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "decoder": {"type": "Sequence", "decoders": decoders},
        }))
    }

    /// A token of n bytes has up to n - 1 splits of n bytes each: refuses tokens of which all splits together are longer
    /// than a `tokenizer.json` may be. 262,000 tokens of 8 bytes take a quarter of that.
    fn check_splits(&self) -> Result<(), TextError> {
        let squares = self.data.tokens.iter().map(|token| (token.len() as u64).saturating_pow(2));
        let (found, allowed) = (squares.fold(0, u64::saturating_add), vet::MAX_FILE_BYTES);
        if found > allowed {
            let what = format!("{FILE}: the splits of its tokens");
            return Err(TextError::TooLarge { what, found, allowed });
        }
        Ok(())
    }

    fn merges_from_scores(&self) -> Vec<[&str; 2]> {
        let ids: HashMap<&str, usize> =
            self.data.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
        let mut merges = Vec::new();
        for (token, &score) in self.data.tokens.iter().zip(&self.data.scores) {
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                    merges.push((score, l, r, [left, right]));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        merges.into_iter().map(|m| m.3).collect()
    }
}
