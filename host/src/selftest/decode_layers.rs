//! Runs of [`crate::ops::decode_layers`].

use contract::attention_paged::{ABSENT, PAGE};
use contract::decode_layers::FAST_HEAD_DIM;

use super::kv_append::Cache;
use super::rope::Angles;
use super::{Bed, Output, Run, RunError, attention_paged as paged};
use crate::ops::act_quant::Gate;
use crate::ops::attention_paged::PagedCache;
use crate::ops::decode_layers::rows::{DecodeRows, RowsTable};
use crate::ops::decode_layers::{DecodeLayers, DecodeTable, Layer, Linear, shape};
use crate::ops::kv_append::KvCache;
use crate::ops::{Backend, Math, PackedLinear, RowType, RowWords};
use crate::reference::Inputs;
use crate::reference::attention_paged::Row;
use crate::reference::decode_layers::{RowsShape, decode_rows};

pub use crate::reference::decode_layers::Case;

/// A linear layer on a backend, and the gain in front of it.
type Weights<B> = (PackedLinear<B>, Option<<B as Backend>::Buf<f32>>);

/// The linear layers of a model, one after the other.
fn weights<B: Backend>(
    bed: &mut Bed<'_, B>,
    layers: &[[crate::reference::bit_linear::Case; 4]],
) -> Result<Vec<Weights<B>>, RunError> {
    let mut weights = Vec::new();
    for linear in layers.iter().flatten() {
        let product = &linear.product;
        let backend = bed.backend();
        let mut w = PackedLinear::alloc(backend, "selftest", product.k, product.segments)?;
        w.write_rows(backend, 0, &product.words())?;
        let norm = linear.norm.as_ref().map(|gain| bed.input(gain)).transpose()?;
        weights.push((w, norm));
    }
    Ok(weights)
}

/// The layers that `weights` are.
fn layers<B: Backend>(weights: &[Weights<B>]) -> Vec<Layer<'_, B>> {
    let linear = |i: usize| Linear { w: &weights[i].0, norm: weights[i].1.as_ref() };
    let first = (0..weights.len()).step_by(4);
    first.map(|i| [linear(i), linear(i + 1), linear(i + 2), linear(i + 3)]).collect()
}

impl Case {
    /// What row `i` has become, with how far another run's may be from it.
    pub fn output(&self, i: usize, h: &[f32]) -> Output {
        let output = Output::floats("h", &[h.len()], h);
        if self.within == 0.0 {
            return output;
        }
        let squares = h.iter().zip(&self.rows[i]).map(|(after, before)| (after - before).powi(2));
        let rms = (squares.sum::<f32>() / h.len() as f32).sqrt();
        output.within(vec![self.within * rms; h.len()])
    }
}

impl Run for Case {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let heads = self.heads;
        let (hidden, ffn) = (self.rows[0].len(), self.layers[0][3].product.k);
        let capacity = self.caches[0].capacity;
        let weights = weights(bed, &self.layers)?;
        let layers = layers(&weights);
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
                math: self.math,
            })?;
            let after = bed.read("h", &h)?;
            bed.push(self.output(i, &after));
        }
        for (before, cache) in befores.iter().zip(&caches) {
            bed.keep_cache(before, heads, cache)?;
        }
        Ok(())
    }
}

/// A small model and rows for it, which have a sequence each, over one pool of pages for each layer.
#[derive(Clone, Debug)]
pub struct RowsCase {
    /// Weights and gains.
    pub model: Case,
    /// Where the rows stand at first; heads, angles and pages. Its pool is nobody's.
    pub paged: paged::Inputs,
    /// Of each layer, before.
    pub pools: Vec<Cache>,
    /// Of each step, `[rows, hidden]`: a position further on than in the one before.
    pub steps: Vec<Vec<f32>>,
}

impl RowsCase {
    /// A seeded case of so many steps.
    pub fn new(
        (layers, hidden, ffn, heads, kv_heads, head_dim, positions): RowsShape,
        steps: usize,
        norms: bool,
        gate: Gate,
        seed: u64,
    ) -> Self {
        let sizes = (layers, hidden, ffn, heads, kv_heads, head_dim, 0);
        let model = Case::new(sizes, 1, norms, gate, seed);
        let mut seeded = Inputs::new(seed + 1);
        let on = |position: u32, by: usize| match position {
            ABSENT => ABSENT,
            there => there + by as u32,
        };
        let last: Vec<u32> = positions.iter().map(|&position| on(position, steps - 1)).collect();
        let element = RowType::Bf16;
        let mut paged = paged::Inputs::scattered(element, model.heads, &last, &mut seeded);
        for (row, &position) in paged.rows.iter_mut().zip(positions) {
            row.position = position;
        }
        let all = paged::Inputs::pool_heads(model.heads, paged.pages);
        let pool = |seeded: &mut Inputs| Cache {
            padding: 5.0,
            ..Cache::random(element, all, PAGE, seeded)
        };
        let pools = (0..layers).map(|_| pool(&mut seeded)).collect();
        let rows = positions.len();
        let steps = (0..steps).map(|_| seeded.floats(rows * hidden, 3.0)).collect();
        Self { model, paged, pools, steps }
    }

    /// The same where keys are so large that one has all of the weight: see [`Case::of_one_key`].
    #[must_use]
    pub fn of_one_key(mut self) -> Self {
        for k in self.pools.iter_mut().flat_map(|pool| &mut pool.values.k) {
            *k *= 16_777_216.0;
        }
        self.model.math = Math::TensorCore;
        self
    }

    /// Where the rows stand in step `step`.
    fn rows(&self, step: usize) -> Vec<Row> {
        let on = |row: &Row| match row.position {
            ABSENT => row.clone(),
            there => Row { position: there.saturating_add(step as u32), table: row.table.clone() },
        };
        self.paged.rows.iter().map(on).collect()
    }

