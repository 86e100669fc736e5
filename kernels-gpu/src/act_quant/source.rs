//! What is quantised, item by item.

use contract::act_quant::{Args, GatedArgs, LayerNormArgs, RmsNormArgs};
use contract::activation::Activation;
use contract::launch::DevPtr;
use contract::layernorm;
use contract::rmsnorm::{self, inv_rms};
use contract::w2a8::ActStats;

use super::item::{Four, Item};
use crate::arch::mem::X4;
use crate::float::Float;
use crate::row::in_pieces;

/// Where the rows are, and where they go.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) m: u32,
    pub(super) k: u32,
    pub(super) acts: DevPtr<u32>,
    pub(super) stats: DevPtr<ActStats>,
}

/// A norm.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norm {
    /// None.
    No,
    /// By the root of the mean square.
    Rms,
    /// By mean and deviation.
    Layer,
}

/// What a norm multiplies by and adds.
#[derive(Clone, Copy)]
pub(super) struct Affine {
    weight: *const f32,
    bias: *const f32,
    eps: f32,
}

impl Affine {
    /// The norm's factor.
    #[inline(always)]
    pub(super) fn factor(&self, norm: Norm, squares: f32, k: u32) -> f32 {
        match norm {
            Norm::Layer => layernorm::inv_deviation(squares, k, self.eps),
            _ => inv_rms(squares, k, self.eps),
        }
    }

    /// Gains and offsets of an item.
    ///
    /// # Safety
    ///
    /// The vectors are of the contract, and on boundaries of 16 bytes where that is `P`.
    #[inline(always)]
    pub(super) unsafe fn of<const P: bool>(&self, norm: Norm, item: Item<P>) -> [Four; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let weight = item.beside(self.weight, 1.0);
            [weight, if norm == Norm::Layer { item.beside(self.bias, -0.0) } else { [0.0; 4] }]
        }
    }

    /// The normalised values of an item, in a layer norm those around the mean.
    #[inline(always)]
    pub(super) fn normed<const P: bool>(
        norm: Norm,
        item: Item<P>,
        values: Four,
        r: f32,
        [weight, bias]: [Four; 2],
    ) -> Four {
        // Past the end an infinite `r` would make a NaN of the zero.
        item.map(values, |q, v| match norm {
            Norm::Layer => layernorm::normalise(v, r, weight[q], bias[q]),
            _ => rmsnorm::normalise(v, r, weight[q]),
        })
    }
}

/// What is quantised.
pub(super) trait Source {
    /// Its norm.
    const NORM: Norm;
    /// Words of an item on its way are four times as many.
    const TENSORS: usize;

    /// The rows.
    fn rows(&self) -> Rows;

    /// Whether all rows of all tensors start on boundaries of four elements.
    fn pieces(&self) -> bool;

    /// The norm, unless there is none.
    fn affine(&self) -> Option<Affine>;

    /// An item on its way.
    ///
    /// # Safety
    ///
    /// The tensors are of the contract; row `row` is there, or the item's `k` is 0.
    unsafe fn load<const P: bool>(&self, row: u32, item: Item<P>) -> [X4<u32>; 2];

    /// Its values, before the norm; what else is an output is written.
    ///
    /// # Safety
    ///
    /// As for [`Source::load`], and the item belongs to this thread.
    unsafe fn take<const P: bool>(&self, row: u32, item: Item<P>, raw: [X4<u32>; 2]) -> Four;
}

/// Rows as they are.
pub(super) struct Plain<E>(pub(super) Args, pub(super) core::marker::PhantomData<E>);

impl<E: Float> Source for Plain<E> {
    const NORM: Norm = Norm::No;
    const TENSORS: usize = 1;

    #[inline(always)]
    fn rows(&self) -> Rows {
        let Args { m, k, acts, stats, .. } = self.0;
        Rows { m, k, acts, stats }
    }

    #[inline(always)]
    fn pieces(&self) -> bool {
        // Of 16 bits, boundaries of eight bytes do.
        self.0.k.is_multiple_of(4) && self.0.x.addr().is_multiple_of(16)
    }

    #[inline(always)]
    fn affine(&self) -> Option<Affine> {
        None
    }

    #[inline(always)]
    unsafe fn load<const P: bool>(&self, row: u32, item: Item<P>) -> [X4<u32>; 2] {
        let x = self.0.x.cast::<E>().as_ptr().cast_const();
        // SAFETY: the caller's promise.
        unsafe { [item.load(x.wrapping_add(row as usize * self.0.k as usize)), [0; 4]] }
    }

    #[inline(always)]
    unsafe fn take<const P: bool>(&self, _: u32, _: Item<P>, raw: [X4<u32>; 2]) -> Four {
        Item::<P>::widen::<E>(raw[0])
    }
}

