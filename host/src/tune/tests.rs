//! Records: round trips, hostile files, stale ones; problems of a model; folders.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::record::{DeviceKey, Entry, FORMAT, MAX_BYTES, Record, RecordError, Tried, reason};
use super::{Shape, date, problems, shapes, store};
use crate::checkpoint::synth::NamedConfig;
use crate::ops::choices::{Family, M_CLASSES, Problem};

fn device() -> DeviceKey {
    DeviceKey { name: "NVIDIA H200".into(), sm: 90, sm_count: 132, driver: "13.0".into() }
}

const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn entry(problem: Problem, default: usize, chosen: Option<usize>) -> Entry {
    let family = problem.family();
    let tried = (0..family.variants_len())
        .map(|index| {
            let failed = index == 1 && default != 1 && chosen != Some(1);
            Tried {
                variant: family.symbol(index).into(),
                us: (!failed).then_some(1.5 + index as f64),
                failed: failed.then(|| "y[0, 3] is 1e0 and 2e0 on the CPU".into()),
            }
        })
        .collect();
    Entry {
        family,
        m: problem.m(),
        n: problem.n(),
        k: problem.k(),
        date: "2026-11-20".into(),
        default: family.symbol(default).into(),
        chosen: chosen.map(|index| family.symbol(index).into()),
        tried,
    }
}

fn record() -> Record {
    let mut record = Record::new(device(), "sm_90a", true);
    record.ptx_sha256 =
        Family::ALL.map(|family| (family.name().to_owned(), HASH.to_owned())).into();
    let problem = |family, m, n, k| Problem::of(family, m, n, k).unwrap();
    record.put(entry(problem(Family::W2a8Gemm, 64, 2560, 6912), 0, Some(3)));
    record.put(entry(problem(Family::W2a8Gemv, 1, 2560, 6912), 2, Some(0)));
    record.put(entry(problem(Family::W2a8Gemv, 1, 2560, 2560), 2, None));
    record.put(entry(problem(Family::BitLinear, 1, 2560, 2560), 0, Some(0)));
    record
}

fn parse(value: &Value) -> Result<Record, RecordError> {
    Record::parse(value.to_string().as_bytes())
}

fn value() -> Value {
    serde_json::from_str(&record().to_json()).unwrap()
}

#[test]
fn a_record_comes_back_as_it_was() {
    let record = record();
    let text = record.to_json();
    assert_eq!(Record::parse(text.as_bytes()).unwrap(), record);
    assert_eq!(text.lines().count(), 8 + record.entries.len() + 2, "one line for each entry");
    let empty = Record::new(device(), "sm_80", false);
    assert_eq!(Record::parse(empty.to_json().as_bytes()).unwrap(), empty);
}

#[test]
fn choices_are_what_was_chosen() {
    let (choices, notes) = record().choices(|_| Some(HASH.into()), |_, _| true);
    assert_eq!(notes, [""; 0]);
    assert_eq!(choices.len(), 3);
    assert_eq!(choices.get(Family::W2a8Gemm, 50, 2560, 6912), Some(3));
    assert_eq!(choices.get(Family::W2a8Gemm, 65, 2560, 6912), None);
    assert_eq!(choices.get(Family::W2a8Gemv, 1, 2560, 6912), Some(0));
    assert_eq!(choices.get(Family::W2a8Gemv, 1, 2560, 2560), None, "nothing passed there");
}

#[test]
fn weights_of_1_6_bits_are_preferred_where_they_win_by_a_tenth() {
    let mut record = record();
    let timed = |family, us: f64| {
        let mut entry = entry(Problem::of(family, 1, 2560, 6912).unwrap(), 0, Some(0));
        entry.tried.iter_mut().for_each(|tried| (tried.us, tried.failed) = (Some(us), None));
        entry
    };
    let prefers = |record: &Record, hash: fn(Family) -> Option<String>| {
        record.choices(hash, |_, _| true).0.prefers_trits(2560, 6912)
    };
    let same = |_| Some(HASH.into());
    record.put(timed(Family::W2a8Gemv, 5.0));
    record.put(timed(Family::W2a8Trits, 4.5));
    assert!(prefers(&record, same));
    assert!(!prefers(&record, |f| (f != Family::W2a8Trits).then(|| HASH.into())), "other kernels");
    record.put(timed(Family::W2a8Trits, 4.6));
    assert!(!prefers(&record, same), "not by a tenth");
    record.put(timed(Family::W2a8Trits, 4.0));
    record.put(timed(Family::BitLinear, 4.2));
    assert!(!prefers(&record, same), "the fused kernel is faster");
    assert!(!record.choices(same, |_, _| true).0.prefers_trits(2560, 2560), "not measured");
}

