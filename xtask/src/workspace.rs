//! Where things stand in the working copy. Every path in xtask starts here, so the commands work
//! from any folder and write nothing outside the workspace's target folder but what they say.

use std::path::{Path, PathBuf};

/// The workspace root.
pub(crate) fn root() -> PathBuf {
    // xtask/ stands directly below the root; cargo sets the variable for `cargo run` and tests.
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or(here.clone(), Path::to_path_buf)
}

/// The target folder of the host build.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The committed PTX.
pub(crate) fn ptx() -> PathBuf {
    root().join("kernels-gpu/ptx")
}

/// `path` relative to the root, with forward slashes, for messages and hashes.
pub(crate) fn relative(path: &Path) -> String {
    let root = root();
    let path = path.strip_prefix(&root).unwrap_or(path);
    path.to_string_lossy().replace('\\', "/")
}

/// Files below `dir` whose name ends in one of `ends`, sorted by path. A missing `dir` has none.
pub(crate) fn files(dir: &Path, ends: &[&str]) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(dir) = open.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    open.push(entry.path());
                }
            } else if ends.iter().any(|end| name.ends_with(end)) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}
