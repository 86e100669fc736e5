//! Convolutions and products, again and again: see [`crate::again`].
//!
//! Sizes are such that every multiprocessor has work and rings are filled many times. What the shape chooses runs most often, each
//! kernel that takes the shape when it is asked for less often.

use std::rc::Rc;

use bitnet_gpu::ops::bmm::{Bmm, Layout as Rows, Operand};
use bitnet_gpu::ops::conv2d::{
    Activation, Conv2d, Conv2dI8, Conv2dI8Weights, Conv2dTernary, Conv2dTernaryWeights,
    Conv2dWeights, Images, Layout, Window,
};
use bitnet_gpu::ops::sparse::{
    Bitmap, Conv2d as SparseConv, Csr, Linear, LinearCsr, LinearTernary, SparseConv2d, SparseCsr,
    SparseLinear, SparseTernary, TernaryBitmap,
};
use bitnet_gpu::ops::{Backend, Float, Math};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::conv2d::{Case, Extras, Scales, WholeCase};
use bitnet_gpu::reference::sparse::Matrix;
use bitnet_gpu::reference::w2a8_gemv::Case as Product;
use bitnet_gpu::selftest::sparse::{rounded, shape};
use contract::bmm::{Kind, VARIANTS};
use half::{bf16, f16};

use crate::again::{Again, Spare, asked, chosen, hold, on};
use crate::lane::{self, Lane};
use crate::steady_rows::quantised;
use crate::support::emulated_sms;

pub(crate) type Jobs = Vec<Box<dyn Again>>;

/// `full`, or `small` where a GPU is emulated.
pub(crate) fn sized(full: usize, small: usize) -> usize {
    if emulated_sms().is_some() { full.min(small) } else { full }
}

/// Holds what the shapes choose, and what is asked for, with dependent launch: each operation twice so often as [`hold`] is told.
pub(crate) fn hold_all([often, seldom]: [usize; 2], jobs: impl Fn(&Lane) -> [Jobs; 2]) {
    let shared = lane::shared();
    let ([mut chosen, mut asked], mut spare) = (jobs(&shared), Spare::default());
    hold(&shared, &mut chosen, often, &mut spare);
    if asked.len() > 1 {
        hold(&shared, &mut asked, seldom, &mut spare);
    }
}

/// Symbols of the kernels of a family that can be asked for.
fn symbols(family: &str) -> impl Iterator<Item = &'static str> {
    let of_family = contract::KERNELS.iter().filter(move |kernel| kernel.family == family);
    of_family.map(|kernel| kernel.spec.symbol).filter(|symbol| !symbol.contains("join"))
}

/// Images, channels in and out, window, stride and groups.
type Layer = (Layout, [usize; 2], [usize; 2], usize, usize, usize);

/// The sizes of layers of networks for images: square windows of 1, 3 and 7, strides, few and many channels, large and small images.
const LAYERS: &[Layer] = &[
    (Layout::Nhwc, [8, 56], [64, 64], 3, 1, 1),
    (Layout::Nhwc, [8, 56], [256, 64], 1, 1, 1),
    (Layout::Nhwc, [4, 56], [64, 256], 1, 1, 1),
    (Layout::Nhwc, [8, 56], [128, 128], 3, 2, 1),
    (Layout::Nhwc, [8, 28], [256, 512], 1, 2, 1),
    (Layout::Nhwc, [8, 14], [1024, 256], 1, 1, 1),
    (Layout::Nhwc, [8, 14], [256, 256], 3, 1, 1),
    (Layout::Nhwc, [8, 7], [512, 512], 3, 1, 1),
    (Layout::Nhwc, [2, 112], [3, 64], 7, 2, 1),
    (Layout::Nchw, [4, 28], [128, 128], 3, 1, 1),
    (Layout::Nhwc, [4, 28], [128, 128], 3, 1, 32),
    (Layout::Nhwc, [4, 56], [144, 144], 3, 1, 144),
    (Layout::Nhwc, [4, 28], [192, 192], 5, 2, 192),
    (Layout::Nchw, [4, 28], [192, 192], 3, 1, 192),
];

