//! The bytes of one file: mapped into memory, or read piece by piece.
//!
//! Mapped (the default) costs no copy, and pages are given back after each tensor, so the process
//! never holds the whole file twice. The file must not be changed or cut while it is mapped: reading
//! past a new end kills the process (SIGBUS), which no program can turn into an error. Where that can
//! happen (network mounts, files still being written) open with `mmap: false`: then every read is a
//! system call into a small buffer and a file that shrinks is an ordinary error.

use std::{
    borrow::Cow,
    fs::File,
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use super::CheckpointError;

#[derive(Debug)]
enum Storage {
    Mapped(Mmap),
    Read(File),
}

/// A file opened for reading, its length fixed at opening.
#[derive(Debug)]
pub(crate) struct FileBytes {
    path: PathBuf,
    len: u64,
    storage: Storage,
}

impl FileBytes {
    pub(crate) fn open(path: &Path, mmap: bool) -> Result<Self, CheckpointError> {
        let io = |source| CheckpointError::Io { path: path.to_owned(), source };
        // Before opening: opening a pipe would wait for its writer.
        let metadata = std::fs::metadata(path).map_err(io)?;
        if !metadata.is_file() {
            return Err(CheckpointError::NoModel {
                path: path.to_owned(),
                what: "this is not a regular file".into(),
            });
        }
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let storage = if mmap && len > 0 {
            // SAFETY: the mapping is read-only and private to this value. Its one requirement, that
            // nobody changes the file meanwhile, is stated in the documentation of `OpenOptions`;
            // a change within the length shows as other bytes, each of which is checked when used.
            Storage::Mapped(unsafe { Mmap::map(&file) }.map_err(io)?)
        } else {
            Storage::Read(file)
        };
        let len = match &storage {
            Storage::Mapped(map) => map.len() as u64,
            Storage::Read(_) => len,
        };
        Ok(Self { path: path.to_owned(), len, storage })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), CheckpointError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(CheckpointError::malformed(
                &self.path,
                "a range of bytes",
                format!("{len} bytes at {offset}"),
                format!("the file's {} bytes", self.len),
            )),
        }
    }

    /// `len` bytes at `offset`: borrowed when mapped, read when not. Refused before anything is
    /// allocated when the file is shorter.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Cow<'_, [u8]>, CheckpointError> {
        self.check(offset, len as u64)?;
        match &self.storage {
            Storage::Mapped(map) => Ok(Cow::Borrowed(&map[offset as usize..][..len])),
            Storage::Read(file) => {
                let mut bytes = vec![0; len];
                read_at(file, offset, &mut bytes).map_err(CheckpointError::io(&self.path))?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// Lets the system drop the pages of a range; reading them again brings them back.
    pub(crate) fn release(&self, offset: u64, len: u64) {
        #[cfg(unix)]
        if let (Storage::Mapped(map), Ok(())) = (&self.storage, self.check(offset, len)) {
            // Only whole pages inside the range, so that neighbours stay; 64 KiB suits every page size.
            const PAGE: u64 = 1 << 16;
            let start = offset.next_multiple_of(PAGE);
            let end = (offset + len) / PAGE * PAGE;
            if start < end {
                // SAFETY: the mapping is read-only and file-backed, so dropped pages come back with
                // the file's bytes; no reference sees anything but those bytes.
                let _ = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start as usize,
                        (end - start) as usize,
                    )
                };
            }
        }
        #[cfg(not(unix))]
        let _ = (offset, len);
    }
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut offset: u64, mut bytes: &mut [u8]) -> std::io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => {
                bytes = &mut bytes[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}

/// Reads a whole side file (JSON, text) of at most `allowed` bytes.
pub(crate) fn read_small(path: &Path, allowed: u64) -> Result<Vec<u8>, CheckpointError> {
    let file = FileBytes::open(path, false)?;
    if file.len > allowed {
        return Err(CheckpointError::TooLarge { path: path.to_owned(), bytes: file.len, allowed });
    }
    Ok(file.read(0, file.len as usize)?.into_owned())
}

/// Whether the file begins with `magic`.
pub(crate) fn starts_with(path: &Path, magic: &[u8]) -> Result<bool, CheckpointError> {
    let file = FileBytes::open(path, false)?;
    Ok(file.len >= magic.len() as u64 && *file.read(0, magic.len())? == *magic)
}
