//! [`contract::attention_step`]: both caches, every kind of head, positions around key blocks.

use bitnet_gpu::ops::attention_step::{AttentionScratch, AttentionStep};
use bitnet_gpu::ops::kv_append::{Heads, KvCache};
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, OpError, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::attention_step::{TEST_SHAPES, attention_step};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::attention_step::Inputs;
use bitnet_gpu::selftest::kv_append::Cache;
use bitnet_gpu::selftest::rope::Angles;
use contract::attention_step::MAX_HEAD_DIM;
use contract::w2a8::MAX_ROWS;

use crate::kv_append::BAD_HEADS;
use crate::support::{check, dimension, generated, on_lane, refused, short, zeros};

on_lane! {
    listed_shapes
    every_head_size
    grouped_heads
    positions_around_key_blocks
    rows_past_the_capacity
    a_grid_for_fewer_positions_gives_nan
    unusual_values
    generated_shapes
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let &Inputs { heads, start, .. } = inputs;
    let mut values = inputs.cache.values.clone();
    let tables = (&inputs.angles.cos[..], &inputs.angles.sin[..]);
    let start = start as usize;
    let element = inputs.cache.element;
    let mut out = attention_step(&inputs.qkv, &mut values, element, tables, start, heads);
    if (start + 1).min(values.capacity).div_ceil(64) > inputs.positions.div_ceil(64) {
        out.fill(f32::NAN);
    }
    let side = |tensor, side: &[f32]| {
        inputs.cache.output(tensor, heads, inputs.cache.padded(heads, side, |pos| pos == start))
    };
    vec![
        Output::floats("out", &[heads.heads, heads.head_dim], &out),
        Output::floats("qkv", &[heads.qkv_len()], &inputs.qkv),
        side("k_cache", &values.k),
        side("v_cache", &values.v),
        Output::words("counters", &[heads.heads], vec![0; heads.heads]),
    ]
}

const ELEMENTS: [RowType; 2] = [RowType::Bf16, RowType::F32];

/// A step at `start`, over a cache that is longer than it sees.
fn case(seeded: &mut Seeded, element: RowType, heads: Heads, start: usize) -> Inputs {
    let capacity = start + 1 + seeded.below(90);
    let mut cache = Cache::random(element, heads, capacity, seeded);
    cache.padding = 5.0;
    // What the row may not see is NaN, and what its own key and value replace.
    let (seen, dim) = (start * heads.head_dim, heads.head_dim);
    for side in [&mut cache.values.k, &mut cache.values.v] {
        side.chunks_exact_mut(capacity * dim).for_each(|head| head[seen..].fill(f32::NAN));
    }
    // A table may cover more positions than the cache.
    let angles = Angles::new(capacity + 3, heads.head_dim, 500_000.0);
    let qkv = seeded.floats(heads.qkv_len(), 2.0);
    Inputs { heads, qkv, cache, angles, start: start as u32, positions: capacity }
}

/// With exactly enough positions, and with all.
fn check_case<B: Backend>(b: &B, inputs: &Inputs) {
    let Inputs { heads, start, .. } = *inputs;
    let capacity = inputs.cache.values.capacity;
    for positions in [(start as usize).saturating_add(1).min(capacity), capacity] {
        let inputs = Inputs { positions, ..inputs.clone() };
        let element = inputs.cache.element;
        let what = format!("{element:?} {heads:?} start={start} positions={positions}");
        check(b, &inputs, &expected(&inputs), what);
    }
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(heads, kv_heads, head_dim, start) in TEST_SHAPES {
        for element in ELEMENTS {
            let heads = Heads { heads, kv_heads, head_dim };
            check_case(b, &case(&mut seeded, element, heads, start));
        }
    }
}

fn every_head_size<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for half in 1..=MAX_HEAD_DIM as usize / 2 {
        let heads = Heads { heads: 2, kv_heads: 1, head_dim: 2 * half };
        check_case(b, &case(&mut seeded, ELEMENTS[half % 2], heads, 64 - half % 3));
    }
}

fn grouped_heads<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(3);
    for (heads, kv_heads) in [(1, 1), (4, 1), (4, 4), (5, 1), (12, 4), (20, 5), (16, 2), (32, 32)] {
        for element in ELEMENTS {
            let heads = Heads { heads, kv_heads, head_dim: 20 };
            check_case(b, &case(&mut seeded, element, heads, 70));
        }
    }
}

fn positions_around_key_blocks<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(4);
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 24 };
    for start in [0, 1, 62, 63, 64, 65, 126, 127, 128, 129, 191, 192, 511, 512, 700, 2000] {
        for element in ELEMENTS {
            check_case(b, &case(&mut seeded, element, heads, start));
        }
    }
}

/// Neither rotated nor stored; the cache is seen whole.
fn rows_past_the_capacity<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(5);
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 50 };
    for capacity in [1, 64, 100] {
        for past in [capacity as u32, capacity as u32 + 1, u32::MAX - 1, u32::MAX] {
            for element in ELEMENTS {
                let mut inputs = case(&mut seeded, element, heads, 0);
                inputs.cache = Cache::random(element, heads, capacity, &mut seeded);
                inputs.angles = Angles::new(capacity, heads.head_dim, 1e4);
                (inputs.start, inputs.positions) = (past, capacity);
                check_case(b, &inputs);
            }
        }
    }
}