#[test]
fn entries_of_other_kernels_are_left_out_family_by_family() {
    let other =
        |family| Some(if family == Family::W2a8Gemv { "ff".repeat(32) } else { HASH.into() });
    let (choices, notes) = record().choices(other, |_, _| true);
    assert_eq!(choices.len(), 2);
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("w2a8_gemv") && notes[0].contains("001122334455"), "{notes:?}");
    let (choices, notes) = record().choices(|_| None, |_, _| true);
    assert_eq!((choices.len(), notes.len()), (0, 3));
}

#[test]
fn a_variant_that_the_device_does_not_run_is_left_out() {
    let (choices, notes) =
        record().choices(|_| Some(HASH.into()), |problem, _| problem.family() != Family::W2a8Gemm);
    assert_eq!((choices.len(), notes.len()), (2, 1));
    assert!(notes[0].contains(Family::W2a8Gemm.symbol(3)), "{notes:?}");
}

#[test]
fn a_record_of_another_device_is_stale() {
    let (record, here) = (record(), device());
    assert_eq!(record.is_of(&here, true), Ok(()));
    let driver = DeviceKey { driver: "12.4".into(), ..here.clone() };
    assert_eq!(record.is_of(&driver, false), Ok(()));
    assert!(record.is_of(&driver, true).unwrap_err().to_string().contains("12.4"));
    for other in [
        DeviceKey { name: "NVIDIA H100".into(), ..here.clone() },
        DeviceKey { sm: 100, ..here.clone() },
        DeviceKey { sm_count: 114, ..here.clone() },
    ] {
        assert!(record.is_of(&other, false).is_err());
    }
}

