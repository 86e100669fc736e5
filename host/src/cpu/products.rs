//! The general products, pooling, the head by way of int8 and the sampler, on the CPU: checks an operation and hands its slices to the code
//! of its family.

use contract::conv2d::{ABSENT, finish};
use contract::lm_head_int8::input_words;
use contract::logprobs::ENTRY_WORDS;
use contract::sample::{SampleParams, adjusted_len, groups};
use contract::w2a8::act_bytes;

use super::backend::{CpuBackend, hold, table};
use super::buffer::Buffer;
use super::sample::Sampler;
use crate::ops::sample::{PARAM_WORDS, STATE_WORDS, params_of, state_words};
use crate::ops::{self, Float, OpError};

pub(super) fn conv2d<T: Float>(
    cpu: &CpuBackend,
    op: ops::conv2d::Conv2d<'_, CpuBackend, T>,
) -> Result<(), OpError> {
    op.check()?;
    let shape = op.shape();
    let tensors = super::conv2d::Tensors {
        x: op.x.as_slice(),
        w: op.w.data().as_slice(),
        bias: op.bias.map(Buffer::as_slice),
        residual: op.residual.map(Buffer::as_slice),
    };
    let geometry = shape.geometry("conv2d")?;
    super::conv2d::conv2d(
        &cpu.threads,
        cpu.simd,
        &geometry,
        op.w.packed(),
        &tensors,
        op.activation,
        op.y.as_mut_slice(),
    );
    Ok(())
}

pub(super) fn conv2d_finish<T: Float>(
    op: ops::conv2d::Finish<'_, CpuBackend, T>,
) -> Result<(), OpError> {
    op.check()?;
    let (g, k) = (op.shape().geometry("conv2d")?, op.channels);
    let (sums, y) = (op.sums.as_slice(), op.y.as_mut_slice());
    let (bias, residual) = (op.bias.map(Buffer::as_slice), op.residual.map(Buffer::as_slice));
    for (i, &sum) in sums[..g.pixels as usize * k].iter().enumerate() {
        let (pixel, channel) = (i / k, i % k);
        let at = g.output(pixel as u32, channel as u32) as usize;
        let bias = bias.map_or(ABSENT, |bias| bias[channel]);
        let residual = residual.map_or(ABSENT, |residual| residual[at].widen());
        y[at] = T::round(finish(sum, bias, residual, op.activation));
    }
    Ok(())
}

pub(super) fn conv2d_i8(
    cpu: &CpuBackend,
    op: ops::conv2d::Conv2dI8<'_, CpuBackend>,
) -> Result<(), OpError> {
    op.check()?;
    let geometry = op.geometry()?;
    super::conv2d_int8::conv2d_i8(
        &cpu.threads,
        cpu.simd,
        &geometry,
        op.w.packed(),
        (op.x.as_slice(), op.w.words().as_slice()),
        op.y.as_mut_slice(),
    );
    Ok(())
}

pub(super) fn conv2d_ternary<T: Float>(
    cpu: &CpuBackend,
    op: ops::conv2d::Conv2dTernary<'_, CpuBackend, T>,
) -> Result<(), OpError> {
    op.check()?;
    let geometry = op.geometry()?;
    let epilogue = super::conv2d_int8::Epilogue {
        scales: op.scales.as_slice(),
        segments: op.w.segments(),
        bias: op.bias.map(Buffer::as_slice),
        residual: op.residual.map(Buffer::as_slice),
        activation: op.activation,
    };
    super::conv2d_int8::conv2d_ternary(
        &cpu.threads,
        cpu.simd,
        &geometry,
        op.w.packed(),
        (op.x.as_slice(), op.w.words().as_slice()),
        &epilogue,
        op.y.as_mut_slice(),
    );
    Ok(())
}

pub(super) fn w2a8_trits(
    cpu: &CpuBackend,
    op: ops::w2a8_trits::W2a8Trits<'_, CpuBackend>,
) -> Result<(), OpError> {
    op.check()?;
    super::w2a8_trits::w2a8_trits(
        &cpu.threads,
        cpu.simd,
        op.w.words().as_slice(),
        op.w.k(),
        op.w.segments(),
        op.acts.acts.as_slice(),
        &op.acts.stats.as_slice()[..op.m],
        &mut hold(&cpu.planes),
        op.y.as_mut_slice(),
    )
}

