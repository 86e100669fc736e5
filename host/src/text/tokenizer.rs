//! Text to token ids and back.
//!
//! Encoding is done by the `tokenizers` crate from a checked `tokenizer.json` (see `super::vet`);
//! decoding uses our own table of token bytes, so that a stream and a whole decode agree to the
//! byte. The begin-of-text token is put in front at most once, whoever asks for it: the caller, the
//! post-processor of the file or a chat template that already wrote it. Truncation and padding
//! stored in the file are ignored, for they would silently change a prompt.

use super::bytes::TokenBytes;
use super::error::{guarded, read_capped};
use super::vet::{self, Decoding, Vetted};
use super::{TextError, TextStream, gguf};
use crate::checkpoint::{Checkpoint, GgufTokenizer};
use serde_json::Value;
use std::collections::HashSet;
use std::path::Path;

/// Longest text that [`Tokenizer::encode`] takes, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 16 << 20;
const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// Special tokens that end a chat turn although `eos_token` often names another one.
const TURN_ENDS: &[&str] = &["<|eot_id|>", "<|im_end|>"];

/// The contents of the files that describe a tokenizer, as bytes.
#[derive(Clone, Debug, Default)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`: begin and end tokens, chat template.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `generation_config.json`: end tokens.
    pub generation_config: Option<Vec<u8>>,
    /// `config.json`: end tokens.
    pub config: Option<Vec<u8>>,
    /// `chat_template.jinja`, which wins over the one in `tokenizer_config.json`.
    pub chat_template: Option<Vec<u8>>,
}

