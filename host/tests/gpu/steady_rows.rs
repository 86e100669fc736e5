//! Ternary products, the int8 head and rows, again and again: see [`crate::again`].

use std::rc::Rc;

use bitnet_gpu::ops::bit_linear::{BitLinear, Finish, Norm};
use bitnet_gpu::ops::elementwise::{Elementwise, Function};
use bitnet_gpu::ops::layernorm::LayerNorm;
use bitnet_gpu::ops::lm_head_int8::{Int8Table, LmHeadInt8};
use bitnet_gpu::ops::lut_matmul::{
    Form, LossyLinear, LossyTables, LutBuildLossy, LutLinear, LutMatmul, LutMatmulLossy,
};
use bitnet_gpu::ops::rmsnorm::RmsNorm;
use bitnet_gpu::ops::sample::{SampleState, param_words};
use bitnet_gpu::ops::softmax::{Mask, Softmax};
use bitnet_gpu::ops::w2a8_gemm::{Behind, W2a8Gemm};
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::w2a8_trits::{W2a8Trits, unpacked_len};
use bitnet_gpu::ops::{
    Backend, Dense, Float, OpError, PackedLinear, QuantActs, TokenLog, WeightLayout,
};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::lut_matmul::{LossyCase, tiles};
use bitnet_gpu::reference::sample::GREEDY;
use bitnet_gpu::reference::w2a8_gemv::Case as Product;
use bitnet_gpu::selftest::POISONS;
use bitnet_gpu::selftest::sparse::rounded;
use contract::sample::{ONE_WEIGHT, SampleParams};
use half::bf16;

use crate::again::{Again, Buf, Spare, asked, chosen, on, queued};
use crate::lane::Lane;
use crate::steady_ops::{Jobs, hold_all, sized};
use crate::support::zeros;

/// The rows of a product.
pub(crate) fn quantised(b: &Lane, case: &Product) -> QuantActs<Lane> {
    QuantActs { acts: on(b, &case.acts()), stats: on(b, &case.stats()) }
}

/// The weights of a product.
fn packed(b: &Lane, case: &Product, layout: WeightLayout) -> PackedLinear<Lane> {
    let w = PackedLinear::alloc_in(b, "again", case.k, case.segments, layout);
    let mut w = w.expect("memory for weights");
    w.write_rows(b, 0, &case.words()).expect("a copy");
    w
}

/// Layers of a model of 2B parameters, and one with more rows than any.
fn shapes() -> [[usize; 2]; 3] {
    [[3840, 2560], [2560, 6912], [13_824, 2560]].map(|[n, k]| [sized(n, 200), sized(k, 700)])
}

#[test]
fn ternary_rows() {
    hold_all([800, 120], |b| {
        let mut jobs = [Jobs::new(), Jobs::new()];
        for [n, k] in shapes() {
            let case = Product::new(1, n, k, 60);
            let acts = Rc::new(quantised(b, &case));
            let w = Rc::new(packed(b, &case, WeightLayout::Bits2));
            let trits = Rc::new(packed(b, &case, WeightLayout::Trits));
            let name = |what: &str| format!("{what} {n} {k}");
            let gemv = |variant: Option<usize>| {
                let (w, acts) = (w.clone(), acts.clone());
                let what = variant.map(|v| contract::w2a8_gemv::VARIANTS[v].spec.symbol);
                asked(b, name(what.unwrap_or("w2a8_gemv")), n, move |b, y| {
                    b.w2a8_gemv(W2a8Gemv { w: &w, acts: &acts, y, variant })
                })
            };
            let of_trits = |variant: Option<usize>| {
                let (w, acts) = (trits.clone(), acts.clone());
                let what = variant.map(|v| contract::w2a8_trits::VARIANTS[v].spec.symbol);
                let mut unpacked: Buf<u32> = zeros(b, 1);
                asked(b, name(what.unwrap_or("w2a8_trits")), n, move |b, y| {
                    let unpacked = &mut unpacked;
                    b.w2a8_trits(W2a8Trits { w: &w, acts: &acts, y, m: 1, unpacked, variant })
                })
            };
            jobs[0].extend([gemv(None), of_trits(None)].map(|job| job.expect("a variant")));
            jobs[1].extend((0..contract::w2a8_gemv::VARIANTS.len()).filter_map(|v| gemv(Some(v))));
            jobs[1].extend(
                (0..contract::w2a8_trits::VARIANTS.len()).filter_map(|v| of_trits(Some(v))),
            );
            let mut seeded = Seeded::new(61);
            let (x, norm) = (on(b, &seeded.floats(k, 3.0)), on(b, &seeded.floats(k, 1.0)));
            let w = w.clone();
            jobs[0].push(chosen(b, name("bit_linear"), n, move |b, y| {
                let norm = Some(Norm { weight: &norm, eps: 1e-5 });
                b.bit_linear(BitLinear { x: &x, norm, w: &w, finish: Finish::Store { y } })
            }));
        }
        jobs
    });
}

