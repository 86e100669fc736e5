//! Host side of [`contract::act_quant`].

use contract::w2a8::{MAX_K, MAX_ROWS};

use super::error::{at_least, dimension};
use super::{Backend, OpError, QuantActs, Tensor};

const OP: &str = "act_quant";

/// The activation of a gated product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `relu(gate)^2`.
    Relu2,
    /// `silu(gate)`.
    Silu,
}

/// What is quantised.
pub enum Source<'a, B: Backend> {
    /// Rows `[m, k]` as they are.
    Plain {
        /// The rows.
        x: &'a B::Buf<f32>,
    },
    /// The same of f16.
    F16 {
        /// The rows.
        x: &'a B::Buf<half::f16>,
    },
    /// The same of bf16.
    Bf16 {
        /// The rows.
        x: &'a B::Buf<half::bf16>,
    },
    /// RMSNorm of `x + delta`; `x` keeps the sum.
    RmsNorm {
        /// Rows `[m, k]`; updated when `delta` is given.
        x: &'a mut B::Buf<f32>,
        /// Rows added to `x` first.
        delta: Option<&'a B::Buf<f32>>,
        /// Gain `[k]`.
        weight: &'a B::Buf<f32>,
        /// Added to the mean square.
        eps: f32,
    },
    /// LayerNorm of `x + delta`; `x` keeps the sum.
    LayerNorm {
        /// Rows `[m, k]`; updated when `delta` is given.
        x: &'a mut B::Buf<f32>,
        /// Rows added to `x` first.
        delta: Option<&'a B::Buf<f32>>,
        /// Gain `[k]`.
        weight: Option<&'a B::Buf<f32>>,
        /// Offset `[k]`.
        bias: Option<&'a B::Buf<f32>>,
        /// Added to the variance.
        eps: f32,
    },
    /// `act(gate) * up`, with RMSNorm when a gain is given.
    Gated {
        /// The activation.
        gate: Gate,
        /// Rows `[m, 2 k]`: gate, then up.
        gate_up: &'a B::Buf<f32>,
        /// The product `[m, k]`: an output.
        f: &'a mut B::Buf<f32>,
        /// Gain `[k]`.
        weight: Option<&'a B::Buf<f32>>,
        /// Added to the mean square.
        eps: f32,
    },
}

/// Quantises `m` rows of `k` values to int8.
pub struct ActQuant<'a, B: Backend> {
    /// Where the rows come from.
    pub source: Source<'a, B>,
    /// Output.
    pub out: &'a mut QuantActs<B>,
    /// Rows.
    pub m: usize,
    /// Elements of a row.
    pub k: usize,
}

impl<B: Backend> ActQuant<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "k", self.k, MAX_K, "1 to 2^20 elements are allowed")?;
        let (len, k) = (self.m * self.k, self.k);
        match &self.source {
            Source::Plain { x } => at_least(OP, "x", x.len(), len)?,
            Source::F16 { x } => at_least(OP, "x", x.len(), len)?,
            Source::Bf16 { x } => at_least(OP, "x", x.len(), len)?,
            Source::RmsNorm { x, delta, weight, .. } => {
                at_least(OP, "x", x.len(), len)?;
                if let Some(delta) = delta {
                    at_least(OP, "delta", delta.len(), len)?;
                }
                at_least(OP, "weight", weight.len(), k)?;
            }
            Source::LayerNorm { x, delta, weight, bias, .. } => {
                at_least(OP, "x", x.len(), len)?;
                for (name, tensor, needed) in
                    [("delta", delta, len), ("weight", weight, k), ("bias", bias, k)]
                {
                    if let Some(tensor) = tensor {
                        at_least(OP, name, tensor.len(), needed)?;
                    }
                }
            }
            Source::Gated { gate_up, f, weight, .. } => {
                at_least(OP, "gate_up", gate_up.len(), 2 * len)?;
                at_least(OP, "f", f.len(), len)?;
                if let Some(weight) = weight {
                    at_least(OP, "weight", weight.len(), k)?;
                }
            }
        }
        self.out.check(OP, self.m, self.k)
    }
}

