//! Operations whose scratch memory a caller lends: the same bits, nothing of the pool, and no launch while it is counted.

use std::cell::RefCell;

use bitnet_gpu::memory::DeviceBuffer;
use bitnet_gpu::ops::bmm::Bmm;
use bitnet_gpu::ops::conv2d::{Activation, Conv2d, Conv2dWeights, Images, Layout, Window};
use bitnet_gpu::ops::image_quant::ImageQuant;
use bitnet_gpu::ops::layernorm::LayerNorm;
use bitnet_gpu::ops::sparse::{self, Bitmap, SparseConv2d, SparseLinear};
use bitnet_gpu::ops::{Backend, CudaBackend, Element, Math, OpError};
use bitnet_gpu::reference::Inputs;
use half::bf16;

use crate::device::assert_bits_eq;
use crate::lane;

/// Fewest bytes to fill what comes out of an operation with.
const POISON: u8 = 0x7b;

/// Bytes that scratch memory starts at multiples of.
const ALIGN: usize = 256;

fn put<T: Element>(b: &CudaBackend, data: &[T]) -> DeviceBuffer<T> {
    let mut buffer = b.alloc("input", data.len()).expect("memory");
    b.write(&mut buffer, 0, data).expect("a copy");
    buffer
}

fn floats(seed: u64, len: usize) -> Vec<f32> {
    Inputs::new(seed).floats(len, 1.0)
}

fn halves(seed: u64, len: usize) -> Vec<bf16> {
    floats(seed, len).into_iter().map(bf16::from_f32).collect()
}

/// Runs `op` with scratch of the pool, then with as much as it says lent, then with less.
fn lend(
    b: &CudaBackend,
    what: &str,
    out_bytes: usize,
    least: usize,
    op: &dyn Fn(&mut DeviceBuffer<u8>) -> Result<(), OpError>,
) {
    let run = |lent: Option<usize>| -> Result<Vec<u8>, OpError> {
        let mut out = b.alloc("output", out_bytes)?;
        b.fill(&mut out, POISON)?;
        let room: DeviceBuffer<u8> = b.alloc("lent", lent.unwrap_or(0))?;
        let before = b.memory();
        match lent {
            None => op(&mut out)?,
            // SAFETY: the room lives until `read` has waited, and nobody else has it.
            Some(bytes) => unsafe {
                b.with_scratch(b.address(&room), bytes, || op(&mut out))?;
                assert_eq!(b.memory().in_use_bytes, before.in_use_bytes, "{what}");
                assert_eq!(b.memory().peak_bytes, before.peak_bytes, "{what}");
            },
        }
        let mut bytes = vec![0; out_bytes];
        b.read(&out, 0, &mut bytes)?;
        Ok(bytes)
    };
    let wanted = run(None).expect(what);
    let mut out = b.alloc("output", out_bytes).expect("memory");
    let launches = lane::launches();
    let bytes = b.scratch_bytes(|| op(&mut out)).expect(what);
    assert_eq!(lane::launches(), launches, "{what}: counting launches nothing");
    assert!(bytes >= least, "{what}: {bytes} bytes of scratch, {least} expected");
    assert_bits_eq(what, &run(Some(bytes)).expect(what), &wanted);
    if bytes > 0 {
        let short = run(Some(bytes.saturating_sub(ALIGN + 1)));
        assert!(matches!(short, Err(OpError::ShortTensor { op: "scratch", .. })), "{what}");
    }
    // The pool is the source again.
    assert_bits_eq(what, &run(None).expect(what), &wanted);
}

/// The output of an operation as elements of another type.
fn of<T: Element, R>(
    b: &CudaBackend,
    out: &mut DeviceBuffer<u8>,
    run: impl FnOnce(&mut DeviceBuffer<T>) -> R,
) -> R {
    let (len, cuda) = (out.len() / size_of::<T>(), b.cuda());
    // SAFETY: `out` is borrowed exclusively, of the pool, and as long.
    let view = unsafe {
        DeviceBuffer::borrowed(cuda.pool(), cuda.stream(), b.address(out), len, "output")
    };
    run(&mut view.expect("an aligned buffer"))
}

