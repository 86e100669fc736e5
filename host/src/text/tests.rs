//! Tokenizer tests on small vocabularies written here: a byte-level one with Llama 3's ids for the
//! words of the published chat examples, and a sentencepiece-like one.

use super::bytes::byte_char;
use super::*;
use crate::checkpoint::GgufTokenizer;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Byte-level: the 256 bytes in the order of their characters (as in Llama 3), a few words.
fn llama3_like() -> Value {
    let mut chars: Vec<char> = (0..=255).map(byte_char).collect();
    // Printable characters first, then the ones from U+0100 on: that is their numeric order.
    chars.sort_unstable();
    let mut vocab: serde_json::Map<String, Value> =
        chars.iter().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    let words = [
        ("ab", 300),
        ("abc", 301),
        ("User", 1502),
        ("System", 2374),
        ("hi", 6151),
        ("Ġhi", 15960),
        ("Assistant", 72803),
        ("<|begin_of_text|>", 128_000),
        ("<|end_of_text|>", 128_001),
        ("<|eot_id|>", 128_009),
    ];
    for (word, id) in words {
        vocab.insert(word.to_owned(), json!(id));
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    let split = concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [special(128_000, "<|begin_of_text|>"), special(128_001, "<|end_of_text|>"),
                         special(128_009, "<|eot_id|>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [128_000],
                                                     "tokens": ["<|begin_of_text|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "ignore_merges": true, "vocab": vocab, "merges": [["a", "b"], ["ab", "c"]]},
    })
}

/// Sentencepiece-like, as Llama 2: bytes 3..259, then pieces.
fn llama2_like() -> Value {
    let mut vocab = serde_json::Map::new();
    for (id, token) in ["<unk>", "<s>", "</s>"].iter().enumerate() {
        vocab.insert(token.to_string(), json!(id));
    }
    for byte in 0..=255_u32 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(byte + 3));
    }
    for (i, piece) in ["▁", "a", "b", "▁a", "é", "▁ab"].iter().enumerate() {
        vocab.insert(piece.to_string(), json!(259 + i));
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                  "vocab": vocab, "merges": ["▁ a", "▁a b"]},
    })
}

fn build(root: &Value) -> Result<Tokenizer, TextError> {
    let tokenizer = serde_json::to_vec(root).unwrap();
    Tokenizer::from_files(&TokenizerFiles { tokenizer, ..Default::default() })
}

fn llama3() -> &'static Tokenizer {
    static BUILT: LazyLock<Tokenizer> = LazyLock::new(|| build(&llama3_like()).unwrap());
    &BUILT
}

/// The crate's own decoder of the same file, as a second opinion.
fn second_opinion() -> &'static tokenizers::Tokenizer {
    static BUILT: LazyLock<tokenizers::Tokenizer> = LazyLock::new(|| {
        tokenizers::Tokenizer::from_bytes(serde_json::to_vec(&llama3_like()).unwrap()).unwrap()
    });
    &BUILT
}

#[test]
fn the_chat_example_has_the_ids_of_one_string() {
    let tokenizer = llama3();
    let template = ChatTemplate::for_model(tokenizer, "bitnet").unwrap();
    assert!(template.is_built_in());
    let text = template.render(&[Message::new("user", "hi")], true).unwrap();
    assert_eq!(text, "<|begin_of_text|>User: hi<|eot_id|>Assistant: ");
    let expected = [128_000, 1502, 25, 15_960, 128_009, 72_803, 25, 220];
    assert_eq!(tokenizer.encode(&text, true).unwrap(), expected);
    // The header alone, then the content: other ids.
    assert_eq!(tokenizer.encode("User: ", false).unwrap(), [1502, 25, 220]);
    assert_eq!(tokenizer.encode("hi", false).unwrap(), [6151]);
}

