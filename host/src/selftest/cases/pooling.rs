//! Cases of the pooling kernels.

use super::super::pool2d;
use super::{Inputs, List, symbol, unusual};
use crate::ops::RowType;
use crate::ops::pool2d::{Kind, Layout, Pooling, Windows};

const POOLINGS: [Kind; 2] = [Kind::Max, Kind::Average { count_include_pad: false }];

impl List {
    pub(super) fn pool2d(&mut self) {
        use contract::pool2d::{
            GlobalBf16, GlobalF16, GlobalF32, PiecesBf16, PiecesF16, PiecesF32, WholeBf16,
            WholeF16, WholeF32, WindowBf16, WindowF16, WindowF32,
        };
        let windows = [symbol::<WindowF32>(), symbol::<WindowF16>(), symbol::<WindowBf16>()];
        let pieces = [symbol::<PiecesF32>(), symbol::<PiecesF16>(), symbol::<PiecesBf16>()];
        let global = [symbol::<GlobalF32>(), symbol::<GlobalF16>(), symbol::<GlobalBf16>()];
        let whole = [symbol::<WholeF32>(), symbol::<WholeF16>(), symbol::<WholeBf16>()];
        for (i, element) in crate::reference::ELEMENTS.into_iter().enumerate() {
            for (kind, dims) in [(Kind::Max, [2, 3, 9, 7]), (POOLINGS[1], [1, 16, 10, 11])] {
                let first = pool2d::square(dims, Layout::Nchw, kind, [3, 2, 1]);
                let last = Pooling { layout: Layout::Nhwc, ..first };
                // Pieces of channels where there are 16 of them; windows with channels first: `pool2d_planes`.
                self.pooling(if dims[1] == 16 { pieces[i] } else { windows[i] }, element, last);
                self.pooling(global[i], element, Pooling { windows: Windows::Global, ..first });
                // Too large for shared memory.
                let large = pool2d::square([1, 3, 60, 41], Layout::Nchw, kind, [1, 1, 0]);
                self.pooling(global[i], element, Pooling { windows: Windows::Global, ..large });
                self.pooling(whole[i], element, Pooling { windows: Windows::Global, ..last });
                // So many channels that a thread has 16 bytes of them.
                let wide = pool2d::square([16, 1024, 3, 4], Layout::Nhwc, kind, [1, 1, 0]);
                self.pooling(whole[i], element, Pooling { windows: Windows::Global, ..wide });
            }
        }
    }

    fn pooling(&mut self, kernel: &'static str, element: RowType, shape: Pooling) {
        let mut inputs = pool2d::Inputs::new(element, shape, 10);
        unusual(&mut inputs.x);
        self.add(kernel, format!("{shape:?}"), Inputs::Pool2d(inputs));
    }

    pub(super) fn pool2d_lines(&mut self) {
        use contract::pool2d::{LinesBf16, LinesF16, LinesF32};
        let kernels = [symbol::<LinesF32>(), symbol::<LinesF16>(), symbol::<LinesBf16>()];
        for (element, kernel) in crate::reference::ELEMENTS.into_iter().zip(kernels) {
            for window in [[3, 2, 1], [2, 2, 0]] {
                for kind in POOLINGS {
                    let shape = pool2d::square([2, 3, 9, 32], Layout::Nchw, kind, window);
                    self.pooling(kernel, element, shape);
                }
            }
        }
    }

    pub(super) fn pool2d_planes(&mut self) {
        use contract::pool2d::{PlanesMaxBf16, PlanesMaxF16, PlanesMaxF32};
        let kernels =
            [symbol::<PlanesMaxF32>(), symbol::<PlanesMaxF16>(), symbol::<PlanesMaxBf16>()];
        for (element, kernel) in crate::reference::ELEMENTS.into_iter().zip(kernels) {
            for window in [[4, 2, 1], [4, 1, 2], [11, 1, 5], [8, 2, 3], [17, 1, 8], [6, 2, 2]] {
                let shape = pool2d::square([2, 3, 17, 21], Layout::Nchw, Kind::Max, window);
                self.pooling(kernel, element, shape);
            }
        }
    }