#[test]
fn lent_scratch_gives_the_same_bits() {
    let shared = lane::shared();
    let b: &CudaBackend = &shared;

    // Copies of factors.
    let [m, n, k] = [515, 513, 517];
    let (x, y) = (put(b, &floats(1, m * k)), put(b, &floats(2, k * n)));
    lend(b, "bmm", 4 * m * n, 0, &|out| of(b, out, |c| b.bmm(Bmm::new(&x, &y, c, [m, n, k], 1))));

    // Padded rows.
    let [n, k, m] = [40, 1001, 3];
    let bitmap = Bitmap::from_dense(n, k, &halves(3, n * k)).expect("a matrix");
    let w = SparseLinear::upload(b, "weights", &bitmap).expect("memory");
    let x = put(b, &halves(4, m * k));
    lend(b, "sparse_linear", 4 * m * n, 0, &|out| {
        let math = Math::TensorCore;
        of(b, out, |y| b.sparse_linear(sparse::Linear { w: &w, x: &x, y, m, math, kernel: None }))
    });

    // Dense weights, where the device multiplies in lines.
    let [n, k] = [64, 9 * 64];
    let bitmap = Bitmap::from_dense(n, k, &halves(5, n * k)).expect("a matrix");
    let w = SparseConv2d::upload(b, "weights", &bitmap, [3, 3], 64).expect("memory");
    let x = put(b, &halves(6, 16 * 16 * 64));
    let shape = sparse::ConvShape {
        batch: 1,
        height: 16,
        width: 16,
        channels: 64,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
        dilation: [1, 1],
    };
    let lines = lane::has("sparse_conv2d_lines").then_some("sparse_conv2d_lines");
    lend(b, "sparse_conv2d", 4 * 256 * n, lines.map_or(0, |_| 2 * n * k), &|out| {
        let math = Math::TensorCore;
        of(b, out, |y| {
            b.sparse_conv2d(sparse::Conv2d { w: &w, x: &x, y, shape, math, kernel: lines })
        })
    });

    // Sums of chunks, and turned images.
    let [n, h, width, c, k] = [1, 7, 7, 2048, 64];
    let x = put(b, &floats(7, h * width * c));
    let w = Conv2dWeights::from_oihw(b, "weights", &floats(8, k * c), [k, c, 1, 1], 1).expect("w");
    let images = Images { n, h, w: width, layout: Layout::Nhwc };
    lend(b, "conv2d splits", 4 * h * width * k, 4 * 2 * h * width * k, &|out| {
        of(b, out, |y| {
            b.conv2d(Conv2d {
                x: &x,
                w: &w,
                bias: None,
                residual: None,
                y,
                images,
                window: Window::new(1, 0),
                activation: Activation::None,
                math: Math::Exact,
                kernel: None,
            })
        })
    });
    let (c, k) = (16, 32);
    let (x, r) = (put(b, &halves(9, h * width * c)), put(b, &halves(10, h * width * k)));
    let weights = halves(11, k * c * 9);
    let w = Conv2dWeights::from_oihw(b, "weights", &weights, [k, c, 3, 3], 1).expect("w");
    let least = if lane::has("conv2d_turn") { 2 * h * width * (c + 2 * k) } else { 0 };
    lend(b, "conv2d turned", 2 * h * width * k, least, &|out| {
        of(b, out, |y| {
            b.conv2d(Conv2d {
                x: &x,
                w: &w,
                bias: None,
                residual: Some(&r),
                y,
                images: Images { layout: Layout::Nchw, ..images },
                window: Window::new(1, 1),
                activation: Activation::Relu,
                math: Math::TensorCore,
                kernel: None,
            })
        })
    });

    // Rows of several blocks, twice: what they tell each other by holds anything at first.
    let (m, k) = (3, 28_675);
    let (x, weight) = (RefCell::new(put(b, &floats(13, m * k))), put(b, &floats(14, k)));
    let least = if lane::has("layernorm_parts_f32") { 4 << 17 } else { 0 };
    lend(b, "layernorm of long rows", 4 * m * k, least, &|out| {
        of(b, out, |y| {
            b.layernorm(LayerNorm {
                x: &mut x.borrow_mut(),
                delta: None,
                weight: Some(&weight),
                bias: None,
                y,
                m,
                k,
                eps: 1e-5,
            })
        })
    });

    // Parts of images.
    let (n, len) = (3, 20_000);
    let x = put(b, &floats(12, n * len));
    lend(b, "image_quant", n * len, 4 * n, &|out| {
        of(b, out, |q| {
            let mut scales = b.alloc("scales", n)?;
            b.image_quant(ImageQuant { x: &x, q, scales: &mut scales, n, len })
        })
    });
}

/// What is counted once is right for every later call, and an error leaves the pool as the source.
#[test]
fn an_error_ends_the_counting() {
    let shared = lane::shared();
    let b: &CudaBackend = &shared;
    let launches = lane::launches();
    let refused = || Err(OpError::Range { op: "test", at: 0, count: 1, len: 0 });
    assert!(b.scratch_bytes(refused).is_err());
    assert_eq!(b.scratch_bytes(|| b.alloc::<f32>("scratch", 65).map(drop)).expect("counted"), 260);
    let x = put(b, &floats(1, 100));
    let mut y = b.alloc("y", 100).expect("memory");
    b.bmm(Bmm::new(&x, &x, &mut y, [10, 10, 10], 1)).expect("a product");
    assert!(lane::launches() > launches);
}
