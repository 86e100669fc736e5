//! What batches are measured with.

use bitnet_gpu::session::{HeadKind, KvType, Math};
use contract::decode_layers::rows::MAX_ROWS;

/// How steps of several texts run.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    pub(crate) head: HeadKind,
    pub(crate) one_kernel: bool,
    pub(crate) math: Math,
    pub(crate) kv: KvType,
}

impl Steps {
    /// Whether a batch of so many runs in another way than it does by other settings.
    pub(crate) fn takes(self, batch: usize) -> bool {
        let few = batch <= MAX_ROWS as usize;
        match self.math {
            Math::Exact => self.one_kernel || few,
            Math::TensorCore => !few,
        }
    }

    /// Its case in the report.
    pub(crate) fn name(self, batch: usize) -> String {
        let Self { head, one_kernel, math, kv } = self;
        let how = match (one_kernel, math, kv) {
            (false, ..) => "layers apart, ",
            (true, Math::Exact, _) => "",
            (true, Math::TensorCore, KvType::Int8) => "attention fast, cache of 8 bits, ",
            (true, Math::TensorCore, _) => "attention fast, ",
        };
        match head {
            HeadKind::Stored => format!("{how}batch {batch}"),
            HeadKind::Int8 => format!("{how}batch {batch}, int8 head"),
        }
    }
}
