//! The report against counts made by hand.

use super::*;
use crate::{
    checkpoint::{DeviceBytes, FloatType, LinearSlot, Proj, inspect},
    pack::W2Builder,
};

#[test]
fn counts_and_bytes_are_those_of_the_unpacked_weights() {
    for named in tiny() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), named.name, &SynthOptions::default());
        let checkpoint = open(dir.path()).unwrap();
        let mut calls = Vec::new();
        let report = inspect(&checkpoint, &mut |done, all| calls.push((done, all))).unwrap();
        assert_eq!(report.config, named.config);
        assert_eq!(report.linears.len(), 7 * named.config.num_layers);
        assert_eq!(calls.last(), Some(&(report.ternaries, report.ternaries)));
        let mut bytes = 0;
        for linear in &report.linears {
            let slot = LinearSlot { layer: linear.layer, proj: linear.proj };
            let mut builder = W2Builder::new(linear.k).unwrap();
            builder.push(&checkpoint.linear(slot).unwrap()).unwrap();
            let packed = builder.finish().unwrap();
            let ternaries = packed.to_ternaries();
            let count = |v| ternaries.iter().filter(|&&t| t == v).count() as u64;
            assert_eq!(linear.counts, [count(-1), count(0), count(1)]);
            assert_eq!(linear.scale, packed.segments.scale[0]);
            bytes += packed.bytes() as u64;
        }
        assert_eq!(report.device.projections, bytes);
        let norms: usize =
            checkpoint.norm_slots().map(|slot| 4 * checkpoint.norm(slot).unwrap().len()).sum();
        assert_eq!(report.device.norms, norms as u64);
        let zeros = report.projections.iter().map(|p| p.zeros);
        assert!(zeros.into_iter().all(|share| (0.25..0.42).contains(&share)));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["kind"], "hf_packed");
        assert_eq!(json["config"]["hidden_size"], named.config.hidden_size);
        assert_eq!(json["tensors"].as_array().unwrap().len(), checkpoint.tensors().len());
    }
}

#[test]
fn the_published_sizes_come_out() {
    let named = NamedConfig::find("2b4t").unwrap();
    let config = &named.config;
    assert_eq!(config.ternary_weights(), 2_084_044_800);
    assert_eq!(config.linear_shape(Proj::K), (640, 2560));
    let device = DeviceBytes::of(config, FloatType::Bf16);
    assert_eq!(device.projections, 2_084_044_800 / 4);
    assert_eq!(device.embedding, 2 * 328_335_360);
    assert_eq!((device.head, device.norms), (0, 4 * 440_320));
    assert_eq!(device.kv_per_token_bf16, 2 * 2 * 30 * 640);
    assert_eq!(device.kv_per_token_int8, 2 * 30 * (640 + 640 / 32));
    // Ternary counts of the other published models, in millions.
    for (name, millions) in [
        ("large", 679),
        ("3b", 3222),
        ("llama3-8b", 6979),
        ("falcon3-1b", 1132),
        ("falcon3-7b", 6650),
        ("falcon-e-1b", 1585),
        ("falcon-e-3b", 2919),
    ] {
        let found = NamedConfig::find(name).unwrap().config.ternary_weights();
        assert_eq!((found + 500_000) / 1_000_000, millions, "{name}");
    }
}

/// Weights that were really trained, in the published layout.
#[test]
fn the_demo_model_is_whole() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    let checkpoint = open(&path).unwrap();
    let report = inspect(&checkpoint, &mut |_, _| {}).unwrap();
    assert_eq!(report.kind, crate::checkpoint::LinearKind::HfPacked);
    assert!(report.projections.iter().all(|p| (0.05..0.95).contains(&p.zeros)));
    assert!(report.linears.iter().all(|l| (1e-4..100.0).contains(&l.scale)));
}
