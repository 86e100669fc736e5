//! The exact bytes of every token, in one table.
//!
//! Decoding is then the same for a whole answer and for a stream: bytes are appended, and turned
//! into characters when complete. Byte-level vocabularies write each byte as one character: the 188
//! printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards in order.

use super::vet::Decoding;

/// Token id to bytes.
pub(super) struct TokenBytes {
    /// All tokens, one after another, in the order of their ids.
    bytes: Vec<u8>,
    /// `ends[id]` is where token `id` ends; an absent id has no bytes.
    ends: Vec<u32>,
    present: Vec<bool>,
}

impl TokenBytes {
    /// The table of `tokens`, whose ids are unique and below [`super::vet::MAX_IDS`].
    pub(super) fn new(tokens: &[(String, u32)], decoding: Decoding) -> Self {
        let ids = tokens.iter().map(|t| t.1 as usize + 1).max().unwrap_or(0);
        let mut texts: Vec<Option<&str>> = vec![None; ids];
        for (text, id) in tokens {
            texts[*id as usize] = Some(text);
        }
        let alphabet = byte_alphabet();
        let mut table =
            Self { bytes: Vec::new(), ends: Vec::with_capacity(ids), present: Vec::new() };
        for text in texts {
            match (text, decoding) {
                (None, _) => {}
                (Some(text), Decoding::ByteLevel) => {
                    push_byte_level(&mut table.bytes, text, &alphabet)
                }
                (Some(text), Decoding::SentencePiece { byte_fallback, .. }) => {
                    match fallback_byte(text).filter(|_| byte_fallback) {
                        Some(byte) => table.bytes.push(byte),
                        None => table.bytes.extend(text.replace('\u{2581}', " ").as_bytes()),
                    }
                }
            }
            table.present.push(text.is_some());
            // The file is capped far below 4 GiB, and a token is never longer than its text.
            table.ends.push(table.bytes.len() as u32);
        }
        table
    }

    /// The bytes of `id`; `None` when there is no such token.
    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let i = id as usize;
        if !*self.present.get(i)? {
            return None;
        }
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        Some(&self.bytes[start..self.ends[i] as usize])
    }

    /// One more than the largest id.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// A token with a character outside the alphabet (an added token) stands for its own UTF-8.
fn push_byte_level(out: &mut Vec<u8>, text: &str, alphabet: &[Option<u8>; 324]) {
    let start = out.len();
    for c in text.chars() {
        match alphabet.get(c as usize).copied().flatten() {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

/// Character to byte, for the characters below U+0144.
fn byte_alphabet() -> [Option<u8>; 324] {
    let mut table = [None; 324];
    let mut next = 256;
    for byte in 0..=255_u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let c = if printable { usize::from(byte) } else { next };
        next += usize::from(!printable);
        table[c] = Some(byte);
    }
    table
}

/// Byte to character: the inverse of the table above.
pub(super) fn byte_char(byte: u8) -> char {
    let c = byte_alphabet().iter().position(|b| *b == Some(byte)).unwrap_or(0);
    char::from_u32(c as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte of `<0x41>`.
fn fallback_byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_names_every_byte_once() {
        let mut bytes: Vec<u8> = byte_alphabet().iter().flatten().copied().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_char(b' '), 'Ġ');
        assert_eq!(byte_char(b'\n'), 'Ċ');
        assert_eq!(byte_char(0xAD), 'Ń');
    }

    #[test]
    fn holes_and_foreign_characters() {
        let tokens = [("Ġa".to_string(), 2), ("<|日|>".to_string(), 0), ("Ã©".to_string(), 3)];
        let table = TokenBytes::new(&tokens, Decoding::ByteLevel);
        assert_eq!(table.len(), 4);
        assert_eq!(table.get(0), Some("<|日|>".as_bytes()));
        assert_eq!(table.get(1), None);
        assert_eq!(table.get(2), Some(b" a".as_slice()));
        assert_eq!(table.get(3), Some("é".as_bytes()));
        assert_eq!(table.get(4), None);
    }

    #[test]
    fn fallback_bytes_only_where_the_decoder_has_them() {
        let tokens = [("<0xE9>".to_string(), 0), ("▁a".to_string(), 1), ("<0x+1>".to_string(), 2)];
        let with = Decoding::SentencePiece { byte_fallback: true, strip_first: false };
        let without = Decoding::SentencePiece { byte_fallback: false, strip_first: false };
        assert_eq!(TokenBytes::new(&tokens, with).get(0), Some([0xE9].as_slice()));
        assert_eq!(TokenBytes::new(&tokens, with).get(1), Some(b" a".as_slice()));
        assert_eq!(TokenBytes::new(&tokens, with).get(2), Some(b"<0x+1>".as_slice()));
        assert_eq!(TokenBytes::new(&tokens, without).get(0), Some(b"<0xE9>".as_slice()));
    }
}
