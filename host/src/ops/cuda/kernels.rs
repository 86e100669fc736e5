//! The kernels that a backend launches.

use std::marker::PhantomData;
use std::sync::OnceLock;

use contract::launch::Kernel;

use crate::driver::{LaunchError, Loaded, Module, ModuleError};

/// Kernels, each made ready once, or known to be absent. Those of a model are made when the device is opened.
pub(super) struct Kernels(Box<[OnceLock<Option<Loaded>>]>);

/// The place of a kernel, known when the program is built.
pub(super) struct Place<K>(PhantomData<K>);

impl<K: Kernel> Place<K> {
    /// In `contract::KERNELS`.
    pub(super) const INDEX: usize = contract::kernel_index(K::SPEC.symbol);
}

impl Kernels {
    pub(super) fn new() -> Self {
        Self(contract::KERNELS.iter().map(|_| OnceLock::new()).collect())
    }

    /// The kernel at `index` of `contract::KERNELS`.
    pub(super) fn get(&self, index: usize, module: &Module) -> Result<&Loaded, LaunchError> {
        let (slot, spec) = (&self.0[index], &contract::KERNELS[index].spec);
        let made = match slot.get() {
            Some(Some(made)) => return Ok(made),
            _ => {
                let loaded = Loaded::new(module, spec).inspect_err(|error| {
                    if error.is_absent() {
                        slot.get_or_init(|| None);
                    }
                })?;
                // SAFETY: every kernel waits for its predecessors (`arch::grid::dependency_wait`)
                // before it touches what another kernel may write, and before it writes; the PTX
                // audit counts the waits.
                let loaded = unsafe { loaded.with_pdl() };
                slot.get_or_init(|| Some(loaded))
            }
        };
        made.as_ref().ok_or_else(|| {
            let (symbol, level) = (spec.symbol, module.loaded_level().to_owned());
            ModuleError::MissingKernel { symbol, level, min_sm: spec.min_sm }.into()
        })
    }

    /// Whether there is no such kernel: asked before each launch that has a choice, so without the words of an error.
    pub(super) fn lacks(&self, index: usize, module: &Module) -> bool {
        match self.0[index].get() {
            Some(found) => found.is_none(),
            None => matches!(self.get(index, module), Err(error) if error.is_absent()),
        }
    }
}
