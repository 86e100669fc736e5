//! [`contract::attention_paged`]: rows of many sequences, pages anywhere, rows that are not there.

use bitnet_gpu::ops::attention_paged::{
    AttentionPaged, CopyPages, PageCopies, PageType, PagedCache, PagedRows, PagedRun, PagedRuns,
    PagedScratch, PagedSplit, PagedStep,
};
use bitnet_gpu::ops::kv_append::Heads;
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, Math, OpError, RowType, RowWords};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::attention_paged::{TEST_SHAPES, attention_paged};
use bitnet_gpu::selftest::attention_paged::{Copies, Inputs, Row};
use bitnet_gpu::selftest::{self, Output};
use contract::attention_paged::{ABSENT, FAST_HEAD_DIM, MAX_HEAD_DIM, NO_PAGE, counters_len};
use contract::w2a8::MAX_ROWS;

use crate::kv_append::BAD_HEADS;
use crate::support::{check, dimension, due, generated, on_lane, refused, short, zeros};

on_lane! {
    listed_shapes
    every_head_size
    grouped_heads
    positions_around_pages
    many_rows
    neighbours_of_one_sequence
    neighbours_of_several
    rows_without_a_page_give_nan
    a_grid_for_fewer_positions_gives_nan
    unusual_values
    generated_shapes
    copies_of_pages
    refusals
    refused_copies
}

const ELEMENTS: [PageType; 3] =
    [PageType::Float(RowType::Bf16), PageType::Float(RowType::F32), PageType::Int8];

fn expected(inputs: &Inputs) -> Vec<Output> {
    let Inputs { heads, qkv, pool, element, pages, angles, rows, capacity, .. } = inputs;
    let mut values = pool.values.clone();
    let tables = (&angles.cos[..], &angles.sin[..]);
    let out = attention_paged(qkv, &mut values, *pages, *element, tables, rows, *capacity, *heads);
    vec![
        inputs.output(&out, &values),
        Output::floats("qkv", &[rows.len(), heads.qkv_len()], qkv),
        inputs.pool_output("k_cache", &values.k),
        inputs.pool_output("v_cache", &values.v),
    ]
}

/// As rows of anything, as few, and as a step that reaches the last position or all of a table.
fn check_case<B: Backend>(b: &B, inputs: &Inputs) {
    let positions: Vec<_> = inputs.rows.iter().map(|row| row.position).collect();
    let what = format!("{:?} {:?} at {positions:?}", inputs.element, inputs.heads);
    let expected = expected(inputs);
    check(b, inputs, &expected, &what);
    let last = positions.iter().filter(|&&p| (p as usize) < inputs.capacity).max();
    let heads = inputs.heads;
    let counters = counters_len(positions.len(), heads.heads, heads.kv_heads);
    let counters = Output::words("counters", &[counters], vec![0; counters]);
    let counted = [&[counters], &expected[..]].concat();
    let last = last.map_or(1, |&p| p as usize + 1);
    for reach in [last, inputs.capacity] {
        let few = Inputs { reach: Some(reach), few: true, ..inputs.clone() };
        check(b, &few, &counted, format!("{what}, few to {reach}"));
    }
    if !inputs.runs.is_empty() {
        check_runs(b, inputs, &expected, &what);
        return;
    }
    let expected = counted;
    // By pages, and by several of them where the device has that kernel.
    for (reach, share) in
        [(last, None), (inputs.capacity, None), (last, Some(2)), (inputs.capacity, Some(7))]
    {
        let settled = reach == inputs.capacity;
        let step = Inputs { reach: Some(reach), settled, share, ..inputs.clone() };
        check(b, &step, &expected, format!("{what}, a step to {reach} by {share:?} pages"));
    }
    // There the two parts of a query may be infinite with either sign.
    if inputs.element != RowType::F32 && inputs.qkv.iter().all(|v| v.is_finite()) {
        check_fast(b, inputs, &[last, inputs.capacity], &what);
    }
}

