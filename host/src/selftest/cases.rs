//! The cases of the doctor: for each kernel a few small shapes around the edges of words, warps and
//! tiles, with the values that are easily got wrong.

mod pooling;
mod pruned;
mod quantised;
mod sequence;

use contract::w2a8_gemv::VARIANTS;

use super::embed::Table;
use super::kv_append::Cache;
use super::rope::Angles;
use super::w2a8_gemv::Product;
use super::{Bed, Output, Run, RunError};
use super::{
    act_quant, activation, attention, attention_paged, attention_step, bit_linear, bmm, conv2d,
    decode_layers, elementwise, embed, image_quant, kv_append, layernorm, lm_head, lm_head_int8,
    logprobs, lut_matmul, pool2d, rmsnorm, rope, sample, softmax, sparse, w2a8_gemm, w2a8_gemv,
    w2a8_trits,
};
use crate::ops::activation::Kind as Activation;
use crate::ops::kv_append::Heads;
use crate::ops::{Backend, Math, RowType};
use crate::reference::Inputs as Seeded;

/// One case of one kernel.
#[derive(Clone, Debug)]
pub struct Case {
    /// Symbol of the kernel that runs it on a GPU.
    pub kernel: &'static str,
    /// Its shape, for people.
    pub what: String,
    inputs: Inputs,
}

#[derive(Clone, Debug)]
enum Inputs {
    W2a8Gemm(Product, usize),
    Bmm(bmm::Inputs),
    ActQuant(act_quant::Inputs),
    Activation(activation::Inputs),
    Attention(attention::Inputs),
    AttentionPaged(attention_paged::Inputs),
    CopyPages(attention_paged::Copies),
    AttentionStep(attention_step::Inputs),
    BitLinear(bit_linear::Case),
    Conv2d(conv2d::Inputs),
    DecodeLayers(decode_layers::Case),
    DecodeRows(decode_layers::RowsCase),
    Elementwise(elementwise::Inputs),
    Conv2dWhole(conv2d::WholeInputs),
    Embed(embed::Inputs),
    KvAppend(kv_append::Inputs),
    LayerNorm(layernorm::Inputs),
    LmHead(lm_head::Inputs),
    LmHeadInt8(lm_head_int8::Inputs),
    Pool2d(pool2d::Inputs),
    LutMatmul(Product, usize),
    LutMatmulLossy(lut_matmul::LossyCase),
    RmsNorm(rmsnorm::Inputs),
    Rope(rope::Inputs),
    ImageQuant(image_quant::Inputs),
    Sample(sample::Inputs),
    Logprobs(logprobs::Inputs),
    Softmax(softmax::Inputs),
    SparseLinear(sparse::Linear),
    SparseTernary(Product),
    SparseConv2d(sparse::Conv),
    W2a8Gemv(Product, usize),
    W2a8Trits(Product, Option<usize>),
}

