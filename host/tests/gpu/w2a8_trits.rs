//! [`contract::w2a8_trits`]: every variant against the oracle, and against the bits of the 2-bit layout.

use bitnet_gpu::ops::bit_linear::{BitLinear, Finish};
use bitnet_gpu::ops::w2a8_gemm::W2a8Gemm;
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::w2a8_trits::{W2a8Trits, unpacked_len};
use bitnet_gpu::ops::{Backend, OpError, PackedLinear, QuantActs, Tensor, WeightLayout};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::w2a8_gemv::Case;
use bitnet_gpu::reference::w2a8_trits::{TEST_SHAPES, w2a8_trits, words};
use bitnet_gpu::selftest::{Output, w2a8_trits::Inputs};
use contract::w2a8::{MAX_K, Segments};
use contract::w2a8_trits::{VARIANTS, row_words};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    extreme_values
    segments
    unusual_scales
    the_largest_k
    generated_shapes
    rows_are_packed_as_the_contract_says
    refusals
}

/// One variant, or the automatic choice.
fn check_case<B: Backend>(b: &B, case: &Case, variants: impl Iterator<Item = Option<usize>>) {
    let (m, n, k) = (case.m, case.n, case.k);
    let want = [Output::floats("y", &[m, n], &w2a8_trits(case))];
    for variant in variants {
        let symbol = variant.map_or("choice", |v| VARIANTS[v].spec.symbol);
        check(b, &Inputs { case, variant }, &want, format!("{symbol} m={m} n={n} k={k}"));
    }
}

/// The automatic choice and, for one row, every variant.
fn all(m: usize) -> impl Iterator<Item = Option<usize>> {
    let variants = if m == 1 { VARIANTS.len() } else { 0 };
    std::iter::once(None).chain((0..variants).map(Some))
}

fn listed_shapes<B: Backend>(b: &B) {
    for &(m, n, k) in TEST_SHAPES {
        check_case(b, &Case::new(m, n, k, 1), all(m));
    }
}

fn extreme_values<B: Backend>(b: &B) {
    for (m, n, k) in [(1, 1, 1), (1, 5, 65), (1, 33, 700), (1, 4, 2560), (3, 5, 700)] {
        for t in [-1, 0, 1] {
            for q in [-128, -1, 0, 127] {
                let mut case = Case::new(m, n, k, 2);
                case.t.fill(t);
                case.q.fill(q);
                check_case(b, &case, all(m));
            }
        }
    }
}

fn segments<B: Backend>(b: &B) {
    for rows in [&[1, 1][..], &[31, 1, 32], &[7, 1, 2, 3, 5, 11, 1, 40], &[1, 128, 1]] {
        let scales = [0.5, -3.0, 1e-20, 7e8, 1.0, 0.0, 1.0 / 3.0, 2.25];
        let parts: Vec<_> = rows.iter().copied().zip(scales).collect();
        let mut case = Case::new(1, rows.iter().sum(), 321, 3);
        case.segments = Segments::new(&parts).expect("parts of the contract");
        check_case(b, &case, all(1));
    }
}

/// A broken row has the scale 0 or NaN, an empty one 1.27e7: see `contract::num::quantise`.
fn unusual_scales<B: Backend>(b: &B) {
    for scale in [0.0, f32::NAN, f32::INFINITY, 1e-40, 1.27e7, f32::MIN_POSITIVE] {
        let mut case = Case::new(1, 9, 130, 4);
        case.s[0] = scale;
        check_case(b, &case, all(1));
    }
}

/// Sums of up to 2^27: not every integer there is an `f32`.
fn the_largest_k<B: Backend>(b: &B) {
    let mut case = Case::new(1, 2, MAX_K, 5);
    case.t.fill(1);
    case.q.fill(-128);
    case.q[77] = 127;
    check_case(b, &case, all(1));
    case.t[..MAX_K].fill(-1);
    check_case(b, &case, all(1));
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("w2a8_trits") {
        let mut seeded = Seeded::new(4000 + i as u64);
        let (n, k) = (size(&mut seeded, 200), size(&mut seeded, 7000));
        let m = if i % 4 == 3 { size(&mut seeded, 20) } else { 1 };
        let variant = (m == 1).then_some(i % VARIANTS.len());
        check_case(b, &Case::new(m, n, k, i as u64), [None, variant].into_iter());
    }
}

fn rows_are_packed_as_the_contract_says<B: Backend>(b: &B) {
    for (n, k) in [(1, 1), (5, 513), (9, 2560)] {
        let case = Case::new(1, n, k, 6);
        let layout = WeightLayout::Trits;
        let mut w = PackedLinear::alloc_in(b, "test", k, case.segments, layout).expect("a matrix");
        // Rows one by one.
        let two = case.words();
        for (row, words) in two.chunks_exact(two.len() / n).enumerate() {
            w.write_rows(b, row, words).expect("a row");
        }
        let mut found = vec![0; n * row_words(k)];
        assert_eq!(w.words().len(), found.len());
        b.read(w.words(), 0, &mut found).expect("words");
        assert_eq!(found, words(&case), "n={n} k={k}");
    }
}

fn refusals<B: Backend>(b: &B) {
    let (n, k) = (40, 600);
    let segments = Segments::new(&[(n, 1.0)]).expect("one segment");
    let alloc = |layout| PackedLinear::alloc_in(b, "test", k, segments, layout).expect("a matrix");
    let (w, two) = (&alloc(WeightLayout::Trits), &alloc(WeightLayout::Bits2));
    let acts = &QuantActs::alloc(b, 3, k).expect("activations");
    let short_acts = &QuantActs::<B> { acts: zeros(b, 255), stats: zeros(b, 1) };
    let (y, no_y) = (&mut zeros::<B, f32>(b, 3 * n), &mut zeros::<B, f32>(b, n - 1));
    let (unpacked, none) = (&mut zeros::<B, u32>(b, unpacked_len(3, n, k)), &mut zeros(b, 1));
    let layout = |e: &OpError| matches!(e, OpError::Layout { .. });
    macro_rules! op {
        ($($field:ident $(: $value:expr)?),*) => {
            b.w2a8_trits(W2a8Trits { $($field $(: $value)?),* })
        };
    }
    refused!(short("acts"), op!(w, acts: short_acts, y, m: 1, unpacked: none, variant: None));
    refused!(short("y"), op!(w, acts, y: no_y, m: 1, unpacked: none, variant: None));
    refused!(short("unpacked"), op!(w, acts, y, m: 3, unpacked: none, variant: None));
    refused!(dimension("m"), op!(w, acts, y, m: 0, unpacked, variant: None));
    refused!(layout, op!(w: two, acts, y, m: 1, unpacked, variant: None));
    let over = Some(VARIANTS.len());
    refused!(dimension("variant"), op!(w, acts, y, m: 1, unpacked, variant: over));
    refused!(dimension("variant"), op!(w, acts, y, m: 2, unpacked, variant: Some(0)));

    // What takes the other layout.
    let variant = None;
    refused!(layout, b.w2a8_gemv(W2a8Gemv { w, acts, y, variant }));
    refused!(
        layout,
        b.w2a8_gemm(W2a8Gemm {
            chained: false,
            behind: Default::default(),
            w,
            acts,
            y,
            m: 3,
            variant
        })
    );
    let x = &zeros::<B, f32>(b, k);
    refused!(layout, b.bit_linear(BitLinear { x, norm: None, w, finish: Finish::Store { y } }));
}
