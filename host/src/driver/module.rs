//! PTX loaded into a device.
//!
//! `cust` loads the PTX and owns the module. When it fails, the same PTX goes once more through the
//! driver's own loader with log buffers, because `cust` has no way to ask for the JIT log and folds
//! "unsupported PTX version" (222) into "unknown error". Refusals of one level (209, 218, 222) make
//! the loader try the next lower one, and are kept: [`Module::skipped`].
//!
//! A level is loaded in parts, because compiling all of it takes seconds: first the families that a
//! model runs, each other family when one of its kernels is first asked for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex};

use contract::launch::Kernel;

use super::api::Handle;
use super::device::Device;
use super::error::{DriverError, ModuleError, PtxFallback};
use super::kernel::KernelHandle;
use super::ptx::{self, Image};
use super::stream::lock;

/// Names the environment variable that forces one PTX level.
pub const PTX_LEVEL_VAR: &str = "BITNET_PTX_LEVEL";

/// Kernels loaded into a device; a counted handle.
#[derive(Clone)]
pub struct Module(Arc<ModuleInner>);

pub(super) struct ModuleInner {
    /// By family; what was loaded first is under [`FIRST`]. Empty only while dropping.
    parts: Mutex<HashMap<&'static str, cust::module::Module>>,
    /// What other parts are made of; empty for [`Module::from_ptx`].
    ptx: Cow<'static, str>,
    device: Device,
    level: String,
    isa: String,
    skipped: Vec<PtxFallback>,
    functions: Mutex<HashMap<&'static str, Function>>,
}

/// A resolved entry. The module that it belongs to is kept beside it wherever it goes.
#[derive(Clone, Copy)]
pub(super) struct Function(pub(super) Handle);

// SAFETY: a function handle is an address that the driver lets any thread use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Module({} on {:?})", self.0.level, self.0.device)
    }
}

/// What the driver said about one PTX text.
struct Refusal {
    error: DriverError,
    log: String,
}

impl Refusal {
    /// Whether a lower level may still load: the PTX does not suit this driver or GPU.
    fn tries_next(&self) -> bool {
        matches!(self.error.code, 209 | 218 | 222)
    }
}

impl Module {
    /// Loads the embedded kernels: the highest level that fits, or a lower one when the driver is
    /// too old for it. [`PTX_LEVEL_VAR`] in the environment forces one level.
    ///
    /// # Errors
    /// No PTX in this build, no level that fits, or the driver's refusal with its log.
    pub fn load(device: &Device) -> Result<Self, ModuleError> {
        let forced = std::env::var(PTX_LEVEL_VAR).ok().filter(|level| !level.is_empty());
        Self::load_images(device, ptx::IMAGES, forced.as_deref())
    }

