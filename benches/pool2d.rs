//! [`contract::pool2d`] on a GPU: the poolings of ResNet, average windows of 2 by 2, larger windows and odd widths.

use std::marker::PhantomData;
use std::process::ExitCode;

use bitnet_benches::{Case, bits, blank, floats, run, type_name, upload};
use bitnet_gpu::ops::pool2d::{Kind, Layout, Pool2d, Pooling, Windows};
use bitnet_gpu::ops::{Backend, Float, OpError};
use half::{bf16, f16};

use bitnet_gpu::reference::pool2d::square;

const AVERAGE: Kind = Kind::Average { count_include_pad: true };

struct Images<T> {
    name: &'static str,
    pooling: Pooling,
    lens: [usize; 2],
    element: PhantomData<T>,
}

struct Tensors<B: Backend, T: Float> {
    x: B::Buf<T>,
    y: B::Buf<T>,
}

impl<T: Float> Images<T> {
    fn new(name: &'static str, pooling: Pooling) -> Result<Self, OpError> {
        Ok(Self { name, pooling, lens: pooling.lens()?, element: PhantomData })
    }
}

impl<T: Float> Case for Images<T> {
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
        let x = upload(backend, &floats(1, self.lens[0], 8.0))?;
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
        for layout in [Layout::Nchw, Layout::Nhwc] {
            let images = [64, 64, 112, 112];
            let whole = square([256, 2048, 7, 7], layout, AVERAGE, [1, 1, 0]);
            for (name, pooling) in [
                ("max_k3s2p1", square(images, layout, Kind::Max, [3, 2, 1])),
                ("avg_k2s2p0", square(images, layout, AVERAGE, [2, 2, 0])),
                ("global_avg", Pooling { windows: Windows::Global, ..whole }),
                ("global_max", Pooling { windows: Windows::Global, kind: Kind::Max, ..whole }),
            ] {
                suite.measure(&Images::<f32>::new(name, pooling)?)?;
                suite.measure(&Images::<f16>::new(name, pooling)?)?;
                suite.measure(&Images::<bf16>::new(name, pooling)?)?;
            }
            let odd = [64, 64, 113, 113];
            for (name, pooling) in [
                ("max_k3s1p1", square(images, layout, Kind::Max, [3, 1, 1])),
                ("max_k5s1p2", square(images, layout, Kind::Max, [5, 1, 2])),
                ("max_k7s1p3", square(images, layout, Kind::Max, [7, 1, 3])),
                ("max_k13s1p6", square([256, 256, 20, 20], layout, Kind::Max, [13, 1, 6])),
                ("avg_k3s1p1", square(images, layout, AVERAGE, [3, 1, 1])),
                ("avg_k5s1p2", square(images, layout, AVERAGE, [5, 1, 2])),
                ("avg_k7s1p3", square(images, layout, AVERAGE, [7, 1, 3])),
                ("max_k2s2p0", square(odd, layout, Kind::Max, [2, 2, 0])),
                ("max_k3s2p1", square(odd, layout, Kind::Max, [3, 2, 1])),
                ("max_k5s1p2", square(odd, layout, Kind::Max, [5, 1, 2])),
                ("avg_k3s1p1", square(odd, layout, AVERAGE, [3, 1, 1])),
            ] {
                suite.measure(&Images::<f32>::new(name, pooling)?)?;
                suite.measure(&Images::<bf16>::new(name, pooling)?)?;
            }
        }
        Ok(())
    })
}