/// As runs, exactly and on tensor cores.
fn check_runs<B: Backend>(b: &B, inputs: &Inputs, exact: &[Output], what: &str) {
    let what = format!("{what} in runs of {:?}", inputs.runs);
    let run = Inputs { reach: Some(inputs.capacity), ..inputs.clone() };
    for split in [None, Some(true), Some(false)] {
        let run = Inputs { split, ..run.clone() };
        check(b, &run, exact, format!("{what}, split {split:?}"));
    }
    let there = |row: &Row| row.table.iter().all(|&page| (page as usize) < inputs.pages);
    // What is not finite may reach earlier rows there.
    if inputs.element != RowType::F32 && inputs.rows.iter().all(there) {
        let bounded = Inputs { math: Math::TensorCore, ..run };
        let runs = crate::lane::has("attention_fast_128");
        let expected = expected(if runs { &bounded } else { inputs });
        check(b, &bounded, &expected, format!("{what} on tensor cores"));
    }
}

/// By tensor cores, where the device and the heads have that kernel; elsewhere with the same bits as without.
fn check_fast<B: Backend>(b: &B, inputs: &Inputs, reaches: &[usize], what: &str) {
    let Inputs { heads, rows, .. } = inputs;
    let kernel = match inputs.element {
        PageType::Int8 => "attention_paged_fast_int8",
        PageType::Float(_) => "attention_paged_fast_bf16",
    };
    let runs = heads.head_dim == FAST_HEAD_DIM as usize && crate::lane::has(kernel);
    let bounded = Inputs { math: Math::TensorCore, ..inputs.clone() };
    let expected = expected(if runs { &bounded } else { inputs });
    let counters = counters_len(rows.len(), heads.heads, heads.kv_heads);
    let counters = Output::words("counters", &[counters], vec![0; counters]);
    let expected = [&[counters], &expected[..]].concat();
    for &reach in reaches {
        let settled = reach == inputs.capacity;
        let step = Inputs { reach: Some(reach), settled, ..bounded.clone() };
        check(b, &step, &expected, format!("{what}, a step to {reach} on tensor cores"));
    }
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(heads, kv_heads, head_dim, positions) in TEST_SHAPES {
        for element in ELEMENTS {
            let heads = Heads { heads, kv_heads, head_dim };
            check_case(b, &Inputs::scattered(element, heads, positions, &mut seeded));
        }
    }
}

fn every_head_size<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for half in 1..=MAX_HEAD_DIM as usize / 2 {
        let heads = Heads { heads: 2, kv_heads: 1, head_dim: 2 * half };
        let positions = [64 - half as u32 % 3, 5];
        check_case(b, &Inputs::scattered(ELEMENTS[half % 3], heads, &positions, &mut seeded));
    }
}

fn grouped_heads<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(3);
    for (heads, kv_heads) in
        [(1, 1), (4, 1), (4, 4), (5, 1), (9, 1), (12, 4), (20, 5), (16, 2), (32, 32)]
    {
        for (element, head_dim) in ELEMENTS.into_iter().flat_map(|e| [(e, 20), (e, 64)]) {
            let heads = Heads { heads, kv_heads, head_dim };
            check_case(b, &Inputs::scattered(element, heads, &[70, 3, 128], &mut seeded));
        }
    }
}

fn positions_around_pages<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(4);
    for head_dim in [24, 128] {
        let heads = Heads { heads: 2, kv_heads: 1, head_dim };
        let all = [0, 1, 62, 63, 64, 65, 126, 127, 128, 129, 191, 192, 511, 512, 1100];
        for element in ELEMENTS {
            check_case(b, &Inputs::scattered(element, heads, &all, &mut seeded));
        }
    }
}

fn many_rows<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(5);
    let heads = Heads { heads: 8, kv_heads: 2, head_dim: 64 };
    for m in [16, 33, 64, 200] {
        let positions: Vec<_> =
            (0..m).map(|m| if m % 7 == 3 { ABSENT } else { seeded.below(150) as u32 }).collect();
        for element in ELEMENTS {
            check_case(b, &Inputs::scattered(element, heads, &positions, &mut seeded));
        }
    }
}

