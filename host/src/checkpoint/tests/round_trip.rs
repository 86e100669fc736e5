//! A synthetic checkpoint of each family, through every storage and way of reading.

use ::safetensors::SafeTensors;

use super::*;
use crate::{
    checkpoint::{
        DenseSlot, FloatType, LinearKind, LinearSlot, NormSlot, Proj, TernaryRows, slots::Names,
    },
    pack::{self, PackedW2, W2Builder, ternary_sha256},
};

fn hashes(checkpoint: &Checkpoint) -> Vec<String> {
    checkpoint
        .linear_slots()
        .map(|slot| ternary_sha256(&checkpoint.linear(slot).unwrap()).unwrap())
        .collect()
}

fn packed(rows: &TernaryRows<'_>) -> PackedW2 {
    let mut builder = W2Builder::new(rows.k()).unwrap().with_rows(rows.n()).unwrap();
    builder.push(rows).unwrap();
    builder.finish().unwrap()
}

/// The whole path of a packed folder, held against the `safetensors` crate and the naive unpacking.
#[test]
fn packed_folders_give_the_bytes_that_are_in_them() {
    for named in tiny() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), named.name, &SynthOptions::default());
        let bytes = std::fs::read(dir.path().join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        for mmap in [true, false] {
            let checkpoint =
                Checkpoint::open(dir.path(), &OpenOptions::default().mmap(mmap)).unwrap();
            assert_eq!(checkpoint.config(), &named.config, "{}", named.name);
            assert_eq!(checkpoint.kind(), LinearKind::HfPacked);
            assert_eq!(checkpoint.file_bytes(), bytes.len() as u64);
            for slot in checkpoint.linear_slots() {
                let (n, k) = named.config.linear_shape(slot.proj);
                let rows = checkpoint.linear(slot).unwrap();
                assert_eq!((rows.n(), rows.k()), (n, k));
                let base = Names::HuggingFace.linear(slot);
                let raw = tensors.tensor(&format!("{base}.weight")).unwrap();
                let ternaries = pack::hf::unpack(raw.data(), n, k).unwrap();
                let matrix = packed(&rows);
                assert_eq!(matrix.to_ternaries(), ternaries, "{} {slot:?}", named.name);
                assert_eq!(matrix.ternary_sha256(), ternary_sha256(&rows).unwrap());

                let raw = tensors.tensor(&format!("{base}.weight_scale")).unwrap();
                let stored = half::bf16::from_le_bytes(raw.data().try_into().unwrap()).to_f32();
                let g = match named.linear_class {
                    crate::checkpoint::LinearClass::AutoBitLinear => stored,
                    crate::checkpoint::LinearClass::BitLinear => 1.0 / stored,
                };
                assert_eq!(rows.scale(), g);
                assert_eq!(matrix.segments.scale[0], g);
            }
            for slot in checkpoint.norm_slots() {
                let names = Names::HuggingFace.norm(slot);
                let raw = names.iter().find_map(|name| tensors.tensor(name).ok()).unwrap();
                let expected: Vec<f32> = raw
                    .data()
                    .chunks(2)
                    .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                    .collect();
                assert_eq!(checkpoint.norm(slot).unwrap(), expected);
            }
            for slot in [DenseSlot::Embedding, DenseSlot::Head] {
                let view = checkpoint.dense(slot).unwrap();
                let name = match named.config.tie_word_embeddings {
                    true => "model.embed_tokens.weight",
                    false => Names::HuggingFace.dense(slot),
                };
                assert_eq!(view.name(), name);
                assert_eq!(view.dtype, FloatType::Bf16);
                assert_eq!(
                    *view.bytes(0..view.rows).unwrap(),
                    *tensors.tensor(name).unwrap().data()
                );
            }
        }
    }
}

