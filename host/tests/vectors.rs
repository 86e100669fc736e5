//! Published numbers, run through the public operations: a packed product with its epilogue, and
//! rotary pairs. Made with numpy, apart from this code.

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::ops::rope::{Rope, RopeTable};
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, PackedLinear, QuantActs};
use bitnet_gpu::pack::PackedW2;
use contract::num::f32_to_bf16;
use contract::w2a8::{act_bytes, act_index};

const N: usize = 32;
const K: usize = 256;
const SCALE: f32 = 63.5;
/// bf16 of `(acc / 63.5) * g` with g 1.21875 for rows 0 to 15, 0.8984375 for the others.
const Y: [u16; N] = [
    0xc16f, 0x41e9, 0xc21f, 0xc1ce, 0x41fa, 0x420c, 0xc1b3, 0xc090, 0xc09a, 0x416c, 0xc074, 0xc16e,
    0xc0cd, 0xc1bc, 0xc187, 0xc087, 0x40cb, 0xc185, 0xc0de, 0x416b, 0xc0c6, 0x4193, 0x41cc, 0xc154,
    0x4187, 0x41fc, 0x4138, 0xc0bb, 0x409f, 0x4098, 0xc18c, 0xc109,
];
const ACC: [i32; N] = [
    -778, 1515, -2077, -1340, 1630, 1830, -1169, -234, -250, 767, -199, -776, -334, -1225, -879,
    -220, 448, -1179, -491, 1038, -437, 1303, 1799, -936, 1197, 2229, 811, -414, 352, 336, -1234,
    -605,
];

/// `x <- (1103515245 x + 12345) mod 2^31`, giving its upper bits.
struct Lcg(u32);

impl Lcg {
    fn next(&mut self) -> i32 {
        self.0 = self.0.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
        (self.0 >> 16) as i32
    }
}

/// One product on the CPU, with the given scales by rows.
fn gemv(t: &[i8], q: &[i8], act_scale: f32, parts: &[(usize, f32)]) -> Vec<f32> {
    let backend = CpuBackend::new(Some(1)).expect("a backend");
    let packed = PackedW2::from_ternaries(t, K, parts).expect("ternaries");
    let mut w = PackedLinear::alloc(&backend, "w", K, packed.segments).expect("a matrix");
    w.write_rows(&backend, 0, &packed.words).expect("rows");
    let mut acts = QuantActs::alloc(&backend, 1, K).expect("activations");
    let mut row = vec![0u8; act_bytes(K)];
    for (k, &q) in q.iter().enumerate() {
        row[act_index(k)] = q as u8;
    }
    let words: Vec<u32> = row.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
    backend.write(&mut acts.acts, 0, &words).expect("a copy");
    backend.write(&mut acts.stats, 0, &[[act_scale.to_bits(), sum as u32]]).expect("a copy");
    let mut y = backend.alloc("y", N).expect("an output");
    backend
        .w2a8_gemv(W2a8Gemv { w: &w, acts: &acts, y: &mut y, variant: None })
        .expect("a product");
    let mut out = vec![0.0; N];
    backend.read(&y, 0, &mut out).expect("a copy");
    out
}

#[test]
fn a_product_of_known_integers() {
    let mut draws = Lcg(1);
    let t: Vec<i8> = (0..N * K).map(|_| (draws.next() % 3 - 1) as i8).collect();
    let q: Vec<i8> = (0..K).map(|_| (draws.next() % 255 - 127) as i8).collect();
    assert_eq!(t[..8], [1, 0, -1, 0, 0, 1, -1, -1]);
    assert_eq!(q[..8], [77, 9, -78, 40, 58, -54, -45, 116]);
    // With scales of one the epilogue leaves the integers as they are.
    let acc = gemv(&t, &q, 1.0, &[(N, 1.0)]);
    assert_eq!(acc, ACC.map(|acc| acc as f32));
    let y = gemv(&t, &q, SCALE, &[(16, 1.21875), (16, 0.8984375)]);
    assert_eq!(y.iter().map(|&y| f32_to_bf16(y)).collect::<Vec<_>>(), Y);
}

#[test]
fn rotary_pairs_at_position_three() {
    let backend = CpuBackend::new(Some(1)).expect("a backend");
    let table = RopeTable::new(&backend, 4, 8, 500_000.0).expect("tables");
    let mut x = backend.alloc("x", 8).expect("a head");
    backend.write(&mut x, 0, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).expect("a copy");
    let mut start = backend.alloc("start", 1).expect("a position");
    backend.write(&mut start, 0, &[3u32]).expect("a copy");
    let rope = Rope {
        x: &mut x,
        table: &table,
        start: &start,
        start_at: 0,
        m: 1,
        heads: 1,
        row_stride: 8,
    };
    backend.rope(rope).expect("a rotation");
    let mut out = [0.0f32; 8];
    backend.read(&x, 0, &mut out).expect("a copy");
    // Half-split pairs; the vector is given to seven decimals.
    let expected = [
        -1.695_592_5,
        1.311_812,
        2.970_274_6,
        3.998_723_6,
        -4.808_842_5,
        6.187_014_6,
        7.012_664_9,
        8.000_638_1_f64,
    ];
    for (found, expected) in out.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 6e-7, "{found} and {expected}");
    }
}
