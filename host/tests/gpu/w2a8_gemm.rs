//! [`contract::w2a8_gemm`] against the oracle, and against the bits of [`contract::w2a8_gemv`].

use std::sync::OnceLock;

use bitnet_gpu::ops::attention_paged::PagedCache;
use bitnet_gpu::ops::kv_append::Heads;
use bitnet_gpu::ops::w2a8_gemm::{Behind, KeysAhead, W2a8Gemm};
use bitnet_gpu::ops::{Backend, PackedLinear, QuantActs, RowType, RowWords};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::w2a8_gemm::{TEST_SHAPES, w2a8_gemm};
use bitnet_gpu::reference::w2a8_gemv::Case;
use bitnet_gpu::selftest::w2a8_gemm::Inputs;
use bitnet_gpu::selftest::w2a8_gemv;
use bitnet_gpu::selftest::{self, Output, RunError};
use contract::w2a8::{MAX_ROWS, Segments};
use contract::w2a8_gemm::VARIANTS;

use crate::support::{check, dimension, generated, on_lane, refused, repeats, short, size, zeros};

on_lane! {
    listed_shapes
    every_variant_at_the_edges_of_tiles
    extreme_values
    unusual_scales
    one_row_has_the_bits_of_gemv
    generated_shapes
    refusals
}

/// The choice and every variant; on a backend that has none, and runs at once, the choice alone.
fn all<B: Backend>() -> impl Iterator<Item = Option<usize>> {
    let variants = if B::AHEAD > 0 { VARIANTS.len() } else { 0 };
    std::iter::once(None).chain((0..variants).map(Some))
}

/// Runs `case` by those of `variants` that the device has.
fn check_case<B: Backend>(b: &B, case: &Case, variants: impl IntoIterator<Item = Option<usize>>) {
    let (m, n, k) = (case.m, case.n, case.k);
    let want = [Output::floats("y", &[m, n], &w2a8_gemm(case))];
    for variant in variants {
        let symbol = variant.map_or("choice", |v| VARIANTS[v].name);
        let inputs = Inputs { case, variant };
        if variant.is_some() && is_absent(b, &inputs) {
            continue;
        }
        check(b, &inputs, &want, format!("{symbol} m={m} n={n} k={k}"));
    }
}

fn is_absent<B: Backend>(b: &B, inputs: &Inputs<'_>) -> bool {
    static ABSENT: [OnceLock<bool>; VARIANTS.len()] = [const { OnceLock::new() }; VARIANTS.len()];
    let Some(slot) = inputs.variant.map(|v| &ABSENT[v]) else { return false };
    *slot.get_or_init(|| {
        let small = Case::new(1, 1, 1, 0);
        let run = selftest::run(b, &Inputs { case: &small, variant: inputs.variant });
        matches!(run, Err(RunError::Op(error)) if error.is_absent())
    })
}

#[test]
fn a_hopper_gpu_has_every_variant() {
    let shared = crate::lane::shared();
    if shared.describe().contains("(sm_90a)") {
        let case = Case::new(1, 1, 1, 0);
        for variant in all::<crate::lane::Lane>() {
            assert!(!is_absent(&*shared, &Inputs { case: &case, variant }), "{variant:?}");
        }
    }
}

fn listed_shapes<B: Backend>(b: &B) {
    for &(m, n, k) in TEST_SHAPES {
        // A sanitizer, for which runs are made short, takes minutes for so many blocks.
        let variants = if m >= 1 << 16 { repeats(usize::MAX) } else { usize::MAX };
        check_case(b, &Case::new(m, n, k, 1), all::<B>().take(variants));
    }
}

/// Rows that do not start on 16 bytes, tiles that end inside, parts of k that are empty, more token
/// tiles than stand in a band, and more tiles than a GPU has multiprocessors.
fn every_variant_at_the_edges_of_tiles<B: Backend>(b: &B) {
    for (m, n, k) in [(1, 64, 64), (33, 257, 513), (129, 66, 1025), (257, 131, 3000), (2600, 3, 70)]
    {
        check_case(b, &Case::new(m, n, k, 5), all::<B>());
    }
    let mut case = Case::new(3000, 1000, 40, 5);
    case.s[2900] = 1e-40;
    check_case(b, &case, all::<B>());
}

fn extreme_values<B: Backend>(b: &B) {
    for (m, n, k) in [(2, 1, 1), (9, 33, 700), (3, 70, 65)] {
        for t in [-1, 0, 1] {
            for q in [-128, 0, 127] {
                let mut case = Case::new(m, n, k, 2);
                case.t.fill(t);
                case.q.fill(q);
                check_case(b, &case, all::<B>());
            }
        }
    }
}