#[test]
fn the_begin_token_stands_once() {
    let tokenizer = llama3();
    assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), (Some(128_000), true));
    for text in ["hi", "<|begin_of_text|>hi"] {
        assert_eq!(tokenizer.encode(text, true).unwrap(), [128_000, 6151]);
    }
    assert_eq!(tokenizer.encode("", true).unwrap(), [128_000]);
    assert_eq!(tokenizer.encode("hi", false).unwrap(), [6151]);
}

#[test]
fn stored_truncation_does_not_cut_a_prompt() {
    assert_eq!(llama3().encode("a b c d e f", false).unwrap().len(), 11);
}

#[test]
fn end_tokens_come_from_all_files() {
    let tokenizer = serde_json::to_vec(&llama3_like()).unwrap();
    let files = TokenizerFiles {
        tokenizer,
        tokenizer_config: Some(br#"{"eos_token": {"content": "<|end_of_text|>"}}"#.to_vec()),
        generation_config: Some(br#"{"eos_token_id": [128001, 7]}"#.to_vec()),
        config: Some(br#"{"eos_token_id": 128001}"#.to_vec()),
        chat_template: Some(b"{{ eos_token }}".to_vec()),
    };
    let tokenizer = Tokenizer::from_files(&files).unwrap();
    assert_eq!(tokenizer.stop_ids(), [128_001, 7, 128_009]);
    assert_eq!(tokenizer.eos(), Some(128_001));
    let template = ChatTemplate::for_model(&tokenizer, "llama").unwrap();
    assert_eq!(template.render(&[], true).unwrap(), "<|end_of_text|>");
    assert!(!ChatTemplate::for_model(&tokenizer, "bitnet").unwrap().is_built_in());
}

#[test]
fn no_template_is_an_error_except_for_bitnet() {
    let none = ChatTemplate::for_model(llama3(), "llama");
    assert!(matches!(none, Err(TextError::NoTemplate { .. })));
}

#[test]
fn ids_are_checked_against_tokenizer_and_model() {
    let tokenizer = llama3();
    assert_eq!(tokenizer.vocab_len(), 128_010);
    tokenizer.check_vocab(128_256).unwrap();
    match tokenizer.check_vocab(128_009) {
        Err(TextError::VocabMismatch { token, id, rows }) => {
            assert_eq!((token.as_str(), id, rows), ("<|eot_id|>", 128_009, 128_009));
        }
        other => panic!("{other:?}"),
    }
    for id in [128_010, 310, u32::MAX] {
        assert!(matches!(tokenizer.decode(&[id], true), Err(TextError::UnknownId { .. })));
    }
}

#[test]
fn special_tokens_are_left_out_or_written() {
    let tokenizer = llama3();
    let ids = [128_000, 6151, 128_009];
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "hi");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "<|begin_of_text|>hi<|eot_id|>");
}

#[test]
fn a_character_over_three_tokens_comes_out_whole() {
    let tokenizer = llama3();
    let ids = tokenizer.encode("€", false).unwrap();
    assert_eq!(ids.len(), 3);
    let mut stream = TextStream::new(tokenizer);
    let pieces: Vec<_> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(pieces, [None, None, Some("€".to_owned())]);
    assert_eq!(stream.finish(), None);
    // Cut short, it becomes one replacement character, and only at the end.
    stream.push(ids[0]).unwrap();
    assert_eq!(stream.push(ids[1]).unwrap(), None);
    assert_eq!(stream.finish().as_deref(), Some("\u{FFFD}"));
}

#[test]
fn sentencepiece_spaces_are_kept_inside_and_dropped_in_front() {
    let tokenizer = build(&llama2_like()).unwrap();
    let ids = tokenizer.encode("ab a é日", false).unwrap();
    assert_eq!(ids, [264, 262, 259, 263, 3 + 0xE6, 3 + 0x97, 3 + 0xA5]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "ab a é日");
    let mut stream = TextStream::continuing(&tokenizer);
    assert_eq!(stream.push(264).unwrap().as_deref(), Some(" ab"));
}

#[test]
fn a_byte_without_a_token_is_refused_and_not_dropped() {
    let mut root = llama3_like();
    root["model"]["vocab"].as_object_mut().unwrap().remove(&byte_char(0xC3).to_string());
    let tokenizer = build(&root).unwrap();
    assert!(matches!(tokenizer.encode("é", false), Err(TextError::Encode { .. })));
    assert_eq!(tokenizer.encode("hi", false).unwrap(), [6151]);
}

#[test]
fn hostile_files_are_refused_by_name() {
    type Change = fn(&mut Value);
    let malformed: &[(&str, Change)] = &[
        ("merge of unknown tokens", |r| r["model"]["merges"] = json!([["a", "zz"]])),
        ("merge longer than every token", |r| {
            r["model"]["merges"] = json!([["<|begin_of_text|>", "<|end_of_text|>"]]);
        }),
        ("merge of three", |r| r["model"]["merges"] = json!([["a", "b", "c"]])),
        ("merge as a number", |r| r["model"]["merges"] = json!([7])),
        ("no merges", |r| r["model"]["merges"] = Value::Null),
        ("empty vocabulary", |r| r["model"]["vocab"] = json!({})),
        ("two tokens, one id", |r| r["model"]["vocab"]["ab"] = json!(301)),
        ("id too large", |r| r["model"]["vocab"]["ab"] = json!(4_000_000_000_u32)),
        ("negative id", |r| r["model"]["vocab"]["ab"] = json!(-1)),
        ("dropout", |r| r["model"]["dropout"] = json!(0.5)),
        ("unknown unk", |r| r["model"]["unk_token"] = json!("<nope>")),
        ("empty added token", |r| r["added_tokens"][0]["content"] = json!("")),
        ("added token twice", |r| r["added_tokens"][1]["content"] = json!("<|eot_id|>")),
        ("added token with another id", |r| r["added_tokens"][0]["id"] = json!(5)),
        ("added token out of place", |r| {
            let token = json!({"id": 200_000, "content": "<x>", "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true});
            r["added_tokens"].as_array_mut().unwrap().push(token);
        }),
        ("exploding normaliser", |r| {
            let grow =
                json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"});
            r["normalizer"] = json!({"type": "Sequence", "normalizers": [grow, grow, grow]});
        }),
        ("pattern without kind", |r| {
            r["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({});
        }),
        ("bad regular expression", |r| {
            r["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({"Regex": "("});
        }),
        ("no byte-level pre-tokenizer", |r| r["pre_tokenizer"] = Value::Null),
        ("a list", |r| *r = json!([])),
        ("no model", |r| r["model"] = Value::Null),
    ];
    for (name, change) in malformed {
        let mut root = llama3_like();
        change(&mut root);
        match build(&root) {
            Err(TextError::Malformed { .. }) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    let unsupported: &[(&str, Change)] = &[
        ("Unigram", |r| r["model"]["type"] = json!("Unigram")),
        ("prefix that cuts a character", |r| {
            r["model"]["continuing_subword_prefix"] = json!("Ġ");
        }),
        ("Precompiled", |r| r["normalizer"] = json!({"type": "Precompiled"})),
        ("FixedLength", |r| r["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0})),
        ("WordPiece decoder", |r| r["decoder"] = json!({"type": "WordPiece", "prefix": "##"})),
        ("no decoder", |r| r["decoder"] = Value::Null),
        ("version", |r| r["version"] = json!("2.0")),
    ];
    for (name, change) in unsupported {
        let mut root = llama3_like();
        change(&mut root);
        match build(&root) {
            Err(TextError::Unsupported { .. }) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_missing_or_oversized_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Tokenizer::from_folder(folder.path()), Err(TextError::NoTokenizer { .. })));
    let path = folder.path().join("tokenizer.json");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len((64 << 20) + 1).unwrap();
    assert!(matches!(Tokenizer::from_folder(folder.path()), Err(TextError::TooLarge { .. })));
    std::fs::write(&path, serde_json::to_vec(&llama3_like()).unwrap()).unwrap();
    std::fs::write(folder.path().join("config.json"), b"{\"eos_token_id\": 128001}").unwrap();
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    assert_eq!(tokenizer.stop_ids(), [128_001, 128_009]);
    assert_eq!(Tokenizer::from_file(&path).unwrap().stop_ids(), [128_009]);
}

/// Opening one would wait for its writer.
#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), llama3_like().to_string()).unwrap();
    let pipe = folder.path().join("tokenizer_config.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(matches!(Tokenizer::from_folder(folder.path()), Err(TextError::Read { .. })));
}

#[test]
fn the_demo_model_has_a_working_tokenizer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo");
    let tokenizer = Tokenizer::from_folder(folder.as_ref()).unwrap();
    assert_eq!((tokenizer.vocab_len(), tokenizer.bos()), (2048, Some(0)));
    assert_eq!(tokenizer.stop_ids(), [0]);
    tokenizer.check_vocab(2048).unwrap();
    let text = "fn main() {\n    println!(\"{}\", '\u{1F980}');\n}\n";
    let ids = tokenizer.encode(text, true).unwrap();
    assert_eq!((ids[0], ids[1..].contains(&0)), (0, false));
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
    assert!(ChatTemplate::for_model(&tokenizer, "bitnet").is_err());
}

#[test]
fn a_tokenizer_can_be_shared_between_threads() {
    let ids = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| llama3().encode("User: hi abc", true).unwrap()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
}

/// The same vocabulary as [`llama3_like`] with contiguous ids, as GGUF stores it.
fn gguf_byte_level() -> GgufTokenizer {
    let mut tokens: Vec<String> = (0..=255).map(|b| byte_char(b).to_string()).collect();
    tokens.extend(["ab", "abc", "<b>", "<e>", "<x>"].map(String::from));
    let mut token_types = vec![1; tokens.len()];
    token_types[258] = 3;
    token_types[260] = 4;
    GgufTokenizer {
        model: "gpt2".into(),
        tokens,
        token_types,
        merges: vec!["a b".into(), "ab c".into()],
        bos_token_id: Some(258),
        eos_token_id: Some(259),
        ..Default::default()
    }
}

#[test]
fn a_gguf_tokenizer_of_each_kind() {
    let tokenizer = Tokenizer::from_gguf(&gguf_byte_level(), "bitnet-b1.58").unwrap();
    assert_eq!(tokenizer.encode("abc ab<x><e>", true).unwrap(), [258, 257, 32, 256, 260, 259]);
    assert_eq!(tokenizer.decode(&[258, 257, 32, 256, 260, 259], true).unwrap(), "abc ab<x>");
    assert_eq!(tokenizer.stop_ids(), [259]);

    let root = llama2_like();
    let vocab = root["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let mut token_types = vec![1; tokens.len()];
    token_types[1..3].fill(3);
    let data = GgufTokenizer {
        model: "llama".into(),
        tokens,
        token_types,
        scores,
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        unknown_token_id: Some(0),
        ..Default::default()
    };
    let tokenizer = Tokenizer::from_gguf(&data, "llama").unwrap();
    let ids = tokenizer.encode("ab a é日", true).unwrap();
    assert_eq!(ids, [1, 264, 262, 259, 263, 3 + 0xE6, 3 + 0x97, 3 + 0xA5]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "ab a é日");
}

#[test]
fn a_damaged_gguf_tokenizer_is_refused() {
    let bad: &[fn(&mut GgufTokenizer)] = &[
        |t| t.model = "rwkv".into(),
        |t| t.pre = Some("unheard-of".into()),
        |t| t.token_types.truncate(3),
        |t| t.bos_token_id = Some(9999),
        |t| t.merges.push("zz y".into()),
        |t| t.merges.push("a b c".into()),
        |t| t.tokens[3] = t.tokens[4].clone(),
        |t| t.tokens.clear(),
        |t| t.model = "llama".into(),
    ];
    for (i, change) in bad.iter().enumerate() {
        let mut data = gguf_byte_level();
        change(&mut data);
        let refused = Tokenizer::from_gguf(&data, "bitnet-b1.58");
        assert!(refused.is_err(), "change {i} was accepted");
    }
    // Only BitNet files may leave out the rule that splits words.
    assert!(Tokenizer::from_gguf(&gguf_byte_level(), "llama").is_err());
}

/// A file of half a megabyte, of which all merges together would have a gigabyte of text, and one whose merges are few
/// and take minutes to look up.
#[test]
fn tokens_with_too_many_splits_are_refused() {
    for tokens in [(1..1500).map(|len| "a".repeat(len)).collect(), vec!["a".repeat(1 << 20)]] {
        let scores = vec![0.0; tokens.len()];
        let data = GgufTokenizer { model: "llama".into(), tokens, scores, ..Default::default() };
        let refused = Tokenizer::from_gguf(&data, "llama");
        assert!(matches!(refused, Err(TextError::TooLarge { .. })), "{refused:?}");
    }
}

#[test]
fn an_embedded_tokenizer_json_is_used() {
    let data = GgufTokenizer {
        hugging_face_json: Some(llama3_like().to_string()),
        bos_token_id: Some(128_000),
        eos_token_id: Some(128_001),
        add_bos_token: Some(true),
        ..Default::default()
    };
    let tokenizer = Tokenizer::from_gguf(&data, "llama").unwrap();
    assert_eq!(tokenizer.encode("hi", true).unwrap(), [128_000, 6151]);
    assert_eq!(tokenizer.stop_ids(), [128_001, 128_009]);
    assert_eq!(tokenizer.eos_token(), "<|end_of_text|>");
    // The template that BitNet GGUF files embed is not the model's; other families' are.
    let data = GgufTokenizer { chat_template: Some("Human: ".into()), ..data };
    let tokenizer = Tokenizer::from_gguf(&data, "bitnet-b1.58").unwrap();
    assert!(ChatTemplate::for_model(&tokenizer, "bitnet-b1.58").unwrap().is_built_in());
    assert!(!ChatTemplate::for_model(&tokenizer, "llama").unwrap().is_built_in());
}

fn any_ids() -> impl Strategy<Value = Vec<u32>> {
    let id = prop_oneof![8 => 0_u32..256, 2 => 300_u32..302, 1 => Just(15_960), 1 => Just(128_009)];
    proptest::collection::vec(id, 0..40)
}

proptest! {
    #[test]
    fn encoding_and_decoding_give_the_text_back(text in any::<String>()) {
        let tokenizer = llama3();
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
    }

    #[test]
    fn a_stream_is_the_whole_decode_and_never_half_a_character(ids in any_ids()) {
        let tokenizer = llama3();
        let mut bytes = Vec::new();
        for id in ids.iter().filter(|&&id| !tokenizer.is_special(id)) {
            bytes.extend_from_slice(tokenizer.token_bytes(*id).unwrap());
        }
        let mut stream = TextStream::new(tokenizer);
        let mut text = String::new();
        for &id in &ids {
            if let Some(piece) = stream.push(id).unwrap() {
                prop_assert!(!piece.is_empty());
                text += &piece;
            }
        }
        text.extend(stream.finish());
        prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
        prop_assert_eq!(&text, &tokenizer.decode(&ids, true).unwrap());
        prop_assert_eq!(text, second_opinion().decode(&ids, true).unwrap());
    }

    #[test]
    fn damaged_files_never_panic(at in 0_usize..8000, with in any::<u8>(), cut in 0_usize..8000) {
        let mut tokenizer = serde_json::to_vec(&llama3_like()).unwrap();
        let len = tokenizer.len();
        tokenizer[at % len] = with;
        tokenizer.truncate(len - cut % 2 * (cut % len));
        if let Ok(tokenizer) = Tokenizer::from_files(&TokenizerFiles { tokenizer, ..Default::default() }) {
            let _ = tokenizer.encode("User: hi é\n 123", true);
        }
    }
}
