//! [`contract::conv2d`] on a GPU: the convolutions of ResNet-50, depthwise and grouped ones, batches of 1 and 32.

use std::cell::OnceCell;
use std::marker::PhantomData;
use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::conv2d::{
    Activation, Conv2d, Conv2dTernary, Conv2dTernaryWeights, Conv2dWeights, Images, Layout, Shape,
    Window,
};
use bitnet_gpu::ops::{Backend, Float, Math, OpError, RowType};
use bitnet_gpu::reference::Inputs;
use bitnet_gpu::reference::conv2d::{
    BENCH_SHAPES, DEPTHWISE_SHAPES, GROUPED_SHAPES, PLANES_SHAPES, TERNARY_SHAPES, UNEVEN_SHAPES,
};
use contract::conv2d::weights::Packed;
use half::bf16;

/// A square convolution of images, padded by half of the window; windows that touch are not padded.
#[derive(Clone, Copy)]
struct Layer {
    n: usize,
    c: usize,
    size: usize,
    k: usize,
    window: usize,
    stride: usize,
    groups: usize,
    layout: Layout,
}

impl Layer {
    fn name(&self, what: &str) -> String {
        let Self { n, c, size, k, window, stride, groups, layout } = self;
        let planes = if *layout == Layout::Nchw { " nchw" } else { "" };
        format!("{what} {n}x{c}x{size} k{k} r{window} s{stride} g{groups}{planes}")
    }

    fn images(&self) -> Images {
        Images { n: self.n, h: self.size, w: self.size, layout: self.layout }
    }

    fn window(&self) -> Window {
        Window::new(self.stride, if self.window == self.stride { 0 } else { self.window / 2 })
    }

    fn oihw(&self) -> [usize; 4] {
        [self.k, self.c / self.groups, self.window, self.window]
    }

    fn weights(&self) -> usize {
        self.oihw().iter().product()
    }

    fn inputs(&self) -> usize {
        self.n * self.c * self.size * self.size
    }

    fn outputs(&self) -> usize {
        let [k, c, r, s] = self.oihw();
        let weights = Packed { k, c, window: [r, s], groups: self.groups };
        let shape = Shape { images: self.images(), weights, window: self.window() };
        shape.output().map_or(0, |output| output.iter().product())
    }

    fn terms(&self) -> usize {
        self.weights() / self.k
    }
}

struct Floats<T> {
    layer: Layer,
    math: Math,
    /// Images and weights, made once: every copy of the tensors holds the same.
    host: OnceCell<[Vec<T>; 2]>,
}

struct Tensors<B: Backend, T: Float> {
    x: B::Buf<T>,
    w: Conv2dWeights<B, T>,
    y: B::Buf<T>,
}

impl<T: Float> Floats<T> {
    const fn new(layer: Layer, math: Math) -> Self {
        Self { layer, math, host: OnceCell::new() }
    }

    /// Whole numbers for tensor cores: their sums are exact in any order, so bits can be compared.
    fn values(&self, seed: u64, count: usize, reach: f32) -> Vec<T> {
        let values = uniform(seed, count, reach).into_iter();
        match self.math {
            Math::Exact => values.map(T::round).collect(),
            Math::TensorCore => values.map(|v| T::round(v.round())).collect(),
        }
    }
}

