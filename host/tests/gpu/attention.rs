//! [`contract::attention`]: both caches, every kind of head.

use bitnet_gpu::ops::attention::Attention;
use bitnet_gpu::ops::kv_append::{Heads, KvCache};
use bitnet_gpu::ops::{Backend, Math, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::attention::{TEST_SHAPES, attention};
use bitnet_gpu::reference::kv_append::kept;
use bitnet_gpu::selftest::attention::Inputs;
use bitnet_gpu::selftest::kv_append::Cache;
use bitnet_gpu::selftest::{self, RunError};
use contract::attention::MAX_HEAD_DIM;
use contract::w2a8::MAX_ROWS;

use crate::kv_append::BAD_HEADS;
use crate::support::{check, dimension, generated, on_lane, refused, short, zeros};

on_lane! {
    listed_shapes
    every_head_size
    grouped_heads
    positions_around_key_blocks
    many_rows
    unusual_values
    generated_shapes
    refusals
}

const ELEMENTS: [RowType; 2] = [RowType::Bf16, RowType::F32];

/// A case of `m` queries from `start` on, over a cache that is longer than they see.
fn case(seeded: &mut Seeded, element: RowType, heads: Heads, m: usize, start: usize) -> Inputs {
    let capacity = start + m + seeded.below(90);
    let mut cache = Cache::random(element, heads, capacity, seeded);
    // What no query may see is NaN.
    let (seen, dim) = ((start + m) * heads.head_dim, heads.head_dim);
    for side in [&mut cache.values.k, &mut cache.values.v] {
        side.chunks_exact_mut(capacity * dim).for_each(|head| head[seen..].fill(f32::NAN));
    }
    let qkv = seeded.floats(m * heads.qkv_len(), 2.0);
    Inputs { heads, qkv, cache, start: start as u32, math: Math::Exact, tiled: None }
}

/// Exact by both kinds of kernels, where there are both; then on tensor cores, which give a bound for finite numbers alone.
fn check_case<B: Backend>(b: &B, inputs: &Inputs) {
    let Inputs { heads, start, .. } = inputs;
    let exact = attention(
        &inputs.qkv,
        &inputs.cache.values,
        inputs.start as usize,
        inputs.m(),
        inputs.heads,
    );
    let finite = inputs.qkv.iter().all(|q| q.abs() < 1e3);
    let fast = inputs.cache.element == RowType::Bf16 && finite;
    let tile = heads.head_dim <= 128 && tiles(b, Math::Exact);
    for (math, tiled, run) in [
        (Math::Exact, false, true),
        (Math::Exact, true, tile),
        (Math::TensorCore, true, fast && tiles(b, Math::TensorCore)),
    ] {
        if run {
            let inputs = Inputs { math, tiled: Some(tiled), ..inputs.clone() };
            let (element, m) = (inputs.cache.element, inputs.m());
            let what = format!("{element:?} {heads:?} m={m} start={start} {math:?} tiled={tiled}");
            check(b, &inputs, &[inputs.output(&exact)], what);
        }
    }
}

/// Whether the backend runs the kernels for many rows: old devices have none.
fn tiles<B: Backend>(b: &B, math: Math) -> bool {
    let heads = Heads { heads: 1, kv_heads: 1, head_dim: 1 };
    let inputs = case(&mut Seeded::new(0), RowType::Bf16, heads, 1, 0);
    match selftest::run(b, &Inputs { math, tiled: Some(true), ..inputs }) {
        Ok(_) => true,
        Err(RunError::Op(error)) if error.is_absent() => false,
        Err(error) => panic!("{error}"),
    }
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(m, heads, kv_heads, head_dim, start) in TEST_SHAPES {
        for element in ELEMENTS {
            let heads = Heads { heads, kv_heads, head_dim };
            check_case(b, &case(&mut seeded, element, heads, m, start));
        }
    }
}

fn every_head_size<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for head_dim in 1..=MAX_HEAD_DIM as usize {
        let element = ELEMENTS[head_dim % 2];
        let heads = Heads { heads: 2, kv_heads: 1, head_dim };
        check_case(b, &case(&mut seeded, element, heads, 2, 64 - head_dim % 3));
    }
    // Sizes of published models, with the other element type too.
    for head_dim in [48, 64, 80, 96, 100, 128, 256] {
        for element in ELEMENTS {
            let heads = Heads { heads: 2, kv_heads: 2, head_dim };
            check_case(b, &case(&mut seeded, element, heads, 3, 100));
        }
    }
}

fn grouped_heads<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(3);
    for (heads, kv_heads) in [(1, 1), (4, 1), (4, 4), (5, 1), (12, 4), (20, 5), (16, 2), (32, 32)] {
        for element in ELEMENTS {
            let heads = Heads { heads, kv_heads, head_dim: 20 };
            check_case(b, &case(&mut seeded, element, heads, 2, 70));
        }
    }
}

