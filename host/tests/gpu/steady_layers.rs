//! Attention and whole layers, again and again: see [`crate::again`].

use std::rc::Rc;

use bitnet_gpu::ops::act_quant::Gate;
use bitnet_gpu::ops::attention::Attention;
use bitnet_gpu::ops::attention_paged::{
    AttentionPaged, PageType, PagedCache, PagedRows, PagedRun, PagedRuns, PagedScratch, PagedStep,
};
use bitnet_gpu::ops::attention_step::{AttentionScratch, AttentionStep};
use bitnet_gpu::ops::decode_layers::rows::{DecodeRows, RowsTable};
use bitnet_gpu::ops::decode_layers::{DecodeLayers, DecodeTable, Layer, Linear, shape};
use bitnet_gpu::ops::elementwise::{Elementwise, Function};
use bitnet_gpu::ops::kv_append::{Heads, KvCache};
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, Math, OpError, PackedLinear, RowType, RowWords};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::selftest::sparse::rounded;
use contract::attention_paged::PAGE;
use contract::w2a8::Segments;
use half::bf16;

use crate::again::{Buf, chosen, on};
use crate::lane::Lane;
use crate::steady_ops::{Jobs, hold_all, sized};
use crate::support::zeros;

/// The heads of a model of 2B parameters, fewer where a GPU is emulated.
fn heads() -> Heads {
    Heads { heads: sized(20, 4), kv_heads: sized(5, 1), head_dim: 128 }
}

/// Keys, or values, of so many bytes.
fn numbers(b: &Lane, element: RowType, bytes: usize, seeded: &mut Seeded) -> Buf<u8> {
    let values = seeded.floats(bytes / element.bytes(), 2.0);
    match element {
        RowType::F32 => on(b, bytemuck::cast_slice(&values)),
        _ => on(b, bytemuck::cast_slice(&rounded::<bf16>(&values))),
    }
}

/// A cache with numbers everywhere.
fn cache(b: &Lane, element: RowType, capacity: usize, seeded: &mut Seeded) -> KvCache<Lane> {
    let empty = KvCache::alloc(b, heads(), capacity, element).expect("memory for a cache");
    let [k, v] = [&empty.k, &empty.v].map(|side| numbers(b, element, side.len(), seeded));
    KvCache { k, v, element, capacity }
}

fn angles(b: &Lane, positions: usize) -> RopeTable<Lane> {
    RopeTable::new(b, positions, heads().head_dim, 500_000.0).expect("angles")
}

/// How attention is computed, and what that is called.
const BOTH: [(Math, &str); 2] = [(Math::Exact, "exact"), (Math::TensorCore, "fast")];

#[test]
fn attention() {
    hold_all([120, 0], |b| {
        let (heads, mut seeded) = (heads(), Seeded::new(70));
        let mut jobs = Jobs::new();
        for element in [RowType::Bf16, RowType::F32] {
            let capacity = sized(2048, 200);
            let cache = Rc::new(cache(b, element, capacity, &mut seeded));
            for (start, m) in [(0, 256), (500, 64), (1500, 200)] {
                let (start, m) = (sized(start, 70), sized(m, 40));
                let qkv = Rc::new(on(b, &seeded.floats(m * heads.qkv_len(), 2.0)));
                let at = Rc::new(on(b, &[start as u32]));
                for (math, how) in BOTH {
                    let exact = math == Math::Exact;
                    if !exact && element == RowType::F32 {
                        continue;
                    }
                    for tiled in
                        if exact { vec![None, Some(true), Some(false)] } else { vec![None] }
                    {
                        let (cache, qkv, at) = (cache.clone(), qkv.clone(), at.clone());
                        let name = format!("attention {element:?} {how} {start} {m} {tiled:?}");
                        jobs.push(chosen(b, name, m * heads.q_len(), move |b, out| {
                            b.attention(Attention {
                                qkv: &qkv,
                                cache: &cache,
                                out,
                                start: &at,
                                start_at: 0,
                                m,
                                heads,
                                math,
                                tiled,
                            })
                        }));
                    }
                }
            }
            for start in [500, 2000] {
                let start = sized(start, capacity - 3);
                let mut cache = self::cache(b, element, capacity, &mut seeded);
                let qkv = on(b, &seeded.floats(heads.qkv_len(), 2.0));
                let (at, rope) = (on(b, &[start as u32]), angles(b, capacity));
                let scratch = AttentionScratch::alloc(b, heads, capacity);
                let mut scratch = scratch.expect("memory for a step");
                let name = format!("attention_step {element:?} {start}");
                jobs.push(chosen(b, name, heads.q_len(), move |b, out| {
                    b.attention_step(AttentionStep {
                        qkv: &qkv,
                        cache: &mut cache,
                        rope: &rope,
                        out,
                        start: &at,
                        start_at: 0,
                        heads,
                        scratch: &mut scratch,
                        positions: start + 1,
                    })
                }));
            }
        }
        [jobs, Jobs::new()]
    });
}

