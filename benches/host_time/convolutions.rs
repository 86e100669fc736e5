//! Convolutions and poolings.

use bitnet_benches::blank;
use bitnet_gpu::ops::conv2d::{
    Activation, Conv2d, Conv2dTernary, Conv2dTernaryWeights, Conv2dWeights, Images, Layout, Shape,
    Window,
};
use bitnet_gpu::ops::pool2d::{Kind, Pool2d, Pooling, Windows};
use bitnet_gpu::ops::sparse::{self, Bitmap, SparseConv2d};
use bitnet_gpu::ops::{Backend, Float, Math};
use bitnet_gpu::reference::pool2d::square;
use bitnet_gpu::selftest::sparse::shape;
use contract::conv2d::weights::Packed;
use half::bf16;

use super::Host;

const AVERAGE: Kind = Kind::Average { count_include_pad: true };

/// `[n, c, size, k, window, stride, groups]`: layers of ResNet-50, one of a batch of 1, the first
/// one, odd channels, groups, and depthwise ones.
const LAYERS: &[[usize; 7]] = &[
    [8, 64, 56, 64, 3, 1, 1],
    [8, 64, 56, 256, 1, 1, 1],
    [8, 256, 56, 512, 1, 2, 1],
    [1, 512, 7, 512, 3, 1, 1],
    [4, 3, 224, 64, 7, 2, 1],
    [2, 33, 31, 65, 3, 1, 1],
    [2, 128, 28, 128, 3, 1, 4],
    [8, 144, 56, 144, 3, 1, 144],
    [8, 96, 28, 96, 5, 2, 96],
    [1, 33, 31, 33, 7, 1, 33],
];

pub(super) fn measure(host: &mut Host) -> anyhow::Result<()> {
    for layout in [Layout::Nhwc, Layout::Nchw] {
        for &layer in LAYERS {
            dense::<f32>(host, layer, layout, Math::Exact)?;
            dense::<bf16>(host, layer, layout, Math::Exact)?;
            dense::<bf16>(host, layer, layout, Math::TensorCore)?;
            if layer[6] == 1 {
                ternary(host, layer, layout)?;
            }
        }
        pools::<f32>(host, layout)?;
        pools::<bf16>(host, layout)?;
    }
    pruned(host)
}

fn name(what: &str, [n, c, size, k, window, stride, groups]: [usize; 7], layout: Layout) -> String {
    let layout = if layout == Layout::Nchw { "nchw" } else { "nhwc" };
    format!("{what} {n}x{c}x{size} k{k} r{window} s{stride} g{groups} {layout}")
}

fn outputs([n, c, size, k, window, stride, groups]: [usize; 7], layout: Layout) -> usize {
    let images = Images { n, h: size, w: size, layout };
    let weights = Packed { k, c: c / groups, window: [window; 2], groups };
    let shape = Shape { images, weights, window: Window::new(stride, window / 2) };
    shape.output().map_or(0, |sides| sides.iter().product())
}

fn dense<T: Float>(
    host: &mut Host,
    layer: [usize; 7],
    layout: Layout,
    math: Math,
) -> anyhow::Result<()> {
    let [n, c, size, k, window, stride, groups] = layer;
    let by = if math == Math::Exact { "" } else { " tensor cores" };
    host.time(
        &name(&format!("conv2d {}{by}", T::TYPE.name()), layer, layout),
        |gpu| {
            let weights = vec![T::round(1.0); k * c / groups * window * window];
            let oihw = [k, c / groups, window, window];
            let w = Conv2dWeights::from_oihw(gpu, "bench", &weights, oihw, groups)?;
            Ok((w, blank::<_, T>(gpu, n * c * size * size)?, blank(gpu, outputs(layer, layout))?))
        },
        |gpu, (w, x, y)| {
            gpu.conv2d(Conv2d {
                x,
                w,
                bias: None,
                residual: None,
                y,
                images: Images { n, h: size, w: size, layout },
                window: Window::new(stride, window / 2),
                activation: Activation::None,
                math,
                kernel: None,
            })
        },
    )
}

