//! Cases of the kernels for pruned weights.

use super::super::sparse;
use super::super::w2a8_gemv::Product;
use super::{Inputs, List, symbol};
use crate::ops::{Math, RowType};
use crate::reference::Inputs as Seeded;

impl List {
    pub(super) fn sparse(&mut self) {
        use crate::reference::sparse::Matrix;
        use RowType::{Bf16, F16, F32};
        use contract::sparse::*;
        let mut seeded = Seeded::new(10);
        for (element, [one, four, rows]) in [
            (Bf16, [symbol::<SparseBf16M1>(), symbol::<SparseBf16M4>(), symbol::<SparseCsrBf16>()]),
            (F16, [symbol::<SparseF16M1>(), symbol::<SparseF16M4>(), symbol::<SparseCsrF16>()]),
            (F32, [symbol::<SparseF32M1>(), symbol::<SparseF32M4>(), symbol::<SparseCsrF32>()]),
        ] {
            for (n, k, sparsity, several) in [(1, 1, 0.0, 2), (33, 1027, 0.9, 5), (17, 640, 0.3, 4)]
            {
                let w = Matrix::new(n, k, sparsity, &mut seeded);
                for (kernel, m, csr) in [(one, 1, false), (four, several, false), (rows, 2, true)] {
                    let mut x = seeded.floats(m * k, 2.0);
                    x[k / 2] = f32::INFINITY;
                    let types = [element, [F32, F16, Bf16][m % 3]];
                    let inputs = sparse::Linear {
                        w: w.clone(),
                        x,
                        types,
                        math: Math::Exact,
                        csr,
                        kernel: None,
                    };
                    let what = format!("m={m} n={n} k={k}");
                    self.add(kernel, what, Inputs::SparseLinear(inputs));
                }
            }
        }
        for (m, n, k) in [(1, 1, 1), (3, 7, 65), (5, 33, 1100)] {
            let inputs = Inputs::SparseTernary(Product::new(m, n, k, 11));
            self.add(symbol::<SparseTernary>(), format!("m={m} n={n} k={k}"), inputs);
        }
        for (element, kernel) in [
            (Bf16, symbol::<SparseConv2dBf16>()),
            (F16, symbol::<SparseConv2dF16>()),
            (F32, symbol::<SparseConv2dF32>()),
        ] {
            for (channels, out_channels, kernel_side, stride) in [(1, 1, 1, 1), (5, 19, 3, 2)] {
                let shape = sparse::shape(2, [7, 5], channels, kernel_side, stride);
                let w = Matrix::new(out_channels, shape.k(), 0.7, &mut seeded);
                let x = seeded.floats(2 * 7 * 5 * channels, 2.0);
                let types = [element, [F32, Bf16, F16][channels % 3]];
                let math = Math::Exact;
                let inputs = sparse::Conv { w, x, shape, types, math, kernel: None };
                self.add(kernel, format!("{shape:?}"), Inputs::SparseConv2d(inputs));
            }
        }
        // Sums of small whole numbers are exact in any order: bits, also of tensor cores.
        // A whole tile, so that its units are many, or few.
        const SHORT: [(usize, usize); 2] = [(16, 264), (33, 1032)];
        const LONG: [(usize, usize); 1] = [(17, 4_104)];
        const ODD: [(usize, usize); 2] = [(3, 1), (33, 1029)];
        for (kernel, m, zeros, shapes) in [
            (symbol::<SparseBf16Mma8>(), 5, 0.6, &SHORT[..]),
            (symbol::<SparseBf16Mma16>(), 11, 0.6, &SHORT),
            (symbol::<SparseBf16Few8>(), 5, 0.9, &SHORT),
            (symbol::<SparseBf16Few16>(), 11, 0.9, &SHORT),
            (symbol::<SparseBf16Bulk8>(), 5, 0.6, &LONG),
            (symbol::<SparseBf16Bulk8Short>(), 5, 0.9, &SHORT),
            (symbol::<SparseBf16Bulk16>(), 11, 0.1, &LONG),
            (symbol::<SparseBf16Bulk16Wide>(), 11, 0.6, &LONG),
            (symbol::<SparseBf16Bulk16Short>(), 11, 0.9, &SHORT),
            (symbol::<SparsePad>(), 5, 0.9, &ODD),
            (symbol::<SparseBf16Held8>(), 5, 0.9, &LONG),
            (symbol::<SparseBf16Held16>(), 11, 0.6, &LONG),
            (symbol::<SparseBf16Held8Pair>(), 5, 0.6, &LONG),
            (symbol::<SparseBf16Held16Pair>(), 11, 0.9, &LONG),
        ] {
            for &(n, k) in shapes {
                let mut w = Matrix::new(n, k, zeros, &mut seeded);
                w.dense.iter_mut().for_each(|w| *w = w.trunc());
                let x = seeded.floats(m * k, 9.0).into_iter().map(f32::trunc).collect();
                let (types, math) = ([Bf16, Bf16], Math::TensorCore);
                // Also where it is one that only the rule chooses: no other that holds inputs comes in its place.
                let by = Some(kernel);
                let inputs = sparse::Linear { w, x, types, math, csr: false, kernel: by };
                self.add(kernel, format!("m={m} n={n} k={k}"), Inputs::SparseLinear(inputs));
            }
        }
        for (kernel, batch, channels, out_channels) in [
            (symbol::<SparseConv2dMma>(), 1, 8, 3),
            (symbol::<SparseConv2dMma>(), 2, 40, 20),
            (symbol::<SparseExpand>(), 1, 64, 24),
            (symbol::<SparseConv2dLines>(), 2, 64, 70),
            (symbol::<SparseConv2dLinesPair>(), 1, 64, 16),
            (symbol::<SparseConv2dLinesSplit>(), 1, 128, 33),
        ] {
            let shape = sparse::shape(batch, [9, 6], channels, 3, 1);
            let mut w = Matrix::new(out_channels, shape.k(), 0.6, &mut seeded);
            w.dense.iter_mut().for_each(|w| *w = w.trunc());
            let x =
                seeded.floats(batch * 9 * 6 * channels, 9.0).into_iter().map(f32::trunc).collect();
            let (types, math) = ([Bf16, Bf16], Math::TensorCore);
            // It runs in front of those in lines.
            let expands = kernel == symbol::<SparseExpand>();
            let by = if expands { symbol::<SparseConv2dLines>() } else { kernel };
            let inputs = sparse::Conv { w, x, shape, types, math, kernel: Some(by) };
            self.add(kernel, format!("{shape:?}"), Inputs::SparseConv2d(inputs));
        }
    }
}
