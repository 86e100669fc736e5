//! Published vectors, and round trips on generated shapes, of every layout.

use half::f16;
use proptest::prelude::*;

use super::*;

/// The generator the vectors were made with.
pub(super) struct Lcg(pub(super) u64);

impl Lcg {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = (1_103_515_245 * self.0 + 12_345) % (1 << 31);
        self.0 >> 16
    }

    pub(super) fn ternaries(&mut self, n: usize) -> Vec<i8> {
        (0..n).map(|_| (self.next() % 3) as i8 - 1).collect()
    }

    fn int8(&mut self, n: usize) -> Vec<i32> {
        (0..n).map(|_| (self.next() % 255) as i32 - 127).collect()
    }
}

pub(super) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg()))
    })
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn weights_are_rounded_half_to_even_and_floored() {
    let (t, g) = ternary::ternarise(&[0.9, -0.2, 0.0, -1.6, 0.3, 0.45, -0.5, 0.05], 4).unwrap();
    assert_eq!((t, g), (vec![1, 0, 0, -1, 1, 1, -1, 0], 0.5));
    let (t, g) = ternary::ternarise(&[1., -1., 3., -3., 2., 2., 1., -3.], 4).unwrap();
    assert_eq!((t, g), (vec![0, 0, 1, -1, 1, 1, 0, -1], 2.0));
    let (t, g) = ternary::ternarise(&[0.0; 6], 3).unwrap();
    assert_eq!((t, g.to_bits()), (vec![0; 6], 0x3727_c5ac));
}