/// As in a prefill: each sees the keys of those in front of it.
fn neighbours_of_one_sequence<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(6);
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 24 };
    for (start, m) in [(0, 1), (0, 70), (61, 5), (64, 64), (100, 130)] {
        for element in ELEMENTS {
            check_case(b, &Inputs::runs(element, heads, &[(start, m)], &mut seeded));
        }
    }
    // So many that blocks take many rows, with heads of each such kernel and of none.
    for (i, (heads, kv_heads, head_dim, start, m)) in
        [(32, 2, 16, 0, 70), (32, 4, 96, 130, 67), (32, 2, 64, 1, 66), (32, 1, 130, 63, 67)]
            .into_iter()
            .enumerate()
    {
        let heads = Heads { heads, kv_heads, head_dim };
        for (_, element) in ELEMENTS.into_iter().enumerate().filter(|(j, _)| due(i + j, 3)) {
            check_case(b, &Inputs::runs(element, heads, &[(start, m)], &mut seeded));
        }
    }
    // A page that is not there, and rows past the table.
    let heads = Heads { heads: 32, kv_heads: 2, head_dim: 8 };
    for (i, element) in ELEMENTS.into_iter().enumerate() {
        let good = Inputs::runs(element, heads, &[(0, 140)], &mut seeded);
        for block in (0..3).filter(|block| due(i + block, 3)) {
            let mut inputs = good.clone();
            let pages = good.pages as u32;
            inputs.rows.iter_mut().for_each(|row| row.table[block] = pages);
            check_case(b, &inputs);
        }
    }
}

/// As in a prefill of several prompts: nobody sees the keys of another.
fn neighbours_of_several<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(10);
    let all: [&[(u32, u32)]; 5] = [
        &[(0, 1), (0, 1), (0, 1), (7, 1), (64, 1)],
        &[(0, 64), (0, 64)],
        &[(0, 40), (130, 3), (63, 2), (0, 65), (200, 1)],
        &[(1, 16), (0, 17), (0, 15)],
        &[(250, 3), (0, 70)],
    ];
    // With heads of each kernel for many rows, and of none; blocks that end between the heads of a row.
    for (i, (heads, kv_heads, head_dim)) in
        [(20, 5, 128), (32, 1, 64), (42, 3, 40), (65, 1, 24), (20, 5, 130)].into_iter().enumerate()
    {
        let heads = Heads { heads, kv_heads, head_dim };
        for (j, runs) in all.iter().enumerate().filter(|(j, _)| due(i + j, 3)) {
            check_case(b, &Inputs::runs(ELEMENTS[(i + j / 3) % 3], heads, runs, &mut seeded));
        }
    }
    // A page that is not there is one sequence's alone.
    let heads = Heads { heads: 32, kv_heads: 2, head_dim: 8 };
    for (i, element) in ELEMENTS.into_iter().enumerate() {
        let mut inputs = Inputs::runs(element, heads, &[(0, 70), (64, 70), (0, 9)], &mut seeded);
        let pages = inputs.pages as u32;
        inputs.rows[70..140].iter_mut().for_each(|row| row.table[i % 2] = pages);
        check_case(b, &inputs);
    }
}

