//! [`contract::attention`]: both caches, every kind of head.

use bitnet_gpu::ops::attention::Attention;
use bitnet_gpu::ops::kv_append::{Heads, KvCache};
use bitnet_gpu::ops::{Backend, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::attention::{TEST_SHAPES, attention};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::attention::Inputs;
use bitnet_gpu::selftest::kv_append::Cache;
use contract::attention::MAX_HEAD_DIM;
use contract::w2a8::MAX_ROWS;

use crate::kv_append::BAD_HEADS;
use crate::support::{check, dimension, generated, on_lane, refused, short, zeros};

on_lane! {
    listed_shapes
    every_head_size
    grouped_heads
    positions_around_key_blocks
    unusual_values
    generated_shapes
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let (heads, m) = (inputs.heads, inputs.m());
    let out = attention(&inputs.qkv, &inputs.cache.values, inputs.start as usize, m, heads);
    vec![Output::floats("out", &[m, heads.heads, heads.head_dim], &out)]
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
    Inputs { heads, qkv, cache, start: start as u32 }
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs) {
    let Inputs { heads, start, .. } = inputs;
    let what = format!("{:?} {heads:?} m={} start={start}", inputs.cache.element, inputs.m());
    check(b, inputs, &expected(inputs), what);
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
        for m in [1, 2, 3, 66] {
            check_case(b, &case(&mut seeded, ELEMENTS[m % 2], heads, m, start));
        }
    }
    // Prompts from nothing: row i sees i + 1 keys.
    for m in [1, 63, 64, 65, 130] {
        check_case(b, &case(&mut seeded, ELEMENTS[m % 2], heads, m, 0));
    }
}

/// Scores that all but vanish or overflow, and rows that are not finite.
fn unusual_values<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(5);
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 32 };
    for by in [0.0, 1e-30, 60.0, 1e4, 1e30, f32::INFINITY, f32::NAN] {
        for element in ELEMENTS {
            let mut inputs = case(&mut seeded, element, heads, 2, 130);
            let q_len = heads.q_len();
            inputs.qkv[..q_len].iter_mut().for_each(|q| *q *= by);
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
        let (m, start) = (1 + seeded.below(4), seeded.below(300));
        check_case(b, &case(&mut seeded, ELEMENTS[i % 2], heads, m, start));
    }
}

fn refusals<B: Backend>(b: &B) {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 10 };
    let (m, start_at) = (2, 1);
    let (qkv, few_qkv) = (&zeros::<B, f32>(b, 160), &zeros::<B, f32>(b, 159));
    let (out, few) = (&mut zeros::<B, f32>(b, 80), &mut zeros::<B, f32>(b, 79));
    let (start, no_start) = (&zeros::<B, u32>(b, 2), &zeros::<B, u32>(b, 1));
    for element in ELEMENTS {
        let cache = &KvCache::<B>::alloc(b, heads, 99, element).expect("a cache");
        for m in [0, MAX_ROWS + 1] {
            let op = Attention { qkv, cache, out, start, start_at, m, heads };
            refused!(dimension("m"), b.attention(op));
        }
        let op = Attention { qkv: few_qkv, cache, out, start, start_at, m, heads };
        refused!(short("qkv"), b.attention(op));
        let op = Attention { qkv, cache, out: few, start, start_at, m, heads };
        refused!(short("out"), b.attention(op));
        let start = no_start;
        let op = Attention { qkv, cache, out, start, start_at, m, heads };
        refused!(short("start"), b.attention(op));

        let bytes = 2 * 99 * 16 * element.bytes();
        let cut = |k, v| KvCache::<B> { k: zeros(b, k), v: zeros(b, v), element, capacity: 99 };
        let cuts = [cut(bytes - 1, bytes), cut(bytes, bytes - 1)];
        for (bad, cache) in ["k_cache", "v_cache"].into_iter().zip(&cuts) {
            let op = Attention { qkv, cache, out, start, start_at: 0, m, heads };
            refused!(short(bad), b.attention(op));
        }
    }
    let cache = &KvCache::<B>::alloc(b, heads, 99, RowType::F32).expect("a cache");
    let wide = Heads { head_dim: MAX_HEAD_DIM as usize + 1, ..heads };
    for (bad, heads) in BAD_HEADS.into_iter().chain([("head_dim", wide)]) {
        let op = Attention { qkv, cache, out, start, start_at, m, heads };
        refused!(dimension(bad), b.attention(op));
    }
}
