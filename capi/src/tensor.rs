//! `bitnet_tensor`: how a caller says where its elements are, in PyTorch's terms.

use std::ffi::c_void;

use bitnet_gpu::ops::OpError;
use bitnet_gpu::ops::conv2d::Layout;
use half::{bf16, f16};

use crate::session::sized;
use crate::status::Failure;

/// `bitnet_dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    I8 = 3,
    I32 = 4,
}

impl Dtype {
    const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::I8, Self::I32];

    /// What a caller's number says.
    pub(crate) fn given(what: &str, number: i32) -> Result<Self, Failure> {
        let found = Self::ALL.into_iter().find(|&dtype| dtype as i32 == number);
        found.ok_or_else(|| Failure::argument(format!("{what}: {number} is no bitnet_dtype")))
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 => 1,
        }
    }
}

/// Most dimensions of a tensor.
const MOST: usize = 4;

/// `bitnet_tensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    pub(crate) struct_bytes: usize,
    pub(crate) data: *mut c_void,
    pub(crate) dtype: i32,
    pub(crate) dims: i32,
    pub(crate) sizes: [i64; MOST],
    pub(crate) strides: [i64; MOST],
}

/// A tensor whose description holds together. Whether its memory does is the caller's promise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) what: &'static str,
    pub(crate) data: *mut c_void,
    pub(crate) dtype: Dtype,
    dims: usize,
    sizes: [usize; MOST],
    strides: [usize; MOST],
}

impl View {
    /// # Safety
    /// `tensor` is null or a `bitnet_tensor`, of which `struct_bytes` can be read at least.
    pub(crate) unsafe fn new(what: &'static str, tensor: *const Tensor) -> Result<Self, Failure> {
        // SAFETY: by the caller.
        let tensor = unsafe { sized(what, tensor)? };
        let dtype = Dtype::given(what, tensor.dtype)?;
        let dims = usize::try_from(tensor.dims).unwrap_or(0);
        if !(1..=MOST).contains(&dims) {
            let words = format!("{what} has {} dimensions; 1 to {MOST} are allowed", tensor.dims);
            return Err(Failure::argument(words));
        }
        let (mut sizes, mut strides) = ([1; MOST], [0; MOST]);
        for i in 0..dims {
            let numbers = [tensor.sizes[i], tensor.strides[i]].map(usize::try_from);
            let [Ok(size), Ok(stride)] = numbers else {
                let (size, stride) = (tensor.sizes[i], tensor.strides[i]);
                return Err(Failure::argument(format!(
                    "{what}: dimension {i} has size {size} and stride {stride}; neither may be below 0"
                )));
            };
            (sizes[i], strides[i]) = (size, stride);
        }
        let view = Self { what, data: tensor.data, dtype, dims, sizes, strides };
        let len = sizes.iter().try_fold(1usize, |len, &size| len.checked_mul(size.max(1)));
        let most = view.span().zip(len).map(|(span, len)| span.max(len));
        let bytes = most.and_then(|most| most.checked_mul(dtype.bytes()));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Failure::argument(format!("{} is larger than any memory", view.shown())));
        }
        Ok(view)
    }

    /// The same of a tensor that may be absent.
    ///
    /// # Safety
    /// As [`View::new`].
    pub(crate) unsafe fn given(
        what: &'static str,
        tensor: *const Tensor,
    ) -> Result<Option<Self>, Failure> {
        // SAFETY: by the caller.
        (!tensor.is_null()).then(|| unsafe { Self::new(what, tensor) }).transpose()
    }

    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes[..self.dims]
    }

    /// The stride of a dimension; one of a single element has none.
    pub(crate) fn stride(&self, dim: usize) -> usize {
        if self.sizes[dim] > 1 { self.strides[dim] } else { 0 }
    }

    /// The tensor in words.
    pub(crate) fn shown(&self) -> String {
        let strides = &self.strides[..self.dims];
        format!("{} {:?} with strides {strides:?}", self.what, self.sizes())
    }

    pub(crate) fn len(&self) -> usize {
        self.sizes().iter().product()
    }

    /// Elements from the first to the last.
    fn span(&self) -> Option<usize> {
        if self.sizes().contains(&0) {
            return Some(0);
        }
        (0..self.dims).try_fold(1usize, |span, i| {
            self.stride(i).checked_mul(self.sizes[i] - 1)?.checked_add(span)
        })
    }

    /// Whether the elements lie one behind the other, in `order` of the dimensions, the last the nearest.
    fn lies(&self, order: &[usize]) -> bool {
        let mut stride = 1;
        order.iter().rev().all(|&i| {
            let fits = self.sizes[i] <= 1 || self.strides[i] == stride;
            stride *= self.sizes[i].max(1);
            fits
        })
    }

    /// Refuses what is not contiguous.
    pub(crate) fn contiguous(&self) -> Result<(), Failure> {
        if self.len() == 0 || self.lies(&[0, 1, 2, 3][..self.dims]) {
            return Ok(());
        }
        let words = format!("{} is not contiguous; pass a contiguous copy", self.shown());
        Err(Failure::argument(words))
    }

    /// Refuses other dtypes.
    pub(crate) fn of(&self, allowed: &[Dtype]) -> Result<Self, Failure> {
        if allowed.contains(&self.dtype) {
            return Ok(*self);
        }
        let (what, found) = (self.what, self.dtype);
        Err(Failure::argument(format!("{what} is of {found:?}; allowed: {allowed:?}")))
    }

    /// The sizes `[n, c, h, w]` of images.
    pub(crate) fn images(&self) -> Result<[usize; 4], Failure> {
        if self.dims == MOST {
            return Ok(self.sizes);
        }
        let words = format!("{} is no [n, c, h, w]", self.shown());
        Err(Failure::argument(words))
    }

    /// Whether images lie in `layout`; those of one channel, or of one pixel, lie in both.
    pub(crate) fn lies_in(&self, layout: Layout) -> bool {
        self.len() == 0
            || match layout {
                Layout::Nchw => self.lies(&[0, 1, 2, 3]),
                Layout::Nhwc => self.lies(&[0, 2, 3, 1]),
            }
    }

    /// Refuses another shape.
    pub(crate) fn shaped(&self, sizes: &[usize]) -> Result<(), Failure> {
        if self.sizes() == sizes {
            return Ok(());
        }
        let words = format!("{} has to be {sizes:?}", self.shown());
        Err(Failure::argument(words))
    }

    /// Refuses no memory, and memory that is not aligned to `align` bytes.
    pub(crate) fn there(&self, align: usize) -> Result<(), Failure> {
        if self.len() == 0 {
            return Ok(());
        }
        if self.data.is_null() {
            return Err(Failure::null(self.what));
        }
        if !self.data.addr().is_multiple_of(align) {
            return Err(Failure::argument(format!(
                "{} starts at {:#x}, which is no multiple of {align} bytes; pass a copy",
                self.what,
                self.data.addr()
            )));
        }
        Ok(())
    }

    /// The elements in host memory.
    ///
    /// # Safety
    /// What the description says is there, and initialised, for `'a`.
    pub(crate) unsafe fn host<'a, T: bitnet_gpu::ops::Element>(&self) -> Result<&'a [T], Failure> {
        assert_eq!(size_of::<T>(), self.dtype.bytes(), "{} of another type", self.what);
        self.contiguous()?;
        self.there(align_of::<T>())?;
        if self.len() == 0 {
            return Ok(&[]);
        }
        // SAFETY: by the caller; the length was checked when the view was made.
        Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), self.len()) })
    }
}

