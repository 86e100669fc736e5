//! Every packed form from every other, without a changed ternary.

use super::*;
use crate::{
    checkpoint::{
        DenseSlot, FloatType, LinearKind, Target, TokenizerOutcome, convert, slots::Names,
    },
    pack,
};

fn quiet(
    source: &Checkpoint,
    path: &Path,
    target: Target,
) -> Result<crate::checkpoint::ConvertReport, CheckpointError> {
    let mut last = (0, 0);
    let report = convert(source, path, target, &mut |done, all| {
        assert!(done <= all);
        last = (done, all);
    })?;
    assert_eq!(last.0, last.1, "progress ends at the end");
    Ok(report)
}

fn path_of(dir: &Path, name: &str, target: Target) -> std::path::PathBuf {
    dir.join(if target.is_file() { format!("{name}.gguf") } else { name.to_owned() })
}

/// Everything that decides what a model computes, besides the ternaries (which `convert` proves).
fn same_model(a: &Checkpoint, b: &Checkpoint) {
    let mut config = b.config().clone();
    config.model_type.clone_from(&a.config().model_type);
    assert_eq!(a.config(), &config);
    for slot in a.norm_slots() {
        assert_eq!(a.norm(slot).unwrap(), b.norm(slot).unwrap(), "{slot:?}");
    }
    for slot in [DenseSlot::Embedding, DenseSlot::Head] {
        let (a, b) = (a.dense(slot).unwrap(), b.dense(slot).unwrap());
        assert_eq!((a.dtype, a.rows, a.cols), (b.dtype, b.rows, b.cols));
        assert_eq!(a.bytes(0..a.rows).unwrap(), b.bytes(0..b.rows).unwrap());
    }
}

#[test]
fn every_form_converts_to_every_other() {
    for name in ["tiny-blocks", "tiny-falcon-e"] {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("start"), name, &SynthOptions::default());
        let start = open(&dir.path().join("start")).unwrap();
        let mut hash = None;
        for first in Target::ALL {
            let path = path_of(dir.path(), &first.to_string(), first);
            let report = quiet(&start, &path, first).unwrap();
            assert_eq!(report.tokenizer, TokenizerOutcome::Kept);
            assert_eq!(report.projections, 7 * start.config().num_layers);
            assert_eq!(report.ternaries, start.config().ternary_weights());
            assert_eq!(hash.get_or_insert(report.ternary_sha256.clone()), &report.ternary_sha256);
            let middle =
                Checkpoint::open(&path, &OpenOptions::default().mmap(name == "tiny-blocks"))
                    .unwrap();
            same_model(&start, &middle);
            // From each form to each with one model; the other adds rows of q and k put in order.
            let all: &[Target] =
                if name == "tiny-blocks" { &Target::ALL } else { &Target::ALL[..2] };
            for &second in all {
                let path = path_of(dir.path(), &format!("{first}-{second}"), second);
                let report = quiet(&middle, &path, second).unwrap();
                assert_eq!(hash.as_ref(), Some(&report.ternary_sha256), "{first} {second}");
                same_model(&start, &open(&path).unwrap());
            }
        }
    }
}

