//! What layers and products can be asked for: numbers of `bitnet.h` by their names, and `bitnet_conv2d_options`.

use bitnet_gpu::ops::Math;
use bitnet_gpu::ops::conv2d::{Activation, PadMode, Padding, Window};

use crate::status::Failure;

/// `bitnet_conv2d_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConvOptions {
    struct_bytes: usize,
    stride: [usize; 2],
    padding: [usize; 4],
    dilation: [usize; 2],
    groups: usize,
    same: i32,
    pad_mode: i32,
    activation: i32,
    math: i32,
    scale: f32,
}

/// `bitnet_sparse_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SparseOptions {
    struct_bytes: usize,
    pub(crate) format: i32,
    pub(crate) math: i32,
    pub(crate) activation: i32,
    pub(crate) scale: f32,
}

/// The one of `all` whose number is `found`.
pub(crate) fn named<T: Copy>(
    what: &str,
    all: &[T],
    found: i32,
    number: impl Fn(T) -> i32,
) -> Result<T, Failure> {
    let numbers = 0..all.len();
    all.iter().copied().find(|&of| number(of) == found).ok_or_else(|| {
        Failure::argument(format!("{what} = {found} is out of range; allowed: {numbers:?}"))
    })
}

/// `bitnet_math`.
pub(crate) fn math(found: i32) -> Result<Math, Failure> {
    named("math", &[Math::Exact, Math::TensorCore], found, |math| match math {
        Math::Exact => 0,
        Math::TensorCore => 1,
    })
}

/// A `bitnet_activation` that stands behind sums.
pub(crate) fn activation(found: i32) -> Result<Activation, Failure> {
    named("activation", &Activation::ALL, found, |of| of as i32)
}

/// Refuses what is no number, or an infinite one.
pub(crate) fn finite(what: &str, found: f32) -> Result<f32, Failure> {
    if found.is_finite() {
        return Ok(found);
    }
    Err(Failure::argument(format!("{what} = {found} has to be finite")))
}

/// Defaults of a struct of options: the function that fills one in, and the caller's or the defaults.
macro_rules! defaults {
    ($Options:ident, $fill:ident, { $($field:ident: $value:expr,)* }) => {
        /// Fills `out` with the defaults.
        ///
        /// # Safety
        /// `out` is null or can hold one.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fill(out: *mut $Options) -> $crate::status::Status {
            $crate::status::call(|| {
                let out = std::ptr::NonNull::new(out)
                    .ok_or_else(|| $crate::status::Failure::null("out"))?;
                // SAFETY: by the caller.
                unsafe { out.write($Options::DEFAULT) };
                Ok(())
            })
        }

        impl $Options {
            const DEFAULT: Self = Self { struct_bytes: size_of::<Self>(), $($field: $value,)* };

            /// The caller's, or the defaults.
            ///
            /// # Safety
            /// `given` is null or points to the words that its first one counts.
            pub(crate) unsafe fn given(given: *const Self) -> Result<Self, $crate::status::Failure> {
                if given.is_null() {
                    return Ok(Self::DEFAULT);
                }
                // SAFETY: by the caller.
                unsafe { $crate::session::sized("options", given) }
            }
        }
    };
}
pub(crate) use defaults;

defaults!(SparseOptions, bitnet_sparse_options_default, {
    format: 1,
    math: 0,
    activation: 0,
    scale: 1.0,
});

defaults!(ConvOptions, bitnet_conv2d_options_default, {
    stride: [1; 2],
    padding: [0; 4],
    dilation: [1; 2],
    groups: 1,
    same: 0,
    pad_mode: 0,
    activation: 0,
    math: 0,
    scale: 1.0,
});

impl ConvOptions {
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }

    pub(crate) fn is_same(&self) -> bool {
        self.same != 0
    }

    pub(crate) fn scale(&self) -> f32 {
        self.scale
    }

    pub(crate) fn math(&self) -> Result<Math, Failure> {
        math(self.math)
    }

    pub(crate) fn activation(&self) -> Result<Activation, Failure> {
        activation(self.activation)
    }

    pub(crate) fn window(&self) -> Result<Window, Failure> {
        let modes = [PadMode::Zeros, PadMode::Reflect, PadMode::Replicate];
        let mode = named("pad_mode", &modes, self.pad_mode, |of| of as i32)?;
        let [top, bottom, left, right] = self.padding;
        let padding = match self.same {
            0 => Padding::Sides { top, bottom, left, right },
            _ if self.padding == [0; 4] => Padding::Same,
            _ => {
                let found = self.padding;
                let words = format!("padding = {found:?} beside `same`; leave one of them at 0");
                return Err(Failure::argument(words));
            }
        };
        let (stride, dilation) = (self.stride, self.dilation);
        Ok(Window { stride, dilation, padding, mode })
    }
}
