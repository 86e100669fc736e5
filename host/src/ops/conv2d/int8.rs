//! Convolutions of int8 activations with integer or ternary weights; see [`contract::conv2d::int8`].

use contract::conv2d::int8::{MAX_TERMS_I8, MAX_TERMS_TERNARY, PAST_WORDS, PackedRows};
use contract::conv2d::weights::Packed;
use contract::conv2d::{Activation, Divisor, Geometry};
use contract::w2a8::{MAX_SEGMENTS, Segments, code_place};

use super::weights::check_packed;
use super::{Images, Shape, Window};
use crate::ops::error::{at_least, dimension, same};
use crate::ops::{Backend, Float, OpError, Tensor};

pub(super) const I8: &str = "conv2d_i8";
pub(super) const TERNARY: &str = "conv2d_ternary";

pub(super) fn rows_of(packed: &Packed) -> PackedRows {
    PackedRows::new(packed.window[0] * packed.window[1], packed.c)
}

/// Checks sizes, and `[k, c, r, s]` values against them; gives the shape and its rows.
fn check_oihw(
    op: &'static str,
    found: usize,
    [k, c, r, s]: [usize; 4],
    groups: usize,
    most: usize,
) -> Result<(Packed, PackedRows), OpError> {
    let packed = Packed { k, c, window: [r, s], groups };
    check_packed(op, &packed)?;
    dimension(op, "terms", packed.terms(), most, "a sum may have no more, to fit 32 bits")?;
    same(op, "elements of w", found, k.saturating_mul(packed.terms()))?;
    Ok((packed, rows_of(&packed)))
}

/// Calls `put(place in its row, value)` for every weight of channel `channel`.
fn each_of<T: Copy>(
    packed: &Packed,
    rows: PackedRows,
    values: &[T],
    mut put: impl FnMut(usize, T),
) {
    let taps = packed.window[0] * packed.window[1];
    for (c, window) in values.chunks_exact(taps).enumerate() {
        for (tap, &value) in window.iter().enumerate() {
            put(rows.index(tap, c), value);
        }
    }
}

/// int8 weights, packed.
pub struct Conv2dI8Weights<B: Backend> {
    words: B::Buf<u32>,
    packed: Packed,
}

impl<B: Backend> Conv2dI8Weights<B> {
    /// Packs and uploads `[k, c, r, s]`, `c` the input channels of one of `groups` groups.
    ///
    /// # Errors
    /// As [`super::Conv2dWeights::from_oihw`]; more than 2^17 - 1 terms in a sum.
    pub fn from_oihw(
        backend: &B,
        label: &'static str,
        weights: &[i8],
        oihw: [usize; 4],
        groups: usize,
    ) -> Result<Self, OpError> {
        let (packed, rows) = check_oihw(I8, weights.len(), oihw, groups, MAX_TERMS_I8)?;
        let mut words = vec![0u32; packed.k * rows.words_i8()];
        let bytes: &mut [i8] = bytemuck::cast_slice_mut(&mut words);
        let channels = weights.chunks_exact(packed.terms()).zip(bytes.chunks_exact_mut(rows.terms));
        for (from, to) in channels {
            each_of(&packed, rows, from, |place, value| to[place] = value);
        }
        let mut buf = backend.alloc(label, words.len())?;
        backend.write(&mut buf, 0, &words)?;
        Ok(Self { words: buf, packed })
    }

    /// Packed words.
    pub fn words(&self) -> &B::Buf<u32> {
        &self.words
    }

    /// Channels, groups and window.
    pub fn packed(&self) -> &Packed {
        &self.packed
    }
}

/// Ternary weights, packed, with their scales.
pub struct Conv2dTernaryWeights<B: Backend> {
    words: B::Buf<u32>,
    packed: Packed,
    segments: Segments,
}

impl<B: Backend> Conv2dTernaryWeights<B> {
    /// Packs and uploads `[k, c, r, s]` of -1, 0 and 1. `segments`: how many output channels, in
    /// order, have which scale.
    ///
    /// # Errors
    /// As [`super::Conv2dWeights::from_oihw`]; a value that is no ternary; segments that are not
    /// 1 to 8, empty, or not `k` channels together; a scale that is not positive and finite.
    pub fn from_oihw(
        backend: &B,
        label: &'static str,
        weights: &[i8],
        oihw: [usize; 4],
        groups: usize,
        segments: &[(usize, f32)],
    ) -> Result<Self, OpError> {
        let (packed, rows) = check_oihw(TERNARY, weights.len(), oihw, groups, MAX_TERMS_TERNARY)?;
        let parts = Segments::new(segments).ok_or(OpError::Dimension {
            op: TERNARY,
            what: "segments",
            found: segments.len(),
            allowed: "1 to 8 that are not empty are allowed",
        })?;
        const { assert!(MAX_SEGMENTS == 8) };
        same(TERNARY, "output channels", parts.rows(), packed.k)?;
        if let Some(bad) = segments.iter().position(|s| !(s.1.is_finite() && s.1 > 0.0)) {
            let allowed = "its scale has to be positive and finite";
            return Err(OpError::Dimension { op: TERNARY, what: "segment", found: bad, allowed });
        }
        if let Some(bad) = weights.iter().position(|t| !(-1..=1).contains(t)) {
            let allowed = "ternaries are -1, 0 and 1";
            return Err(OpError::Dimension { op: TERNARY, what: "weight", found: bad, allowed });
        }
        let width = rows.words_ternary();
        let mut words = vec![0u32; packed.k * width + PAST_WORDS];
        let channels = weights.chunks_exact(packed.terms()).zip(words.chunks_exact_mut(width));
        for (from, to) in channels {
            each_of(&packed, rows, from, |place, value| {
                let (word, bit) = code_place(place);
                to[word] |= (value as u32 & 3) << bit;
            });
        }
        let mut buf = backend.alloc(label, words.len())?;
        backend.write(&mut buf, 0, &words)?;
        Ok(Self { words: buf, packed, segments: parts })
    }