/// Writes the shape of a result: sizes, dtype and the strides of contiguous memory in `order` of the dimensions.
pub(crate) fn describe(out: &mut Tensor, dtype: Dtype, sizes: &[usize], order: &[usize]) {
    let Tensor { struct_bytes, data, .. } = *out;
    let dims = sizes.len() as i32;
    *out = Tensor {
        struct_bytes,
        data,
        dtype: dtype as i32,
        dims,
        sizes: [1; MOST],
        strides: [0; MOST],
    };
    let mut stride = 1;
    for &i in order.iter().rev() {
        (out.sizes[i], out.strides[i]) = (sizes[i] as i64, stride);
        stride *= sizes[i].max(1) as i64;
    }
}

/// Runs `$body` with `$T` as the element of a float dtype.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::tensor::Dtype::F32 => {
                type $T = f32;
                $body
            }
            $crate::tensor::Dtype::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::tensor::Dtype::Bf16 => {
                type $T = half::bf16;
                $body
            }
            other => unreachable!("{other:?} is no float"),
        }
    };
}
pub(crate) use with_float;

/// The dtype of an element.
pub(crate) trait Typed {
    const DTYPE: Dtype;
}

impl Typed for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
impl Typed for f16 {
    const DTYPE: Dtype = Dtype::F16;
}
impl Typed for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

/// The dtypes of floats.
pub(crate) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// What an operation said no to before it ran is the caller's argument.
pub(crate) fn refused(error: OpError) -> Failure {
    match error {
        OpError::ShortTensor { .. }
        | OpError::Dimension { .. }
        | OpError::Mismatch { .. }
        | OpError::Layout { .. } => Failure::argument(error.to_string()),
        other => other.into(),
    }
}
