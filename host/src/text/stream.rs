//! Token ids to text, piece by piece, without ever splitting a character.
//!
//! Bytes are appended token by token; what is complete UTF-8 is handed on at once, and an unfinished
//! character waits for its next byte. A byte that no continuation can repair becomes U+FFFD exactly
//! as in [`String::from_utf8_lossy`], so the pieces joined are the text that [`Tokenizer::decode`]
//! gives for all ids at once. An unfinished character at the very end becomes U+FFFD in
//! [`TextStream::finish`].

use std::ops::Deref;

use super::{TextError, Tokenizer};

/// Turns a stream of ids into a stream of text. `T` is a reference to a tokenizer, counted or not.
pub struct TextStream<T> {
    tokenizer: T,
    /// At most three bytes between calls: the beginning of a character.
    pending: Vec<u8>,
    /// Whether the space that some vocabularies put in front of a text is still to be dropped.
    strip_space: bool,
    keep_special: bool,
}

impl<T: Deref<Target = Tokenizer>> TextStream<T> {
    /// A stream that starts a text, as [`Tokenizer::decode`] does, without special tokens.
    pub fn new(tokenizer: T) -> Self {
        let strip_space = tokenizer.strips_first_space();
        Self { tokenizer, pending: Vec::new(), strip_space, keep_special: false }
    }

    /// A stream that continues a text, so that a leading space of the first token is kept.
    pub fn continuing(tokenizer: T) -> Self {
        Self { strip_space: false, ..Self::new(tokenizer) }
    }

    /// Whether special tokens such as `<|eot_id|>` are written out too; they are not by default.
    pub fn keep_special(self, keep_special: bool) -> Self {
        Self { keep_special, ..self }
    }

    /// Takes one id and returns the text that became complete, if any.
    ///
    /// # Errors
    /// [`TextError::UnknownId`] when the tokenizer has no such token.
    pub fn push(&mut self, id: u32) -> Result<Option<String>, TextError> {
        let Some(mut bytes) = self.tokenizer.token_bytes(id) else {
            return Err(self.tokenizer.unknown(id));
        };
        if bytes.is_empty() || (!self.keep_special && self.tokenizer.is_special(id)) {
            return Ok(None);
        }
        if std::mem::take(&mut self.strip_space) {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.pending.extend_from_slice(bytes);
        Ok(Some(self.drain()).filter(|text| !text.is_empty()))
    }

    /// Ends the stream: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.pending);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }

    fn drain(&mut self) -> String {
        let mut text = String::new();
        let mut used = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            used += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = used + invalid.len() == self.pending.len();
            let unfinished =
                at_end && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if !invalid.is_empty() && !unfinished {
                text.push(char::REPLACEMENT_CHARACTER);
                used += invalid.len();
            }
        }
        self.pending.drain(..used);
        text
    }
}
