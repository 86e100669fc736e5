//! Runs of [`crate::ops::decode_layers`].

use super::kv_append::Cache;
use super::rope::Angles;
use super::{Bed, Run, RunError};
use crate::ops::act_quant::Gate;
use crate::ops::decode_layers::{DecodeLayers, DecodeTable, Layer, Linear, shape};
use crate::ops::{Backend, PackedLinear, RowType};

pub use crate::reference::decode_layers::Case;

impl Run for Case {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let heads = self.heads;
        let (hidden, ffn) = (self.rows[0].len(), self.layers[0][3].product.k);
        let capacity = self.caches[0].capacity;
        let mut weights = Vec::new();
        for linear in self.layers.iter().flatten() {
            let product = &linear.product;
            let backend = bed.backend();
            let mut w = PackedLinear::alloc(backend, "selftest", product.k, product.segments)?;
            w.write_rows(backend, 0, &product.words())?;
            let norm = linear.norm.as_ref().map(|gain| bed.input(gain)).transpose()?;
            weights.push((w, norm));
        }
        let linear = |i: usize| Linear { w: &weights[i].0, norm: weights[i].1.as_ref() };
        let layers: Vec<Layer<'_, B>> = (0..self.layers.len())
            .map(|i| [linear(4 * i), linear(4 * i + 1), linear(4 * i + 2), linear(4 * i + 3)])
            .collect();
        let before = |values: &crate::reference::kv_append::Cache| Cache {
            element: RowType::Bf16,
            values: values.clone(),
            padding: 0.0,
        };
        let befores: Vec<_> = self.caches.iter().map(before).collect();
        let mut caches = Vec::new();
        for before in &befores {
            caches.push(before.on(bed, heads)?);
        }
        let (cos, sin) = self.tables.clone();
        let angles = Angles { positions: capacity, head_dim: heads.head_dim, cos, sin };
        let rope = angles.on(bed)?;
        let shape = shape(layers.len(), hidden, ffn, heads);
        let mut table = DecodeTable::new(bed.backend(), shape, &layers, &caches)?;
        for (i, row) in self.rows.iter().enumerate() {
            let mut h = bed.input(row)?;
            let start = bed.input(&[u32::MAX, (self.start + i) as u32])?;
            bed.backend().decode_layers(DecodeLayers {
                layers: &layers,
                caches: &mut caches,
                table: &mut table,
                rope: &rope,
                h: &mut h,
                start: &start,
                start_at: 1,
                gate: self.gate,
                eps: self.eps,
            })?;
            bed.keep("h", &[hidden], &h)?;
        }
        for (before, cache) in befores.iter().zip(&caches) {
            bed.keep_cache(before, heads, cache)?;
        }
        Ok(())
    }
}

/// Cases of the doctor: shape and model.
pub(super) fn cases() -> Vec<(String, Case)> {
    let shapes = [(2, 24, 40, 3, 1, 16, 63), (3, 300, 150, 4, 2, 40, 130)];
    let case = |sizes| (format!("{sizes:?}"), Case::new(sizes, 3, true, Gate::Relu2, 9));
    shapes.into_iter().map(case).collect()
}