/// Tensors of a layer of elements `T`, small ones where a GPU is emulated.
fn case<T: Float>(&(layout, [n, size], [c, k], window, stride, groups): &Layer) -> Case {
    let (n, size) = (sized(n, 1), sized(size, 10));
    let [c, k, groups] = match groups == c {
        true => [sized(c, 40); 3],
        false => [sized(c, 72), sized(k, 72), sized(groups, 8)],
    };
    let images = Images { n, h: size, w: size, layout };
    // Those kernels that take few extras take these.
    let activation = if window == 1 { Activation::Relu } else { Activation::Silu };
    let extras = Extras { bias: true, residual: window > 1, activation };
    let (oihw, window) = ([k, c / groups, window, window], Window::new(stride, window / 2));
    Case::new(T::TYPE, images, oihw, groups, window, extras, (c + size) as u64)
}

fn floats<T: Float>(
    b: &Lane,
    [chosen_jobs, asked_jobs]: &mut [Jobs; 2],
    layer: &Layer,
    math: Math,
) {
    let case = case::<T>(layer);
    let round = |values: &[f32]| on(b, &rounded::<T>(values));
    let w = rounded::<T>(&case.w);
    let w = Conv2dWeights::from_oihw(b, "again", &w, case.oihw, case.groups).expect("weights");
    let (x, bias) = (round(&case.x), case.bias.as_ref().map(|bias| on(b, bias)));
    let tensors = Rc::new((x, w, bias, case.residual.as_ref().map(|values| round(values))));
    let (images, window, activation) = (case.images, case.window, case.activation);
    let job = |kernel: Option<&'static str>| {
        let t = tensors.clone();
        let name = format!("{} {:?} {math:?} {layer:?}", kernel.unwrap_or("conv2d"), T::TYPE);
        asked(b, name, case.output_len(), move |b, y| {
            let (x, w, bias, residual) = (&t.0, &t.1, t.2.as_ref(), t.3.as_ref());
            b.conv2d(Conv2d { x, w, bias, residual, y, images, window, activation, math, kernel })
        })
    };
    chosen_jobs.push(job(None).expect("a kernel for every layer"));
    // Half types share their kernels' text.
    if T::TYPE != f16::TYPE {
        asked_jobs.extend(symbols("conv2d").filter_map(|symbol| job(Some(symbol))));
    }
}

#[test]
fn convolutions_of_floats() {
    hold_all([160, 32], |b| {
        let mut jobs = [Jobs::new(), Jobs::new()];
        for layer in LAYERS {
            floats::<bf16>(b, &mut jobs, layer, Math::TensorCore);
        }
        for layer in LAYERS.iter().step_by(2) {
            floats::<f16>(b, &mut jobs, layer, Math::TensorCore);
        }
        // Exact ones go by other kernels; some layers say enough.
        for layer in LAYERS.iter().step_by(4) {
            floats::<f32>(b, &mut jobs, layer, Math::Exact);
            floats::<bf16>(b, &mut jobs, layer, Math::Exact);
        }
        jobs
    });
}

/// Convolutions of int8, and with ternaries where `T` is given.
fn whole<T: Float>(b: &Lane, [chosen_jobs, asked_jobs]: &mut [Jobs; 2], layer: &Layer) {
    let mut case = case::<T>(layer);
    case.residual = None;
    case.activation = Activation::Relu;
    let whole = WholeCase::new(case, true, 5);
    let (case, Some(Scales { images: scales, segments })) = (&whole.case, &whole.ternary) else {
        unreachable!("it is ternary")
    };
    let int8 = |values: &[f32]| values.iter().map(|&v| v as i8).collect::<Vec<_>>();
    let (x, w) = (on(b, &int8(&case.x)), int8(&case.w));
    let int8 = Conv2dI8Weights::from_oihw(b, "again", &w, case.oihw, case.groups);
    let w = Conv2dTernaryWeights::from_oihw(b, "again", &w, case.oihw, case.groups, segments);
    let (int8, w) = (int8.expect("weights"), w.expect("weights"));
    let bias = case.bias.as_ref().map(|bias| on(b, bias));
    let tensors = Rc::new((x, on(b, scales), w, int8, bias));
    let (images, window, activation) = (case.images, case.window, case.activation);
    let of_bytes = |kernel: Option<&'static str>| {
        let t = tensors.clone();
        let name = format!("{} {layer:?}", kernel.unwrap_or("conv2d_i8"));
        asked(b, name, case.output_len(), move |b, y| {
            b.conv2d_i8(Conv2dI8 { x: &t.0, w: &t.3, y, images, window, kernel })
        })
    };
    chosen_jobs.push(of_bytes(None).expect("a kernel for every layer"));
    let of_ternaries = |kernel: Option<&'static str>| {
        let t = tensors.clone();
        let name = format!("{} {:?} {layer:?}", kernel.unwrap_or("conv2d_ternary"), T::TYPE);
        asked::<T>(b, name, case.output_len(), move |b, y| {
            let (x, scales, w, bias, residual) = (&t.0, &t.1, &t.2, t.4.as_ref(), None);
            b.conv2d_ternary(Conv2dTernary {
                x,
                scales,
                w,
                bias,
                residual,
                y,
                images,
                window,
                activation,
                kernel,
            })
        })
    };
    chosen_jobs.push(of_ternaries(None).expect("a kernel for every layer"));
    asked_jobs.extend(symbols("conv2d").filter_map(|symbol| of_bytes(Some(symbol))));
    asked_jobs.extend(symbols("conv2d").filter_map(|symbol| of_ternaries(Some(symbol))));
}

