//! Cases of activations that are quantised.

use super::{Inputs, List, act_quant, symbol};
use crate::ops::act_quant::Gate;
use crate::reference::Inputs as Seeded;

impl List {
    pub(super) fn act_quant(&mut self) {
        use contract::act_quant::*;
        let mut seeded = Seeded::new(1);
        for (m, k) in [(1, 1), (3, 63), (2, 1000), (5, 513)] {
            let mut weight = || seeded.floats(k, 2.0);
            let (gain, some) = (weight(), (k != 63).then(weight));
            let delta = (k != 1).then(|| seeded.floats(m * k, 3.0));
            let gated = |gate| act_quant::From::Gated { gate, weight: some.clone(), eps: 1e-5 };
            let (other, weight, bias) = (delta.clone(), some.clone(), Some(gain.clone()));
            let norm = act_quant::From::RmsNorm { delta, weight: gain, eps: 1e-5 };
            let centred = act_quant::From::LayerNorm { delta: other, weight, bias, eps: 1e-5 };
            for (kernel, from, width) in [
                (symbol::<ActQuant>(), act_quant::From::Plain, k),
                (symbol::<ActQuantF16>(), act_quant::From::F16, k),
                (symbol::<ActQuantBf16>(), act_quant::From::Bf16, k),
                (symbol::<ActQuantRmsNorm>(), norm, k),
                (symbol::<ActQuantLayerNorm>(), centred, k),
                (symbol::<ActQuantRelu2>(), gated(Gate::Relu2), 2 * k),
                (symbol::<ActQuantSilu>(), gated(Gate::Silu), 2 * k),
            ] {
                let mut x = seeded.floats(m * width, 4.0);
                if m == 5 {
                    // A row of zeros, one with NaN, one with infinity, one of subnormals.
                    x[..width].fill(0.0);
                    x[width + width / 2] = f32::NAN;
                    x[2 * width] = f32::NEG_INFINITY;
                    x[3 * width..4 * width].iter_mut().for_each(|v| *v *= 1e-39);
                }
                let inputs = act_quant::Inputs { m, k, x, from };
                self.add(kernel, format!("m={m} k={k}"), Inputs::ActQuant(inputs));
            }
        }
        self.act_quant_many();
    }

    /// Rows of the kernels that have many, or long ones.
    fn act_quant_many(&mut self) {
        use contract::act_quant::*;
        let mut seeded = Seeded::new(11);
        for (m, k) in [(513, 60), (512, 131), (514, 515), (512, 1028), (513, 1031), (2, 9000)] {
            let mut vector = || Some(seeded.floats(k, 2.0));
            let (weight, bias) = (vector(), vector());
            let delta = (k % 4 == 0).then(|| seeded.floats(m * k, 3.0));
            let eps = 1e-5;
            let norm = act_quant::From::RmsNorm {
                delta: delta.clone(),
                weight: weight.clone().unwrap_or_default(),
                eps,
            };
            let centred = act_quant::From::LayerNorm { delta, weight: weight.clone(), bias, eps };
            let gated = |gate| act_quant::From::Gated { gate, weight: weight.clone(), eps };
            // One of the three each time.
            let of = |short, middle, long| match k {
                0..=1024 => short,
                1025..=3072 => middle,
                _ => long,
            };
            macro_rules! of {
                ($short:ident $middle:ident $long:ident) => {
                    of(symbol::<$short>(), symbol::<$middle>(), symbol::<$long>())
                };
            }
            for (kernel, from, width) in [
                (of!(Short Middle Long), act_quant::From::Plain, k),
                (of!(ShortF16 MiddleF16 LongF16), act_quant::From::F16, k),
                (of!(ShortBf16 MiddleBf16 LongBf16), act_quant::From::Bf16, k),
                (of!(ShortRmsNorm MiddleRmsNorm LongRmsNorm), norm, k),
                (of!(ShortLayerNorm MiddleLayerNorm LongLayerNorm), centred, k),
                (of!(ShortRelu2 MiddleRelu2 LongRelu2), gated(Gate::Relu2), 2 * k),
                (of!(ShortSilu MiddleSilu LongSilu), gated(Gate::Silu), 2 * k),
            ] {
                let mut x = seeded.floats(m * width, 4.0);
                if m > 100 {
                    x[..width].fill(0.0);
                    x[width + width / 2] = f32::NAN;
                    x[m * width - 1] = f32::NEG_INFINITY;
                }
                let inputs = act_quant::Inputs { m, k, x, from };
                self.add(kernel, format!("m={m} k={k}"), Inputs::ActQuant(inputs));
            }
        }
    }
}