/// Rows of a prompt: of which sequence, from which position on, how many.
type Run = (usize, usize, usize);

/// Pages of sequences that are as long as they get, each with pages of its own, in an order of their own.
struct Pages {
    cache: PagedCache<Lane>,
    rope: RopeTable<Lane>,
    tables: Vec<u32>,
    width: usize,
    capacity: usize,
}

impl Pages {
    /// With pages of the pool as `tables` has them, row by row, and one to spare.
    fn new(
        b: &Lane,
        element: PageType,
        tables: &[u32],
        capacity: usize,
        seeded: &mut Seeded,
    ) -> Self {
        let (heads, width, pages) = (heads(), capacity.div_ceil(PAGE), tables.len());
        let (rows, tables) = (pages / width, tables.to_vec());
        let cache = PagedCache::alloc(b, heads, pages, element).expect("memory for pages");
        let rope = angles(b, width * PAGE);
        let mut all = Self { cache, rope, tables, width, capacity: width * PAGE };
        // Stored by the operation itself, whatever pages hold.
        let qkv = on(b, &seeded.floats(all.capacity * heads.qkv_len(), 2.0));
        let mut out: Buf<f32> = zeros(b, all.capacity * heads.q_len());
        for row in 0..rows {
            let mut runs = all.runs(b, &[(row, 0, all.capacity)]);
            all.attend(b, &qkv, &mut out, &mut runs, Math::Exact).expect("a sequence");
        }
        all
    }

    fn runs(&self, b: &Lane, runs: &[Run]) -> PagedRuns<Lane> {
        let m = runs.iter().map(|run| run.2).sum();
        let mut on_device =
            PagedRuns::alloc(b, heads(), m, self.capacity).expect("memory for runs");
        let pages = |row: usize| &self.tables[row * self.width..][..self.width];
        let run = |&(row, start, m)| PagedRun { start, m, pages: pages(row) };
        on_device.write(b, &runs.iter().map(run).collect::<Vec<_>>()).expect("runs");
        on_device
    }

    fn attend(
        &mut self,
        b: &Lane,
        qkv: &Buf<f32>,
        out: &mut Buf<f32>,
        runs: &mut PagedRuns<Lane>,
        math: Math,
    ) -> Result<(), OpError> {
        b.attention_paged(AttentionPaged {
            qkv,
            cache: &mut self.cache,
            rope: &self.rope,
            out,
            first: 0,
            positions: runs.positions(),
            tables: runs.tables(),
            capacity: runs.reach(),
            m: runs.m(),
            heads: heads(),
            math,
            rows: PagedRows::Runs(runs),
        })
    }
}

/// Pages for `rows` sequences of `capacity` positions in some order, and one to spare.
fn scattered(rows: usize, capacity: usize, seeded: &mut Seeded) -> Vec<u32> {
    let mut pages: Vec<u32> = (0..=(rows * capacity.div_ceil(PAGE)) as u32).collect();
    for i in (1..pages.len()).rev() {
        pages.swap(i, seeded.below(i + 1));
    }
    pages
}

/// Rows of a step, near the end of sequences of `capacity` positions or somewhere in them.
fn positions(m: usize, capacity: usize) -> Vec<u32> {
    (0..m).map(|i| (capacity - 1 - [12, 48, 3, capacity / 2][i % 4] % capacity) as u32).collect()
}

