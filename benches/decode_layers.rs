//! [`contract::decode_layers`] on a GPU: all layers of the 2B-4T model on one row, and on one, eight and sixteen over pages, at two lengths of the context.

use std::process::ExitCode;

use bitnet_benches::{Case, bf16_bytes, bits, run, uniform, upload};
use bitnet_gpu::ops::act_quant::Gate;
use bitnet_gpu::ops::attention_paged::PagedCache;
use bitnet_gpu::ops::decode_layers::rows::{DecodeRows, RowsTable};
use bitnet_gpu::ops::decode_layers::{DecodeLayers, DecodeTable, Layer, Linear, shape};
use bitnet_gpu::ops::kv_append::{Heads, KvCache};
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, Math, OpError, PackedLinear, RowType, RowWords, Tensor};
use bitnet_gpu::reference::Inputs;
use bitnet_gpu::reference::decode_layers::BENCH_SHAPES;
use contract::attention_paged::PAGE;
use contract::decode_layers::{LINEARS, Shape};
use contract::w2a8::{Segments, row_words};

#[derive(Clone, Copy)]
struct Step {
    shape: Shape,
    heads: Heads,
    start: usize,
    math: Math,
}

/// A linear layer and the gain in front of it.
type Weights<B> = (PackedLinear<B>, <B as Backend>::Buf<f32>);

/// Several rows of a sequence each, all at the same position, over pages.
struct Rows {
    step: Step,
    m: usize,
}

struct RowsTensors<B: Backend> {
    weights: Vec<Weights<B>>,
    caches: Vec<PagedCache<B>>,
    table: RowsTable<B>,
    rope: RopeTable<B>,
    h: B::Buf<f32>,
    positions: B::Buf<u32>,
    tables: B::Buf<u32>,
}

struct Tensors<B: Backend> {
    weights: Vec<Weights<B>>,
    caches: Vec<KvCache<B>>,
    table: DecodeTable<B>,
    rope: RopeTable<B>,
    h: B::Buf<f32>,
    start: B::Buf<u32>,
}

/// The layers that `weights` are.
fn layers<B: Backend>(weights: &[Weights<B>]) -> Vec<Layer<'_, B>> {
    let linear = |i: usize| Linear { w: &weights[i].0, norm: Some(&weights[i].1) };
    let first = (0..weights.len()).step_by(LINEARS);
    first.map(|i| [linear(i), linear(i + 1), linear(i + 2), linear(i + 3)]).collect()
}

/// The weights of a model, and its gains.
fn weights<B: Backend>(backend: &B, shape: &Shape) -> Result<Vec<Weights<B>>, OpError> {
    let (mut inputs, mut weights) = (Inputs::new(7), Vec::new());
    for i in 0..shape.layers as usize * LINEARS {
        let [n, k, rows] = shape.linear(i % LINEARS);
        let (n, k) = ((n * rows) as usize, k as usize);
        let segments = Segments::new(&[(n, 0.02)]).ok_or(OpError::Dimension {
            op: "decode_layers",
            what: "n",
            found: n,
            allowed: "1 to 2^24 rows are allowed",
        })?;
        let mut w = PackedLinear::alloc(backend, "bench", k, segments)?;
        let words: Vec<_> = (0..n * row_words(k)).map(|_| codes(inputs.bits() as u32)).collect();
        w.write_rows(backend, 0, &words)?;
        weights.push((w, upload(backend, &uniform((i / LINEARS) as u64, k, 1.0))?));
    }
    Ok(weights)
}

/// A word of sixteen codes.
fn codes(bits: u32) -> u32 {
    // No code is 3.
    bits ^ (bits & bits >> 1 & 0x5555_5555)
}

