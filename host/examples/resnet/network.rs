//! The network: what torchvision's names say, as layers of this library's operations.
//!
//! ```text
//! conv1 7x7 s2 + bn1 + relu, max pool 3x3 s2, layer1 .. layer4, average pool, fc
//! basic block:      relu(conv2(relu(conv1 x)) + shortcut)               3x3, 3x3
//! bottleneck block: relu(conv3(relu(conv2(relu(conv1 x)))) + shortcut)  1x1, 3x3, 1x1
//! ```
//!
//! The first block of layer2 .. layer4 halves the image, in its 3x3 convolution that comes first. Each
//! convolution is one operation: norm folded into it, shortcut and relu in its epilogue.

use std::error::Error;

use bitnet_gpu::ops::conv2d::{
    Activation, BatchNorm, Conv2d, Conv2dWeights, Images, Layout, Window, fold_batch_norm,
};
use bitnet_gpu::ops::pool2d::{self, Kind, Pool2d, Pooling, Windows};
use bitnet_gpu::ops::{Backend, Float, Math, OpError};
use safetensors::{Dtype, SafeTensors};

type Size = [usize; 3];

/// A tensor of a file, as f32, with its shape.
pub(crate) fn floats(
    file: &SafeTensors<'_>,
    name: &str,
) -> Result<(Vec<usize>, Vec<f32>), Box<dyn Error>> {
    let tensor = file.tensor(name).map_err(|error| format!("{name}: {error}"))?;
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("{name} is {:?}; F32 is needed", tensor.dtype()).into());
    }
    let values = tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Ok((tensor.shape().to_vec(), values))
}

/// A convolution with its norm in it.
struct Layer<B: Backend, T: Float> {
    w: Conv2dWeights<B, T>,
    bias: B::Buf<f32>,
    window: Window,
    activation: Activation,
}

impl<B: Backend, T: Float> Layer<B, T> {
    fn load(
        backend: &B,
        file: &SafeTensors<'_>,
        (conv, norm): (&str, &str),
        stride: usize,
        activation: Activation,
    ) -> Result<Self, Box<dyn Error>> {
        let (shape, weights) = floats(file, &format!("{conv}.weight"))?;
        let of = |part: &str| Ok::<_, Box<dyn Error>>(floats(file, &format!("{norm}.{part}"))?.1);
        let norm = BatchNorm {
            gamma: &of("weight")?,
            beta: &of("bias")?,
            mean: &of("running_mean")?,
            variance: &of("running_var")?,
            eps: 1e-5,
        };
        let folded = fold_batch_norm(&weights, None, &norm)?;
        let window = Window::new(stride, shape.get(2).map_or(0, |r| r / 2));
        Self::new(backend, (&shape, &folded.weights), &folded.bias, window, activation)
    }

    fn new(
        backend: &B,
        (shape, weights): (&[usize], &[f32]),
        bias: &[f32],
        window: Window,
        activation: Activation,
    ) -> Result<Self, Box<dyn Error>> {
        let shape: [usize; 4] =
            shape.try_into().map_err(|_| format!("weights of shape {shape:?}"))?;
        let weights: Vec<T> = weights.iter().map(|&w| T::round(w)).collect();
        let w = Conv2dWeights::from_oihw(backend, "weights", &weights, shape, 1)?;
        let mut on_device = backend.alloc("bias", bias.len())?;
        backend.write(&mut on_device, 0, bias)?;
        Ok(Self { w, bias: on_device, window, activation })
    }

    fn images([n, h, w]: Size) -> Images {
        Images { n, h, w, layout: Layout::Nhwc }
    }

    /// The size of the output for input of `size`, and its elements.
    fn output(&self, size: Size) -> Result<(Size, usize), OpError> {
        let images = Self::images(size);
        let shape = bitnet_gpu::ops::conv2d::Shape {
            images,
            weights: *self.w.packed(),
            window: self.window,
        };
        let [n, k, p, q] = shape.output()?;
        Ok(([n, p, q], n * k * p * q))
    }

    fn run(
        &self,
        backend: &B,
        math: Math,
        size: &mut Size,
        (x, residual): (&B::Buf<T>, Option<&B::Buf<T>>),
        y: &mut B::Buf<T>,
    ) -> Result<(), OpError> {
        let Self { w, bias, window, activation } = self;
        let images = Self::images(*size);
        *size = self.output(*size)?.0;
        let (bias, window, activation) = (Some(bias), *window, *activation);
        backend.conv2d(Conv2d {
            x,
            w,
            bias,
            residual,
            y,
            images,
            window,
            activation,
            math,
            kernel: None,
        })
    }
}

struct Block<B: Backend, T: Float> {
    /// Two or three.
    convs: Vec<Layer<B, T>>,
    shortcut: Option<Layer<B, T>>,
}

/// A whole network.
pub(crate) struct Network<B: Backend, T: Float> {
    stem: Layer<B, T>,
    blocks: Vec<Block<B, T>>,
    head: Layer<B, T>,
    math: Math,
    name: String,
}

