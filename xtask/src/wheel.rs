//! Programs that come as Python wheels, put into the target folder when first needed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{process, workspace};

/// A pinned wheel.
pub(crate) struct Wheel {
    /// Its name on PyPI.
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// What of it is wanted: a file.
    pub(crate) path: &'static str,
}

impl Wheel {
    /// Where that file is, installed or not, when wheels of its kind are in `folder` of the target folder.
    pub(crate) fn place(&self, folder: &str) -> PathBuf {
        self.dir(folder).join(self.path)
    }

    fn dir(&self, folder: &str) -> PathBuf {
        workspace::target().join(folder).join(self.version)
    }

    /// Finds it, or puts it there with pip.
    ///
    /// # Errors
    /// No python3 with pip and none to be had; pip's own.
    pub(crate) fn install(&self, folder: &str) -> Result<PathBuf> {
        let (place, dir) = (self.place(folder), self.dir(folder));
        if place.exists() {
            return Ok(place);
        }
        println!("installing {} {} into {}", self.package, self.version, dir.display());
        let pip = || process::works("python3", &["-m", "pip", "--version"]);
        if !pip() && process::can_apt() {
            let install = "install -y -qq --no-install-recommends python3-pip";
            let apt = || process::capture(process::foreign("apt-get").args(install.split(' ')));
            if apt().is_err() {
                process::capture(process::foreign("apt-get").args(["update", "-qq"]))?;
                apt()?;
            }
        }
        if !pip() {
            bail!("{} comes as a Python wheel, and there is no python3 with pip", self.package);
        }
        // Into a folder beside the final one: a half-written install is never taken for a whole one.
        let partial = dir.with_extension("partial");
        let _ = std::fs::remove_dir_all(&partial);
        let mut command = process::foreign("python3");
        command.args("-m pip install --quiet --disable-pip-version-check --no-deps".split(' '));
        command.args(["--no-compile", "--root-user-action=ignore", "--target"]).arg(&partial);
        command.arg(format!("{}=={}", self.package, self.version));
        process::capture(&mut command)?;
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::rename(&partial, &dir)?;
        executable(&place)?;
        Ok(place)
    }
}

#[cfg(unix)]
fn executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("{} is not in the wheel", path.display()))
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Result<()> {
    Ok(())
}