/// A checkpoint's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bytes: TokenBytes,
    decoding: Decoding,
    special: HashSet<u32>,
    /// Bytes that no token can spell, which the crate would drop in silence.
    missing: Vec<u8>,
    bos: Option<u32>,
    add_bos: bool,
    stop_ids: Vec<u32>,
    chat_template: Option<String>,
    eos_token: String,
    from_gguf: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("ids", &self.bytes.len())
            .field("decoding", &self.decoding)
            .field("bos", &self.bos)
            .field("add_bos", &self.add_bos)
            .field("stop_ids", &self.stop_ids)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// The tokenizer of an opened checkpoint: the one inside a GGUF file, else `tokenizer.json` and
    /// its like beside the weights; `None` when there is neither.
    ///
    /// # Errors
    /// As [`Tokenizer::from_files`], and [`TextError::VocabMismatch`] when it has ids that the model
    /// has no row for.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Option<Self>, TextError> {
        let config = checkpoint.config();
        let stored = checkpoint.gguf_tokenizer().map_err(|e| TextError::Checkpoint(Box::new(e)))?;
        let folder = checkpoint.tokenizer_folder();
        let tokenizer = match stored {
            Some(data) => Self::from_gguf(&data, &config.model_type)?,
            None if folder.join("tokenizer.json").is_file() => Self::from_folder(folder)?,
            None => return Ok(None),
        };
        tokenizer.check_vocab(config.vocab_size)?;
        Ok(Some(tokenizer))
    }

    /// Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`,
    /// `generation_config.json`, `config.json` and `chat_template.jinja` of a checkpoint folder.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] without a `tokenizer.json`; otherwise as [`Tokenizer::from_files`].
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            return Err(TextError::NoTokenizer { folder: folder.to_owned() });
        }
        let optional = |name: &str| {
            let path = folder.join(name);
            path.exists().then(|| read_capped(&path, MAX_CONFIG_BYTES)).transpose()
        };
        Self::from_files(&TokenizerFiles {
            tokenizer: read_capped(&path, vet::MAX_FILE_BYTES)?,
            tokenizer_config: optional("tokenizer_config.json")?,
            generation_config: optional("generation_config.json")?,
            config: optional("config.json")?,
            chat_template: optional("chat_template.jinja")?,
        })
    }

    /// Reads one `tokenizer.json` and nothing beside it.
    ///
    /// # Errors
    /// As [`Tokenizer::from_files`].
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let tokenizer = read_capped(path, vet::MAX_FILE_BYTES)?;
        Self::from_files(&TokenizerFiles { tokenizer, ..Default::default() })
    }

    /// Builds the tokenizer stored in a GGUF file of this `general.architecture`.
    ///
    /// A `tokenizer.json` embedded in the file is used where there is one; ids and template are
    /// those of the metadata.
    ///
    /// # Errors
    /// As [`Tokenizer::from_files`], and for a tokenizer model or split rule that is not known.
    pub fn from_gguf(data: &GgufTokenizer, architecture: &str) -> Result<Self, TextError> {
        let source = gguf::Source { data, architecture };
        let mut tokenizer = match &data.hugging_face_json {
            Some(embedded) => Self::from_value(&json("tokenizer.json", embedded.as_bytes())?)?,
            None => Self::from_value(&source.to_tokenizer_json()?)?,
        };
        if let Some(bos) = data.bos_token_id {
            tokenizer.bos = Some(bos);
            tokenizer.add_bos = source.adds_bos();
        }
        for id in [data.eos_token_id, data.eot_token_id].into_iter().flatten() {
            tokenizer.add_stop(id);
        }
        tokenizer.add_turn_ends();
        let eos = tokenizer.eos().and_then(|id| tokenizer.token(id));
        tokenizer.eos_token = eos.unwrap_or_default();
        tokenizer.chat_template.clone_from(&data.chat_template);
        tokenizer.from_gguf = true;
        Ok(tokenizer)
    }

    /// Builds a tokenizer from file contents.
    ///
    /// # Errors
    /// [`TextError::Json`], [`TextError::Malformed`], [`TextError::Unsupported`] or
    /// [`TextError::TooLarge`], naming the file; never a panic, whatever the bytes.
    pub fn from_files(files: &TokenizerFiles) -> Result<Self, TextError> {
        let mut tokenizer = Self::from_value(&json("tokenizer.json", &files.tokenizer)?)?;
        let read = |what, data: &Option<Vec<u8>>| match data {
            Some(data) => json(what, data),
            None => Ok(Value::Null),
        };
        let settings = read("tokenizer_config.json", &files.tokenizer_config)?;
        let generation = read("generation_config.json", &files.generation_config)?;
        let config = read("config.json", &files.config)?;

        let named = |key| token_text(&settings, key).and_then(|text| tokenizer.id(text));
        tokenizer.bos = named("bos_token").or(tokenizer.bos).or_else(|| {
            let id = [&generation, &config].into_iter().find_map(|c| ids(c, "bos_token_id").next());
            id.filter(|&id| tokenizer.bytes.get(id).is_some())
        });
        if let Some(add) = settings.get("add_bos_token").and_then(Value::as_bool) {
            if add && tokenizer.bos.is_none() {
                let reason = "add_bos_token is set, but no begin token is named";
                return Err(TextError::malformed("tokenizer_config.json", reason));
            }
            tokenizer.add_bos = add;
        }
        tokenizer.eos_token = token_text(&settings, "eos_token").unwrap_or_default().to_owned();
        if let Some(id) = tokenizer.id(&tokenizer.eos_token) {
            tokenizer.add_stop(id);
        }
        for id in [&generation, &config].into_iter().flat_map(|c| ids(c, "eos_token_id")) {
            tokenizer.add_stop(id);
        }
        tokenizer.add_turn_ends();
        if tokenizer.eos_token.is_empty() {
            let eos = tokenizer.eos().and_then(|id| tokenizer.token(id));
            tokenizer.eos_token = eos.unwrap_or_default();
        }
        tokenizer.chat_template = match &files.chat_template {
            Some(data) => Some(
                String::from_utf8(data.clone())
                    .map_err(|_| TextError::malformed("chat_template.jinja", "it is not UTF-8"))?,
            ),
            None => super::template::source_in(&settings)?,
        };
        Ok(tokenizer)
    }

    fn from_value(root: &Value) -> Result<Self, TextError> {
        let Vetted { tokens, added, decoding, prefix, missing } = vet::vet(root)?;
        let data = serde_json::to_vec(root)
            .map_err(|source| TextError::Json { what: "tokenizer.json".into(), source })?;
        // The checks above are meant to leave the crate nothing to panic about; if one slipped
        // through, it is still an error and not the end of the program.
        let build = || tokenizers::Tokenizer::from_bytes(&data).map_err(|e| e.to_string());
        let built = guarded(build, broken);
        let mut inner = built.map_err(|reason| TextError::malformed("tokenizer.json", reason))?;
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|e| TextError::malformed("tokenizer.json", e.to_string()))?;
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        // The crate numbers added tokens itself; the file's numbers are the model's.
        for token in &added {
            let given = inner.token_to_id(&token.content);
            if given != Some(token.id) {
                return Err(TextError::malformed(
                    "tokenizer.json",
                    format!(
                        "the added token {:?} has the id {}, but its place in the list gives {given:?}",
                        token.content, token.id
                    ),
                ));
            }
        }
        let bytes = TokenBytes::new(&tokens, decoding);
        if let Some(id) = prefix.filter(|&id| bytes.get(id).is_none()) {
            let reason = format!("the post-processor adds id {id}, which is no token");
            return Err(TextError::malformed("tokenizer.json", reason));
        }
        Ok(Self {
            inner,
            bytes,
            decoding,
            special: added.iter().filter(|t| t.special).map(|t| t.id).collect(),
            missing,
            bos: prefix,
            add_bos: prefix.is_some(),
            stop_ids: Vec::new(),
            chat_template: None,
            eos_token: String::new(),
            from_gguf: false,
        })
    }

    /// Token ids of `text`.
    ///
    /// Special tokens written out in the text (`<|eot_id|>`) become their ids. With `add_special`
    /// the begin token is put in front when this tokenizer wants one and the text does not already
    /// start with it.
    ///
    /// # Errors
    /// [`TextError::TooLarge`] above 16 MiB, [`TextError::Encode`] when a part of the text has no
    /// token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TextError::TooLarge {
                what: "the text to encode".into(),
                found: text.len() as u64,
                allowed: MAX_TEXT_BYTES as u64,
            });
        }
        let fail = |reason| TextError::Encode { bytes: text.len(), reason };
        if let Some(byte) = text.bytes().find(|byte| self.missing.contains(byte)) {
            return Err(fail(format!("no token spells the byte {byte:#04x}")));
        }
        let encode = || self.inner.encode_fast(text, false).map_err(|e| e.to_string());
        let encoded = guarded(encode, broken);
        let mut ids = encoded.map_err(fail)?.get_ids().to_vec();
        if let Some(bos) = self.bos.filter(|_| add_special && self.add_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of `ids`, special tokens left out when `skip_special`.
    ///
    /// Bytes that are not UTF-8 become U+FFFD as in [`String::from_utf8_lossy`].
    ///
    /// # Errors
    /// [`TextError::UnknownId`] for an id that is no token.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        let mut stream = TextStream::new(self).keep_special(!skip_special);
        let mut text = String::new();
        for &id in ids {
            text.extend(stream.push(id)?);
        }
        text.extend(stream.finish());
        Ok(text)
    }

    /// The exact bytes that token `id` stands for; `None` when there is no such token.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// The token's name as the vocabulary writes it (`Ġthe`, `<|eot_id|>`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token given by its name in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether `id` is a special token, which never appears in generated text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// One more than the largest id.
    pub fn vocab_len(&self) -> usize {
        self.bytes.len()
    }

    /// The begin-of-text id, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether [`Tokenizer::encode`] puts [`Tokenizer::bos`] in front when asked for special tokens.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The main end-of-text id, if there is one.
    pub fn eos(&self) -> Option<u32> {
        self.stop_ids.first().copied()
    }

    /// Every id that ends generation: the end token, those of the configuration files and the end
    /// of a chat turn. The main one is first.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The chat template in the checkpoint's files, if any. Use
    /// [`ChatTemplate::for_model`](super::ChatTemplate::for_model), which knows which to trust.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Text of the begin token, for templates; empty when there is none.
    pub fn bos_token(&self) -> String {
        self.bos.and_then(|id| self.token(id)).unwrap_or_default()
    }

    /// Text of the end token, for templates; empty when there is none.
    pub fn eos_token(&self) -> &str {
        &self.eos_token
    }

    /// Checks that every token has one of the model's `rows` embedding rows. Rows without a token
    /// (padding) are allowed.
    ///
    /// # Errors
    /// [`TextError::VocabMismatch`] names the token with the largest id.
    pub fn check_vocab(&self, rows: usize) -> Result<(), TextError> {
        match self.bytes.len() {
            len if len <= rows => Ok(()),
            len => {
                let id = len as u32 - 1;
                let token = self.token(id).unwrap_or_default();
                Err(TextError::VocabMismatch { token, id, rows })
            }
        }
    }

    /// Whether the template is one that a GGUF file carries.
    pub(super) fn is_from_gguf(&self) -> bool {
        self.from_gguf
    }

    pub(super) fn unknown(&self, id: u32) -> TextError {
        TextError::UnknownId { id, largest: self.bytes.len().saturating_sub(1) as u32 }
    }

    pub(super) fn strips_first_space(&self) -> bool {
        matches!(self.decoding, Decoding::SentencePiece { strip_first: true, .. })
    }

    fn add_stop(&mut self, id: u32) {
        if !self.stop_ids.contains(&id) {
            self.stop_ids.push(id);
        }
    }

    fn add_turn_ends(&mut self) {
        for token in TURN_ENDS {
            if let Some(id) = self.id(token).filter(|&id| self.is_special(id)) {
                self.add_stop(id);
            }
        }
    }
}

fn json(what: &str, data: &[u8]) -> Result<Value, TextError> {
    serde_json::from_slice(data).map_err(|source| TextError::Json { what: what.to_owned(), source })
}

/// A token given as `"text"` or as `{"content": "text"}`.
pub(super) fn token_text<'v>(settings: &'v Value, key: &str) -> Option<&'v str> {
    let value = settings.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Ids given as one number or as a list.
fn ids<'v>(config: &'v Value, key: &str) -> impl Iterator<Item = u32> + 'v {
    let value = config.get(key).unwrap_or(&Value::Null);
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    list.iter().filter_map(|v| u32::try_from(v.as_u64()?).ok())
}

/// A panic inside the `tokenizers` crate.
fn broken(words: String) -> String {
    format!("the tokenizer failed inside: {words}")
}
