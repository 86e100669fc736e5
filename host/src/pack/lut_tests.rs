//! Layouts of lookup matmul in other projects: vectors made by their own preprocessing, round trips,
//! refusals.

use super::bitnet_cpp::{BitnetCpp, TL1_PRESETS, TL2_PRESETS, Tiling, export};
use super::bits::PackedBits;
use super::tests::{Lcg, crc32, hex};
use super::*;
use crate::reference::Inputs;
use contract::lut_matmul::Form;

/// `(form, n, k, tiling, seed, bytes, CRC-32, first 16 bytes)`.
type Vector = (Form, usize, usize, [usize; 3], u64, usize, u32, &'static str);

const VECTORS: &[Vector] = &[
    (Form::Tl1, 64, 128, [32, 64, 32], 11, 2048, 0x24bb_a3dc, "05186017714554363204727000505012"),
    (Form::Tl1, 128, 96, [64, 32, 64], 12, 3072, 0x1a59_9ec5, "15582832882325368185766377841622"),
    (
        Form::Tl1,
        3200,
        640,
        [160, 64, 32],
        13,
        512_000,
        0xdcbe_f653,
        "22561710872843720363634545110562",
    ),
    (Form::Tl2, 64, 352, [32, 96, 32], 14, 5376, 0x5666_5cc5, "d535411c44a11b91849c16c46d32a82a"),
    (
        Form::Tl2,
        256,
        384,
        [128, 192, 32],
        15,
        23_210,
        0x0e49_ec4e,
        "b9abc2623b92d79b8c3a7a317a3c9971",
    ),
    (
        Form::Tl2,
        320,
        3200,
        [320, 96, 32],
        16,
        216_746,
        0x8d7d_8c0b,
        "50220336bdd698825a4aa7d2018d5959",
    ),
];

fn tiling([rows, columns, inner]: [usize; 3]) -> Tiling {
    Tiling { rows, columns, inner }
}

#[test]
fn bitnet_cpp_bytes_are_those_of_its_converter() {
    for &(form, n, k, t, seed, len, crc, first) in VECTORS {
        let ternaries = Lcg(seed).ternaries(n * k);
        let packed = PackedW2::from_ternaries(&ternaries, k, &[(n, 0.5)]).unwrap();
        let bytes = export(form, &packed, tiling(t)).unwrap();
        assert_eq!((bytes.len(), hex(&bytes[..16])), (len, first.to_owned()), "{form:?} {n}x{k}");
        assert_eq!(crc32(&bytes), crc, "{form:?} {n}x{k}");
        let source = BitnetCpp::new(form, &bytes, n, k, tiling(t), 0.5).unwrap();
        assert_eq!(ternary_sha256(&source).unwrap(), packed.ternary_sha256());
        // And on to our own tiles.
        let mut builder = W2Builder::new(k).unwrap();
        builder.push(&source).unwrap();
        let tiles = PackedTl::from_w2(form, &builder.finish().unwrap()).unwrap();
        assert_eq!(tiles.to_ternaries().unwrap(), ternaries);
    }
}

#[test]
fn every_preset_takes_its_shape() {
    for (form, presets) in [(Form::Tl1, TL1_PRESETS), (Form::Tl2, TL2_PRESETS)] {
        for &((n, k), tiling) in presets {
            assert_eq!(Tiling::preset(form, n, k), Some(tiling));
            let refused = BitnetCpp::new(form, &[], n, k, tiling, 1.0).unwrap_err();
            assert!(matches!(refused, PackError::Length { .. }), "{form:?} {n}x{k}: {refused}");
        }
        assert_eq!(Tiling::preset(form, 2560, 2560), None);
    }
}

#[test]
fn padding_may_end_where_writers_end_it() {
    let (n, k, t) = (64, 352, tiling([32, 96, 32]));
    let packed = PackedW2::from_ternaries(&vec![1; n * k], k, &[(n, 0.5)]).unwrap();
    let mut bytes = export(Form::Tl2, &packed, t).unwrap();
    let used = n * (288 * 5 / 24 + 64 / 4);
    for len in [used, bytes.len(), bytes.len() + 32] {
        bytes.resize(len, 0);
        let source = BitnetCpp::new(Form::Tl2, &bytes, n, k, t, 1.0).unwrap();
        assert_eq!(ternary_sha256(&source).unwrap(), packed.ternary_sha256());
    }
    bytes.push(0);
    let refused = BitnetCpp::new(Form::Tl2, &bytes, n, k, t, 1.0).unwrap_err();
    assert!(matches!(refused, PackError::Length { .. }), "{refused}");
}

#[test]
fn hostile_bytes_and_tilings_are_refused() {
    let new = |form, bytes: &[u8], n, k, t, scale| {
        BitnetCpp::new(form, bytes, n, k, tiling(t), scale).map(drop)
    };
    let bytes = vec![0u8; 64 * 128 / 4];
    let good = [32, 64, 32];
    assert!(new(Form::Tl1, &bytes, 64, 128, good, 1.0).is_ok());
    for t in [[0, 64, 32], [32, 0, 32], [32, 64, 0], [32, 64, 48], [48, 64, 32], [32, 63, 32]] {
        let refused = new(Form::Tl1, &bytes, 64, 128, t, 1.0);
        assert!(matches!(refused, Err(PackError::Multiple { .. })), "{t:?}: {refused:?}");
    }
    for (n, k) in [(63, 128), (64, 100), (64, 127)] {
        let refused = new(Form::Tl1, &bytes, n, k, good, 1.0);
        assert!(matches!(refused, Err(PackError::Multiple { .. })), "{n}x{k}: {refused:?}");
    }
    for (n, k) in [(0, 128), (64, 0), (usize::MAX, 128), (64, usize::MAX)] {
        for form in Form::ALL {
            let refused = new(form, &bytes, n, k, good, 1.0);
            assert!(matches!(refused, Err(PackError::Shape { .. })), "{n}x{k}: {refused:?}");
        }
    }
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let refused = new(Form::Tl1, &bytes, 64, 128, good, scale);
        assert!(matches!(refused, Err(PackError::Scale { .. })), "{refused:?}");
    }
    for (k, t) in
        [(128, [32, 96, 32]), (350, [32, 96, 32]), (352, [32, 36, 32]), (352, [32, 96, 64])]
    {
        let refused = new(Form::Tl2, &bytes, 64, k, t, 1.0);
        assert!(matches!(refused, Err(PackError::Multiple { .. })), "{k} {t:?}: {refused:?}");
    }
    // A byte of 0xff holds no codes.
    let bytes = vec![0xff; bytes.len()];
    let source = BitnetCpp::new(Form::Tl1, &bytes, 64, 128, tiling(good), 1.0).unwrap();
    let refused = ternary_sha256(&source).unwrap_err();
    assert_eq!(refused, PackError::InvalidCode { row: 0, col: 0, code: 15 });
    let n = 64;
    let bytes = vec![0xee; n * (288 * 5 / 24 + 64 / 4)];
    let source = BitnetCpp::new(Form::Tl2, &bytes, n, 352, tiling([32, 96, 32]), 1.0).unwrap();
    let refused = ternary_sha256(&source).unwrap_err();
    assert_eq!(refused, PackError::InvalidCode { row: 0, col: 0, code: 14 });
}