impl<T: Float> Case for Floats<T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        self.layer.name(T::TYPE.name())
    }

    fn bytes(&self) -> u64 {
        let elements = self.layer.inputs() + self.layer.weights() + self.layer.outputs();
        (elements * T::TYPE.bytes()) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        let layer = &self.layer;
        let [x, w] = self.host.get_or_init(|| {
            [self.values(1, layer.inputs(), 2.5), self.values(2, layer.weights(), 1.5)]
        });
        Ok(Tensors {
            x: upload(backend, x)?,
            w: Conv2dWeights::from_oihw(backend, "bench", w, layer.oihw(), layer.groups)?,
            y: blank(backend, layer.outputs())?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        backend.conv2d(Conv2d {
            x: &t.x,
            w: &t.w,
            bias: None,
            residual: None,
            y: &mut t.y,
            images: self.layer.images(),
            window: self.layer.window(),
            activation: Activation::None,
            math: self.math,
            kernel: None,
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

struct Ternary<'a, T> {
    layer: Layer,
    /// Images and weights, of every type of outputs.
    host: &'a OnceCell<[Vec<i8>; 2]>,
    output: PhantomData<T>,
}

struct TernaryTensors<B: Backend, T: Float> {
    x: B::Buf<i8>,
    scales: B::Buf<f32>,
    w: Conv2dTernaryWeights<B>,
    y: B::Buf<T>,
}

impl<T: Float> Case for Ternary<'_, T> {
    type Tensors<B: Backend> = TernaryTensors<B, T>;

    fn name(&self) -> String {
        self.layer.name(if T::TYPE == RowType::F32 { "ternary" } else { "ternary-bf16" })
    }

    fn bytes(&self) -> u64 {
        (self.layer.inputs() + self.layer.weights() / 4 + T::TYPE.bytes() * self.layer.outputs())
            as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<TernaryTensors<B, T>, OpError> {
        let layer = &self.layer;
        let [x, t] = self.host.get_or_init(|| {
            let mut inputs = Inputs::new(3);
            [inputs.int8s(layer.inputs()), inputs.ternaries(layer.weights())]
        });
        let segments = [(layer.k, 0.5)];
        Ok(TernaryTensors {
            x: upload(backend, x)?,
            scales: upload(backend, &vec![50.0; layer.n])?,
            w: Conv2dTernaryWeights::from_oihw(backend, "bench", t, layer.oihw(), 1, &segments)?,
            y: blank(backend, layer.outputs())?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut TernaryTensors<B, T>) -> Result<(), OpError> {
        backend.conv2d_ternary(Conv2dTernary {
            x: &t.x,
            scales: &t.scales,
            w: &t.w,
            bias: None,
            residual: None,
            y: &mut t.y,
            images: self.layer.images(),
            window: self.layer.window(),
            activation: Activation::None,
            kernel: None,
        })
    }

    fn output<B: Backend>(
        &self,
        backend: &B,
        t: &TernaryTensors<B, T>,
    ) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

/// Layers of `shapes`, for batches of `batches`; `groups` of so many channels.
fn layers(
    batches: &'static [usize],
    shapes: impl Iterator<Item = &'static [usize; 5]> + Clone,
    groups: fn(usize) -> usize,
    layout: Layout,
) -> impl Iterator<Item = Layer> {
    batches.iter().flat_map(move |&n| {
        shapes.clone().map(move |&[c, size, k, window, stride]| Layer {
            n,
            c,
            size,
            k,
            window,
            stride,
            groups: groups(c),
            layout,
        })
    })
}

fn main() -> ExitCode {
    fn measure<C: Case>(
        suite: &mut bitnet_benches::Suite,
        case: &C,
        layer: Layer,
    ) -> anyhow::Result<()> {
        if let Some(row) = suite.measure(case)?
            && let Some(us) = row.warm.map(|t| t.us.median)
        {
            let operations = 2.0 * (layer.outputs() * layer.terms()) as f64;
            row.set("tera_operations_per_s", operations / us / 1e6);
        }
        Ok(())
    }
    run("conv2d", |suite| {
        let (both, nhwc, nchw) = (&[32, 1], Layout::Nhwc, Layout::Nchw);
        let dense = layers(both, BENCH_SHAPES.iter(), |_| 1, nhwc);
        let depthwise = layers(both, DEPTHWISE_SHAPES.iter(), |c| c, nhwc);
        // A third of them says enough of planes.
        let planes = layers(both, DEPTHWISE_SHAPES.iter().step_by(3), |c| c, nchw);
        let grouped = layers(both, GROUPED_SHAPES.iter(), |_| 32, nhwc);
        for layer in dense.chain(depthwise).chain(planes).chain(grouped) {
            measure(suite, &Floats::<f32>::new(layer, Math::Exact), layer)?;
            measure(suite, &Floats::<bf16>::new(layer, Math::TensorCore), layer)?;
        }
        let uneven = layers(both, UNEVEN_SHAPES.iter(), |_| 1, nhwc);
        let turned = layers(both, PLANES_SHAPES.iter(), |_| 1, nchw);
        for layer in uneven.chain(turned) {
            measure(suite, &Floats::<bf16>::new(layer, Math::TensorCore), layer)?;
        }
        for layer in layers(both, TERNARY_SHAPES.iter(), |_| 1, nhwc) {
            let host = &OnceCell::new();
            measure(suite, &Ternary::<bf16> { layer, host, output: PhantomData }, layer)?;
            // Small images say enough of outputs that are twice as long.
            if layer.size < 28 {
                measure(suite, &Ternary::<f32> { layer, host, output: PhantomData }, layer)?;
            }
        }
        let notes = [
            "cases are element, N x C x size, output channels, window, stride, groups; channels last, or nchw",
            "bf16 is Math::TensorCore, on whole numbers, compared by bits; depthwise bf16 is exact",
        ];
        suite.report().notes.extend(notes.map(String::from));
        Ok(())
    })
}