#[cfg(feature = "cuda")]
impl ActQuant<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::act_quant::{
            Args, Front, GatedArgs, LayerNorm, LayerNormArgs, Plain, PlainBf16, PlainF16, Relu2,
            RmsNorm, RmsNormArgs, Silu,
        };
        use contract::launch::DevPtr;
        self.check()?;
        let Self { source, out, m, k } = self;
        let stream = cuda.stream();
        let (acts, stats) = (out.acts.dev_ptr(stream), out.stats.dev_ptr(stream).cast());
        let (k, m) = (k as u32, m as u32);
        let shape = [m, k];
        let or_null = |weight: Option<&super::cuda::Buf<f32>>| {
            weight.map_or(DevPtr::NULL, |weight| weight.dev_ptr(stream))
        };
        let plain = |x| Args { x, acts, stats, k, m };
        // SAFETY: in each arm, `check` compared every tensor with `m` rows of `k` (the gate with
        // rows of `2 k`), `QuantActs` with `m` rows of `act_bytes(k)`; what the kernel writes is
        // borrowed exclusively.
        unsafe {
            match source {
                Source::Plain { x } => {
                    launch::<_, Plain>(cuda, Front::Plain, shape, plain(x.dev_ptr(stream).cast()))
                }
                Source::F16 { x } => launch::<_, PlainF16>(
                    cuda,
                    Front::Plain,
                    shape,
                    plain(x.dev_ptr(stream).cast()),
                ),
                Source::Bf16 { x } => launch::<_, PlainBf16>(
                    cuda,
                    Front::Plain,
                    shape,
                    plain(x.dev_ptr(stream).cast()),
                ),
                Source::RmsNorm { x, delta, weight, eps } => {
                    let (x, weight) = (x.dev_ptr(stream), weight.dev_ptr(stream));
                    let delta = or_null(delta);
                    let args = RmsNormArgs { x, delta, weight, acts, stats, k, m, eps };
                    launch::<_, RmsNorm>(cuda, Front::RmsNorm, shape, args)
                }
                Source::LayerNorm { x, delta, weight, bias, eps } => {
                    let (x, delta) = (x.dev_ptr(stream), or_null(delta));
                    let (weight, bias) = (or_null(weight), or_null(bias));
                    let args = LayerNormArgs { x, delta, weight, bias, acts, stats, k, m, eps };
                    launch::<_, LayerNorm>(cuda, Front::LayerNorm, shape, args)
                }
                Source::Gated { gate, gate_up, f, weight, eps } => {
                    let (gate_up, f) = (gate_up.dev_ptr(stream), f.dev_ptr(stream));
                    let weight = or_null(weight);
                    let args = GatedArgs { gate_up, f, weight, acts, stats, k, m, eps };
                    match gate {
                        Gate::Relu2 => launch::<_, Relu2>(cuda, Front::Gated, shape, args),
                        Gate::Silu => launch::<_, Silu>(cuda, Front::Gated, shape, args),
                    }
                }
            }
        }
    }
}

/// Queues the kernel that has such rows.
///
/// # Safety
/// As [`crate::driver::KernelHandle::launch`], of each of the kernels.
#[cfg(feature = "cuda")]
unsafe fn launch<A, K: contract::act_quant::Kernels<A>>(
    cuda: &super::CudaBackend,
    front: contract::act_quant::Front,
    [m, k]: [u32; 2],
    args: A,
) -> Result<(), OpError> {
    use contract::act_quant::{Form, form, short_grid};
    // SAFETY: by the caller.
    unsafe {
        match form(front, m, k) {
            Form::Short if cuda.has::<K::Short>() => {
                cuda.launch::<K::Short>([short_grid(m, k), 1, 1], args)
            }
            Form::Middle if cuda.has::<K::Middle>() => cuda.launch::<K::Middle>([m, 1, 1], args),
            Form::Long if cuda.has::<K::Long>() => cuda.launch::<K::Long>([m, 1, 1], args),
            _ => cuda.launch::<K::Row>([m, 1, 1], args),
        }
    }
}