fn positions_around_key_blocks<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(4);
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 24 };
    for start in [0, 1, 62, 63, 64, 65, 126, 127, 128, 129, 191, 192, 511, 512, 700] {
        for m in [1, 2, 3, 33, 66] {
            check_case(b, &case(&mut seeded, ELEMENTS[m % 2], heads, m, start));
        }
    }
    // Prompts from nothing: row i sees i + 1 keys.
    for m in [1, 63, 64, 65, 130] {
        check_case(b, &case(&mut seeded, ELEMENTS[m % 2], heads, m, 0));
    }
}

/// Rows that share keys with rows of other tiles and heads, at every size of a head that a kernel takes differently.
fn many_rows<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(6);
    for (heads, kv_heads, m) in [(20, 5, 33), (3, 1, 45), (7, 7, 129), (5, 1, 13), (130, 1, 1)] {
        for (head_dim, start) in [(8, 0), (63, 60), (64, 31), (65, 64), (127, 3), (128, 95)] {
            for element in ELEMENTS {
                let heads = Heads { heads, kv_heads, head_dim };
                check_case(b, &case(&mut seeded, element, heads, m, start));
            }
        }
    }
    for head_dim in [129, 200, 256] {
        let heads = Heads { heads: 4, kv_heads: 1, head_dim };
        check_case(b, &case(&mut seeded, RowType::Bf16, heads, 40, 70));
    }
}

/// Scores that all but vanish or overflow, and rows that are not finite.
fn unusual_values<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(5);
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 32 };
    for by in [0.0, 1e-30, 60.0, 1e4, 1e30, f32::INFINITY, f32::NAN] {
        for (element, m) in ELEMENTS.into_iter().flat_map(|e| [(e, 2), (e, 20)]) {
            let mut inputs = case(&mut seeded, element, heads, m, 130);
            let q_len = heads.q_len();
            inputs.qkv[..q_len].iter_mut().for_each(|q| *q *= by);
            check_case(b, &inputs);
            // A value of a later row is none of an earlier one's, whatever it is.
            let (values, at) = (&mut inputs.cache.values, (130 + m - 1) * heads.head_dim);
            values.v[at] = kept(element, by);
            values.k[at + 1] = kept(element, -by);
            inputs.qkv[..q_len].fill(f32::NAN); // and with it nothing on tensor cores
            check_case(b, &inputs);
        }
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("attention") {
        let mut seeded = Seeded::new(10_000 + i as u64);
        let kv_heads = 1 + seeded.below(3);
        let heads = kv_heads * (1 + seeded.below(4));
        let heads = Heads { heads, kv_heads, head_dim: 1 + seeded.below(MAX_HEAD_DIM as usize) };
        let (m, start) = (1 + seeded.below(if i % 16 < 2 { 24 } else { 4 }), seeded.below(300));
        check_case(b, &case(&mut seeded, ELEMENTS[i % 2], heads, m, start));
    }
}

fn refusals<B: Backend>(b: &B) {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 10 };
    let (m, start_at, math, tiled) = (2, 1, Math::Exact, None);
    let (qkv, few_qkv) = (&zeros::<B, f32>(b, 160), &zeros::<B, f32>(b, 159));
    let (out, few) = (&mut zeros::<B, f32>(b, 80), &mut zeros::<B, f32>(b, 79));
    let (start, no_start) = (&zeros::<B, u32>(b, 2), &zeros::<B, u32>(b, 1));
    for element in ELEMENTS {
        let cache = &KvCache::<B>::alloc(b, heads, 99, element).expect("a cache");
        for m in [0, MAX_ROWS + 1] {
            let op = Attention { qkv, cache, out, start, start_at, m, heads, math, tiled };
            refused!(dimension("m"), b.attention(op));
        }
        let op = Attention { qkv: few_qkv, cache, out, start, start_at, m, heads, math, tiled };
        refused!(short("qkv"), b.attention(op));
        let op = Attention { qkv, cache, out: few, start, start_at, m, heads, math, tiled };
        refused!(short("out"), b.attention(op));
        let start = no_start;
        let op = Attention { qkv, cache, out, start, start_at, m, heads, math, tiled };
        refused!(short("start"), b.attention(op));

        let bytes = 2 * 99 * 16 * element.bytes();
        let cut = |k, v| KvCache::<B> { k: zeros(b, k), v: zeros(b, v), element, capacity: 99 };
        let cuts = [cut(bytes - 1, bytes), cut(bytes, bytes - 1)];
        for (bad, cache) in ["k_cache", "v_cache"].into_iter().zip(&cuts) {
            let op = Attention { qkv, cache, out, start, start_at: 0, m, heads, math, tiled };
            refused!(short(bad), b.attention(op));
        }
    }
    let cache = &KvCache::<B>::alloc(b, heads, 99, RowType::F32).expect("a cache");
    let op =
        Attention { qkv, cache, out, start, start_at, m, heads, math: Math::TensorCore, tiled };
    refused!(dimension("cache element"), b.attention(op));
    let wide = Heads { head_dim: MAX_HEAD_DIM as usize + 1, ..heads };
    for (bad, heads) in BAD_HEADS.into_iter().chain([("head_dim", wide)]) {
        let op = Attention { qkv, cache, out, start, start_at, m, heads, math, tiled };
        refused!(dimension(bad), b.attention(op));
    }
}
