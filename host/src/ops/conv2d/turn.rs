//! Images in planes on tensor cores: turned to channels last before the convolution, and its outputs back behind it. See
//! [`contract::conv2d::turn`].

use contract::conv2d::turn::TurnArgs;
use contract::conv2d::{Conv2dTurn, Layout, PadMode};
use contract::launch::{DevPtr, Kernel};
use contract::num::RowType;

use super::{Conv2d, Images, OP, Shape, shape};
use crate::memory::DeviceBuffer;
use crate::ops::{Backend, CudaBackend, Float, Math, OpError};

/// Fewest terms of a sum whose channels are turned and then copied.
const LEAST_TERMS: usize = 64;

impl<T: Float> Conv2d<'_, CudaBackend, T> {
    /// Channels last, as the images are while they are turned.
    fn turned_images(&self) -> Images {
        Images { layout: Layout::Nhwc, ..self.images }
    }

    /// Whether images are turned: 16 bits in planes for tensor cores, where that is asked for, or padding is zeros and channels
    /// come in pieces of 16 bytes, or are copied to those for sums that are not short; they are gathered an element at a time
    /// otherwise.
    pub(super) fn turns(&self, cuda: &CudaBackend) -> bool {
        let shape = Shape { images: self.turned_images(), ..self.shape() };
        let zeros = shape.window.mode == PadMode::Zeros;
        let good = zeros && (shape.pieces(8) || shape.weights.terms() >= LEAST_TERMS);
        let tensor_cores = !shape.weights.depthwise() || shape.weights.in_eights() != shape.weights;
        self.math == Math::TensorCore
            && T::TYPE != RowType::F32
            && self.images.layout == Layout::Nchw
            && tensor_cores
            && cuda.has::<Conv2dTurn>()
            && self.kernel.map_or(good, |symbol| symbol == Conv2dTurn::SPEC.symbol)
    }

    /// The convolution of turned images.
    pub(super) fn turned(self, cuda: &CudaBackend) -> Result<(), OpError> {
        let (shape, stream) = (self.shape(), cuda.stream());
        let images = shape.images.n as u32;
        let [n, k, p, q] = shape.output()?;
        let inputs = [shape.weights.c * shape.weights.groups, shape.images.h * shape.images.w];
        let outputs = [k, p * q];
        let turn = |from: DevPtr<u16>, to: DevPtr<u16>, sides: [usize; 2]| {
            let args = TurnArgs::new(from, to, sides.map(|side| side as u32));
            let grid = shape::grid(OP, args.blocks(images))?;
            // SAFETY: a block for each square; the tensors hold all images, as `check` and the lengths here say.
            unsafe { cuda.launch::<Conv2dTurn>(grid, args) }
        };
        let of_planes = |tensor: &DeviceBuffer<T>, sides: [usize; 2]| {
            let turned: DeviceBuffer<T> = cuda.alloc("conv2d turned", n * sides[0] * sides[1])?;
            turn(tensor.dev_ptr(stream).cast(), turned.dev_ptr(stream).cast(), sides)?;
            Ok::<_, OpError>(turned)
        };
        let x = of_planes(self.x, inputs)?;
        let residual = self.residual.map(|residual| of_planes(residual, outputs)).transpose()?;
        let mut y: DeviceBuffer<T> = cuda.alloc("conv2d turned", n * k * p * q)?;
        let of_turned = Conv2d {
            x: &x,
            w: self.w,
            bias: self.bias,
            residual: residual.as_ref(),
            y: &mut y,
            images: self.turned_images(),
            window: self.window,
            activation: self.activation,
            math: self.math,
            kernel: None,
        };
        of_turned.launch(cuda)?;
        turn(y.dev_ptr(stream).cast(), self.y.dev_ptr(stream).cast(), [outputs[1], outputs[0]])
    }
}