#[test]
fn attention_over_pages() {
    hold_all([160, 0], |b| {
        let (heads, mut seeded) = (heads(), Seeded::new(71));
        let mut jobs = Jobs::new();
        let int8 = [(PageType::Int8, BOTH[0]), (PageType::Int8, BOTH[1])];
        let bf16 = BOTH.map(|how| (PageType::Float(RowType::Bf16), how));
        for (element, (math, how)) in bf16.into_iter().chain(int8) {
            for (m, capacity, share) in
                [(32, 512, None), (64, 512, Some(2)), (8, 2048, None), (8, 2048, Some(3))]
            {
                let (m, capacity) = (sized(m, 5), sized(capacity, 192));
                let order = scattered(m, capacity, &mut seeded);
                let mut pages = Pages::new(b, element, &order, capacity, &mut seeded);
                let at = on(b, &positions(m, capacity));
                let (tables, width) = (on(b, &pages.tables), pages.width);
                let qkv = on(b, &seeded.floats(m * heads.qkv_len(), 2.0));
                let scratch = PagedScratch::alloc(b, heads, m, pages.cache.pages);
                let mut scratch = scratch.expect("memory for a step");
                let name =
                    format!("attention_paged {} {how} {m} {capacity} {share:?}", element.name());
                jobs.push(chosen(b, name, m * heads.q_len(), move |b, out| {
                    let reach = capacity;
                    let scratch = &mut scratch;
                    b.attention_paged(AttentionPaged {
                        qkv: &qkv,
                        cache: &mut pages.cache,
                        rope: &pages.rope,
                        out,
                        first: 0,
                        positions: RowWords { words: &at, at: 0, stride: 1 },
                        tables: RowWords { words: &tables, at: 0, stride: width },
                        capacity,
                        m,
                        heads,
                        math,
                        rows: PagedRows::Step(PagedStep {
                            scratch,
                            reach,
                            settled: false,
                            share,
                            next: None,
                        }),
                    })
                }));
            }
            // Prompts: several, one behind many keys, few rows behind many keys.
            let runs: [(usize, &[Run]); 3] = [
                (512, &[(0, 0, 200), (1, 300, 100), (2, 5, 77)]),
                (2048, &[(0, 1500, 400)]),
                (2048, &[(0, 1900, 16), (1, 1000, 5)]),
            ];
            for (capacity, runs) in runs {
                let capacity = sized(capacity, 192);
                let part = |&(row, start, m)| (row, sized(start, 100), sized(m, 20));
                let runs: Vec<_> = runs.iter().map(part).collect();
                let order = scattered(runs.len(), capacity, &mut seeded);
                let mut pages = Pages::new(b, element, &order, capacity, &mut seeded);
                let m = runs.iter().map(|run| run.2).sum::<usize>();
                let mut on_device = pages.runs(b, &runs);
                let qkv = on(b, &seeded.floats(m * heads.qkv_len(), 2.0));
                let name = format!("attention_paged {} {how} {runs:?}", element.name());
                jobs.push(chosen(b, name, m * heads.q_len(), move |b, out| {
                    pages.attend(b, &qkv, out, &mut on_device, math)
                }));
            }
        }
        [jobs, Jobs::new()]
    });
}

/// Elements of a row of a small model, and of its gated product.
fn widths() -> [usize; 2] {
    [sized(2560, 300), sized(6912, 150)]
}

const LAYERS: usize = 4;

/// A linear layer and the gain in front of it.
type Weights = Vec<(PackedLinear<Lane>, Buf<f32>)>;

/// The layers of a model as wide as one of 2B parameters.
fn weights(b: &Lane, seeded: &mut Seeded) -> Rc<Weights> {
    let (heads, [hidden, ffn]) = (heads(), widths());
    let sizes =
        [(heads.qkv_len(), hidden), (hidden, heads.q_len()), (2 * ffn, hidden), (hidden, ffn)];
    let one = |&(n, k): &(usize, usize)| {
        let segments = Segments::new(&[(n, 0.4)]).expect("a segment");
        let mut w = PackedLinear::alloc(b, "again", k, segments).expect("memory for weights");
        w.write_rows(b, 0, &seeded.packed_words(n, k)).expect("a copy");
        (w, on(b, &seeded.floats(k, 1.0)))
    };
    Rc::new(
        std::iter::repeat_n(sizes, LAYERS).flatten().collect::<Vec<_>>().iter().map(one).collect(),
    )
}

