//! [`contract::kv_append`]: plain and rotating, bf16 and f32.

use bitnet_gpu::ops::kv_append::{Heads, KvAppend, KvCache};
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, OpError, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::kv_append::{TEST_SHAPES, kv_append};
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::kv_append::{Cache, Inputs};
use bitnet_gpu::selftest::rope::Angles;
use contract::w2a8::{MAX_K, MAX_ROWS};

use crate::support::{check, dimension, generated, on_lane, refused, short, zeros};

on_lane! {
    listed_shapes
    rows_past_the_capacity_are_not_stored
    values_that_round_in_every_way
    generated_shapes
    refusals
}

fn expected(inputs: &Inputs) -> Vec<Output> {
    let &Inputs { heads, start, .. } = inputs;
    let (mut qkv, mut values) = (inputs.qkv.clone(), inputs.cache.values.clone());
    let tables = inputs.angles.as_ref().map(|a| (&a.cos[..], &a.sin[..]));
    let start = start as usize;
    kv_append(&mut qkv, &mut values, inputs.cache.element, tables, start, heads);
    // The rows that were stored end in zeros; the others keep the padding they had.
    let written = |pos: usize| (start..start + inputs.m()).contains(&pos);
    let side = |tensor, side: &[f32]| {
        inputs.cache.output(tensor, heads, inputs.cache.padded(heads, side, written))
    };
    vec![
        Output::floats("qkv", &[inputs.m(), heads.qkv_len()], &qkv),
        side("k_cache", &values.k),
        side("v_cache", &values.v),
    ]
}

const ELEMENTS: [RowType; 2] = [RowType::Bf16, RowType::F32];

/// Both element types; rotated too where the head can be.
fn check_all<B: Backend>(
    b: &B,
    seeded: &mut Seeded,
    heads: Heads,
    m: usize,
    (start, capacity): (u32, usize),
) {
    for element in ELEMENTS {
        let even = heads.head_dim.is_multiple_of(2);
        // A table may cover more positions than the cache.
        let angles = even.then(|| Angles::new(capacity + 3, heads.head_dim, 500_000.0));
        for angles in [None, angles] {
            let cache = Cache::random(element, heads, capacity, seeded);
            let cache = Cache { padding: 5.0, ..cache };
            let qkv = seeded.floats(m * heads.qkv_len(), 3.0);
            check_case(b, &Inputs { heads, qkv, cache, angles, start });
        }
    }
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs) {
    let Inputs { heads, cache, angles, start, .. } = inputs;
    let what = format!(
        "{:?} {heads:?} m={} start={start} of {} rotate={}",
        cache.element,
        inputs.m(),
        cache.values.capacity,
        angles.is_some()
    );
    check(b, inputs, &expected(inputs), what);
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(m, heads, kv_heads, head_dim, capacity, start) in TEST_SHAPES {
        let heads = Heads { heads, kv_heads, head_dim };
        check_all(b, &mut seeded, heads, m, (start as u32, capacity));
    }
}

fn rows_past_the_capacity_are_not_stored<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for start in [6, 7, 8, 9, u32::MAX - 1, u32::MAX] {
        let heads = Heads { heads: 4, kv_heads: 2, head_dim: 50 };
        check_all(b, &mut seeded, heads, 4, (start, 8));
    }
}

/// Ties, overflow to infinity, subnormals, zeros of both signs and NaN on their way to bf16.
fn values_that_round_in_every_way<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(3);
    let heads = Heads { heads: 1, kv_heads: 1, head_dim: 256 };
    for element in ELEMENTS {
        let cache = Cache::random(element, heads, 4, &mut seeded);
        let tails = [0x0000, 0x7fff, 0x8000, 0x8001, 0xffff];
        let bits = |i: usize| (i as u32).wrapping_mul(0x9e37_0000) & 0xffff_0000 | tails[i % 5];
        let qkv = (0..3 * heads.qkv_len()).map(|i| f32::from_bits(bits(i))).collect();
        check_case(b, &Inputs { heads, qkv, cache, angles: None, start: 0 });
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("kv_append") {
        let mut seeded = Seeded::new(9000 + i as u64);
        let kv_heads = 1 + seeded.below(4);
        let heads = kv_heads * (1 + seeded.below(4));
        let heads = Heads { heads, kv_heads, head_dim: 1 + seeded.below(256) };
        let (m, capacity) = (1 + seeded.below(5), 1 + seeded.below(30));
        let start = seeded.below(capacity + 2) as u32;
        check_all(b, &mut seeded, heads, m, (start, capacity));
    }
}