pub(super) fn lut_matmul(
    cpu: &CpuBackend,
    op: ops::lut_matmul::LutMatmul<'_, CpuBackend>,
) -> Result<(), OpError> {
    op.check()?;
    let product = super::lut_matmul::Product {
        tiles: op.w.tiles().as_slice(),
        form: op.w.form(),
        k: op.w.k(),
        segments: op.w.segments(),
        acts: op.acts.acts.as_slice(),
        stats: &op.acts.stats.as_slice()[..op.m],
    };
    let y = &mut op.y.as_mut_slice()[..op.m * op.w.n()];
    let tables = &mut hold(&cpu.tables);
    super::lut_matmul::lut_matmul(&cpu.threads, cpu.simd, &product, tables, y)
}

pub(super) fn lut_build_lossy(
    cpu: &CpuBackend,
    op: ops::lut_matmul::LutBuildLossy<'_, CpuBackend>,
) -> Result<(), OpError> {
    op.check()?;
    let (k, act_group) = (op.tables.k(), op.tables.act_group());
    super::lut_lossy::build(
        &cpu.threads,
        cpu.simd,
        &op.x.as_slice()[..op.m * k],
        k,
        act_group,
        op.tables.tables.as_mut_slice(),
        op.tables.heads.as_mut_slice(),
    );
    Ok(())
}

pub(super) fn lut_matmul_lossy(
    cpu: &CpuBackend,
    op: ops::lut_matmul::LutMatmulLossy<'_, CpuBackend>,
) -> Result<(), OpError> {
    op.check()?;
    let (n, k) = (op.w.n(), op.w.k());
    let product = super::lut_lossy::Product {
        tiles: op.w.tiles().as_slice(),
        bits: op.w.bits(),
        n,
        k,
        scales: op.w.scales().as_slice(),
        zeros: op.w.zeros().map(Buffer::as_slice),
        act_group: op.tables.act_group(),
        per_weight_group: op.per_weight_group(),
        tables: op.tables.tables.as_slice(),
        heads: op.tables.heads.as_slice(),
    };
    let y = &mut op.y.as_mut_slice()[..op.m * n];
    super::lut_lossy::multiply(&cpu.threads, cpu.simd, &product, op.m, y);
    Ok(())
}

pub(super) fn sparse_linear<W: ops::Float, X: ops::Float>(
    cpu: &CpuBackend,
    op: ops::sparse::Linear<'_, CpuBackend, W, X>,
) -> Result<(), OpError> {
    op.check()?;
    let (k, x) = (op.w.k(), op.x.as_slice());
    let rows = |row: usize, column: usize| Some(row * k + column);
    let (w, y) = (super::sparse::Parts::of(op.w), op.y.as_mut_slice());
    super::sparse::linear(&cpu.threads, cpu.simd, w, x, rows, y, op.m)
}

pub(super) fn sparse_conv2d<W: ops::Float, X: ops::Float>(
    cpu: &CpuBackend,
    op: ops::sparse::Conv2d<'_, CpuBackend, W, X>,
) -> Result<(), OpError> {
    op.check()?;
    let (patches, pixels) = (op.shape.patches(), op.shape.pixels());
    let rows =
        |row: usize, column: usize| patches.element(patches.corner(row as u32), column as u32);
    let (w, y) = (super::sparse::Parts::of(op.w.matrix()), op.y.as_mut_slice());
    super::sparse::linear(&cpu.threads, cpu.simd, w, op.x.as_slice(), rows, y, pixels)
}

pub(super) fn sparse_csr<W: ops::Float, X: ops::Float>(
    cpu: &CpuBackend,
    op: ops::sparse::LinearCsr<'_, CpuBackend, W, X>,
) -> Result<(), OpError> {
    op.check()?;
    let (rows, columns) = (op.w.rows().as_slice(), op.w.columns().as_slice());
    let w = super::sparse::Rows { rows, columns, values: op.w.values().as_slice(), k: op.w.k() };
    super::sparse::csr(&cpu.threads, cpu.simd, w, op.x.as_slice(), op.y.as_mut_slice(), op.m);
    Ok(())
}

