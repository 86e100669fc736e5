//! No kernel and no family without a test.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::selftest::{cases, run};

use crate::lane;

/// The files of this folder are the families of the contract.
#[test]
fn every_family_has_its_file() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu");
    for family in contract::FAMILIES {
        let file = format!("{folder}/{family}.rs");
        // A bundle carries the test program without its sources.
        if std::path::Path::new(folder).is_dir() {
            assert!(std::path::Path::new(&file).is_file(), "{file} is missing");
        }
    }
}

/// Runs every case of the doctor under the profiler, which names what was launched: a kernel of
/// [`contract::KERNELS`] that nothing here launches is an error, and so is one that nobody declared.
#[test]
fn every_kernel_is_launched() {
    let Some(profiled) = lane::profiled() else { return };
    for case in cases() {
        run(&profiled, &case).unwrap_or_else(|e| panic!("{} {}: {e}", case.kernel, case.what));
    }
    let profile = profiled.profile().expect("a profile").expect("kernel times were asked for");
    for kernel in contract::KERNELS {
        let symbol = kernel.spec.symbol;
        assert!(profile.rows.iter().any(|row| row.name == symbol), "{symbol} was not launched");
    }
    for row in &profile.rows {
        let known = contract::KERNELS.iter().any(|kernel| kernel.spec.symbol == row.name);
        assert!(known, "{} was launched and is not in the contract", row.name);
    }
}