fn layers(weights: &Weights) -> Vec<Layer<'_, Lane>> {
    let linear = |i: usize| Linear { w: &weights[i].0, norm: Some(&weights[i].1) };
    let first = (0..weights.len()).step_by(4);
    first.map(|i| [linear(i), linear(i + 1), linear(i + 2), linear(i + 3)]).collect()
}

/// Copies `rows`, which a launch changes.
fn copy(b: &Lane, rows: &Buf<f32>, to: &mut Buf<f32>, len: usize) -> Result<(), OpError> {
    let function = Function::Affine { alpha: 1.0, beta: 0.0 };
    b.elementwise(Elementwise { a: rows, function, relu: false, y: to, m: 1, k: len })
}

#[test]
fn layers_in_one_kernel() {
    hold_all([500, 0], |b| {
        let (heads, [hidden, ffn]) = (heads(), widths());
        let sizes = shape(LAYERS, hidden, ffn, heads);
        let mut seeded = Seeded::new(72);
        let weights = weights(b, &mut seeded);
        let mut jobs = Jobs::new();
        // The first alone runs on every GPU; several rows do on one with enough multiprocessors.
        for (capacity, (math, how)) in
            [512, 2048].into_iter().flat_map(|c| BOTH.map(|how| (c, how)))
        {
            let capacity = sized(capacity, 192);
            let rope = Rc::new(angles(b, capacity));
            let (gate, eps, position) = (Gate::Relu2, 1e-5, capacity as u32 - 12);
            let mut caches: Vec<_> =
                (0..LAYERS).map(|_| cache(b, RowType::Bf16, capacity, &mut seeded)).collect();
            let table = DecodeTable::new(b, sizes, &layers(&weights), &caches);
            let mut table = table.expect("a table");
            let (row, at) = (on(b, &seeded.floats(hidden, 3.0)), on(b, &[position]));
            let (w, angles) = (weights.clone(), rope.clone());
            let name = format!("decode_layers {how} {position}");
            jobs.push(chosen(b, name, hidden, move |b, h| {
                copy(b, &row, h, hidden)?;
                b.decode_layers(DecodeLayers {
                    layers: &layers(&w),
                    caches: &mut caches,
                    table: &mut table,
                    rope: &angles,
                    h,
                    start: &at,
                    start_at: 0,
                    gate,
                    eps,
                    math,
                })
            }));
            for m in [1, 8, 16] {
                // Several rows are computed exactly.
                if m > 1 && (math != Math::Exact || !b.runs_rows_together(&sizes, m)) {
                    continue;
                }
                let element = PageType::Float(RowType::Bf16);
                // The same pages in every layer.
                let order = scattered(m, capacity, &mut seeded);
                let mut pool = || Pages::new(b, element, &order, capacity, &mut seeded).cache;
                let mut caches: Vec<_> = (0..LAYERS).map(|_| pool()).collect();
                let table = RowsTable::new(b, sizes, &layers(&weights), &caches, capacity, m);
                let mut table = table.expect("a table");
                let rows = on(b, &seeded.floats(m * hidden, 3.0));
                let (at, tables) = (on(b, &positions(m, capacity)), on(b, &order));
                let (w, angles) = (weights.clone(), rope.clone());
                let name = format!("decode_layers_paged {how} {m} {capacity}");
                jobs.push(chosen(b, name, m * hidden, move |b, h| {
                    copy(b, &rows, h, m * hidden)?;
                    b.decode_rows(DecodeRows {
                        layers: &layers(&w),
                        caches: &mut caches,
                        table: &mut table,
                        rope: &angles,
                        h,
                        positions: RowWords { words: &at, at: 0, stride: 1 },
                        tables: RowWords { words: &tables, at: 0, stride: capacity.div_ceil(PAGE) },
                        m,
                        gate,
                        eps,
                        math,
                    })
                }));
            }
        }
        [jobs, Jobs::new()]
    });
}
