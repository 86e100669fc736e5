//! Modules: PTX that is parsed, and its kernels.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

use crate::ptx::{Kernel, Program};

use super::code::Code;
use super::device::{Device, PLAIN_SHARED, current, devices, put_text, working};
use super::handles::{Handle, Table};
use super::{In, Out, entries, lock};

/// The newest PTX of the CUDA version that is emulated.
const NEWEST: (u32, u32) = (9, 0);

/// Loaded modules.
static MODULES: Table<Module> = Table::new();
/// Loaded libraries: texts that were only parsed.
static LIBRARIES: Table<Program> = Table::new();
/// The kernels of loaded modules.
pub(super) static FUNCTIONS: Table<Function> = Table::new();

/// A loaded module.
struct Module {
    functions: BTreeMap<String, Handle>,
}

/// A kernel of a loaded module.
pub(super) struct Function {
    pub(super) kernel: Arc<Kernel>,
    pub(super) device: &'static Device,
    /// Of its PTX, `10 * major + minor`.
    pub(super) version: u32,
    /// Most dynamic shared memory of a launch.
    pub(super) dynamic_shared: AtomicU32,
    /// Whether clusters of more than 8 blocks are allowed.
    pub(super) wide_clusters: AtomicBool,
}

/// The `.version` and `.target` of a text.
fn header(text: &str) -> (Option<(u32, u32)>, Option<&str>) {
    let directive = |name: &str| {
        let mut lines = text.lines().map(str::trim_start);
        let line = lines.find_map(|line| line.strip_prefix(name))?;
        line.split([' ', '\t', ',', '/', ';']).find(|word| !word.is_empty())
    };
    let version = directive(".version").and_then(|text| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    (version, directive(".target"))
}

/// Whether code for `target` runs on a device of capability `sm`.
fn runs_on(target: &str, sm: u32) -> bool {
    let Some(target) = target.strip_prefix("sm_") else { return false };
    let digits = target.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let Ok(of) = digits.parse::<u32>() else { return false };
    match &target[digits.len()..] {
        "" => of <= sm,
        "a" => of == sm,
        "f" => of <= sm && of / 10 == sm / 10,
        _ => false,
    }
}

/// Parses a text for a device of capability `sm`. The same text is parsed once in this process.
fn parsed(text: &str, sm: u32) -> Result<Arc<Program>, (Code, String)> {
    static PROGRAMS: Mutex<BTreeMap<(u64, usize), Arc<Program>>> = Mutex::new(BTreeMap::new());
    let (version, target) = header(text);
    let Some((version, target)) = version.zip(target) else {
        let why = "this is not PTX: it has no .version or no .target";
        return Err((Code::INVALID_IMAGE, why.into()));
    };
    if version > NEWEST {
        let (major, minor) = version;
        let why =
            format!("ptxas fatal : Unsupported .version {major}.{minor}; current version is '9.0'");
        return Err((Code::UNSUPPORTED_PTX_VERSION, why));
    }
    if !runs_on(target, sm) {
        let why = format!("ptxas fatal : the .target {target} does not run on sm_{sm}");
        return Err((Code::INVALID_PTX, why));
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let key = (hasher.finish(), text.len());
    if let Some(program) = lock(&PROGRAMS).get(&key) {
        return Ok(program.clone());
    }
    let program = Program::parse(text).map_err(|why| (Code::INVALID_PTX, why))?;
    Ok(lock(&PROGRAMS).entry(key).or_insert(Arc::new(program)).clone())
}

/// The text of a caller's image.
fn text<'a>(image: *const c_void) -> Result<&'a str, (Code, String)> {
    if image.is_null() {
        return Err((Code::INVALID_VALUE, "no image".into()));
    }
    // SAFETY: the caller promises PTX, which a zero ends; other images begin with numbers that hold no zero at once.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    text.to_str().map_err(|_| (Code::INVALID_IMAGE, "the image is not PTX".into()))
}

/// Loads `image` for `device`.
fn load(image: *const c_void, device: &'static Device) -> Result<Handle, (Code, String)> {
    let text = text(image)?;
    let program = parsed(text, device.sm)?;
    let version = header(text).0.map_or(0, |(major, minor)| 10 * major + minor);
    let functions = program.kernels.iter().map(|kernel| {
        let function = Function {
            kernel: kernel.clone(),
            device,
            version,
            dynamic_shared: AtomicU32::new(PLAIN_SHARED),
            wide_clusters: AtomicBool::new(false),
        };
        (kernel.name.clone(), FUNCTIONS.insert(Arc::new(function)))
    });
    Ok(MODULES.insert(Arc::new(Module { functions: functions.collect() })))
}

/// The caller's log buffer of option `buffer`, whose size is in the option behind it.
fn log(options: &[u32], values: &[*mut c_void], buffer: u32) -> Option<(*mut c_char, usize)> {
    let value = |id: u32| options.iter().position(|&option| option == id).map(|at| values[at]);
    Some((value(buffer)?.cast(), value(buffer + 1)?.addr()))
}

entries! {
    /// Loads PTX.
    fn cuModuleLoadData(to: Out<Handle>, image: *const c_void) {
        to.put(load(image, working()?).map_err(|(code, _)| code)?)
    }

    /// Loads PTX; says in a log what is wrong with it.
    fn cuModuleLoadDataEx(
        to: Out<Handle>,
        image: *const c_void,
        count: u32,
        options: In<u32>,
        values: In<*mut c_void>,
    ) {
        let device = working()?;
        let (options, values) = (options.list(count as usize)?, values.list(count as usize)?);
        let put = |buffer: u32, text: &str| {
            if let Some((to, room)) = log(options, values, buffer) {
                put_text(to, room, text);
            }
        };
        // CU_JIT_INFO_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER.
        put(3, "");
        match load(image, device) {
            Ok(module) => {
                put(5, "");
                to.put(module)
            }
            Err((code, why)) => {
                put(5, &why);
                Err(code)
            }
        }
    }

    /// Unloads a module. Launches that are queued run nevertheless.
    fn cuModuleUnload(of: Handle) {
        for &function in MODULES.remove(of)?.functions.values() {
            FUNCTIONS.remove(function)?;
        }
        current()?.state()
    }

    /// A kernel of a module.
    fn cuModuleGetFunction(to: Out<Handle>, of: Handle, name: *const c_char) {
        working()?;
        let module = MODULES.get(of)?;
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller promises a text that a zero ends.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name.to_str().map_err(|_| Code::NOT_FOUND)?;
        to.put(*module.functions.get(name).ok_or(Code::NOT_FOUND)?)
    }

    /// Parses PTX, so that loading it as a module is quick.
    fn cuLibraryLoadData(
        to: Out<Handle>,
        image: *const c_void,
        _jit_options: *mut u32,
        _jit_values: *mut *mut c_void,
        _jit_count: u32,
        _options: *mut u32,
        _values: *mut *mut c_void,
        _count: u32,
    ) {
        let sm = match current() {
            Ok(device) => device.sm,
            Err(_) => devices()?.first().ok_or(Code::NO_DEVICE)?.sm,
        };
        let program = text(image).and_then(|text| parsed(text, sm)).map_err(|(code, _)| code)?;
        to.put(LIBRARIES.insert(program))
    }

    /// Forgets a library.
    fn cuLibraryUnload(of: Handle) {
        LIBRARIES.remove(of).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_behind_comments() {
        let text = "// .version 1.0\n\n.version 8.0\n.target sm_90a, debug\n.address_size 64";
        assert_eq!(header(text), (Some((8, 0)), Some("sm_90a")));
        assert_eq!(header("  .version 6.0 // old\n\t.target sm_53"), (Some((6, 0)), Some("sm_53")));
        assert_eq!(header("\u{7f}ELF"), (None, None));
    }

    #[test]
    fn code_runs_on_its_target_and_behind() {
        for (target, sm, runs) in [
            ("sm_53", 53, true),
            ("sm_80", 90, true),
            ("sm_90", 80, false),
            ("sm_90a", 90, true),
            ("sm_90a", 100, false),
            ("sm_100f", 103, true),
            ("sm_100f", 120, false),
            ("compute_80", 80, false),
        ] {
            assert_eq!(runs_on(target, sm), runs, "{target} on {sm}");
        }
    }

    #[test]
    fn what_does_not_suit_is_refused_before_it_is_parsed() {
        let code = |text: &str| parsed(text, 80).err().map(|(code, _)| code);
        assert_eq!(code("hello"), Some(Code::INVALID_IMAGE));
        let future = ".version 99.0\n.target sm_53\n";
        assert_eq!(code(future), Some(Code::UNSUPPORTED_PTX_VERSION));
        assert_eq!(code(".version 8.0\n.target sm_90\n"), Some(Code::INVALID_PTX));
    }
}
