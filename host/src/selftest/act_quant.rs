//! Runs of [`crate::ops::act_quant`].

use contract::w2a8::{act_bytes, act_index};

use super::{Bed, Output, Run, RunError};
use crate::ops::act_quant::{ActQuant, Gate, Source};
use crate::ops::{Backend, Float, QuantActs};

/// What is quantised, with the values that only that source has.
#[derive(Clone, Debug)]
pub enum From {
    /// Rows as they are.
    Plain,
    /// Rows rounded to f16 first.
    F16,
    /// Rows rounded to bf16 first.
    Bf16,
    /// RMSNorm, with an optional residual add.
    RmsNorm {
        /// `[m, k]`, added first.
        delta: Option<Vec<f32>>,
        /// Gain `[k]`.
        weight: Vec<f32>,
        /// Added to the mean square.
        eps: f32,
    },
    /// LayerNorm, with an optional residual add.
    LayerNorm {
        /// `[m, k]`, added first.
        delta: Option<Vec<f32>>,
        /// Gain `[k]`.
        weight: Option<Vec<f32>>,
        /// Offset `[k]`.
        bias: Option<Vec<f32>>,
        /// Added to the variance.
        eps: f32,
    },
    /// A gated product, with an optional norm.
    Gated {
        /// The activation.
        gate: Gate,
        /// Gain `[k]`.
        weight: Option<Vec<f32>>,
        /// Added to the mean square.
        eps: f32,
    },
}

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Rows.
    pub m: usize,
    /// Elements of a row.
    pub k: usize,
    /// Rows `[m, k]`; gate and up, `[m, 2 k]`, where the source is gated.
    pub x: Vec<f32>,
    /// Where they come from.
    pub from: From,
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (backend, m, k) = (bed.backend(), self.m, self.k);
        let mut x = bed.input(&self.x)?;
        let mut f = bed.output(m * k)?;
        let mut out =
            QuantActs::<B> { acts: bed.output(m * act_bytes(k) / 4)?, stats: bed.output(m)? };
        let optional =
            |values: &Option<Vec<f32>>| values.as_ref().map(|v| bed.input(v)).transpose();
        match &self.from {
            From::Plain => {
                let source = Source::Plain { x: &x };
                backend.act_quant(ActQuant { source, out: &mut out, m, k })?;
            }
            From::F16 => {
                let x: Vec<half::f16> = self.x.iter().map(|&v| Float::round(v)).collect();
                let source = Source::F16 { x: &bed.input(&x)? };
                backend.act_quant(ActQuant { source, out: &mut out, m, k })?;
            }
            From::Bf16 => {
                let x: Vec<half::bf16> = self.x.iter().map(|&v| Float::round(v)).collect();
                let source = Source::Bf16 { x: &bed.input(&x)? };
                backend.act_quant(ActQuant { source, out: &mut out, m, k })?;
            }
            From::RmsNorm { delta, weight, eps } => {
                let (delta, weight) = (optional(delta)?, bed.input(weight)?);
                let source = Source::RmsNorm {
                    x: &mut x,
                    delta: delta.as_ref(),
                    weight: &weight,
                    eps: *eps,
                };
                backend.act_quant(ActQuant { source, out: &mut out, m, k })?;
            }
            From::LayerNorm { delta, weight, bias, eps } => {
                let (delta, weight, bias) = (optional(delta)?, optional(weight)?, optional(bias)?);
                let source = Source::LayerNorm {
                    x: &mut x,
                    delta: delta.as_ref(),
                    weight: weight.as_ref(),
                    bias: bias.as_ref(),
                    eps: *eps,
                };
                backend.act_quant(ActQuant { source, out: &mut out, m, k })?;
            }
            From::Gated { gate, weight, eps } => {
                let weight = optional(weight)?;
                let source = Source::Gated {
                    gate: *gate,
                    gate_up: &x,
                    f: &mut f,
                    weight: weight.as_ref(),
                    eps: *eps,
                };
                backend.act_quant(ActQuant { source, out: &mut out, m, k })?;
            }
        }
        if let From::Gated { .. } = self.from {
            bed.keep("f", &[m, k], &f)?;
        } else {
            bed.keep("x", &[m, k], &x)?;
        }
        keep_acts(bed, &out, m, k)
    }
}

/// Keeps quantised rows: `acts` in the order of k with its padding, `scale`, `sum`.
fn keep_acts<B: Backend>(
    bed: &mut Bed<'_, B>,
    out: &QuantActs<B>,
    m: usize,
    k: usize,
) -> Result<(), RunError> {
    let width = act_bytes(k);
    let words = bed.read("acts", &out.acts)?;
    let bytes: &[i8] = bytemuck::cast_slice(&words);
    let acts = (0..m * width).map(|i| i32::from(bytes[i / width * width + act_index(i % width)]));
    bed.push(Output::words("acts", &[m, width], acts.map(|q| q as u32).collect()));
    let stats = bed.read("stats", &out.stats)?;
    let scales: Vec<f32> = stats.iter().map(|s| f32::from_bits(s[0])).collect();
    bed.push(Output::floats("scale", &[m], &scales));
    bed.push(Output::words("sum", &[m], stats.iter().map(|s| s[1]).collect()));
    Ok(())
}