impl<B: Backend, T: Float> Network<B, T> {
    /// Reads the layers that the names of `file` speak of.
    pub(crate) fn load(
        backend: &B,
        file: &SafeTensors<'_>,
        math: Math,
    ) -> Result<Self, Box<dyn Error>> {
        let has = |name: &str| file.tensor(name).is_ok();
        let stem = Layer::load(backend, file, ("conv1", "bn1"), 2, Activation::Relu)?;
        let bottleneck = has("layer1.0.conv3.weight");
        let mut blocks = Vec::new();
        let mut weighted = 2; // stem and head
        for stage in 1..=4 {
            for index in 0.. {
                let block = format!("layer{stage}.{index}");
                if !has(&format!("{block}.conv1.weight")) {
                    break;
                }
                let stride = if stage > 1 && index == 0 { 2 } else { 1 };
                let last = if bottleneck { 3 } else { 2 };
                let mut convs = Vec::new();
                for i in 1..=last {
                    let names = (format!("{block}.conv{i}"), format!("{block}.bn{i}"));
                    // The first 3x3 convolution takes the stride.
                    let stride = if i == last - 1 { stride } else { 1 };
                    let names = (names.0.as_str(), names.1.as_str());
                    convs.push(Layer::load(backend, file, names, stride, Activation::Relu)?);
                }
                let [conv, norm] = [0, 1].map(|i| format!("{block}.downsample.{i}"));
                let shortcut = has(&format!("{conv}.weight"))
                    .then(|| Layer::load(backend, file, (&conv, &norm), stride, Activation::None));
                blocks.push(Block { convs, shortcut: shortcut.transpose()? });
                weighted += last;
            }
        }
        // A linear layer is a convolution of 1x1 images.
        let (shape, weights) = floats(file, "fc.weight")?;
        let shape = [&shape[..], &[1, 1]].concat();
        let bias = floats(file, "fc.bias")?.1;
        let window = Window::default();
        let head = Layer::new(backend, (&shape, &weights), &bias, window, Activation::None)?;
        Ok(Self { stem, blocks, head, math, name: format!("resnet{weighted}") })
    }

    /// `resnet` and the number of layers with weights on the longest way.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Classes that are told apart.
    pub(crate) fn classes(&self) -> usize {
        self.head.w.packed().k
    }

    fn pooling(&self, [n, h, w]: Size, kind: Kind, windows: Windows, c: usize) -> Pooling {
        Pooling { n, c, h, w, layout: pool2d::Layout::Nhwc, kind, windows }
    }

    fn stem_pooling(&self, size: Size) -> Pooling {
        let windows = Windows::Sliding {
            kernel: [3; 2],
            stride: [2; 2],
            padding: [1; 2],
            dilation: [1; 2],
            ceil_mode: false,
        };
        self.pooling(size, Kind::Max, windows, self.stem.w.packed().k)
    }

    /// Queues one forward pass over `scratch.x`.
    pub(crate) fn run(&self, backend: &B, scratch: &mut Scratch<B, T>) -> Result<(), OpError> {
        let Scratch { size, x, a, b, c, shortcut, logits } = scratch;
        let (math, mut size) = (self.math, *size);
        self.stem.run(backend, math, &mut size, (x, None), a)?;
        let pooling = self.stem_pooling(size);
        backend.pool2d(Pool2d { pooling, x: a, y: b })?;
        let [h, w] = pooling.axes()?;
        size = [size[0], h.out as usize, w.out as usize];
        // `b` holds the input of a block, and then its output.
        for block in &self.blocks {
            let mut short = size;
            if let Some(layer) = &block.shortcut {
                layer.run(backend, math, &mut short, (b, None), shortcut)?;
            }
            let residual = if block.shortcut.is_some() { &*shortcut } else { &*b };
            match &block.convs[..] {
                [one, two] => {
                    one.run(backend, math, &mut size, (b, None), a)?;
                    two.run(backend, math, &mut size, (a, Some(residual)), c)?;
                    std::mem::swap(b, c);
                }
                [one, two, three] => {
                    one.run(backend, math, &mut size, (b, None), a)?;
                    two.run(backend, math, &mut size, (a, None), c)?;
                    three.run(backend, math, &mut size, (c, Some(residual)), a)?;
                    std::mem::swap(b, a);
                }
                _ => unreachable!("blocks are loaded with two or three"),
            }
        }
        let channels = self.head.w.packed().c;
        let kind = Kind::Average { count_include_pad: false };
        let pooling = self.pooling(size, kind, Windows::Global, channels);
        backend.pool2d(Pool2d { pooling, x: b, y: a })?;
        self.head.run(backend, math, &mut [size[0], 1, 1], (a, None), logits)
    }
}

/// Tensors of one forward pass.
pub(crate) struct Scratch<B: Backend, T: Float> {
    size: Size,
    /// Images `[n, h, w, 3]`.
    pub(crate) x: B::Buf<T>,
    a: B::Buf<T>,
    b: B::Buf<T>,
    c: B::Buf<T>,
    shortcut: B::Buf<T>,
    /// `[n, classes]`.
    pub(crate) logits: B::Buf<T>,
}

impl<B: Backend, T: Float> Scratch<B, T> {
    /// Room for `[n, h, w]` images.
    pub(crate) fn new(backend: &B, network: &Network<B, T>, size: Size) -> Result<Self, OpError> {
        // Every intermediate fits into the largest of them.
        let (mut now, mut most) = network.stem.output(size)?;
        let [h, w] = network.stem_pooling(now).axes()?;
        now = [now[0], h.out as usize, w.out as usize];
        for block in &network.blocks {
            for layer in block.shortcut.iter().take(1) {
                most = most.max(layer.output(now)?.1);
            }
            for layer in &block.convs {
                let (next, len) = layer.output(now)?;
                (now, most) = (next, most.max(len));
            }
        }
        let [n, h, w] = size;
        let buf = || backend.alloc("activations", most);
        Ok(Self {
            size,
            x: backend.alloc("images", n * h * w * network.stem.w.packed().c)?,
            a: buf()?,
            b: buf()?,
            c: buf()?,
            shortcut: buf()?,
            logits: backend.alloc("logits", n * network.classes())?,
        })
    }
}
