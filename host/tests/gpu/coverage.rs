//! No kernel without a launch.

use std::collections::HashSet;

use bitnet_gpu::driver::CudaOptions;
use bitnet_gpu::ops::{Backend, CudaBackend};
use bitnet_gpu::selftest::{RunError, cases, run};

/// Names of kernels that ran with the same text on a lower level, separated by commas: those are not run again.
const COVERED: &str = "BITNET_TEST_COVERED";

/// Runs every case of the doctor under the profiler, which names what was launched: a kernel of
/// [`contract::KERNELS`] that nothing here launches is an error, unless the loaded level has no such kernel, and
/// so is one that nobody declared.
#[test]
fn every_kernel_is_launched() {
    let _alone = crate::lane::shared();
    let profiled = CudaBackend::open(CudaOptions::default().profile(true)).expect("a GPU");
    let covered = std::env::var(COVERED).unwrap_or_default();
    let covered: HashSet<&str> = covered.split(',').collect();
    let mut absent = HashSet::new();
    let module = profiled.cuda().module();
    let asked = |symbol: &'static str| module.has(symbol) && !covered.contains(symbol);
    for case in cases().into_iter().filter(|case| asked(case.kernel)) {
        match run(&profiled, &case) {
            Ok(_) => {}
            Err(RunError::Op(error)) if error.is_absent() => {
                absent.insert(case.kernel);
            }
            Err(error) => panic!("{} {}: {error}", case.kernel, case.what),
        }
    }
    let profile = profiled.profile().expect("a profile").expect("kernel times were asked for");
    for kernel in contract::KERNELS {
        let symbol = kernel.spec.symbol;
        let launched = profile.rows.iter().any(|row| row.name == symbol);
        let there = !absent.contains(symbol) && asked(symbol);
        assert!(launched || !there, "{symbol} was not launched");
    }
    for row in &profile.rows {
        let known = contract::KERNELS.iter().any(|kernel| kernel.spec.symbol == row.name);
        assert!(known, "{} was launched and is not in the contract", row.name);
    }
}
