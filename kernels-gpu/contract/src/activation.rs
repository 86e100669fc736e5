//! Activations, alone or as the gate of a product: `y = act(x)` or `y = act(gate) * up`.
//!
//! | tensor | element          | shape                 | meaning                                        |
//! |--------|------------------|-----------------------|------------------------------------------------|
//! | `x`    | f32, f16 or bf16 | `ROWS` rows of `K`    | input, or the gate; rows `x_stride` apart      |
//! | `up`   | the same         | `ROWS` rows of `K`    | factor, rows `up_stride` apart; absent when null |
//! | `y`    | the same         | `[ROWS, K]`           | output; may not overlap the inputs             |
//!
//! The functions are those of `num::activation`, in `f32`: relu and relu^2 exact, silu, gelu with the
//! normal distribution (16-bit types: `num::gelu_half`), gelu with tanh. The product is one more rounding; the
//! result is rounded to the element once. NaN gives NaN. Fused projections `[M, 2 K]` are `x` and `up` of stride `2 K`, `up`
//! starting `K` elements behind `x`; a tensor without rows is one row.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;
use crate::stream::THREADS;

/// Which function.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu = 0,
    /// `max(x, 0)^2`.
    Relu2 = 1,
    /// `x / (1 + e^-x)`.
    Silu = 2,
    /// `x Phi(x)`, with the normal distribution.
    Gelu = 3,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh = 4,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Relu, Self::Relu2, Self::Silu, Self::Gelu, Self::GeluTanh];

    /// The field's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Relu2 => "relu2",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
        }
    }

    /// Its value at `x`, in `f32`.
    #[inline(always)]
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::Relu => num::relu(x),
            Self::Relu2 => num::relu2(x),
            Self::Silu => num::silu(x),
            Self::Gelu => num::gelu(x),
            Self::GeluTanh => num::gelu_tanh(x),
        }
    }

    /// `act(gate) * up`, in `f32`.
    #[inline(always)]
    pub fn gated(self, gate: f32, up: f32) -> f32 {
        self.apply(gate) * up
    }
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Input, or the gate.
    pub x: DevPtr<u8>,
    /// Factor, or null.
    pub up: DevPtr<u8>,
    /// Output.
    pub y: DevPtr<u8>,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub k: u64,
    /// Elements from row to row of `x`.
    pub x_stride: u64,
    /// Elements from row to row of `up`.
    pub up_stride: u64,
    /// 1 when whole pieces can be read and written, else 0: [`crate::stream::aligned`].
    pub aligned: u32,
    /// [`Activation`] as a number.
    pub kind: u32,
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS);
        }
    )*};
}

kernels! {
    ActivationF32 "activation_f32" "Elements of `f32`.";
    ActivationF16 "activation_f16" "Elements of f16.";
    ActivationBf16 "activation_bf16" "Elements of bf16.";
}