/// Past the table, or with a table that names a page that is not there: nothing is stored, and no other
/// row notices.
fn rows_without_a_page_give_nan<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(7);
    for head_dim in [32, 128] {
        let heads = Heads { heads: 4, kv_heads: 2, head_dim };
        for element in ELEMENTS {
            let good = Inputs::scattered(element, heads, &[130, 70, 130, 9], &mut seeded);
            let pages = good.pages as u32;
            for bad in [pages, NO_PAGE] {
                for block in 0..3 {
                    let mut inputs = good.clone();
                    inputs.rows[2].table[block] = bad;
                    check_case(b, &inputs);
                }
            }
            for position in [good.capacity as u32, ABSENT - 1] {
                let mut inputs = good.clone();
                inputs.rows[0].position = position;
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
    let mut seeded = Seeded::new(9);
    let heads = Heads { heads: 8, kv_heads: 2, head_dim: 64 };
    let mut inputs = Inputs::scattered(RowType::Bf16, heads, &[64, 9, 200], &mut seeded);
    let whole = selftest::run(b, &inputs).expect("a run");
    inputs.reach = Some(64);
    let found = selftest::run(b, &inputs).expect("a run");
    assert_eq!(found[0].bits, vec![0; 6], "counters");
    for (m, (found, whole)) in found[1].bits.chunks(512).zip(whole[0].bits.chunks(512)).enumerate()
    {
        match m {
            1 => assert_eq!(found, whole),
            // The kernel for rows of anything, which older levels run, has no grid of positions.
            _ if !crate::lane::has("attention_paged_step_bf16") => {
                assert_eq!(found, whole, "row {m}")
            }
            _ => assert!(found.iter().all(|&v| f32::from_bits(v).is_nan()), "row {m}"),
        }
    }
}

fn unusual_values<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(8);
    for head_dim in [32, 128] {
        let heads = Heads { heads: 2, kv_heads: 1, head_dim };
        for by in [0.0, 1e-39, 1e-30, 60.0, 1e4, 1e30, f32::INFINITY, f32::NAN] {
            for element in ELEMENTS {
                for from in [0, heads.q_len(), heads.q_len() + head_dim] {
                    let mut inputs = Inputs::scattered(element, heads, &[130, 130, 2], &mut seeded);
                    inputs.qkv[from..from + head_dim].iter_mut().for_each(|v| *v *= by);
                    check_case(b, &inputs);
                }
            }
        }
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("attention_paged") {
        let mut seeded = Seeded::new(13_000 + i as u64);
        let kv_heads = 1 + seeded.below(3);
        let heads = kv_heads * (1 + seeded.below(5));
        let any = 2 * (1 + seeded.below(MAX_HEAD_DIM as usize / 2));
        let head_dim = if i % 4 == 0 { FAST_HEAD_DIM as usize } else { any };
        let heads = Heads { heads, kv_heads, head_dim };
        let end = [3, 70, 300][seeded.below(3)];
        let positions: Vec<_> = (0..1 + seeded.below(5))
            .map(|_| if seeded.below(8) == 0 { ABSENT } else { seeded.below(end) as u32 })
            .collect();
        check_case(b, &Inputs::scattered(ELEMENTS[i / 2 % 3], heads, &positions, &mut seeded));
        let count = 1 + seeded.below(3);
        let most = 90 / count;
        let runs: Vec<_> =
            (0..count).map(|_| (seeded.below(end) as u32, 1 + seeded.below(most) as u32)).collect();
        check_case(b, &Inputs::runs(ELEMENTS[i / 2 % 3], heads, &runs, &mut seeded));
    }
}

/// Every other page keeps its bits.
fn copies_of_pages<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(11);
    for (i, (kv_heads, head_dim, layers, pages)) in
        [(1, 2, 1, 2), (5, 128, 4, 9), (3, 34, 2, 40), (1, 256, 30, 4), (2, 10, 3, 300)]
            .into_iter()
            .enumerate()
    {
        let heads = Heads { heads: kv_heads, kv_heads, head_dim };
        for (j, element) in ELEMENTS.into_iter().enumerate().filter(|(j, _)| due(i + j, 3)) {
            // From the first pages to some of the others.
            let read = 1 + seeded.below(pages - 1);
            let pairs: Vec<[u32; 2]> = (read..pages)
                .filter(|to| (to + j) % 3 > 0 || to + 1 == pages)
                .map(|to| [seeded.below(read) as u32, to as u32])
                .collect();
            let copies = Copies::random(heads, element, (layers, pages), &pairs, &mut seeded);
            let what = format!("{heads:?} {} {layers} layers {pairs:?}", element.name());
            check(b, &copies, &copies.expected(), what);
        }
    }
}

fn refused_copies<B: Backend>(b: &B) {
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 6 };
    let cache = |pages| PagedCache::<B>::alloc(b, heads, pages, RowType::Bf16).expect("pages");
    let mut caches = [cache(4), cache(4)];
    refused!(dimension("layers"), PageCopies::new(b, &caches[..0], 4).map(drop));
    refused!(dimension("pages at once"), PageCopies::new(b, &caches, 0).map(drop));
    let mut table = PageCopies::new(b, &caches, 3).expect("a table");
    for (what, pairs) in [
        ("pages at once", &[][..]),
        ("pages at once", &[[0, 1], [0, 2], [0, 3], [0, 1]]),
        ("page", &[[0, 4]]),
        ("page", &[[u32::MAX, 0]]),
        ("page", &[[0, 1], [2, 1]]),
        ("page", &[[0, 1], [1, 2]]),
        ("page", &[[3, 3]]),
    ] {
        refused!(dimension(what), table.write(b, pairs));
        // None was written.
        let (caches, table) = (&mut caches[..], &table);
        refused!(dimension("pages at once"), b.copy_pages(CopyPages { caches, heads, table }));
    }
    table.write(b, &[[0, 1]]).expect("a pair");
    let copy = |caches: &mut [PagedCache<B>], heads| {
        b.copy_pages(CopyPages { caches, heads, table: &table })
    };
    refused!(mismatch("layers of the table"), copy(&mut caches[..1], heads));
    refused!(short("k_pages"), copy(&mut caches, Heads { kv_heads: 2, ..heads }));
    refused!(mismatch("pages of the layers"), copy(&mut [cache(4), cache(5)], heads));
    // A backend without addresses takes any caches that are alike.
    if b.address(&caches[0].k) != 0 {
        let what = mismatch("caches that are not those of the table");
        refused!(what, copy(&mut [cache(4), cache(4)], heads));
    }
}