#[test]
fn ternary_products() {
    hold_all([160, 20], |b| {
        let mut jobs = [Jobs::new(), Jobs::new()];
        for [n, k] in &shapes()[..2] {
            for m in [16, 64, 300] {
                let case = Product::new(sized(m, 40), *n, *k, 62);
                let (m, n, acts) = (case.m, case.n, Rc::new(quantised(b, &case)));
                let w = Rc::new(packed(b, &case, WeightLayout::Bits2));
                let gemm = |variant: Option<usize>| {
                    let (w, acts) = (w.clone(), acts.clone());
                    let variants = contract::w2a8_gemm::VARIANTS;
                    let what = variant.map_or("w2a8_gemm", |v| variants[v].name);
                    let name = format!("{what} {m} {n} {}", case.k);
                    asked(b, name, m * n, move |b, y| {
                        let (w, acts, behind) = (&w, &acts, Behind::Nothing);
                        b.w2a8_gemm(W2a8Gemm { chained: false, behind, w, acts, y, m, variant })
                    })
                };
                jobs[0].push(gemm(None).expect("a variant"));
                let each = 0..contract::w2a8_gemm::VARIANTS.len();
                jobs[1].extend(each.filter_map(|v| gemm(Some(v))));
                let w = packed(b, &case, WeightLayout::Trits);
                let mut unpacked: Buf<u32> = zeros(b, unpacked_len(m, n, case.k));
                let name = format!("w2a8_trits {m} {n} {}", case.k);
                jobs[0].push(chosen(b, name, m * n, move |b, y| {
                    let (unpacked, variant) = (&mut unpacked, None);
                    b.w2a8_trits(W2a8Trits { w: &w, acts: &acts, y, m, unpacked, variant })
                }));
            }
        }
        jobs
    });
}

#[test]
fn lookups() {
    hold_all([200, 60], |b| {
        let mut jobs = [Jobs::new(), Jobs::new()];
        for (m, [n, k]) in [(1, shapes()[0]), (sized(8, 3), shapes()[0]), (1, shapes()[1])] {
            let case = Product::new(m, n, k, 63);
            let acts = Rc::new(quantised(b, &case));
            for form in [Form::Tl1, Form::Tl2] {
                let w = LutLinear::new(b, "again", &tiles(&case, form).expect("tiles"));
                let w = Rc::new(w.expect("weights"));
                let of = |variant: Option<usize>| {
                    let (w, acts) = (w.clone(), acts.clone());
                    let variants = contract::lut_matmul::VARIANTS;
                    let what = variant.map_or("lut_matmul", |v| variants[v].spec.symbol);
                    asked(b, format!("{what} {form:?} {m} {n} {k}"), m * n, move |b, y| {
                        b.lut_matmul(LutMatmul { w: &w, acts: &acts, y, m, variant })
                    })
                };
                jobs[0].push(of(None).expect("a variant"));
                let each = 0..contract::lut_matmul::VARIANTS.len();
                jobs[1].extend(each.filter_map(|v| of(Some(v))));
            }
            for bits in [2, 4] {
                let case = LossyCase::new(bits, (m, n, k, 64, 128), 64);
                let w = LossyLinear::new(b, "again", &case.packed().expect("weights"));
                let (w, x) = (w.expect("weights"), on(b, &case.x));
                let mut tables = LossyTables::alloc(b, m, k, 64).expect("memory for tables");
                jobs[0].push(chosen(b, format!("lossy {bits} {m} {n} {k}"), m * n, move |b, y| {
                    b.lut_build_lossy(LutBuildLossy { x: &x, tables: &mut tables, m })?;
                    b.lut_matmul_lossy(LutMatmulLossy { w: &w, tables: &tables, y, m })
                }));
            }
        }
        jobs
    });
}

/// The next tokens of several texts by the int8 head: each launch is a step of all of them.
struct Head {
    what: String,
    w: Rc<Dense<Lane>>,
    table: Rc<Int8Table<Lane>>,
    x: Buf<f32>,
    input: Buf<u32>,
    bounds: Buf<f32>,
    sampler: SampleState<Lane>,
    log: <Lane as Backend>::TokenLog,
    m: usize,
    first: Option<Vec<u32>>,
}

impl Again for Head {
    fn what(&self) -> &str {
        &self.what
    }

    fn reset(&mut self, b: &Lane, round: usize) -> Result<(), OpError> {
        self.log.clear();
        b.fill(&mut self.bounds, POISONS[round % POISONS.len()])?;
        b.fill(&mut self.sampler.marks, 0)?;
        b.fill(&mut self.sampler.state, 0)
    }

    fn launch(&mut self, b: &Lane, _: usize) -> Result<(), OpError> {
        b.lm_head_int8(LmHeadInt8 {
            norm: None,
            x: &mut self.x,
            x_at: 0,
            w: &self.w,
            table: &self.table,
            input: &mut self.input,
            sampler: &mut self.sampler,
            row: 0,
            bounds: &mut self.bounds,
            every: false,
            out: &mut self.log,
            m: self.m,
        })
    }

    fn fetch(&mut self, b: &Lane, _: &mut Spare) -> Result<(), OpError> {
        b.synchronize()
    }

