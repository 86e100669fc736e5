//! [`contract::sparse`] for every format and type.

use bitnet_gpu::ops::sparse::{
    Bitmap, Conv2d, ConvShape, Csr, Linear, LinearCsr, LinearTernary, SparseConv2d, SparseCsr,
    SparseLinear, SparseTernary, TernaryBitmap, bitmap_from_torch,
};
use bitnet_gpu::ops::{Backend, Float, Math, QuantActs, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::sparse::{Matrix, TEST_SHAPES, conv2d, linear, unfold};
use bitnet_gpu::reference::w2a8_gemm::{self, w2a8_gemm};
use bitnet_gpu::reference::w2a8_gemv::Case;
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::sparse::{self as selftest, rounded};
use contract::sparse::MAX_SIDE;
use contract::w2a8::Segments;
use half::{bf16, f16};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    unusual_values
    generated_shapes
    tensor_cores_keep_their_bound
    kernels_that_hold_inputs
    ternary_is_exact
    convolutions
    convolutions_on_tensor_cores
    more_rows_than_a_grid_is_high
    nothing_to_do
    refusals
}

const TYPES: [RowType; 3] = [RowType::Bf16, RowType::F16, RowType::F32];

/// The numbers that an element type has left of these.
fn kept(element: RowType, values: &[f32]) -> Vec<f32> {
    fn through<T: Float>(values: &[f32]) -> Vec<f32> {
        rounded::<T>(values).into_iter().map(T::widen).collect()
    }
    match element {
        RowType::F32 => values.into(),
        RowType::F16 => through::<f16>(values),
        RowType::Bf16 => through::<bf16>(values),
    }
}

/// Whether the lane has the kernels of bitmaps: PTX levels below sm_75 do not.
fn bitmaps() -> bool {
    crate::lane::has("sparse_bf16_m1")
}

fn check_case<B: Backend>(b: &B, case: selftest::Linear) {
    let (m, [w_type, x_type]) = (case.m(), case.types);
    let Matrix { n, k, ref dense } = case.w;
    let w = Matrix { n, k, dense: kept(w_type, dense) };
    let y = linear(&w, &kept(x_type, &case.x), m);
    for csr in [false, true].into_iter().filter(|&csr| csr || bitmaps()) {
        let what = format!("m={m} n={n} k={k} {:?} csr={csr}", case.types);
        let case = selftest::Linear { csr, ..case.clone() };
        check(b, &case, &[Output::floats("y", &[m, n], &y)], what);
    }
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &(m, n, k) in TEST_SHAPES {
        for sparsity in [0.0, 0.5, 0.95, 1.0] {
            for types in TYPES.map(|w| [w, TYPES[seeded.below(3)]]) {
                let w = Matrix::new(n, k, sparsity, &mut seeded);
                let x = seeded.floats(m * k, 2.0);
                check_case(b, selftest::Linear::exact(w, x, types));
            }
        }
    }
}

fn unusual_values<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(2);
    for value in [-0.0, 1e-42, 1e38, f32::INFINITY, f32::NAN] {
        for types in TYPES.map(|w| [w, RowType::F32]) {
            for m in [1, 5] {
                let mut w = Matrix::new(19, 700, 0.8, &mut seeded);
                let mut x = seeded.floats(m * 700, 2.0);
                x[3] = value;
                x[640] = value;
                // A stored minus zero and a stored special value.
                w.dense[700 + 3] = -0.0;
                w.dense[5 * 700 + 64] = value;
                check_case(b, selftest::Linear::exact(w, x, types));
            }
        }
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("sparse") {
        let mut seeded = Seeded::new(9000 + i as u64);
        let (m, n, k) = (1 + seeded.below(6), size(&mut seeded, 90), size(&mut seeded, 2500));
        // Rows of one matrix may differ much: some full, some empty.
        let mut w = Matrix::new(n, k, seeded.below(101) as f32 / 100.0, &mut seeded);
        let (full, empty) = (seeded.below(n), seeded.below(n));
        w.dense[full * k..][..k].fill(1.5);
        w.dense[empty * k..][..k].fill(0.0);
        let types = [TYPES[i % 3], TYPES[seeded.below(3)]];
        let x = seeded.floats(m * k, 2.0);
        check_case(b, selftest::Linear::exact(w, x, types));
    }
}

