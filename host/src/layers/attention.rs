//! Attention: fused projections, rotation and cache, softmax, sub-norm, output projection.

use super::activations::{Activations, PagedPart, Past};
use super::bit_linear::bit_linear;
use crate::ops::act_quant::{ActQuant, Source};
use crate::ops::attention::Attention;
use crate::ops::attention_paged::{AttentionPaged, PagedCache, PagedRows};
use crate::ops::attention_step::AttentionStep;
use crate::ops::bit_linear::{BitLinear, Finish, Norm};
use crate::ops::kv_append::{Heads, KvAppend};
use crate::ops::rope::RopeTable;
use crate::ops::w2a8_gemm::Behind;
use crate::ops::{Backend, Math, OpError, PackedLinear};

/// Weights of one attention layer.
pub struct AttentionLayer<B: Backend> {
    /// q, k and v, fused by rows.
    pub qkv: PackedLinear<B>,
    /// Gain of the norm in front of the output projection, where the model has one.
    pub sub_norm: Option<B::Buf<f32>>,
    /// Output projection.
    pub o: PackedLinear<B>,
    /// Heads.
    pub heads: Heads,
    /// Added to the mean square of the norms.
    pub eps: f32,
    /// How attention of several rows is summed; one row alone is always exact.
    pub math: Math,
}

impl<B: Backend> AttentionLayer<B> {
    /// Takes the quantised, normed rows in `x.acts`; leaves the projection in `x.delta`.
    ///
    /// # Errors
    /// Shapes that do not fit; a failed launch.
    pub fn forward(
        &self,
        backend: &B,
        x: &mut Activations<B>,
        past: Past<'_, B>,
        rope: &RopeTable<B>,
        m: usize,
    ) -> Result<(), OpError> {
        let heads = self.heads;
        let behind = match &past {
            Past::Paged {
                cache,
                step: Some(PagedPart { rows: PagedRows::Step(step), .. }),
                prompts: None,
            } if step.comes_early(cache, heads, m) => Behind::LetsIn,
            _ => Behind::Nothing,
        };
        bit_linear(backend, &self.qkv, &x.acts, &mut x.wide, m, &mut x.unpacked, behind)?;
        match past {
            Past::Run { cache, start, start_at, .. } => {
                backend.kv_append(KvAppend {
                    qkv: &mut x.wide,
                    cache,
                    rope: Some(rope),
                    start,
                    start_at,
                    m,
                    heads,
                })?;
                backend.attention(Attention {
                    qkv: &x.wide,
                    cache,
                    out: &mut x.delta,
                    start,
                    start_at,
                    m,
                    heads,
                    math: if m > 1 { self.math } else { Math::Exact },
                    tiled: None,
                })?;
            }
            Past::Paged { cache, step, prompts } => {
                self.by_pages(backend, x, cache, [step, prompts], rope, self.math)?;
            }
        }
        let source = match &self.sub_norm {
            Some(weight) => Source::RmsNorm { x: &mut x.delta, delta: None, weight, eps: self.eps },
            None => Source::Plain { x: &x.delta },
        };
        backend.act_quant(ActQuant { source, out: &mut x.acts, m, k: heads.q_len() })?;
        bit_linear(backend, &self.o, &x.acts, &mut x.delta, m, &mut x.unpacked, Behind::Nothing)
    }

    /// One row: norms `x.h` by `input_norm`, and adds the projection to it.
    ///
    /// # Errors
    /// Shapes that do not fit; a failed launch.
    pub fn step(
        &self,
        backend: &B,
        x: &mut Activations<B>,
        input_norm: &B::Buf<f32>,
        past: Past<'_, B>,
        rope: &RopeTable<B>,
    ) -> Result<(), OpError> {
        let eps = self.eps;
        backend.bit_linear(BitLinear {
            x: &x.h,
            norm: Some(Norm { weight: input_norm, eps }),
            w: &self.qkv,
            finish: Finish::Store { y: &mut x.wide },
        })?;
        match past {
            Past::Run { cache, start, start_at, reach } => {
                backend.attention_step(AttentionStep {
                    qkv: &x.wide,
                    cache,
                    rope,
                    out: &mut x.delta,
                    start,
                    start_at,
                    heads: self.heads,
                    scratch: &mut x.scratch,
                    positions: reach,
                })?;
            }
            Past::Paged { cache, step, prompts } => {
                self.by_pages(backend, x, cache, [step, prompts], rope, Math::Exact)?;
            }
        }
        backend.bit_linear(BitLinear {
            x: &x.delta,
            norm: self.sub_norm.as_ref().map(|weight| Norm { weight, eps }),
            w: &self.o,
            finish: Finish::Add { y: &mut x.h },
        })
    }

    /// Attention of the rows of all parts, one part behind the other.
    fn by_pages(
        &self,
        backend: &B,
        x: &mut Activations<B>,
        cache: &mut PagedCache<B>,
        parts: [Option<PagedPart<'_, B>>; 2],
        rope: &RopeTable<B>,
        math: Math,
    ) -> Result<(), OpError> {
        let mut first = 0;
        for PagedPart { m, positions, tables, capacity, rows } in parts.into_iter().flatten() {
            let (qkv, cache, out, heads) = (&x.wide, &mut *cache, &mut x.delta, self.heads);
            backend.attention_paged(AttentionPaged {
                qkv,
                cache,
                rope,
                out,
                first,
                positions,
                tables,
                capacity,
                m,
                heads,
                math,
                rows,
            })?;
            first += m;
        }
        Ok(())
    }
}