fn refusals<B: Backend>(b: &B) {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 10 };
    let (m, capacity) = (3, 130);
    let (qkv, few_qkv) = (&zeros::<B, f32>(b, 240), &zeros::<B, f32>(b, 239));
    let (out, few) = (&mut zeros::<B, f32>(b, 120), &mut zeros::<B, f32>(b, 119));
    let (words, few_words) = (&zeros::<B, u32>(b, 12), &zeros::<B, u32>(b, 11));
    let rope = &RopeTable::new(b, 130, 10, 1e4).expect("angles");
    let positions = RowWords::<B> { words, at: 3, stride: 4 };
    let tables = RowWords::<B> { words, at: 1, stride: 4 };
    macro_rules! paged {
        ($cache:expr $(, $field:ident: $value:expr)*) => {{
            #[allow(unused_mut, reason = "where no field is set")]
            let mut op = AttentionPaged {
                qkv, cache: $cache, rope, out: &mut *out, first: 0, positions, tables, capacity, m, heads,
                math: Math::Exact, rows: PagedRows::Any,
            };
            $(op.$field = $value;)*
            b.attention_paged(op)
        }};
    }
    for element in ELEMENTS {
        let cache = &mut PagedCache::<B>::alloc(b, heads, 9, element).expect("pages");
        refused!(short("qkv"), paged!(cache, qkv: few_qkv));
        refused!(short("qkv"), paged!(cache, first: 1));
        refused!(dimension("first + m"), paged!(cache, first: usize::MAX));
        refused!(short("out"), paged!(cache, out: few));
        refused!(
            short("positions"),
            paged!(cache, positions: RowWords { words: few_words, ..positions })
        );
        refused!(
            short("positions"),
            paged!(cache, positions: RowWords { at: usize::MAX, ..positions })
        );
        refused!(
            short("positions"),
            paged!(cache, positions: RowWords { stride: usize::MAX, ..positions })
        );
        refused!(short("tables"), paged!(cache, tables: RowWords { words: few_words, ..tables }));
        refused!(short("tables"), paged!(cache, tables: RowWords { at: 10, stride: 0, ..tables }));
        for m in [0, MAX_ROWS + 1] {
            refused!(dimension("m"), paged!(cache, m: m));
        }
        for capacity in [0, MAX_ROWS + 1] {
            refused!(dimension("capacity"), paged!(cache, capacity: capacity));
        }
        refused!(short("angles"), paged!(cache, capacity: 131));
        runs_are_refused(
            b,
            heads,
            |rows, m, capacity| paged!(cache, rows: rows, m: m, capacity: capacity),
        );
        if element == RowType::F32 {
            refused!(dimension("cache element"), paged!(cache, math: Math::TensorCore));
        }
        let mut scratch = PagedScratch::<B>::alloc(b, heads, m, 9).expect("scratch");
        for reach in [0, 131] {
            let rows = PagedRows::Step(PagedStep {
                scratch: &mut scratch,
                reach,
                settled: false,
                share: None,
                next: None,
            });
            refused!(dimension("reach"), paged!(cache, rows: rows));
        }
        for reach in [0, 131] {
            let rows = PagedRows::Split(PagedSplit { scratch: &mut scratch, reach });
            refused!(dimension("reach"), paged!(cache, rows: rows));
        }
        // Of a split a row has pages of its own; the results of one have to have room.
        let mut of_row = PagedScratch::<B> { partial: zeros(b, 4 * 12), counters: zeros(b, 6) };
        let rows = PagedRows::Split(PagedSplit { scratch: &mut of_row, reach: 64 });
        assert!(paged!(cache, rows: rows).is_ok());
        let rows = PagedRows::Split(PagedSplit { scratch: &mut of_row, reach: 65 });
        refused!(short("partial"), paged!(cache, rows: rows));
        let mut few_partial =
            PagedScratch::<B> { partial: zeros(b, 9 * 4 * 12 - 1), counters: zeros(b, 6) };
        let rows = PagedRows::Step(PagedStep {
            scratch: &mut few_partial,
            reach: 1,
            settled: false,
            share: None,
            next: None,
        });
        refused!(short("partial"), paged!(cache, rows: rows));
        let mut few_counters =
            PagedScratch::<B> { partial: zeros(b, 9 * 4 * 12), counters: zeros(b, 5) };
        let rows = PagedRows::Step(PagedStep {
            scratch: &mut few_counters,
            reach: 1,
            settled: false,
            share: None,
            next: None,
        });
        refused!(short("counters"), paged!(cache, rows: rows));
        let rows = PagedRows::Split(PagedSplit { scratch: &mut few_counters, reach: 1 });
        refused!(short("counters"), paged!(cache, rows: rows));
        let bytes = 9 * 2 * element.part_bytes(10);
        let cut = |k, v| PagedCache::<B> { k: zeros(b, k), v: zeros(b, v), element, pages: 9 };
        for (bad, cache) in
            [("k_pages", &mut cut(bytes - 1, bytes)), ("v_pages", &mut cut(bytes, bytes - 1))]
        {
            refused!(short(bad), paged!(cache));
        }
        let other = RopeTable::new(b, 130, 12, 1e4).expect("angles");
        let dims = |e: &OpError| matches!(e, OpError::Mismatch { found: 12, expected: 10, .. });
        refused!(dims, paged!(cache, rope: &other));
        for (bad, heads) in BAD_HEADS {
            refused!(dimension(bad), paged!(cache, heads: heads));
        }
        let wide = Heads { head_dim: MAX_HEAD_DIM as usize + 2, ..heads };
        refused!(dimension("head_dim"), paged!(cache, heads: wide));
    }
    for (bad, pages, element) in [
        ("pages", 0, RowType::F32),
        ("pages", MAX_ROWS + 1, RowType::F32),
        ("bits of an f16 cache", 1, RowType::F16),
    ] {
        refused!(dimension(bad), PagedCache::<B>::alloc(b, heads, pages, element).map(drop));
    }
}

