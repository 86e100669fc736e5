//! Files that are wrong in one known way, and the error each must give.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use super::*;
use crate::{
    checkpoint::{
        FloatType, LinearSlot, Proj, Target, bytes::FileBytes, convert, gguf::reader, safetensors,
    },
    pack::{PackError, ternary_sha256},
};

fn header_of(bytes: &[u8]) -> Result<usize, CheckpointError> {
    let mut counts = Vec::new();
    for mmap in [true, false] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        let file = FileBytes::open(file.path(), mmap).unwrap();
        let mut tensors = BTreeMap::new();
        counts.push(safetensors::read_header(&file, 0, &mut tensors).map(|()| tensors.len()));
    }
    assert_eq!(counts[0].is_ok(), counts[1].is_ok(), "mapped and read files agree");
    counts.pop().unwrap()
}

fn container(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn safetensors_headers_that_contradict_themselves_are_refused() {
    let tensor = |name: &str, dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let a = tensor("a", "F32", "[2,2]", 0, 16);
    let b = tensor("b", "U8", "[3]", 16, 19);
    let good = container(&format!("{{{a},{b}}}"), 19);
    assert_eq!(header_of(&good).unwrap(), 2);
    assert_eq!(
        header_of(&container(&format!(r#"{{"__metadata__":{{"x":"y"}},{a}}}"#), 16)).unwrap(),
        1
    );
    assert_eq!(
        header_of(&container(&format!("{{{}}}", tensor("s", "F32", "[]", 0, 4)), 4)).unwrap(),
        1
    );
    assert_eq!(
        header_of(&container(&format!("{{{}}}", tensor("e", "F32", "[0,7]", 0, 0)), 0)).unwrap(),
        1
    );

    for cut in 0..good.len() {
        assert!(header_of(&good[..cut]).is_err(), "cut at {cut}");
    }
    let mut longer = good.clone();
    longer.push(0);
    let mut length = good.clone();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a byte too many", longer),
        ("a length of 2^63", {
            length[..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
            length
        }),
        ("no object", container("[]", 0)),
        ("a name twice", container(&format!("{{{a},{a}}}"), 16)),
        (
            "metadata twice",
            container(&format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{a}}}"#), 16),
        ),
        (
            "an unknown field",
            container(r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}}"#, 0),
        ),
        ("a missing field", container(r#"{"a":{"dtype":"U8","shape":[0]}}"#, 0)),
        ("a negative size", container(&format!("{{{}}}", tensor("a", "U8", "[-1]", 0, 1)), 1)),
        ("a fraction", container(&format!("{{{}}}", tensor("a", "U8", "[1.5]", 0, 1)), 1)),
        (
            "too many dimensions",
            container(&format!("{{{}}}", tensor("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1)), 1),
        ),
        (
            "an overflowing shape",
            container(&format!("{{{}}}", tensor("a", "F32", "[4294967296,4294967296]", 0, 0)), 0),
        ),
        (
            "overflowing bits",
            container(&format!("{{{}}}", tensor("a", "F32", "[1152921504606846976]", 0, 0)), 0),
        ),
        ("a size that differs", container(&format!("{{{}}}", tensor("a", "F32", "[2]", 0, 7)), 7)),
        ("reversed offsets", container(&format!("{{{}}}", tensor("a", "U8", "[0]", 1, 0)), 1)),
        ("an end outside", container(&format!("{{{}}}", tensor("a", "U8", "[9]", 0, 9)), 8)),
        ("a hole", container(&format!("{{{a},{}}}", tensor("b", "U8", "[3]", 17, 20)), 20)),
        ("an overlap", container(&format!("{{{a},{}}}", tensor("b", "U8", "[3]", 15, 18)), 18)),
        (
            "a long name",
            container(&format!("{{{}}}", tensor(&"n".repeat(5000), "U8", "[0]", 0, 0)), 0),
        ),
        ("deep nesting", container(&format!(r#"{{"__metadata__":{}"#, "[".repeat(100_000)), 0)),
    ];
    for (what, bytes) in cases {
        let error = header_of(&bytes).expect_err(what);
        assert!(matches!(error, CheckpointError::Malformed { .. }), "{what}: {error}");
    }
}

struct Gguf(Vec<u8>);

impl Gguf {
    fn new(version: u32, tensors: u64, keys: u64) -> Self {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        Self(bytes)
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let start = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(start, |gguf, &dim| gguf.u64(dim)).u32(kind).u64(offset)
    }

    fn data(mut self, bytes: usize) -> Self {
        let len = self.0.len().next_multiple_of(32) + bytes;
        self.0.resize(len, 0);
        self
    }

    fn read(self) -> Result<usize, CheckpointError> {
        let mut counts = Vec::new();
        for mmap in [true, false] {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), &self.0).unwrap();
            let file = FileBytes::open(file.path(), mmap).unwrap();
            counts.push(reader::read_header(&file).map(|header| header.tensors.len()));
        }
        assert_eq!(counts[0].is_ok(), counts[1].is_ok(), "mapped and read files agree");
        counts.pop().unwrap()
    }
}

#[test]
fn gguf_headers_that_contradict_themselves_are_refused() {
    let one = |dims: &[u64], kind, offset| Gguf::new(3, 1, 0).tensor("t", dims, kind, offset);
    assert_eq!(Gguf::new(3, 0, 0).read().unwrap(), 0);
    assert_eq!(Gguf::new(2, 0, 0).read().unwrap(), 0);
    assert_eq!(one(&[4, 2], 0, 0).data(32).read().unwrap(), 1);
    assert_eq!(one(&[128, 2], 36, 0).data(64 + 32).read().unwrap(), 1);
    assert_eq!(one(&[256], 35, 0).data(66).read().unwrap(), 1);
    let key = |kind: u32| Gguf::new(3, 0, 1).text("k").u32(kind);
    assert_eq!(key(9).u32(8).u64(1).text("a string").read().unwrap(), 0);
    assert_eq!(key(9).u32(9).u64(1).u32(4).u64(1).u32(7).read().unwrap(), 0);
    let mut deep = key(9);
    for _ in 0..8 {
        deep = deep.u32(9).u64(1);
    }
    let align = |value: u32| Gguf::new(3, 0, 1).text("general.alignment").u32(4).u32(value);
    assert!(align(64).read().is_ok());

    let mut magic = Gguf::new(3, 0, 0);
    magic.0[0] = b'X';
    let malformed = [
        ("magic", magic),
        ("version 1", Gguf::new(1, 0, 0)),
        ("version 4", Gguf::new(4, 0, 0)),
        ("big-endian", Gguf::new(3u32.swap_bytes(), 0, 0)),
        ("tensors", Gguf::new(3, u64::MAX, 0)),
        ("tensors that are not there", Gguf::new(3, 1 << 20, 0)),
        ("keys", Gguf::new(3, 0, u64::MAX)),
        ("keys that are not there", Gguf::new(3, 0, 1 << 16)),
        ("a long key", Gguf::new(3, 0, 1).u64(1 << 16)),
        ("a key beyond the end", Gguf::new(3, 0, 1).u64(1000)),
        ("a string beyond the end", key(8).u64(1 << 20)),
        ("a string of 2^64 - 1", key(8).u64(u64::MAX)),
        ("a type", key(13).u64(0)),
        ("a boolean", Gguf(key(7).0.into_iter().chain([2]).collect())),
        ("an array of 2^64 - 1", key(9).u32(12).u64(u64::MAX)),
        ("an array beyond the end", key(9).u32(0).u64(1)),
        ("an array of strings", key(9).u32(8).u64(1 << 40).u64(0)),
        ("an array of arrays", key(9).u32(9).u64(1 << 40).u64(0)),
        ("an array of a type", key(9).u32(77).u64(1).u64(0)),
        ("deep arrays", deep.u64(0)),
        ("not UTF-8", Gguf(key(8).u64(1).0.into_iter().chain([0xff]).collect())),
        ("a key twice", Gguf::new(3, 0, 2).text("k").u32(4).u32(0).text("k").u32(4).u32(0)),
        ("alignment 0", align(0)),
        ("alignment 48", align(48)),
        ("alignment 2^31", align(1 << 31)),
        ("no dimensions", one(&[], 0, 0).data(32)),
        ("five dimensions", one(&[1, 1, 1, 1, 1], 0, 0).data(32)),
        ("a dimension of 0", one(&[0], 0, 0).data(32)),
        ("an overflowing shape", one(&[1 << 40, 1 << 40], 0, 0).data(32)),
        ("overflowing bytes", one(&[1 << 62], 0, 0).data(32)),
        ("half a block", one(&[128], 35, 0).data(66)),
        ("an offset between", one(&[4], 0, 8).data(64)),
        ("data beyond the end", one(&[9], 0, 0).data(32)),
        ("an offset beyond the end", one(&[1], 0, 1 << 63).data(32)),
        ("a scale beyond the end", one(&[128], 36, 0).data(32)),
        (
            "a name twice",
            Gguf::new(3, 2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data(64),
        ),
        (
            "an overlap",
            Gguf::new(3, 2, 0).tensor("t", &[9], 0, 0).tensor("u", &[1], 0, 32).data(64),
        ),
    ];
    for (what, gguf) in malformed {
        let error = gguf.read().expect_err(what);
        assert!(matches!(error, CheckpointError::Malformed { .. }), "{what}: {error}");
    }
    for kind in [36 + 1, 38, 39, 40, 9999] {
        let error = one(&[256], kind, 0).data(512).read().unwrap_err();
        assert!(matches!(error, CheckpointError::StoredType { .. }), "{kind}: {error}");
    }
}

/// A folder of the tiny model whose `config.json` was edited.
fn edited(name: &str, edit: impl FnOnce(&mut Value)) -> (tempfile::TempDir, Value) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), name, &SynthOptions::default());
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(&path, config.to_string()).unwrap();
    (dir, config)
}

#[test]
fn config_fields_that_are_not_supported_are_named() {
    let cases = [
        ("/model_type", json!("mistral"), "model_type"),
        ("/hidden_act", json!("gelu"), "hidden_act"),
        ("/attention_bias", json!(true), "attention_bias"),
        ("/attention_bias", json!(0), "attention_bias"),
        ("/mlp_bias", json!(true), "mlp_bias"),
        ("/rope_scaling", json!({"rope_type": "llama3", "factor": 8.0}), "rope_scaling.rope_type"),
        ("/rope_scaling", json!({"type": "linear", "factor": 2.0}), "rope_scaling.type"),
        (
            "/rope_parameters",
            json!({"rope_type": "yarn", "rope_theta": 1e4}),
            "rope_parameters.rope_type",
        ),
        ("/partial_rotary_factor", json!(0.5), "partial_rotary_factor"),
        ("/sliding_window", json!(4096), "sliding_window"),
        ("/quantization_config", json!([]), "quantization_config."),
        ("/quantization_config/quant_method", json!("gptq"), "quantization_config.quant_method"),
        ("/quantization_config/linear_class", json!("linear"), "quantization_config.linear_class"),
        (
            "/quantization_config/quantization_mode",
            json!("dynamic"),
            "quantization_config.quantization_mode",
        ),
        (
            "/quantization_config/quantization_mode",
            json!("online"),
            "quantization_config.quantization_mode",
        ),
        ("/quantization_config/use_rms_norm", json!(true), "quantization_config.use_rms_norm"),
        ("/weight_bits", json!(2), "weight_bits"),
        ("/input_bits", json!(4), "input_bits"),
        ("/hidden_size", json!(0), "hidden_size"),
        ("/hidden_size", json!(-192), "hidden_size"),
        ("/hidden_size", json!(192.5), "hidden_size"),
        ("/hidden_size", json!(u64::MAX), "hidden_size"),
        ("/hidden_size", json!(1u64 << 32), "hidden_size"),
        ("/num_hidden_layers", json!(1u64 << 20), "num_hidden_layers"),
        ("/num_attention_heads", json!(1 << 20), "num_attention_heads * head_dim"),
        ("/num_key_value_heads", json!(3), "num_key_value_heads"),
        ("/head_dim", json!(47), "head_dim"),
        ("/head_dim", json!(512), "head_dim"),
        ("/vocab_size", json!(0), "vocab_size"),
        ("/rms_norm_eps", json!(0.0), "rms_norm_eps"),
        ("/rms_norm_eps", json!("1e-5"), "rms_norm_eps"),
        ("/rope_theta", json!(-1.0), "rope_theta"),
        ("/bos_token_id", json!(517), "bos_token_id"),
        ("/eos_token_id", json!([257, 100_000]), "eos_token_id"),
        ("/eos_token_id", json!("</s>"), "eos_token_id"),
        ("/eos_token_id", json!(vec![1; 65]), "eos_token_id"),
    ];
    for (pointer, value, field) in cases {
        let (dir, _) = edited("tiny", |config| {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            config.pointer_mut(parent).unwrap()[name] = value.clone();
        });
        match open(dir.path()).unwrap_err() {
            CheckpointError::Field { field: found, .. } => assert_eq!(found, field, "{value}"),
            error => panic!("{pointer} = {value}: {error}"),
        }
    }
    for field in [
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "quantization_config",
    ] {
        let (dir, _) = edited("tiny", |config| {
            config.as_object_mut().unwrap().remove(field).unwrap();
        });
        match open(dir.path()).unwrap_err() {
            CheckpointError::MissingField { field: found, .. } => {
                assert!(found.starts_with(field), "{found}");
            }
            error => panic!("{field}: {error}"),
        }
    }
}

#[test]
fn what_may_be_absent_or_written_in_two_ways_is_read_so() {
    let (dir, _) = edited("tiny", |config| {
        let map = config.as_object_mut().unwrap();
        for field in ["head_dim", "hidden_act", "attention_bias", "tie_word_embeddings"] {
            map.remove(field);
        }
        map["rope_theta"].take();
        map.insert("rope_scaling".into(), Value::Null);
        map.insert(
            "rope_parameters".into(),
            json!({"rope_type": "default", "rope_theta": 500_000}),
        );
        map.insert("eos_token_id".into(), json!([258, 256]));
    });
    let config = open(dir.path()).unwrap().config().clone();
    let mut expected = NamedConfig::find("tiny").unwrap().config;
    // generation_config.json adds its own.
    expected.eos_token_ids = vec![256, 257, 258];
    assert_eq!(config, expected);
}

#[test]
fn json_that_is_no_json_is_named_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(open(dir.path()), Err(CheckpointError::NoModel { .. })));
    assert!(matches!(open(&dir.path().join("none")), Err(CheckpointError::Io { .. })));
    write(&dir.path().join("m"), "tiny", &SynthOptions::default());
    let config = dir.path().join("m/config.json");
    for text in ["", "{", "{]", &"[".repeat(100_000), "{\"a\": \u{1}}", "nul"] {
        fs::write(&config, text).unwrap();
        let error = open(&dir.path().join("m")).unwrap_err();
        assert!(matches!(error, CheckpointError::Json { .. }), "{error}");
    }
    fs::write(&config, "[]").unwrap();
    assert!(matches!(open(&dir.path().join("m")), Err(CheckpointError::Field { .. })));
    fs::write(&config, vec![b' '; 5 << 20]).unwrap();
    assert!(matches!(open(&dir.path().join("m")), Err(CheckpointError::TooLarge { .. })));
    fs::remove_file(&config).unwrap();
    assert!(matches!(open(&dir.path().join("m")), Err(CheckpointError::NoModel { .. })));
    fs::create_dir(&config).unwrap();
    assert!(matches!(open(&dir.path().join("m")), Err(CheckpointError::NoModel { .. })));
}

#[test]
fn shards_outside_their_folder_or_contradicting_the_index_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tiny", &SynthOptions { masters: None, shards: 2 });
    let index_path = dir.path().join("model.safetensors.index.json");
    let index: Value = serde_json::from_slice(&fs::read(&index_path).unwrap()).unwrap();
    assert!(open(dir.path()).is_ok());
    let embedding = "model.embed_tokens.weight";
    for name in [
        "../model-00001-of-00002.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "a\\b.safetensors",
        "C:x.safetensors",
        "..",
        "",
        ".hidden.safetensors",
        "x.bin",
        "nul\0.safetensors",
    ] {
        let mut index = index.clone();
        index["weight_map"][embedding] = json!(name);
        fs::write(&index_path, index.to_string()).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error, CheckpointError::ShardName { .. }), "{name}: {error}");
    }
    let mut swapped = index.clone();
    let other = index["weight_map"]["model.norm.weight"].clone();
    assert_ne!(other, index["weight_map"][embedding]);
    swapped["weight_map"][embedding] = other;
    fs::write(&index_path, swapped.to_string()).unwrap();
    assert!(matches!(open(dir.path()), Err(CheckpointError::Malformed { .. })));
    let mut absent = index.clone();
    absent["weight_map"]["model.nowhere"] = absent["weight_map"][embedding].clone();
    fs::write(&index_path, absent.to_string()).unwrap();
    assert!(matches!(open(dir.path()), Err(CheckpointError::Malformed { .. })));
    fs::write(&index_path, "{\"weight_map\": {}}").unwrap();
    assert!(matches!(open(dir.path()), Err(CheckpointError::Malformed { .. })));
    fs::write(&index_path, index.to_string()).unwrap();
    fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    assert!(matches!(open(dir.path()), Err(CheckpointError::Io { .. })));
}

/// Renames a tensor in place; both names must be equally long.
fn rename(dir: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let path = dir.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(&path, bytes).unwrap();
}

#[test]
fn tensors_that_are_missing_unknown_or_of_another_shape_are_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tiny", &SynthOptions::default());
    rename(
        dir.path(),
        "model.layers.1.mlp.up_proj.weight\"",
        "model.layers.1.mlp.op_proj.weight\"",
    );
    match open(dir.path()).unwrap_err() {
        CheckpointError::MissingTensor { tensor, near } => {
            assert_eq!(tensor, "model.layers.1.mlp.up_proj.weight");
            assert_eq!(near.as_deref(), Some("model.layers.1.mlp.op_proj.weight"));
        }
        error => panic!("{error}"),
    }
    // One layer fewer leaves a whole layer of tensors without a place.
    let (dir, _) = edited("tiny", |config| config["num_hidden_layers"] = json!(2));
    match open(dir.path()).unwrap_err() {
        CheckpointError::UnexpectedTensor { tensor, .. } => {
            assert!(tensor.starts_with("model.layers.2."));
        }
        error => panic!("{error}"),
    }
    let lenient = OpenOptions::default().allow_extra_tensors(true);
    assert!(Checkpoint::open(dir.path(), &lenient).is_ok());
    for (field, value) in [
        ("vocab_size", 516),
        ("hidden_size", 96),
        ("intermediate_size", 271),
        ("num_key_value_heads", 1),
        ("num_attention_heads", 2),
    ] {
        let (dir, _) = edited("tiny", |config| config[field] = json!(value));
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error, CheckpointError::Shape { .. }), "{field}: {error}");
    }
    let (dir, _) = edited("tiny-falcon-e", |config| config["tie_word_embeddings"] = json!(false));
    match open(dir.path()).unwrap_err() {
        CheckpointError::MissingTensor { tensor, .. } => assert_eq!(tensor, "lm_head.weight"),
        error => panic!("{error}"),
    }
    let (dir, _) = edited("tiny-falcon-e", |config| config["model_type"] = json!("bitnet"));
    assert!(matches!(open(dir.path()), Err(CheckpointError::MissingTensor { .. })));
}

