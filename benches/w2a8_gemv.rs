//! [`contract::w2a8_gemv`] on a GPU: the ten shapes of the published kernel and those of the
//! models, cold and warm.
//!
//! `--variants` times every compiled variant and says which is best for each shape: what
//! `ops::w2a8_gemv::choose_index` is made from. `--peers` adds PyTorch's bf16 GEMV from the same
//! machine and minute; `--nvcc-ptx` the same algorithm in CUDA C++ (benches/cuda). The two constant columns are figures of one H200 (driver 580, CUDA 13.0, no
//! programmatic dependent launch), measured the same way in another session.

use std::process::ExitCode;
use std::rc::Rc;

use bitnet_benches::{Case, Linear, LinearTensors, bits, run};
use bitnet_gpu::ops::w2a8_gemv::{W2a8Gemv, choose_index};
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::reference::w2a8_gemv::BENCH_SHAPES;
use contract::w2a8_gemv::VARIANTS;

/// `(n, k)` of the models that [`BENCH_SHAPES`] lacks: 3B, 8B and 70B.
const MODEL_SHAPES: &[(usize, usize)] = &[
    (9600, 3200),
    (17_280, 3200),
    (3200, 8640),
    (6144, 4096),
    (4096, 4096),
    (28_672, 4096),
    (4096, 14_336),
    (10_240, 8192),
    (8192, 8192),
    (57_344, 8192),
    (8192, 28_672),
];

/// `(n, k, cold, warm)` in microseconds of the first Rust kernel of this project: K known at compile
/// time, no fusion, no scale segments. The floor that this kernel has to keep.
const FIRST_RUST_KERNEL_US: &[(usize, usize, f64, f64)] = &[
    (3840, 2560, 3.00, 2.72),
    (2560, 2560, 2.79, 2.54),
    (13_824, 2560, 4.96, 4.39),
    (2560, 6912, 4.12, 3.47),
    (4800, 3200, 3.24, 3.08),
    (3200, 3200, 2.95, 2.70),
    (20_480, 3200, 7.33, 5.61),
    (3200, 10_240, 5.28, 4.45),
    (5120, 27_648, 12.85, 12.28),
    (55_296, 5120, 19.99, 20.03),
];

/// `(n, k, cold)` in microseconds of torch's bf16 GEMV (cuBLAS), PyTorch 2.11 for CUDA 13.0.
const TORCH_BF16_US: &[(usize, usize, f64)] = &[
    (3840, 2560, 7.93),
    (2560, 2560, 6.92),
    (13_824, 2560, 19.84),
    (2560, 6912, 13.22),
    (4800, 3200, 10.81),
    (3200, 3200, 10.13),
    (20_480, 3200, 35.20),
    (3200, 10_240, 21.94),
    (5120, 27_648, 72.2),
    (55_296, 5120, 137.2),
];

struct Gemv {
    linear: Rc<Linear>,
    variant: usize,
    /// Of benches/cuda, not ours.
    cuda: bool,
}

impl Case for Gemv {
    type Tensors<B: Backend> = LinearTensors<B>;

    fn name(&self) -> String {
        format!("{}x{}", self.linear.n, self.linear.k)
    }

    fn variant(&self) -> String {
        let name = VARIANTS[self.variant].spec.symbol.trim_start_matches("w2a8_gemv_");
        name.to_owned() + if self.cuda { ", nvcc" } else { "" }
    }

    fn bytes(&self) -> u64 {
        self.linear.bytes()
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<LinearTensors<B>, OpError> {
        self.linear.tensors(backend)
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut LinearTensors<B>) -> Result<(), OpError> {
        let variant = Some(self.variant);
        backend.w2a8_gemv(W2a8Gemv { w: &t.w, acts: &t.acts, y: &mut t.y, variant })
    }

    fn output<B: Backend>(&self, backend: &B, t: &LinearTensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.y)
    }
}

fn main() -> ExitCode {
    run("w2a8_gemv", |suite| {
        let nvcc = suite.options().nvcc_ptx.as_ref().map(std::fs::read_to_string).transpose()?;
        let shapes: Vec<_> = BENCH_SHAPES.iter().chain(MODEL_SHAPES).copied().collect();
        for &(n, k) in &shapes {
            if !suite.options().wants(&format!("{n}x{k}")) {
                continue;
            }
            let chosen = choose_index(n, k, suite.options().pdl);
            let linear = Rc::new(Linear::new(1, n, k));
            let variants: Vec<_> = match suite.options().variants {
                true => (0..VARIANTS.len()).collect(),
                false => vec![chosen],
            };
            let of = |cuda: bool| -> Vec<_> {
                let case = |&variant| Gemv { linear: linear.clone(), variant, cuda };
                variants.iter().map(case).collect()
            };
            let cold_us = |row: &bitnet_benches::Row| row.cold.map_or(f64::NAN, |t| t.us.median);
            let warm_us = |row: &bitnet_benches::Row| row.warm.map_or(f64::NAN, |t| t.us.median);
            let nvcc: Vec<_> = match &nvcc {
                None => Vec::new(),
                Some(ptx) => suite.with_ptx("nvcc", ptx, |suite| {
                    let kept = suite.report().rows.len();
                    let rows = suite.measure_variants(&of(true))?;
                    let times: Vec<_> =
                        rows.iter().map(|row| (cold_us(row), warm_us(row))).collect();
                    // They are columns of our rows.
                    suite.report().rows.truncate(kept);
                    Ok(times)
                })?,
            };
            let cases = of(false);
            let rows = suite.measure_variants(&cases)?;
            let best = rows.iter().map(cold_us).fold(f64::INFINITY, f64::min);
            for (index, (row, variant)) in rows.iter_mut().zip(variants).enumerate() {
                if let Some(&(cold, warm)) = nvcc.get(index) {
                    row.set("nvcc_cold_us", cold);
                    row.set("nvcc_ratio", cold / cold_us(row));
                    row.set("nvcc_warm_us", warm);
                    row.set("nvcc_warm_ratio", warm / warm_us(row));
                }
                let mark = match (variant == chosen, cold_us(row) == best) {
                    (true, true) => "chosen, best",
                    (true, false) => "chosen",
                    (false, true) => "best",
                    (false, false) => "",
                };
                if mark.contains("best") && cases.len() > 1 {
                    println!("  {:<28} best {} ({mark})", row.case, row.variant);
                }
                if cases.len() > 1 {
                    row.set("choice", mark);
                    row.set("of_best", best / cold_us(row));
                }
                if let Some(&(.., cold, warm)) =
                    FIRST_RUST_KERNEL_US.iter().find(|c| (c.0, c.1) == (n, k))
                {
                    row.set("first_rust_kernel_cold_us", cold);
                    row.set("first_rust_kernel_warm_us", warm);
                    row.set("first_rust_kernel_ratio", cold / cold_us(row));
                }
                if let Some(&(.., cold)) = TORCH_BF16_US.iter().find(|c| (c.0, c.1) == (n, k)) {
                    row.set("torch_bf16_other_session_us", cold);
                }
            }
        }
        suite.report().notes.push(
            "ratios are their cold time over ours; `first_rust_kernel` and \
             `torch_bf16_other_session` are constants of one H200, driver 580, CUDA 13.0"
                .to_owned(),
        );
        Ok(())
    })
}
