//! PTX loaded into a device.
//!
//! `cust` loads the PTX and owns the module. When it fails, the same PTX goes once more through the
//! driver's own loader with log buffers, because `cust` has no way to ask for the JIT log and folds
//! "unsupported PTX version" (222) into "unknown error". Refusals of one level (209, 218, 222) make
//! the loader try the next lower one, and are kept: [`Module::skipped`].
//!
//! Compiling a whole level takes a core half a minute, so each kernel is compiled by itself: those that a
//! model runs beside each other when a device is opened, any other when it is first asked for. The
//! driver's loader takes one text at a time, so the texts first go through its library loader, which
//! takes many, and leaves the code in the driver's cache on disk. (Its linker takes many too, but as
//! relocatable code: slower kernels, `setmaxnreg` ignored, `wgmma` serialised.)

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use contract::launch::Kernel;

use super::api::{Api, Handle};
use super::device::Device;
use super::error::{DriverError, ModuleError, PtxFallback};
use super::kernel::KernelHandle;
use super::ptx::{self, Image, Kernels};
use super::stream::lock;

/// Names the environment variable that forces one PTX level.
pub const PTX_LEVEL_VAR: &str = "BITNET_PTX_LEVEL";

/// Kernels loaded into a device; a counted handle.
#[derive(Clone)]
pub struct Module(Arc<ModuleInner>);

pub(super) struct ModuleInner {
    /// By kernel; a text that is loaded whole is under [`WHOLE`].
    loaded: Mutex<HashMap<&'static str, cust::module::Module>>,
    source: Source,
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

/// What kernels are compiled from.
enum Source {
    /// Each kernel by itself.
    Kernels(Kernels),
    /// All of it at once.
    Whole(Cow<'static, str>),
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
            let source = match Kernels::of(image.ptx()?) {
                Ok(kernels) => Source::Kernels(kernels),
                Err(text) => Source::Whole(text),
            };
            let module = Self::new(device, (image.level, image.isa), source, skipped);
            let model = |family: &str| contract::MODEL_FAMILIES.contains(&family);
            match module.0.load(&module.0.parts(model))? {
                Ok(()) => return Ok(module),
                Err(refusal) if refusal.tries_next() => {
                    skipped = module.0.skipped.clone();
                    skipped.push(PtxFallback {
                        level: image.level.into(),
                        isa: image.isa.into(),
                        reason: refusal.error,
                        log: refusal.log,
                    });
                }
                Err(refusal) => return Err(module.0.refused(refusal)),
            }
        }
        Err(ModuleError::AllRefused { skipped })
    }

    /// Loads a PTX text of the caller's own under the name `level`.
    ///
    /// # Errors
    /// A text with a zero byte, or the driver's refusal with its log.
    pub fn from_ptx(device: &Device, level: &str, ptx: &str) -> Result<Self, ModuleError> {
        let module =
            Self::new(device, (level, ""), Source::Whole(ptx.to_owned().into()), Vec::new());
        match module.0.load(&[WHOLE])? {
            Ok(()) => Ok(module),
            Err(refusal) => Err(module.0.refused(refusal)),
        }
    }

    fn new(
        device: &Device,
        (level, isa): (&str, &str),
        source: Source,
        skipped: Vec<PtxFallback>,
    ) -> Self {
        Self(Arc::new(ModuleInner {
            loaded: Mutex::default(),
            source,
            device: device.clone(),
            level: level.into(),
            isa: isa.into(),
            skipped,
            functions: Mutex::default(),
        }))
    }

    /// Compiles what is left of the families that `wanted` takes now, on all cores, instead of each
    /// kernel when it is first asked for.
    ///
    /// # Errors
    /// The driver's refusal of one of them, with its log.
    pub fn compile(&self, wanted: impl Fn(&str) -> bool) -> Result<(), ModuleError> {
        self.0.load(&self.0.parts(wanted))?.map_err(|refusal| self.0.refused(refusal))
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
        match &self.0.source {
            // Not whether the driver takes it: that is for who launches it to hear.
            Source::Kernels(kernels) => kernels.has(symbol),
            Source::Whole(_) => self.function(symbol, 0).is_ok(),
        }
    }

