//! The CPU lane: the modules of the GPU lane (`tests/gpu/`) on the CPU backend.
//!
//! The same cases, the same oracles, the same bits.

#[path = "gpu/act_quant.rs"]
mod act_quant;
#[path = "gpu/activation.rs"]
mod activation;
#[path = "gpu/attention.rs"]
mod attention;
#[path = "gpu/attention_paged.rs"]
mod attention_paged;
#[path = "gpu/attention_step.rs"]
mod attention_step;
#[path = "gpu/batch.rs"]
mod batch;
#[path = "gpu/batch_prefixes.rs"]
mod batch_prefixes;
#[path = "gpu/drafts.rs"]
mod drafts;
#[path = "gpu/bit_linear.rs"]
mod bit_linear;
#[path = "gpu/conv2d.rs"]
mod conv2d;
#[path = "gpu/conv2d_finish.rs"]
mod conv2d_finish;
#[path = "gpu/decode_layers.rs"]
mod decode_layers;
#[path = "gpu/elementwise.rs"]
mod elementwise;
#[path = "gpu/bmm.rs"]
mod bmm;
#[path = "gpu/extras.rs"]
mod extras;
#[path = "gpu/grammar.rs"]
mod grammar;
#[path = "gpu/embed.rs"]
mod embed;
#[path = "gpu/logprobs.rs"]
mod logprobs;
#[path = "gpu/kv_append.rs"]
mod kv_append;
#[path = "gpu/layernorm.rs"]
mod layernorm;
#[path = "gpu/lm_head.rs"]
mod lm_head;
#[path = "gpu/lm_head_int8.rs"]
mod lm_head_int8;
#[path = "gpu/lut_matmul.rs"]
mod lut_matmul;
#[path = "gpu/model.rs"]
mod model;
#[path = "gpu/pool2d.rs"]
mod pool2d;
#[path = "gpu/rmsnorm.rs"]
mod rmsnorm;
#[path = "gpu/rope.rs"]
mod rope;
#[path = "gpu/image_quant.rs"]
mod image_quant;
#[path = "gpu/sample.rs"]
mod sample;
#[path = "gpu/soak.rs"]
mod soak;
#[path = "gpu/softmax.rs"]
mod softmax;
#[path = "gpu/sparse.rs"]
mod sparse;
#[path = "gpu/support.rs"]
mod support;
#[path = "gpu/w2a8_gemm.rs"]
mod w2a8_gemm;
#[path = "gpu/w2a8_gemv.rs"]
mod w2a8_gemv;
#[path = "gpu/w2a8_trits.rs"]
mod w2a8_trits;

/// What the modules run on.
mod lane {
    use bitnet_gpu::cpu::{CpuBackend, CpuOptions, Simd};
    use bitnet_gpu::device_choice::BackendChoice;

    pub(crate) type Lane = CpuBackend;

    fn open(threads: usize, simd: Option<Simd>) -> Lane {
        let threads = Some(threads);
        CpuBackend::open(CpuOptions { threads, simd }).expect("a CPU backend")
    }

    /// A backend of its own for each test: here nothing is gained by sharing one.
    pub(crate) fn shared() -> Box<Lane> {
        Box::new(open(3, None))
    }

    /// Whether the backend has what the kernel `symbol` does: always.
    pub(crate) fn has(_: &str) -> bool {
        true
    }

    /// Nothing is launched here.
    pub(crate) fn launches() -> u64 {
        0
    }

    /// What a session asks for.
    pub(crate) fn choice() -> BackendChoice {
        BackendChoice::Cpu
    }

    /// Every way to run a model, by name: each level on one thread, the best one on three.
    pub(crate) fn ways() -> Vec<(String, Lane)> {
        let way = |threads, simd: Simd| {
            (format!("{threads} threads, {}", simd.level().name()), open(threads, Some(simd)))
        };
        let levels = Simd::available().filter(|&simd| simd != Simd::SCALAR);
        levels.map(|simd| way(1, simd)).chain([way(3, Simd::detect())]).collect()
    }

    /// Whether a step is recorded: this backend launches nothing, so there is nothing to record.
    pub(crate) const RECORD: &[bool] = &[false];
}