fn ternary(host: &mut Host, layer: [usize; 7], layout: Layout) -> anyhow::Result<()> {
    let [n, c, size, k, window, stride, groups] = layer;
    host.time(
        &name("conv2d_ternary bf16", layer, layout),
        |gpu| {
            let oihw = [k, c / groups, window, window];
            let weights = vec![1i8; oihw.iter().product()];
            let segments = [(k, 0.5)];
            let w =
                Conv2dTernaryWeights::from_oihw(gpu, "bench", &weights, oihw, groups, &segments)?;
            let x = blank::<_, i8>(gpu, n * c * size * size)?;
            let (scales, y) =
                (blank::<_, f32>(gpu, n)?, blank::<_, bf16>(gpu, outputs(layer, layout))?);
            Ok((w, x, scales, y))
        },
        |gpu, (w, x, scales, y)| {
            gpu.conv2d_ternary(Conv2dTernary {
                x,
                scales,
                w,
                bias: None,
                residual: None,
                y,
                images: Images { n, h: size, w: size, layout },
                window: Window::new(stride, window / 2),
                activation: Activation::None,
                kernel: None,
            })
        },
    )
}

fn pools<T: Float>(host: &mut Host, layout: Layout) -> anyhow::Result<()> {
    let images = [8, 64, 112, 112];
    let whole = square([32, 512, 7, 7], layout, AVERAGE, [1, 1, 0]);
    let global = Pooling { windows: Windows::Global, ..whole };
    for (what, pooling) in [
        ("max_k2s2p0", square(images, layout, Kind::Max, [2, 2, 0])),
        ("max_k3s2p1", square(images, layout, Kind::Max, [3, 2, 1])),
        ("max_k5s1p2", square(images, layout, Kind::Max, [5, 1, 2])),
        ("max_k13s1p6", square([4, 256, 40, 40], layout, Kind::Max, [13, 1, 6])),
        ("max_k13s1p6", square([1, 8, 1000, 1000], layout, Kind::Max, [13, 1, 6])),
        ("max_k7s3p0", square([8, 63, 111, 111], layout, Kind::Max, [7, 3, 0])),
        ("avg_k2s2p0", square(images, layout, AVERAGE, [2, 2, 0])),
        ("avg_k3s1p1", square(images, layout, AVERAGE, [3, 1, 1])),
        ("avg_k7s1p3", square(images, layout, AVERAGE, [7, 1, 3])),
        ("avg_k7s1p3", square([16, 64, 20, 20], layout, AVERAGE, [7, 1, 3])),
        ("avg_k6s2p2", square([8, 64, 113, 113], layout, AVERAGE, [6, 2, 2])),
        ("avg_k9s4p2", square([1, 8, 1000, 1000], layout, AVERAGE, [9, 4, 2])),
        ("global_avg", global),
        ("global_max", Pooling { kind: Kind::Max, ..global }),
    ] {
        let Pooling { n, c, h, w, .. } = pooling;
        let [x, y] = pooling.lens()?;
        let layout = if layout == Layout::Nchw { "nchw" } else { "nhwc" };
        host.time(
            &format!("pool2d {what} {n}x{c}x{h}x{w} {layout} {}", T::TYPE.name()),
            |gpu| Ok([blank::<_, T>(gpu, x)?, blank(gpu, y)?]),
            |gpu, [x, y]| gpu.pool2d(Pool2d { pooling, x, y }),
        )?;
    }
    Ok(())
}

fn pruned(host: &mut Host) -> anyhow::Result<()> {
    let shape = shape(4, [56; 2], 64, 3, 1);
    let (n, k) = (64, shape.k());
    let dense: Vec<bf16> =
        (0..n * k).map(|i| if i % 10 == 0 { bf16::ONE } else { bf16::ZERO }).collect();
    let bitmap = Bitmap::from_dense(n, k, &dense)?;
    for (by, math) in [("exact", Math::Exact), ("tensor cores", Math::TensorCore)] {
        host.time(
            &format!("sparse conv2d 4x56x56x64 k{n} r3 bf16 {by}"),
            |gpu| {
                let w = SparseConv2d::upload(gpu, "bench", &bitmap, shape.kernel, shape.channels)?;
                let x = blank::<_, bf16>(gpu, 4 * 56 * 56 * 64)?;
                Ok((w, x, blank(gpu, shape.pixels() * n)?))
            },
            |gpu, (w, x, y)| {
                gpu.sparse_conv2d(sparse::Conv2d { w, x, y, shape, math, kernel: None })
            },
        )?;
    }
    Ok(())
}