/// Every value that cannot be is refused, by the place it stands at.
#[test]
fn values_that_cannot_be_are_refused() {
    type Change = (&'static str, fn(&mut Value));
    let changes: &[Change] = &[
        ("unknown family", |v| v["entries"][0]["family"] = json!("softmax")),
        ("n of 0", |v| v["entries"][0]["n"] = json!(0)),
        ("n of a negative", |v| v["entries"][0]["n"] = json!(-1)),
        ("n too large", |v| v["entries"][0]["n"] = json!(1u64 << 40)),
        ("k too large", |v| v["entries"][0]["k"] = json!(28_673)),
        ("rows of no class", |v| v["entries"][3]["m"] = json!(63)),
        ("rows of another family", |v| v["entries"][0]["m"] = json!(8)),
        ("no variants", |v| v["entries"][0]["tried"] = json!([])),
        ("too many variants", |v| {
            let tried = (0..65).map(|i| json!({"variant": format!("v{i}"), "us": 1.0}));
            v["entries"][0]["tried"] = tried.collect();
        }),
        ("a variant twice", |v| {
            let first = v["entries"][3]["tried"][0].clone();
            v["entries"][3]["tried"][2] = first;
        }),
        ("time of 0", |v| v["entries"][0]["tried"][0]["us"] = json!(0.0)),
        ("negative time", |v| v["entries"][0]["tried"][0]["us"] = json!(-3.0)),
        ("endless time", |v| v["entries"][0]["tried"][0]["us"] = json!(1e300)),
        ("no time and no reason", |v| {
            v["entries"][0]["tried"][0] = json!({"variant": "bit_linear_short"});
        }),
        ("time and reason", |v| v["entries"][0]["tried"][0]["failed"] = json!("no")),
        ("a default that was not tried", |v| v["entries"][0]["default"] = json!("bit_linear")),
        ("a choice that was not tried", |v| v["entries"][0]["chosen"] = json!("bit_linear")),
        ("a choice that failed", |v| {
            let failed = v["entries"][3]["tried"][1]["variant"].clone();
            v["entries"][3]["chosen"] = failed;
        }),
        ("a problem twice", |v| {
            let first = v["entries"][0].clone();
            v["entries"].as_array_mut().unwrap().push(first);
        }),
        ("a long name", |v| v["device"]["name"] = json!("x".repeat(401))),
        ("an empty name", |v| v["device"]["name"] = json!("")),
        ("an escape sequence", |v| v["device"]["name"] = json!("H200\u{1b}[2J")),
        ("a hash that is none", |v| v["ptx_sha256"]["w2a8_gemm"] = json!("0123")),
        ("a hash that is not ASCII", |v| v["ptx_sha256"]["w2a8_gemm"] = json!("é".repeat(32))),
        ("a hash of no family", |v| v["ptx_sha256"]["softmax"] = json!(HASH)),
        ("no hash", |v| v["ptx_sha256"] = json!({})),
        ("an unknown field", |v| v["surprise"] = json!(1)),
        ("an unknown field of an entry", |v| v["entries"][0]["surprise"] = json!(1)),
        ("a missing field", |v| v["device"] = json!({"name": "x"})),
    ];
    parse(&value()).expect("unchanged it is a record");
    for (what, change) in changes {
        let mut changed = value();
        change(&mut changed);
        let error = parse(&changed).expect_err(what);
        assert!(
            matches!(error, RecordError::Value { .. } | RecordError::Json(_)),
            "{what}: {error}"
        );
    }
    let mut newer = value();
    newer["format"] = json!(FORMAT + 1);
    newer["surprise"] = json!(1);
    let error = parse(&newer).unwrap_err();
    assert!(matches!(error, RecordError::Format { found } if found == FORMAT + 1), "{error}");
}

#[test]
fn long_files_are_refused_before_they_are_parsed() {
    let long = vec![b' '; MAX_BYTES as usize + 1];
    assert!(matches!(Record::parse(&long), Err(RecordError::TooLong { .. })));
    let deep = "[".repeat(1 << 20);
    assert!(matches!(Record::parse(deep.as_bytes()), Err(RecordError::Json(_))));
}

#[test]
fn a_reason_is_made_to_pass() {
    for text in ["", "a\nb\u{7}", &"é".repeat(1000), "plain"] {
        let mut record = record();
        record.entries[0].tried[1] =
            Tried { us: None, failed: Some(reason(text)), ..record.entries[0].tried[1].clone() };
        Record::parse(record.to_json().as_bytes()).unwrap();
    }
    assert_eq!(reason("plain"), "plain");
}

#[test]
fn a_later_entry_replaces_an_earlier_one() {
    let mut record = record();
    let problem = Problem::of(Family::W2a8Gemv, 1, 2560, 6912).unwrap();
    record.put(entry(problem, 2, Some(5)));
    assert_eq!(record.entries.len(), 4);
    assert!(record.entries.is_sorted_by_key(Entry::problem));
    let (choices, _) = record.choices(|_| Some(HASH.into()), |_, _| true);
    assert_eq!(choices.get(Family::W2a8Gemv, 1, 2560, 6912), Some(5));
}

#[test]
fn what_another_process_has_measured_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    let at = |m| Problem::of(Family::W2a8Gemm, m, 2560, 2560).unwrap();
    let with = |entries: &[Entry]| {
        let mut record = record();
        record.entries.clear();
        entries.iter().for_each(|entry| record.put(entry.clone()));
        record
    };
    let (theirs, ours) = (entry(at(8), 0, Some(2)), entry(at(16), 0, Some(3)));
    store::update(&path, &mut with(std::slice::from_ref(&theirs))).unwrap();
    // Both measured one problem: the later writer's stands.
    let mut record = with(&[ours.clone(), entry(at(8), 0, Some(4))]);
    store::update(&path, &mut record).unwrap();
    store::update(&path, &mut with(&[entry(at(24), 0, Some(0))])).unwrap();
    let kept = store::read(&path).unwrap().unwrap();
    assert_eq!(kept.entries.len(), 3);
    assert!(kept.entries.contains(&ours) && !kept.entries.contains(&theirs));
    // Entries of other kernels go, and so does a record of another device or a file that is none.
    let mut other = with(&[]);
    other.ptx_sha256.insert(Family::W2a8Gemm.name().into(), HASH.replace('0', "1"));
    assert_eq!(other.take_from(&kept).len(), 1);
    assert!(other.entries.is_empty());
    let mut elsewhere = with(&[]);
    elsewhere.device.sm_count = 114;
    store::update(&path, &mut elsewhere).unwrap();
    assert_eq!(store::read(&path).unwrap().unwrap(), elsewhere);
    std::fs::write(&path, "no record").unwrap();
    store::update(&path, &mut record).unwrap();
    assert_eq!(store::read(&path).unwrap().unwrap(), record);
}