    fn hidden(&self) -> usize {
        self.model.rows[0].len()
    }

    /// What a run gives.
    pub fn wanted(&self) -> Vec<Output> {
        let (paged, hidden) = (&self.paged, self.hidden());
        let mut pools: Vec<_> = self.pools.iter().map(|pool| pool.values.clone()).collect();
        let mut wanted = Vec::new();
        let mut all = Vec::new();
        for (step, h) in self.steps.iter().enumerate() {
            let mut h: Vec<Vec<f32>> = h.chunks(hidden).map(<[f32]>::to_vec).collect();
            let rows = self.rows(step);
            decode_rows(
                &self.model.layers,
                &mut h,
                &mut pools,
                paged.pages,
                (&paged.angles.cos, &paged.angles.sin),
                &rows,
                paged.capacity,
                paged.heads,
                self.model.gate,
                self.model.eps,
            );
            wanted.push(Output::floats("h", &[h.len(), hidden], &h.concat()));
            all.extend(rows);
        }
        for (before, after) in self.pools.iter().zip(&pools) {
            let of_all = paged::Inputs { pool: before.clone(), rows: all.clone(), ..paged.clone() };
            wanted.push(of_all.pool_output("k_cache", &after.k));
            wanted.push(of_all.pool_output("v_cache", &after.v));
        }
        wanted
    }
}

impl Run for RowsCase {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (paged, hidden, m) = (&self.paged, self.hidden(), self.paged.rows.len());
        let (heads, pages, width) = (paged.heads, paged.pages, paged.width());
        let weights = weights(bed, &self.model.layers)?;
        let layers = layers(&weights);
        let all = paged::Inputs::pool_heads(heads, pages);
        let mut caches = Vec::new();
        for pool in &self.pools {
            let KvCache { k, v, element, .. } = pool.on(bed, all)?;
            caches.push(PagedCache::<B> { k, v, element: element.into(), pages });
        }
        let rope = paged.angles.on(bed)?;
        let shape = shape(layers.len(), hidden, self.model.layers[0][3].product.k, heads);
        let mut table = RowsTable::new(bed.backend(), shape, &layers, &caches, paged.capacity, m)?;
        // Words that are nobody's stand in front and between.
        let mut words = vec![9; 5];
        for row in &paged.rows {
            words.extend_from_slice(&row.table);
            words.push(u32::MAX);
        }
        let tables = bed.input(&words)?;
        for (step, h) in self.steps.iter().enumerate() {
            let mut h = bed.input(h)?;
            let mut words = vec![7; 2];
            words.extend(self.rows(step).iter().flat_map(|row| [row.position, 1, 2]));
            let positions = bed.input(&words)?;
            bed.backend().decode_rows(DecodeRows {
                layers: &layers,
                caches: &mut caches,
                table: &mut table,
                rope: &rope,
                h: &mut h,
                positions: RowWords { words: &positions, at: 2, stride: 3 },
                tables: RowWords { words: &tables, at: 5, stride: width + 1 },
                m,
                gate: self.model.gate,
                eps: self.model.eps,
                math: self.model.math,
            })?;
            bed.keep("h", &[m, hidden], &h)?;
        }
        for (pool, cache) in self.pools.iter().zip(caches) {
            let (PagedCache { k, v, .. }, element) = (cache, pool.element);
            bed.keep_cache(pool, all, &KvCache { k, v, element, capacity: PAGE })?;
        }
        Ok(())
    }
}

/// Cases of the doctor over pages: shape and model. Of one row, exactly and on tensor cores; of more than eight rows with several rounds of units a block.
pub(super) fn rows_cases() -> Vec<(String, RowsCase)> {
    let shapes: [RowsShape<'_>; 6] = [
        (3, 300, 150, 4, 2, 40, &[130]),
        (2, 300, 150, 6, 1, 128, &[130]),
        (2, 24, 40, 3, 1, 16, &[63, 0, ABSENT, 5]),
        (3, 300, 150, 4, 2, 40, &[130, 64, 62, 1, 2, 3, 4, 5]),
        (2, 24, 40, 10, 5, 16, &[200, 300, 63, 0, ABSENT, 5, 64, 250, 7]),
        (3, 300, 150, 4, 2, 40, &[130, 64, 62, 1, 2, 3, 4, 5, 6, 63, ABSENT, 128, 0, 9, 65, 8]),
    ];
    let case = |sizes: RowsShape<'_>| {
        let case = RowsCase::new(sizes, 3, true, Gate::Relu2, 9);
        let fast = sizes.5 == FAST_HEAD_DIM as usize;
        (format!("{sizes:?}"), if fast { case.of_one_key() } else { case })
    };
    shapes.into_iter().map(case).collect()
}

/// Cases of the doctor: shape and model.
pub(super) fn cases() -> Vec<(String, Case)> {
    let shapes = [(2, 24, 40, 3, 1, 16, 63), (3, 300, 150, 4, 2, 40, 130)];
    let case = |sizes| (format!("{sizes:?}"), Case::new(sizes, 3, true, Gate::Relu2, 9));
    let fast = |(what, case): (String, Case), near| {
        let (how, case) =
            if near { ("near", case.fast(0.05)) } else { ("one key", case.of_one_key()) };
        (format!("{what} {how}"), case)
    };
    let sizes = [(1, 300, 150, 6, 1, 128, 130), (3, 300, 150, 6, 1, 128, 130)].map(case);
    let fast = sizes.into_iter().enumerate().map(|(i, case)| fast(case, i == 0));
    shapes.into_iter().map(case).chain(fast).collect()
}