#[test]
fn ordinary_float_models_are_not_rounded_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let masters = SynthOptions { masters: Some(FloatType::Bf16), shards: 1 };
    write(dir.path(), "tiny-llama3", &masters);
    assert!(open(dir.path()).is_ok());
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("quantization_config");
    fs::write(&path, config.to_string()).unwrap();
    assert!(matches!(open(dir.path()), Err(CheckpointError::NotBitNet { .. })));
    let any = OpenOptions::default().ternarise_any(true);
    assert!(Checkpoint::open(dir.path(), &any).is_ok());
    config["weight_bits"] = json!(1);
    fs::write(&path, config.to_string()).unwrap();
    assert!(open(dir.path()).is_ok());
}

/// Overwrites bytes of a tensor.
fn patch(dir: &Path, tensor: &str, at: usize, bytes: &[u8]) {
    let path = dir.join("model.safetensors");
    let entry = open(dir).unwrap().tensors().find(|t| t.name == tensor).unwrap().clone();
    let mut all = fs::read(&path).unwrap();
    all[entry.offset as usize + at..][..bytes.len()].copy_from_slice(bytes);
    fs::write(&path, all).unwrap();
}

#[test]
fn bad_weights_are_found_when_they_are_read_and_bad_scales_before() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tiny", &SynthOptions::default());
    let name = "model.layers.0.self_attn.k_proj";
    // Row 24 * 2 + 5 of 96 is quarter 2 of byte row 5.
    patch(dir.path(), &format!("{name}.weight"), 5 * 192 + 190, &[3 << 4]);
    let checkpoint = open(dir.path()).unwrap();
    let rows = checkpoint.linear(LinearSlot { layer: 0, proj: Proj::K }).unwrap();
    match ternary_sha256(&rows).unwrap_err() {
        CheckpointError::Tensor { tensor, source } => {
            assert_eq!(tensor, format!("{name}.weight"));
            assert_eq!(source, PackError::InvalidCode { row: 53, col: 190, code: 3 });
        }
        error => panic!("{error}"),
    }
    let report = convert(&checkpoint, &dir.path().join("out"), Target::HfPacked, &mut |_, _| {});
    assert!(matches!(report, Err(CheckpointError::Tensor { .. })));
    assert!(!dir.path().join("out").exists(), "a failed conversion leaves nothing");
    for bad in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "tiny", &SynthOptions::default());
        let bytes = half::bf16::from_f32(bad).to_le_bytes();
        patch(dir.path(), &format!("{name}.weight_scale"), 0, &bytes);
        match open(dir.path()).unwrap_err() {
            CheckpointError::Tensor { source: PackError::Scale { .. }, .. } => {}
            error => panic!("{bad}: {error}"),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tiny", &SynthOptions::default());
    patch(dir.path(), "model.norm.weight", 4, &half::bf16::NAN.to_le_bytes());
    let error = open(dir.path()).unwrap().norm(crate::checkpoint::NormSlot::Final).unwrap_err();
    assert!(matches!(
        error,
        CheckpointError::Tensor { source: PackError::NotFinite { col: 2, .. }, .. }
    ));
}