    /// Loads the best of `images`, as [`Module::load`] does; `forced` allows one level only.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load_images(
        device: &Device,
        images: &[Image],
        forced: Option<&str>,
    ) -> Result<Self, ModuleError> {
        let mut skipped = Vec::new();
        for image in ptx::candidates(images, device.sm(), forced)? {
            // A text that has none of them is loaded whole: it is not one of ours.
            let ptx = image.ptx()?;
            let first = ptx::part(&ptx, |name| part_of(name) == FIRST);
            match load_one(device, image.level, first.as_deref().unwrap_or(&ptx))? {
                Ok(module) => {
                    let of = (image.level, image.isa, ptx);
                    return Ok(Self::new(device, module, of, skipped));
                }
                Err(refusal) if refusal.tries_next() => skipped.push(PtxFallback {
                    level: image.level.into(),
                    isa: image.isa.into(),
                    reason: refusal.error,
                    log: refusal.log,
                }),
                Err(Refusal { error: source, log }) => {
                    return Err(ModuleError::Jit { level: image.level.into(), log, source });
                }
            }
        }
        Err(ModuleError::AllRefused { skipped })
    }

    /// Loads a PTX text of the caller's own under the name `level`.
    ///
    /// # Errors
    /// A text with a zero byte, or the driver's refusal with its log.
    pub fn from_ptx(device: &Device, level: &str, ptx: &str) -> Result<Self, ModuleError> {
        match load_one(device, level, ptx)? {
            Ok(module) => Ok(Self::new(device, module, (level, "", "".into()), Vec::new())),
            Err(Refusal { error: source, log }) => {
                Err(ModuleError::Jit { level: level.into(), log, source })
            }
        }
    }

    fn new(
        device: &Device,
        first: cust::module::Module,
        (level, isa, ptx): (&str, &str, Cow<'static, str>),
        skipped: Vec<PtxFallback>,
    ) -> Self {
        Self(Arc::new(ModuleInner {
            parts: Mutex::new(HashMap::from([(FIRST, first)])),
            ptx,
            device: device.clone(),
            level: level.into(),
            isa: isa.into(),
            skipped,
            functions: Mutex::default(),
        }))
    }

    /// The device it is loaded on.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The level that was loaded, such as `sm_80`.
    pub fn loaded_level(&self) -> &str {
        &self.0.level
    }

    /// Its PTX ISA version; empty for [`Module::from_ptx`].
    pub fn loaded_isa(&self) -> &str {
        &self.0.isa
    }

    /// The levels that fit the device and that the driver refused, highest first.
    pub fn skipped(&self) -> &[PtxFallback] {
        &self.0.skipped
    }

    /// The typed handle of kernel `K`.
    ///
    /// # Errors
    /// The loaded level has no such entry, the device is older than the kernel or too small for its
    /// block, or a driver failure.
    pub fn kernel<K: Kernel>(&self) -> Result<KernelHandle<K>, super::error::LaunchError> {
        KernelHandle::new(self)
    }

    /// Whether the loaded level has an entry of this name.
    pub fn has(&self, symbol: &'static str) -> bool {
        self.function(symbol, 0).is_ok()
    }

    /// SHA-256 of the PTX of one family in the loaded level, in hexadecimal: what was measured with other PTX
    /// says nothing about this one. `None` when the level has no kernel of it.
    pub fn family_sha256(&self, family: &str) -> Option<String> {
        ptx::part_sha256(&self.0.ptx, |name| contract::family_of(name) == Some(family))
    }

    /// Resolves `symbol`, once.
    pub(super) fn function(
        &self,
        symbol: &'static str,
        min_sm: u32,
    ) -> Result<Function, ModuleError> {
        let mut functions = lock(&self.0.functions);
        if let Some(function) = functions.get(symbol) {
            return Ok(*function);
        }
        let api = self.0.device.bind()?;
        let level = &self.0.level;
        let missing = || ModuleError::MissingKernel { symbol, level: level.clone(), min_sm };
        let part = part_of(symbol);
        let mut parts = lock(&self.0.parts);
        if !parts.contains_key(part) {
            let ptx = ptx::part(&self.0.ptx, |name| part_of(name) == part).ok_or_else(missing)?;
            let loaded = load_one(&self.0.device, level, &ptx)?.map_err(|refusal| {
                ModuleError::Jit { level: level.clone(), log: refusal.log, source: refusal.error }
            })?;
            parts.insert(part, loaded);
        }
        let module = parts.get(part).ok_or_else(missing)?;
        let function = match module.get_function(symbol) {
            // `cust`'s handle borrows the module; the raw one is kept beside the counted module.
            Ok(function) => Function(function.to_raw() as Handle),
            Err(cust::error::CudaError::NotFound) => return Err(missing()),
            Err(e) => return Err(api.error(e as i32, "cuModuleGetFunction").into()),
        };
        functions.insert(symbol, function);
        Ok(function)
    }

    /// What a graph keeps, so that captured kernels stay loaded.
    pub(super) fn keep_alive(&self) -> Arc<ModuleInner> {
        self.0.clone()
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        if self.device.bind().is_err() {
            // The context is gone and its modules with it; unloading would only fail again.
            lock(&self.parts).drain().for_each(|(_, module)| std::mem::forget(module));
        }
    }
}

/// The part that a model needs.
const FIRST: &str = "";

/// The part that the kernel `symbol` is loaded with: its family, or [`FIRST`].
fn part_of(symbol: &str) -> &'static str {
    let general = |family: &&str| !contract::MODEL_FAMILIES.contains(family);
    contract::family_of(symbol).filter(general).unwrap_or(FIRST)
}

/// `Err` outside: the PTX or the context cannot even be tried. Inside: what the driver said.
fn load_one(
    device: &Device,
    level: &str,
    ptx: &str,
) -> Result<Result<cust::module::Module, Refusal>, ModuleError> {
    let api = device.bind()?;
    let text = CString::new(ptx)
        .map_err(|e| ModuleError::NotText { level: level.into(), at: e.nul_position() })?;
    let first = match cust::module::Module::from_ptx_cstr(&text, &[]) {
        Ok(module) => return Ok(Ok(module)),
        Err(first) => first,
    };

    const LOG_BYTES: usize = 16 * 1024;
    let mut log = vec![0u8; LOG_BYTES];
    // CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_LOG_VERBOSE.
    let mut options = [5u32, 6, 12];
    let mut values = [
        log.as_mut_ptr().cast::<c_void>(),
        std::ptr::without_provenance_mut(LOG_BYTES),
        std::ptr::without_provenance_mut(1),
    ];
    let mut module = std::ptr::null_mut();
    // SAFETY: the text is terminated; the three options have three values: the log's address, its
    // size by value as this call wants it, and a flag. The driver writes at most that many bytes.
    let code = unsafe {
        (api.module_load_ex)(
            &mut module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if code == 0 {
        // It loads now, so the first failure was a passing one, such as memory. `cust` cannot adopt
        // a raw module: keep to what it said.
        // SAFETY: the module was loaded by this very call and nothing else knows it.
        unsafe { (api.module_unload)(module) };
        let error = api.error(first as i32, "cuModuleLoadDataEx");
        return Ok(Err(Refusal { error, log: String::new() }));
    }
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]).trim_end().to_owned();
    Ok(Err(Refusal { error: api.error(code, "cuModuleLoadDataEx"), log }))
}