pub(super) fn sparse_ternary(
    cpu: &CpuBackend,
    op: ops::sparse::LinearTernary<'_, CpuBackend>,
) -> Result<(), OpError> {
    op.check()?;
    let w = super::sparse::Ternary {
        masks: op.w.masks().as_slice(),
        starts: op.w.starts().as_slice(),
        signs: op.w.signs().as_slice(),
        k: op.w.k(),
        segments: op.w.segments(),
    };
    let stats = &op.acts.stats.as_slice()[..op.m];
    super::sparse::ternary(&cpu.threads, w, op.acts.acts.as_slice(), stats, op.y.as_mut_slice());
    Ok(())
}

pub(super) fn bmm<T: ops::bmm::Operand>(
    cpu: &CpuBackend,
    op: ops::bmm::Bmm<'_, CpuBackend, T>,
) -> Result<(), OpError> {
    op.check()?;
    if op.is_empty() {
        return Ok(());
    }
    let product = super::bmm::Product {
        a: (op.a.as_slice(), op.a_layout),
        b: (op.b.as_slice(), op.b_layout),
        c: (op.c.as_mut_slice(), op.c_layout),
        shape: [op.m, op.n, op.k],
        batch: op.batch,
        alpha: op.alpha,
        beta: op.beta,
    };
    super::bmm::bmm(&cpu.threads, cpu.simd, product)
}

pub(super) fn act_quant(
    cpu: &CpuBackend,
    op: ops::act_quant::ActQuant<'_, CpuBackend>,
) -> Result<(), OpError> {
    use ops::act_quant::{ActQuant, Source};

    op.check()?;
    let ActQuant { source, out, m, k } = op;
    let out = super::act_quant::Quantised {
        acts: &mut out.acts.as_mut_slice()[..m * act_bytes(k) / 4],
        stats: &mut out.stats.as_mut_slice()[..m],
    };
    let (threads, simd) = (&cpu.threads, cpu.simd);
    match source {
        Source::Plain { x } => {
            super::act_quant::plain(threads, simd, x.as_slice(), k, out);
        }
        Source::F16 { x } => super::act_quant::widened(threads, simd, x.as_slice(), k, out),
        Source::Bf16 { x } => super::act_quant::widened(threads, simd, x.as_slice(), k, out),
        Source::RmsNorm { x, delta, weight, eps } => {
            let (x, weight) = (x.as_mut_slice(), &weight.as_slice()[..k]);
            let delta = delta.map(Buffer::as_slice);
            super::act_quant::rmsnorm(threads, simd, x, delta, weight, eps, out);
        }
        Source::LayerNorm { x, delta, weight, bias, eps } => {
            let weight = weight.map(|t| &t.as_slice()[..k]);
            let bias = bias.map(|t| &t.as_slice()[..k]);
            let affine = super::layernorm::Affine { weight, bias };
            let (x, delta) = (x.as_mut_slice(), delta.map(Buffer::as_slice));
            super::act_quant::layernorm(threads, simd, x, delta, affine, eps, k, out);
        }
        Source::Gated { gate, gate_up, f, weight, eps } => {
            let (gate_up, f) = (gate_up.as_slice(), f.as_mut_slice());
            let weight = weight.map(|w| &w.as_slice()[..k]);
            super::act_quant::gated(threads, simd, gate, gate_up, f, weight, eps, k, out);
        }
    }
    Ok(())
}

pub(super) fn pool2d<T: Float>(
    cpu: &CpuBackend,
    op: ops::pool2d::Pool2d<'_, CpuBackend, T>,
) -> Result<(), OpError> {
    op.check()?;
    let p = &op.pooling;
    let shape = super::pool2d::Shape {
        n: p.n,
        c: p.c,
        axes: p.axes()?,
        kind: p.kind,
        channels_last: p.layout == ops::pool2d::Layout::Nhwc,
    };
    let [_, len] = p.lens()?;
    let y = &mut op.y.as_mut_slice()[..len];
    super::pool2d::pool2d(&cpu.threads, cpu.simd, shape, op.x.as_slice(), y);
    Ok(())
}