#[test]
fn the_problems_of_a_model_are_its_fused_layers() {
    let config = NamedConfig::find("2b4t").unwrap().config;
    let expected = [(2560, 2560), (2560, 6912), (3840, 2560), (13_824, 2560)];
    assert_eq!(shapes(&config), expected.map(|(n, k)| Shape { n, k }));
    let all = problems(&shapes(&config), 64);
    // One row by three families, six classes of rows.
    assert_eq!(all.len(), 4 * (3 + 6));
    assert!(all.iter().all(|p| p.m() <= 64));
    let classes = |most| problems(&[Shape { n: 8, k: 8 }], most).len() - 3;
    assert_eq!(classes(1), 1, "the smallest class at least");
    assert_eq!(classes(9), 2);
    assert_eq!(classes(500), classes(512), "a step falls into a class");
    assert_eq!(classes(4096), M_CLASSES.len());
    assert_eq!(classes(1 << 20), M_CLASSES.len());
}

#[test]
fn folders_follow_the_variables() {
    let folder = |set: &[(&str, &str)]| {
        store::folder_from(|name| set.iter().find(|s| s.0 == name).map(|s| OsString::from(s.1)))
    };
    let path = |text: &str| Some(PathBuf::from(text));
    let all = [("BITNET_TUNE_DIR", "here"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h")];
    assert_eq!(folder(&all), path("here"));
    assert_eq!(folder(&all[1..]), path("/c/bitnet-gpu/tune"));
    assert_eq!(folder(&all[2..]), path("/h/.cache/bitnet-gpu/tune"));
    assert_eq!(folder(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]), folder(&all[2..]));
    assert_eq!(folder(&[]), None);
    let device = DeviceKey { name: "../../NVIDIA H200 (x)".into(), ..device() };
    let file = store::file(Path::new("d"), &device, "sm_90a");
    assert_eq!(file, Path::new("d/nvidia-h200-x-132-sm-90a.json"));
}

#[test]
fn files_are_written_whole_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new").join("a.json");
    assert_eq!(store::read(&path).unwrap(), None);
    store::write(&path, &record()).unwrap();
    assert_eq!(store::read(&path).unwrap(), Some(record()));
    let names = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(names, 1, "nothing is left beside it");
    std::fs::write(&path, b"{\"format\": 1").unwrap();
    assert!(matches!(store::read(&path), Err(store::StoreError::Record { .. })));
    assert!(matches!(store::read(folder.path()), Err(store::StoreError::Io { .. })));
    #[cfg(unix)]
    {
        // Opening a pipe would wait for its writer.
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(matches!(store::read(&pipe), Err(store::StoreError::Io { .. })));
    }
}

/// What is shipped is what a device of that name would take.
#[test]
fn shipped_records_are_records() {
    for text in store::SHIPPED {
        let record = Record::parse(text.as_bytes()).unwrap();
        assert_eq!(record.to_json(), *text, "written by the command");
        assert!(!record.entries.is_empty());
        for entry in &record.entries {
            assert!(entry.tried.iter().all(|tried| tried.failed.is_none()), "{entry:?}");
        }
    }
}

#[test]
fn dates_are_gregorian() {
    for (days, text) in
        [(0, "1970-01-01"), (58, "1970-02-28"), (11_016, "2000-02-29"), (20_453, "2025-12-31")]
    {
        assert_eq!(date(days), text);
    }
}

proptest! {
    /// Bytes changed, cut or put in anywhere: refused or a record, never a panic, and what passes holds choices
    /// that can be looked up.
    #[test]
    fn damaged_files_are_refused_or_harmless(
        at in 0usize..4000, with in any::<u8>(), how in 0..3, cut in 0usize..40
    ) {
        let mut bytes = record().to_json().into_bytes();
        let at = at % bytes.len();
        match how {
            0 => bytes[at] = with,
            1 => { bytes.drain(at..(at + cut).min(bytes.len())); }
            _ => bytes.insert(at, with),
        }
        if let Ok(record) = Record::parse(&bytes) {
            let (choices, _) = record.choices(|_| Some(HASH.into()), |_, _| true);
            for (problem, variant) in choices.iter() {
                prop_assert!(problem.eligible(variant, 132));
            }
        }
    }

    #[test]
    fn numbers_of_any_size_are_refused_or_harmless(
        m in any::<u64>(), n in any::<u64>(), k in any::<u64>(), us in any::<f64>()
    ) {
        let mut changed = value();
        changed["entries"][3]["m"] = json!(m);
        changed["entries"][3]["n"] = json!(n);
        changed["entries"][3]["k"] = json!(k);
        changed["entries"][3]["tried"][0]["us"] = json!(us);
        if let Ok(record) = parse(&changed) {
            prop_assert!(record.entries.iter().all(|entry| entry.problem().is_some()));
        }
    }

    #[test]
    fn any_bytes_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Record::parse(&bytes).is_err());
    }
}
