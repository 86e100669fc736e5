//! The GPU lane: every kernel against the oracles, bit for bit. Fails where there is no device.
//!
//! Run by `cargo xtask test --lane gpu`. The same modules run on the CPU backend in `tests/cpu.rs`.
//! One backend serves the whole process, behind a lock: a module is loaded once, launches of one
//! test cannot hide among those of another when a refusal has to launch nothing, and a fault is
//! reported by the test that caused it.

mod act_quant;
mod activation;
mod again;
mod attention;
mod attention_paged;
mod attention_step;
mod batch;
mod batch_prefixes;
mod bit_linear;
mod conv2d;
mod conv2d_depthwise;
mod conv2d_finish;
mod conv2d_runs;
mod conv2d_turn;
mod bmm;
mod coverage;
mod decode_layers;
mod device;
mod drafts;
mod driver;
mod elementwise;
mod embed;
mod extras;
mod logprobs;
mod grammar;
mod kv_append;
mod layernorm;
mod lm_head;
mod lm_head_int8;
mod lut_matmul;
mod memory;
mod model;
mod pool2d;
mod rmsnorm;
mod rope;
mod image_quant;
mod sample;
mod scratch;
mod session;
mod several;
mod soak;
mod softmax;
mod sparse;
mod steady;
mod steady_layers;
mod steady_ops;
mod steady_rows;
mod support;
mod tune;
mod w2a8_gemm;
mod w2a8_gemv;
mod w2a8_trits;

/// What the modules run on.
mod lane {
    use std::ops::Deref;
    use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, RwLockWriteGuard};

    use bitnet_gpu::device_choice::BackendChoice;
    use bitnet_gpu::driver::CudaOptions;
    use bitnet_gpu::ops::CudaBackend;

    pub(crate) type Lane = CudaBackend;

    static SHARED: LazyLock<Mutex<Lane>> = LazyLock::new(|| Mutex::new(open(true)));

    fn open(pdl: bool) -> Lane {
        CudaBackend::open(CudaOptions::default().pdl(pdl))
            .unwrap_or_else(|error| panic!("the GPU tests need a GPU: {error}"))
    }

    /// The one backend of this process, with no other test running.
    pub(crate) struct Shared {
        backend: MutexGuard<'static, Lane>,
        _alone: RwLockWriteGuard<'static, ()>,
    }

    impl Deref for Shared {
        type Target = Lane;

        fn deref(&self) -> &Lane {
            &self.backend
        }
    }

    /// The one backend of this process. A test that fails does not take it from the others.
    pub(crate) fn shared() -> Shared {
        let alone = crate::device::alone();
        Shared { backend: SHARED.lock().unwrap_or_else(PoisonError::into_inner), _alone: alone }
    }

    /// Whether the loaded PTX level has the kernel `symbol`.
    pub(crate) fn has(symbol: &'static str) -> bool {
        // Beside the shared one, which the test that asks has locked.
        static PROBE: LazyLock<Mutex<Lane>> = LazyLock::new(|| Mutex::new(open(true)));
        PROBE.lock().unwrap_or_else(PoisonError::into_inner).cuda().module().has(symbol)
    }

    /// Launches of this process so far.
    pub(crate) fn launches() -> u64 {
        bitnet_gpu::driver::launch_count()
    }

    /// What a session asks for.
    pub(crate) fn choice() -> BackendChoice {
        BackendChoice::Cuda(0)
    }

    /// Every way to run a model, by name.
    pub(crate) fn ways() -> Vec<(String, Lane)> {
        [false, true].map(|pdl| (format!("pdl {pdl}"), open(pdl))).into()
    }

    /// Whether a step is recorded as a graph and replayed.
    pub(crate) const RECORD: &[bool] = &[false, true];
}