fn tensor_cores_keep_their_bound<B: Backend>(b: &B) {
    if !bitmaps() {
        return;
    }
    let mut seeded = Seeded::new(3);
    // Rows of whole pieces and not, short and long, with full tiles, half full ones and few units.
    for (m, n, k) in [
        (1, 1, 1),
        (2, 17, 33),
        (8, 40, 1100),
        (9, 16, 512),
        (16, 70, 2049),
        (33, 5, 700),
        (4, 33, 1104),
        (7, 50, 5128),
        (16, 70, 2056),
        (33, 5, 704),
        (3, 40, 16_392),
        (6, 17, 16_640),
        (12, 33, 17_000),
        // More blocks than are there at once.
        (7, 12_700, 72),
    ] {
        for sparsity in [0.0, 0.5, 0.7, 0.9] {
            on_tensor_cores(b, (m, n, k), sparsity, None, &mut seeded);
        }
    }
}

fn kernels_that_hold_inputs<B: Backend>(b: &B) {
    if !bitmaps() {
        return;
    }
    let mut seeded = Seeded::new(13);
    // Fewer column tiles than warps and more, a last group that is not full; the last rows make blocks of several groups.
    for (m, n, k) in [
        (1, 1, 8),
        (3, 17, 40),
        (8, 40, 1104),
        (9, 16, 512),
        (16, 70, 2056),
        (5, 33, 5128),
        (13, 50, 8200),
        (7, 2_200, 1032),
        (16, 2_130, 3080),
        (2, 6_400, 72),
        (11, 8_500, 16),
    ] {
        for sparsity in [0.0, 0.5, 0.9, 1.0] {
            let kernels = if m <= 8 {
                ["sparse_bf16_held8", "sparse_bf16_held8_pair"]
            } else {
                ["sparse_bf16_held16", "sparse_bf16_held16_pair"]
            };
            for kernel in kernels {
                on_tensor_cores(b, (m, n, k), sparsity, Some(kernel), &mut seeded);
            }
        }
    }
}

/// A product by `kernel`, where the lane has it, is within its bound.
fn on_tensor_cores<B: Backend>(
    b: &B,
    (m, n, k): (usize, usize, usize),
    sparsity: f32,
    kernel: Option<&'static str>,
    seeded: &mut Seeded,
) {
    let w = Matrix::new(n, k, sparsity, seeded);
    let x = kept(RowType::Bf16, &seeded.floats(m * k, 2.0));
    let bitmap = Bitmap::from_dense(n, k, &rounded::<bf16>(&w.dense)).expect("a matrix");
    let on_b = SparseLinear::upload(b, "test", &bitmap).expect("memory");
    let mut x_on_b = b.alloc("test", m * k).expect("memory");
    b.write(&mut x_on_b, 0, &rounded::<bf16>(&x)).expect("a copy");
    let mut y_on_b = zeros::<B, f32>(b, m * n);
    b.fill(&mut y_on_b, 0xff).expect("a fill");
    let math = Math::TensorCore;
    b.sparse_linear(Linear { w: &on_b, x: &x_on_b, y: &mut y_on_b, m, math, kernel })
        .expect("runs");
    let mut y = vec![f32::NAN; m * n];
    b.read(&y_on_b, 0, &mut y).expect("a copy");
    within(&w, &x, &y, format!("m={m} n={n} k={k} {sparsity} {kernel:?}"));
}

fn ternary_is_exact<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(5);
    for i in 0..60 {
        let (m, n, k) = match w2a8_gemm::TEST_SHAPES.get(i) {
            Some(&shape) => shape,
            None => (1 + seeded.below(9), size(&mut seeded, 60), size(&mut seeded, 3000)),
        };
        let mut case = Case::new(m, n, k, seeded.bits());
        // Also rows of nothing and rows of nothing but -1.
        case.t[..k].fill(0);
        case.t[(n - 1) * k..].fill(-1);
        let want = [Output::floats("y", &[m, n], &w2a8_gemm(&case))];
        check(b, &selftest::Ternary { case: &case }, &want, format!("m={m} n={n} k={k}"));
    }
}

/// Any convolution whose kernel fits.
fn any_shape(seeded: &mut Seeded, channels: usize) -> ConvShape {
    loop {
        let mut two = |end: usize| [seeded.below(end), seeded.below(end)];
        let ([height, width], kernel, stride) = (two(12), two(4), two(3));
        let shape = ConvShape {
            batch: 1 + height % 2,
            height: height + 1,
            width: width + 1,
            channels,
            kernel: kernel.map(|side| side + 1),
            stride: stride.map(|side| side + 1),
            padding: two(4),
            dilation: two(3).map(|side| side + 1),
        };
        if shape.pixels() > 0 {
            return shape;
        }
    }
}

