//! A working byte-level tokenizer for synthetic models.
//!
//! Ids 0 to 255 are the bytes (so any text has ids and comes back byte for byte), then three specials;
//! the rest of the vocabulary are made-up words, which are only ever decoded: random weights choose
//! any id, and every id should print.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::checkpoint::{CheckpointError, ModelConfig, write};

/// Beginning of text.
pub(super) const BOS: u32 = 256;
/// End of text.
pub(super) const EOS: u32 = 257;
/// End of a turn.
pub(super) const EOT: u32 = 258;
const SPECIALS: [(&str, u32); 3] =
    [("<|begin_of_text|>", BOS), ("<|end_of_text|>", EOS), ("<|eot_id|>", EOT)];

const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}\
{{ message['role'] | capitalize }}: {{ message['content'] | trim }}<|eot_id|>{% endfor %}\
{% if add_generation_prompt %}Assistant: {% endif %}";

/// Writes `tokenizer.json` and `tokenizer_config.json`.
pub(super) fn write(folder: &Path, config: &ModelConfig) -> Result<(), CheckpointError> {
    let mut vocab = Map::new();
    for byte in 0..=255u8 {
        vocab.insert(visible(byte).to_string(), byte.into());
    }
    // Also here: an added token that the model does not know gets the next free id instead of its own.
    for (content, id) in SPECIALS {
        vocab.insert(content.into(), id.into());
    }
    for id in 259..config.vocab_size {
        vocab.insert(word(id - 259), id.into());
    }
    let added: Vec<Value> = SPECIALS
        .iter()
        .map(|(content, id)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        })
        .collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": SPECIALS[0].0, "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } },
            ],
            "pair": [
                { "SpecialToken": { "id": SPECIALS[0].0, "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } },
                { "Sequence": { "id": "B", "type_id": 1 } },
            ],
            "special_tokens": {
                SPECIALS[0].0: { "id": SPECIALS[0].0, "ids": [BOS], "tokens": [SPECIALS[0].0] },
            },
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [],
        },
    });
    write::small_file(&folder.join("tokenizer.json"), tokenizer.to_string().as_bytes())?;
    let settings = json!({
        "bos_token": SPECIALS[0].0,
        "eos_token": SPECIALS[1].0,
        "chat_template": TEMPLATE,
        "model_max_length": config.max_positions,
        "tokenizer_class": "PreTrainedTokenizerFast",
    });
    write::json_file(&folder.join("tokenizer_config.json"), &settings)
}

/// The character that byte-level tokenizers write for a byte: itself when printable Latin-1, else one
/// from U+0100 on, in order.
fn visible(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or('?')
}

/// The `i`-th made-up word: a space and at least two letters, so that it is no byte's character.
fn word(i: usize) -> String {
    let mut letters = Vec::new();
    let mut rest = i;
    while letters.len() < 2 || rest > 0 {
        letters.push(char::from(b'a' + (rest % 26) as u8));
        rest /= 26;
    }
    let mut word = String::from(visible(b' '));
    word.extend(letters);
    word
}