fn refusals<B: Backend>(b: &B) {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 10 };
    let (m, start_at, rope) = (2, 1, None);
    let (qkv, few) = (&mut zeros::<B, f32>(b, 160), &mut zeros::<B, f32>(b, 159));
    let (start, no_start) = (&zeros::<B, u32>(b, 2), &zeros::<B, u32>(b, 1));
    for element in ELEMENTS {
        let cache = &mut KvCache::alloc(b, heads, 9, element).expect("a cache");
        for m in [0, MAX_ROWS + 1] {
            let op = KvAppend { qkv, cache, rope, start, start_at, m, heads };
            refused!(dimension("m"), b.kv_append(op));
        }
        let op = KvAppend { qkv: few, cache, rope, start, start_at, m, heads };
        refused!(short("qkv"), b.kv_append(op));
        let op = KvAppend { qkv, cache, rope, start: no_start, start_at, m, heads };
        refused!(short("start"), b.kv_append(op));
        let op = KvAppend { qkv, cache, rope, start, start_at: usize::MAX, m, heads };
        refused!(short("start"), b.kv_append(op));

        let bytes = 2 * 9 * 16 * element.bytes();
        let cut = |k, v| KvCache::<B> { k: zeros(b, k), v: zeros(b, v), element, capacity: 9 };
        for (bad, cache) in
            [("k_cache", &mut cut(bytes - 1, bytes)), ("v_cache", &mut cut(bytes, bytes - 1))]
        {
            let op = KvAppend { qkv, cache, rope, start, start_at, m, heads };
            refused!(short(bad), b.kv_append(op));
        }

        let other = RopeTable::new(b, 9, 12, 1e4).expect("a table");
        let op = KvAppend { qkv, cache, rope: Some(&other), start, start_at, m, heads };
        let dims = |e: &OpError| matches!(e, OpError::Mismatch { found: 12, expected: 10, .. });
        refused!(dims, b.kv_append(op));
        let small = RopeTable::new(b, 8, 10, 1e4).expect("a table");
        let op = KvAppend { qkv, cache, rope: Some(&small), start, start_at, m, heads };
        refused!(short("positions"), b.kv_append(op));
        let cut =
            RopeTable::<B> { cos: zeros(b, 45), sin: zeros(b, 44), positions: 9, head_dim: 10 };
        let op = KvAppend { qkv, cache, rope: Some(&cut), start, start_at, m, heads };
        refused!(short("sin"), b.kv_append(op));
    }
    for (bad, heads) in BAD_HEADS {
        refused!(dimension(bad), KvCache::alloc(b, heads, 9, RowType::Bf16).map(drop));
        let cache = &mut KvCache::alloc(b, HEADS, 9, RowType::F32).expect("a cache");
        let op = KvAppend { qkv, cache, rope, start, start_at, m, heads };
        refused!(dimension(bad), b.kv_append(op));
    }
    for capacity in [0, MAX_ROWS + 1] {
        let made = KvCache::alloc(b, heads, capacity, RowType::F32).map(drop);
        refused!(dimension("capacity"), made);
    }
    refused!(
        dimension("bits of an f16 cache"),
        KvCache::alloc(b, heads, 9, RowType::F16).map(drop)
    );
}

const HEADS: Heads = Heads { heads: 4, kv_heads: 2, head_dim: 10 };

/// Heads that no operation takes, by what is said about them.
pub(crate) const BAD_HEADS: [(&str, Heads); 7] = [
    ("heads", Heads { heads: 0, ..HEADS }),
    ("heads", Heads { heads: MAX_K + 1, ..HEADS }),
    ("kv_heads", Heads { kv_heads: 0, ..HEADS }),
    ("kv_heads", Heads { kv_heads: 3, ..HEADS }),
    ("head_dim", Heads { head_dim: 0, ..HEADS }),
    ("head_dim", Heads { head_dim: MAX_K + 1, ..HEADS }),
    ("row of q, k and v", Heads { head_dim: MAX_K / 8 + 1, ..HEADS }),
];