#[test]
fn t_mac_bytes_are_those_of_its_preprocessing() {
    // (bits, n, k, bm, kfactor, group, zero points, seed, CRC-32, first 8 bytes, CRC-32 of scales)
    for (bits, n, k, bm, kfactor, group, zeros, seed, crc, first, crc_scales) in [
        (1, 128, 128, 128, 16, 64, false, 21, 0xd8e9_f807, "582d94e37a0db6c1", 0x093c_0e12),
        (2, 128, 256, 128, 16, 128, true, 22, 0xa52a_88ca, "a23b881188119a23", 0xe5bf_dcde),
        (3, 128, 192, 192, 8, 64, false, 23, 0x47e4_787e, "235dcece7c77bbe4", 0x47e7_9a49),
        (4, 64, 128, 256, 8, 32, true, 24, 0x9af8_b170, "5dbfdc07e6fe7f65", 0xd42c_57be),
    ] {
        let mut draws = Lcg(seed);
        let codes: Vec<u8> = (0..n * k).map(|_| (draws.next() % (1 << bits)) as u8).collect();
        let mut values = |divisor: f32| -> Vec<f32> {
            (0..n * k / group).map(|_| (draws.next() % 1000) as f32 / divisor).collect()
        };
        let scales = values(8.0);
        let zero_points = zeros.then(|| values(16.0));
        let packed = PackedBits::from_codes(bits, &codes, k, group, scales, zero_points).unwrap();
        let layout = t_mac::Layout { bits, bm, kfactor };
        let (bytes, scales) = t_mac::export(layout, &packed).unwrap();
        assert_eq!((crc32(&bytes), hex(&bytes[..8])), (crc, first.to_owned()), "{bits} bits");
        let scale_bytes: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        assert_eq!(crc32(&scale_bytes), crc_scales, "{bits} bits");
        let back = t_mac::import(layout, &bytes, &scales, [n, k], group, zeros).unwrap();
        assert_eq!(back, packed);
    }
}

#[test]
fn t_mac_layouts_that_do_not_fit_are_refused() {
    let good = t_mac::Layout { bits: 2, bm: 128, kfactor: 8 };
    let codes = Inputs::new(1).int8s(128 * 64).iter().map(|q| (q & 3) as u8).collect::<Vec<_>>();
    let packed = PackedBits::from_codes(2, &codes, 64, 64, vec![1.0; 128], None).unwrap();
    let (bytes, scales) = t_mac::export(good, &packed).unwrap();
    let import = |layout, shape| t_mac::import(layout, &bytes, &scales, shape, 64, false);
    assert!(import(good, [128, 64]).is_ok());
    for layout in [
        t_mac::Layout { bm: 0, ..good },
        t_mac::Layout { bm: 48, ..good },
        t_mac::Layout { bm: 512, ..good },
        t_mac::Layout { kfactor: 0, ..good },
        t_mac::Layout { kfactor: 3, ..good },
        t_mac::Layout { kfactor: usize::MAX, ..good },
    ] {
        let refused = import(layout, [128, 64]);
        assert!(matches!(refused, Err(PackError::Multiple { .. })), "{layout:?}: {refused:?}");
    }
    let refused = import(t_mac::Layout { bits: 5, ..good }, [128, 64]);
    assert!(matches!(refused, Err(PackError::Bits { bits: 5 })), "{refused:?}");
    let refused = import(good, [64, 64]);
    assert!(matches!(refused, Err(PackError::Length { .. })), "{refused:?}");
    let refused = import(good, [0, 64]);
    assert!(matches!(refused, Err(PackError::Shape { .. })), "{refused:?}");
    let refused = t_mac::import(good, &bytes, &scales[1..], [128, 64], 64, false);
    assert!(matches!(refused, Err(PackError::Length { .. })), "{refused:?}");
    let refused = t_mac::import(good, &bytes, &scales, [128, 64], 0, false);
    assert!(refused.is_err(), "{refused:?}");
    let wrong = t_mac::Layout { bits: 1, ..good };
    assert_eq!(t_mac::export(wrong, &packed).unwrap_err(), PackError::Bits { bits: 1 });
}