/// On a GPU, where there is a grid; the CPU needs none.
fn a_grid_for_fewer_positions_gives_nan<B: Backend>(b: &B) {
    if B::AHEAD == 0 {
        return;
    }
    let mut seeded = Seeded::new(6);
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 32 };
    for (start, positions) in [(64, 64), (200, 1), (200, 128)] {
        let mut inputs = case(&mut seeded, RowType::Bf16, heads, start);
        inputs.positions = positions;
        let want = expected(&inputs);
        let found = bitnet_gpu::selftest::run(b, &inputs).expect("a run");
        // The key belongs to a key block that the grid does not have: it is not stored.
        assert_eq!(found[0].bits.len(), want[0].bits.len());
        assert!(found[0].bits.iter().all(|&v| f32::from_bits(v).is_nan()), "{start} {positions}");
        assert_eq!(found[4].bits, want[4].bits, "counters");
    }
}

/// Scores that all but vanish or overflow, rows that are not finite, values that round in every way.
fn unusual_values<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(7);
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 32 };
    for by in [0.0, 1e-39, 1e-30, 60.0, 1e4, 1e30, f32::INFINITY, f32::NAN] {
        for element in ELEMENTS {
            for from in [0, heads.q_len(), heads.q_len() + 32] {
                let mut inputs = case(&mut seeded, element, heads, 130);
                inputs.qkv[from..from + 32].iter_mut().for_each(|v| *v *= by);
                check_case(b, &inputs);
            }
        }
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("attention_step") {
        let mut seeded = Seeded::new(12_000 + i as u64);
        let kv_heads = 1 + seeded.below(3);
        let heads = kv_heads * (1 + seeded.below(4));
        let head_dim = 2 * (1 + seeded.below(MAX_HEAD_DIM as usize / 2));
        let heads = Heads { heads, kv_heads, head_dim };
        let start = seeded.below(600);
        check_case(b, &case(&mut seeded, ELEMENTS[i % 2], heads, start));
    }
}

fn refusals<B: Backend>(b: &B) {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 10 };
    let (start_at, positions) = (1, 99);
    let (qkv, few_qkv) = (&zeros::<B, f32>(b, 80), &zeros::<B, f32>(b, 79));
    let (out, few) = (&mut zeros::<B, f32>(b, 40), &mut zeros::<B, f32>(b, 39));
    let (start, no_start) = (&zeros::<B, u32>(b, 2), &zeros::<B, u32>(b, 1));
    let rope = &RopeTable::new(b, 99, 10, 1e4).expect("a table");
    let scratch = &mut AttentionScratch::<B>::alloc(b, heads, 99).expect("scratch");
    macro_rules! step {
        ($cache:expr $(, $field:ident: $value:expr)*) => {{
            #[allow(unused_mut, reason = "where no field is set")]
            let mut op = AttentionStep {
                qkv, cache: $cache, rope, out: &mut *out, start, start_at, heads,
                scratch: &mut *scratch, positions,
            };
            $(op.$field = $value;)*
            b.attention_step(op)
        }};
    }
    for element in ELEMENTS {
        let cache = &mut KvCache::<B>::alloc(b, heads, 99, element).expect("a cache");
        refused!(short("qkv"), step!(cache, qkv: few_qkv));
        refused!(short("out"), step!(cache, out: few));
        refused!(short("start"), step!(cache, start: no_start));
        refused!(short("start"), step!(cache, start_at: usize::MAX));
        for positions in [0, 100] {
            refused!(dimension("positions"), step!(cache, positions: positions));
        }
        let bytes = 2 * 99 * 16 * element.bytes();
        let cut = |k, v| KvCache::<B> { k: zeros(b, k), v: zeros(b, v), element, capacity: 99 };
        for (bad, cache) in
            [("k_cache", &mut cut(bytes - 1, bytes)), ("v_cache", &mut cut(bytes, bytes - 1))]
        {
            refused!(short(bad), step!(cache));
        }
        let other = RopeTable::new(b, 99, 12, 1e4).expect("a table");
        let dims = |e: &OpError| matches!(e, OpError::Mismatch { found: 12, expected: 10, .. });
        refused!(dims, step!(cache, rope: &other));
        let small = RopeTable::new(b, 98, 10, 1e4).expect("a table");
        refused!(short("positions"), step!(cache, rope: &small));
        let mut few_partial =
            AttentionScratch::<B> { partial: zeros(b, 4 * 2 * 12 - 1), counters: zeros(b, 4) };
        refused!(short("partial"), step!(cache, scratch: &mut few_partial));
        let mut few_counters =
            AttentionScratch::<B> { partial: zeros(b, 4 * 2 * 12), counters: zeros(b, 3) };
        refused!(short("counters"), step!(cache, scratch: &mut few_counters));
    }
    let cache = &mut KvCache::<B>::alloc(b, heads, 99, RowType::F32).expect("a cache");
    let wide = Heads { head_dim: MAX_HEAD_DIM as usize + 2, ..heads };
    for (bad, heads) in BAD_HEADS.into_iter().chain([("head_dim", wide)]) {
        refused!(dimension(bad), step!(cache, heads: heads));
    }
    for positions in [0, MAX_ROWS + 1] {
        let made = AttentionScratch::<B>::alloc(b, heads, positions).map(drop);
        refused!(dimension("positions"), made);
    }
}
