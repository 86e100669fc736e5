//! The kernels of the contract, as the tools see them.

use contract::launch::KernelInfo;

/// Every device entry point.
pub(crate) fn kernels() -> &'static [KernelInfo] {
    contract::KERNELS
}