#[test]
fn masters_and_shards_hold_the_same_ternaries_and_about_the_same_scales() {
    for named in tiny() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| dir.path().join(name);
        write(&folder("packed"), named.name, &SynthOptions::default());
        let plain = open(&folder("packed")).unwrap();
        let expected = hashes(&plain);
        let storages = [
            ("shards", SynthOptions { masters: None, shards: 3 }),
            ("f32", SynthOptions { masters: Some(FloatType::F32), shards: 1 }),
            ("bf16", SynthOptions { masters: Some(FloatType::Bf16), shards: 2 }),
            ("f16", SynthOptions { masters: Some(FloatType::F16), shards: 1 }),
        ];
        for (storage, options) in storages {
            write(&folder(storage), named.name, &options);
            let masters = options.masters.is_some();
            let options = OpenOptions::default().mmap(masters);
            let checkpoint = Checkpoint::open(folder(storage), &options).unwrap();
            assert_eq!(hashes(&checkpoint), expected, "{} {storage}", named.name);
            for slot in checkpoint.linear_slots() {
                let ratio =
                    checkpoint.linear(slot).unwrap().scale() / plain.linear(slot).unwrap().scale();
                // The mean of |t + noise| over t in -1, 0, 1: 2/3 + 1/24.
                let expected = if masters { 0.6..0.85 } else { 1.0..1.000_001 };
                assert!(expected.contains(&ratio), "{} {slot:?} {ratio}", named.name);
            }
        }
        let shards = std::fs::read_dir(folder("shards")).unwrap().count();
        assert!(shards >= 3 + 1 + 4, "three files, an index, four others: {shards}");
    }
}

#[test]
fn checkpoints_and_their_views_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Checkpoint>();
    shared::<TernaryRows<'_>>();
    shared::<crate::checkpoint::DenseView<'_>>();
}

#[test]
fn rows_can_be_read_in_any_ranges_and_fused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tiny-llama3", &SynthOptions::default());
    let checkpoint = open(dir.path()).unwrap();
    let rows = checkpoint.linear(LinearSlot { layer: 1, proj: Proj::Gate }).unwrap();
    let whole = packed(&rows);
    let width = rows.words_per_row();
    assert_eq!((rows.n(), rows.n() % 4), (333, 1));
    for (start, end) in [(0, 333), (0, 1), (83, 85), (84, 84), (80, 300), (332, 333), (251, 253)] {
        let mut out = vec![0; (end - start) * width];
        rows.rows_into(start..end, &mut out).unwrap();
        assert_eq!(out, whole.words[start * width..end * width], "{start}..{end}");
    }
    let mut out = vec![0; width];
    assert!(rows.rows_into(333..334, &mut out).is_err());
    assert!(rows.rows_into(0..2, &mut out).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "it must be refused")]
    let reversed = rows.rows_into(2..1, &mut out);
    assert!(reversed.is_err());

    let mut builder = W2Builder::new(96).unwrap();
    let mut scales = Vec::new();
    for proj in [Proj::Q, Proj::K, Proj::V] {
        let rows = checkpoint.linear(LinearSlot { layer: 0, proj }).unwrap();
        builder.push(&rows).unwrap();
        scales.push((rows.n(), rows.scale()));
    }
    let fused = builder.finish().unwrap();
    assert_eq!(fused.n, 130 + 26 + 26);
    assert_eq!(fused.segments, contract::w2a8::Segments::new(&scales).unwrap());
    assert!(checkpoint.linear(LinearSlot { layer: 2, proj: Proj::Q }).is_err());
    assert!(checkpoint.norm(NormSlot::AttnSub(0)).is_err());
    assert!(checkpoint.norm(NormSlot::Input(2)).is_err());
}

#[test]
fn writing_twice_gives_the_same_files_and_never_overwrites() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    write(&a, "tiny", &SynthOptions::default());
    write(&b, "tiny", &SynthOptions::default());
    for entry in std::fs::read_dir(&a).unwrap() {
        let name = entry.unwrap().file_name();
        assert_eq!(std::fs::read(a.join(&name)).unwrap(), std::fs::read(b.join(&name)).unwrap());
    }
    let named = NamedConfig::find("tiny").unwrap();
    let again = synth::write(&a, &named, 7, &mut |_, _| {});
    assert!(matches!(again, Err(CheckpointError::Exists { .. })));
    assert!(matches!(NamedConfig::find("tiniest"), Err(CheckpointError::UnknownConfig { .. })));
}

#[test]
fn the_synthetic_tokenizer_loads_and_returns_every_text() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tiny", &SynthOptions::default());
    let tokenizer = tokenizers::Tokenizer::from_file(dir.path().join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.get_vocab_size(true), 517);
    for text in ["", "fn main() {}\n", "\u{0}\u{7f} ñ 漢字 🦀\t", " a  b", "<|eot_id|>x"] {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(ids.get_ids(), false).unwrap(), text);
        assert!(ids.get_ids().iter().all(|&id| id < 259));
    }
    assert_eq!(tokenizer.encode("A", true).unwrap().get_ids(), [256, 65]);
    assert_eq!(tokenizer.encode("<|eot_id|>", false).unwrap().get_ids(), [258]);
    assert_eq!(tokenizer.decode(&[259, 516], false).unwrap(), " aa xj");
}
