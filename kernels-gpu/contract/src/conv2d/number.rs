//! What the numbers are beside the chains: the epilogue, and the bound of the tensor-core kernels.

use crate::num;

/// Terms of one chain of fused multiply-adds.
pub const CHUNK: usize = 1024;

/// The last step of an output.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The value as it is.
    None = 0,
    /// `0` where the value is below 0, else the value: NaN and -0 stay.
    Relu = 1,
    /// `max(x, 0)^2`, see [`num::relu2`]: NaN stays.
    Relu2 = 2,
    /// `x / (1 + exp(-x))`, see [`num::silu`].
    Silu = 3,
}

impl Activation {
    /// Every one, for tests.
    pub const ALL: [Self; 4] = [Self::None, Self::Relu, Self::Relu2, Self::Silu];

    /// The one with this number; [`Activation::Silu`] for numbers that none has.
    #[inline(always)]
    pub const fn from_u32(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Relu,
            2 => Self::Relu2,
            _ => Self::Silu,
        }
    }

    /// Whether it is a compare or a product: kernels repeat those for several outputs in a row.
    #[inline(always)]
    pub const fn is_cheap(self) -> bool {
        !matches!(self, Self::Silu)
    }

    /// The value after one that [`Activation::is_cheap`].
    #[inline(always)]
    pub const fn apply_cheap(self, x: f32) -> f32 {
        match self {
            Self::Relu if x < 0.0 => 0.0,
            Self::Relu2 => num::relu2(x),
            _ => x,
        }
    }

    /// The value after it.
    #[inline(always)]
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::Silu => num::silu(x),
            _ => self.apply_cheap(x),
        }
    }
}

/// Stands for a bias or residual that is absent: added to any number, it leaves it as it is.
pub const ABSENT: f32 = -0.0;

/// The epilogue: bias, then residual, then activation; [`ABSENT`] where there is none.
#[inline(always)]
pub fn finish(sum: f32, bias: f32, residual: f32, activation: Activation) -> f32 {
    activation.apply((sum + bias) + residual)
}

/// [`finish`] with an activation that [`Activation::is_cheap`].
#[inline(always)]
pub const fn finish_cheap(sum: f32, bias: f32, residual: f32, activation: Activation) -> f32 {
    activation.apply_cheap((sum + bias) + residual)
}

/// How far the sum of a tensor-core kernel may be from the exact sum, before the epilogue:
/// `terms * 2^-23 * magnitude`, with `magnitude` the sum of the magnitudes of all products.
///
/// Tensor cores add `f32` partial sums with truncation, so a partial sum is wrong by less than
/// 2^-23 of its magnitude (at most `magnitude`) at each of fewer than `terms` additions.
pub fn tensor_core_bound(terms: usize, magnitude: f64) -> f64 {
    terms as f64 * magnitude / f64::from(1u32 << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epilogue_adds_what_is_there_in_order() {
        let (big, one) = (16_777_216.0, 1.0);
        assert_eq!(finish(one, big, -big, Activation::None), 0.0, "each sum is rounded");
        for x in [-0.0f32, 0.0, -1e-45, 1.5, f32::INFINITY] {
            assert_eq!(finish(x, ABSENT, ABSENT, Activation::None).to_bits(), x.to_bits());
        }
        assert_eq!(finish(-0.0, 0.0, ABSENT, Activation::None).to_bits(), 0);
        assert_eq!(finish(-2.0, ABSENT, 1.0, Activation::Relu), 0.0);
        assert!(finish(f32::NAN, ABSENT, ABSENT, Activation::Relu).is_nan());
        assert_eq!(finish(3.0, ABSENT, ABSENT, Activation::Relu2), 9.0);
        for activation in Activation::ALL {
            assert_eq!(Activation::from_u32(activation as u32), activation);
        }
    }
}