fn convolutions<B: Backend>(b: &B) {
    if !bitmaps() {
        return;
    }
    for i in 0..generated("sparse conv2d") / 2 {
        let mut seeded = Seeded::new(9500 + i as u64);
        let (channels, n) = (1 + seeded.below(40), 1 + seeded.below(40));
        let shape = any_shape(&mut seeded, channels);
        let w = Matrix::new(n, shape.k(), seeded.below(101) as f32 / 100.0, &mut seeded);
        let mut x = seeded.floats(shape.batch * shape.height * shape.width * channels, 2.0);
        if i % 5 == 0 {
            x[0] = f32::NAN;
        }
        let types = [TYPES[i % 3], if i % 2 == 0 { RowType::F32 } else { TYPES[i % 3] }];
        let rounded = Matrix { dense: kept(types[0], &w.dense), ..w };
        let y = conv2d(&rounded, &kept(types[1], &x), &shape);
        let [height, width] = shape.out();
        let want = [Output::floats("y", &[shape.batch, height, width, n], &y)];
        let case = selftest::Conv { w, x, shape, types, math: Math::Exact, kernel: None };
        check(b, &case, &want, format!("n={n} {shape:?} {types:?}"));
    }
}

fn convolutions_on_tensor_cores<B: Backend>(b: &B) {
    if !bitmaps() {
        return;
    }
    const LINES: [&str; 3] =
        ["sparse_conv2d_lines", "sparse_conv2d_lines_pair", "sparse_conv2d_lines_split"];
    for i in 0..generated("sparse conv2d on tensor cores") / 4 {
        let mut seeded = Seeded::new(9800 + i as u64);
        // Every other case is one that a Hopper GPU may take in lines: by which kernel turns.
        let lines = i % 2 == 0;
        let channels = if lines { 64 * (1 + seeded.below(4)) } else { 8 * (1 + seeded.below(40)) };
        let n = 1 + seeded.below(if i % 8 == 0 { 140 } else { 40 });
        let kernel = lines.then_some(LINES[i / 2 % 3]);
        let shape = any_shape(&mut seeded, channels);
        let w = Matrix::new(n, shape.k(), 0.8, &mut seeded);
        let len = shape.batch * shape.height * shape.width * channels;
        let x = kept(RowType::Bf16, &seeded.floats(len, 2.0));
        let bitmap =
            Bitmap::from_dense(n, shape.k(), &rounded::<bf16>(&w.dense)).expect("a matrix");
        let on_b =
            SparseConv2d::upload(b, "test", &bitmap, shape.kernel, channels).expect("memory");
        let mut x_on_b = b.alloc("test", len).expect("memory");
        b.write(&mut x_on_b, 0, &rounded::<bf16>(&x)).expect("a copy");
        let mut y_on_b = zeros::<B, f32>(b, shape.pixels() * n);
        let math = Math::TensorCore;
        b.sparse_conv2d(Conv2d { w: &on_b, x: &x_on_b, y: &mut y_on_b, shape, math, kernel })
            .expect("runs");
        let mut y = vec![f32::NAN; shape.pixels() * n];
        b.read(&y_on_b, 0, &mut y).expect("a copy");
        within(&w, &unfold(&x, &shape), &y, format!("n={n} {shape:?}"));
    }
}

/// Holds every output against the bound of tensor cores.
fn within(w: &Matrix, x: &[f32], y: &[f32], what: String) {
    for (i, &found) in y.iter().enumerate() {
        let (input, row) = (i / w.n, i % w.n);
        let (w, x) = (&w.dense[row * w.k..][..w.k], &x[input * w.k..][..w.k]);
        let products = || w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
        let (sum, most) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
        let off = (f64::from(found) - sum).abs();
        assert!(off <= most * 2f64.powi(-18), "{what} {input} {row}: {off} of {most}");
    }
}

fn more_rows_than_a_grid_is_high<B: Backend>(b: &B) {
    // 65,535 blocks of four inputs, and some.
    let (m, n, k) = (4 * 65_535 + 7, 2, 3);
    let mut seeded = Seeded::new(12);
    let w = Matrix::new(n, k, 0.3, &mut seeded);
    let x = seeded.floats(m * k, 2.0);
    let types = [RowType::Bf16, RowType::F32];
    check_case(b, selftest::Linear::exact(w, x, types));
}

fn nothing_to_do<B: Backend>(b: &B) {
    let w = Bitmap::from_dense(3, 5, &[1.0f32; 15]).expect("a matrix");
    let csr = SparseCsr::upload(b, "test", &w.to_csr().expect("a matrix")).expect("memory");
    let w = &SparseLinear::upload(b, "test", &w).expect("memory");
    let (x, y, m) = (&zeros::<B, f32>(b, 0), &mut zeros::<B, f32>(b, 0), 0);
    b.sparse_linear(Linear { w, x, y, m, math: Math::Exact, kernel: None }).expect("no rows");
    b.sparse_csr(LinearCsr { w: &csr, x, y, m }).expect("no rows");
    // Nothing stored: sums of nothing, whatever is in x.
    let empty = Csr::<f32>::new(2, 3, vec![0; 3], vec![], vec![]).expect("a matrix");
    let csr = SparseCsr::upload(b, "test", &empty).expect("memory");
    let mut x = zeros::<B, f32>(b, 3);
    b.write(&mut x, 0, &[f32::NAN; 3]).expect("a copy");
    let mut y = zeros::<B, f32>(b, 2);
    b.fill(&mut y, 0xff).expect("a fill");
    b.sparse_csr(LinearCsr { w: &csr, x: &x, y: &mut y, m: 1 }).expect("runs");
    let mut found = [1.0; 2];
    b.read(&y, 0, &mut found).expect("a copy");
    assert_eq!(found.map(f32::to_bits), [0; 2]);
}

