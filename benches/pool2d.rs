//! [`contract::pool2d`] on a GPU: the poolings of ResNet, Inception and YOLO, average windows of 2 by 2, larger windows and odd widths.

use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, floats, run, type_name, upload};
use bitnet_gpu::ops::pool2d::{Kind, Layout, Pool2d, Pooling, Windows};
use bitnet_gpu::ops::{Backend, Float, OpError};
use half::{bf16, f16};

use bitnet_gpu::reference::pool2d::square;

const AVERAGE: Kind = Kind::Average { count_include_pad: true };

/// Most elements of a case.
const MOST: usize = 64 * 512 * 40 * 40;

struct Images<'a, T> {
    name: &'static str,
    pooling: Pooling,
    lens: [usize; 2],
    /// Images that all cases share: to make them anew for each was most of a run.
    x: &'a [T],
}

struct Tensors<B: Backend, T: Float> {
    x: B::Buf<T>,
    y: B::Buf<T>,
}

impl<'a, T: Float> Images<'a, T> {
    fn new(name: &'static str, pooling: Pooling, x: &'a [T]) -> Result<Self, OpError> {
        let lens = pooling.lens()?;
        Ok(Self { name, pooling, lens, x: &x[..lens[0]] })
    }
}

impl<T: Float> Case for Images<'_, T> {
    type Tensors<B: Backend> = Tensors<B, T>;

    fn name(&self) -> String {
        let Pooling { n, c, h, w, layout, .. } = self.pooling;
        let layout = match layout {
            Layout::Nchw => "nchw",
            Layout::Nhwc => "nhwc",
        };
        format!("{} {n}x{c}x{h}x{w} {layout} {}", self.name, type_name::<T>())
    }

    fn bytes(&self) -> u64 {
        (size_of::<T>() * (self.lens[0] + self.lens[1])) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B, T>, OpError> {
        let x = upload(backend, self.x)?;
        Ok(Tensors { x, y: blank(backend, self.lens[1])? })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B, T>) -> Result<(), OpError> {
        backend.pool2d(Pool2d { pooling: self.pooling, x: &t.x, y: &mut t.y })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B, T>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("pool2d", |suite| {
        let bf16s: Vec<bf16> = floats(1, MOST, 8.0);
        let f16s: Vec<f16> = floats(1, MOST / 4, 8.0);
        // As many bytes.
        let f32s: Vec<f32> = floats(1, MOST / 2, 8.0);
        for layout in [Layout::Nchw, Layout::Nhwc] {
            let images = [64, 64, 112, 112];
            let whole = square([512, 2048, 7, 7], layout, AVERAGE, [1, 1, 0]);
            let global = Pooling { windows: Windows::Global, ..whole };
            let large = square(images, layout, AVERAGE, [1, 1, 0]);
            let f16 = square([16, 64, 112, 112], layout, Kind::Max, [5, 1, 2]);
            suite.measure(&Images::<f16>::new("max_k5s1p2", f16, &f16s)?)?;
            for (name, pooling, both) in [
                ("max_k2s2p0", square(images, layout, Kind::Max, [2, 2, 0]), true),
                ("max_k3s2p1", square(images, layout, Kind::Max, [3, 2, 1]), true),
                ("max_k3s1p1", square(images, layout, Kind::Max, [3, 1, 1]), false),
                ("max_k5s1p2", square(images, layout, Kind::Max, [5, 1, 2]), true),
                ("max_k7s1p3", square(images, layout, Kind::Max, [7, 1, 3]), false),
                ("max_k5s1p2", square([512, 256, 20, 20], layout, Kind::Max, [5, 1, 2]), false),
                ("max_k13s1p6", square([64, 512, 40, 40], layout, Kind::Max, [13, 1, 6]), true),
                ("max_k2s2p0", square([64, 64, 113, 113], layout, Kind::Max, [2, 2, 0]), true),
                ("max_k3s2p1", square([64, 256, 56, 56], layout, Kind::Max, [3, 2, 1]), false),
                ("avg_k2s2p0", square(images, layout, AVERAGE, [2, 2, 0]), true),
                ("avg_k3s1p1", square(images, layout, AVERAGE, [3, 1, 1]), true),
                ("avg_k3s1p1", square([128, 256, 35, 35], layout, AVERAGE, [3, 1, 1]), false),
                ("avg_k5s1p2", square(images, layout, AVERAGE, [5, 1, 2]), false),
                ("avg_k7s1p3", square(images, layout, AVERAGE, [7, 1, 3]), true),
                ("avg_k4s4p0", square(images, layout, AVERAGE, [4, 4, 0]), false),
                ("avg_k6s2p2", square([64, 64, 113, 113], layout, AVERAGE, [6, 2, 2]), false),
                ("global_avg", global, true),
                ("global_avg", Pooling { windows: Windows::Global, ..large }, false),
                ("global_max", Pooling { kind: Kind::Max, ..global }, false),
            ] {
                if both {
                    let half = Pooling { n: pooling.n / 2, ..pooling };
                    suite.measure(&Images::<f32>::new(name, half, &f32s)?)?;
                }
                suite.measure(&Images::<bf16>::new(name, pooling, &bf16s)?)?;
            }
        }
        Ok(())
    })
}