    /// Packed words.
    pub fn words(&self) -> &B::Buf<u32> {
        &self.words
    }

    /// Channels, groups and window.
    pub fn packed(&self) -> &Packed {
        &self.packed
    }

    /// Scales by output channels.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }
}

/// `y = conv(x, w)`: int8 by int8, exact `i32` sums.
pub struct Conv2dI8<'a, B: Backend> {
    /// Images.
    pub x: &'a B::Buf<i8>,
    /// Packed weights.
    pub w: &'a Conv2dI8Weights<B>,
    /// Output.
    pub y: &'a mut B::Buf<i32>,
    /// Number, size and layout of the images.
    pub images: Images,
    /// How the window moves.
    pub window: Window,
    /// Symbol of the kernel to run, for tests and measurements; `None`: the shape chooses. The CPU
    /// has one way and takes any.
    pub kernel: Option<&'static str>,
}

/// `y = activation((((conv(x, t) / scales) * g) + bias) + residual)`: int8 by ternaries, the numbers
/// of the W2A8 linear layer, rounded once to the type of `y`.
pub struct Conv2dTernary<'a, B: Backend, T: Float> {
    /// Images, quantised.
    pub x: &'a B::Buf<i8>,
    /// The quantisation multiplier of each image: `x` is about `scales * value`.
    pub scales: &'a B::Buf<f32>,
    /// Packed weights with their scales.
    pub w: &'a Conv2dTernaryWeights<B>,
    /// One number for each output channel.
    pub bias: Option<&'a B::Buf<f32>>,
    /// Added before the activation.
    pub residual: Option<&'a B::Buf<T>>,
    /// Output.
    pub y: &'a mut B::Buf<T>,
    /// Number, size and layout of the images.
    pub images: Images,
    /// How the window moves.
    pub window: Window,
    /// Last step.
    pub activation: Activation,
    /// Symbol of the kernel to run, for tests and measurements; `None`: the shape chooses. The CPU
    /// has one way and takes any.
    pub kernel: Option<&'static str>,
}

/// The geometry of packed rows: taps with their padding.
fn padded(shape: &Shape, op: &'static str) -> Result<Geometry, OpError> {
    let tap = rows_of(&shape.weights).tap;
    let taps = shape.weights.window[0] * shape.weights.window[1];
    let geometry = shape.geometry(op)?;
    let terms = tap.saturating_mul(taps);
    dimension(op, "padded terms", terms, i32::MAX as usize, "a row has at most 2^31 - 1")?;
    Ok(Geometry { terms: terms as u32, by_c: Divisor::new(tap as u32), ..geometry })
}

impl<B: Backend> Conv2dI8<'_, B> {
    /// The shape of the operation.
    pub fn shape(&self) -> Shape {
        Shape { images: self.images, weights: self.w.packed, window: self.window }
    }

    pub(crate) fn geometry(&self) -> Result<Geometry, OpError> {
        padded(&self.shape(), I8)
    }

    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let shape = self.shape();
        self.geometry()?;
        at_least(I8, "x", self.x.len(), shape.input_len(I8)?)?;
        at_least(I8, "y", self.y.len(), shape.output_len(I8)?)
    }
}

impl<B: Backend, T: Float> Conv2dTernary<'_, B, T> {
    /// The shape of the operation.
    pub fn shape(&self) -> Shape {
        Shape { images: self.images, weights: self.w.packed, window: self.window }
    }

    pub(crate) fn geometry(&self) -> Result<Geometry, OpError> {
        padded(&self.shape(), TERNARY)
    }

    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let shape = self.shape();
        self.geometry()?;
        let y_len = shape.output_len(TERNARY)?;
        at_least(TERNARY, "x", self.x.len(), shape.input_len(TERNARY)?)?;
        at_least(TERNARY, "scales", self.scales.len(), self.images.n)?;
        if let Some(bias) = self.bias {
            at_least(TERNARY, "bias", bias.len(), shape.weights.k)?;
        }
        if let Some(residual) = self.residual {
            at_least(TERNARY, "residual", residual.len(), y_len)?;
        }
        at_least(TERNARY, "y", self.y.len(), y_len)
    }
}