pub(super) fn lm_head_int8_pack(
    cpu: &CpuBackend,
    op: ops::lm_head_int8::Pack<'_, CpuBackend>,
) -> Result<(), OpError> {
    let (bytes, rows) = (op.table.bytes.as_mut_slice(), op.table.rows.as_mut_slice());
    let bytes = bytemuck::cast_slice_mut(bytes);
    super::lm_head_int8::pack(&cpu.threads, cpu.simd, table(op.w), bytes, rows);
    Ok(())
}

pub(super) fn lm_head_int8(
    cpu: &CpuBackend,
    op: ops::lm_head_int8::LmHeadInt8<'_, CpuBackend>,
) -> Result<(), OpError> {
    use crate::ops::Backend;
    op.check()?;
    let ops::lm_head_int8::LmHeadInt8 {
        norm,
        x,
        x_at,
        w,
        table: copy,
        input,
        sampler,
        row,
        bounds,
        every,
        out,
        m,
    } = op;
    if let Some(ops::lm_head_int8::HeadNorm { h, delta, weight, eps }) = norm {
        let (y, k) = (&mut *x, w.width());
        cpu.rmsnorm(ops::rmsnorm::RmsNorm { x: h, delta, weight, y, m, k, eps })?;
    }
    let w = table(w);
    let words = input_words(w.width, w.rows as u32);
    let mut tops = vec![0; groups(w.rows as u32) as usize];
    for (i, row) in (row..row + m).enumerate() {
        let request = super::lm_head_int8::Request {
            x: &x.as_slice()[x_at + i * w.width..][..w.width],
            w,
            copy: super::lm_head_int8::Copied {
                bytes: bytemuck::cast_slice(copy.bytes.as_slice()),
                rows: copy.rows.as_slice(),
            },
            marks: &sampler.marks.as_slice()[row * w.rows..][..w.rows],
            asked: contract::lm_head_int8::Asked::of(&params(sampler, row)),
            ended: sampler.state.as_slice()[row * STATE_WORDS + 3] != 0,
        };
        super::lm_head_int8::lm_head_int8(
            &cpu.threads,
            cpu.simd,
            &request,
            &mut input.as_mut_slice()[i * words..][..words],
            &mut tops,
            &mut bounds.as_mut_slice()[i * w.rows..][..w.rows],
        );
    }
    // Those that need every logit leave it there anyway; without `every` there is no bias.
    let aside = sampler.bias.take_if(|_| !every);
    let (logits, logits_at, vocab, rows) = (&*bounds, 0, w.rows, m);
    let picks = &mut *sampler;
    let picked = sample(
        cpu,
        ops::sample::Sample { logits, logits_at, vocab, sampler: picks, row, rows, out },
    );
    sampler.bias = aside.or(sampler.bias.take());
    picked
}

/// What row `row` of a sampler was asked for.
fn params(sampler: &ops::sample::SampleState<CpuBackend>, row: usize) -> SampleParams {
    let mut words = [0; PARAM_WORDS];
    words.copy_from_slice(&sampler.params.as_slice()[row * PARAM_WORDS..][..PARAM_WORDS]);
    params_of(&words)
}

pub(super) fn sample(
    cpu: &CpuBackend,
    op: ops::sample::Sample<'_, CpuBackend>,
) -> Result<(), OpError> {
    op.check()?;
    let ops::sample::Sample { logits, logits_at, vocab, sampler, row, rows, out } = op;
    let (adjusted_len, log_len) = (adjusted_len(vocab as u32) as usize, out.0.len() / sampler.rows);
    for (i, row) in (row..row + rows).enumerate() {
        let params = params(sampler, row);
        let words = &mut sampler.state.as_mut_slice()[row * STATE_WORDS..][..STATE_WORDS];
        let mut state = contract::sample::StepState {
            pos: words[0],
            token: words[1],
            step: words[2],
            done: words[3],
        };
        super::sample::sample(
            &cpu.threads,
            cpu.simd,
            &logits.as_slice()[logits_at + i * vocab..][..vocab],
            Sampler {
                params: &params,
                state: &mut state,
                marks: &mut sampler.marks.as_mut_slice()[row * vocab..][..vocab],
                bias: match &mut sampler.bias {
                    Some(bias) if row * vocab < bias.as_slice().len() => {
                        &mut bias.as_mut_slice()[row * vocab..][..vocab]
                    }
                    _ => &mut [],
                },
                adjusted: &mut sampler.adjusted.as_mut_slice()[row * adjusted_len..][..vocab],
                scratch: &mut hold(&cpu.scratch),
                out: &mut out.0[row * log_len..][..log_len],
            },
        );
        words.copy_from_slice(&state_words(&state));
    }
    Ok(())
}