#[test]
fn gguf_keys_that_are_not_supported_are_named() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("m"), "tiny-blocks", &SynthOptions::default());
    let start = open(&dir.path().join("m")).unwrap();
    let path = dir.path().join("m.gguf");
    convert(&start, &path, Target::GgufTq2, &mut |_, _| {}).unwrap();
    let good = fs::read(&path).unwrap();
    let swap = |from: &[u8], to: &[u8]| {
        assert_eq!(from.len(), to.len());
        let mut bytes = good.clone();
        let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        fs::write(&path, bytes).unwrap();
        open(&path)
    };
    assert!(swap(b"GGUF", b"GGUF").is_ok());
    let field = |error: CheckpointError| match error {
        CheckpointError::Field { field, .. } | CheckpointError::MissingField { field, .. } => field,
        error => panic!("{error}"),
    };
    let arch = swap(b"bitnet-b1.58", b"bitnet-b1.59").unwrap_err();
    assert_eq!(field(arch), "general.architecture");
    let act = swap(b"\x05\0\0\0\0\0\0\0relu2", b"\x05\0\0\0\0\0\0\0relu3").unwrap_err();
    assert_eq!(field(act), "bitnet-b1.58.hidden_activation");
    let head = swap(b".attention.key_length\x04\0\0\0\x40", b".attention.key_length\x04\0\0\0\x20");
    assert_eq!(field(head.unwrap_err()), "bitnet-b1.58.attention.value_length");
    let gone = swap(b"bitnet-b1.58.block_count", b"bitnet-b1.58.block_cound").unwrap_err();
    assert_eq!(field(gone), "bitnet-b1.58.block_count");
    let eos =
        swap(b"eos_token_id\x04\0\0\0\x01\x01", b"eos_token_id\x04\0\0\0\xff\xff").unwrap_err();
    assert_eq!(field(eos), "eos_token_id");
    let float = swap(b"attention.head_count\x04", b"attention.head_count\x06").unwrap_err();
    assert_eq!(field(float), "bitnet-b1.58.attention.head_count");
}
