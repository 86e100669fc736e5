//! Writing checkpoints: files appear under their name only when they are complete.

pub(crate) mod config_json;
pub(crate) mod gguf;
pub(crate) mod safetensors;

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use super::CheckpointError;

/// Told after each piece of work: bytes done, bytes in all.
pub type ProgressFn<'a> = &'a mut dyn FnMut(u64, u64);

/// A file that is written under another name and renamed when it is complete.
pub(crate) struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    out: Option<BufWriter<File>>,
    written: u64,
}

impl NewFile {
    pub(crate) fn create(path: &Path) -> Result<Self, CheckpointError> {
        if path.exists() {
            return Err(CheckpointError::Exists { path: path.to_owned() });
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(CheckpointError::io(&partial))?;
        let out = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(Self { path: path.to_owned(), partial, out, written: 0 })
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        if let Some(out) = &mut self.out {
            out.write_all(bytes).map_err(CheckpointError::io(&self.partial))?;
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn finish(mut self) -> Result<(), CheckpointError> {
        if let Some(out) = &mut self.out {
            out.flush().map_err(CheckpointError::io(&self.partial))?;
        }
        std::fs::rename(&self.partial, &self.path).map_err(CheckpointError::io(&self.path))?;
        self.out = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            // Not finished: the half-written file is of no use, and its removal is best effort.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// Makes `folder`, which must be absent or empty, and fills it; when filling fails, what was written
/// is removed again.
pub(crate) fn new_folder<T>(
    folder: &Path,
    fill: impl FnOnce() -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    std::fs::create_dir_all(folder).map_err(CheckpointError::io(folder))?;
    let mut entries = std::fs::read_dir(folder).map_err(CheckpointError::io(folder))?;
    if entries.next().is_some() {
        return Err(CheckpointError::Exists { path: folder.to_owned() });
    }
    fill().inspect_err(|_| {
        // The folder was empty, so all of it is ours. Best effort: the error is what matters.
        let _ = std::fs::remove_dir_all(folder);
    })
}

/// Writes a small file at once.
pub(crate) fn small_file(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let mut file = NewFile::create(path)?;
    file.put(bytes)?;
    file.finish()
}

/// Writes indented JSON.
pub(crate) fn json_file(path: &Path, value: &serde_json::Value) -> Result<(), CheckpointError> {
    let mut text = format!("{value:#}");
    text.push('\n');
    small_file(path, text.as_bytes())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The last bytes are written when the file is finished.
    #[test]
    fn a_disk_that_is_full_at_the_end_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::os::unix::fs::symlink("/dev/full", folder.path().join("model.partial")).unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.put(b"few").unwrap();
        let error = file.finish().unwrap_err();
        assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
