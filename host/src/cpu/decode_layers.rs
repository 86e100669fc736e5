//! CPU side of [`contract::decode_layers`]: the operations it stands for, one after the other.

use contract::attention::KEY_BLOCK;
use contract::attention_step::partial_len;

use super::CpuBackend;
use crate::ops::attention_paged::{AttentionPaged, PagedRows};
use crate::ops::attention_step::{AttentionScratch, AttentionStep};
use crate::ops::bit_linear::{BitLinear, Finish, Norm};
use crate::ops::decode_layers::rows::DecodeRows;
use crate::ops::decode_layers::{DecodeLayers, Linear};
use crate::ops::{Backend, Math, OpError};

/// All layers on one row.
///
/// # Errors
/// Shapes that do not fit; no memory.
pub fn decode_layers(cpu: &CpuBackend, op: DecodeLayers<'_, CpuBackend>) -> Result<(), OpError> {
    op.check()?;
    let heads = op.heads();
    let DecodeLayers { layers, caches, rope, h, start, start_at, gate, eps, .. } = op;
    let positions = caches[0].capacity;
    let blocks = positions.div_ceil(KEY_BLOCK);
    let ffn = layers[0][3].w.k();
    let mut qkv = cpu.alloc("decode", heads.qkv_len())?;
    let mut out = cpu.alloc("decode", heads.q_len())?;
    let mut gated = cpu.alloc("decode", ffn)?;
    let mut scratch = AttentionScratch::<CpuBackend> {
        partial: cpu.alloc("decode", heads.heads * blocks * partial_len(heads.head_dim))?,
        counters: cpu.alloc("decode", heads.heads)?,
    };
    for (layer, cache) in layers.iter().zip(caches) {
        let [qkv_proj, o, gate_up, down] = layer;
        let finish = Finish::Store { y: &mut qkv };
        cpu.bit_linear(BitLinear { x: &*h, norm: norm(qkv_proj, eps), w: qkv_proj.w, finish })?;
        cpu.attention_step(AttentionStep {
            qkv: &qkv,
            cache,
            rope,
            out: &mut out,
            start,
            start_at,
            heads,
            scratch: &mut scratch,
            positions,
        })?;
        let finish = Finish::Add { y: &mut *h };
        cpu.bit_linear(BitLinear { x: &out, norm: norm(o, eps), w: o.w, finish })?;
        let finish = Finish::Gated { gate, y: &mut gated };
        cpu.bit_linear(BitLinear { x: &*h, norm: norm(gate_up, eps), w: gate_up.w, finish })?;
        let finish = Finish::Add { y: &mut *h };
        cpu.bit_linear(BitLinear { x: &gated, norm: norm(down, eps), w: down.w, finish })?;
    }
    Ok(())
}

/// All layers on several rows, which have a sequence each.
///
/// # Errors
/// Shapes that do not fit; no memory.
pub fn decode_rows(cpu: &CpuBackend, op: DecodeRows<'_, CpuBackend>) -> Result<(), OpError> {
    op.check()?;
    let (heads, capacity) = (op.heads(), op.capacity());
    let DecodeRows { layers, caches, rope, h, positions, tables, m, gate, eps, .. } = op;
    let (hidden, ffn) = (layers[0][0].w.k(), layers[0][3].w.k());
    let (qkv_len, q_len) = (heads.qkv_len(), heads.q_len());
    let mut qkv = cpu.alloc("decode", m * qkv_len)?;
    let mut out = cpu.alloc("decode", m * q_len)?;
    // Of one row.
    let mut stream = cpu.alloc("decode", hidden)?;
    let mut projected = cpu.alloc("decode", qkv_len)?;
    let mut attended = cpu.alloc("decode", q_len)?;
    let mut gated = cpu.alloc("decode", ffn)?;
    for (layer, cache) in layers.iter().zip(caches) {
        let [qkv_proj, o, gate_up, down] = layer;
        for i in 0..m {
            stream.as_mut_slice().copy_from_slice(&h.as_slice()[i * hidden..(i + 1) * hidden]);
            let finish = Finish::Store { y: &mut projected };
            let (norm, w) = (norm(qkv_proj, eps), qkv_proj.w);
            cpu.bit_linear(BitLinear { x: &stream, norm, w, finish })?;
            qkv.as_mut_slice()[i * qkv_len..(i + 1) * qkv_len]
                .copy_from_slice(projected.as_slice());
        }
        cpu.attention_paged(AttentionPaged {
            qkv: &qkv,
            cache,
            rope,
            out: &mut out,
            first: 0,
            positions,
            tables,
            capacity,
            m,
            heads,
            math: Math::Exact,
            rows: PagedRows::Any,
        })?;
        for i in 0..m {
            let own = i * hidden..(i + 1) * hidden;
            stream.as_mut_slice().copy_from_slice(&h.as_slice()[own.clone()]);
            attended.as_mut_slice().copy_from_slice(&out.as_slice()[i * q_len..(i + 1) * q_len]);
            let finish = Finish::Add { y: &mut stream };
            cpu.bit_linear(BitLinear { x: &attended, norm: norm(o, eps), w: o.w, finish })?;
            let finish = Finish::Gated { gate, y: &mut gated };
            let (of_gate, w) = (norm(gate_up, eps), gate_up.w);
            cpu.bit_linear(BitLinear { x: &stream, norm: of_gate, w, finish })?;
            let finish = Finish::Add { y: &mut stream };
            cpu.bit_linear(BitLinear { x: &gated, norm: norm(down, eps), w: down.w, finish })?;
            h.as_mut_slice()[own].copy_from_slice(stream.as_slice());
        }
    }
    Ok(())
}

/// The norm in front of a linear layer.
fn norm<'a>(linear: &Linear<'a, CpuBackend>, eps: f32) -> Option<Norm<'a, CpuBackend>> {
    linear.norm.map(|weight| Norm { weight, eps })
}
