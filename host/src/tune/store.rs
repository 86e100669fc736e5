//! Where records stand: the folder of a user, and what is shipped with the library.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::record::{DeviceKey, MAX_BYTES, Record, RecordError};

/// Names the environment variable that moves the folder of records.
pub const DIR_VAR: &str = "BITNET_TUNE_DIR";

/// Records that are part of this library: measured by `bitnet tune` on the device they name.
pub const SHIPPED: &[&str] =
    &[include_str!("../../tuned/nvidia-h100.json"), include_str!("../../tuned/nvidia-h200.json")];

/// Why records could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file that cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is no record.
    #[error("{}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: RecordError,
    },
    /// Neither the folder nor a home is named by the environment.
    #[error("there is no folder for tuning records; set {DIR_VAR} or HOME")]
    NoFolder,
}

/// The folder of records: [`DIR_VAR`], or `bitnet-gpu/tune` in the user's cache (`XDG_CACHE_HOME`, else
/// `.cache` in the home folder).
pub fn folder() -> Option<PathBuf> {
    folder_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

/// The same, reading variables through `var`; `None` stands for unset.
pub fn folder_from(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| var(name).map(PathBuf::from);
    if let Some(folder) = path(DIR_VAR) {
        return Some(folder);
    }
    // A relative cache folder is to be ignored, says the specification of these variables.
    let cache = path("XDG_CACHE_HOME").filter(|cache| cache.is_absolute());
    let home = || path("HOME").or_else(|| path("USERPROFILE")).map(|home| home.join(".cache"));
    Some(cache.or_else(home)?.join("bitnet-gpu").join("tune"))
}

/// The file of a device in `folder`: its name, capability and PTX level in small letters and digits.
pub fn file(folder: &Path, device: &DeviceKey, ptx_level: &str) -> PathBuf {
    let plain = format!("{} {} {ptx_level}", device.name, device.sm_count).to_ascii_lowercase();
    let words: Vec<_> =
        plain.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    folder.join(words.join("-")).with_extension("json")
}

/// Reads a record; `None` when there is no such file.
///
/// # Errors
/// A file that cannot be read, is longer than a record may be, or is none.
pub fn read(path: &Path) -> Result<Option<Record>, StoreError> {
    let io = |source| StoreError::Io { what: "read", path: path.into(), source };
    // Before opening: opening a pipe would wait for its writer.
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(io(std::io::Error::other("this is not a regular file"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    }
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too long, whatever its metadata says.
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    let record = Record::parse(&bytes);
    record.map(Some).map_err(|source| StoreError::Record { path: path.into(), source })
}

/// Writes a record together with what stands there for other problems: another process may have measured meanwhile.
///
/// # Errors
/// As [`write()`].
pub fn update(path: &Path, record: &mut Record) -> Result<(), StoreError> {
    if let Ok(Some(there)) = read(path)
        && there.is_of(&record.device, true).is_ok()
    {
        record.take_from(&there);
    }
    write(path, record)
}

/// Writes a record as a whole: a reader sees the old file or the new one.
///
/// # Errors
/// A folder or file that cannot be written.
pub fn write(path: &Path, record: &Record) -> Result<(), StoreError> {
    let io = |source| StoreError::Io { what: "write", path: path.into(), source };
    let folder = path.parent().ok_or(StoreError::NoFolder)?;
    std::fs::create_dir_all(folder).map_err(io)?;
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = File::create(&beside)
        .and_then(|mut file| file.write_all(record.to_json().as_bytes()))
        .and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|source| {
        // The half-written file is of no use to anyone.
        let _ = std::fs::remove_file(&beside);
        io(source)
    })
}