    /// SHA-256 of the PTX of one family in the loaded level, in hexadecimal: what was measured with other PTX
    /// says nothing about this one. `None` when the level has no kernel of it.
    pub fn family_sha256(&self, family: &str) -> Option<String> {
        ptx::part_sha256(self.0.text(), |name| contract::family_of(name) == Some(family))
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
        let part = match &self.0.source {
            Source::Kernels(kernels) if !kernels.has(symbol) => return Err(missing()),
            Source::Kernels(_) => symbol,
            Source::Whole(_) => WHOLE,
        };
        self.0.load(&[part])?.map_err(|refusal| self.0.refused(refusal))?;
        let loaded = lock(&self.0.loaded);
        let module = loaded.get(part).ok_or_else(missing)?;
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

impl ModuleInner {
    /// What is loaded for the families that `wanted` takes.
    fn parts(&self, wanted: impl Fn(&str) -> bool) -> Vec<&'static str> {
        match &self.source {
            Source::Kernels(kernels) => kernels.symbols(wanted),
            Source::Whole(_) => vec![WHOLE],
        }
    }

    fn text(&self) -> &str {
        match &self.source {
            Source::Kernels(kernels) => kernels.whole(),
            Source::Whole(text) => text,
        }
    }

    fn refused(&self, refusal: Refusal) -> ModuleError {
        ModuleError::Jit { level: self.level.clone(), log: refusal.log, source: refusal.error }
    }

    /// Loads those of `parts` that are not there yet. `Err` outside: the PTX or the context cannot even
    /// be tried. Inside: what the driver said.
    fn load(&self, parts: &[&'static str]) -> Result<Result<(), Refusal>, ModuleError> {
        let mut parts = parts.to_vec();
        parts.retain(|part| !lock(&self.loaded).contains_key(part));
        let api = self.device.bind()?;
        let _loads = api.while_captured();
        self.compile_ahead(api, &parts);
        for part in parts {
            let text = self.part_text(part)?;
            match cust::module::Module::from_ptx_cstr(&text, &[]) {
                // Where two threads load the same kernel, the first one's module stays: functions of
                // it may be out already.
                Ok(module) => lock(&self.loaded).entry(part).or_insert(module),
                Err(first) => return Ok(Err(refusal(api, &text, first))),
            };
        }
        Ok(Ok(()))
    }

    /// Lets the driver compile `parts` side by side into its cache. What fails here fails again, with a
    /// reason, where it is loaded.
    fn compile_ahead(&self, api: &Api, parts: &[&'static str]) {
        let (Some(load), Some(unload)) = (api.library_load, api.library_unload) else { return };
        if parts.len() < 2 || std::env::var_os("CUDA_CACHE_DISABLE").is_some_and(|v| v == "1") {
            return;
        }
        let mut texts: Vec<_> = parts.iter().filter_map(|part| self.part_text(part).ok()).collect();
        // The longest first: begun last, it would be waited for by all cores but one.
        texts.sort_by_key(|text| std::cmp::Reverse(text.count_bytes()));
        let next = AtomicUsize::new(0);
        let work = || {
            let _context = self.device.bind();
            while let Some(text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut library: Handle = std::ptr::null_mut();
                let (none, pointers) = (std::ptr::null_mut(), std::ptr::null_mut());
                // SAFETY: the text is terminated, and there are no options. A library that was loaded
                // by this call is unloaded, once, by the next.
                unsafe {
                    let text = text.as_ptr().cast();
                    if load(&mut library, text, none, pointers, 0, none, pointers, 0) == 0 {
                        unload(library);
                    }
                }
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores.min(texts.len()) {
                scope.spawn(work);
            }
        });
    }

    /// The PTX of one part.
    fn part_text(&self, part: &str) -> Result<CString, ModuleError> {
        let text = match &self.source {
            Source::Kernels(kernels) => kernels.text(part).unwrap_or_default(),
            Source::Whole(text) => text.clone().into_owned(),
        };
        CString::new(text)
            .map_err(|e| ModuleError::NotText { level: self.level.clone(), at: e.nul_position() })
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        if self.device.bind().is_err() {
            // The context is gone and its modules with it; unloading would only fail again.
            lock(&self.loaded).drain().for_each(|(_, module)| std::mem::forget(module));
        }
    }
}

/// The name of a text that is loaded whole.
const WHOLE: &str = "";

/// What the driver says about a text that `cust` could not load for the reason `first`.
fn refusal(api: &Api, text: &CStr, first: cust::error::CudaError) -> Refusal {
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
        return Refusal { error, log: String::new() };
    }
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]).trim_end().to_owned();
    Refusal { error: api.error(code, "cuModuleLoadDataEx"), log }
}