    pub(super) fn pool2d_axes(&mut self) {
        use contract::pool2d::{
            AxesBf16, AxesF16, AxesF32, AxesLastBf16, AxesLastF16, AxesLastF32,
        };
        let kernels = [
            (symbol::<AxesF32>(), symbol::<AxesLastF32>()),
            (symbol::<AxesF16>(), symbol::<AxesLastF16>()),
            (symbol::<AxesBf16>(), symbol::<AxesLastBf16>()),
        ];
        for (element, (kernel, last)) in crate::reference::ELEMENTS.into_iter().zip(kernels) {
            for window in [[4, 2, 1], [11, 1, 5], [2, 1, 1]] {
                let shape = pool2d::square([2, 3, 17, 21], Layout::Nchw, POOLINGS[1], window);
                self.pooling(kernel, element, shape);
            }
            for kind in POOLINGS {
                for window in [[4, 4, 0], [5, 3, 2], [9, 5, 4]] {
                    let shape = pool2d::square([2, 3, 17, 21], Layout::Nchw, kind, window);
                    self.pooling(kernel, element, shape);
                }
                for window in [[9, 1, 4], [13, 1, 6], [7, 4, 3], [8, 2, 3], [12, 12, 0]] {
                    let shape = pool2d::square([2, 40, 17, 21], Layout::Nhwc, kind, window);
                    self.pooling(last, element, shape);
                }
            }
        }
    }

    pub(super) fn pool2d_strips(&mut self) {
        use contract::pool2d::{
            StripsAvgBf16, StripsAvgF16, StripsAvgF32, StripsMaxBf16, StripsMaxF16, StripsMaxF32,
            strips_form,
        };
        let kernels = [
            [symbol::<StripsMaxF32>(), symbol::<StripsMaxF16>(), symbol::<StripsMaxBf16>()],
            [symbol::<StripsAvgF32>(), symbol::<StripsAvgF16>(), symbol::<StripsAvgBf16>()],
        ];
        let sides = [[5, 1], [7, 1], [5, 2], [7, 2], [9, 1], [13, 1], [2, 2], [3, 1], [3, 2]];
        for (i, element) in crate::reference::ELEMENTS.into_iter().enumerate() {
            for (average, (kind, kernels)) in POOLINGS.into_iter().zip(kernels).enumerate() {
                for (j, [side, step]) in sides.into_iter().enumerate() {
                    // `f32` of small windows in steps of 2 have other kernels.
                    let small = i == 0 && side < 5 && step == 2;
                    if small || !strips_form(average as u32, side, step) {
                        continue;
                    }
                    // Rows of whole pieces and not; half a window of padding and less.
                    let (width, less) = ([24, 21][j % 2], usize::from(j == 2));
                    let window = [side as usize, step as usize, (side as usize - 1) / 2 - less];
                    let shape = pool2d::square([2, 3, 17, width], Layout::Nchw, kind, window);
                    // Rows in whole pieces of the smallest windows have kernels of their own.
                    let width = if side < 5 { 21 } else { width };
                    self.pooling(kernels[i], element, Pooling { w: width, ..shape });
                }
            }
        }
    }

    pub(super) fn pool2d_tiles(&mut self) {
        use contract::pool2d::{TilesBf16, TilesF16, TilesF32};
        let kernels = [symbol::<TilesF32>(), symbol::<TilesF16>(), symbol::<TilesBf16>()];
        for (element, kernel) in crate::reference::ELEMENTS.into_iter().zip(kernels) {
            for window in [[5, 1, 2], [5, 2, 1], [7, 1, 3], [7, 2, 3]] {
                for kind in POOLINGS {
                    let shape = pool2d::square([2, 24, 15, 9], Layout::Nhwc, kind, window);
                    self.pooling(kernel, element, shape);
                }
            }
        }
    }
}