#[test]
fn master_weights_that_are_not_finite_are_named() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![0.5; 5 * 37];
        values[3 * 37 + 36] = bad;
        match ternary::ternarise(&values, 37) {
            Err(PackError::NotFinite { row: 3, col: 36, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn one_published_word() {
    let t: [i8; 16] = [1, 0, -1, -1, 0, 1, 1, 0, -1, 0, 1, 1, 1, -1, 0, -1];
    let codes = t.map(|t| (t + 2) as u8);
    let word = word::word_of_codes(&codes);
    assert_eq!(word, 0x79bd_6edb);
    assert_eq!(word.to_le_bytes(), [0xdb, 0x6e, 0xbd, 0x79]);
    assert_eq!(word::transpose(word), 0x67f9_be5b);
    let lanes = [0, 1, 2, 3].map(|i| (word >> (2 * i)) & 0x0303_0303);
    assert_eq!(lanes, [0x0101_0203, 0x0203_0302, 0x0303_0201, 0x0102_0103]);
    // Words of sixteen neighbours have the same order with code t + 1.
    assert_eq!(word::word_of_codes(&t.map(|t| (t + 1) as u8)), 0x79bd_6edb - 0x5555_5555);
    for (t, word) in [(0, 0xaaaa_aaaa), (1, 0xffff_ffff), (-1, 0x5555_5555)] {
        let tile = int2::pack(&vec![t; 16 * 32], 16, 32).unwrap();
        assert_eq!(tile, vec![word; 32]);
    }
}

#[test]
fn published_int2_matrix_and_its_products() {
    let (n, k) = (32, 256);
    let mut lcg = Lcg(1);
    let w = lcg.ternaries(n * k);
    let a = lcg.int8(k);
    assert_eq!(w[..8], [1, 0, -1, 0, 0, 1, -1, -1]);
    assert_eq!(w[31 * k + 252..], [1, 0, 0, 1]);
    assert_eq!(w.iter().map(|&t| i32::from(t)).sum::<i32>(), 154);
    assert_eq!(a[..8], [77, 9, -78, 40, 58, -54, -45, 116]);
    assert_eq!(a.iter().sum::<i32>(), 869);

    let words = int2::pack(&w, n, k).unwrap();
    assert_eq!(words[..4], [0xf6e5_5e5b, 0x6b6f_b77a, 0x6a75_adea, 0xba69_996f]);
    assert_eq!(words[8..10], [0xf5dd_d99d, 0xefff_5bbd]);
    assert_eq!(words[16..18], [0xdaf9_eef7, 0xe6a6_69e6]);
    assert_eq!(words[32..34], [0xd757_fabb, 0xe9db_6dd9]);
    assert_eq!(words[256..258], [0xf5d5_755d, 0xdd65_db59]);
    assert_eq!(words[511], 0xf9be_9bef);
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!((bytes.len(), crc32(&bytes)), (2048, 0x4357_6380));
    assert_eq!(int2::unpack(&words, n, k).unwrap(), w);

    // The products, from the device layout as the kernels use it.
    let packed = PackedW2::from_ternaries(&w, k, &[(16, 1.21875), (16, 0.898_437_5)]).unwrap();
    let acc: Vec<i32> = (0..n)
        .map(|row| {
            let codes: i32 =
                (0..k).map(|k| a[k] * i32::from(word::code_at(packed.row(row), k))).sum();
            codes - a.iter().sum::<i32>()
        })
        .collect();
    let expected = [
        -778, 1515, -2077, -1340, 1630, 1830, -1169, -234, -250, 767, -199, -776, -334, -1225,
        -879, -220, 448, -1179, -491, 1038, -437, 1303, 1799, -936, 1197, 2229, 811, -414, 352,
        336, -1234, -605,
    ];
    assert_eq!(acc, expected);
    let bf16: Vec<String> = acc
        .iter()
        .enumerate()
        .map(|(row, &acc)| {
            let scale = packed.segments.scale_of(row as u32);
            let y = contract::w2a8::dequantise(acc, 63.5, scale);
            format!("{:04x}", half::bf16::from_f32(y).to_bits())
        })
        .collect();
    assert_eq!(
        bf16.join(" "),
        "c16f 41e9 c21f c1ce 41fa 420c c1b3 c090 c09a 416c c074 c16e c0cd c1bc c187 c087 \
         40cb c185 c0de 416b c0c6 4193 41cc c154 4187 41fc 4138 c0bb 409f 4098 c18c c109"
    );
}

#[test]
fn published_int2_places() {
    let at = |n: usize, k: usize| {
        (int2::word_index(n, k / 16, 2560), contract::w2a8_trits::code_shift(k % 16))
    };
    for ((n, k), place) in [
        ((0, 0), (0, 0)),
        ((0, 1), (0, 8)),
        ((0, 4), (0, 2)),
        ((1, 0), (1, 0)),
        ((0, 16), (8, 0)),
        ((8, 0), (16, 0)),
        ((0, 32), (32, 0)),
        ((16, 0), (2560, 0)),
        ((3, 77), (67, 14)),
        ((2559, 2559), (409_599, 30)),
    ] {
        assert_eq!(at(n, k), place, "({n}, {k})");
    }
}

#[test]
fn published_hugging_face_bytes() {
    let t = [1, 0, -1, 1, 0, 0, 1, -1, -1, -1, 0, 1, 1, 1, 0, -1];
    assert_eq!(hf::pack(&t, 8, 2).unwrap(), [0x86, 0x85, 0x58, 0x22]);
    assert_eq!(
        hf::unpack(&[0xa1, 0x18, 0x90, 0x0a], 8, 2).unwrap(),
        [0, -1, -1, 1, -1, 1, -1, 1, 1, 0, 0, -1, 1, -1, 1, -1]
    );
}

#[test]
fn hugging_face_code_three_is_named() {
    let (n, k) = (11, 37);
    let mut bytes = hf::pack(&vec![1; n * k], n, k).unwrap();
    // Row 7 is row 1 of quarter 2 when R = 3.
    bytes[k + 20] |= 3 << 4;
    let error = hf::unpack(&bytes, n, k).unwrap_err();
    assert_eq!(error, PackError::InvalidCode { row: 7, col: 20, code: 3 });
    // Row 11 does not exist; its pairs are not looked at.
    let mut bytes = hf::pack(&vec![1; n * k], n, k).unwrap();
    bytes[2 * k + 20] |= 3 << 6;
    assert_eq!(hf::unpack(&bytes, n, k).unwrap(), vec![1; n * k]);
}

#[test]
fn published_i2_s_block() {
    let t = Lcg(7).ternaries(128);
    assert_eq!(t[..12], [0, 1, 1, -1, 1, 1, -1, 1, 1, 1, 1, 0]);
    let bytes = i2_s::pack(&t, 1, 128, 1.25).unwrap();
    assert_eq!(
        hex(&bytes[..32]),
        "5aa98116998415958aa68a5a9689a24866aa54910aaa220844a040198a8a8a52"
    );
    assert_eq!(bytes[32..36], [0, 0, 0xa0, 0x3f]);
    assert_eq!(bytes.len(), 64);
    assert_eq!(i2_s::unpack(&bytes, 1, 128).unwrap(), (t, 1.25));
}

#[test]
fn published_tq_blocks() {
    let t = Lcg(9).ternaries(256);
    assert_eq!(t[..8], [-1, 0, 0, 0, 0, 0, -1, -1]);
    let d = f16::from_f32(1.25);
    let two = tq::TQ2_0.pack(&t, 1, 256, d).unwrap();
    assert_eq!(
        hex(&two),
        "1419096199650460a98058964425141a09a1a1451245962691989492a9640a41\
         594a16a886a818608118888804006254a89040912900424821a0088a66110660003d"
    );
    let one = tq::TQ1_0.pack(&t, 1, 256, d).unwrap();
    assert_eq!(
        hex(&one),
        "279a916ca1881d17a90746d7208529ee8f6f6f76b675dadb67492dbdaa34e659\
         f5af5fc397c0b54d09bbe6e679043167aebe72de003d"
    );
    assert_eq!(tq::TQ2_0.unpack(&two, 1, 256).unwrap(), (t.clone(), Some(d)));
    assert_eq!(tq::TQ1_0.unpack(&one, 1, 256).unwrap(), (t, Some(d)));
}

#[test]
fn tq_scales_must_agree_but_for_blocks_of_zeros() {
    let mut t = Lcg(3).ternaries(2 * 768);
    t[768..1024].fill(0);
    let d = f16::from_f32(0.75);
    for (blocks, block) in [(&tq::TQ1_0, 54), (&tq::TQ2_0, 66)] {
        assert_eq!(blocks.block_bytes(), block);
        let unpack = |bytes: &[u8]| blocks.unpack(bytes, 2, 768);
        let bytes = blocks.pack(&t, 2, 768, d).unwrap();
        let mut zeros = bytes.clone();
        zeros[4 * block - 2..4 * block].fill(0);
        assert_eq!(unpack(&zeros).unwrap(), (t.clone(), Some(d)));
        let mut other = bytes.clone();
        other[5 * block - 2] ^= 1;
        match unpack(&other).unwrap_err() {
            PackError::ScalesDiffer { row: 1, block: 1, expected, .. } => {
                assert_eq!(expected, 0.75)
            }
            error => panic!("{error}"),
        }
        for bad in [f16::NAN, f16::INFINITY, f16::from_f32(-0.75), f16::ZERO] {
            let mut bytes = bytes.clone();
            bytes[block - 2..block].copy_from_slice(&bad.to_le_bytes());
            assert!(matches!(unpack(&bytes), Err(PackError::Scale { .. })), "{bad}");
        }
    }
}

#[test]
fn shapes_a_layout_cannot_hold_are_refused() {
    let d = f16::ONE;
    let t = vec![0; 16 * 8640];
    assert!(i2_s::pack(&t, 16, 8640, 1.0).is_err());
    assert!(tq::TQ1_0.pack(&t, 16, 8640, d).is_err());
    assert!(tq::TQ2_0.pack(&t, 16, 8640, d).is_err());
    assert!(int2::pack(&t, 16, 8640).is_ok());
    assert!(int2::pack(&t[..8640 * 15], 15, 8640).is_err());
    assert!(int2::pack(&t[..16 * 48], 16, 48).is_err());
    for (n, k) in [(0, 0), (0, 4), (4, 0), (1, (1 << 20) + 1), ((1 << 24) + 1, 1)] {
        assert!(hf::unpack(&[], n, k).is_err());
        assert!(i2_s::unpack(&[], n, k).is_err());
        assert!(tq::TQ1_0.unpack(&[], n, k).is_err());
        assert!(tq::TQ2_0.unpack(&[], n, k).is_err());
        assert!(int2::unpack(&[], n, k).is_err());
        assert!(hf::pack(&[], n, k).is_err());
    }
    assert!(ternary::ternarise(&[1.0; 5], 0).is_err());
    assert!(ternary::ternarise(&[1.0; 5], 2).is_err());
    assert!(PackedW2::from_ternaries(&[], 0, &[(1, 1.0)]).is_err());
    assert!(PackedW2::from_ternaries(&[], 5, &[]).is_err());
    assert!(PackedW2::from_ternaries(&[0; 5], 5, &[(1, f32::NAN)]).is_err());
    assert!(W2Builder::new((1 << 20) + 1).is_err());
    assert!(W2Builder::new(4).unwrap().finish().is_err());
}

#[test]
fn fused_parts_keep_their_scales_and_must_have_one_k() {
    let mut lcg = Lcg(5);
    let parts: Vec<PackedW2> = [(6, 2.0), (3, 0.5), (3, 0.25)]
        .iter()
        .map(|&(n, g)| PackedW2::from_ternaries(&lcg.ternaries(n * 70), 70, &[(n, g)]).unwrap())
        .collect();
    let mut builder = W2Builder::new(70).unwrap().with_rows(12).unwrap();
    for part in &parts {
        builder.push(part).unwrap();
    }
    let other = PackedW2::from_ternaries(&[0; 69], 69, &[(1, 1.0)]).unwrap();
    assert_eq!(builder.push(&other).unwrap_err(), PackError::FusedK { expected: 70, found: 69 });
    let fused = builder.finish().unwrap();
    assert_eq!(fused.n, 12);
    let scales: Vec<f32> = (0..12).map(|n| fused.segments.scale_of(n)).collect();
    assert_eq!(scales, [2., 2., 2., 2., 2., 2., 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]);
    let all: Vec<i8> = parts.iter().flat_map(PackedW2::to_ternaries).collect();
    assert_eq!(fused.to_ternaries(), all);
}

#[test]
fn the_hash_is_that_of_natural_codes() {
    use sha2::{Digest, Sha256};
    let (n, k) = (3, 70);
    let t = Lcg(11).ternaries(n * k);
    let mut plain = Vec::new();
    plain.extend((n as u64).to_le_bytes());
    plain.extend((k as u64).to_le_bytes());
    for row in t.chunks(k) {
        let mut row = row.to_vec();
        row.resize(128, 0);
        plain.extend(row.chunks(4).map(|four| {
            four.iter().enumerate().fold(0u8, |byte, (i, t)| byte | (((t + 1) as u8) << (2 * i)))
        }));
    }
    let packed = PackedW2::from_ternaries(&t, k, &[(n, 1.0)]).unwrap();
    assert_eq!(packed.ternary_sha256(), hex(&Sha256::digest(&plain)));
    assert_eq!(ternary_sha256(&packed).unwrap(), packed.ternary_sha256());
    let mut other = t;
    other[69] = -other[69] | 1;
    let other = PackedW2::from_ternaries(&other, k, &[(n, 1.0)]).unwrap();
    assert_ne!(other.ternary_sha256(), packed.ternary_sha256());
}

fn matrix() -> impl Strategy<Value = (usize, usize, Vec<i8>)> {
    (1usize..40, 1usize..300)
        .prop_flat_map(|(n, k)| (Just(n), Just(k), proptest::collection::vec(-1i8..=1, n * k)))
}

proptest! {
    #[test]
    fn any_shape_survives_the_device_and_hugging_face_layouts((n, k, t) in matrix()) {
        let packed = PackedW2::from_ternaries(&t, k, &[(n, 1.0)]).unwrap();
        prop_assert_eq!(&packed.to_ternaries(), &t);
        prop_assert_eq!(hf::unpack(&hf::pack(&t, n, k).unwrap(), n, k).unwrap(), t.clone());
        let counts = w2::count_ternaries(&packed.words, k);
        let expected = [-1, 0, 1].map(|v| t.iter().filter(|&&x| x == v).count() as u64);
        prop_assert_eq!(counts, expected);
    }

    #[test]
    fn block_layouts_survive(n in 1usize..9, blocks in 1usize..5, seed: u32, bits: u16) {
        let mut lcg = Lcg(u64::from(seed));
        let g = f16::from_f32(f32::from(bits) / 1024.0 + 0.01);
        let k = 256 * blocks;
        let t = lcg.ternaries(n * k);
        let scale = if t.iter().all(|&t| t == 0) { None } else { Some(g) };
        prop_assert_eq!(tq::TQ1_0.unpack(&tq::TQ1_0.pack(&t, n, k, g).unwrap(), n, k).unwrap(), (t.clone(), scale));
        prop_assert_eq!(tq::TQ2_0.unpack(&tq::TQ2_0.pack(&t, n, k, g).unwrap(), n, k).unwrap(), (t, scale));
        let k = 128 * blocks;
        let t = lcg.ternaries(n * k);
        prop_assert_eq!(i2_s::unpack(&i2_s::pack(&t, n, k, 0.5).unwrap(), n, k).unwrap(), (t, 0.5));
        let (n, k) = (16 * n, 32 * blocks);
        let t = lcg.ternaries(n * k);
        prop_assert_eq!(int2::unpack(&int2::pack(&t, n, k).unwrap(), n, k).unwrap(), t);
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 256 * 2)) {
        // Equal lengths for every layout: the content alone decides.
        let _ = hf::unpack(&bytes, 8, 256);
        if let Ok((t, _)) = tq::TQ1_0.unpack(&bytes[..108], 2, 256) {
            prop_assert!(t.iter().all(|t| (-1..=1).contains(t)));
        }
        let _ = tq::TQ2_0.unpack(&bytes[..132], 2, 256);
        let _ = i2_s::unpack(&bytes[..160], 4, 128);
        let words: Vec<u32> = bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let _ = int2::unpack(&words[..32], 16, 32);
    }
}