pub(super) fn allow(op: ops::sample::Allow<'_, CpuBackend>) -> Result<(), OpError> {
    op.check()?;
    let ops::sample::Allow { sampler, rows, allowed, vocab, masks } = op;
    let words = ops::sample::mask_words(vocab);
    let masks = rows.as_slice()[..masks].iter().zip(allowed.as_slice().chunks(words));
    for (&row, words) in masks.filter(|(row, _)| (**row as usize) < sampler.rows) {
        let row = row as usize;
        let marks = &mut sampler.marks.as_mut_slice()[row * vocab..][..vocab];
        let done = &mut sampler.state.as_mut_slice()[row * STATE_WORDS + 3];
        super::sample::allow(words, marks, done);
    }
    Ok(())
}

pub(super) fn logprobs(
    cpu: &CpuBackend,
    op: ops::logprobs::Logprobs<'_, CpuBackend>,
) -> Result<(), OpError> {
    op.check()?;
    let ops::logprobs::Logprobs { logits, vocab, first, rows, ring, .. } = op;
    let word = |of: ops::RowWords<'_, CpuBackend>, row: usize| {
        of.words.as_slice()[of.at + row * of.stride]
    };
    let asked = |row| (word(op.ids, row), word(op.steps, row), word(op.wanted, row));
    let entries = op.out.0[first * ring * ENTRY_WORDS..].chunks_mut(ring * ENTRY_WORDS);
    let last = &mut op.last.as_mut_slice()[first..];
    let mut rows: Vec<_> = entries.zip(last).take(rows).collect();
    cpu.threads.run_pieces(&mut rows, 1, |row, of_row| {
        for (entries, last) in of_row {
            let (id, step, wanted) = asked(row);
            if wanted == 0 || step == 0 || step == **last {
                continue;
            }
            **last = step;
            let entry = (step - 1) as usize % ring * ENTRY_WORDS;
            let entry = &mut entries[entry..][..ENTRY_WORDS];
            let logits = &logits.as_slice()[row * vocab..][..vocab];
            super::logprobs::entry(cpu.simd, logits, id, step, wanted, entry);
        }
    });
    Ok(())
}

pub(super) fn attention_paged(
    cpu: &CpuBackend,
    op: ops::attention_paged::AttentionPaged<'_, CpuBackend>,
    queries: &mut Vec<f32>,
) -> Result<(), OpError> {
    use super::attention_paged::Row;
    op.check()?;
    let scale = op.scale();
    let (positions, tables) = (op.positions, op.tables);
    let width = op.capacity.div_ceil(contract::attention_paged::PAGE);
    let rows: Vec<_> = (0..op.m)
        .map(|m| Row {
            position: positions.words.as_slice()[positions.at + m * positions.stride],
            table: &tables.words.as_slice()[tables.at + m * tables.stride..][..width],
        })
        .collect();
    let cache = super::attention_paged::PagesMut {
        k: op.cache.k.as_mut_slice(),
        v: op.cache.v.as_mut_slice(),
        element: op.cache.element,
        pages: op.cache.pages,
        capacity: op.capacity,
    };
    super::attention_paged::attention_paged(
        &cpu.threads,
        cpu.simd,
        &op.qkv.as_slice()[op.first * op.heads.qkv_len()..],
        cache,
        super::backend::angles(op.rope),
        &mut op.out.as_mut_slice()[op.first * op.heads.q_len()..],
        &rows,
        op.heads,
        scale,
        queries,
    );
    Ok(())
}