fn unusual_scales<B: Backend>(b: &B) {
    let mut case = Case::new(6, 37, 130, 3);
    case.s = vec![0.0, f32::NAN, f32::INFINITY, 1e-40, 1.27e7, f32::MIN_POSITIVE];
    let parts = [(1, -2.5), (30, 1e-20), (6, 3e30)];
    case.segments = Segments::new(&parts).expect("parts of the contract");
    check_case(b, &case, all::<B>());
}

fn one_row_has_the_bits_of_gemv<B: Backend>(b: &B) {
    for (n, k) in [(1, 1), (40, 513), (131, 2049)] {
        let case = Case::new(1, n, k, 4);
        let gemv =
            selftest::run(b, &w2a8_gemv::Inputs { case: &case, variant: None }).expect("gemv runs");
        let want = [Output { dims: vec![1, n], ..gemv[0].clone() }];
        let inputs = Inputs { case: &case, variant: None };
        check(b, &inputs, &want, format!("n={n} k={k}"));
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("w2a8_gemm") {
        let mut seeded = Seeded::new(2000 + i as u64);
        let [m, n, k] = [70, 140, 2600].map(|end| size(&mut seeded, end));
        // Large in one direction at a time: the oracle is plain loops.
        let k = k.min(2_000_000 / (m * n));
        let variants = [None, Some(i % VARIANTS.len())];
        check_case(b, &Case::new(m, n, k, i as u64), variants);
    }
}

fn refusals<B: Backend>(b: &B) {
    let (m, n, k) = (3, 40, 600);
    let segments = Segments::new(&[(n, 1.0)]).expect("one segment");
    let w = PackedLinear::alloc(b, "test", k, segments).expect("a matrix");
    let good = QuantActs::alloc(b, m, k).expect("activations");
    let no_acts = QuantActs::<B> { acts: zeros(b, 3 * 256 - 1), stats: zeros(b, m) };
    let no_stats = QuantActs::<B> { acts: zeros(b, 3 * 256), stats: zeros(b, m - 1) };
    let (mut y, mut no_y) = (zeros::<B, f32>(b, m * n), zeros::<B, f32>(b, m * n - 1));
    let y = &mut y;
    let over = Some(VARIANTS.len());
    let beyond = W2a8Gemm {
        chained: false,
        behind: Default::default(),
        w: &w,
        acts: &good,
        y,
        m,
        variant: over,
    };
    refused!(dimension("variant"), b.w2a8_gemm(beyond));
    refused!(
        dimension("m"),
        b.w2a8_gemm(W2a8Gemm {
            chained: false,
            behind: Default::default(),
            w: &w,
            acts: &good,
            y,
            m: 0,
            variant: None
        })
    );
    refused!(
        dimension("m"),
        b.w2a8_gemm(W2a8Gemm {
            chained: false,
            behind: Default::default(),
            w: &w,
            acts: &good,
            y,
            m: MAX_ROWS + 1,
            variant: None
        })
    );
    refused!(
        short("acts"),
        b.w2a8_gemm(W2a8Gemm {
            chained: false,
            behind: Default::default(),
            w: &w,
            acts: &good,
            y,
            m: m + 1,
            variant: None
        })
    );
    refused!(
        short("acts"),
        b.w2a8_gemm(W2a8Gemm {
            chained: false,
            behind: Default::default(),
            w: &w,
            acts: &no_acts,
            y,
            m,
            variant: None
        })
    );
    refused!(
        short("stats"),
        b.w2a8_gemm(W2a8Gemm {
            chained: false,
            behind: Default::default(),
            w: &w,
            acts: &no_stats,
            y,
            m,
            variant: None
        })
    );
    let heads = Heads { heads: 1, kv_heads: 1, head_dim: 8 };
    let cache = PagedCache::alloc(b, heads, 1, RowType::Bf16).expect("a page");
    let words = zeros::<B, u32>(b, m);
    for (tensor, at, block) in [("positions", 1, 0), ("tables", 0, 1)] {
        let of_rows = |at| RowWords { words: &words, at, stride: 1 };
        let (positions, tables) = (of_rows(at), of_rows(0));
        let behind = Behind::Keys(KeysAhead { cache: &cache, positions, tables, block });
        let (w, acts, y) = (&w, &good, &mut *y);
        refused!(
            short(tensor),
            b.w2a8_gemm(W2a8Gemm { chained: false, behind, w, acts, y, m, variant: None })
        );
    }
    let y = &mut no_y;
    refused!(
        short("y"),
        b.w2a8_gemm(W2a8Gemm {
            chained: false,
            behind: Default::default(),
            w: &w,
            acts: &good,
            y,
            m,
            variant: None
        })
    );
}