#[test]
fn convolutions_of_whole_numbers() {
    hold_all([160, 32], |b| {
        let mut jobs = [Jobs::new(), Jobs::new()];
        for layer in LAYERS.iter().filter(|layer| layer.0 == Layout::Nhwc).step_by(2) {
            whole::<bf16>(b, &mut jobs, layer);
        }
        jobs
    });
}

/// `m`, `n`, `k` and matrices: large ones, long sums, few columns, and many where no side is long.
const PRODUCTS: &[([usize; 3], usize)] = &[
    ([1024, 1024, 1024], 1),
    ([1024, 512, 4096], 1),
    ([128, 256, 8192], 2),
    ([2048, 8, 2048], 2),
    ([32, 32, 32], 700),
    ([64, 64, 64], 250),
    ([16, 48, 64], 800),
];

fn products<T: Operand>(
    b: &Lane,
    [chosen_jobs, asked_jobs]: &mut [Jobs; 2],
    mut values: impl FnMut(usize) -> Vec<T>,
) {
    for &([m, n, k], batch) in PRODUCTS {
        let ([m, n, k], batch) = ([sized(m, 70), sized(n, 70), sized(k, 130)], sized(batch, 3));
        let tensors = Rc::new((on(b, &values(batch * m * k)), on(b, &values(batch * k * n))));
        let job = |variant: Option<usize>, math: Math, transposed: bool| {
            let t = tensors.clone();
            let symbol = variant.map_or("bmm", |v| VARIANTS[v].spec.symbol);
            let name = format!("{symbol} {:?} {math:?} {m} {n} {k} {batch}", T::KIND);
            let of = if transposed { Rows::columns } else { Rows::rows };
            asked(b, name, batch * m * n, move |b, c: &mut _| {
                b.bmm(Bmm::<_, T> {
                    a: &t.0,
                    a_layout: Rows::rows(m, k),
                    b: &t.1,
                    b_layout: of(k, n),
                    c,
                    c_layout: Rows::rows(m, n),
                    m,
                    n,
                    k,
                    batch,
                    alpha: T::ONE,
                    beta: T::ZERO,
                    math,
                    variant,
                })
            })
        };
        // Sums of i8 have one arithmetic.
        let other = if T::KIND == Kind::I8 { Math::Exact } else { Math::TensorCore };
        for (math, transposed) in [(Math::Exact, false), (other, true)] {
            chosen_jobs.push(job(None, math, transposed).expect("a kernel for every product"));
        }
        for (i, variant) in VARIANTS.iter().enumerate() {
            let math = if variant.tensor { Math::TensorCore } else { Math::Exact };
            if variant.kinds.contains(&T::KIND) {
                asked_jobs.extend(job(Some(i), math, false));
            }
        }
    }
}

#[test]
fn products_of_matrices() {
    hold_all([100, 16], |b| {
        let (mut jobs, mut seeded) = ([Jobs::new(), Jobs::new()], Seeded::new(50));
        products::<f32>(b, &mut jobs, |len| seeded.floats(len, 1.0));
        products::<bf16>(b, &mut jobs, |len| rounded(&seeded.floats(len, 1.0)));
        products::<f16>(b, &mut jobs, |len| rounded(&seeded.floats(len, 1.0)));
        products::<i8>(b, &mut jobs, |len| seeded.int8s(len));
        jobs
    });
}

