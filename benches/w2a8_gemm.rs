//! [`contract::w2a8_gemm`] on a GPU: batches and prefill.

use std::process::ExitCode;

use bitnet_benches::{Linear, run};
use bitnet_gpu::reference::w2a8_gemm::BENCH_SHAPES;

fn main() -> ExitCode {
    run("w2a8_gemm", |suite| {
        for &(m, n, k) in BENCH_SHAPES {
            if let Some(row) = suite.measure(&Linear::new(m, n, k))?
                && let Some(us) = row.cold.or(row.warm).map(|t| t.us.median)
            {
                row.set("int8_tera_ops_per_s", 2.0 * (m * n * k) as f64 / us / 1e6);
            }
        }
        suite.report().notes.push("cases are M x N x K: tokens, outputs, inputs".into());
        Ok(())
    })
}