impl Case for Step {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Shape { layers, hidden, ffn, .. } = self.shape;
        format!("{layers} layers {hidden}/{ffn} over {}", self.start + 1)
    }

    fn variant(&self) -> String {
        match self.math {
            Math::Exact => "exact".into(),
            Math::TensorCore => "tensor cores".into(),
        }
    }

    fn bytes(&self) -> u64 {
        let bytes = |kind: usize| {
            let [n, k, rows] = self.shape.linear(kind);
            4 * (n * rows) as u64 * row_words(k as usize) as u64 + 4 * u64::from(k)
        };
        let cache = 2 * 2 * self.heads.kv_heads * self.heads.head_dim * (self.start + 1);
        u64::from(self.shape.layers) * ((0..LINEARS).map(bytes).sum::<u64>() + cache as u64)
    }

    /// One copy is more than the caches hold.
    fn rotates(&self) -> bool {
        false
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let (weights, mut caches) = (weights(backend, &self.shape)?, Vec::new());
        for _ in 0..self.shape.layers {
            let mut cache = KvCache::alloc(backend, self.heads, self.start + 1, RowType::Bf16)?;
            let (k, v) = (cache.k.len(), cache.v.len());
            let mut keys = bf16_bytes(4, k / 2);
            if self.math == Math::TensorCore {
                // Times 2^24: one key has all of the weight, so that the bits are those of any order of sums.
                for high in keys.iter_mut().skip(1).step_by(2) {
                    *high = *high & 0x80 | 0x4b;
                }
            }
            backend.write(&mut cache.k, 0, &keys)?;
            backend.write(&mut cache.v, 0, &bf16_bytes(5, v / 2))?;
            caches.push(cache);
        }
        let table = DecodeTable::new(backend, self.shape, &layers(&weights), &caches)?;
        Ok(Tensors {
            table,
            rope: RopeTable::new(backend, self.start + 1, self.heads.head_dim, 500_000.0)?,
            h: upload(backend, &uniform(1, self.shape.hidden as usize, 1.0))?,
            start: upload(backend, &[self.start as u32])?,
            weights,
            caches,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { weights, caches, table, rope, h, start } = t;
        backend.decode_layers(DecodeLayers {
            layers: &layers(weights),
            caches,
            table,
            rope,
            h,
            start,
            start_at: 0,
            gate: Gate::Relu2,
            eps: 1e-5,
            math: self.math,
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.h)
    }
}

impl Case for Rows {
    type Tensors<B: Backend> = RowsTensors<B>;

    fn name(&self) -> String {
        format!("{} rows, {}", self.m, self.step.name())
    }

    fn bytes(&self) -> u64 {
        let one = self.step.bytes();
        let cache = 4 * self.step.heads.kv_heads * self.step.heads.head_dim * (self.step.start + 1);
        one + u64::from(self.step.shape.layers) * ((self.m - 1) * cache) as u64
    }

    /// One copy is more than the caches hold.
    fn rotates(&self) -> bool {
        false
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<RowsTensors<B>, OpError> {
        let Step { shape, heads, start, .. } = self.step;
        let (capacity, width) = (start + 1, (start + 1).div_ceil(PAGE));
        let (weights, mut caches) = (weights(backend, &shape)?, Vec::new());
        for _ in 0..shape.layers {
            let pages = self.m * width;
            let mut cache = PagedCache::alloc(backend, heads, pages, RowType::Bf16)?;
            let (k, v) = (cache.k.len(), cache.v.len());
            backend.write(&mut cache.k, 0, &bf16_bytes(4, k / 2))?;
            backend.write(&mut cache.v, 0, &bf16_bytes(5, v / 2))?;
            caches.push(cache);
        }
        let tables: Vec<u32> = (0..(self.m * width) as u32).collect();
        Ok(RowsTensors {
            table: RowsTable::new(backend, shape, &layers(&weights), &caches, capacity, self.m)?,
            rope: RopeTable::new(backend, capacity, heads.head_dim, 500_000.0)?,
            h: upload(backend, &uniform(1, self.m * shape.hidden as usize, 1.0))?,
            positions: upload(backend, &vec![start as u32; self.m])?,
            tables: upload(backend, &tables)?,
            weights,
            caches,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut RowsTensors<B>) -> Result<(), OpError> {
        let RowsTensors { weights, caches, table, rope, h, positions, tables } = t;
        let width = (self.step.start + 1).div_ceil(PAGE);
        backend.decode_rows(DecodeRows {
            layers: &layers(weights),
            caches,
            table,
            rope,
            h,
            positions: RowWords { words: positions, at: 0, stride: 1 },
            tables: RowWords { words: tables, at: 0, stride: width },
            m: self.m,
            gate: Gate::Relu2,
            eps: 1e-5,
            math: Math::Exact,
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &RowsTensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.h)
    }
}

fn main() -> ExitCode {
    run("decode_layers", |suite| {
        for &(layers, hidden, ffn, heads, kv_heads, head_dim, start) in BENCH_SHAPES {
            let heads = Heads { heads, kv_heads, head_dim };
            let shape = shape(layers, hidden, ffn, heads);
            let step = Step { shape, heads, start, math: Math::Exact };
            suite.measure(&step)?;
            suite.measure(&Step { math: Math::TensorCore, ..step })?;
            for m in [1, 8, 16] {
                suite.measure(&Rows { step, m })?;
            }
        }
        let note =
            "all layers of a model; the bytes are the weights, the gains, the keys and the values";
        suite.report().notes.push(note.into());
        Ok(())
    })
}
