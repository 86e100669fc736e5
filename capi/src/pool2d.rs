//! Pooling of images.

use bitnet_gpu::ops::conv2d::Layout;
use bitnet_gpu::ops::pool2d::{Kind, Pool2d, Pooling, Windows};
use bitnet_gpu::ops::{Float, OpError};

use crate::conv2d::{layout_of, layout_of_all, order};
use crate::layer::{Build, Layer, Lends, Operation, Output, Tensors, begin, make};
use crate::linear::Device;
use crate::options::defaults;
use crate::product::input;
use crate::status::{Failure, Status, call};
use crate::tensor::{FLOATS, View, refused, with_float};

/// `bitnet_pool2d_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolOptions {
    struct_bytes: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    average: i32,
    count_include_pad: i32,
    ceil_mode: i32,
}

defaults!(PoolOptions, bitnet_pool2d_options_default, {
    kernel: [0; 2],
    stride: [0; 2],
    padding: [0; 2],
    dilation: [1; 2],
    average: 0,
    count_include_pad: 1,
    ceil_mode: 0,
});

impl PoolOptions {
    /// The pooling of images that lie in `layout`.
    fn of(&self, x: &View, layout: Layout) -> Result<Pooling, Failure> {
        let &Self { kernel, mut stride, padding, dilation, average, .. } = self;
        let [n, c, h, w] = x.images()?;
        let (count_include_pad, ceil_mode) = (self.count_include_pad != 0, self.ceil_mode != 0);
        let kind = if average != 0 { Kind::Average { count_include_pad } } else { Kind::Max };
        if stride == [0; 2] {
            stride = kernel;
        }
        let windows = match kernel {
            [0, 0] => Windows::Global,
            _ => Windows::Sliding { kernel, stride, padding, dilation, ceil_mode },
        };
        Ok(Pooling { n, c, h, w, layout, kind, windows })
    }

    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run_of<B: Lends, T: Float>(
        &self,
        backend: &B,
        tensors: &Tensors,
        pooling: Pooling,
    ) -> Result<(), OpError> {
        let Tensors { x, y, .. } = tensors;
        // SAFETY: by the caller.
        unsafe {
            let x = input::<B, T>(backend, x)?;
            let mut out = backend.result(y.what, y.data, y.len())?;
            backend.pool2d(Pool2d { pooling, x: &x, y: &mut out })?;
            backend.give(&out, y.data, y.len())
        }
    }
}

impl<B: Lends> Operation<B> for PoolOptions {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        let layout = layout_of(&x.of(&FLOATS)?)?;
        let pooling = self.of(x, layout)?;
        // No images give none.
        let [h, w] = Pooling { n: pooling.n.max(1), ..pooling }.axes().map_err(refused)?;
        let sizes = vec![pooling.n, pooling.c, h.out as usize, w.out as usize];
        Ok(Output { dtype: x.dtype, sizes, order: order(layout) })
    }

    fn other(&self) -> Option<&'static str> {
        None
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        layout_of_all(tensors).map(drop)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        // `check` found one.
        let layout = layout_of_all(tensors).unwrap_or(Layout::Nchw);
        let Ok(pooling) = self.of(&tensors.x, layout) else { unreachable!("checked before") };
        // SAFETY: by the caller.
        unsafe { with_float!(tensors.x.dtype, T => self.run_of::<B, T>(backend, tensors, pooling)) }
    }
}

impl Build for PoolOptions {
    fn build<B: Lends>(self, _: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        let Self { kernel, stride, padding, dilation, .. } = self;
        if kernel == [0; 2] && (stride, padding, dilation) != ([0; 2], [0; 2], [1; 2]) {
            let words =
                "a window over the whole image (kernel 0) has no stride, padding and dilation";
            return Err(Failure::argument(words));
        }
        Ok(Box::new(self))
    }
}

/// Makes a pooling.
///
/// # Safety
/// An open backend; `options` is null or begins with its size, `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_pool2d_new(
    backend: *const Device,
    options: *const PoolOptions,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // SAFETY: by the caller.
        make(place, out, unsafe { PoolOptions::given(options)? })
    })
}