impl Run for Case {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        match &self.inputs {
            Inputs::W2a8Gemm(case, variant) => {
                w2a8_gemm::Inputs { case, variant: Some(*variant) }.run(bed)
            }
            Inputs::W2a8Trits(case, variant) => {
                w2a8_trits::Inputs { case, variant: *variant }.run(bed)
            }
            Inputs::Bmm(inputs) => inputs.run(bed),
            Inputs::ActQuant(inputs) => inputs.run(bed),
            Inputs::Activation(inputs) => inputs.run(bed),
            Inputs::Attention(inputs) => inputs.run(bed),
            Inputs::AttentionPaged(inputs) => inputs.run(bed),
            Inputs::CopyPages(copies) => copies.run(bed),
            Inputs::AttentionStep(inputs) => inputs.run(bed),
            Inputs::BitLinear(case) => case.run(bed),
            Inputs::Conv2d(inputs) => inputs.run(bed),
            Inputs::DecodeLayers(case) => case.run(bed),
            Inputs::DecodeRows(case) => case.run(bed),
            Inputs::Elementwise(inputs) => inputs.run(bed),
            Inputs::Conv2dWhole(inputs) => inputs.run(bed),
            Inputs::Embed(inputs) => inputs.run(bed),
            Inputs::KvAppend(inputs) => inputs.run(bed),
            Inputs::LayerNorm(inputs) => inputs.run(bed),
            Inputs::LmHead(inputs) => inputs.run(bed),
            Inputs::LmHeadInt8(inputs) => inputs.run(bed),
            Inputs::Pool2d(inputs) => inputs.run(bed),
            Inputs::LutMatmul(case, variant) => {
                let form = contract::lut_matmul::VARIANTS[*variant].form;
                lut_matmul::Inputs { case, form, variant: Some(*variant) }.run(bed)
            }
            Inputs::LutMatmulLossy(case) => case.run(bed),
            Inputs::RmsNorm(inputs) => inputs.run(bed),
            Inputs::Rope(inputs) => inputs.run(bed),
            Inputs::ImageQuant(inputs) => inputs.run(bed),
            Inputs::Sample(inputs) => inputs.run(bed),
            Inputs::Logprobs(inputs) => inputs.run(bed),
            Inputs::Softmax(inputs) => inputs.run(bed),
            Inputs::SparseLinear(inputs) => inputs.run(bed),
            Inputs::SparseConv2d(inputs) => inputs.run(bed),
            Inputs::SparseTernary(case) => sparse::Ternary { case }.run(bed),
            Inputs::W2a8Gemv(case, variant) => {
                w2a8_gemv::Inputs { case, variant: Some(*variant) }.run(bed)
            }
        }
    }
}

impl Case {
    /// Runs the case over each poison; see [`super::run`].
    ///
    /// # Errors
    /// As there.
    pub fn outputs<B: Backend>(&self, backend: &B) -> Result<Vec<Output>, RunError> {
        super::run(backend, self)
    }
}

/// All cases, by kernel in the order of [`contract::KERNELS`]: at least one for each.
pub fn cases() -> Vec<Case> {
    let mut list = List(Vec::new());
    list.bmm();
    list.act_quant();
    list.attention();
    list.conv2d();
    list.tables();
    list.kv_append();
    list.lut_matmul();
    list.elementwise();
    list.rows();
    list.pool2d();
    list.pool2d_lines();
    list.pool2d_planes();
    list.pool2d_axes();
    list.pool2d_strips();
    list.pool2d_tiles();
    list.rope();
    list.image_quant();
    list.sample();
    list.steps();
    list.sparse();
    list.w2a8();
    let order = |case: &Case| contract::KERNELS.iter().position(|k| k.spec.symbol == case.kernel);
    list.0.sort_by_key(order);
    list.0
}

struct List(Vec<Case>);

/// The symbol that `contract` gives kernel `K`.
const fn symbol<K: contract::launch::Kernel>() -> &'static str {
    K::SPEC.symbol
}

/// Puts NaN, infinities and minus zero among the values, where there are enough of them.
pub(super) fn unusual(values: &mut [f32]) {
    if values.len() > 100 {
        values[3] = f32::NAN;
        values[97] = f32::INFINITY;
        values[98] = -0.0;
        values[99] = 1e-40;
    }
}

