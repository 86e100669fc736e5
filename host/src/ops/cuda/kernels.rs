//! The handles that a backend launches.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::OnceLock;

use contract::launch::Kernel;

use crate::driver::{KernelHandle, LaunchError, Module, ModuleError};

/// A [`KernelHandle`] of some kernel.
type Handle = Box<dyn Any + Send + Sync>;

/// Handles of the kernels, each made once, or known to be absent. Those of a model are made when the device is opened.
pub(super) struct Kernels(Box<[OnceLock<Option<Handle>>]>);

/// The place of a kernel, known when the program is built.
struct Place<K>(PhantomData<K>);

impl<K: Kernel> Place<K> {
    const INDEX: usize = contract::kernel_index(K::SPEC.symbol);
}

impl Kernels {
    pub(super) fn new() -> Self {
        Self(contract::KERNELS.iter().map(|_| OnceLock::new()).collect())
    }

    pub(super) fn get<K: Kernel>(&self, module: &Module) -> Result<&KernelHandle<K>, LaunchError> {
        let slot = &self.0[Place::<K>::INDEX];
        let made = match slot.get() {
            Some(Some(made)) => made,
            _ => {
                let handle = module.kernel::<K>().inspect_err(|error| {
                    if error.is_absent() {
                        slot.get_or_init(|| None);
                    }
                })?;
                // SAFETY: every kernel waits for its predecessors (`arch::grid::dependency_wait`)
                // before it touches what another kernel may write, and before it writes; the PTX
                // audit counts the waits.
                let handle = unsafe { handle.with_pdl() };
                let made = slot.get_or_init(|| Some(Box::new(handle)));
                made.as_ref().ok_or_else(|| missing::<K>(module))?
            }
        };
        // Symbols are unique, so the slot holds a handle of this very type.
        made.downcast_ref().ok_or_else(|| missing::<K>(module))
    }

    /// Whether there is no such kernel: asked before each launch that has a choice, so without the words of an error.
    pub(super) fn lacks<K: Kernel>(&self, module: &Module) -> bool {
        match self.0[Place::<K>::INDEX].get() {
            Some(found) => found.is_none(),
            None => matches!(self.get::<K>(module), Err(error) if error.is_absent()),
        }
    }
}

fn missing<K: Kernel>(module: &Module) -> LaunchError {
    let (symbol, level) = (K::SPEC.symbol, module.loaded_level().to_owned());
    ModuleError::MissingKernel { symbol, level, min_sm: K::SPEC.min_sm }.into()
}