fn refusals<B: Backend>(b: &B) {
    let dense: Vec<f16> = rounded(&Seeded::new(4).floats(10 * 33, 1.0));
    let w = Bitmap::from_dense(10, 33, &dense).expect("a matrix");
    let w = &SparseLinear::upload(b, "test", &w).expect("memory");
    let (x, few_x) = (&zeros::<B, f32>(b, 66), &zeros::<B, f32>(b, 65));
    let (y, few) = (&mut zeros::<B, f32>(b, 20), &mut zeros::<B, f32>(b, 19));
    let (m, math, kernel) = (2, Math::Exact, None);
    refused!(dimension("m"), b.sparse_linear(Linear { w, x, y, m: MAX_SIDE + 1, math, kernel }));
    refused!(short("x"), b.sparse_linear(Linear { w, x: few_x, y, m, math, kernel }));
    refused!(short("y"), b.sparse_linear(Linear { w, x, y: few, m, math, kernel }));
    let math = Math::TensorCore;
    refused!(dimension("bits of an element"), b.sparse_linear(Linear { w, x, y, m, math, kernel }));

    let csr = Csr::from_dense(10, 33, &dense).expect("a matrix");
    let w = &SparseCsr::upload(b, "test", &csr).expect("memory");
    refused!(dimension("m"), b.sparse_csr(LinearCsr { w, x, y, m: MAX_SIDE + 1 }));
    refused!(short("x"), b.sparse_csr(LinearCsr { w, x: few_x, y, m }));
    refused!(short("y"), b.sparse_csr(LinearCsr { w, x, y: few, m }));

    let segments = Segments::new(&[(10, 1.0)]).expect("ten rows");
    let w = TernaryBitmap::new(33, &[1; 330], segments).expect("a matrix");
    let w = &SparseTernary::upload(b, "test", &w).expect("memory");
    let acts = &QuantActs::alloc(b, 2, 33).expect("memory");
    refused!(short("acts"), b.sparse_ternary(LinearTernary { w, acts, y, m: 3 }));
    refused!(short("y"), b.sparse_ternary(LinearTernary { w, acts, y: few, m }));

    let weights: Vec<f32> = Seeded::new(6).floats(4 * 3 * 2 * 2, 1.0);
    let w = bitmap_from_torch(4, 3, [2, 2], &weights).expect("weights");
    let w = &SparseConv2d::upload(b, "test", &w, [2, 2], 3).expect("memory");
    let shape = ConvShape { kernel: [2, 2], ..selftest::shape(1, [4, 4], 3, 1, 1) };
    let (x, few_x) = (&zeros::<B, f32>(b, 48), &zeros::<B, f32>(b, 47));
    let (y, few) = (&mut zeros::<B, f32>(b, 36), &mut zeros::<B, f32>(b, 35));
    let math = Math::Exact;
    refused!(short("x"), b.sparse_conv2d(Conv2d { w, x: few_x, y, shape, math, kernel: None }));
    refused!(short("y"), b.sparse_conv2d(Conv2d { w, x, y: few, shape, math, kernel: None }));
    for (what, shape) in [
        ("stride", ConvShape { stride: [0, 1], ..shape }),
        ("dilation", ConvShape { dilation: [1, 0], ..shape }),
        ("height", ConvShape { height: 0, ..shape }),
        ("padding", ConvShape { padding: [usize::MAX, 0], ..shape }),
        (
            "reach of the kernel",
            ConvShape { dilation: [MAX_SIDE, MAX_SIDE], kernel: [2, 3], ..shape },
        ),
        ("output pixels", ConvShape { batch: usize::MAX, ..shape }),
    ] {
        refused!(dimension(what), b.sparse_conv2d(Conv2d { w, x, y, shape, math, kernel: None }));
    }
    // A kernel that does not fit, and no images: nothing to do.
    for shape in [ConvShape { height: 1, ..shape }, ConvShape { batch: 0, ..shape }] {
        b.sparse_conv2d(Conv2d { w, x, y, shape, math, kernel: None }).expect("no pixels");
    }
}