impl List {
    fn bmm(&mut self) {
        use crate::ops::bmm::Layout;
        let mut seeded = Seeded::new(8);
        for (index, variant) in contract::bmm::VARIANTS.iter().enumerate() {
            let math = if variant.tensor { Math::TensorCore } else { Math::Exact };
            for &kind in variant.kinds {
                for (batch, m, n, k, transposed) in bmm::sizes(variant) {
                    // Rows of B and columns of A: each lies in both ways in one of the cases.
                    let [a, b] = [(m, k), (k, n)].map(|(rows, columns)| match transposed {
                        true => Layout::columns(rows, columns),
                        false => Layout::rows(rows, columns),
                    });
                    let layouts = [a, b, Layout::rows(m, n)];
                    let inputs = bmm::Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded);
                    let inputs = bmm::Inputs {
                        // Kernels that put whole words into C do not read it.
                        factors: [1.0, f32::from(u8::from(transposed && variant.c_unit == 0))],
                        math,
                        variant: Some(index),
                        ..inputs
                    };
                    let what = format!("{} batch={batch} m={m} n={n} k={k}", kind.name());
                    self.add(variant.spec.symbol, what, Inputs::Bmm(inputs));
                }
            }
        }
        // Lines of f32 that are no whole pieces, for a kernel that wants them.
        let f32_64 = symbol::<contract::bmm::BmmF32Side64>();
        let variant = contract::bmm::VARIANTS.iter().position(|v| v.spec.symbol == f32_64);
        for (layouts, [m, n, k], batch) in [
            ([Layout::rows(33, 37), Layout::rows(37, 35), Layout::rows(33, 35)], [33, 35, 37], 2),
            ([Layout::columns(5, 66), Layout::columns(66, 3), Layout::rows(5, 3)], [5, 3, 66], 3),
        ] {
            let kind = contract::bmm::Kind::Float(RowType::F32);
            let inputs = bmm::Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded);
            let inputs = bmm::Inputs { variant, ..inputs };
            let what = format!("batch={batch} m={m} n={n} k={k}");
            self.add(symbol::<contract::bmm::BmmF32Copy>(), what, Inputs::Bmm(inputs));
        }
        // 16-bit floats, which widen, and whose sums are rounded at the end.
        for kind in [RowType::Bf16, RowType::F16].map(contract::bmm::Kind::Float) {
            let (batch, [m, n, k]) = (2, [33, 36, 1040]);
            let layouts = [Layout::rows(m, k), Layout::columns(k, n), Layout::rows(m, n)];
            let inputs = bmm::Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded);
            let what = format!("{} batch={batch} m={m} n={n} k={k}", kind.name());
            self.add(symbol::<contract::bmm::BmmF32Widen>(), what, Inputs::Bmm(inputs));
        }
        // Lines of i8 that are no whole pieces, and terms that are no neighbours.
        let wgmma = symbol::<contract::bmm::BmmI8Wgmma128>();
        let variant = contract::bmm::VARIANTS.iter().position(|v| v.spec.symbol == wgmma);
        for (layouts, [m, n, k], batch) in [
            ([Layout::rows(33, 37), Layout::rows(37, 35), Layout::rows(33, 35)], [33, 35, 37], 2),
            ([Layout::columns(5, 66), Layout::columns(66, 3), Layout::rows(5, 3)], [5, 3, 66], 3),
        ] {
            let kind = contract::bmm::Kind::I8;
            let inputs = bmm::Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded);
            let inputs = bmm::Inputs { variant, ..inputs };
            let what = format!("batch={batch} m={m} n={n} k={k}");
            self.add(symbol::<contract::bmm::BmmI8Lines>(), what, Inputs::Bmm(inputs));
        }
        // Sums that are spread over the GPU: exact ones, of 16-bit floats that widen first too, and of a tensor core.
        let [f32, bf16, f16] =
            [RowType::F32, RowType::Bf16, RowType::F16].map(contract::bmm::Kind::Float);
        for (kind, math) in [
            (f32, Math::Exact),
            (bf16, Math::TensorCore),
            (f16, Math::TensorCore),
            (bf16, Math::Exact),
            (f16, Math::Exact),
            (contract::bmm::Kind::I8, Math::Exact),
        ] {
            let (batch, [m, n, k]) = (2, [3, 5, 30_001]);
            let layouts = [Layout::rows(m, k), Layout::columns(k, n), Layout::rows(m, n)];
            let inputs = bmm::Inputs::random(kind, layouts, [m, n, k], batch, &mut seeded);
            let inputs = bmm::Inputs { factors: [2.0, -1.0], math, ..inputs };
            let what = format!("{} batch={batch} m={m} n={n} k={k} {math:?}", kind.name());
            self.add(symbol::<contract::bmm::BmmParts>(), what, Inputs::Bmm(inputs));
        }
    }

    fn add(&mut self, kernel: &'static str, what: String, inputs: Inputs) {
        self.0.push(Case { kernel, what, inputs });
    }

    /// The fused operations of a single row.
    fn steps(&mut self) {
        for (kernel, what, inputs) in attention_paged::cases() {
            self.add(kernel, what, Inputs::AttentionPaged(inputs));
        }
        for (what, copies) in attention_paged::copy_cases() {
            let kernel = symbol::<contract::attention_paged::CopyPages>();
            self.add(kernel, what, Inputs::CopyPages(copies));
        }
        for (kernel, what, inputs) in attention_step::cases() {
            self.add(kernel, what, Inputs::AttentionStep(inputs));
        }
        for (what, case) in bit_linear::cases() {
            let kernel = match case.product.k <= contract::bit_linear::SHORT_K {
                true => symbol::<contract::bit_linear::BitLinearShort>(),
                false => symbol::<contract::bit_linear::BitLinearLong>(),
            };
            self.add(kernel, what, Inputs::BitLinear(case));
        }
        for (what, case) in decode_layers::cases() {
            let kernel = match case.math {
                Math::Exact => symbol::<contract::decode_layers::DecodeLayers>(),
                Math::TensorCore => symbol::<contract::decode_layers::DecodeLayersFast>(),
            };
            self.add(kernel, what, Inputs::DecodeLayers(case));
        }
        for (what, case) in decode_layers::rows_cases() {
            let kernel = match case.paged.rows.len() {
                1 if case.model.math == Math::Exact => {
                    symbol::<contract::decode_layers::DecodeLayersPaged>()
                }
                1 => symbol::<contract::decode_layers::DecodeLayersPagedFast>(),
                ..=8 => symbol::<contract::decode_layers::DecodeLayersRows>(),
                _ => symbol::<contract::decode_layers::DecodeLayersRows16>(),
            };
            self.add(kernel, what, Inputs::DecodeRows(case));
        }
    }

    fn conv2d(&mut self) {
        for (kernel, what, inputs) in conv2d::cases() {
            self.add(kernel, what, Inputs::Conv2d(inputs));
        }
        for (kernel, what, inputs) in conv2d::whole_cases() {
            self.add(kernel, what, Inputs::Conv2dWhole(inputs));
        }
    }

    fn tables(&mut self) {
        use contract::embed::{EmbedBf16, EmbedF16, EmbedF32};
        use contract::lm_head::{
            LmHeadBf16, LmHeadF16, LmHeadF32, LmHeadManyBf16, LmHeadManyF16, LmHeadManyF32,
            LmHeadTileBf16, LmHeadTileF16, LmHeadTileF32,
        };
        for (kernel, what, inputs) in lm_head_int8::cases() {
            self.add(kernel, what, Inputs::LmHeadInt8(inputs));
        }
        let mut seeded = Seeded::new(3);
        for (element, embed, [one, many, tile]) in [
            (
                RowType::Bf16,
                symbol::<EmbedBf16>(),
                [symbol::<LmHeadBf16>(), symbol::<LmHeadManyBf16>(), symbol::<LmHeadTileBf16>()],
            ),
            (
                RowType::F16,
                symbol::<EmbedF16>(),
                [symbol::<LmHeadF16>(), symbol::<LmHeadManyF16>(), symbol::<LmHeadTileF16>()],
            ),
            (
                RowType::F32,
                symbol::<EmbedF32>(),
                [symbol::<LmHeadF32>(), symbol::<LmHeadManyF32>(), symbol::<LmHeadTileF32>()],
            ),
        ] {
            for (rows, width, m) in
                [(1, 1, 1), (33, 1027, 1), (17, 63, 2), (33, 1027, 5), (19, 770, 19), (5, 6200, 3)]
            {
                // Rows that are too long for tiles; older levels take all that way.
                let several = if width > 6144 { many } else { tile };
                let lm_head = if m == 1 { one } else { several };
                let table = Table::new(element, rows, width, seeded.bits());
                let what = format!("rows={rows} width={width} m={m}");
                let mut ids: Vec<u32> = (0..m + 1).map(|_| seeded.below(rows) as u32).collect();
                // Past the table: a row of NaN.
                ids[m] = rows as u32;
                let inputs = embed::Inputs { table: table.clone(), ids, ids_at: 1 };
                self.add(embed, what.clone(), Inputs::Embed(inputs));
                let x = seeded.floats(width + m * width, 1.0);
                let inputs = lm_head::Inputs { table, x, x_at: width };
                self.add(lm_head, what, Inputs::LmHead(inputs));
            }
        }
    }

    fn kv_append(&mut self) {
        use contract::kv_append::{KvAppendBf16, KvAppendF32, KvAppendRopeBf16, KvAppendRopeF32};
        let mut seeded = Seeded::new(4);
        for (heads, kv_heads, head_dim, m, start, capacity) in
            [(1, 1, 2, 1, 0, 1), (4, 2, 50, 3, 5, 9), (2, 1, 256, 4, 6, 8)]
        {
            let heads = Heads { heads, kv_heads, head_dim };
            let angles = Angles::new(capacity, head_dim, 10_000.0);
            for (element, plain, rotate) in [
                (RowType::Bf16, symbol::<KvAppendBf16>(), symbol::<KvAppendRopeBf16>()),
                (RowType::F32, symbol::<KvAppendF32>(), symbol::<KvAppendRopeF32>()),
            ] {
                let cache = Cache::random(element, heads, capacity, &mut seeded);
                let cache = Cache { padding: 5.0, ..cache };
                let qkv = seeded.floats(m * heads.qkv_len(), 3.0);
                for (kernel, angles) in [(plain, None), (rotate, Some(angles.clone()))] {
                    let (qkv, cache) = (qkv.clone(), cache.clone());
                    let inputs = kv_append::Inputs { heads, qkv, cache, angles, start };
                    let what = format!("{heads:?} m={m} start={start} capacity={capacity}");
                    self.add(kernel, what, Inputs::KvAppend(inputs));
                }
            }
        }
    }

    fn lut_matmul(&mut self) {
        use contract::lut_matmul::{LossyB1, LossyB2, LossyB3, LossyB4, LossyTables, VARIANTS};
        for (index, variant) in VARIANTS.iter().enumerate() {
            for (m, n, k) in [(1, 1, 1), (2, 33, 65), (1, 131, 1000), (1, 7, 5000)] {
                let what = format!("m={m} n={n} k={k}");
                let case = Product::new(m, n, k, 10);
                self.add(variant.spec.symbol, what, Inputs::LutMatmul(case, index));
            }
        }
        for (i, shape) in
            [(1, 1, 1, 32, 64), (2, 33, 65, 64, 64), (1, 40, 5000, 64, 128)].into_iter().enumerate()
        {
            let kernels = [
                symbol::<LossyB1>(),
                symbol::<LossyB2>(),
                symbol::<LossyB3>(),
                symbol::<LossyB4>(),
                symbol::<LossyTables>(),
            ];
            for (bits, kernel) in kernels.into_iter().enumerate() {
                let case = lut_matmul::LossyCase::new(bits % 4 + 1, shape, i as u64);
                self.add(kernel, format!("{shape:?}"), Inputs::LutMatmulLossy(case));
            }
        }
    }

    fn elementwise(&mut self) {
        use contract::activation::{ActivationBf16, ActivationF16, ActivationF32};
        use contract::elementwise::{ElementwiseBf16, ElementwiseF16, ElementwiseF32};
        let kernels = [
            (RowType::F32, symbol::<ActivationF32>(), symbol::<ElementwiseF32>()),
            (RowType::F16, symbol::<ActivationF16>(), symbol::<ElementwiseF16>()),
            (RowType::Bf16, symbol::<ActivationBf16>(), symbol::<ElementwiseBf16>()),
        ];
        for (element, activation, elementwise) in kernels {
            for (m, k) in [(1, 1), (3, 65), (2, 1032)] {
                for (form, kind) in Activation::ALL.into_iter().enumerate() {
                    let what = format!("{} m={m} k={k}", kind.name());
                    let mut inputs = activation::Inputs::new(element, kind, m, k, form, 5);
                    unusual(&mut inputs.x);
                    self.add(activation, what, Inputs::Activation(inputs));
                }
                for kind in [0, 5, 2, 11, 8] {
                    let mut inputs = elementwise::Inputs::new(element, m, k, kind, 6);
                    unusual(&mut inputs.a);
                    let what = format!("{:?} m={m} k={k}", inputs.form);
                    self.add(elementwise, what, Inputs::Elementwise(inputs));
                }
            }
        }
    }

    fn rows(&mut self) {
        use contract::ring;
        use contract::row::{Family, Kernels, Owner, owner};
        use contract::{layernorm as l, rmsnorm as r, softmax as s};
        /// Those of a family for an element.
        fn of<A, K: Kernels<A>>() -> [&'static str; 8] {
            let near = [symbol::<K::Short>(), symbol::<K::Middle>(), symbol::<K::Long>()];
            let [short, middle, long] = near;
            [
                symbol::<K::Small>(),
                symbol::<K::Words>(),
                short,
                middle,
                long,
                symbol::<K::Turned>(),
                symbol::<K::LongTurned>(),
                symbol::<K::Parts>(),
            ]
        }
        macro_rules! of {
            ($element:ident) => {
                [
                    of::<s::Args, <s::Softmax as Family>::$element>(),
                    of::<l::Args, <l::LayerNorm as Family>::$element>(),
                    of::<r::Args, <r::RmsNorm as Family>::$element>(),
                ]
            };
        }
        let kernels =
            [(RowType::F32, of!(F32)), (RowType::F16, of!(F16)), (RowType::Bf16, of!(Bf16))];
        for (element, families) in kernels {
            let owner = |k: usize| owner(k as u32, element.bytes() as u32, 32);
            let ms = [1, 9, 3, 3, 2, 2, 2, 1, 3, 1, 2, 9];
            let ks = [1, 1000, 1027, 1032, 5000, 5003, 17_000, 20_001, 40_001, 66_000, 66_001, 37];
            for (i, (m, k)) in ms.into_iter().zip(ks).enumerate() {
                let whole = [s::WHOLE, l::WHOLE, r::WHOLE];
                let [softmax, layernorm, rmsnorm] = std::array::from_fn(|family| {
                    let [small, _, short, middle, long, turned, long_turned, parts] =
                        families[family];
                    let bytes = element.bytes() as u32;
                    let odd = !(k as u32 * bytes).is_multiple_of(16);
                    let beside = [0, l::LayerNorm::BESIDE, r::RmsNorm::BESIDE][family];
                    let rings = beside > 0
                        && ring::goes([m as u32, k as u32], bytes, (beside, true), 1 << 20);
                    match owner(k) {
                        _ if k <= 128 => small,
                        _ if k > whole[family] as usize => parts,
                        _ if rings => turned,
                        Owner::Block if odd => turned,
                        Owner::LongBlock if odd => long_turned,
                        Owner::Lanes(_) => short,
                        Owner::Block => middle,
                        Owner::LongBlock => long,
                    }
                });
                let what = format!("m={m} k={k}");
                for kind in [i, i + 1, i + 3] {
                    let mut inputs = softmax::Inputs::new(element, m, k, kind, 7);
                    if m > 2 {
                        // A row of minus infinity, one with NaN.
                        inputs.x[..k].fill(f32::NEG_INFINITY);
                        inputs.x[k] = f32::NAN;
                    }
                    // Rows in words are neither masked nor scaled.
                    let plain = kind % 6 == 0;
                    let words = plain && k > 16 && k <= 128 && k % 8 > 0;
                    let kernel = if words { families[0][1] } else { softmax };
                    self.add(kernel, what.clone(), Inputs::Softmax(inputs));
                }
                let mut inputs = layernorm::Inputs::new(element, m, k, 7 - 2 * (i % 4), 8);
                unusual(&mut inputs.x);
                self.add(layernorm, what.clone(), Inputs::LayerNorm(inputs));
                let mut inputs = rmsnorm::Inputs::new(element, m, k, i % 2 == 0, 9);
                unusual(&mut inputs.x);
                self.add(rmsnorm, what, Inputs::RmsNorm(inputs));
            }
        }
    }

    fn rope(&mut self) {
        let mut seeded = Seeded::new(6);
        // The last rows of the second case stand past the table.
        for (m, heads, head_dim, start, positions) in [(1, 1, 2, 0, 1), (5, 3, 50, 7, 10)] {
            let row_stride = heads * head_dim + 3;
            let inputs = rope::Inputs {
                angles: Angles::new(positions, head_dim, 500_000.0),
                x: seeded.floats((m - 1) * row_stride + heads * head_dim, 3.0),
                m,
                heads,
                row_stride,
                start,
            };
            let what = format!("m={m} heads={heads} head_dim={head_dim} start={start}");
            self.add(symbol::<contract::rope::Rope>(), what, Inputs::Rope(inputs));
        }
    }

    fn image_quant(&mut self) {
        for (kernel, what, inputs) in image_quant::cases() {
            self.add(kernel, what, Inputs::ImageQuant(inputs));
        }
    }

    fn sample(&mut self) {
        for (kernel, what, inputs) in sample::cases() {
            self.add(kernel, what, Inputs::Sample(inputs));
        }
        for (kernel, what, inputs) in logprobs::cases() {
            self.add(kernel, what, Inputs::Logprobs(inputs));
        }
    }

    fn w2a8(&mut self) {
        let gemv = [(1, 1), (7, 65), (33, 513), (131, 1000)];
        for (index, variant) in VARIANTS.iter().enumerate() {
            for (n, k) in gemv {
                let case = Product::new(1, n, k, 8);
                self.add(
                    variant.spec.symbol,
                    format!("n={n} k={k}"),
                    Inputs::W2a8Gemv(case, index),
                );
            }
        }
        // Around one tile of every variant, and over several parts of k.
        let gemm = [(1, 1, 1), (2, 7, 65), (17, 70, 1000), (65, 132, 2100)];
        for (index, variant) in contract::w2a8_gemm::VARIANTS.iter().enumerate() {
            for (m, n, k) in gemm {
                let case = Product::new(m, n, k, 9);
                self.add(
                    variant.spec.symbol,
                    format!("m={m} n={n} k={k}"),
                    Inputs::W2a8Gemm(case, index),
                );
            }
        }
        for (kernel, what, case, variant) in w2a8_trits::cases() {
            self.add(kernel, what, Inputs::W2a8Trits(case, variant));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_case() {
        let cases = cases();
        for kernel in contract::KERNELS {
            let symbol = kernel.spec.symbol;
            assert!(cases.iter().any(|case| case.kernel == symbol), "{symbol} has no case");
        }
        assert!(cases.iter().all(|c| contract::KERNELS.iter().any(|k| k.spec.symbol == c.kernel)));
    }
}