/// Products with a pruned matrix of elements `T`, by the choice and by every kernel.
fn pruned<T: Float>(b: &Lane, [chosen_jobs, asked_jobs]: &mut [Jobs; 2], [n, k]: [usize; 2]) {
    let mut seeded = Seeded::new(51);
    let [n, k] = [sized(n, 136), sized(k, 520)];
    let dense = rounded::<T>(&Matrix::new(n, k, 0.9, &mut seeded).dense);
    let bitmap = Bitmap::from_dense(n, k, &dense).expect("a bitmap");
    let csr = Csr::from_dense(n, k, &dense).expect("compressed rows");
    let w = Rc::new(SparseLinear::upload(b, "again", &bitmap).expect("weights"));
    let csr = Rc::new(SparseCsr::upload(b, "again", &csr).expect("weights"));
    for m in [1, 8, 16, sized(64, 33)] {
        let x = Rc::new(on(b, &rounded::<T>(&seeded.floats(m * k, 1.0))));
        let job = |kernel: Option<&'static str>, math: Math| {
            let (x, w) = (x.clone(), w.clone());
            let symbol = kernel.unwrap_or("sparse");
            let name = format!("{symbol} {:?} {math:?} {m} {n} {k}", T::TYPE);
            asked(b, name, m * n, move |b, y| {
                b.sparse_linear(Linear { w: &w, x: &x, y, m, math, kernel })
            })
        };
        chosen_jobs.push(job(None, Math::Exact).expect("an exact kernel"));
        if T::TYPE == bf16::TYPE {
            chosen_jobs
                .push(job(None, Math::TensorCore).expect("tensor cores, or an exact kernel"));
            // Others that are asked for get the choice.
            let named = |symbol: &&str| symbol.contains("bulk") || symbol.contains("held");
            let each = symbols("sparse").filter(named);
            asked_jobs.extend(each.filter_map(|symbol| job(Some(symbol), Math::TensorCore)));
        }
        let csr = csr.clone();
        let name = format!("sparse_csr {:?} {m} {n} {k}", T::TYPE);
        asked_jobs.push(chosen(b, name, m * n, move |b, y| {
            b.sparse_csr(LinearCsr { w: &csr, x: &x, y, m })
        }));
    }
}

#[test]
fn pruned_products() {
    hold_all([160, 40], |b| {
        let mut jobs = [Jobs::new(), Jobs::new()];
        pruned::<bf16>(b, &mut jobs, [4096, 4096]);
        pruned::<bf16>(b, &mut jobs, [1024, 14_336]);
        pruned::<f16>(b, &mut jobs, [2048, 4096]);
        pruned::<f32>(b, &mut jobs, [2048, 4096]);
        let mut seeded = Seeded::new(52);
        let (size, c, n) = (sized(28, 9), sized(256, 24), sized(256, 40));
        for (batch, stride) in [(sized(4, 1), 1), (sized(8, 1), 2)] {
            let shape = shape(batch, [size; 2], c, 3, stride);
            let w = rounded::<bf16>(&Matrix::new(n, 9 * c, 0.9, &mut seeded).dense);
            let w = Bitmap::from_dense(n, 9 * c, &w).expect("a bitmap");
            let w = SparseConv2d::upload(b, "again", &w, [3; 2], c).expect("weights");
            let x = on(b, &rounded::<bf16>(&seeded.floats(batch * size * size * c, 1.0)));
            let tensors = Rc::new((w, x));
            for math in [Math::Exact, Math::TensorCore] {
                let t = tensors.clone();
                let name = format!("sparse_conv2d {math:?} {shape:?}");
                jobs[0].push(chosen(b, name, shape.pixels() * n, move |b, y| {
                    b.sparse_conv2d(SparseConv { w: &t.0, x: &t.1, y, shape, math, kernel: None })
                }));
            }
        }
        for m in [1, sized(16, 3)] {
            let case = Product::new(m, sized(4096, 132), sized(4096, 520), 53);
            let w = TernaryBitmap::new(case.k, &case.t, case.segments).expect("a bitmap");
            let w = SparseTernary::upload(b, "again", &w).expect("weights");
            let (acts, name) = (quantised(b, &case), format!("sparse_ternary {m}"));
            jobs[0].push(chosen(b, name, m * case.n, move |b, y| {
                b.sparse_ternary(LinearTernary { w: &w, acts: &acts, y, m })
            }));
        }
        jobs
    });
}