/// An item of a row to which another is added first, if there is one.
///
/// # Safety
///
/// As for [`Source::load`], of the tensors from `start` on.
#[inline(always)]
unsafe fn load_both<const P: bool>(
    [x, delta]: [*const f32; 2],
    start: usize,
    item: Item<P>,
) -> [X4<u32>; 2] {
    let there = Item { k: if delta.is_null() { 0 } else { item.k }, ..item };
    // SAFETY: by the caller, rows of the tensors.
    unsafe { [item.load(x.wrapping_add(start)), there.load(delta.wrapping_add(start))] }
}

/// The sums of [`load_both`], which are written where there is something to add.
///
/// # Safety
///
/// As for [`Source::take`].
#[inline(always)]
unsafe fn take_both<const P: bool>(
    x: *mut f32,
    delta: *const f32,
    start: usize,
    item: Item<P>,
    [a, b]: [X4<u32>; 2],
) -> Four {
    let (a, b) = (Item::<P>::widen::<f32>(a), Item::<P>::widen::<f32>(b));
    if delta.is_null() {
        return a;
    }
    let sums = core::array::from_fn(|q| a[q] + b[q]);
    // SAFETY: by the caller, a row of the tensor.
    unsafe { item.store(x.wrapping_add(start), sums) };
    sums
}

macro_rules! residual {
    ($args:ty, $norm:expr, $bias:expr) => {
        impl Source for $args {
            const NORM: Norm = $norm;
            const TENSORS: usize = 2;

            #[inline(always)]
            fn rows(&self) -> Rows {
                let Self { m, k, acts, stats, .. } = *self;
                Rows { m, k, acts, stats }
            }

            #[inline(always)]
            fn pieces(&self) -> bool {
                let bias: fn(&Self) -> DevPtr<f32> = $bias;
                let all = [self.x, self.delta, self.weight, bias(self)].map(DevPtr::cast);
                in_pieces::<f32>(self.k, &all)
            }

            #[inline(always)]
            fn affine(&self) -> Option<Affine> {
                let bias: fn(&Self) -> DevPtr<f32> = $bias;
                let [weight, bias] = [self.weight, bias(self)].map(|p| p.as_ptr().cast_const());
                Some(Affine { weight, bias, eps: self.eps })
            }

            #[inline(always)]
            unsafe fn load<const P: bool>(&self, row: u32, item: Item<P>) -> [X4<u32>; 2] {
                let tensors = [self.x, self.delta].map(|p| p.as_ptr().cast_const());
                // SAFETY: the caller's promise.
                unsafe { load_both(tensors, row as usize * self.k as usize, item) }
            }

            #[inline(always)]
            unsafe fn take<const P: bool>(
                &self,
                row: u32,
                item: Item<P>,
                raw: [X4<u32>; 2],
            ) -> Four {
                let (x, delta) = (self.x.as_ptr(), self.delta.as_ptr().cast_const());
                // SAFETY: the caller's promise.
                unsafe { take_both(x, delta, row as usize * self.k as usize, item, raw) }
            }
        }
    };
}

residual!(RmsNormArgs, Norm::Rms, |_| DevPtr::NULL);
residual!(LayerNormArgs, Norm::Layer, |args| args.bias);

/// A gated product; `SILU` or the square of relu.
pub(super) struct Gated<const SILU: bool>(pub(super) GatedArgs);

impl<const SILU: bool> Source for Gated<SILU> {
    const NORM: Norm = Norm::Rms;
    const TENSORS: usize = 2;

    #[inline(always)]
    fn rows(&self) -> Rows {
        let GatedArgs { m, k, acts, stats, .. } = self.0;
        Rows { m, k, acts, stats }
    }

    #[inline(always)]
    fn pieces(&self) -> bool {
        let GatedArgs { gate_up, f, weight, .. } = self.0;
        in_pieces::<f32>(self.0.k, &[gate_up, f, weight].map(DevPtr::cast))
    }

    #[inline(always)]
    fn affine(&self) -> Option<Affine> {
        let weight = self.0.weight.as_ptr().cast_const();
        let affine = Affine { weight, bias: core::ptr::null(), eps: self.0.eps };
        if weight.is_null() { None } else { Some(affine) }
    }

    #[inline(always)]
    unsafe fn load<const P: bool>(&self, row: u32, item: Item<P>) -> [X4<u32>; 2] {
        let k = self.0.k as usize;
        let gate = self.0.gate_up.as_ptr().cast_const().wrapping_add(2 * row as usize * k);
        // SAFETY: the caller's promise.
        unsafe { [item.load(gate), item.load(gate.wrapping_add(k))] }
    }

    #[inline(always)]
    unsafe fn take<const P: bool>(&self, row: u32, item: Item<P>, raw: [X4<u32>; 2]) -> Four {
        let activation = if SILU { Activation::Silu } else { Activation::Relu2 };
        let [gate, up] = raw.map(|raw| Item::<P>::widen::<f32>(raw));
        // Past the end zeros make zeros.
        let f = core::array::from_fn(|q| activation.gated(gate[q], up[q]));
        let to = self.0.f.as_ptr().wrapping_add(row as usize * self.0.k as usize);
        // SAFETY: the caller's promise.
        unsafe { item.store(to, f) };
        f
    }
}
