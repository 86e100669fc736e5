//! Cases of the kernels of attention over one sequence.

use super::super::attention;
use super::super::kv_append::Cache;
use super::{Inputs, List, symbol};
use crate::ops::kv_append::Heads;
use crate::ops::{Math, RowType};
use crate::reference::Inputs as Seeded;

impl List {
    pub(super) fn attention(&mut self) {
        use contract::attention::{
            AttentionBf16, AttentionF32, AttentionFastD64, AttentionFastD128, AttentionFastD256,
            AttentionRowsBf16D64, AttentionRowsBf16D128, AttentionRowsF32D64, AttentionRowsF32D128,
        };
        let one = [symbol::<AttentionBf16>(), symbol::<AttentionF32>()];
        let rows = [
            [symbol::<AttentionRowsBf16D64>(), symbol::<AttentionRowsF32D64>()],
            [symbol::<AttentionRowsBf16D128>(), symbol::<AttentionRowsF32D128>()],
        ];
        let fast = [
            symbol::<AttentionFastD64>(),
            symbol::<AttentionFastD128>(),
            symbol::<AttentionFastD256>(),
        ];
        let mut seeded = Seeded::new(2);
        for (heads, kv_heads, head_dim, m, start, [bf16, f32], fast) in [
            (1, 1, 1, 1, 0, one, fast[0]),
            (4, 2, 48, 3, 62, one, fast[0]),
            (3, 1, 100, 1, 128, one, fast[1]),
            (2, 2, 256, 2, 190, one, fast[2]),
            (6, 2, 50, 25, 60, rows[0], fast[0]),
            (4, 1, 128, 33, 100, rows[1], fast[1]),
        ] {
            let heads = Heads { heads, kv_heads, head_dim };
            let qkv = seeded.floats(m * heads.qkv_len(), 2.0);
            for (element, math, kernel) in [
                (RowType::Bf16, Math::Exact, bf16),
                (RowType::F32, Math::Exact, f32),
                (RowType::Bf16, Math::TensorCore, fast),
            ] {
                let cache = Cache::random(element, heads, start + m + 70, &mut seeded);
                let (qkv, start) = (qkv.clone(), start as u32);
                let tiled = Some(m > 3 || math == Math::TensorCore);
                let inputs = attention::Inputs { heads, qkv, cache, start, math, tiled };
                let what = format!("{heads:?} m={m} start={start}");
                self.add(kernel, what, Inputs::Attention(inputs));
            }
        }
    }
}