/// Refusal of two numbers that differ.
fn mismatch(name: &str) -> impl FnOnce(&OpError) -> bool {
    move |error| matches!(error, OpError::Mismatch { what, .. } if *what == name)
}

/// Runs that are none, and operations that are not of those rows.
fn runs_are_refused<B: Backend>(
    b: &B,
    heads: Heads,
    mut paged: impl FnMut(PagedRows<'_, B>, usize, usize) -> Result<(), OpError>,
) {
    refused!(dimension("rows"), PagedRuns::alloc(b, heads, 0, 130).map(drop));
    refused!(dimension("capacity"), PagedRuns::alloc(b, heads, 3, 0).map(drop));
    let mut runs = PagedRuns::alloc(b, heads, 3, 130).expect("runs");
    let pages = &[0, 1, 2][..];
    let run = |start, m| PagedRun { start, m, pages };
    // Nothing is written yet.
    refused!(mismatch("rows of the runs"), paged(PagedRows::Runs(&runs), 3, 130));
    refused!(dimension("rows of the runs"), runs.write(b, &[]));
    refused!(dimension("rows of the runs"), runs.write(b, &[run(0, 2), run(0, 2)]));
    refused!(dimension("rows of the runs"), runs.write(b, &[run(0, 2), run(0, usize::MAX)]));
    refused!(dimension("rows of a run"), runs.write(b, &[run(0, 2), run(0, 0)]));
    refused!(dimension("positions of a run"), runs.write(b, &[run(0, 2), run(130, 1)]));
    refused!(dimension("positions of a run"), runs.write(b, &[run(usize::MAX, 1)]));
    let few = PagedRun { start: 63, m: 2, pages: &[0] };
    refused!(short("pages of a run"), runs.write(b, &[few]));
    runs.write(b, &[run(128, 2), run(3, 1)]).expect("as many as there is room for");
    refused!(mismatch("rows of the runs"), paged(PagedRows::Runs(&runs), 2, 130));
    refused!(dimension("reach"), paged(PagedRows::Runs(&runs), 3, 129));
    let others = Heads { heads: 2 * heads.heads, ..heads };
    let mut runs = PagedRuns::alloc(b, others, 3, 130).expect("runs");
    runs.write(b, &[run(0, 3)]).expect("as many as there is room for");
    refused!(mismatch("heads of a kv head of the runs"), paged(PagedRows::Runs(&runs), 3, 130));
}