#[test]
fn scales_stay_exact_where_they_fit_and_are_reported_where_they_do_not() {
    let dir = tempfile::tempdir().unwrap();
    // g of `bitlinear` files is a reciprocal of a bf16: seldom a bf16 or an f16 itself.
    write(&dir.path().join("start"), "tiny-falcon-e", &SynthOptions::default());
    let start = open(&dir.path().join("start")).unwrap();
    for target in Target::ALL {
        let report = quiet(&start, &path_of(dir.path(), "out", target), target).unwrap();
        match target {
            Target::HfPacked | Target::GgufI2S => {
                assert_eq!((report.scales_rounded, report.scale_error), (0, 0.0));
            }
            Target::Int2 => assert!(report.scale_error < 1.0 / 256.0),
            _ => {
                assert!(report.scales_rounded > 0);
                assert!(report.scale_error < 1.0 / 2048.0, "{}", report.scale_error);
            }
        }
        for path in ["out", "out.gguf"] {
            let path = dir.path().join(path);
            let _ = std::fs::remove_dir_all(&path);
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[test]
fn masters_convert_and_shapes_that_do_not_fit_are_refused_before_writing() {
    let dir = tempfile::tempdir().unwrap();
    let masters = SynthOptions { masters: Some(FloatType::F32), shards: 1 };
    write(&dir.path().join("start"), "tiny-llama3", &masters);
    let start = open(&dir.path().join("start")).unwrap();
    assert_eq!(start.kind(), LinearKind::Master(FloatType::F32));
    let path = dir.path().join("hf");
    let report = quiet(&start, &path, Target::HfPacked).unwrap();
    assert_eq!(report.scales_rounded, 0);
    let packed = open(&path).unwrap();
    assert_eq!(packed.kind(), LinearKind::HfPacked);
    same_model(&start, &packed);
    for target in Target::ALL.into_iter().filter(|&t| t != Target::HfPacked) {
        let path = path_of(dir.path(), "no", target);
        let error = quiet(&start, &path, target).unwrap_err();
        assert!(matches!(error, CheckpointError::Target { .. }), "{error}");
        assert!(!path.exists());
    }
    let again = quiet(&start, &path, Target::HfPacked);
    assert!(matches!(again, Err(CheckpointError::Exists { .. })));
}

/// The fused tensors of the published form, held against the naive packing of permuted rows.
#[test]
fn int2_folders_hold_the_published_layout() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("start"), "tiny-blocks", &SynthOptions::default());
    let start = open(&dir.path().join("start")).unwrap();
    let path = dir.path().join("int2");
    quiet(&start, &path, Target::Int2).unwrap();
    let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
    let tensors = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let config = start.config();
    let (head, k) = (config.head_dim, config.hidden_size);
    let mut fused = Vec::new();
    for proj in [crate::checkpoint::Proj::Q, crate::checkpoint::Proj::K, crate::checkpoint::Proj::V]
    {
        let rows = start.linear(crate::checkpoint::LinearSlot { layer: 1, proj }).unwrap();
        let mut builder = pack::W2Builder::new(k).unwrap();
        builder.push(&rows).unwrap();
        let ternaries = builder.finish().unwrap().to_ternaries();
        if proj == crate::checkpoint::Proj::V {
            fused.extend(ternaries);
            continue;
        }
        // New row h * head + 2 d + l is old row h * head + l * head / 2 + d.
        for new in 0..rows.n() {
            let (h, r) = (new / head, new % head);
            let old = h * head + r % 2 * (head / 2) + r / 2;
            fused.extend(&ternaries[old * k..][..k]);
        }
    }
    let expected = pack::int2::pack(&fused, fused.len() / k, k).unwrap();
    let raw = tensors.tensor("layers.1.attention.wqkv.weight").unwrap();
    let expected: Vec<u8> = expected.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(raw.data(), expected);
    assert_eq!(raw.shape(), [fused.len() / k, k / 4]);
    let scales = tensors.tensor("layers.1.attention.wqkv.weight_scale").unwrap();
    assert_eq!((scales.shape(), scales.data()[6..].to_vec()), (&[4][..], vec![0, 0]));
    let names: Vec<&str> =
        vec!["output.weight", "norm.weight", Names::Int2.dense(DenseSlot::Embedding)];
    assert!(names.iter().all(|name| tensors.tensor(name).is_ok()));
}

#[test]
fn gguf_files_carry_their_tokenizer_and_are_known_without_their_name() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("start"), "tiny-blocks", &SynthOptions::default());
    let start = open(&dir.path().join("start")).unwrap();
    assert_eq!(start.gguf_tokenizer().unwrap(), None);
    let path = dir.path().join("model.gguf");
    quiet(&start, &path, Target::GgufI2S).unwrap();
    let gguf = open(&path).unwrap();
    let tokenizer = gguf.gguf_tokenizer().unwrap().unwrap();
    assert_eq!(tokenizer.model, "gpt2");
    assert_eq!(tokenizer.tokens.len(), 512);
    assert_eq!((tokenizer.tokens[65].as_str(), tokenizer.token_types[65]), ("A", 1));
    assert_eq!(
        (tokenizer.tokens[256].as_str(), tokenizer.token_types[256]),
        ("<|begin_of_text|>", 3)
    );
    assert_eq!((tokenizer.bos_token_id, tokenizer.eos_token_id), (Some(256), Some(257)));
    assert!(tokenizer.chat_template.unwrap().contains("Assistant"));
    let json = std::fs::read_to_string(start.tokenizer_folder().join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.hugging_face_json, Some(json));

    let nameless = dir.path().join("blob");
    std::fs::rename(&path, &nameless).unwrap();
    assert_eq!(open(&nameless).unwrap().kind(), LinearKind::I2S);
    let alone = dir.path().join("folder");
    std::fs::create_dir(&alone).unwrap();
    std::fs::rename(&nameless, alone.join("only.gguf")).unwrap();
    assert_eq!(open(&alone).unwrap().kind(), LinearKind::I2S);
}