    fn differences(&mut self, _: &mut Spare) -> Vec<String> {
        let found: Vec<u32> = (0..self.log.len()).map(|i| self.log.get(i)).collect();
        let first = self.first.get_or_insert_with(|| found.clone());
        assert!(!first.contains(&<Lane as Backend>::TokenLog::EMPTY), "{}: no token", self.what);
        let differ = found.iter().zip(&*first).filter(|(a, b)| a != b).count();
        (differ > 0).then(|| format!("{differ} tokens")).into_iter().collect()
    }
}

#[test]
fn next_tokens() {
    hold_all([200, 0], |b| {
        let (vocab, k) = (sized(16_384, 500), sized(2560, 200));
        let mut seeded = Seeded::new(65);
        let w = Dense::alloc(b, "again", bf16::TYPE, vocab, k);
        let mut w = w.expect("memory for a head");
        let values = rounded::<bf16>(&seeded.floats(vocab * k, 1.0));
        w.write_rows(b, 0, bytemuck::cast_slice(&values)).expect("a copy");
        let table = Rc::new(Int8Table::new(b, &w).expect("an int8 head"));
        let w = Rc::new(w);
        let all = SampleParams { temperature: 0.7, ..GREEDY };
        let few = SampleParams { top_k: 40, repetition_penalty: 1.2, ..all };
        let weighing = SampleParams { min_weight: ONE_WEIGHT / 20, ..all };
        // Greedy ones go by bounds alone, those that weigh all by tiles from three texts on.
        let kinds = [vec![GREEDY], vec![few, GREEDY], vec![GREEDY, few, all, weighing]];
        let mut jobs = Jobs::new();
        for m in [1, 8, 16, 64] {
            for kind in &kinds {
                let each: Vec<_> = (0..m).map(|i| kind[(i + 1) % kind.len()]).collect();
                let mut sampler = SampleState::alloc(b, vocab, m).expect("memory for samplers");
                let params: Vec<_> = each.iter().map(param_words).collect();
                b.write(&mut sampler.params, 0, params.as_flattened()).expect("a copy");
                jobs.push(Box::new(Head {
                    what: format!("lm_head_int8 {m} {vocab} {k} of {} kinds", kind.len()),
                    w: w.clone(),
                    table: table.clone(),
                    x: on(b, &seeded.floats(m * k, 2.0)),
                    input: table.input(b, m).expect("memory for inputs"),
                    bounds: zeros(b, m * vocab),
                    sampler,
                    log: b.alloc_tokens(m * queued()).expect("a log"),
                    m,
                    first: None,
                }));
            }
        }
        [jobs, Jobs::new()]
    });
}

/// Rows of softmax and norms of elements `T`.
fn rows<T: Float>(b: &Lane, jobs: &mut Jobs, [m, k]: [usize; 2]) {
    let mut seeded = Seeded::new(66);
    let mut values = |len| Rc::new(on(b, &rounded::<T>(&seeded.floats(len, 2.0))));
    let (x, delta, weight) = (values(m * k), values(m * k), values(k));
    let name = |what: &str| format!("{what} {:?} {m} {k}", T::TYPE);
    let of = x.clone();
    jobs.push(chosen(b, name("softmax"), m * k, move |b, y| {
        b.softmax(Softmax { x: &of, mask: Mask::None, y, m, k, scale: 0.5, log: false })
    }));
    // What is added to is copied first: a launch leaves it changed.
    let copy = move |b: &Lane, to: &mut Buf<T>| {
        let function = Function::Affine { alpha: 1.0, beta: 0.0 };
        b.elementwise(Elementwise { a: &x, function, relu: false, y: to, m, k })
    };
    let mut sum: Buf<T> = zeros(b, m * k);
    let (copied, added, gain) = (copy.clone(), delta.clone(), weight.clone());
    jobs.push(chosen(b, name("rmsnorm"), m * k, move |b, y| {
        copied(b, &mut sum)?;
        let (x, delta, weight) = (&mut sum, Some(&*added), &*gain);
        b.rmsnorm(RmsNorm { x, delta, weight, y, m, k, eps: 1e-5 })
    }));
    let mut sum: Buf<T> = zeros(b, m * k);
    jobs.push(chosen(b, name("layernorm"), m * k, move |b, y| {
        copy(b, &mut sum)?;
        let (x, delta, weight) = (&mut sum, Some(&*delta), Some(&*weight));
        b.layernorm(LayerNorm { x, delta, weight, bias: None, y, m, k, eps: 1e-5 })
    }));
}

#[test]
fn long_rows() {
    hold_all([100, 0], |b| {
        let mut jobs = Jobs::new();
        // Held by a warp, a block, a cluster, in turn, and in parts; the odd ones do not start where words do.
        for shape in [
            [2000, 500],
            [1000, 1024],
            [300, 4096],
            [301, 4099],
            [40, 32_768],
            [41, 32_003],
            [20, 50_257],
            [3, 400_001],
            [1, 1_500_000],
        ] {
            let [m, k] = [sized(shape[0], 5), sized(shape[1], 9000)];
            rows::<f32>(b, &mut jobs, [m, k]);
            rows::<bf16>(b, &mut jobs, [m, k]);
        }
        [jobs, Jobs::new()]
    });
}
